"""The page Recurrent layers: presets, runners, sizes and settings, then the run below."""

from typing import Any

import streamlit as st

from engine.report.timings import needs as timings_needs
from engine.specs import RecurrentSpec
from engine.specs.base import device_on_node
from engine.specs.fields.runners import RUNNERS
from engine.specs.recurrent import KNOBS
from engine.words import plural, shortened
from pages.shared.form import groups, presets, spec_form
from pages.shared.runs import durations, launch
from pages.shared.text import plain, size

PREFIX = "recurrent"
FASTRNNS = {
    **{"groups": ["rnns", "cnns"], "runners": [], "seq_length": 100, "input_size": 512, "hidden_size": 512},
    **{"mini_batch": 64, "num_layers": 1, "warmup": 10, "loops": 100, "replicates": None},
}
PRESETS: presets.Presets = {
    "As fastrnns": presets.Preset(
        "Use the defaults of PyTorch's benchmark fastrnns in three fresh processes.", FASTRNNS
    ),
    "Small, for a CPU": presets.Preset(
        "Time an LSTM of 64 features with every runner that needs no cuDNN.",
        {
            **{"groups": ["rnns"], "runners": [], "seq_length": 20, "input_size": 64, "hidden_size": 64},
            **{"mini_batch": 8, "num_layers": 1, "warmup": 10, "loops": 30, "replicates": None},
        },
    ),
    "Compiled too": presets.Preset(
        "Time the LSTM also with torch.compile, without the ResNets.", FASTRNNS | {"groups": ["rnns", "compiled"]}
    ),
}
SHAPES = ("seq_length", "mini_batch", "input_size", "hidden_size", "num_layers")
FURTHER = {
    "Sweep and baseline": ("sweep", "sweep_values", "baseline"),
    "Layers and ResNets": ("bidirectional", "batch_first", "proj_size", "image_size"),
    "Timing": ("loops", "warmup", "min_seconds", "time_limit"),
    "Processes": ("replicates", "publishable", "threads", "seed"),
    "TorchScript": ("fuser", "executor", *KNOBS),
}
MOST_NAMED = 8  # maximum number of runners that the sentence beside the button names


def describe(spec: RecurrentSpec) -> str:
    """Return a sentence on what the button will do and how long it will take."""
    time = durations.timing(spec)
    chosen, processes = spec.chosen, plural(spec.processes, "fresh process", "es")
    if len(spec.comparisons) > 1:
        processes += " per network and size" if spec.swept else " per network"
    sizes = f", {spec.sweep.replace('_', ' ')} {', '.join(map(str, spec.swept))}" if spec.swept else ""
    return (
        f"Times {plural(len(chosen), 'runner')} forward and backward{sizes} on {spec.device} in "
        f"{processes}, {time}: {shortened(chosen, MOST_NAMED)}"
    )


def warnings(spec: RecurrentSpec) -> list[str]:
    """Return warnings about runners that cannot run on the device or take very long."""
    messages = []
    unavailable = [name for name in spec.chosen if RUNNERS[name].needs_cudnn]
    if unavailable and not device_on_node(spec.device).startswith("cuda"):
        verb = "needs" if len(unavailable) == 1 else "need"
        messages.append(f"{', '.join(unavailable)} {verb} cuDNN, which {spec.device} does not have, and will fail.")
    if spec.left_out:
        messages.append(f"Left out, because {spec.device} has no cuDNN: {', '.join(spec.left_out)}.")
    if slow := [name for name in spec.chosen if RUNNERS[name].one_by_one]:
        messages.append(f"Very slow, because they process sequences one by one: {', '.join(slow)}.")
    return messages


def memory(spec: RecurrentSpec) -> tuple[str, bool]:
    """Return a sentence on the minimum memory needed, and True if it exceeds the memory of the device.

    The sentence is empty if the memory of the device is unknown.
    """
    need, available = timings_needs.recurrent_least_gb(spec), launch.device_memory_gb(spec.device)
    if available is None:
        return "", False
    estimate = f"Memory: at least {size(need)} of {size(available)}"
    return estimate + (": will not fit" if need > available else ""), need > available


def prefill_on_first_visit() -> None:
    """Select the preset for CPUs on the first visit to a machine without CUDA, unless a link sets fields."""
    if f"{PREFIX}_seen" in st.session_state:
        return
    st.session_state[f"{PREFIX}_seen"] = True
    has_linked_fields = any(name.startswith(f"{PREFIX}_") for name in st.query_params)
    if not has_linked_fields and not any(device_on_node(device).startswith("cuda") for device in launch.devices()):
        presets.prefill(PREFIX, PRESETS["Small, for a CPU"])


def baselines(values: dict[str, Any]) -> list[str]:
    """Return the runners that can be the baseline: the runners chosen in the form."""
    spec, _ = spec_form.build(RecurrentSpec, {name: values[name] for name in ("groups", "runners")})
    return list(spec.chosen) if isinstance(spec, RecurrentSpec) else []


@st.fragment
def form() -> None:
    """Draw the form. It is a fragment, so that a change does not redraw the results below."""
    place = st.container()
    left, right = st.columns([2, 3])
    values = {"groups": spec_form.field(RecurrentSpec, "groups", pills=True, place=left)}
    values["runners"] = spec_form.field(RecurrentSpec, "runners", list(RUNNERS), place=right)
    values |= spec_form.row(RecurrentSpec, dict.fromkeys(SHAPES, 1))
    values |= spec_form.row(RecurrentSpec, {"device": 1, "precision": 2}, device=launch.devices())
    values |= groups.draw(RecurrentSpec, FURTHER, baseline=baselines(values))
    presets.draw(place, PREFIX, PRESETS, values)
    spec, problems = spec_form.build(RecurrentSpec, values)
    sentence, note, warn = "", "", False
    if isinstance(spec, RecurrentSpec):
        sentence = describe(spec)
        note, warn = memory(spec)
        for message in warnings(spec):
            st.warning(plain(message), icon=":material/warning:")
    launch.launch(PREFIX, spec, problems, "Time", ":material/timer:", sentence=sentence, note=note, warn=warn)


st.title("Recurrent layers", anchor=False)
st.caption(
    "Time LSTM, GRU and RNN layers, forward and backward, with several *runners*: ways to run the same layer. "
    "Some ResNets can be timed too."
)
prefill_on_first_visit()
form()
launch.draw_linked_run("recurrent", "Results appear here. Earlier results are on the page Runs.")
