"""Sweeps: one spec per combination of values."""

import pytest

from engine.specs import Refused, sweep
from engine.specs.base import split_numbers
from engine.specs.train import TrainSpec


def test_every_combination_has_a_spec() -> None:
    specs = sweep.specs(TrainSpec(epochs=2), sweep.parse("lr=1e-3,1e-4 seed=0,1"))
    assert list(specs) == ["lr=0.001 seed=0", "lr=0.001 seed=1", "lr=0.0001 seed=0", "lr=0.0001 seed=1"]
    assert [(spec.lr, spec.seed, spec.epochs) for spec in specs.values()] == [
        (0.001, 0, 2),
        (0.001, 1, 2),
        (0.0001, 0, 2),
        (0.0001, 1, 2),
    ]


def test_values_of_many_digits_stay_distinct() -> None:
    specs = sweep.specs(TrainSpec(), sweep.parse("seed=20261127,20261128 wd=0,0.12345678,0.12345679"))
    assert list(specs) == [
        f"seed={seed} wd={wd}" for seed in (20261127, 20261128) for wd in (0, 0.12345678, 0.12345679)
    ]


def test_empty_sweeps_have_no_specs_and_equal_values_count_once() -> None:
    assert sweep.specs(TrainSpec(), {}) == {}
    assert sweep.specs(TrainSpec(), {"lr": [], "wd": []}) == {}
    assert list(sweep.specs(TrainSpec(), {"wd": ["0.1", "0.1"]})) == ["wd=0.1"]
    assert split_numbers("1e-3, 1e-4 1e-5") == ["1e-3", "1e-4", "1e-5"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("momentum=0.9", "'momentum=0.9' is no sweep: write FIELD=VALUE,VALUE,... once for each of lr, wd, seed"),
        ("lr", "'lr' is no sweep"),
        ("lr= seed=1,2", "'lr=' is no sweep"),
        ("lr=1 lr=2", "'lr=2' is no sweep"),
        ("lr=-1", "sweep, lr: must be greater than 0"),
        ("seed=x", "sweep, seed: must be a whole number"),
        (f"seed={','.join(map(str, range(17)))}", "17 combinations, at most 16"),
    ],
)
def test_invalid_sweeps_are_refused(text: str, message: str) -> None:
    with pytest.raises(Refused, match=message):
        sweep.specs(TrainSpec(), sweep.parse(text))
