"""Statistics of samples against hand-made ones, and intervals and verdicts of streams whose truth is known."""

import math
import time
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from engine.statistics import (
    NEEDED,
    PRIOR_SD,
    Ratio,
    drifting,
    half_width,
    percentile,
    ratio,
    ratio_of_runs,
    spread,
)

Streams = list[list[float]]
T995 = {2: 9.9248, 3: 5.8409, 4: 4.6041, 5: 4.0321, 7: 3.4995}
"""Student's t, 99.5th percentile by degrees of freedom, from a printed table."""


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


def ratios(trials: int, faster_by: float = 1.0, *, publishable: bool = False, **more: object) -> list[Ratio]:
    pairs = [
        (streams(2 * trial, 10.0, **more), streams(2 * trial + 1, 10.0 / faster_by, **more))  # type: ignore[arg-type]
        for trial in range(trials)
    ]
    return [ratio(*pair, publishable=publishable) for pair in pairs]


def verdicts(trials: int, faster_by: float = 1.0, **more: object) -> Counter[str]:
    return Counter(found.verdict for found in ratios(trials, faster_by, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize("q", [90, 95, 99])
def test_a_percentile_needs_its_samples(q: int) -> None:
    """63 samples have no p90, 64 do: the fewest of which at most one lies above it with 1 % probability."""
    assert {90: 64, 95: 130, 99: 662}[q] == NEEDED[q]
    above = (100 - q) / 100

    def at_most_one_above(n: int) -> float:
        return (1 - above) ** n + n * above * (1 - above) ** (n - 1)

    assert at_most_one_above(NEEDED[q]) <= 0.01 < at_most_one_above(NEEDED[q] - 1)
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
    assert Ratio((low + high) / 2, low, high, 3).verdict == verdict
    assert Ratio((low + high) / 2, low, high, 2).verdict == "needs 3 processes"


def test_the_ratio_is_that_of_each_process_and_not_of_pooled_samples() -> None:
    assert ratio([[10] * 100, [13] * 90], [[10] * 90, [13] * 100]).value == 1
    assert ratio([[10.0] * 9, [40.0] * 9], [[10.0] * 9, [10.0] * 9]).value == pytest.approx(2), "geometric mean of 1, 4"


def test_the_ratio_repeats() -> None:
    baseline, other = streams(1, 12.0), streams(2, 8.0)
    found = ratio(baseline, other)
    by_hand = [math.log(np.median(a) / np.median(b)) for a, b in zip(baseline, other, strict=True)]
    assert found.value == pytest.approx(math.exp(sum(by_hand) / 3), rel=1e-12)
    assert found.low < 1.5 < found.high
    assert found == ratio(baseline, other)
    assert ratio(other, baseline).verdict == "slower"


@pytest.mark.parametrize(
    ("logs", "within", "publishable", "expected"),
    [
        # one process: the prior alone, with its 3 degrees of freedom
        ([0.1], 0.0, False, T995[3] * 0.03),
        # three that agree: (3 x 0.03^2 + 2 x 0) / 5
        ([0.1, 0.1, 0.1], 0.0, False, T995[5] * math.sqrt(3 * 0.03**2 / 5 / 3)),
        # variance between processes 0.0004, within 0.0001
        ([0.1, 0.12, 0.14], 1e-4, False, T995[5] * math.sqrt((3 * (0.03**2 + 1e-4) + 2 * 4e-4) / 5 / 3)),
        # 10 % between processes is beyond the prior: Student's t of three
        ([0.0, 0.1, 0.2], 0.0, False, T995[2] * math.sqrt(0.01 / 3)),
        # five processes, with the prior and without
        ([0.1, 0.1, 0.1, 0.12, 0.08], 0.0, False, T995[7] * math.sqrt((3 * 0.03**2 + 4 * 2e-4) / 7 / 5)),
        ([0.1, 0.1, 0.1, 0.12, 0.08], 0.0, True, T995[4] * math.sqrt(2e-4 / 5)),
        # noise within processes is a lower bound
        ([0.1, 0.1, 0.1, 0.1, 0.1], 4e-4, True, T995[4] * math.sqrt(4e-4 / 5)),
    ],
)
def test_the_interval_is_students_t_moderated_by_a_prior(
    logs: list[float], within: float, publishable: bool, expected: float
) -> None:
    assert PRIOR_SD == 0.03
    assert half_width(np.array(logs), within, publishable=publishable) == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_the_variance_within_a_process_is_that_of_theory() -> None:
    """The median of n normal samples scatters by sqrt(pi / 2n) of their deviation, a ratio of two by sqrt 2 more."""
    halves = [
        np.log(found.high / found.low) / 2
        for trial in range(20)
        for found in [
            ratio(*(streams(9 * trial + side, processes=1, samples=50, noise=0.6, correlation=0) for side in (0, 1)))
        ]
    ]
    variance = 2 * 0.6**2 * np.pi / 2 / 50  # far above the prior's
    assert np.mean(halves) == pytest.approx(T995[3] * np.sqrt(0.03**2 + variance), rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2, 3, 5])
def test_the_interval_holds_what_it_claims(processes: int) -> None:
    """The log ratios of processes differ by 5 %; benchmarks/interval_coverage.py has more settings and trials."""
    random, trials, held, false = np.random.default_rng(1), 300, 0, 0
    for trial in range(trials):
        offsets = [random.normal(0, 0.05 / 2**0.5, processes) for _ in range(2)]
        sides = (streams(2 * trial + side, processes=processes, samples=60, offsets=offsets[side]) for side in (0, 1))
        found = ratio(*sides)
        held += found.low <= 1 <= found.high
        false += found.verdict in ("faster", "slower")
    assert held >= 0.965 * trials, "98 % less three standard errors"
    assert false <= 0.02 * trials


@pytest.mark.parametrize("runs", [(2, 5), (5, 2)])
def test_fewer_than_three_runs_of_a_request_have_no_ratio(runs: tuple[int, int]) -> None:
    assert ratio_of_runs([10.0] * runs[0], [5.0] * runs[1]) is None


def test_the_interval_of_runs_is_students_t_of_two_means() -> None:
    """Logarithms -1, 0, 1 % and 9, 10, 11 %: the variance is 1e-4, each mean's a third of it, 4 degrees of freedom."""
    found = ratio_of_runs(np.exp([0.09, 0.1, 0.11]), np.exp([-0.01, 0.0, 0.01]))
    assert found is not None
    assert found.value == pytest.approx(math.exp(0.1))
    assert math.log(found.high / found.value) == pytest.approx(T995[4] * math.sqrt(2 * 1e-4 / 3), rel=1e-4)
    assert found.verdict == "faster"


def test_runs_that_differ_by_chance_are_not_called_different() -> None:
    random = np.random.default_rng(2)
    found = [ratio_of_runs(*np.exp(random.normal(0, 0.03, (2, 3)))) for _ in range(1000)]
    assert sum(item is not None and item.verdict in ("faster", "slower") for item in found) <= 20  # 10 are due at most


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_correlated_streams_without_a_difference_are_not_called_different(correlation: float) -> None:
    """At 99 % and with the margin, 100 comparisons are allowed none; a false one would come up in most runs at 5 %."""
    found = verdicts(100, samples=120, correlation=correlation)
    assert found["faster"] + found["slower"] == 0, found


@pytest.mark.slow
def test_long_memory_widens_the_interval() -> None:
    """Streams that wander slowly: taken for independent, their interval would be a tenth as wide as their scatter."""
    found = [
        ratio(*(streams(2 * trial + side, processes=1, noise=0.3, samples=700, correlation=0.98) for side in (0, 1)))
        for trial in range(60)
    ]
    assert np.mean([item.low <= 1 <= item.high for item in found]) > 0.95


@pytest.mark.slow
def test_a_difference_of_ten_percent_is_found() -> None:
    assert verdicts(20, 1.1) == {"faster": 20}
    assert verdicts(10, 1 / 1.1) == {"slower": 10}
    assert verdicts(10, 1.1, processes=2) == {"needs 3 processes": 10}


def test_equal_quiet_streams_show_no_difference_in_a_publishable_timing() -> None:
    quiet = {"noise": 0.004, "processes": 5}
    assert verdicts(10, publishable=True, **quiet) == {"no difference": 10}
    assert verdicts(10, **quiet) == {"undecided": 10}, "the prior alone is wider than the margin"


def test_processes_that_disagree_leave_it_undecided() -> None:
    baseline = streams(1)
    for offsets in [(0.1, -0.1, 0.0), (0.3, 0.05, 0.1), (0.5, 0.5, -0.5)]:
        assert ratio(baseline, streams(2, offsets=offsets)).verdict == "undecided", offsets


def test_processes_that_are_slow_together_do_not_hide_a_difference() -> None:
    """Both are three times slower in one process: within each, the difference is the same."""
    offsets = (0.0, 1.1, 0.0)
    assert ratio(streams(1, 11.0, offsets=offsets), streams(2, 10.0, offsets=offsets)).verdict == "faster"


def test_disturbances_of_both_at_the_same_time_cancel() -> None:
    """The machine slows down by half for a while, for both; each on its own scatters by far more than they differ."""
    slow = np.where(np.arange(300) % 100 < 50, 1.5, 1.0)
    random = np.random.default_rng(3)
    baseline = [list(slow * random.normal(10.5, 0.1, 300)) for _ in range(5)]
    other = [list(slow * random.normal(10.0, 0.1, 300)) for _ in range(5)]
    assert ratio(baseline, other, publishable=True).verdict == "faster"


def test_streams_of_different_lengths_are_paired_by_time() -> None:
    slow = np.where(np.arange(1600) % 400 < 100, 1.5, 1.0)
    random = np.random.default_rng(3)
    baseline = [list(slow[::20] * random.normal(11, 0.1, 80)) for _ in range(3)]
    other = [list(slow * random.normal(10, 0.1, 1600)) for _ in range(3)]
    assert ratio(baseline, other).verdict == "faster"


def test_too_few_samples_decide_nothing() -> None:
    assert ratio([[10.0] * 7], [[5.0] * 7]) == Ratio(pytest.approx(2.0), 0.0, float("inf"), 1)
    assert ratio([[10.0] * 2] * 3, [[5.0] * 2] * 3).verdict == "undecided"
    assert ratio([[10.0] * 3] * 3, [[5.0] * 3] * 3).verdict == "faster"


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
