"""Events that tasks yield, and the rows among them, one type per kind of run."""

from functools import lru_cache
from typing import Any

from engine.results.base import Artifact, Device, Environment, Event, Machine, Metric, Progress, Row, Status
from engine.results.benchmark import BenchmarkRow
from engine.results.clip import EvaluateRow, TrainRow
from engine.results.device import DeviceRow
from engine.results.flags import FLAGS, VERDICTS, Flag, Verdict
from engine.results.profile import LOW_MEMORY, Difference, ModuleCount, OperatorCount, ProfileRow, Work, detail_name
from engine.results.recurrent import RecurrentRow
from engine.results.timed import TRACES, Contention, Parts, SlowOperator, TimedRow, samples_name, trace_name


def kinds(base: type[Row] = Row) -> dict[str, type[Row]]:
    """Return the row class of every kind, by kind."""
    classes: dict[str, type[Row]] = {}
    for row in base.__subclasses__():
        classes |= {row.kind: row} if "kind" in vars(row) else kinds(row)
    return classes


def load(kind: str, payload: dict[str, Any]) -> Row:
    """Return the row of `kind` from its stored payload. Errors: LookupError for an unknown kind; ValidationError."""
    return _of_kind(kind).model_validate(payload)


@lru_cache(maxsize=16)  # a run may have 100,000 rows
def _of_kind(kind: str) -> type[Row]:
    if (row := kinds().get(kind)) is None:
        raise LookupError(f"no kind of row is called {kind!r}")
    return row
