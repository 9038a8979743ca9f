"""Time recurrent layers: a preset, what and how large; then the run it started and what it found."""

from typing import Any

import streamlit as st

from engine.report.timings import needs as timings_needs
from engine.specs import RecurrentSpec
from engine.specs.recurrent import KNOBS
from engine.specs.runners import RUNNERS, of_group
from pages.shared import launch
from pages.shared.form import groups, presets, spec_form
from pages.shared.text import plain, size, span

PREFIX = "recurrent"
WITHOUT_CUDNN = [name for name in of_group("rnns") if not RUNNERS[name].needs_cudnn]
FASTRNNS = {
    **{"groups": ["rnns", "cnns"], "runners": [], "seq_length": 100, "input_size": 512, "hidden_size": 512},
    **{"mini_batch": 64, "num_layers": 1, "warmup": 10, "loops": 100, "replicates": None},
}
PRESETS: presets.Presets = {
    "As fastrnns": presets.Preset("What PyTorch's benchmark runs by default, in three fresh processes.", FASTRNNS),
    "Small, for a CPU": presets.Preset(
        "An LSTM of 64 features in every way that needs no cuDNN.",
        {
            **{"groups": [], "runners": WITHOUT_CUDNN, "seq_length": 20, "input_size": 64, "hidden_size": 64},
            **{"mini_batch": 8, "num_layers": 1, "warmup": 10, "loops": 30, "replicates": None},
        },
    ),
    "Compiled too": presets.Preset(
        "The LSTM beside torch.compile, without the ResNets.", FASTRNNS | {"groups": ["rnns", "compiled"]}
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
MATTERS_NOT = ("baseline", "seed", "time_limit", "publishable", "replicates", "min_seconds")
FEW = 8  # names written out in a sentence


def alike(one: RecurrentSpec, other: RecurrentSpec) -> bool:
    """Whether both take about as long."""
    names = [name for name in RecurrentSpec.model_fields if name not in MATTERS_NOT]
    same = all(getattr(one, name) == getattr(other, name) for name in names)
    return same and (one.processes, one.floor_seconds) == (other.processes, other.floor_seconds)


def promise(spec: RecurrentSpec) -> str:
    """What pressing the button will do, and for about how long."""
    last = launch.last_similar_run(spec, alike)
    took = last.seconds() if last else None
    if took:
        time = f"{span(timings_needs.like_s(took))} going by the last run like it"
    else:
        time = span(timings_needs.recurrent_s(spec, launch.start_s(spec)))
    chosen, processes = spec.chosen, f"{spec.processes} fresh process{'es' * (spec.processes != 1)} each"
    names = ", ".join(chosen[:FEW]) + (f" and {len(chosen) - FEW} more" if len(chosen) > FEW else "")
    swept = f", {spec.sweep.replace('_', ' ')} {', '.join(map(str, spec.swept))}" if spec.swept else ""
    return (
        f"Times {len(chosen)} runner{'s' * (len(chosen) != 1)} forward and backward{swept} on {spec.device} in "
        f"{processes}, {time}: {names}"
    )


def reservations(spec: RecurrentSpec) -> list[str]:
    """What is to be known beforehand: what cannot run there, and what takes very long."""
    said = []
    absent = [name for name in spec.chosen if RUNNERS[name].needs_cudnn]
    if absent and not spec.device.startswith("cuda"):
        needs, rows = (
            ("needs", "it will be a row that says") if len(absent) == 1 else ("need", "they will be rows that say")
        )
        said.append(f"{', '.join(absent)} {needs} cuDNN, which {spec.device} has not: {rows} so.")
    if slow := [name for name in spec.chosen if RUNNERS[name].one_by_one]:
        said.append(f"Sequences go one after the other in {' and '.join(slow)}, which takes very long.")
    return said


def memory(spec: RecurrentSpec) -> tuple[str, bool]:
    """What it needs at the least, where the device's memory is known, and whether that is too much."""
    need, there = timings_needs.recurrent_least_gb(spec), launch.device_memory_gb(spec.device)
    if there is None:
        return "", False
    said = f"Memory: at least {size(need)}, of {size(there)}"
    return said + (": will not fit" if need > there else ""), need > there


def first_visit() -> None:
    """On a machine without CUDA, begin with what a CPU does in good time; a link says itself what it wants."""
    if f"{PREFIX}_seen" in st.session_state:
        return
    st.session_state[f"{PREFIX}_seen"] = True
    asked = any(name.startswith(f"{PREFIX}_") for name in st.query_params)
    if not asked and not any(device.startswith("cuda") for device in launch.devices()):
        presets.prefill(PREFIX, PRESETS["Small, for a CPU"])


def shapes() -> dict[str, Any]:
    """The sizes, in one row, and below them where and in which precision."""
    values: dict[str, Any] = {}
    for column, name in zip(st.columns(len(SHAPES)), SHAPES, strict=True):
        with column:
            values[name] = spec_form.field(RecurrentSpec, name, PREFIX)
    left, right = st.columns([1, 2])
    with left:
        values["device"] = spec_form.field(RecurrentSpec, "device", PREFIX, launch.devices())
    with right:
        values["precision"] = spec_form.field(RecurrentSpec, "precision", PREFIX)
    return values


def offered(values: dict[str, Any]) -> list[str]:
    """What can be the baseline: what is chosen so far."""
    spec, _ = spec_form.build(RecurrentSpec, {name: values[name] for name in ("groups", "runners")})
    return list(spec.chosen) if isinstance(spec, RecurrentSpec) else []


@st.fragment
def form() -> None:
    """The form. It answers on its own, without redrawing the results below."""
    place = st.container()
    left, right = st.columns([2, 3])
    with left:
        values = {"groups": spec_form.field(RecurrentSpec, "groups", PREFIX, pills=True)}
    with right:
        values["runners"] = spec_form.field(RecurrentSpec, "runners", PREFIX, list(RUNNERS))
    values |= shapes()
    values |= groups.draw(RecurrentSpec, PREFIX, FURTHER, baseline=offered(values))
    presets.draw(place, PREFIX, PRESETS, values)
    spec, problems = spec_form.build(RecurrentSpec, values)
    sentence, beside, doubtful = "", "", False
    if isinstance(spec, RecurrentSpec):
        sentence = promise(spec)
        beside, doubtful = memory(spec)
        for reservation in reservations(spec):
            st.warning(plain(reservation), icon=":material/warning:")
    options = {"key": "recurrent_go", "label": "Time", "icon": ":material/timer:"}
    launch.launch(spec, problems, sentence=sentence, beside=beside, doubtful=doubtful, **options)


st.title("Recurrent layers", anchor=False)
st.caption("LSTM, GRU and RNN forward and backward in every way PyTorch can run them, beside the classic ResNets.")
first_visit()
form()
launch.linked_run("recurrent", "Results appear here. Earlier ones are under Runs.")
