"""What forms that start runs share: the field of models, and the one way from a spec to a run."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any
from uuid import uuid4

import streamlit as st

from engine import shipped
from engine.jobs import submit
from engine.names import LIBRARIES
from engine.report.checks import training
from engine.report.timings import needs, rates
from engine.specs import Refused, Spec
from engine.store import Run, State
from pages.shared import backend, redraw, run_view
from pages.shared.chart.verbatim import verbatim
from pages.shared.command import command
from pages.shared.form import spec_form
from pages.shared.text import plain, quoted


@st.cache_resource(max_entries=2, show_spinner=False)
def _known_models(folder: str, stamp: int) -> dict[str, str]:
    return shipped.families(backend.settings().catalog_dir)


def families() -> dict[str, str]:
    """Return every name that can be asked for, qualified, with its family: those of the shipped catalogue.

    All sessions share the answer, so that a field of models costs a session no names of its own: do not change it.
    """
    folder = backend.settings().catalog_dir
    stamp = max((path.stat().st_mtime_ns for path in folder.glob("*.csv")), default=0)
    return _known_models(str(folder), stamp)


def devices() -> list[str]:
    """What this machine can run on, as last probed."""
    machine = backend.store().machine()
    return [device.name for device in machine.devices] if machine else ["cpu"]


def memory_there(device: str) -> float | None:
    """GB of a device, of the host for the CPU; None where the probe has not told."""
    machine = backend.store().machine()
    if machine is None or device == "cpu":
        return machine.memory_gb if machine else None
    return {one.name: one.memory_gb for one in machine.devices}.get(device)


def bf16_advice(device: str, setting: str) -> str:
    """Return a sentence that proposes bfloat16 where the rates measured on this machine say that it pays."""
    store = backend.store()
    if (machine := store.machine()) is None:
        return ""
    return _bf16_advice(backend.settings().store_url, store.revision(), machine.host, device, setting)


@st.cache_data(max_entries=20, show_spinner=False)
def _bf16_advice(store: str, revision: int, host: str, device: str, setting: str) -> str:
    return training.bf16_advice(rates.rates(backend.store()), host, device, setting)


def last_like(spec: Spec) -> Run | None:
    """Return the latest finished run of this kind whose work takes about as long as this spec's; None without any."""
    finished = backend.store().runs(kind=spec.kind, states=[State.FINISHED], limit=50)
    return next((run for run in finished if run.spec.pace == spec.pace), None)


def start_s(spec: Spec) -> needs.Span:
    """Return what starting a process of a timing takes, going by the latest finished run of this kind."""
    latest = next(iter(backend.store().runs(kind=spec.kind, states=[State.FINISHED], limit=1)), None)
    return _start_s(str(backend.settings().runs_dir), latest.id) if latest else needs.START_S


@st.cache_data(max_entries=100, show_spinner=False)
def _start_s(runs_dir: str, run_id: int) -> needs.Span:
    return needs.start_s(backend.store().rows(run_id))


def models_field(spec: type[Spec], prefix: str, groups: Sequence[str] = ()) -> list[str]:
    """Chips to search and type, and a list from a file or from the catalogue. groups: further names on offer."""
    names = [*families(), "all", *(f"{library}:all" for library in LIBRARIES), *groups]
    typed = st.session_state.get(spec_form.key(prefix, "models"), [])
    chips = st.multiselect(
        "Models",
        list(dict.fromkeys([*names, *typed])),
        key=spec_form.key(prefix, "models"),
        bind="query-params",
        accept_new_options=True,
        select_all=False,
        placeholder="Search, or type a wildcard such as ViT-B-* and press Enter",
        help=spec.model_fields["models"].description,
    )
    redraw.hold(spec_form.key(prefix, "models"))
    return [*chips, *_listed(spec_form.key(prefix, spec_form.LISTED))]


def _listed(key: str) -> list[str]:
    """The long list of models that the address speaks of and this tab has, until it is taken away."""
    listed = list(st.session_state.get(key, []))
    if (count := st.query_params.get(key)) is None:
        return []
    if count != str(len(listed)):
        st.warning(
            plain(
                f"This link speaks of a list of {count[:20]} models, which only the tab that made it has: choose anew."
            ),
            icon=":material/link_off:",
        )
        return []
    with st.container(horizontal=True, vertical_alignment="center"):
        st.text(f"and a list of {len(listed)}: {', '.join(listed[:4])}, ...")
        forget = {"on_click": st.query_params.pop, "args": (key, None)}
        st.button("Remove the list", type="tertiary", icon=":material/close:", **forget)
    return listed


def launch(
    spec: Spec | None,
    problems: Sequence[str],
    *,
    key: str,
    label: str,
    icon: str,
    sentence: str,
    beside: str = "",
    doubtful: bool = False,
) -> None:
    """The button with what it will do, what stands against it, and the command that does the same.

    beside: a further line of what is to be known before pressing it; doubtful: it speaks against pressing.
    """
    button = st.container(horizontal=True, vertical_alignment="center")
    for problem in problems:
        st.error(plain(problem), icon=":material/error:")
    ready = spec is not None and not problems
    with button:
        pressed = st.button(label, type="primary", icon=icon, disabled=not ready, key=key)
        if not problems:
            st.text(f"{sentence}\n{beside}" if beside and not doubtful else sentence, width="stretch")
    if doubtful and not problems:
        st.warning(plain(beside), icon=":material/memory:")
    if spec is not None and ready:
        verbatim(command(spec), key=f"{key}_command")
        if pressed:
            start(spec)


def submission_key(spec: Spec) -> str:
    """The same for a second click on the same request, so that one run comes of it; new once that run has ended."""
    last: Mapping[str, Any] = st.session_state.get(f"{spec.kind}_sent", {})
    if last.get("digest") == _digest(spec) and not backend.store().run(last["run"]).state.ended:
        return str(last["key"])
    return uuid4().hex


def start(spec: Spec) -> None:
    """Queue it and show the run; when it is refused, say so and keep what was typed."""
    key = submission_key(spec)
    try:
        run_id = submit(backend.store(), backend.settings(), spec, key=key)
    except Refused as refusal:
        st.error(plain(str(refusal)), icon=":material/error:")
        return
    st.session_state[f"{spec.kind}_sent"] = {"digest": _digest(spec), "run": run_id, "key": key}
    st.query_params["run"] = str(run_id)
    st.rerun()


def linked_run(kind: str, empty: str) -> None:
    """The run that the address names, as it goes; `empty` is what stands there when it names none."""
    run = backend.linked_run()
    if run and run.kind == kind:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.header(f"Run {run.id}", anchor=False)
            st.page_link(
                "run/page.py",
                label="Log and environment",
                icon=":material/receipt_long:",
                query_params={"run": str(run.id)},
            )
        st.caption(plain(run.spec.summary))  # the form above may say something else
        run_view.follow(run, beside_form=True)
    elif asked := st.query_params.get("run", ""):
        st.warning(
            plain(f"There is no run {quoted(asked)} of this kind; it may have been deleted."),
            icon=":material/search_off:",
        )
    else:
        st.caption(empty)


def _digest(spec: Spec) -> str:
    return sha256(spec.model_dump_json().encode()).hexdigest()
