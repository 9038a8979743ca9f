"""The page Vision speed: presets, models and settings, then the run below."""

from collections.abc import Sequence

import streamlit as st

from engine.names import FILTERS, select
from engine.report.timings import needs
from engine.specs import BenchmarkSpec, ModelName, Refused, format_image_size
from engine.specs.fields.building import OPTIONS
from engine.specs.fields.variant import EXECUTIONS
from engine.words import plural, shortened
from pages.shared import backend
from pages.shared.form import files, groups, presets, spec_form
from pages.shared.runs import durations, launch
from pages.shared.text import size

PREFIX = "benchmark"
# Precisions that compute in 16 bits.
HALF = ("bfloat16", "float16", "amp", "amp_bfloat16", "amp_float16")
PRESETS: presets.Presets = {
    "Quick look": presets.Preset(
        "Time eager models in one process for at most 5 s. A first impression, without a spread or verdicts.",
        {"replicates": 1, "variants": ["eager"], "publishable": False, "max_seconds": 5.0},
    ),
    "3 processes": presets.Preset(
        "Sample eager models for 2 s in each of three fresh processes. The result has a spread and can be quoted.",
        {"replicates": None, "variants": ["eager"], "publishable": False, "max_seconds": None},
    ),
    "Compile or not?": presets.Preset(
        "Time eager and torch.compile interleaved in three fresh processes. The result is a speed-up with a verdict.",
        {"replicates": None, "variants": ["eager", "compile"], "publishable": False, "max_seconds": None},
    ),
}
VARIANTS = [*EXECUTIONS, "compile:max-autotune", "compile:aot_eager", "eager+channels_last", "eager+bfloat16"]
BATCHES = ("1", "8", "32", "64", "1,16")
FURTHER = {
    "Computation": ("precision", "image_size", "context_length", "tower", "optimizer", "channels_last"),
    "Timing": (
        *("purpose", "replicates", "publishable", "min_samples", "min_seconds", "max_seconds", "time_limit", "trace"),
    ),
    "Accuracy checks": ("cosine", "tolerance"),
    "Conditions": ("threads", "seed", "cache", "cudnn_benchmark", "deterministic"),
    "Cluster": ("nodes",),
    "Batch sizes": ("max_batch_size", "batch_size_list"),
    "Model": OPTIONS,
    "Model filters": FILTERS,
}
TIGHT = 0.8  # an estimate above this share of the memory is reported as tight


def describe(spec: BenchmarkSpec, models: Sequence[ModelName]) -> str:
    """Return a sentence on what the button will do and how long it will take."""
    time = durations.timing(spec, models)
    variants = f"{len(spec.plan)} variants interleaved" if len(spec.plan) > 1 else spec.plan[0].label
    repeated = {"model": len(models) > 1, "batch size": spec.sweeps}
    per = " and ".join(name for name, is_repeated in repeated.items() if is_repeated)
    processes = plural(spec.processes, "fresh process", "es") + (f" per {per}" if per else "")
    nodes = f", shared by {spec.nodes} nodes" if spec.nodes > 1 else ""
    modes = " and ".join(spec.modes)
    sizes = _sizes(spec, models)
    at = f", {sizes[0]} px" if len(sizes) == 1 else ""
    action = "Times" if spec.purpose == "performance" else "Compares the results of"
    return (
        f"{action} {plural(len(models), 'model')} ({variants}, {modes}, batch {spec.batch_size}{at}) on {spec.device} "
        f"in {processes}{nodes}, {time}: {shortened(models, 3)}"
    )


def memory(spec: BenchmarkSpec, models: Sequence[ModelName]) -> str:
    """Return a sentence that compares the estimated memory, from the catalogue's counts, with the device's."""
    need = needs.memory(spec, models, backend.catalogue())
    if need is None:
        return "Memory: the run finds the largest batch that fits." if spec.batch_size == "max" else ""
    unknown = f"; {plural(need.unknown, 'model')} not in the catalogue" if need.unknown else ""
    case = f"for {need.model} at batch {need.batch_size}"
    more = f"(without PyTorch's own memory){unknown}"
    if (available := launch.device_memory_gb(spec.device)) is None:
        return f"Memory: about {size(need.gb)} {case} {more}"
    verdict = "will not fit" if need.gb > available else "is tight" if need.gb > TIGHT * available else "fits"
    return f"Memory: about {size(need.gb)} of {size(available)} {case}: {verdict} {more}"


def _sizes(spec: BenchmarkSpec, models: Sequence[ModelName]) -> list[str]:
    """Return the distinct image sizes at which models of the catalogue are timed. A text tower has none."""
    if spec.tower == "text":
        return []
    if spec.image_size:
        return [format_image_size(spec.image_size)]
    return needs.own_image_sizes(spec, models, backend.catalogue())


def sizes_note(spec: BenchmarkSpec, models: Sequence[ModelName]) -> str:
    """Return a sentence that verdicts between models need one image size; empty if they have one or none is needed."""
    sizes = _sizes(spec, models)
    if spec.purpose != "performance" or len(sizes) < 2:
        return ""
    return f"Image sizes differ ({shortened(sizes)} px). For verdicts between models, set one under Computation."


@st.fragment
def form() -> None:
    """Draw the form. It is a fragment, so that a change does not redraw the results below."""
    place = st.container()
    models = launch.models_field(BenchmarkSpec, groups=("suite",))
    widths = {"variants": 4, "batch_size": 3, "mode": 5, "device": 2}
    values = spec_form.row(BenchmarkSpec, widths, variants=VARIANTS, batch_size=BATCHES, device=launch.devices())
    shown = {group: fields for group, fields in FURTHER.items() if group != "Cluster" or launch.cluster_devices()}
    values |= groups.draw(BenchmarkSpec, shown)
    presets.draw(place, PREFIX, PRESETS, values)
    names, values["configs"] = files.draw_files(PREFIX)
    values["models"] = [*models, *names]
    spec, problems = spec_form.build(BenchmarkSpec, values) if values["models"] else (None, [])
    sentence, notes = "Choose models: search for names, type a wildcard, or choose the whole suite.", [""]
    if spec:
        try:
            chosen = select(spec, launch.families())
            sentence = describe(spec, chosen)
            notes = [memory(spec, chosen), sizes_note(spec, chosen)]
        except Refused as refusal:
            problems.append(str(refusal))
        precisions = {variant.precision for variant in spec.plan}
        if not precisions & set(HALF):
            base = "float32" if "float32" in precisions else "tf32"
            notes.append(launch.bf16_advice(spec.device, "Precision bfloat16", base))
    note, warn = "\n".join(filter(None, notes)), "will not fit" in notes[0]
    launch.launch(PREFIX, spec, problems, "Time", ":material/timer:", sentence=sentence, note=note, warn=warn)


st.title("Vision speed", anchor=False)
st.caption("Measure latency, throughput and memory of timm, open_clip and torchvision models on this machine.")
form()
launch.draw_linked_run("benchmark", "Results appear here. Earlier results are on the page Runs.")
