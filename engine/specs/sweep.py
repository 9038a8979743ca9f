"""Sweeps of a training: one spec per combination of values of a few fields."""

from collections.abc import Mapping, Sequence
from itertools import product

from pydantic import ValidationError

from engine.specs.base import Refused, describe_error, split_numbers
from engine.specs.train import TrainSpec

FIELDS = ("lr", "wd", "seed")
"""Fields that can be swept."""
MOST_RUNS = 16


def parse(text: str) -> dict[str, list[str]]:
    """Return the values in a text such as `lr=1e-3,1e-4 seed=0,1`, by field. Errors: Refused."""
    values: dict[str, list[str]] = {}
    for word in text.split():
        name, _, listed = word.partition("=")
        if name not in FIELDS or name in values or not split_numbers(listed):
            raise Refused(f"{word!r} is no sweep: write FIELD=VALUE,VALUE,... once for each of {', '.join(FIELDS)}")
        values[name] = split_numbers(listed)
    return values


def specs(spec: TrainSpec, values: Mapping[str, Sequence[str]]) -> dict[str, TrainSpec]:
    """Return a spec per combination of values, by its label, such as `lr=0.001 seed=1`; empty without values.

    The last field changes fastest. Errors: Refused when a value does not fit its field, or above MOST_RUNS specs.
    """
    lists = {name: list(dict.fromkeys(listed)) for name, listed in values.items() if listed}
    combinations = [dict(zip(lists, point, strict=True)) for point in product(*lists.values())] if lists else []
    if len(combinations) > MOST_RUNS:
        raise Refused(f"the sweep has {len(combinations)} combinations, at most {MOST_RUNS} are queued at once")
    by_label: dict[str, TrainSpec] = {}
    for combination in combinations:
        try:
            combined = TrainSpec.model_validate(spec.model_dump() | combination)
        except ValidationError as error:
            first = error.errors()[0]
            raise Refused(f"sweep, {first['loc'][0]}: {describe_error(first)} (given: {first['input']!r})") from error
        texts = {name: str(getattr(combined, name)).removesuffix(".0") for name in combination}
        by_label[" ".join(f"{name}={text}" for name, text in texts.items())] = combined
    return by_label
