"""Count models of one's choice: the form, then the run it started, then what it found."""

from typing import Any

import streamlit as st

from engine.names import parse_config, parse_names, select
from engine.report import frames
from engine.specs import ProfileSpec, Refused
from pages.shared import backend, launch
from pages.shared.fold import fold
from pages.shared.form import groups, spec_form
from pages.shared.text import duration, plain

PREFIX = "profile"
ALIKE = ("counter", "device", "batch_size", "image_size", "precision", "training", "detail")
FURTHER = {
    "Input": ("image_size", "context_length", "batch_size", "precision"),
    "What is counted": ("training", "detail"),
}


def own_configurations() -> None:
    """Those of the run this was cloned from, which no address can hold."""
    if own := st.session_state.get(spec_form.key(PREFIX, "configs"), {}):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.text(f"and {len(own)} configurations of the run this was cloned from: {', '.join(own)}")
            if st.button("Remove them", type="tertiary", icon=":material/close:"):
                st.session_state[spec_form.key(PREFIX, "configs")] = {}
                st.rerun(scope="fragment")


def from_files() -> tuple[list[str], dict[str, Any]]:
    """Names from text or CSV files, and open_clip configurations of one's own beside those that are there already."""
    names: list[str] = []
    configs: dict[str, Any] = dict(st.session_state.get(spec_form.key(PREFIX, "configs"), {}))
    files = f"{PREFIX}_files"
    if part := fold("Models from files", key=f"{PREFIX}_fold_files", filled=bool(st.session_state.get(files))):
        with part:
            names, own = read_files(files)
        configs |= own
    return [*names, *(f"config:{name}" for name in configs)], configs


def read_files(key: str) -> tuple[list[str], dict[str, Any]]:
    """The uploader, and the names and configurations in what it was given."""
    names: list[str] = []
    configs: dict[str, Any] = {}
    for file in st.file_uploader(
        "Names (.txt, .csv) or open_clip configurations (.json)",
        type=["txt", "csv", "json"],
        accept_multiple_files=True,
        key=key,
        help="Text: one name or pattern a line. CSV: a column `model`. JSON: a configuration as open_clip reads it.",
    ):
        text = file.getvalue().decode("utf-8-sig", errors="replace")
        try:
            if file.name.endswith(".json"):
                configs[file.name.rsplit(".", 1)[0]] = parse_config(text, file.name)
            else:
                names += parse_names(text, file.name)
        except Refused as refusal:
            st.error(plain(str(refusal)))
    return names, configs


def devices(counter: str) -> list[str]:
    """What this machine can count on, as last probed; without weights where the counter allows it."""
    return launch.devices() if counter != "torch" else ["meta", *launch.devices()]


def promise(spec: ProfileSpec) -> str:
    """What pressing the button will do. Errors: ModelNotFound."""
    own = {f"config:{name}": "own" for name in spec.configs}
    models = select(spec, launch.families() | own)
    latest = launch.last_similar_run(spec, alike)
    seconds = expected_s(str(backend.settings().runs_dir), latest.id, len(models)) if latest else None
    time = f", about {duration(seconds)} going by the last run like it" if seconds is not None else ""
    first = f": {', '.join(models[:3])}{', ...' if len(models) > 3 else ''}"
    return f"Counts {len(models)} model{'s' * (len(models) != 1)} on {spec.device}{time}{first}"


def alike(one: ProfileSpec, other: ProfileSpec) -> bool:
    """Whether a model takes about as long in both."""
    return all(getattr(one, name) == getattr(other, name) for name in ALIKE)


@st.cache_data(max_entries=100, show_spinner=False)
def expected_s(runs_dir: str, run_id: int, models: int) -> float | None:
    """Seconds for so many models, going by a finished run."""
    return frames.expected_s(models, backend.store().rows(run_id))


@st.fragment
def form() -> None:
    """The form. It answers on its own, without redrawing the results below."""
    models = launch.models_field(ProfileSpec, PREFIX)
    own_configurations()
    left, right = st.columns(2)
    with left:
        values: dict[str, Any] = {"counter": spec_form.field(ProfileSpec, "counter", PREFIX)}
    with right:
        values["device"] = spec_form.field(ProfileSpec, "device", PREFIX, devices(values["counter"]))
    values |= groups.draw(ProfileSpec, PREFIX, FURTHER)
    names, values["configs"] = from_files()
    values["models"] = [*models, *names]
    spec, problems = spec_form.build(ProfileSpec, values) if values["models"] else (None, [])
    sentence = "Choose models: search for names, type a wildcard, or upload a list."
    if spec:
        try:
            sentence = promise(spec)
        except Refused as refusal:
            problems.append(str(refusal))
    launch.launch(spec, problems, key="profile_go", label="Count", icon=":material/calculate:", sentence=sentence)


st.title("Profile", anchor=False)
st.caption("Parameters, MACs, activations and memory of any open_clip, timm or torchvision model, counted now.")
form()
launch.linked_run("profile", "Results appear here. Earlier ones are under Runs.")
