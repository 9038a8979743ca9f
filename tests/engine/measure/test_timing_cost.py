"""Duration of timings: limits of warm-up and sampling, block sizes, drift, and the parts of the wall time."""

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from engine.measure.plan import Plan, Session
from engine.measure.stopwatch import Stopwatch
from engine.models import variants
from engine.replicates import ready
from engine.replicates.messages import Job, Measured, Report
from engine.replicates.processes import CACHES, Processes
from engine.replicates.recurrent.work import Job as RecurrentJob
from engine.results import Progress
from engine.specs import RecurrentSpec, Variant
from engine.statistics import drifting
from tests.support.timing import Clock, run, subject

MIN_SECONDS = 2.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


def sampled_seconds_of(session: Session, name: str) -> float:
    """Return the seconds that the samples of one subject took."""
    timed = session.timed[name]
    return math.fsum(ms * calls for ms, calls in zip(timed.samples_ms, timed.calls, strict=True)) / 1e3


class ChangingCall:
    """A call with one duration in the warm-up and another one in the sampling."""

    def __init__(self, clock: Clock, warm_s: float, sampled_s: float, late_calls: int = 0) -> None:
        """late_calls: number of sampled calls that still take as long as in the warm-up."""
        self.clock, self.now_s, self.sampled_s, self.late_calls = clock, warm_s, sampled_s, late_calls
        self.sampling = False

    def __call__(self) -> None:
        if self.sampling:
            self.late_calls -= 1
            if self.late_calls < 0:
                self.now_s = self.sampled_s
        self.clock.now += self.now_s

    def on_phase(self, phase: str) -> None:
        self.sampling = self.sampling or phase == "sampling"


@pytest.mark.parametrize("late_calls", [0, 7])
@pytest.mark.parametrize("factor", [1 / 20, 1 / 3, 3, 20, 500])
def test_wrong_block_estimate_at_most_doubles_the_sampling_time(clock: Clock, factor: float, late_calls: int) -> None:
    changing = ChangingCall(clock, 0.004 * factor, 0.004, late_calls)
    subjects = [subject("changing", changing), subject("steady", clock.work(0.003)), subject("slow", clock.work(0.05))]
    session = run(clock, subjects, on_phase=changing.on_phase)
    for name, block_s in (("changing", max(0.004, 0.004 * factor)), ("steady", 0.003), ("slow", 0.05)):
        assert (
            MIN_SECONDS * (1 - 1e-9) <= sampled_seconds_of(session, name) <= 2 * MIN_SECONDS + 2 * block_s + 10 * 0.004
        ), "at least 10 samples are taken"
    samples = sum(len(timed.rounds) for timed in session.timed.values())
    assert samples < 2 * (2 / 0.004 + 2 / 0.003 + 2 / 0.05)


def test_sampling_takes_min_seconds_if_estimates_are_right(clock: Clock) -> None:
    calls_s = {"a": 0.0011, "b": 0.0013, "c": 0.0047, "d": 0.019, "e": 0.11}
    session = run(clock, [subject(name, clock.work(call_s)) for name, call_s in calls_s.items()])
    for name, call_s in calls_s.items():
        assert sampled_seconds_of(session, name) <= 1.05 * MIN_SECONDS + 2 * call_s


def test_blocks_grow_if_calls_are_shorter_than_in_the_warm_up(clock: Clock) -> None:
    changing = ChangingCall(clock, 0.002, 0.00005)
    timed = run(clock, [subject("changing", changing)], on_phase=changing.on_phase).timed["changing"]
    blocks_ms = [ms * calls for ms, calls in zip(timed.samples_ms, timed.calls, strict=True)]
    assert all(ms >= 1 for ms in blocks_ms[5:]), "a block takes 1.6 ms after 5 doublings"
    assert timed.calls == (1, 2, 4, 8, 16, *[32] * (len(timed.calls) - 5))
    assert timed.samples_ms == pytest.approx([0.05] * len(timed.samples_ms))


def busy_machine_factors(seed: int) -> Iterator[float]:
    """Yield factors of call durations on a busy machine: 20 % noise, and bursts of about 10 calls of double length."""
    rng, slowed = random.Random(seed), False
    while True:
        slowed = rng.random() < (0.9 if slowed else 0.05)
        yield math.exp(rng.gauss(0, 0.2)) * (2 if slowed else 1)


@pytest.mark.parametrize("seed", range(5))
def test_warm_up_is_bounded_when_noise_hides_the_plateau(clock: Clock, seed: int) -> None:
    factors = busy_machine_factors(seed)

    def model() -> None:
        clock.now += 0.01 * next(factors)

    session = run(clock, [subject("model", model)])
    assert session.warmup_seconds < MIN_SECONDS / 2 + 0.1


@pytest.mark.slow
def test_warm_up_ends_early_in_noise_without_a_trend() -> None:
    """Call durations vary by 20 % without a trend: a warm-up of 0.5 s is enough."""
    warmups_s = []
    for seed in range(10):
        clock, rng = Clock(), random.Random(seed)

        def model(clock: Clock = clock, rng: random.Random = rng) -> None:
            clock.now += 0.01 * math.exp(rng.gauss(0, 0.2))

        plan = Plan(min_seconds=10, max_seconds=2)  # ends the sampling early; only the warm-up is tested
        warmups_s.append(run(clock, [subject("model", model)], plan).warmup_seconds)
    assert sum(warmup_s < 0.6 for warmup_s in warmups_s) >= 9


def test_short_timing_has_a_warm_up_of_half_its_sampling_time(clock: Clock) -> None:
    session = run(clock, [subject("model", clock.work(1e-4))], Plan(min_seconds=0.1))
    assert session.warmup_seconds == pytest.approx(0.05, abs=2e-3), "less than the usual 0.5 s"


def test_slow_call_has_exactly_warmup_calls_before_sampling(clock: Clock) -> None:
    timed = run(clock, [subject("model", clock.work(3))], Plan(warmup_calls=5)).timed["model"]
    assert (timed.warmup_calls, len(timed.samples_ms)) == (5, 10)


def test_timing_of_several_slow_calls_takes_at_most_twice_its_samples(clock: Clock) -> None:
    session = run(clock, [subject(name, clock.work(0.4)) for name in "abc"])
    assert clock.now <= 2 * session.sampled_seconds * (1 + 1e-9)
    assert session.sampled_seconds == pytest.approx(3 * 10 * 0.4)


@pytest.mark.timeout(20)
def test_sampling_ends_when_no_subject_can_take_more_samples(clock: Clock) -> None:
    """The quick subject has twice its `min_seconds`, so no call is left. A loop that waits would keep a core busy."""
    subjects = [subject("quick", clock.work(1e-3)), subject("slow", clock.work(3))]
    session = run(clock, subjects, Plan(min_samples=4, min_seconds=0.1, max_seconds=20))
    assert session.timed["slow"].cut_off
    assert not session.timed["quick"].cut_off
    assert 17 - 3 < clock.now < 20, "another block of 3 s would end too late"


@pytest.mark.parametrize("samples", [12, 60, 400])
def test_noise_is_not_drift_and_a_trend_is(samples: int) -> None:
    rng = np.random.default_rng(3)
    noise = [np.exp(0.1 * rng.standard_normal(samples)) for _ in range(200)]
    assert sum(drifting(list(factors)) for factors in noise) <= 6, "3 % false alarms in noise"
    slowing = np.linspace(1, 1.06, samples)
    assert all(drifting(list(slowing * factors**0.05)) for factors in noise), (
        "4 % between the thirds, in noise of 0.5 %"
    )
    assert not drifting(list(np.linspace(1, 1.02, samples))), "less than 2 % between the thirds"


def test_bursts_of_another_process_are_not_drift() -> None:
    found = 0
    for seed in range(100):
        factors = busy_machine_factors(seed)
        found += drifting([next(factors) for _ in range(400)])
    assert found <= 10


@pytest.mark.parametrize("samples", [(), (1.0, 2.0), (5.0, 4.0, 3.0, 2.0, 1.0)])
def test_few_samples_show_no_drift(samples: Sequence[float]) -> None:
    assert not drifting(samples)


def test_drift_is_2_percent_between_the_first_and_the_last_third() -> None:
    assert drifting([6.0, 5.0, 4.0, 3.0, 2.0, 1.0]), "6 samples are enough"
    assert not drifting([1.019] * 3 + [50.0] * 3 + [1.0] * 3), "the second third does not count"
    assert drifting([1.021] * 3 + [1.0] * 6)


def test_session_reports_seconds_of_warm_up_and_sampling(clock: Clock) -> None:
    session = run(clock, [subject("one", clock.work(1 / 8)), subject("other", clock.work(1 / 8))])
    assert session.sampled_seconds == pytest.approx(4)
    assert session.warmup_seconds == pytest.approx(2 * 8 / 8)  # half of `min_seconds`: too short for 12 blocks
    untimed = clock.now - session.warmup_seconds - session.sampled_seconds
    assert 0 < untimed <= session.sampled_seconds / 2, "each two samples have one untimed call before them"


SHORT = {"seq_length": 3, "input_size": 3, "hidden_size": 4, "mini_batch": 2, "threads": 1, "min_seconds": 0.05}


@pytest.mark.slow
def test_parts_of_a_timing_add_up_to_its_wall_time(tmp_path: Path) -> None:
    """Use fake processes that only sleep and report durations."""
    spec = RecurrentSpec(runners=("aten", "jit"), loops=3, warmup=1, **SHORT)

    def process(job: Job, environment: object, deadline: float) -> Iterator[Report | None]:
        time.sleep(0.05)
        yield None  # no report yet
        time.sleep(0.05)
        yield Report(doing="aten: first call", label="aten")
        time.sleep(0.04)
        yield Report(warmup_s=0.01, sampled_s=0.02)
        for label, ms in (("aten", None), ("jit", 5.0)):
            yield Report(measured=Measured(label=label, compile_ms=ms, loading_s=0.001 if ms else 0))
        time.sleep(0.02)

    begun = time.monotonic()
    processes = Processes(tmp_path, begun + 60, process)  # type: ignore[arg-type]
    for _ in processes.repeat(RecurrentJob(spec=spec, parent=1), Progress(done=0)):
        pass
    parts = processes.parts(wall := time.monotonic() - begun)
    assert (parts.compilation_s, parts.warmup_s, parts.sampled_s) == (0.018, 0.03, 0.06)
    assert parts.starts_s >= 3 * (0.1 + 0.02), "time before the first report and after the last one"
    assert parts.rest_s > 0
    assert math.fsum(parts.model_dump().values()) == pytest.approx(wall, abs=0.005)


def test_each_timing_begins_with_empty_compile_caches_that_its_processes_share(tmp_path: Path) -> None:
    used: list[tuple[str, ...]] = []

    def process(job: Job, environment: Mapping[str, str], deadline: float) -> Iterator[Report]:
        folders = [Path(environment[name]) for name in CACHES]
        used.append(tuple(map(str, folders)))
        assert any(folder.exists() for folder in folders) == (job.process > 0)
        for folder in folders:
            folder.mkdir(exist_ok=True)
        yield Report(measured=Measured(label="aten"))

    processes = Processes(tmp_path, time.monotonic() + 60, process)  # type: ignore[arg-type]
    job = RecurrentJob(spec=RecurrentSpec(runners=("aten",), replicates=2, **SHORT), parent=1)
    for _ in range(2):
        list(processes.repeat(job, Progress(done=0)))
    first, *rest = used
    assert rest[0] == first
    assert rest[1] == rest[2]
    assert not set(rest[1]) & set(first)


@pytest.mark.parametrize(
    ("variant", "device", "calls"),
    [
        ("compile:inductor:reduce-overhead", "cuda", 2),
        ("compile:max-autotune", "cuda:1", 2),
        ("compile:cudagraphs", "cuda", 2),
        ("compile:max-autotune-no-cudagraphs", "cuda", 0),
        ("compile", "cuda", 0),
        ("cudagraphs", "cuda", 0),  # the graph is recorded before the first call
        ("eager", "cuda", 0),
        ("compile:max-autotune", "cpu", 0),
    ],
)
def test_recording_of_cuda_graphs_counts_as_compilation(clock: Clock, variant: str, device: str, calls: int) -> None:
    costs = itertools.chain([8.0, 2.0, 0.5], itertools.repeat(0.01))

    def model() -> None:
        clock.now += next(costs)

    assert variants.settling_calls(Variant.parse(variant), device) == calls

    def capture() -> Callable[[], None]:
        clock.now += 4
        return model

    watch = Stopwatch(lambda: None, clock)
    initial = ready.Held("cpu", 0.0, 0.0)
    *_, found = ready.first_call(
        "toy", capture, lambda run: {"forward": run}, watch, initial, compiles=True, settling=calls
    )
    assert found.first_call_ms == pytest.approx(8000)
    assert found.compile_ms == pytest.approx(14_500 if calls else 12_000)
