"""Say how long runs take, and when queued ones start."""

from collections.abc import Sequence

import streamlit as st

from engine.jobs import disk
from engine.report.timings import durations, needs
from engine.report.timings.durations import Durations, Facts, in_words
from engine.specs import BenchmarkSpec, ModelName, RecurrentSpec, Spec
from engine.store import UNFINISHED, Filter, Run, State, Store
from pages.shared import backend

MOST_AHEAD = 20
"""Maximum number of runs ahead in the queue whose durations are added up."""


@st.cache_data(max_entries=300, show_spinner=False, hash_funcs=backend.BY_VERSION)
def _facts(_store: Store, run: Run) -> Facts:
    return durations.facts(_store, run)


def _durations() -> Durations:
    return Durations(backend.store(), _facts)


def promise(spec: Spec, amount: int | None = None) -> str:
    """Return `, 40 s to 90 s as in similar runs here`, for the end of a sentence; empty without a similar run.

    amount: of models or steps.
    """
    similar = _durations().as_in_similar_runs(spec, amount)
    return f", {similar}" if similar else ""


def timing_s(spec: BenchmarkSpec, models: Sequence[str]) -> needs.Span:
    """Return the expected seconds of a timing."""
    return _durations().timing_s(spec, [ModelName(name) for name in models], backend.catalogue())


def timing(spec: BenchmarkSpec | RecurrentSpec, models: Sequence[ModelName] = ()) -> str:
    """Return how long a timing takes, with a note if other programs keep all CPUs busy. models: of a benchmark."""
    return _durations().timing(spec, models, backend.catalogue())


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
        part = needs.similar_s([remaining_s]) if remaining_s is not None else _durations().expected_s(other.spec)
        overdue = remaining_s == 0  # the run takes longer than was estimated
        if part is None or overdue or len(unfinished) == MOST_AHEAD:
            return f"starts after run {ahead[-1].id}"
        total += part
    return f"starts in {in_words(total)}"


def _excludes(run: Run, other: Run) -> bool:
    """Return whether two runs cannot run at the same time on one host."""
    return run.spec.exclusive or other.spec.exclusive or bool(set(run.spec.devices) & set(other.spec.devices))
