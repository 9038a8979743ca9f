"""A split depends only on the seed and holds out an equal share of every class."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.datasets import DataProblem, Pairs, hold_out, open_pairs, split
from engine.datasets.derived import sample


def labelled(labels: list[int | None]) -> Pairs:
    """Return pairs with labels, whose images do not exist and are named by their places."""
    names = [str(place) for place in range(len(labels))]
    return Pairs("labelled", names, [(name,) for name in names], labels)


def places(pairs: Pairs) -> list[int]:
    return [int(pairs.source(index).removeprefix("digits:")) for index in range(len(pairs))]


FIRST_HELD_OUT = [4, 5, 6, 9, 14, 17, 18, 19]
labels = st.lists(st.none() | st.integers(0, 5), min_size=2, max_size=60)


@given(labels, st.floats(0.001, 0.999), st.integers(0, 2**31 - 1))
def test_split_is_disjoint_complete_ordered_and_stratified(
    labels: list[int | None], fraction: float, seed: int
) -> None:
    train, held_out = split(labelled(labels), fraction, seed)
    assert sorted([*places(train), *places(held_out)]) == list(range(len(labels)))
    assert places(train) == sorted(places(train))
    assert places(held_out) == sorted(places(held_out))
    assert len(train)
    assert len(held_out)
    assert abs(len(held_out) - fraction * len(labels)) <= 1
    total, held = Counter(labels), Counter(held_out.label(index) for index in range(len(held_out)))
    # some share differs from that of every label by less than half a pair
    least = max((held[label] - 0.5) / count for label, count in total.items())
    assert least <= min((held[label] + 0.5) / count for label, count in total.items()) + 1e-9
    assert [train.label(index) for index in range(len(train))] == [labels[place] for place in places(train)]
    assert places(split(labelled(labels), fraction, seed)[1]) == places(held_out)


def test_held_out_digits_are_the_same_in_every_version() -> None:
    """An evaluation by a later version must not use pairs that the model was trained on."""
    train, held_out = split(open_pairs("digits"), 0.2, 0)
    assert (len(train), len(held_out)) == (1438, 359)
    assert min(Counter(held_out.label(index) for index in range(359)).values()) >= 34
    assert places(held_out)[:8] == FIRST_HELD_OUT
    assert places(split(open_pairs("digits"), 0.2, 1)[1])[:8] != FIRST_HELD_OUT


def test_fraction_0_holds_nothing_out() -> None:
    train, held_out = hold_out(labelled([None] * 3), None, 0, 0)
    assert (len(train), held_out) == (3, None)


@pytest.mark.parametrize("pairs", ["1 pair", "0 pairs"])
def test_fewer_than_two_pairs_cannot_be_split(pairs: str) -> None:
    with pytest.raises(DataProblem, match=f"has {pairs}, of which none can be held out"):
        split(labelled([None] * int(pairs[0])), 0.5, 0)


@pytest.mark.parametrize("held", [True, False])
def test_data_whose_own_split_has_an_empty_part_are_split_by_fraction(held: bool) -> None:
    train, held_out = split(replace(labelled([None] * 4), held=[held] * 4), 0.5, 0)
    assert (len(train), len(held_out)) == (2, 2)


def test_samples_are_drawn_from_every_class() -> None:
    drawn = sample(open_pairs("digits"), 100, 0)
    assert set(Counter(drawn.label(index) for index in range(100)).values()) <= {9, 10, 11}
    opened = open_pairs("digits", samples=100)
    assert [opened.source(index) for index in range(100)] == [drawn.source(index) for index in range(100)]
    assert len({drawn.source(index) for index in range(100)}) == 100
    assert len(open_pairs("digits", samples=5000)) == 1797
