"""Fields of all timings: processes, seconds, threads."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

QUOTABLE, PUBLISHABLE = 3, 5
"""Fresh processes of a result that can be quoted, and of one that can be published."""
LEAST_SAMPLES, LEAST_SECONDS, LEAST_SECONDS_PUBLISHABLE = 10, 2.0, 10.0
"""Per process; less is honoured and marked."""


def _split(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


split_words = BeforeValidator(_split)
"""Reads `a,b` as (a, b)."""

# The fields that timings share, each with its bounds; a spec gives their defaults.
Publishable = Annotated[
    bool,
    Field(
        description="Time in 5 fresh processes with 10 s of samples each, instead of 3 with 2 s. 1 process is a first "
        "impression, 3 allow quoting a value with its spread, 5 allow publishing it and claiming no difference."
    ),
]
Replicates = Annotated[
    int | None, Field(ge=1, le=20, description="Fresh processes per model. 1 gives no spread and no verdicts.")
]
MinSeconds = Annotated[
    float | None,
    Field(gt=0, le=3600, allow_inf_nan=False, description="Least sampled time. Default: 2 s, publishable 10 s."),
]
TimeLimit = Annotated[
    float,
    Field(gt=0, le=86_400, allow_inf_nan=False, description="Most seconds per model, all its processes together."),
]
Threads = Annotated[
    int | None,
    Field(ge=1, le=1024, description="CPU threads. Default: all that affinity and quota allow."),
]


def processes(replicates: int | None, publishable: bool) -> int:
    """Fresh processes per comparison."""
    return replicates or (PUBLISHABLE if publishable else QUOTABLE)


def floor_seconds(min_seconds: float | None, publishable: bool) -> float:
    """At least so much sampled time per process, in s."""
    return min_seconds or (LEAST_SECONDS_PUBLISHABLE if publishable else LEAST_SECONDS)


def below_floor(processes: int, samples: int, seconds: float, publishable: bool) -> bool:
    """Return whether less is asked for than a result needs. One process is a quick look, which says so by itself."""
    few = 1 < processes < (PUBLISHABLE if publishable else QUOTABLE)
    return few or samples < LEAST_SAMPLES or seconds < floor_seconds(None, publishable)
