"""Statistics of samples against values by hand; intervals and verdicts of simulated streams with a known ratio."""

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
    """Return log-normal AR(1) times around a median, one list per process. offsets: of processes, as logarithms."""
    rng = np.random.default_rng(seed)
    shocks = rng.normal(0, noise * (1 - correlation**2) ** 0.5, (samples, processes))
    values = rng.normal(0, noise, processes)
    found = []
    for shock in shocks:
        values = correlation * values + shock
        found.append(values + offsets[:processes])
    return [list(column) for column in (median * np.exp(np.array(found))).T]


def ratios(trials: int, faster_by: float = 1.0, *, publishable: bool = False, **options: object) -> list[Ratio]:
    """Return the ratios of simulated pairs of streams. faster_by: true ratio of the second stream."""
    pairs = [
        (streams(2 * trial, 10.0, **options), streams(2 * trial + 1, 10.0 / faster_by, **options))  # type: ignore[arg-type]
        for trial in range(trials)
    ]
    return [ratio(*pair, publishable=publishable) for pair in pairs]


def verdicts(trials: int, faster_by: float = 1.0, **options: object) -> Counter[str]:
    return Counter(found.verdict for found in ratios(trials, faster_by, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("q", NEEDED)
def test_percentile_needs_a_minimum_number_of_samples(q: int) -> None:
    """NEEDED is the smallest n for which at most one of n samples is above the percentile with 1 % probability."""
    above = (100 - q) / 100

    def at_most_one_above(n: int) -> float:
        return (1 - above) ** n + n * above * (1 - above) ** (n - 1)

    assert at_most_one_above(NEEDED[q]) <= 0.01 < at_most_one_above(NEEDED[q] - 1)
    assert percentile(range(NEEDED[q] - 1), q) is None
    # samples are 0 to n - 1, so the percentile is q % of n - 1
    assert percentile(range(NEEDED[q]), q) == pytest.approx((NEEDED[q] - 1) * q / 100)


def test_drift_is_two_percent_between_first_and_last_third() -> None:
    assert not drifting([1.019] * 3 + [50.0] * 3 + [1.0] * 3)
    assert drifting([1.021] * 3 + [1.0] * 3 + [1.0] * 3)
    assert drifting([0.979] * 3 + [1.0] * 3 + [1.0] * 3)
    assert not drifting([1.0, 9.0, 1.0, 9.0, 1.0, 9.0, 1.0, 9.0, 1.0])


def test_drift_of_less_than_two_percent_never_counts() -> None:
    # neighbours differ only at the step, so 3.5 standard errors are less than 1.9 %
    assert not drifting([1.019] * 6 + [1.0] * 12)
    assert drifting([1.021] * 6 + [1.0] * 12)


def test_outlier_in_the_first_third_is_no_drift() -> None:
    assert not drifting([1.0, 50.0, *[1.0] * 34])


@pytest.mark.parametrize(("step", "drifts"), [(0.048, False), (0.052, True)])
def test_drift_must_exceed_three_and_a_half_standard_errors(step: float, drifts: bool) -> None:
    """12 samples that alternate by 2 %, after a step: their 11 differences are 2 % and, once, the step and 2 %.

    The step is 3.5 x sqrt(mean square difference / 2 x 6 / 12) if it is 4.96 %.
    """
    assert drifting([1.0 + step, 1.02 + step] * 2 + [1.0, 1.02] * 4) == drifts


def test_fewer_than_six_samples_have_no_drift() -> None:
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


def test_ratio_is_the_mean_of_process_ratios_not_of_pooled_samples() -> None:
    assert ratio([[10] * 100, [13] * 90], [[10] * 90, [13] * 100]).value == 1
    assert ratio([[10.0] * 9, [40.0] * 9], [[10.0] * 9, [10.0] * 9]).value == pytest.approx(2), "geometric mean of 1, 4"


def test_ratio_equals_a_value_by_hand_and_is_deterministic() -> None:
    baseline, compared = streams(1, 12.0), streams(2, 8.0)
    found = ratio(baseline, compared)
    by_hand = [math.log(np.median(a) / np.median(b)) for a, b in zip(baseline, compared, strict=True)]
    assert found.value == pytest.approx(math.exp(sum(by_hand) / 3), rel=1e-12)
    assert found.low < 1.5 < found.high
    assert found == ratio(baseline, compared)
    assert ratio(compared, baseline).verdict == "slower"


@pytest.mark.parametrize(
    ("logs", "within", "publishable", "expected"),
    [
        # one process: only the prior, with 3 degrees of freedom
        ([0.1], 0.0, False, T995[3] * 0.03),
        # three equal processes: (3 x 0.03^2 + 2 x 0) / 5
        ([0.1, 0.1, 0.1], 0.0, False, T995[5] * math.sqrt(3 * 0.03**2 / 5 / 3)),
        # variance between processes 0.0004, within 0.0001
        ([0.1, 0.12, 0.14], 1e-4, False, T995[5] * math.sqrt((3 * (0.03**2 + 1e-4) + 2 * 4e-4) / 5 / 3)),
        # 10 % between processes is more than the prior allows: Student's t of three
        ([0.0, 0.1, 0.2], 0.0, False, T995[2] * math.sqrt(0.01 / 3)),
        # so is 6.1 %, but not 5.9 %
        ([0.0, 0.061, 0.122], 0.0, False, T995[2] * math.sqrt(0.061**2 / 3)),
        ([0.0, 0.059, 0.118], 0.0, False, T995[5] * math.sqrt((3 * 0.03**2 + 2 * 0.059**2) / 5 / 3)),
        # five processes, with the prior and without
        ([0.1, 0.1, 0.1, 0.12, 0.08], 0.0, False, T995[7] * math.sqrt((3 * 0.03**2 + 4 * 2e-4) / 7 / 5)),
        ([0.1, 0.1, 0.1, 0.12, 0.08], 0.0, True, T995[4] * math.sqrt(2e-4 / 5)),
        # noise within processes is a lower bound
        ([0.1, 0.1, 0.1, 0.1, 0.1], 4e-4, True, T995[4] * math.sqrt(4e-4 / 5)),
    ],
)
def test_interval_is_students_t_moderated_by_a_prior(
    logs: list[float], within: float, publishable: bool, expected: float
) -> None:
    assert PRIOR_SD == 0.03
    assert half_width(np.array(logs), within, publishable=publishable) == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("samples", "correlation"), [(50, 0.0), (1000, 0.95)])
def test_variance_within_a_process_agrees_with_theory(samples: int, correlation: float) -> None:
    """The standard error of a median of n normal samples is sigma * sqrt(pi / 2n); that of a ratio is sqrt 2 larger.

    Samples k apart, correlated by r^k, lie on the same side of the median with an arcsine law: the variance is larger
    by the sum of 2 / pi x arcsin(r^|k|) over all k.
    """
    half_widths = [
        np.log(found.high / found.low) / 2
        for trial in range(20)
        for found in [
            ratio(
                *(
                    streams(9 * trial + side, processes=1, samples=samples, noise=0.6, correlation=correlation)
                    for side in (0, 1)
                )
            )
        ]
    ]
    distances = np.abs(np.arange(1 - samples, samples))
    variance = 2 * 0.6**2 * np.pi / 2 / samples * np.sum(2 / np.pi * np.arcsin(correlation**distances))
    assert variance > 4 * PRIOR_SD**2
    assert np.mean(half_widths) == pytest.approx(T995[3] * np.sqrt(0.03**2 + variance), rel=0.12)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2, 3, 5])
def test_interval_has_its_nominal_coverage(processes: int) -> None:
    """The log ratios of processes differ by 5 %; benchmarks/interval_coverage.py has more settings and trials."""
    rng, trials, covered, false_verdicts = np.random.default_rng(1), 300, 0, 0
    for trial in range(trials):
        offsets = [rng.normal(0, 0.05 / 2**0.5, processes) for _ in range(2)]
        sides = (streams(2 * trial + side, processes=processes, samples=60, offsets=offsets[side]) for side in (0, 1))
        found = ratio(*sides)
        covered += found.low <= 1 <= found.high
        false_verdicts += found.verdict in ("faster", "slower")
    assert covered >= 0.965 * trials, "98 % less three standard errors"
    assert false_verdicts <= 0.02 * trials


@pytest.mark.parametrize("runs", [(2, 5), (5, 2)])
def test_fewer_than_three_runs_of_a_request_have_no_ratio(runs: tuple[int, int]) -> None:
    assert ratio_of_runs([10.0] * runs[0], [5.0] * runs[1]) is None


def test_interval_of_runs_is_students_t_of_two_means() -> None:
    """Logarithms are -1, 0, 1 % and 9, 10, 11 %: variance 1e-4, a third of it for each mean, 4 degrees of freedom."""
    found = ratio_of_runs(np.exp([0.09, 0.1, 0.11]), np.exp([-0.01, 0.0, 0.01]))
    assert found is not None
    assert found.value == pytest.approx(math.exp(0.1))
    assert math.log(found.high / found.value) == pytest.approx(T995[4] * math.sqrt(2 * 1e-4 / 3), rel=1e-4)
    assert found.verdict == "faster"


def test_equal_runs_rarely_have_a_verdict_of_a_difference() -> None:
    rng = np.random.default_rng(2)
    found = [ratio_of_runs(*np.exp(rng.normal(0, 0.03, (2, 3)))) for _ in range(1000)]
    assert (
        sum(item is not None and item.verdict in ("faster", "slower") for item in found) <= 20
    )  # at most 10 are expected


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_equal_correlated_streams_have_no_verdict_of_a_difference(correlation: float) -> None:
    """At 99 % and with the margin, 100 comparisons have no false verdict. At 5 %, most runs would have one."""
    found = verdicts(100, samples=120, correlation=correlation)
    assert found["faster"] + found["slower"] == 0, found


@pytest.mark.slow
def test_long_correlation_widens_the_interval() -> None:
    """Streams that change slowly. If samples counted as independent, the interval would be ten times too narrow."""
    found = [
        ratio(*(streams(2 * trial + side, processes=1, noise=0.3, samples=700, correlation=0.98) for side in (0, 1)))
        for trial in range(60)
    ]
    assert np.mean([item.low <= 1 <= item.high for item in found]) > 0.95


@pytest.mark.slow
def test_difference_of_ten_percent_is_found() -> None:
    assert verdicts(20, 1.1) == {"faster": 20}
    assert verdicts(10, 1 / 1.1) == {"slower": 10}
    assert verdicts(10, 1.1, processes=2) == {"needs 3 processes": 10}


def test_equal_publishable_streams_with_little_noise_do_not_differ() -> None:
    quiet = {"noise": 0.004, "processes": 5}
    assert verdicts(10, publishable=True, **quiet) == {"no difference": 10}
    assert verdicts(10, **quiet) == {"undecided": 10}, "the interval of the prior is wider than the margin"


def test_verdict_is_undecided_if_processes_disagree() -> None:
    baseline = streams(1)
    for offsets in [(0.1, -0.1, 0.0), (0.3, 0.05, 0.1), (0.5, 0.5, -0.5)]:
        assert ratio(baseline, streams(2, offsets=offsets)).verdict == "undecided", offsets


def test_common_slow_process_does_not_hide_a_difference() -> None:
    """One process is three times slower in both streams, but the ratio within each process is the same."""
    offsets = (0.0, 1.1, 0.0)
    assert ratio(streams(1, 11.0, offsets=offsets), streams(2, 10.0, offsets=offsets)).verdict == "faster"


def test_simultaneous_disturbances_of_both_streams_cancel() -> None:
    """The machine is slower by 50 % at times, for both streams. This noise is far larger than the difference."""
    slow = np.where(np.arange(300) % 100 < 50, 1.5, 1.0)
    rng = np.random.default_rng(3)
    baseline = [list(slow * rng.normal(10.5, 0.1, 300)) for _ in range(5)]
    compared = [list(slow * rng.normal(10.0, 0.1, 300)) for _ in range(5)]
    assert ratio(baseline, compared, publishable=True).verdict == "faster"


def test_streams_of_different_lengths_are_paired_by_time() -> None:
    slow = np.where(np.arange(1600) % 400 < 100, 1.5, 1.0)
    rng = np.random.default_rng(3)
    baseline = [list(slow[::20] * rng.normal(11, 0.1, 80)) for _ in range(3)]
    compared = [list(slow * rng.normal(10, 0.1, 1600)) for _ in range(3)]
    assert ratio(baseline, compared).verdict == "faster"


def test_too_few_samples_are_undecided() -> None:
    assert ratio([[10.0] * 7], [[5.0] * 7]) == Ratio(pytest.approx(2.0), 0.0, float("inf"), 1)
    assert ratio([[10.0] * 2] * 3, [[5.0] * 2] * 3).verdict == "undecided"
    assert ratio([[10.0] * 3] * 3, [[5.0] * 3] * 3).verdict == "faster"


def test_different_numbers_of_processes_are_refused() -> None:
    for baseline, compared in [([[1.0]], [[1.0], [1.0]]), ([], []), ([[1.0]], [[]])]:
        with pytest.raises(ValueError, match="the same processes"):
            ratio(baseline, compared)


@pytest.mark.slow
def test_time_of_ratio_grows_less_than_linearly_with_samples() -> None:
    """Compare CPU times on the same machine: eight times the samples take at most three times as long."""

    def cpu_seconds(samples: int) -> float:
        pair = [streams(side, samples=samples) for side in (0, 1)]
        seconds = []
        for _ in range(3):
            before = time.process_time()
            ratio(*pair)
            seconds.append(time.process_time() - before)
        return min(seconds)

    assert cpu_seconds(8000) < 3 * cpu_seconds(1000)
