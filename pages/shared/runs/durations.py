"""Estimate how long runs take, from earlier runs on this machine."""

from collections.abc import Sequence
from typing import Any

import streamlit as st

from engine.jobs import disk
from engine.report.timings import needs
from engine.specs import BenchmarkSpec, ModelName, RecurrentSpec, Spec
from engine.store import UNFINISHED, Filter, Run, State
from pages.shared import backend
from pages.shared.text import span

MOST_SIMILAR = 3
"""Maximum number of runs that an estimate uses, the latest ones."""
MOST_SEARCHED, MOST_AHEAD = 50, 20
"""Maximum number of finished runs to search, and of runs ahead in the queue whose durations are added up."""


def _finished_runs(spec: Spec, *, similar: bool = False) -> list[Any]:
    """Return finished runs, newest first, contended ones only if there are no others. similar: of the same pace."""
    runs = backend.store().runs(kind=spec.kind, states=[State.FINISHED], limit=MOST_SEARCHED)
    runs = [run for run in runs if not run.all_failed and run.seconds()]
    if similar:
        runs = [run for run in runs if run.spec.pace == spec.pace]
    return [run for run in runs if "contended" not in run.results.flags] or runs


@st.cache_data(max_entries=300, show_spinner=False, hash_funcs=backend.BY_VERSION)
def _facts(run: Run) -> tuple[tuple[float, int], needs.Span, list[str]]:
    """Return the work of a finished run (see `needs.work`), the time to start one of its processes, and its models."""
    rows = backend.store().rows(run.id)
    return needs.work(rows), needs.start_s(rows), list(dict.fromkeys(row.name for row in rows))


def expected_s(spec: Spec, amount: int | None = None) -> needs.Span | None:
    """Return the seconds of the latest runs of the same pace, for `amount` models or steps; None without any."""
    seconds = []
    for run in _finished_runs(spec, similar=True)[:MOST_SIMILAR]:
        work, _, _ = _facts(run)
        seconds.append(needs.rescaled_s(run.seconds() or 0.0, *work, amount))
    return needs.similar_s(seconds) if seconds else None


def promise(spec: Spec, amount: int | None = None) -> str:
    """Return `, 40 s to 90 s as in similar runs here`, for the end of a sentence; empty without a similar run."""
    similar = _as_in_similar_runs(spec, amount)
    return f", {similar}" if similar else ""


def _as_in_similar_runs(spec: Spec, amount: int | None) -> str:
    seconds = expected_s(spec, amount)
    return f"{span(seconds)} as in similar runs here" if seconds else ""


def timing_s(spec: BenchmarkSpec | RecurrentSpec, models: Sequence[str] = ()) -> needs.Span:
    """Return the expected seconds of a timing, corrected by the latest ones of its kind. models: of a benchmark."""
    earlier = [(run, *_facts(run)) for run in _finished_runs(spec)[:MOST_SIMILAR]]
    start = earlier[0][2] if earlier else needs.START_S

    def predict(spec: BenchmarkSpec | RecurrentSpec, models: Sequence[str]) -> needs.Span:
        if isinstance(spec, RecurrentSpec):
            return needs.recurrent_s(spec, start)
        return needs.benchmark_s(spec, [ModelName(name) for name in models], backend.catalogue(), start)

    ratios = [(run.seconds() or 0.0) / predict(run.spec, timed).middle for run, _, _, timed in earlier]
    return predict(spec, models).corrected(ratios)


def timing(spec: BenchmarkSpec | RecurrentSpec, models: Sequence[str] = ()) -> str:
    """Return how long a timing takes, with a note if other programs keep all CPUs busy. models: as for timing_s."""
    text = _as_in_similar_runs(spec, len(models) or None) or span(timing_s(spec, models))
    return f"{text} (longer now: {load})" if (load := needs.overload()) else text


def start_of(run: Run) -> str:
    """Return when a queued run is likely to start: `starts in 40 s to 2 min 10 s`, or `starts after run 7`.

    If the disk has too little space, return that instead.
    """
    if problem := disk.shortage(backend.settings(), run.spec.devices[0]):
        return f"starts when there is disk space: {problem}"
    store = backend.store()
    unfinished = store.find(Filter(states=UNFINISHED, order="oldest"), limit=MOST_AHEAD)
    order = store.queue_order()
    ids_ahead = order[: order.index(run.id)] if run.id in order else []
    ahead = [other for other in unfinished if other.state is not State.QUEUED or other.id in ids_ahead]
    ahead = [other for other in ahead if other.id != run.id and _excludes(other, run)]
    if not ahead:
        return "starts in a moment"
    total = needs.Span(0, 0)
    for other in ahead:
        remaining_s = other.seconds_left() if other.state is not State.QUEUED else None
        part = needs.similar_s([remaining_s]) if remaining_s is not None else expected_s(other.spec)
        overdue = remaining_s == 0  # the run takes longer than was estimated
        if part is None or overdue or len(unfinished) == MOST_AHEAD:
            return f"starts after run {ahead[-1].id}"
        total += part
    return f"starts in {span(total)}"


def _excludes(run: Run, other: Run) -> bool:
    """Return whether two runs cannot run at the same time on one host."""
    return run.spec.exclusive or other.spec.exclusive or bool(set(run.spec.devices) & set(other.spec.devices))
