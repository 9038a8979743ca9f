"""Estimate how long runs take, from earlier runs on this machine."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from engine.report.style import duration
from engine.report.timings import needs
from engine.report.timings.needs import Span
from engine.specs import BenchmarkSpec, ModelName, RecurrentSpec, Spec
from engine.store import Run, State, Store

MOST_SIMILAR = 3
"""Maximum number of runs that an estimate uses, the latest ones."""
MOST_SEARCHED = 50
"""Maximum number of finished runs to search."""


@dataclass(frozen=True)
class Facts:
    """Parts of a finished run's duration, from its rows."""

    work: tuple[float, int]
    """Seconds that grow with the amount of work, and this amount, from `needs.work`."""
    start: Span
    """Seconds to start one of its processes."""
    models: tuple[ModelName, ...]


def facts(store: Store, run: Run) -> Facts:
    """Return the facts of a run, from its rows."""
    rows = store.rows(run.id)
    return Facts(needs.work(rows), needs.start_s(rows), tuple(dict.fromkeys(row.name for row in rows)))


@dataclass(frozen=True)
class Durations:
    """Estimates from the finished runs of a store. read_facts: `facts`, or a cached form of it."""

    store: Store
    read_facts: Callable[[Store, Run], Facts] = facts

    def _finished(self, spec: Spec, *, similar: bool = False) -> list[tuple[Run, Facts]]:
        """Return the latest runs of this kind, contended ones only without others. similar: of the same pace."""
        runs = self.store.runs(kind=spec.kind, states=[State.FINISHED], limit=MOST_SEARCHED)
        runs = [run for run in runs if not run.all_failed and run.seconds()]
        if similar:
            runs = [run for run in runs if run.spec.pace == spec.pace]
        runs = [run for run in runs if "contended" not in run.results.flags] or runs
        return [(run, self.read_facts(self.store, run)) for run in runs[:MOST_SIMILAR]]

    def expected_s(self, spec: Spec, amount: int | None = None) -> Span | None:
        """Return the seconds of the latest runs of the same pace, for `amount` models or steps; None without any."""
        seconds = [
            needs.rescaled_s(run.seconds() or 0.0, *found.work, amount)
            for run, found in self._finished(spec, similar=True)
        ]
        return needs.similar_s(seconds) if seconds else None

    def as_in_similar_runs(self, spec: Spec, amount: int | None = None) -> str:
        """Return `40 s to 90 s as in similar runs here`; empty without a similar run."""
        seconds = self.expected_s(spec, amount)
        return f"{in_words(seconds)} as in similar runs here" if seconds else ""

    def timing_s(
        self, spec: BenchmarkSpec | RecurrentSpec, models: Sequence[ModelName], catalogue: pd.DataFrame
    ) -> Span:
        """Return the expected seconds of a timing, corrected by the latest ones of its kind. models: of a benchmark."""
        earlier = self._finished(spec)
        start = earlier[0][1].start if earlier else needs.START_S

        def predict(spec: Spec, models: Sequence[ModelName]) -> Span:
            if isinstance(spec, BenchmarkSpec):
                return needs.benchmark_s(spec, models, catalogue, start)
            assert isinstance(spec, RecurrentSpec)
            return needs.recurrent_s(spec, start)

        ratios = [(run.seconds() or 0.0) / predict(run.spec, found.models).middle for run, found in earlier]
        return predict(spec, models).corrected(ratios)

    def timing(self, spec: BenchmarkSpec | RecurrentSpec, models: Sequence[ModelName], catalogue: pd.DataFrame) -> str:
        """Return how long a timing takes, with a note if other programs keep all CPUs busy. models: as in timing_s."""
        similar = self.as_in_similar_runs(spec, len(models) or None)
        text = similar or in_words(self.timing_s(spec, models, catalogue))
        return f"{text} (longer now: {load})" if (load := needs.overload()) else text


def in_words(seconds: Span) -> str:
    """Return a range of durations, rounded outwards: `40 s to 2 min 10 s`, `14 min to 31 min`."""
    return f"{duration(_round(seconds.low, math.floor))} to {duration(_round(seconds.high, math.ceil))}"


def _round(seconds: float, to_integer: Callable[[float], int]) -> float:
    """Round a duration to 10 s from one minute on, and to 1 min from ten minutes on."""
    if seconds < 60:
        return seconds
    step = 60 if seconds >= 600 else 10
    return to_integer(seconds / step) * step
