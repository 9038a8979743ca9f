"""Timing what the catalogue shows: which rows are not timed yet, what it will take, and the runs that do it."""

from dataclasses import dataclass

import pandas as pd
import streamlit as st

from engine.jobs import submit
from engine.report.catalog import choose
from engine.report.timings import needs, stored
from engine.report.timings.stored import Setting
from engine.specs import BenchmarkSpec, Refused
from pages.catalog.axes import Axes
from pages.shared import backend, launch
from pages.shared.text import plain, span

SENT = "catalog_sent"


@dataclass(frozen=True)
class Plan:
    """What is to be timed."""

    specs: tuple[BenchmarkSpec, ...]
    """One per image size: a benchmark has one."""
    sentence: str


def plan(shown: pd.DataFrame, chosen: pd.DataFrame, axes: Axes, setting: Setting) -> Plan:
    """Times the chosen rows, or else the front, without those that are timed in this setting or wait for it."""
    machine = backend.store().machine()
    if machine and setting.host not in ("", machine.host):
        elsewhere = f"These timings were made on {setting.host}, and this is {machine.host}"
        return Plan((), f"{elsewhere}: choose a setting of this machine to time more.")
    if chosen.empty and not axes.front:
        return Plan((), "")
    rows = chosen if len(chosen) else choose.to_measure(shown, axes.x, axes.y)
    rows = rows[rows["status"] == "ok"].drop_duplicates(["name", "image_size"])
    what = "selected" if len(chosen) else "on the front"
    lacking = rows[rows["latency_ms"].isna()]
    waiting = stored.waiting(backend.store(), setting)
    keys = zip(lacking["name"], lacking["image_size"], strict=True)
    wait = pd.Series([key in waiting for key in keys], index=lacking.index, dtype=bool)
    left = lacking[~wait]
    specs = tuple(setting.spec(part["name"], size) for size, part in left.groupby("image_size", sort=False))
    none = f"None of {len(rows)} models {what} is timed yet"
    told = none if len(lacking) == len(rows) else f"Of {len(rows)} models {what}, {len(rows) - len(lacking)} are timed"
    told += f"; {wait.sum()} wait for it" if wait.any() else ""
    if specs:
        timed = [needs.benchmark_s(spec, spec.models, backend.catalogue(), launch.start_s(spec)) for spec in specs]
        seconds = sum(timed, needs.Span(0, 0))
        which = f"{len(left)}" if len(left) == len(rows) else f"the other {len(left)}"
        runs = f"{len(specs)} runs, one per image size" if len(specs) > 1 else "one run"
        told += f"; timing {which} takes {span(seconds)}, in {runs}"
    return Plan(specs, f"{told}. Setting: {setting.label}.")


def button(plan: Plan) -> None:
    """Queues the runs."""
    models = sum(len(spec.models) for spec in plan.specs)
    pressed = st.button(
        f"Time {models} here" if models else "Time here",
        icon=":material/timer:",
        key="catalog_measure",
        disabled=not models,
        help="Times the selected rows, or the front when none is selected, each at its image size, in the setting "
        "chosen at the left. What is timed already is not timed again.",
    )
    if pressed:
        try:
            sent = [submit(backend.store(), backend.settings(), spec) for spec in plan.specs]
        except Refused as refusal:
            st.error(plain(str(refusal)), icon=":material/error:")
            return
        st.session_state[SENT] = sent
        st.rerun()


def told(plan: Plan) -> None:
    """What the button would do, and the runs it has started."""
    if plan.sentence:
        st.caption(plain(plan.sentence))
    if sent := st.session_state.get(SENT):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption("Queued; the timings appear here as they come in:", width="content")
            for run_id in sent:
                link = {"icon": ":material/timer:", "query_params": {"run": str(run_id)}}
                st.page_link("run/page.py", label=f"Run {run_id}", **link)
