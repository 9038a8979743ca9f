"""A split depends only on the seed and holds out an equal share of every class."""

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from engine.datasets import DataProblem, open_pairs, split
from engine.datasets.derived import sample


@dataclass
class Labelled:
    """Pairs with labels and without images."""

    labels: list[int | None]
    name: str = "labelled"
    classes: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def image(self, index: int) -> Image.Image:
        raise AssertionError("a split opens no image")

    def captions(self, index: int) -> tuple[str, ...]:
        return (str(index),)

    def label(self, index: int) -> int | None:
        return self.labels[index]

    def source(self, index: int) -> str:
        return str(index)


FIRST_HELD_OUT = [4, 5, 6, 9, 14, 17, 18, 19]
labels = st.lists(st.none() | st.integers(0, 5), min_size=2, max_size=60)


@given(labels, st.floats(0.001, 0.999), st.integers(0, 2**31 - 1))
def test_split_is_disjoint_complete_ordered_and_stratified(
    labels: list[int | None], fraction: float, seed: int
) -> None:
    train, held_out = split(Labelled(labels), fraction, seed)
    assert sorted([*train.indices, *held_out.indices]) == list(range(len(labels)))
    assert list(train.indices) == sorted(train.indices)
    assert list(held_out.indices) == sorted(held_out.indices)
    assert len(train)
    assert len(held_out)
    assert abs(len(held_out) - fraction * len(labels)) <= 1
    total, held = Counter(labels), Counter(held_out.label(index) for index in range(len(held_out)))
    # some share differs from that of every label by less than half a pair
    least = max((held[label] - 0.5) / count for label, count in total.items())
    assert least <= min((held[label] + 0.5) / count for label, count in total.items()) + 1e-9
    again = split(Labelled(labels), fraction, seed)
    assert list(again[1].indices) == list(held_out.indices)


def test_held_out_digits_are_the_same_in_every_version() -> None:
    """An evaluation by a later version must not use pairs that the model was trained on."""
    train, held_out = split(open_pairs("digits"), 0.2, 0)
    assert (len(train), len(held_out)) == (1438, 359)
    assert min(Counter(held_out.label(index) for index in range(359)).values()) >= 34
    assert list(held_out.indices[:8]) == FIRST_HELD_OUT
    assert list(split(open_pairs("digits"), 0.2, 1)[1].indices[:8]) != FIRST_HELD_OUT


def test_fraction_0_holds_nothing_out() -> None:
    train, held_out = split(Labelled([None] * 3), 0, 0)
    assert (len(train), len(held_out)) == (3, 0)


@pytest.mark.parametrize("pairs", ["1 pair", "0 pairs"])
def test_fewer_than_two_pairs_cannot_be_split(pairs: str) -> None:
    with pytest.raises(DataProblem, match=f"has {pairs}, of which none can be held out"):
        split(Labelled([None] * int(pairs[0])), 0.5, 0)


def test_samples_are_drawn_from_every_class() -> None:
    drawn = sample(open_pairs("digits"), 100, 0)
    assert set(Counter(drawn.label(index) for index in range(100)).values()) <= {9, 10, 11}
    opened = open_pairs("digits", samples=100)
    assert [opened.source(index) for index in range(100)] == [drawn.source(index) for index in range(100)]
    assert len({drawn.source(index) for index in range(100)}) == 100
    assert len(open_pairs("digits", samples=5000)) == 1797
