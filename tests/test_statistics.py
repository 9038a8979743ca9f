"""Statistics of samples against hand-made ones, and the verdicts of the bootstrap on streams whose truth is known."""

import time
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from engine.statistics import NEEDED, Ratio, drifting, percentile, ratio, spread

Streams = list[list[float]]


def streams(
    seed: int,
    median: float = 10.0,
    *,
    processes: int = 3,
    samples: int = 200,
    noise: float = 0.03,
    correlation: float = 0.5,
    offsets: Sequence[float] = (0.0, 0.0, 0.0, 0.0, 0.0),
) -> Streams:
    """Log-normal times around a median, each alike to the one before it, AR(1); offsets of processes are logarithms."""
    random = np.random.default_rng(seed)
    shocks = random.normal(0, noise * (1 - correlation**2) ** 0.5, (samples, processes))
    values = random.normal(0, noise, processes)
    found = []
    for shock in shocks:
        values = correlation * values + shock
        found.append(values + offsets[:processes])
    return [list(column) for column in (median * np.exp(np.array(found))).T]


def verdicts(trials: int, faster_by: float = 1.0, **more: object) -> Counter[str]:
    return Counter(
        ratio(streams(2 * trial, 10.0, **more), streams(2 * trial + 1, 10.0 / faster_by, **more)).verdict  # type: ignore[arg-type]
        for trial in range(trials)
    )


@pytest.mark.parametrize("q", [90, 95, 99])
def test_a_percentile_needs_its_samples(q: int) -> None:
    """63 samples have no p90, 64 do; 661 have no p99, 662 do."""
    assert {90: 64, 95: 130, 99: 662}[q] == NEEDED[q]
    assert percentile(range(NEEDED[q] - 1), q) is None
    # interpolated at q % of the way from the first sample to the last, which are 0 and n - 1
    assert percentile(range(NEEDED[q]), q) == pytest.approx((NEEDED[q] - 1) * q / 100)


def test_the_median_is_always_given_and_interpolated() -> None:
    assert percentile([7.0], 50) == 7
    assert percentile([4.0, 1.0, 2.0, 100.0], 50) == 3


def test_drift_is_two_percent_between_the_first_and_the_last_third() -> None:
    assert not drifting([1.019] * 3 + [50.0] * 3 + [1.0] * 3)
    assert drifting([1.021] * 3 + [1.0] * 3 + [1.0] * 3)
    assert drifting([0.979] * 3 + [1.0] * 3 + [1.0] * 3)
    assert not drifting([1.0, 9.0, 1.0, 9.0, 1.0, 9.0, 1.0, 9.0, 1.0])


def test_fewer_than_six_samples_show_no_drift() -> None:
    assert not drifting([5.0, 4.0, 3.0, 2.0, 1.0])
    assert drifting([6.0, 5.0, 4.0, 3.0, 2.0, 1.0])


def test_spread_is_the_range_over_the_median() -> None:
    assert spread([3.3, 72.0, 10.0]) == pytest.approx((72 - 3.3) / 10)
    assert spread([10.0]) is None
    assert spread([]) is None


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.021, 1.5, "faster"),
        (1.019, 1.5, "undecided"),
        (0.981, 1.019, "no difference"),
        (0.979, 1.019, "undecided"),
        (0.5, 0.981, "undecided"),
        (0.5, 0.979, "slower"),
    ],
)
def test_verdicts_at_both_sides_of_the_margin(low: float, high: float, verdict: str) -> None:
    assert Ratio((low + high) / 2, low, high).verdict == verdict


def test_the_ratio_is_that_of_the_medians_and_repeats() -> None:
    baseline, other = streams(1, 12.0), streams(2, 8.0)
    found = ratio(baseline, other)
    assert found.value == np.median(np.concatenate(baseline)) / np.median(np.concatenate(other))
    assert found.low < 1.5 < found.high
    assert found == ratio(baseline, other)
    assert ratio(other, baseline).verdict == "slower"


@pytest.mark.slow
def test_the_interval_of_independent_samples_is_that_of_theory() -> None:
    """The median of n normal samples scatters by sqrt(pi / 2n) of their deviation, a ratio of two by sqrt 2 more."""
    widths = [
        np.log(found.high / found.low)
        for trial in range(20)
        for found in [ratio(*(streams(9 * trial + side, processes=1, samples=900, correlation=0) for side in (0, 1)))]
    ]
    expected = 2 * 2.576 * 0.03 * (np.pi / 2 / 900) ** 0.5 * 2**0.5
    assert np.mean(widths) == pytest.approx(expected, rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_correlated_streams_without_a_difference_are_never_called_different(correlation: float) -> None:
    """At 99 % and with the margin, 100 comparisons are allowed none; a wrong one would come up in most runs at 5 %."""
    found = verdicts(100, samples=120, correlation=correlation)
    assert found["faster"] + found["slower"] == 0, found


@pytest.mark.slow
def test_long_memory_widens_the_interval() -> None:
    """Streams that wander slowly: taken for independent, their interval would be a tenth as wide as their scatter."""
    found = [
        ratio(*(streams(2 * trial + side, processes=1, samples=700, correlation=0.98) for side in (0, 1)))
        for trial in range(60)
    ]
    assert sum(each.verdict in ("faster", "slower") for each in found) <= 3
    assert np.mean([each.low <= 1 <= each.high for each in found]) > 0.75


@pytest.mark.slow
def test_a_difference_of_ten_percent_is_found() -> None:
    assert verdicts(20, 1.1) == {"faster": 20}
    assert verdicts(10, 1 / 1.1) == {"slower": 10}
    assert verdicts(10, 1.1, processes=1) == {"faster": 10}


def test_equal_quiet_streams_show_no_difference() -> None:
    assert verdicts(10, noise=0.01) == {"no difference": 10}


def test_processes_that_disagree_leave_it_undecided() -> None:
    baseline = streams(1)
    for offsets in [(0.1, -0.1, 0.0), (0.3, 0.05, 0.1), (0.5, 0.5, -0.5)]:
        assert ratio(baseline, streams(2, offsets=offsets)).verdict == "undecided", offsets


def test_processes_that_are_slow_together_do_not_hide_a_difference() -> None:
    """Both are three times slower in one process: within each, the difference is the same."""
    offsets = (0.0, 1.1, 0.0)
    assert ratio(streams(1, 11.0, offsets=offsets), streams(2, 10.0, offsets=offsets)).verdict == "faster"


@pytest.mark.slow
def test_chance_offsets_of_processes_are_not_taken_for_a_difference() -> None:
    """Each process is off by its own 10 %. All three lie on one side once in four; that alone says nothing."""
    random = np.random.default_rng(5)
    found: Counter[str] = Counter()
    for trial in range(150):
        baseline = streams(2 * trial, samples=60, offsets=random.normal(0, 0.07, 3))
        other = streams(2 * trial + 1, samples=60, offsets=random.normal(0, 0.07, 3))
        found[ratio(baseline, other).verdict] += 1
    assert found["faster"] + found["slower"] <= 6, found  # 1 % is due; naive resampling gives 13 %


def test_disturbances_of_both_at_the_same_time_cancel() -> None:
    """The machine slows down by half for a while, for both; each on its own scatters by far more than they differ."""
    slow = np.where(np.arange(300) % 100 < 50, 1.5, 1.0)
    random = np.random.default_rng(3)
    baseline = [list(slow * random.normal(10.5, 0.1, 300)) for _ in range(3)]
    other = [list(slow * random.normal(10.0, 0.1, 300)) for _ in range(3)]
    assert ratio(baseline, other).verdict == "faster"


def test_streams_of_different_lengths_are_paired_by_time() -> None:
    slow = np.where(np.arange(1600) % 400 < 100, 1.5, 1.0)
    random = np.random.default_rng(3)
    baseline = [list(slow[::20] * random.normal(11, 0.1, 80)) for _ in range(3)]
    other = [list(slow * random.normal(10, 0.1, 1600)) for _ in range(3)]
    assert ratio(baseline, other).verdict == "faster"


def test_too_few_samples_decide_nothing() -> None:
    assert ratio([[10.0] * 7], [[5.0] * 7]) == Ratio(2.0, 0.0, float("inf"))
    assert ratio([[10.0] * 7], [[5.0] * 7]).verdict == "undecided"
    assert ratio([[10.0] * 8], [[5.0] * 8]).verdict == "faster"


def test_processes_must_be_the_same_for_both() -> None:
    for baseline, other in [([[1.0]], [[1.0], [1.0]]), ([], []), ([[1.0]], [[]])]:
        with pytest.raises(ValueError, match="the same processes"):
            ratio(baseline, other)


@pytest.mark.slow
def test_resampling_long_streams_costs_no_more_than_moderate_ones() -> None:
    """CPU time, and only against itself: eight times the samples, at most three times the time."""

    def cost(samples: int) -> float:
        both = [streams(side, samples=samples) for side in (0, 1)]
        spent = []
        for _ in range(3):
            before = time.process_time()
            ratio(*both)
            spent.append(time.process_time() - before)
        return min(spent)

    assert cost(8000) < 3 * cost(1000)
