"""What a timing costs: bounded warm-up, blocks estimated anew, drift apart from noise, and where its seconds went."""

import itertools
import math
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from engine.measure.plan import Plan, Session
from engine.measure.stopwatch import Stopwatch
from engine.models import variants
from engine.replicates import ready
from engine.replicates.messages import Job, Measured, Report
from engine.replicates.processes import Processes
from engine.results import Progress, load
from engine.specs import RecurrentSpec, Variant
from engine.statistics import drifting
from tests.support.timing import Clock, run, subject

ASKED_S = 2.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


def seconds(session: Session, name: str) -> float:
    """What its samples took."""
    timed = session.timed[name]
    return math.fsum(ms * calls for ms, calls in zip(timed.samples_ms, timed.calls, strict=True)) / 1e3


class Changing:
    """A call that takes one time while it is warmed up and another once samples are taken."""

    def __init__(self, clock: Clock, warm_s: float, sampled_s: float, late: int = 0) -> None:
        """late: calls in which sampling finds it still as it was in the warm-up."""
        self.clock, self.now_s, self.sampled_s, self.late = clock, warm_s, sampled_s, late
        self.sampling = False

    def __call__(self) -> None:
        if self.sampling:
            self.late -= 1
            if self.late < 0:
                self.now_s = self.sampled_s
        self.clock.now += self.now_s

    def on_phase(self, phase: str) -> None:
        self.sampling = self.sampling or phase == "sampling"


@pytest.mark.parametrize("late", [0, 7])
@pytest.mark.parametrize("factor", [1 / 20, 1 / 3, 3, 20, 500])
def test_a_block_wrongly_estimated_in_the_warm_up_costs_others_at_most_twice_what_was_asked_for(
    clock: Clock, factor: float, late: int
) -> None:
    changing = Changing(clock, 0.004 * factor, 0.004, late)
    subjects = [subject("changing", changing), subject("steady", clock.work(0.003)), subject("slow", clock.work(0.05))]
    session = run(clock, subjects, on_phase=changing.on_phase)
    for name, block_s in (("changing", max(0.004, 0.004 * factor)), ("steady", 0.003), ("slow", 0.05)):
        assert ASKED_S * (1 - 1e-9) <= seconds(session, name) <= 2 * ASKED_S + 2 * block_s + 10 * 0.004, (
            "or the 10 samples"
        )
    total = sum(map(len, (value.rounds for value in session.timed.values())))
    assert total < 2 * (2 / 0.004 + 2 / 0.003 + 2 / 0.05)


def test_what_was_estimated_well_costs_what_was_asked_for(clock: Clock) -> None:
    calls_s = {"a": 0.0011, "b": 0.0013, "c": 0.0047, "d": 0.019, "e": 0.11}
    session = run(clock, [subject(name, clock.work(call_s)) for name, call_s in calls_s.items()])
    for name, call_s in calls_s.items():
        assert seconds(session, name) <= 1.05 * ASKED_S + 2 * call_s


def test_blocks_grow_where_calls_are_shorter_than_they_were_in_the_warm_up(clock: Clock) -> None:
    changing = Changing(clock, 0.002, 0.00005)
    timed = run(clock, [subject("changing", changing)], on_phase=changing.on_phase).timed["changing"]
    lasted = [ms * calls for ms, calls in zip(timed.samples_ms, timed.calls, strict=True)]
    assert all(ms >= 1 for ms in lasted[5:]), "1.6 ms after 5 doublings"
    assert timed.calls == (1, 2, 4, 8, 16, *[32] * (len(timed.calls) - 5))
    assert timed.samples_ms == pytest.approx([0.05] * len(timed.samples_ms))


def neighbour(seed: int) -> Iterator[float]:
    """Factors of a busy machine: calls differ by a fifth, and in stretches of some ten they take twice as long."""
    draw, slowed = random.Random(seed), False
    while True:
        slowed = draw.random() < (0.9 if slowed else 0.05)
        yield math.exp(draw.gauss(0, 0.2)) * (2 if slowed else 1)


@pytest.mark.parametrize("seed", range(5))
def test_a_warm_up_does_not_wait_for_a_plateau_that_noise_hides(clock: Clock, seed: int) -> None:
    factors = neighbour(seed)

    def model() -> None:
        clock.now += 0.01 * next(factors)

    session = run(clock, [subject("model", model)])
    assert session.warmup_seconds < ASKED_S / 2 + 0.1


@pytest.mark.slow
def test_a_warm_up_ends_early_in_noise_alone() -> None:
    """Blocks differ by a fifth, without a trend: half a second is enough."""
    took = []
    for seed in range(20):
        clock, draw = Clock(), random.Random(seed)

        def model(clock: Clock = clock, draw: random.Random = draw) -> None:
            clock.now += 0.01 * math.exp(draw.gauss(0, 0.2))

        plan = Plan(min_seconds=10, max_seconds=2)  # ends the sampling early, which is not looked at
        took.append(run(clock, [subject("model", model)], plan).warmup_seconds)
    assert sum(seconds < 0.6 for seconds in took) >= 18


def test_a_short_timing_has_a_warm_up_of_half_its_samples(clock: Clock) -> None:
    session = run(clock, [subject("model", clock.work(1e-4))], Plan(min_seconds=0.1))
    assert session.warmup_seconds == pytest.approx(0.05, abs=2e-3), "which is less than the usual 0.5 s"


def test_a_slow_call_is_warmed_up_as_often_as_asked_and_no_longer(clock: Clock) -> None:
    timed = run(clock, [subject("model", clock.work(3))], Plan(warmup_calls=5)).timed["model"]
    assert (timed.warmup_calls, len(timed.samples_ms)) == (5, 10)


def test_a_timing_of_slow_calls_side_by_side_costs_at_most_twice_its_samples(clock: Clock) -> None:
    session = run(clock, [subject(name, clock.work(0.4)) for name in "abc"])
    assert clock.now <= 2 * session.sampled_seconds * (1 + 1e-9)
    assert session.sampled_seconds == pytest.approx(3 * 10 * 0.4)


@pytest.mark.timeout(20)
def test_sampling_ends_when_only_subjects_without_time_left_lack_samples(clock: Clock) -> None:
    """The quick one has twice what was asked for, so nothing is left to call; waiting would keep a core busy."""
    subjects = [subject("quick", clock.work(1e-3)), subject("slow", clock.work(3))]
    session = run(clock, subjects, Plan(min_samples=4, min_seconds=0.1, max_seconds=20))
    assert session.timed["slow"].cut_off
    assert not session.timed["quick"].cut_off
    assert 17 - 3 < clock.now < 20, "another block of 3 s would end too late"


@pytest.mark.parametrize("samples", [12, 60, 400])
def test_drift_is_what_noise_does_not_explain(samples: int) -> None:
    draw = np.random.default_rng(3)
    noise = [np.exp(0.1 * draw.standard_normal(samples)) for _ in range(200)]
    assert sum(drifting(list(one)) for one in noise) <= 6, "3 % of what only scatters"
    slowing = np.linspace(1, 1.06, samples)
    assert all(drifting(list(slowing * one**0.05)) for one in noise), "4 % between the thirds, in noise of 0.5 %"
    assert not drifting(list(np.linspace(1, 1.02, samples))), "less than 2 % between the thirds"


def test_bursts_of_a_neighbour_are_no_drift() -> None:
    found = 0
    for seed in range(100):
        factors = neighbour(seed)
        found += drifting([next(factors) for _ in range(400)])
    assert found <= 10


@pytest.mark.parametrize("samples", [(), (1.0, 2.0), (5.0, 4.0, 3.0, 2.0, 1.0)])
def test_few_samples_show_no_drift(samples: Sequence[float]) -> None:
    assert not drifting(samples)
    assert drifting([6.0, 5.0, 4.0, 3.0, 2.0, 1.0])
    assert not drifting([1.019] * 3 + [50.0] * 3 + [1.0] * 3)
    assert drifting([1.021] * 3 + [1.0] * 6)


def test_a_session_knows_where_its_time_went(clock: Clock) -> None:
    session = run(clock, [subject("one", clock.work(1 / 8)), subject("other", clock.work(1 / 8))])
    assert session.sampled_seconds == pytest.approx(4)
    assert session.warmup_seconds == pytest.approx(2 * 8 / 8)  # to half of what was asked for: 12 blocks are not there
    untimed = clock.now - session.warmup_seconds - session.sampled_seconds
    assert 0 < untimed <= session.sampled_seconds / 2, "one call before two samples"


SHORT = {"seq_length": 3, "input_size": 3, "hidden_size": 4, "mini_batch": 2, "threads": 1, "min_seconds": 0.05}


@pytest.mark.slow
def test_the_parts_of_a_timing_add_up_to_its_wall_time(tmp_path: Path) -> None:
    """Processes that take a while to start, and report what they did without doing it."""
    spec = RecurrentSpec(runners=("aten", "jit"), loops=3, warmup=1, **SHORT)

    def process(job: Job, environment: object, deadline: float) -> Iterator[Report | None]:
        time.sleep(0.05)
        yield None  # says nothing for a while
        time.sleep(0.05)
        yield Report(doing="aten: first call", label="aten")
        time.sleep(0.04)
        yield Report(warmup_s=0.01, sampled_s=0.02)
        for label, ms in (("aten", None), ("jit", 5.0)):
            yield Report(measured=Measured(label=label, compile_ms=ms, loading_s=0.001 if ms else 0))
        time.sleep(0.02)

    from engine.replicates.recurrent.job import Job as RecurrentJob

    begun = time.monotonic()
    processes = Processes(tmp_path, begun + 60, process)  # type: ignore[arg-type]
    waiting = processes.repeat(RecurrentJob(spec=spec, parent=1), Progress(done=0))
    for _ in waiting:
        pass
    parts = processes.spent.parts(wall := time.monotonic() - begun)
    assert (parts.compilation_s, parts.warmup_s, parts.sampled_s) == (0.018, 0.03, 0.06)
    assert parts.starts_s >= 3 * (0.1 + 0.02), "until the first report, and after the last"
    assert parts.rest_s > 0
    assert math.fsum(parts.model_dump().values()) == pytest.approx(wall, abs=0.005)


@pytest.mark.parametrize(
    ("variant", "device", "calls"),
    [
        ("compile:inductor:reduce-overhead", "cuda", 2),
        ("compile:max-autotune", "cuda:1", 2),
        ("compile:cudagraphs", "cuda", 2),
        ("compile:max-autotune-no-cudagraphs", "cuda", 0),
        ("compile", "cuda", 0),
        ("cudagraphs", "cuda", 0),  # recorded as a whole before its first call
        ("eager", "cuda", 0),
        ("compile:max-autotune", "cpu", 0),
    ],
)
def test_recording_cuda_graphs_is_compilation(clock: Clock, variant: str, device: str, calls: int) -> None:
    costs = itertools.chain([8.0, 2.0, 0.5], itertools.repeat(0.01))

    def model() -> None:
        clock.now += next(costs)

    assert variants.settling_calls(Variant.parse(variant), device) == calls
    watch = Stopwatch(lambda: None, clock)
    held = ready.Held("cpu", 0.0, 0.0)
    _, found = ready.first_call(
        "toy", lambda: model, lambda run: {"forward": run}, watch, held, compiles=True, settling=calls
    )
    assert found.first_call_ms == pytest.approx(8000)
    assert found.compile_ms == pytest.approx(10_500 if calls else 8000)


def test_rows_of_older_releases_load() -> None:
    stored = {"library": "timm", "model": "m", "device": "cpu", "mode": "inference", "variant": "eager"}
    stored |= {"batch_size_requested": "1", "batch_size": 1, "precision": "float32", "latency_ms": 2.0}
    found = load("benchmark", stored)
    assert (found.back_to_back_ms, found.parts, found.neighbours, found.first_call_after) == (None, None, {}, ())  # type: ignore[attr-defined]
