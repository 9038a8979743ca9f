"""The Pareto front, compared with a comparison of all pairs of rows."""

from functools import partial
from itertools import product

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.published.publishers import ACCURACIES
from engine.report.catalog import choose
from engine.report.figures import scatter
from engine.report.quantities import MEASURED, QUANTITIES, title

FREQUENT_TIES = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, 1e9, None])
"""Few values, so that ties are frequent."""
VALUES = st.one_of(FREQUENT_TIES, st.floats(allow_nan=False, allow_infinity=False))
AXES = ["gmacs", "mparams", "imagenet_top1", "samples_per_s"]


def brute_force(rows: list[tuple[float | None, float | None]], x: str, y: str) -> list[bool]:
    """Return which rows no other row beats, by comparing all pairs."""

    def at_least(value: float, other: float, column: str) -> bool:
        return value >= other if QUANTITIES[column].better == "larger" else value <= other

    def beaten(row: tuple[float, float], other: tuple[float, float]) -> bool:
        return at_least(other[0], row[0], x) and at_least(other[1], row[1], y) and other != row

    complete = [row for row in rows if None not in row]
    return [None not in row and not any(beaten(row, other) for other in complete) for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize(("x", "y"), list(product(AXES[:3:2], AXES[1::2])))
@given(rows=st.lists(st.tuples(VALUES, VALUES), max_size=40))
def test_front_equals_brute_force(rows: list[tuple[float | None, float | None]], x: str, y: str) -> None:
    frame = pd.DataFrame(rows, columns=[x, y], dtype=float)
    assert list(choose.front(frame, x, y)) == brute_force(rows, x, y)


@pytest.mark.slow
@given(rows=st.lists(st.tuples(VALUES, VALUES), max_size=40))
def test_ranking_has_every_row_once_and_the_front_first(rows: list[tuple[float | None, float | None]]) -> None:
    frame = pd.DataFrame(rows, columns=["gmacs", "imagenet_top1"], dtype=float)
    ranked = choose.ranked(frame, "gmacs", "imagenet_top1")
    assert sorted(ranked.index) == list(frame.index)
    on_front = list(ranked["front"])
    assert on_front == sorted(on_front, reverse=True)
    front = ranked[ranked["front"]]
    assert front["gmacs"].is_monotonic_increasing
    assert front["imagenet_top1"].is_monotonic_increasing
    complete = ranked[~ranked["front"]].dropna()
    assert complete["imagenet_top1"].is_monotonic_decreasing
    incomplete = ranked[["gmacs", "imagenet_top1"]].isna().any(axis=1)
    assert list(incomplete) == sorted(incomplete)


def test_front_can_omit_disturbed_timings_and_estimates_out_of_range() -> None:
    flags = ["", "single process", "contended", "estimate outside the fitted range"]
    frame = pd.DataFrame({"latency_ms": [4.0, 3.0, 2.0, 1.0], "imagenet_top1": [80.0] * 4, "flags": flags})
    without_disturbed = choose.ranked(frame, "latency_ms", "imagenet_top1", with_spoiled=False)
    assert list(without_disturbed.index[without_disturbed["front"]]) == [1]
    with_all = choose.ranked(frame, "latency_ms", "imagenet_top1")
    assert list(with_all.index[with_all["front"]]) == [3]
    assert list(choose.flagged(frame)) == [False, True, True, False], "an estimate cannot be timed again"


def test_front_equals_hand_computation() -> None:
    frame = pd.DataFrame(
        {
            "gmacs": [1.0, 2.0, 2.0, 4.0, 4.0, 5.0, 0.5],
            "imagenet_top1": [70.0, 75.0, 74.0, 80.0, 80.0, 79.0, None],
        },
        index=list("abcdefg"),
    )
    ranked = choose.ranked(frame, "gmacs", "imagenet_top1")
    assert list(ranked.index[ranked["front"]]) == ["a", "b", "d", "e"]  # d and e are equal, so both are on the front
    assert list(ranked.index) == ["a", "b", "d", "e", "f", "c", "g"]


def test_front_of_an_axis_against_itself_has_its_best_rows() -> None:
    frame = pd.DataFrame({"gmacs": [3.0, 1.0, 1.0]})
    assert list(choose.front(frame, "gmacs", "gmacs")) == [False, True, True]


def test_ranking_of_no_rows_is_empty() -> None:
    frame = pd.DataFrame({"gmacs": [], "imagenet_top1": []}, dtype=float)
    assert choose.ranked(frame, "gmacs", "imagenet_top1").empty


@pytest.mark.parametrize(
    ("x", "shape", "names", "places"),
    [("gmacs", "hv", ["a", "b", "d"], [1.0, 2.0, 4.0]), ("samples_per_s", "vh", ["d", "e"], [4.0, 5.0])],
)
def test_front_is_drawn_as_a_staircase_in_the_right_direction(
    x: str, shape: str, names: list[str], places: list[float]
) -> None:
    rows = [(1.0, 70.0), (2.0, 75.0), (2.5, 74.0), (4.0, 80.0), (5.0, 79.0)]
    frame = pd.DataFrame(rows, columns=[x, "imagenet_top1"], index=list("abcde"))
    known = {"name": list("abcde"), "model": list("abcde"), "family": "f", "image_size": "224"}
    frame = frame.assign(**known, provenance="counted <here>\npublished by them")
    assert list(frame.index[choose.front(frame, x, "imagenet_top1")]) == names
    figure = scatter.scatter(frame, x, "imagenet_top1", styles={}, front=names, log_y=False)
    line = next(trace for trace in figure.data if trace.mode == "lines")
    assert line.line.shape == shape
    assert list(line.x) == places
    assert line.name == f"Pareto front ({len(names)})"
    assert {annotation.text for annotation in figure.layout.annotations} <= set(names)
    assert figure.data[0].customdata[0][-1] == "counted &lt;here&gt;<br>published by them"


def test_sentence_counts_rows_shown_lacking_on_the_front_and_left_off() -> None:
    frame = pd.DataFrame({"name": list("abcd"), "image_size": "224", "gmacs": [1.0, 2.0, None, None], "mparams": 1.0})
    count = partial(choose.sentence, frame, x="gmacs", y="mparams")
    assert count(frame, front=0, selected=0) == (
        "**2** of 4 rows shown (one per model and image size); 2 more in the table without a value for this plot"
    )
    assert count(frame.iloc[:3], front=1, selected=2, left_off=1) == (
        "**2** of 4 rows shown (one per model and image size); 1 more in the table without a value for this plot; "
        "**1** on the Pareto front; 1 unreliable row left off the front; **2** selected"
    )


@pytest.mark.parametrize("axes", [("latency_ms", "imagenet_top1"), ("imagenet_top1", "samples_per_s")])
def test_rows_to_measure_are_those_with_the_best_macs(axes: tuple[str, str]) -> None:
    columns = {"gmacs": [1.0, 2.0, 2.0, 0.5], "imagenet_top1": [70.0, 75.0, 74.0, 76.0]}
    frame = pd.DataFrame(columns | {"status": ["ok"] * 3 + ["error"], "flags": ""}, index=list("abcd"))
    frame = frame.assign(latency_ms=[None, 1.0, None, None], samples_per_s=[None, 1e3, None, None])
    assert set(choose.to_measure(frame, *axes).index) == {"a", "b"}


def test_only_unreliable_timings_that_miss_a_limit_count_as_left_out() -> None:
    frame = pd.DataFrame(
        {"latency_ms": [4.0, 9.0, 9.0, 9.0], "flags": ["contended", "contended", "", "single process"]}
    )
    assert choose.left_out(frame, {"max_latency_ms": 5.0}) == (
        "Left out by limits: 1 row with an unreliable timing that misses the limit."
    )


def test_image_sizes_are_ordered_as_numbers_and_missing_values_come_last() -> None:
    frame = pd.DataFrame({"image_size": ["1024", "224x320", "384", ""], "model": ["b", "A", "C", "d"]})
    for keys, models in ((["image_size"], "ACbd"), (["-image_size"], "bCAd"), (["-model"], "dCbA")):
        assert "".join(choose.ordered(frame, keys)["model"]) == models


def test_axes_are_offered_in_macs_and_only_those_of_the_catalogue() -> None:
    offered = choose.offered(pd.DataFrame(columns=["gmacs", "gflops", "mparams"]))
    assert offered == ["gmacs", "mparams", *MEASURED, *ACCURACIES]


def test_advice_on_limits_names_columns_without_values() -> None:
    frame = pd.DataFrame({"gmacs": [1.0, 3.0], "latency_ms": [np.nan] * 2, "imagenet_top1": [np.nan] * 2})
    latency, top1 = title("latency_ms"), title("imagenet_top1")
    assert choose.alone(frame, {"max_latency_ms": 100.0, "min_imagenet_top1": 80.0, "max_gmacs": 2.0}) == [
        f"No row has a value for {latency}: no model is timed in the chosen timing setting.",
        f"No row has a value for {top1}.",
        "With only the limit MACs (G) ≤ 2, 1 of 2 rows with a value remain.",
    ]
    (line,) = choose.alone(frame.head(1), {"max_gmacs": 0.5})
    assert line == "With only the limit MACs (G) ≤ 0.5, 0 of 1 row with a value remains."
