"""Time models of the catalogue: find the rows without a timing, estimate the duration, and submit the runs."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pandas as pd
import streamlit as st

from engine.jobs import submit
from engine.report.catalog import choose
from engine.report.quantities import MEASURED
from engine.report.timings import needs, stored
from engine.report.timings.durations import in_words
from engine.report.timings.stored import Setting
from engine.specs import BenchmarkSpec
from engine.store import Run
from engine.words import plural
from pages.catalog.controls import Axes
from pages.shared import backend
from pages.shared.runs import durations, view
from pages.shared.text import refusals_shown

SENT = "catalog_sent"
MOST = 20
"""Maximum number of models that the button times if none is selected and speeds are estimated."""


@dataclass(frozen=True)
class Plan:
    """Runs to submit, and a sentence that describes them."""

    specs: tuple[BenchmarkSpec, ...]
    """One spec per image size, because a benchmark has one image size."""
    sentence: str
    estimate: str = ""
    """Estimated duration."""
    repetitions: tuple[BenchmarkSpec, ...] = ()
    """Runs that repeat the flagged timings of the selected rows, or of all plotted ones if none is selected."""


def plan(
    shown: pd.DataFrame, chosen: pd.DataFrame, axes: Axes, setting: Setting, promising: Sequence[str] | None = None
) -> Plan:
    """Return the runs that time the chosen rows. If none is chosen, time the promising rows or else the Pareto front.

    promising: labels of rows that a timing could move to the front, most promising first; None if no speeds are
    estimated or plotted. Rows that are already timed in this setting, or queued, are left out.
    """
    machine = backend.store().machine()
    if machine and setting.host not in ("", machine.host):
        message = f"These timings were made on {setting.host}, but this machine is {machine.host}"
        return Plan((), f"{message}. Choose a timing setting of this machine to time more models.")
    waiting = stored.waiting(backend.store(), setting)
    repeatable = chosen if len(chosen) or not axes.timings else shown
    repetitions = _specs(_without_waiting(repeatable[choose.flagged(repeatable)], waiting), setting)
    if chosen.empty and not axes.front:
        return Plan((), "", repetitions=repetitions)
    if len(chosen):
        subject, rows = "Selection", chosen
    elif promising is None:
        subject = "Pareto front by MACs" if {axes.x, axes.y} & set(MEASURED) else "Pareto front"
        rows = choose.to_measure(shown, axes.x, axes.y)
    else:
        subject = "Estimated to be near the front"
        rows = shown.loc[list(promising)].drop_duplicates(["name", "image_size"]).head(MOST)
    rows = rows[rows["status"] == "ok"].drop_duplicates(["name", "image_size"])
    untimed = rows[rows["latency_ms"].isna()]
    to_time = _without_waiting(untimed, waiting)
    specs = _specs(to_time, setting)
    flags = int(choose.flagged(rows).sum())
    sentence = f"{subject}: {_progress(len(rows), len(untimed), len(untimed) - len(to_time))}"
    sentence += f", {flags:,} flagged." if flags else "."
    estimate = ""
    if specs:
        estimate = in_words(sum((durations.timing_s(spec, spec.models) for spec in specs), needs.Span(0, 0)))
        sentence += f" {len(specs)} runs, one per image size." if len(specs) > 1 else ""
    return Plan(specs, f"{sentence} Setting: {setting.label}.", estimate, repetitions)


def _without_waiting(rows: pd.DataFrame, waiting: Collection[tuple[str, str]]) -> pd.DataFrame:
    """Return one row per model and image size, without rows that are waiting to be timed."""
    rows = rows.drop_duplicates(["name", "image_size"])
    keys = zip(rows["name"], rows["image_size"], strict=True)
    return rows[pd.Series([key not in waiting for key in keys], index=rows.index, dtype=bool)]


def _specs(rows: pd.DataFrame, setting: Setting) -> tuple[BenchmarkSpec, ...]:
    """Return one timing per image size, with the models of the rows of that size."""
    return tuple(setting.spec(part["name"], str(size)) for size, part in rows.groupby("image_size", sort=False))


def _progress(models: int, untimed: int, submitted: int) -> str:
    """Return how many of the models are timed, and how many others are in submitted runs, as text."""
    if not models:
        return "no counted models to time"
    subject = plural(models, "model")
    timed = f"{models - untimed} of {subject} timed" if untimed < models else f"{subject} not timed yet"
    return f"{timed}; {submitted} submitted" if submitted else timed


def buttons(plan: Plan) -> None:
    """Draw the buttons that submit the runs, and the repetitions of flagged timings."""
    models = sum(len(spec.models) for spec in plan.specs)
    viewer = not backend.may_start()
    estimate = f" ({plan.estimate})" if plan.estimate else ""
    pressed = st.button(
        f"Time {plural(models, 'model')} on this machine{estimate}" if models else "Time on this machine",
        icon=":material/timer:",
        key="catalog_measure",
        disabled=viewer or not models,
        help="Time the selected models at their image sizes, with the timing setting of the sidebar. If none is "
        "selected, time the models of the Pareto front. If speeds are estimated, time up to "
        f"{MOST} models that could enter the front. Models that are timed already are left out.",
    )
    specs = plan.specs if pressed else ()
    if flagged := sum(len(spec.models) for spec in plan.repetitions):
        label, help = f"Time {flagged} flagged again", "Repeat the timings that have flags; the table lists the flags."
        if st.button(label, icon=":material/replay:", key="catalog_again", help=help, disabled=viewer):
            specs = plan.repetitions
    if specs:
        submitted: list[int] = []
        with refusals_shown():
            for spec in specs:
                submitted.append(submit(backend.store(), backend.settings(), spec))
                st.session_state[SENT] = submitted  # a refusal of the next one must not lose the link
            st.rerun()


def draw_submitted() -> None:
    """Draw links to the runs that the buttons have submitted. Redraw the page when a run stores a row or ends."""
    if runs := submitted_runs():
        view.follow_several([run.id for run in runs], _draw_links, key="catalog_submitted")


def submitted_runs() -> list[Run]:
    """Return the runs that this page has submitted in this session."""
    return backend.find_runs(st.session_state.get(SENT, ()))


def _draw_links(runs: Sequence[Run]) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption("Submitted. Timings appear here as they arrive:", width="content")
        for run in runs:
            label, address = f"Run {run.id}: {run.outcome}", {"run": str(run.id)}
            st.page_link("run/page.py", label=label, icon=":material/timer:", query_params=address)
