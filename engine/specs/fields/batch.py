"""Batch sizes of timings: a number, several, or words for sizes that are found, listed or recorded."""

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field
from typing_extensions import TypeAliasType

from engine import suite

MAX_BATCH = 65_536
SWEEP_END, SEARCH_END = 64, 4096
"""Default largest batch sizes: of a sweep, and when finding the largest that fits."""
CHECKED_BATCH = 8
"""Default batch size when results of training are compared, as in PyTorch's benchmark. With one image, batch norm would
make small differences large."""
BatchWord = Literal["recorded", "sweep", "max", "listed"]
BATCH_WORDS: tuple[str, ...] = get_args(BatchWord)
MOST_BATCHES = 16
"""Largest number of batch sizes in one run. A sweep up to 32,768 has as many."""


def _batch(value: Any) -> Any:
    """Return a batch size from text, or several as `1,16`, smallest first. Errors: ValueError."""
    parts = value.split(",") if isinstance(value, str) else [value]
    sizes = [int(part) if isinstance(part, str) and re.fullmatch(r"\d{1,9}", part.strip()) else part for part in parts]
    for size in sizes:
        number = isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= MAX_BATCH
        if not number and (len(sizes) > 1 or size not in BATCH_WORDS):
            choices = "" if len(sizes) > 1 else f" nor one of {', '.join(BATCH_WORDS)}"
            raise ValueError(f"{size!r} is {'neither' if choices else 'not'} a number from 1 to {MAX_BATCH}{choices}")
    distinct = sorted(set(sizes))
    if len(distinct) > MOST_BATCHES:
        raise ValueError(f"at most {MOST_BATCHES} batch sizes are timed in one run, not {len(distinct)}")
    return distinct[0] if len(distinct) == 1 else ",".join(map(str, distinct))


def default_batch(fields: dict[str, Any]) -> int | BatchWord:
    """Return the default batch size. fields: values of the fields that are declared before it."""
    if fields.get("batch_size_list"):
        return "listed"
    compares = fields.get("purpose", "performance") != "performance"
    return CHECKED_BATCH if compares and fields.get("mode", "inference") != "inference" else 1


def _normalise(text: str) -> str:
    """Return a list of batch sizes as `name size, name size`. Errors: ValueError."""
    return ", ".join(f"{name} {size}" for name, size in suite.parse_batch_sizes(text, MAX_BATCH).items())


# A named alias, because its name is what `--help` shows.
BATCH = TypeAliasType(
    "BATCH", Annotated[Annotated[int, Field(ge=1, le=MAX_BATCH)] | BatchWord | str, BeforeValidator(_batch)]
)
BatchList = Annotated[str, AfterValidator(_normalise)]
