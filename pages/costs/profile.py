"""Count models of one's choice: the form, then the run it started, then what it found."""

from typing import Any

import streamlit as st

from engine import shipped
from engine.names import LIBRARIES, parse_config, parse_names, select
from engine.report import frames
from engine.specs import ProfileSpec, Refused
from engine.store import State
from pages.components import backend, launch, spec_form
from pages.components.command import command
from pages.components.text import duration, plain

PREFIX = "profile"
ALIKE = ("counter", "device", "batch_size", "image_size", "precision", "training", "detail")
OPEN, FOLDED = ("counter", "device"), ("image_size", "batch_size", "precision", "context_length", "training", "detail")


@st.cache_data(max_entries=2, show_spinner=False)
def known_models(folder: str, stamp: int) -> dict[str, str]:
    """Family by qualified name, from the shipped catalogue."""
    return shipped.families(backend.settings().catalog_dir)


def families() -> dict[str, str]:
    """All names that can be asked for."""
    folder = backend.settings().catalog_dir
    stamp = max((path.stat().st_mtime_ns for path in folder.glob("*.csv")), default=0)
    return known_models(str(folder), stamp)


def models_field() -> list[str]:
    """Chips to search and type, and a list from a file or from the catalogue."""
    names = [*families(), "all", *(f"{library}:all" for library in LIBRARIES)]
    typed = st.session_state.get(spec_form.key(PREFIX, "models"), [])
    chips = st.multiselect(
        "Models",
        list(dict.fromkeys([*names, *typed])),
        key=spec_form.key(PREFIX, "models"),
        bind="query-params",
        accept_new_options=True,
        select_all=False,
        placeholder="Search, or type a wildcard such as ViT-B-* and press Enter",
        help=ProfileSpec.model_fields["models"].description,
    )
    listed = st.session_state.get(spec_form.key(PREFIX, "listed"), [])
    if listed:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.text(f"and a list of {len(listed)}: {', '.join(listed[:4])}, ...")
            if st.button("Remove the list", type="tertiary", icon=":material/close:"):
                st.session_state[spec_form.key(PREFIX, "listed")] = []
                st.rerun(scope="fragment")
    if own := st.session_state.get(spec_form.key(PREFIX, "configs"), {}):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.text(f"and {len(own)} configurations of the run this was cloned from: {', '.join(own)}")
            if st.button("Remove them", type="tertiary", icon=":material/close:"):
                st.session_state[spec_form.key(PREFIX, "configs")] = {}
                st.rerun(scope="fragment")
    return [*chips, *listed]


def upload_field() -> tuple[list[str], dict[str, Any]]:
    """Names from a text or CSV file, and open_clip configurations of one's own."""
    names: list[str] = []
    configs: dict[str, Any] = dict(st.session_state.get(spec_form.key(PREFIX, "configs"), {}))
    files = st.file_uploader(
        "Names (.txt, .csv) or open_clip configurations (.json)",
        type=["txt", "csv", "json"],
        accept_multiple_files=True,
        key="profile_files",
        help="Text: one name or pattern a line. CSV: a column `model`. JSON: a configuration as open_clip reads it.",
    )
    for file in files:
        text = file.getvalue().decode("utf-8-sig", errors="replace")
        stem = file.name.rsplit(".", 1)[0]
        try:
            if file.name.endswith(".json"):
                configs[stem] = parse_config(text, file.name)
            else:
                names += parse_names(text, file.name)
        except Refused as refusal:
            st.error(plain(str(refusal)))
    return [*names, *(f"config:{name}" for name in configs)], configs


def devices(counter: str) -> list[str]:
    """What this machine can count on, as last probed; without weights where the counter allows it."""
    machine = backend.store().machine()
    real = [device.name for device in machine.devices] if machine else ["cpu"]
    return real if counter != "torch" else ["meta", *real]


def promise(spec: ProfileSpec) -> str:
    """What pressing the button will do. Errors: ModelNotFound."""
    own = {f"config:{name}": "own" for name in spec.configs}
    models = select(spec, families() | own)
    like = (run for run in backend.store().runs(kind="profile", states=[State.FINISHED], limit=50))
    latest = next((run.id for run in like if alike(run.spec, spec)), None)
    seconds = expected_s(str(backend.settings().runs_dir), latest, len(models)) if latest else None
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
    models = models_field()
    left, right = st.columns(2)
    with left:
        values: dict[str, Any] = {"counter": spec_form.field(ProfileSpec, "counter", PREFIX)}
    with right:
        values["device"] = spec_form.field(ProfileSpec, "device", PREFIX, devices(values["counter"]))
    with st.expander("Image size, batch, precision, training peak, modules, files"):
        columns = st.columns(3)
        for place, name in enumerate(FOLDED):
            with columns[place % 3]:
                values[name] = spec_form.field(ProfileSpec, name, PREFIX)
        names, values["configs"] = upload_field()
    values["models"] = [*models, *names]
    button = st.container(horizontal=True, vertical_alignment="center")
    spec, problems = spec_form.build(ProfileSpec, values) if values["models"] else (None, [])
    sentence = "Choose models: search for names, type a wildcard, or upload a list."
    if spec:
        try:
            sentence = promise(spec)
        except Refused as refusal:
            problems.append(str(refusal))
    for problem in problems:
        st.error(plain(problem), icon=":material/error:")
    ready = spec is not None and not problems
    with button:
        pressed = st.button("Count", type="primary", icon=":material/calculate:", disabled=not ready, key="profile_go")
        if not problems:
            st.text(sentence)
    if ready:
        st.code(command(spec), language=None, wrap_lines=True)
    if ready and pressed:
        launch.start(spec)


st.title("Profile", anchor=False)
st.caption("Parameters, MACs, activations and memory of any open_clip, timm or torchvision model, counted now.")
form()
launch.linked_run("profile", "Results appear here. Earlier ones are under Runs.")
