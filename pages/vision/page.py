"""Time models of one's choice: a preset, the models, what differs; then the run it started and what it found."""

from typing import Any

import streamlit as st

from engine.names import select
from engine.report.timings import needs
from engine.specs import BenchmarkSpec, Refused
from engine.specs.variant import EXECUTIONS
from pages.shared import backend, launch
from pages.shared.form import groups, presets, spec_form
from pages.shared.text import size, span

PREFIX = "benchmark"
PRESETS: presets.Presets = {
    "Quick look": presets.Preset(
        "One process, eager; not to be quoted.", {"replicates": 1, "variants": ["eager"], "publishable": False}
    ),
    "Quotable": presets.Preset(
        "Three fresh processes, whose disagreement is reported.",
        {"replicates": None, "variants": ["eager"], "publishable": False},
    ),
    "Compile or not?": presets.Preset(
        "Three fresh processes, eager beside torch.compile, interleaved.",
        {"replicates": None, "variants": ["eager", "compile"], "publishable": False},
    ),
}
OFFERED = [*EXECUTIONS, "compile:max-autotune", "compile:aot_eager", "eager+channels_last", "eager+bfloat16"]
BATCHES = ("1", "8", "32", "64")
FURTHER = {
    "Computation": ("precision", "image_size", "context_length", "tower", "optimizer", "channels_last"),
    "Timing": ("purpose", "replicates", "publishable", "min_samples", "min_seconds", "time_limit"),
    "Conditions": ("threads", "max_batch_size", "seed", "cache", "cudnn_benchmark", "deterministic"),
    "Model filters": ("filter", "exclude", "exclude_exact", "partition"),
}
ALIKE = ("mode", "purpose", "device", "variants", "precision", "processes", "floor_seconds", "image_size")
TIGHT = 0.8  # share of the memory above which an estimate is called tight


def promise(spec: BenchmarkSpec, models: list[str]) -> str:
    """What pressing the button will do, and for about how long."""
    latest = launch.last_similar_run(spec, alike)
    seconds = expected_s(str(backend.settings().runs_dir), latest.id, len(models)) if latest else None
    if seconds is None:
        time = span(needs.benchmark_s(spec, models, backend.catalogue(), launch.start_s(spec)))
    else:
        time = f"{span(needs.like_s(seconds))} going by the last run like it"
    ways = f"{len(spec.plan)} variants interleaved" if len(spec.plan) > 1 else spec.plan[0].label
    processes = f"{spec.processes} fresh process{'es' * (spec.processes != 1)} each"
    first = f"{', '.join(models[:3])}{', ...' if len(models) > 3 else ''}"
    batch = f"batch {spec.batch_size}"
    doing = "Times" if spec.purpose == "performance" else "Compares the results of"
    return (
        f"{doing} {len(models)} model{'s' * (len(models) != 1)} ({ways}, {spec.mode}, {batch}) on {spec.device} in "
        f"{processes}, {time}: {first}"
    )


def alike(one: BenchmarkSpec, other: BenchmarkSpec) -> bool:
    """Whether a model takes about as long in both."""
    return all(getattr(one, name) == getattr(other, name) for name in ALIKE)


@st.cache_data(max_entries=100, show_spinner=False)
def expected_s(runs_dir: str, run_id: int, models: int) -> float | None:
    """Seconds for so many models, going by a finished run."""
    return needs.expected_s(models, backend.store().rows(run_id))


def memory(spec: BenchmarkSpec, models: list[str]) -> str:
    """Whether it should fit, from the catalogue's counts and this machine's memory."""
    need = needs.memory(spec, models, backend.catalogue())
    if need is None:
        return "Memory: the largest batch that fits is searched for." if spec.batch_size == "max" else ""
    unknown = f"; {need.unknown} models are not in the catalogue" if need.unknown else ""
    said = f"Memory: about {size(need.gb)} for {need.model} at batch {need.batch_size}"
    assumed = (
        "activations kept for the backward pass are guessed" if "training" in spec.modes else "without PyTorch itself"
    )
    if (there := launch.device_memory_gb(spec.device)) is None:
        return f"{said} ({assumed}){unknown}"
    verdict = "will not fit" if need.gb > there else "is tight" if need.gb > TIGHT * there else "fits"
    return f"{said}, of {size(there)}: {verdict} ({assumed}){unknown}"


@st.fragment
def form() -> None:
    """The form. It answers on its own, without redrawing the results below."""
    place = st.container()
    models = launch.models_field(BenchmarkSpec, PREFIX, groups=("suite",))
    columns = st.columns([3, 1, 2, 1])
    choices = {"variants": OFFERED, "batch_size": BATCHES, "mode": None, "device": launch.devices()}
    values: dict[str, Any] = {}
    for column, (name, offered) in zip(columns, choices.items(), strict=True):
        with column:
            values[name] = spec_form.field(BenchmarkSpec, name, PREFIX, offered)
    values |= groups.draw(BenchmarkSpec, PREFIX, FURTHER)
    presets.draw(place, PREFIX, PRESETS, values)
    spec, problems = spec_form.build(BenchmarkSpec, values | {"models": models}) if models else (None, [])
    sentence, beside = "Choose models: search for names, type a wildcard, or take the whole suite.", ""
    if spec:
        try:
            chosen = select(spec, launch.families())
            sentence, beside = promise(spec, chosen), memory(spec, chosen)
        except Refused as refusal:
            problems.append(str(refusal))
    options = {"key": "benchmark_go", "label": "Time", "icon": ":material/timer:"}
    launch.launch(spec, problems, sentence=sentence, beside=beside, doubtful="will not fit" in beside, **options)


st.title("Vision speed", anchor=False)
st.caption("Latency, throughput and memory of timm, open_clip and torchvision models on this machine, timed now.")
form()
launch.linked_run("benchmark", "Results appear here. Earlier ones are under Runs.")
