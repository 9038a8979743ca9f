"""Parts of all forms that start runs: the field of models, the submit button, and the submitted run below."""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import streamlit as st

from engine import shipped
from engine.jobs import submit, submit_sweep
from engine.names import LIBRARIES
from engine.report import checks
from engine.report.timings import rates
from engine.specs import ModelName, Refused, Spec
from engine.specs.base import device_on_node
from engine.store import Store
from engine.words import plural, shortened
from pages.shared import backend, rerun
from pages.shared.chart.chart import verbatim
from pages.shared.form import spec_form
from pages.shared.form.command import command
from pages.shared.runs import comparison_link, view
from pages.shared.text import plain, quoted, show_error


@st.cache_resource(max_entries=2, show_spinner=False, hash_funcs=backend.BY_VERSION)
def _known_models(folder: Path) -> dict[ModelName, str]:
    return shipped.families(folder)


def families() -> dict[ModelName, str]:
    """Return the family of every model of the catalogue, by qualified name. Sessions share it: do not change it."""
    return _known_models(backend.settings().catalog_dir)


def devices() -> list[str]:
    """Return the devices on which models can run: of this machine by the last probe, then of the cluster."""
    machine = backend.store().machine()
    local = [device.name for device in machine.devices] if machine else ["cpu"]
    return local + [device for device in cluster_devices() if device_on_node(device) != "meta"]


def cluster_devices() -> list[str]:
    """Return the devices of the Ray cluster; none if no cluster is configured."""
    cluster = backend.store().cluster() if backend.settings().ray_address else None
    return [device.name for device in cluster.devices] if cluster else []


def nodes_with(device: str) -> int:
    """Return how many nodes of the cluster have a device; 0 for a device of this machine."""
    cluster = backend.store().cluster()
    return {entry.name: entry.nodes for entry in cluster.devices}.get(device, 0) if cluster else 0


def device_memory_gb(device: str) -> float | None:
    """Return the memory of a device in GB, or None if the probe has not found it. The CPU has the host's memory."""
    machine = backend.store().machine()
    if machine is None or device == "cpu":
        return machine.memory_gb if machine else None
    return {entry.name: entry.memory_gb for entry in machine.devices}.get(device)


def computes_bf16(device: str) -> bool:
    """Return whether the probe has found that this accelerator computes bfloat16 natively."""
    machine = backend.store().machine()
    return machine is not None and any(entry.name == device and entry.bf16 for entry in machine.devices)


def bf16_advice(device: str, setting: str, base: str) -> str:
    """Return a sentence that recommends bfloat16 if it is clearly faster by this machine's measured rates.

    base: the data type of matrix products without it, float32 or tf32.
    """
    store = backend.store()
    machine = store.machine()
    return _bf16_advice(store, machine.host, device, setting, base) if machine else ""


@st.cache_data(max_entries=20, show_spinner=False, hash_funcs=backend.BY_VERSION)
def _bf16_advice(store: Store, host: str, device: str, setting: str, base: str) -> str:
    return checks.bf16_advice(rates.rates(store), host, device, setting, base)


def models_field(spec: type[Spec], groups: Sequence[str] = ()) -> list[str]:
    """Draw the field of models and return its names. groups: names of sets of models, which the field also offers.

    Below the field, draw the models and configurations that this tab has in its session because they do not fit into
    the address: a long list of models, and the configurations of a copied run.
    """
    # the shortest names first, so that a typed name is offered before the longer names that contain it
    models_by_length = sorted(families(), key=lambda name: len(name.model))
    names = [*models_by_length, "all", *(f"{library}:all" for library in LIBRARIES), *groups]
    key, configs_key = (spec_form.key(spec.kind, name) for name in ("models", "configs"))
    chips = st.multiselect(
        "Models",
        list(dict.fromkeys([*names, *st.session_state.get(key, [])])),
        key=key,
        bind="query-params",
        accept_new_options=True,
        filter_mode="contains",
        select_all=False,
        placeholder="Search, or type a wildcard such as ViT-B-* and press Enter",
        help=spec_form.help_of(spec, "models"),
    )
    rerun.hold(key)
    models = [*chips, *_long_list(spec_form.key(spec.kind, spec_form.LISTED))]
    if configs := st.session_state.get(configs_key, {}):
        text = f"and {plural(len(configs), 'configuration')} of the copied run: {', '.join(configs)}"
        _draw_removable(text, "Remove them", st.session_state.pop, configs_key)
    return models


def _long_list(key: str) -> list[str]:
    """Draw and return the list of models that was too long for the address. Only the tab that created it holds it."""
    models = list(st.session_state.get(key, []))
    if (count := st.query_params.get(key)) is None:
        return []
    if count != str(len(models)):
        message = (
            f"This link refers to a list of {count[:20]} models that only another tab holds. Choose the models again."
        )
        st.warning(plain(message), icon=":material/link_off:")
        return []
    text = f"and a list of {len(models)}: {shortened(models, 4)}"
    _draw_removable(text, "Remove the list", st.query_params.pop, key)
    return models


def _draw_removable(text: str, label: str, remove: Callable[..., Any], key: str) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.text(text)
        st.button(label, type="tertiary", icon=":material/close:", on_click=remove, args=(key, None))


def launch(
    kind: str,
    spec: Spec | None,
    problems: Sequence[str],
    label: str,
    icon: str,
    *,
    sentence: str,
    note: str = "",
    warn: bool = False,
    sweep: Mapping[str, Spec] | None = None,
) -> None:
    """Draw the submit button, a sentence on what it does, the problems that disable it, and the equivalent command.

    note: a second line beside the button. warn: show the note as a warning instead. sweep: specs to submit together
    instead of `spec`, by the values that they set.
    """
    problems = [*problems, *([spec.refusal] if spec and spec.refusal else [])]
    button = st.container(horizontal=True, vertical_alignment="center")
    for problem in problems:
        show_error(problem)
    runner = backend.may_start()
    ready = runner and spec is not None and not problems
    sentence = sentence if runner else "Viewers cannot start runs."
    with button:
        pressed = st.button(label, type="primary", icon=icon, disabled=not ready, key=f"{kind}_go")
        if not problems:
            st.text(f"{sentence}\n{note}" if note and not warn else sentence, width="stretch")
    if warn and not problems:
        st.warning(plain(note), icon=":material/memory:")
    if spec is not None and not problems:
        verbatim(command(spec, sweep or ()), key=f"{kind}_go_command")
        if pressed and sweep:
            start_sweep(sweep)
        elif pressed:
            start(spec)


def submit_once(kind: str, specs: Sequence[Spec], submit: Callable[[str], list[int]]) -> list[int]:
    """Submit specs and return the numbers of their runs; none, with a message, if they are refused.

    Two clicks on one request get the same key, so they make one run. Once its runs have ended, the same request gets a
    new key. kind: of the request; the session keeps the last one per kind. submit: submits the specs with a key.
    """
    digest = sha256("".join(spec.model_dump_json() for spec in specs).encode()).hexdigest()
    last: dict[str, Any] = st.session_state.get(f"{kind}_sent", {})
    if last.get("digest") != digest or all(run.state.ended for run in backend.find_runs(last.get("runs", ()))):
        last = {"digest": digest, "key": uuid4().hex}
    try:
        last["runs"] = submit(last["key"])
    except Refused as refusal:
        show_error(refusal)
        return []
    st.session_state[f"{kind}_sent"] = last
    return list(last["runs"])


def submit_sweep_once(kind: str, specs: Mapping[str, Spec]) -> list[int]:
    """Submit a run per spec, by label, as `submit_once` does."""
    store, settings = backend.store(), backend.settings()
    return submit_once(kind, list(specs.values()), lambda key: submit_sweep(store, settings, specs, key=key))


def start(spec: Spec) -> None:
    """Submit the spec and show its run. If it is refused, show why and keep the form."""
    store, settings = backend.store(), backend.settings()
    if ids := submit_once(spec.kind, [spec], lambda key: [submit(store, settings, spec, key=key)]):
        st.query_params["run"] = str(ids[0])
        st.rerun()


def start_sweep(specs: Mapping[str, Spec]) -> None:
    """Submit a run per spec and compare them. If one is refused, show why and keep the form."""
    if ids := submit_sweep_once("sweep", specs):
        st.switch_page("compare/page.py", query_params={comparison_link.RUNS: ",".join(map(str, ids))})


def draw_linked_run(kind: str, empty: str) -> None:
    """Draw the run that the address names, with live updates. empty: text shown when the address names no run."""
    run = backend.linked_run()
    if run and run.kind == kind:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.header(f"Run {run.id}", anchor=False)
            link = {"run": str(run.id)}
            st.page_link("run/page.py", label="Log and environment", icon=":material/receipt_long:", query_params=link)
        st.caption(plain(run.spec.summary))  # the form above may have changed since this run was submitted
        view.follow(run, beside_form=True)
    elif number := st.query_params.get("run", ""):
        message = f"There is no run {quoted(number)} of this kind; it may have been deleted."
        st.warning(plain(message), icon=":material/search_off:")
    else:
        st.caption(empty)
