"""Fields and minimums that all timings share: processes, seconds, threads."""

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

QUOTABLE, PUBLISHABLE = 3, 5
"""Fresh processes needed for a result that can be quoted, and for one that can be published."""
MOST_PROCESSES = 20
"""Most fresh processes of a timing."""
LEAST_SAMPLES, LEAST_SECONDS, LEAST_SECONDS_PUBLISHABLE = 10, 2.0, 10.0
"""Minimums per process of a quotable or publishable result. Smaller values are allowed, and the result is marked."""


def _split(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


split_words = BeforeValidator(_split)
"""Validator that reads `a,b` as (a, b)."""

# Fields that timings share, each with its bounds; the specs set the defaults.
Publishable = Annotated[
    bool,
    Field(
        description="Time in 5 fresh processes with 10 s of samples each, instead of 3 with 2 s. The verdict can then "
        "be: no difference. A given number of processes or seconds replaces these."
    ),
]
Replicates = Annotated[
    int | None,
    Field(
        ge=1,
        le=MOST_PROCESSES,
        description="Number of fresh processes. 1 gives a first impression without spread and verdicts, 3 give a value "
        "to quote. Default: 3, publishable 5.",
    ),
]
MinSeconds = Annotated[
    float | None,
    Field(gt=0, le=3600, description="Minimum sampled time per process, in seconds. Default: 2, publishable 10."),
]
TimeLimit = Annotated[
    float, Field(gt=0, le=86_400, description="Maximum seconds per model, all its processes together.")
]
Threads = Annotated[
    int | None,
    Field(ge=1, le=1024, description="CPU threads. Default: all; at most those that affinity and quota allow."),
]
OF_TIMING = ("publishable", "replicates", "min_samples", "min_seconds", "max_seconds")
"""Fields that only decide how samples are taken."""


class Floors:
    """The minimums of a timing. They follow from fields of the spec that inherits this."""

    if TYPE_CHECKING:  # pydantic would list these fields first, before the models
        publishable: bool
        replicates: int | None
        min_seconds: float | None

    @property
    def processes(self) -> int:
        """Return the number of fresh processes per comparison."""
        return self.replicates or self._least_processes

    @property
    def floor_samples(self) -> int:
        """Return the least number of samples per process and subject."""
        raise NotImplementedError

    @property
    def floor_seconds(self) -> float:
        """Return the least sampled time per process and subject, in seconds."""
        return self.min_seconds or self._least_seconds

    @property
    def below_floor(self) -> bool:
        """Return whether the request is below the minimum of its kind of result. A single process is not."""
        few = 1 < self.processes < self._least_processes
        return few or self.floor_samples < LEAST_SAMPLES or self.floor_seconds < self._least_seconds

    @property
    def _least_processes(self) -> int:
        return PUBLISHABLE if self.publishable else QUOTABLE

    @property
    def _least_seconds(self) -> float:
        return LEAST_SECONDS_PUBLISHABLE if self.publishable else LEAST_SECONDS
