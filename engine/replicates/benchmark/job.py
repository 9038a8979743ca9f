"""The job of one benchmark process: one model in one mode at one batch size, in all its variants."""

from pathlib import Path
from typing import Any

from engine.replicates import messages
from engine.replicates.messages import Measured
from engine.results import Status
from engine.specs import BenchmarkSpec, ModelName, Variant
from engine.specs.benchmark import Mode


class Job(messages.Job):
    """A job whose labels are the variants of the spec's plan."""

    spec: BenchmarkSpec
    model: ModelName
    mode: Mode
    batch_size: int
    bounds: tuple[int, int | None] | None = None
    """The largest batch size known to fit (0: none) and the smallest known to fail, to find the largest that fits."""
    traces: Path | None = None
    """The folder to write traces to; None without them."""

    @property
    def all_labels(self) -> tuple[str, ...]:
        return tuple(variant.label for variant in self.spec.plan)

    @property
    def plan(self) -> tuple[Variant, ...]:
        """Return the variants that are left to do."""
        return tuple(variant for variant in self.spec.plan if variant.label not in self.skip)

    @property
    def title(self) -> str:
        return f"{self.model}: {self.mode}, batch {self.batch_size}"

    def failed(self, label: str, status: Status, error: str) -> Measured:
        by_status: dict[Status, Any] = {"timeout": "timeout", "out_of_memory": "OOM", "error": "fail_to_run"}
        accuracy = None if self.spec.purpose == "performance" else by_status.get(status)
        return Measured(label=label, status=status, error=error, accuracy=accuracy)
