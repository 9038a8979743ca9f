"""Timing against clocks that are wound by hand: what is timed, how often, in which order, and what is left out."""

import gc
import itertools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.measure import environment
from engine.measure.contention import Usage
from engine.measure.plan import Plan, Session, Subject
from engine.measure.stopwatch import UNKNOWN_BYTES, EventStopwatch, Stopwatch, first_call_ms, flusher, stopwatch_for
from engine.measure.timing import measure
from engine.statistics import drifting
from tests.support.timing import PLAN, Clock, Device, run, subject


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_first_call_is_timed_on_its_own_and_is_no_sample(clock: Clock) -> None:
    costs = itertools.chain([0.5], itertools.repeat(0.01))

    def model() -> None:
        clock.now += next(costs)

    assert first_call_ms(Stopwatch(lambda: None, clock), [model]) == pytest.approx(500)
    timed = run(clock, [subject("model", model)]).timed["model"]
    assert timed.samples_ms == pytest.approx([10.0] * len(timed.samples_ms))


def test_a_first_call_that_nobody_made_before_falls_into_the_warm_up(clock: Clock) -> None:
    costs = itertools.chain([0.5], itertools.repeat(0.01))

    def model() -> None:
        clock.now += next(costs)

    assert max(run(clock, [subject("model", model)]).timed["model"].samples_ms) == pytest.approx(10)


def test_warm_up_goes_on_until_the_plateau(clock: Clock) -> None:
    """Each of the first 30 calls is shorter than the one before; the shortest warm-up would end among them."""
    costs = itertools.chain((0.2 - 0.005 * call for call in range(30)), itertools.repeat(0.05))

    def model() -> None:
        clock.now += next(costs)

    plan = Plan(min_seconds=10, warmup_calls=5, warmup_seconds=0.5)
    timed = run(clock, [subject("model", model)], plan).timed["model"]
    assert timed.warmup_calls > 30
    assert timed.samples_ms == pytest.approx([50.0] * len(timed.samples_ms))


@pytest.mark.parametrize(("first_s", "second_s"), [(1e-4, 1e-3), (0.02, 0.3), (0.3, 0.3), (0.001, 0.9)])
def test_the_clock_bounds_warm_up_and_sampling_together(clock: Clock, first_s: float, second_s: float) -> None:
    subjects = [subject("first", clock.work(first_s)), subject("second", clock.work(second_s))]
    session = run(clock, subjects, Plan(min_samples=1000, min_seconds=60, max_seconds=5))
    assert clock.now <= 5
    assert clock.now > 5 - 2 * second_s - 0.1, "the time is used"
    for timed in session.timed.values():
        assert timed.samples_ms
        assert timed.cut_off
    other = Clock()
    plan = Plan(min_samples=10, min_seconds=1e-3, max_seconds=5)
    assert not run(other, [subject("quick", other.work(1e-4))], plan).timed["quick"].cut_off


def test_a_call_longer_than_the_bound_is_sampled_once(clock: Clock) -> None:
    timed = run(clock, [subject("slow", clock.work(20))], Plan(max_seconds=5)).timed["slow"]
    assert timed.samples_ms == pytest.approx([20_000])
    assert clock.now == pytest.approx(60), "a warm-up, an untimed call that fills the caches, and the sample"


def test_without_a_plateau_warm_up_ends_after_half_of_the_time_asked_for_and_the_samples_drift(clock: Clock) -> None:
    costs = (0.05 * 1.01**call for call in itertools.count())

    def model() -> None:
        clock.now += next(costs)

    timed = run(clock, [subject("model", model)], Plan(min_seconds=6)).timed["model"]
    # the sum of 0.05 x 1.01^k first exceeds 3 s after 48 calls
    assert timed.warmup_calls == 48
    assert drifting(timed.samples_ms)


@pytest.mark.parametrize("kind", ["host", "events"])
def test_work_counts_when_it_is_done_not_when_it_is_launched(kind: str) -> None:
    device = Device()
    watch = Stopwatch(device.synchronize, device.clock) if kind == "host" else device.stopwatch()
    before = device.launch(1.0)
    before()  # what was launched earlier belongs to nobody
    assert watch.block([device.launch(0.02)], 3) == pytest.approx((60.0,))
    before()
    parts = watch.block([device.launch(0.01), device.launch(0.03), device.launch(0.002)], 4)
    assert parts == pytest.approx((40.0, 120.0, 8.0))
    before()
    assert watch.queued(device.launch(0.02), 3) == pytest.approx(60.0)
    training = Subject("training", {"forward": device.launch(1 / 64), "backward": device.launch(3 / 64)})
    timed = measure([training], watch, PLAN, clock=lambda: device.host).timed["training"]
    assert timed.phases["forward"] == pytest.approx([1e3 / 64] * 32)
    assert timed.phases["backward"] == pytest.approx([3e3 / 64] * 32)
    assert timed.samples_ms == pytest.approx([4e3 / 64] * 32)


@pytest.mark.parametrize("scale", [1, 1e-3], ids=["calls of ms", "calls of us"])
@pytest.mark.parametrize(("launch_s", "work_s"), [(0.006, 0.010), (0.010, 0.006)], ids=["device-bound", "host-bound"])
def test_latency_and_back_to_back_time_are_two_figures_however_long_a_call_is(
    launch_s: float, work_s: float, scale: float
) -> None:
    """Alone, a call takes launching and work; in a queue, the longer of the two, because both go on at once."""
    device = Device(launch_s=launch_s * scale)
    call = {"call": device.launch(work_s * scale)}
    subjects = [Subject("latency", call), Subject("queued", call, queued=True)]
    plan = Plan(min_seconds=0.2)
    timed = measure(subjects, device.stopwatch(), plan, clock=lambda: device.host).timed
    assert timed["latency"].samples_ms == pytest.approx([16 * scale] * len(timed["latency"].samples_ms))
    assert timed["queued"].samples_ms == pytest.approx([10 * scale] * len(timed["queued"].samples_ms))


def test_many_samples_are_of_latency_and_ten_of_queued_calls_are_enough() -> None:
    device = Device()
    call = {"call": device.launch(0.0625)}
    subjects = [Subject("latency", call), Subject("queued", call, queued=True)]
    timed = measure(subjects, device.stopwatch(), Plan(min_samples=100, min_seconds=1), clock=lambda: device.host).timed
    assert len(timed["latency"].samples_ms) == 100
    assert 10 <= len(timed["queued"].samples_ms) <= 20, "up to twice as many while the others are sampled"
    assert not timed["queued"].cut_off


@pytest.mark.parametrize(("device", "index"), [("cuda", 0), ("cuda:1", 1)])
def test_events_are_of_the_device_asked_for(device: str, index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own set_device wants a number."""
    current: list[int] = []
    monkeypatch.setattr(torch._C, "_cuda_setDevice", current.append, raising=False)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    assert isinstance(stopwatch_for(device), EventStopwatch)
    assert current == [index]


def test_cold_flushes_before_every_sample_which_is_one_call(clock: Clock) -> None:
    seen: list[str] = []

    def flush() -> None:
        seen.append("flush")
        clock.now += 0.003

    def model() -> None:
        seen.append("call")
        clock.now += 1e-5

    plan = Plan(min_samples=30, min_seconds=0.01, warmup_calls=5, warmup_seconds=0)
    timed = run(clock, [subject("model", model)], plan, flush=flush).timed["model"]
    assert timed.calls == (1,) * 30
    assert timed.samples_ms == pytest.approx([0.01] * 30)
    assert seen == ["flush", "call"] * (len(seen) // 2)
    assert len(seen) // 2 == 30 + timed.warmup_calls


def test_the_seconds_of_cold_samples_hold_their_flushing_or_they_would_never_end(clock: Clock) -> None:
    timed = run(
        clock, [subject("model", clock.work(1 / 4096))], Plan(min_seconds=2), flush=clock.work(255 / 4096)
    ).timed["model"]
    assert len(timed.rounds) == 32


def test_hot_calls_once_before_samples_that_follow_another_subject(clock: Clock) -> None:
    seen: list[str] = []

    def model(name: str) -> Callable[[], None]:
        def call() -> None:
            seen.append(name)
            clock.now += 0.1

        return call

    plan = Plan(min_samples=20, min_seconds=0, warmup_calls=1, warmup_seconds=0)
    timed = run(clock, [subject(name, model(name)) for name in "ab"], plan).timed
    sampled = "".join(seen)[sum(item.warmup_calls for item in timed.values()) :]
    runs = ["".join(group) for _, group in itertools.groupby(sampled)]
    # a run is one call to fill the caches and then a turn of two samples, or two turns where a round begins with the
    # subject that ended the one before
    assert set(runs) == {"aaa", "bbb", "aaaaa", "bbbbb"}
    assert sum(len(item) - 1 for item in runs) == 40


@pytest.mark.parametrize(("caches", "bytes_"), [({"L2": 2**20, "L3": 3 * 2**20}, 6 * 2**20), ({}, UNKNOWN_BYTES)])
def test_the_flusher_writes_twice_the_last_level_cache(
    caches: dict[str, int], bytes_: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "caches", lambda: caches)
    written: list[int] = []

    class Writes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if func is torch.ops.aten.zero_.default:
                written.append(args[0].nbytes)
            return func(*args, **(kwargs or {}))

    empty = flusher("cpu")
    with Writes():
        empty()
        empty()
    assert written == [bytes_] * 2


@pytest.mark.parametrize(("call_s", "samples"), [(1 / 8, 16), (1 / 2, 10), (1 / 64, 128)])
def test_floors_hold_on_duration_and_on_count(clock: Clock, call_s: float, samples: int) -> None:
    timed = run(clock, [subject("model", clock.work(call_s))]).timed["model"]
    assert timed.samples_ms == (call_s * 1e3,) * samples


def test_a_smaller_choice_is_honoured(clock: Clock) -> None:
    plan = Plan(min_samples=3, min_seconds=0.001)
    assert len(run(clock, [subject("model", clock.work(0.1))], plan).timed["model"].samples_ms) == 3


def test_short_calls_are_timed_in_blocks_so_that_reading_the_clock_is_below_a_thousandth() -> None:
    clock = Clock(reading_s=1e-7)  # twice what a slow clock costs
    timed = run(clock, [subject("model", clock.work(1e-6))], Plan(min_seconds=0.2)).timed["model"]
    assert all(ms * calls >= 1 for ms, calls in zip(timed.samples_ms, timed.calls, strict=True))
    assert timed.samples_ms == pytest.approx([1e-3] * len(timed.samples_ms), rel=1e-3)


@pytest.mark.slow
def test_the_cost_of_the_loop_is_measured(clock: Clock) -> None:
    """2,000 calls of a phase that does nothing cost one reading of a clock that takes 4 ms to read."""
    slow = Clock(reading_s=0.004)
    timed = run(slow, [subject("model", slow.work(0.1))]).timed["model"]
    assert timed.loop_ms == pytest.approx(4 / 2000)
    real = measure([subject("real", lambda: sum(range(1000)))], stopwatch_for("cpu"), Plan(min_seconds=0.01)).timed[
        "real"
    ]
    assert 0 < real.loop_ms < min(real.samples_ms)


class Node:
    """One half of a cycle."""

    other: "Node | None" = None


@pytest.mark.slow
def test_garbage_is_collected_between_samples_never_in_them(clock: Clock) -> None:
    alive: weakref.WeakSet[Node] = weakref.WeakSet()
    most = 0

    def model() -> None:
        nonlocal most
        clock.now += 0.04
        for _ in range(500):  # ten calls alone would set off the automatic collection
            one, two = Node(), Node()
            one.other, two.other = two, one
            alive.add(one)
        most = max(most, len(alive))

    timed = run(clock, [subject("model", model)], Plan(min_samples=100, min_seconds=0)).timed["model"]
    assert timed.gc_runs == 0
    assert gc.isenabled()
    gc.collect()
    before_sampling = timed.warmup_calls * 500
    assert most <= before_sampling + 3 * 500  # 0.1 s of samples
    assert not alive


@pytest.mark.slow
def test_before_a_short_block_comes_an_untimed_call(clock: Clock) -> None:
    def untimed(seconds: float) -> int:
        calls = itertools.count()

        def model() -> None:
            next(calls)
            clock.now += seconds

        timed = run(clock, [subject("model", model)], Plan(min_samples=50, min_seconds=0)).timed["model"]
        return next(calls) - timed.warmup_calls - sum(timed.calls)

    assert untimed(1 / 1024) == 50
    assert untimed(1 / 64) == 1, "at first only"


def test_collections_that_a_subject_starts_are_counted(clock: Clock) -> None:
    def model() -> None:
        gc.collect(0)
        clock.now += 0.1

    timed = run(clock, [subject("model", model)], Plan(min_samples=10, min_seconds=0)).timed["model"]
    assert timed.gc_runs == 10


@pytest.mark.slow
def test_subjects_take_turns_in_an_order_of_chance_that_the_seed_repeats(clock: Clock) -> None:
    def order(seed: int) -> tuple[list[str], Session]:
        called: list[str] = []
        subjects = [subject(name, clock.work(0.1), settings=lambda name=name: noted(called, name)) for name in "abc"]
        found = run(clock, subjects, Plan(min_samples=80, min_seconds=0, seed=seed))
        return called[-3 * 40 :], found

    called, session = order(1)
    rounds = [called[start : start + 3] for start in range(0, 120, 3)]
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert len({tuple(one) for one in rounds}) == 6, "every order comes up among 40 rounds"
    twice = tuple(number for number in range(40) for _ in range(2))
    assert [timed.rounds for timed in session.timed.values()] == [twice] * 3, "long calls are sampled twice per turn"
    assert order(1)[0] == called
    assert order(2)[0] != called


@contextmanager
def noted(called: list[str], name: str) -> Iterator[None]:
    called.append(name)
    yield


def test_who_needs_fewer_samples_sits_out_evenly(clock: Clock) -> None:
    timed = run(clock, [subject("slow", clock.work(1 / 8)), subject("fast", clock.work(1 / 256))]).timed
    assert timed["fast"].rounds[::2] == timed["fast"].rounds[1::2] == tuple(range(256))
    assert timed["slow"].rounds[::2] == timed["slow"].rounds[1::2] == tuple(range(0, 256, 32))


def test_of_any_two_one_takes_part_in_all_rounds_of_the_other(clock: Clock) -> None:
    """However their speeds relate, they have pairs to be compared by."""
    timed = run(clock, [subject(name, clock.work(1 / int(name))) for name in ("5", "17", "100", "333")]).timed
    fewest_first = sorted((set(item.rounds) for item in timed.values()), key=len)
    assert all(fewer <= more for fewer, more in itertools.pairwise(fewest_first))
    needed = [5, 17, 100, 333]
    assert [len(one) for one in fewest_first] == pytest.approx(needed, rel=0.05, abs=2), "two samples in each"


@pytest.mark.slow
def test_a_subject_that_fails_is_taken_out_and_the_others_go_on(clock: Clock) -> None:
    held: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    calls = itertools.count()

    def late() -> None:
        clock.now += 0.1
        activations = torch.ones(3)
        held.add(activations)
        if next(calls) == 30:
            raise RuntimeError("late")

    def early() -> None:
        raise ValueError("early")

    subjects = [subject("late", late), subject("good", clock.work(0.1)), subject("early", early)]
    session = run(clock, subjects, Plan(min_samples=30))
    assert {name: str(error) for name, error in session.failed.items()} == {"late": "late", "early": "early"}
    assert list(session.timed) == ["good"]
    assert len(session.timed["good"].samples_ms) == 30
    gc.collect()
    assert not held, "an error must not keep a failed model's tensors"
    assert run(clock, [subject("early", early)], threads=1).timed == {}


def test_settings_surround_the_calls_and_cost_no_sample_anything(clock: Clock) -> None:
    state = {"on": False}

    @contextmanager
    def switched() -> Iterator[None]:
        clock.now += 1
        state["on"] = True
        yield
        state["on"] = False
        clock.now += 1

    def model() -> None:
        assert state["on"]
        clock.now += 0.1

    def other() -> None:
        assert not state["on"]
        clock.now += 0.1

    session = run(clock, [subject("switched", model, settings=switched), subject("other", other)])
    assert not session.failed
    assert session.timed["switched"].samples_ms == pytest.approx([100.0] * 20, rel=1e-6)


@pytest.mark.slow
def test_contention_is_told_of_the_rounds_alone(clock: Clock) -> None:
    """A fake process that never waits, with one neighbour on one of its two CPUs throughout."""

    def usage() -> Usage:
        return Usage(wall_s=clock.now, own_s=clock.now, busy_s=2 * clock.now, cpus=2, switches=0)

    reported: list[str] = []
    session = run(clock, [subject("model", clock.work(0.1))], threads=2, usage=usage, on_phase=reported.append)
    assert session.contention is not None
    assert (session.contention.cpu_share, session.contention.neighbour_share) == pytest.approx((0.5, 0.5))
    assert reported == ["warming up model", "sampling"]
    beside_a_gpu = run(clock, [subject("model", clock.work(0.1))], usage=usage).contention
    assert beside_a_gpu is not None
    assert (beside_a_gpu.cpu_share, beside_a_gpu.neighbour_share) == (None, pytest.approx(0.5))
