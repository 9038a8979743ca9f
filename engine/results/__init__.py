"""What comes back: the events a task yields, and the rows among them, typed per kind of run.

Units stand in names: `gflops` 1e9 FLOPs, `gmacs` 1e9 multiply-adds (2 FLOPs each), `macts` 1e6 elements,
`mparams` 1e6 parameters, `_mb` 1e6 bytes, `_ms` 1e-3 s. Counts are per sample (one image, one text), so that they
compare across batch sizes; traffic, memory and latency are those of the whole batch.
"""

from typing import Any

from engine.results.base import (
    Artifact,
    Device,
    Environment,
    Event,
    Machine,
    Metric,
    Progress,
    Row,
    Status,
)
from engine.results.benchmark import BenchmarkRow, Contention, samples_name
from engine.results.device import DeviceRow
from engine.results.profile import Difference, ModuleCount, OperatorCount, ProfileRow, Work, detail_name

__all__ = [
    "Artifact",
    "BenchmarkRow",
    "Contention",
    "Device",
    "DeviceRow",
    "Difference",
    "Environment",
    "Event",
    "Machine",
    "Metric",
    "ModuleCount",
    "OperatorCount",
    "ProfileRow",
    "Progress",
    "Row",
    "Status",
    "Work",
    "detail_name",
    "load",
    "samples_name",
]


def load(kind: str, payload: dict[str, Any]) -> Row:
    """The row of `kind` from its stored payload."""
    for row in Row.__subclasses__():
        if row.kind == kind:
            return row.model_validate(payload)
    raise LookupError(f"no kind of row is called {kind!r}")
