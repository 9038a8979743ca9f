"""The job of one process: all runners of one family at one size."""

from typing import ClassVar

from engine.replicates import messages
from engine.specs import RecurrentSpec
from engine.words import plural


class Job(messages.Job):
    """A job whose labels are the names of runners."""

    kind: ClassVar[str] = "recurrent"

    spec: RecurrentSpec
    """One of `RecurrentSpec.comparisons`."""

    @property
    def all_labels(self) -> tuple[str, ...]:
        return self.spec.chosen

    @property
    def title(self) -> str:
        spec = self.spec
        if spec.family == "resnet":
            return f"resnet, batch {spec.mini_batch}"
        steps = plural(spec.seq_length, "time step")
        return f"{spec.family}, {steps}, batch {spec.mini_batch}, hidden {spec.hidden_size}"
