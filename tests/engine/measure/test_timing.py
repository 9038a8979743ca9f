"""Timing with fake clocks: what is timed, how often and in which order, and what is not timed."""

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


def test_first_call_is_timed_separately_and_is_not_a_sample(clock: Clock) -> None:
    costs = itertools.chain([0.5], itertools.repeat(0.01))

    def model() -> None:
        clock.now += next(costs)

    assert first_call_ms(Stopwatch(lambda: None, clock), [model]) == pytest.approx(500)
    timed = run(clock, [subject("model", model)]).timed["model"]
    assert timed.samples_ms == pytest.approx([10.0] * len(timed.samples_ms))


def test_first_call_falls_into_the_warm_up_if_not_timed_separately(clock: Clock) -> None:
    costs = itertools.chain([0.5], itertools.repeat(0.01))

    def model() -> None:
        clock.now += next(costs)

    assert max(run(clock, [subject("model", model)]).timed["model"].samples_ms) == pytest.approx(10)


def test_warm_up_lasts_until_the_plateau(clock: Clock) -> None:
    """The first 30 calls get shorter and shorter, and the minimum warm-up would end before the last of them."""
    costs = itertools.chain((0.2 - 0.005 * call for call in range(30)), itertools.repeat(0.05))

    def model() -> None:
        clock.now += next(costs)

    plan = Plan(min_seconds=10, warmup_calls=5, warmup_seconds=0.5)
    timed = run(clock, [subject("model", model)], plan).timed["model"]
    assert timed.warmup_calls > 30
    assert timed.samples_ms == pytest.approx([50.0] * len(timed.samples_ms))


@pytest.mark.slow
@pytest.mark.parametrize(("first_s", "second_s"), [(1e-4, 1e-3), (0.02, 0.3), (0.3, 0.3), (0.001, 0.9)])
def test_max_seconds_limit_warm_up_and_sampling_together(clock: Clock, first_s: float, second_s: float) -> None:
    subjects = [subject("first", clock.work(first_s)), subject("second", clock.work(second_s))]
    session = run(clock, subjects, Plan(min_samples=1000, min_seconds=60, max_seconds=5))
    assert clock.now <= 5
    assert clock.now > 5 - 2 * second_s - 0.1, "all of the time is used"
    for timed in session.timed.values():
        assert timed.samples_ms
        assert timed.cut_off
    other = Clock()
    plan = Plan(min_samples=10, min_seconds=1e-3, max_seconds=5)
    assert not run(other, [subject("quick", other.work(1e-4))], plan).timed["quick"].cut_off


def test_call_longer_than_max_seconds_is_sampled_once(clock: Clock) -> None:
    timed = run(clock, [subject("slow", clock.work(20))], Plan(max_seconds=5)).timed["slow"]
    assert timed.samples_ms == pytest.approx([20_000])
    assert clock.now == pytest.approx(60), "one warm-up call, one untimed call that fills the caches, and the sample"


def test_warm_up_without_a_plateau_ends_after_half_of_min_seconds(clock: Clock) -> None:
    costs = (0.05 * 1.01**call for call in itertools.count())

    def model() -> None:
        clock.now += next(costs)

    timed = run(clock, [subject("model", model)], Plan(min_seconds=6)).timed["model"]
    # the sum of 0.05 x 1.01^k first exceeds 3 s after 48 calls
    assert timed.warmup_calls == 48
    assert drifting(timed.samples_ms)


def test_warm_ups_share_half_of_max_seconds(clock: Clock) -> None:
    """Each of three warm-ups has 1 s of 6 s: the sum of 0.05 x 1.01^k first exceeds 1 s after 19 calls."""

    def growing() -> Callable[[], None]:
        costs = (0.05 * 1.01**call for call in itertools.count())

        def model() -> None:
            clock.now += next(costs)

        return model

    subjects = [subject(name, growing()) for name in "abc"]
    session = run(clock, subjects, Plan(min_seconds=60, max_seconds=6))
    assert [timed.warmup_calls for timed in session.timed.values()] == [18, 18, 18]
    assert 2.8 < session.warmup_seconds <= 3


@pytest.mark.parametrize("kind", ["host", "events"])
def test_device_work_is_timed_until_it_is_done(kind: str) -> None:
    device = Device()
    watch = Stopwatch(device.synchronize, device.clock) if kind == "host" else device.stopwatch()
    before = device.launch(1.0)
    before()  # earlier work on the device must not be timed
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
def test_latency_differs_from_back_to_back_time(launch_s: float, work_s: float, scale: float) -> None:
    """A single call takes launch plus work. Queued calls take the longer of the two, because both overlap."""
    device = Device(launch_s=launch_s * scale)
    call = {"call": device.launch(work_s * scale)}
    subjects = [Subject("latency", call), Subject("queued", call, queued=True)]
    plan = Plan(min_seconds=0.2)
    timed = measure(subjects, device.stopwatch(), plan, clock=lambda: device.host).timed
    assert timed["latency"].samples_ms == pytest.approx([16 * scale] * len(timed["latency"].samples_ms))
    assert timed["queued"].samples_ms == pytest.approx([10 * scale] * len(timed["queued"].samples_ms))


def test_min_samples_applies_to_latency_and_not_to_queued_calls() -> None:
    device = Device()
    call = {"call": device.launch(0.0625)}
    subjects = [Subject("latency", call), Subject("queued", call, queued=True)]
    timed = measure(subjects, device.stopwatch(), Plan(min_samples=100, min_seconds=1), clock=lambda: device.host).timed
    assert len(timed["latency"].samples_ms) == 100
    assert 10 <= len(timed["queued"].samples_ms) <= 20, "up to twice as many while other subjects are sampled"
    assert not timed["queued"].cut_off


@pytest.mark.parametrize(("device", "index"), [("cuda", 0), ("cuda:1", 1)])
def test_events_are_recorded_on_the_requested_device(device: str, index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.cuda.set_device` needs the number of the device."""
    current: list[int] = []
    monkeypatch.setattr(torch._C, "_cuda_setDevice", current.append, raising=False)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    assert isinstance(stopwatch_for(device), EventStopwatch)
    assert current == [index]


def test_cold_samples_are_one_call_after_a_flush(clock: Clock) -> None:
    events: list[str] = []

    def flush() -> None:
        events.append("flush")
        clock.now += 0.003

    def model() -> None:
        events.append("call")
        clock.now += 1e-5

    plan = Plan(min_samples=30, min_seconds=0.01, warmup_calls=5, warmup_seconds=0)
    timed = run(clock, [subject("model", model)], plan, flush=flush).timed["model"]
    assert timed.calls == (1,) * 30
    assert timed.samples_ms == pytest.approx([0.01] * 30)
    calls = 30 + timed.warmup_calls
    assert events[: 2 * calls] == ["flush", "call"] * calls
    assert set(events[2 * calls :]) == {"flush"}, "the loop itself is measured with empty caches too"


def test_min_seconds_of_cold_samples_include_the_flushes(clock: Clock) -> None:
    timed = run(
        clock, [subject("model", clock.work(1 / 4096))], Plan(min_seconds=2), flush=clock.work(255 / 4096)
    ).timed["model"]
    assert len(timed.rounds) == 32


def test_hot_samples_have_an_untimed_call_after_another_subject(clock: Clock) -> None:
    calls: list[str] = []

    def model(name: str) -> Callable[[], None]:
        def call() -> None:
            calls.append(name)
            clock.now += 0.1

        return call

    plan = Plan(min_samples=20, min_seconds=0, warmup_calls=1, warmup_seconds=0)
    timed = run(clock, [subject(name, model(name)) for name in "ab"], plan).timed
    sampled = "".join(calls)[sum(item.warmup_calls for item in timed.values()) :]
    runs = ["".join(group) for _, group in itertools.groupby(sampled)]
    # a run is one call that fills the caches and one turn of two samples, or two turns if a round begins with the
    # subject that ended the previous round
    assert set(runs) == {"aaa", "bbb", "aaaaa", "bbbbb"}
    assert sum(len(item) - 1 for item in runs) == 40


@pytest.mark.parametrize(
    ("caches", "flushed_bytes"), [({"L2": 2**20, "L3": 3 * 2**20}, 6 * 2**20), ({}, UNKNOWN_BYTES)]
)
def test_flusher_writes_twice_the_size_of_the_last_level_cache(
    caches: dict[str, int], flushed_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "caches", lambda: caches)
    written: list[int] = []

    class WriteRecorder(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if func is torch.ops.aten.zero_.default:
                written.append(args[0].nbytes)
            return func(*args, **(kwargs or {}))

    flush = flusher("cpu")
    with WriteRecorder():
        flush()
        flush()
    assert written == [flushed_bytes] * 2


def test_flush_of_an_accelerator_ends_before_its_sample_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    synchronised: list[object] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", synchronised.append)
    flusher("meta")()
    assert synchronised == [torch.device("meta")]


@pytest.mark.parametrize(("call_s", "samples"), [(1 / 8, 16), (1 / 2, 10), (1 / 64, 128)])
def test_sampling_reaches_min_seconds_and_min_samples(clock: Clock, call_s: float, samples: int) -> None:
    timed = run(clock, [subject("model", clock.work(call_s))]).timed["model"]
    assert timed.samples_ms == (call_s * 1e3,) * samples


def test_smaller_plan_takes_fewer_samples(clock: Clock) -> None:
    plan = Plan(min_samples=3, min_seconds=0.001)
    assert len(run(clock, [subject("model", clock.work(0.1))], plan).timed["model"].samples_ms) == 3


def test_short_calls_are_timed_in_blocks_of_at_least_a_millisecond() -> None:
    clock = Clock(reading_s=1e-7)  # twice the reading time of a slow clock
    timed = run(clock, [subject("model", clock.work(1e-6))], Plan(min_seconds=0.2)).timed["model"]
    assert all(ms * calls >= 1 for ms, calls in zip(timed.samples_ms, timed.calls, strict=True))
    assert timed.samples_ms == pytest.approx([1e-3] * len(timed.samples_ms), rel=1e-3)


@pytest.mark.slow
def test_loop_overhead_is_measured(clock: Clock) -> None:
    """One reading of this clock takes 4 ms: 2,000 empty calls share it, but not those that each follow a flush."""
    slow = Clock(reading_s=0.004)
    hot, cold = (run(slow, [subject("model", slow.work(0.1))], flush=flush) for flush in (None, slow.work(0.2)))
    assert hot.timed["model"].loop_ms == pytest.approx(4 / 2000)
    assert cold.timed["model"].loop_ms == pytest.approx(4)
    real = measure([subject("real", lambda: sum(range(1000)))], stopwatch_for("cpu"), Plan(min_seconds=0.01)).timed[
        "real"
    ]
    assert 0 < real.loop_ms < min(real.samples_ms)


class Node:
    """One of two objects that refer to each other."""

    other: "Node | None" = None


@pytest.fixture
def automatic_collection() -> Iterator[None]:
    """Let Python collect garbage as early as in a program. The tests' own limit is so high that it never would."""
    usual = gc.get_threshold()
    gc.set_threshold(700)  # once in each call of the model below
    yield
    gc.set_threshold(*usual)


@pytest.mark.slow
@pytest.mark.usefixtures("automatic_collection")
def test_garbage_is_collected_only_between_samples(clock: Clock) -> None:
    alive: weakref.WeakSet[Node] = weakref.WeakSet()
    most_alive = 0

    def model() -> None:
        nonlocal most_alive
        clock.now += 0.04
        for _ in range(500):
            first, second = Node(), Node()
            first.other, second.other = second, first
            alive.add(first)
        most_alive = max(most_alive, len(alive))

    timed = run(clock, [subject("model", model)], Plan(min_samples=100, min_seconds=0)).timed["model"]
    assert timed.gc_runs == 0
    assert gc.isenabled()
    gc.collect()
    before_sampling = timed.warmup_calls * 500
    assert most_alive <= before_sampling + 3 * 500  # 0.1 s of samples
    assert not alive


@pytest.mark.slow
def test_short_blocks_have_an_untimed_call_before_them(clock: Clock) -> None:
    def count_untimed_calls(seconds: float) -> int:
        calls = itertools.count()

        def model() -> None:
            next(calls)
            clock.now += seconds

        timed = run(clock, [subject("model", model)], Plan(min_samples=50, min_seconds=0)).timed["model"]
        return next(calls) - timed.warmup_calls - sum(timed.calls)

    assert count_untimed_calls(1 / 1024) == 50
    assert count_untimed_calls(1 / 64) == 1, "only before the first block"


def test_garbage_collections_of_a_subject_are_counted(clock: Clock) -> None:
    def model() -> None:
        gc.collect(0)
        clock.now += 0.1

    before = list(gc.callbacks)
    timed = run(clock, [subject("model", model)], Plan(min_samples=10, min_seconds=0)).timed["model"]
    assert timed.gc_runs == 10
    assert gc.callbacks == before


@pytest.mark.parametrize("frozen_by_caller", [0, 1])
def test_objects_alive_are_frozen_while_samples_are_taken(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, frozen_by_caller: int
) -> None:
    """Python has no function that says whether an object is frozen, but gc.get_objects leaves out those that are."""
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen_by_caller)
    alive = Node()
    frozen = []

    def model() -> None:
        frozen.append(not any(thing is alive for thing in gc.get_objects()))
        clock.now += 1

    timed = run(clock, [subject("model", model)], Plan(min_samples=2, min_seconds=0)).timed["model"]
    assert frozen[: timed.warmup_calls] == [False] * timed.warmup_calls
    assert frozen[timed.warmup_calls :] == [True] * (len(frozen) - timed.warmup_calls)
    assert any(thing is alive for thing in gc.get_objects()) == (not frozen_by_caller)


@pytest.mark.slow
def test_subjects_take_turns_in_random_order_fixed_by_the_seed(clock: Clock) -> None:
    def order(seed: int) -> tuple[list[str], Session]:
        called: list[str] = []
        subjects = [
            subject(name, clock.work(0.1), settings=lambda name=name: record_call(called, name)) for name in "abc"
        ]
        found = run(clock, subjects, Plan(min_samples=80, min_seconds=0, seed=seed))
        return called[-3 * 40 :], found

    called, session = order(1)
    rounds = [called[start : start + 3] for start in range(0, 120, 3)]
    assert all(sorted(names) == ["a", "b", "c"] for names in rounds)
    assert len({tuple(names) for names in rounds}) == 6, "40 rounds have all six orders"
    twice = tuple(number for number in range(40) for _ in range(2))
    assert [timed.rounds for timed in session.timed.values()] == [twice] * 3, "long calls are sampled twice per turn"
    assert order(1)[0] == called
    assert order(2)[0] != called


@contextmanager
def record_call(called: list[str], name: str) -> Iterator[None]:
    called.append(name)
    yield


def test_subject_with_fewer_samples_skips_rounds_evenly(clock: Clock) -> None:
    timed = run(clock, [subject("slow", clock.work(1 / 8)), subject("fast", clock.work(1 / 256))]).timed
    assert timed["fast"].rounds[::2] == timed["fast"].rounds[1::2] == tuple(range(256))
    assert timed["slow"].rounds[::2] == timed["slow"].rounds[1::2] == tuple(range(0, 256, 32))


def test_rounds_of_a_slower_subject_are_a_subset_of_the_faster_ones(clock: Clock) -> None:
    """Any two subjects must have samples of the same rounds, whatever their speeds are."""
    timed = run(clock, [subject(name, clock.work(1 / int(name))) for name in ("5", "17", "100", "333")]).timed
    fewest_first = sorted((set(item.rounds) for item in timed.values()), key=len)
    assert all(fewer <= more for fewer, more in itertools.pairwise(fewest_first))
    expected_samples = [5, 17, 100, 333]
    assert [len(rounds) for rounds in fewest_first] == pytest.approx(expected_samples, rel=0.05, abs=2), (
        "two samples per round"
    )


@pytest.mark.slow
def test_failed_subject_is_removed_and_the_others_go_on(clock: Clock) -> None:
    live_tensors: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    calls = itertools.count()

    def fail_late() -> None:
        clock.now += 0.1
        activations = torch.ones(3)
        live_tensors.add(activations)
        if next(calls) == 30:
            raise RuntimeError("late")

    def fail_early() -> None:
        raise ValueError("early")

    subjects = [subject("late", fail_late), subject("good", clock.work(0.1)), subject("early", fail_early)]
    session = run(clock, subjects, Plan(min_samples=30))
    assert {name: str(error) for name, error in session.failed.items()} == {"late": "late", "early": "early"}
    assert list(session.timed) == ["good"]
    assert len(session.timed["good"].samples_ms) == 30
    gc.collect()
    assert not live_tensors, "an error must not keep a failed model's tensors"
    assert run(clock, [subject("early", fail_early)], threads=1).timed == {}


def test_settings_are_active_in_calls_and_their_switch_is_not_timed(clock: Clock) -> None:
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
def test_contention_covers_only_the_sampling_rounds(clock: Clock) -> None:
    """Fake a process that never waits and a neighbour that always uses one of two CPUs."""

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
