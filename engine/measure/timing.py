"""Time several subjects side by side: warm-up, blocks of calls, interleaved rounds, every sample kept.

Sources of the methods: torch.utils.benchmark (blocks), triton.testing.do_bench (flushing), pyperf (calibration),
google-benchmark (interleaving), criterion (raw samples).
"""

import gc
import math
import random
import statistics
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from engine.measure import contention
from engine.measure.gpu_watch import Watch
from engine.measure.plan import MOST_WARMUP, Plan, Session, Subject, Timed
from engine.measure.stopwatch import Phase, Stopwatch, collections_counted, no_automatic_collection
from engine.statistics import drifting

LOOP_CALLS, COLD_LOOP_CALLS = 2_000, 20
"""Calls of an empty phase that measure what the loop itself costs, with full and with empty caches."""
LEAST_PLATEAU, MOST_PLATEAU = 6, 300
"""A warm-up looks for a plateau in the latest half of its blocks, but in at least 6 and at most 300 of them."""
LONG_TURN = 2
"""Samples per turn of a subject whose blocks are single calls. With one, the untimed first call doubles the cost."""
LEAST_QUEUED = 2
"""Smallest number of calls in a block of queued calls. With one, the untimed call before it doubles the cost."""
QUEUED_SAMPLES = 10
"""Samples of queued calls that are enough when the requested seconds have passed: only their median is reported. Each
takes at least three calls, so the 100 samples of a recurrent layer would take three times as long as its latency."""
COLLECT_S = 0.1
"""Seconds of sampled time between two garbage collections. A round that takes longer has one collection, at its end."""
QUICK_S = 0.01
"""Blocks shorter than this are affected by what ran before: the first call is some 13 us slower after a change of
settings, and some 40 us slower after a garbage collection."""
SLACK = 1.25
"""Make blocks longer than requested by this factor, so that they stay long enough if calls get faster."""


@dataclass
class _Run:
    """State of one subject during a session."""

    subject: Subject
    calls: int = 1
    """Calls per block."""
    warm_seconds: float = 0.0
    """Seconds per call in the warm-up, including flushing."""
    warmup_calls: int = 0
    seconds: float = 0.0
    """Sampled seconds so far."""
    rounds: list[int] = field(default_factory=list)
    samples: list[tuple[float, ...]] = field(default_factory=list)
    """ms per call of each phase, one tuple per sample."""
    sizes: list[int] = field(default_factory=list)
    """Calls of each sample's block."""
    share: float = 1.0
    """Share of the coming rounds in which this subject takes part."""
    gc_runs: int = 0

    @property
    def block_seconds(self) -> float:
        """Return the expected seconds of a block, from the samples if there are any."""
        per_call = self.seconds / sum(self.sizes) if self.sizes else self.warm_seconds
        return max(1e-9, self.calls * per_call)

    def missing_samples(self, plan: Plan, times: int = 1) -> float:
        """Return how many samples are missing until `times` the requested amount. 0 or less: nothing is missing."""
        least = min(plan.min_samples, QUEUED_SAMPLES) if self.subject.queued else plan.min_samples
        samples = times * least - len(self.samples)
        return max(samples, (times * plan.min_seconds - self.seconds) / self.block_seconds)


@dataclass(frozen=True)
class _Bench:
    """Stopwatch, plan and clock that all subjects share."""

    stopwatch: Stopwatch
    plan: Plan
    flush: Callable[[], object] | None
    clock: Callable[[], float]

    def turn(self, run: _Run, samples: int = 1, *, refill: bool = False) -> Generator[tuple[float, tuple[float, ...]]]:
        """Take some blocks. Yield for each the seconds that count as sampled, and the ms per phase.

        refill: make an untimed call first, which fills the caches or, before queued calls, the device's queue.
        """
        phases, flushing = tuple(run.subject.phases.values()), 0.0
        with run.subject.settings():
            if refill and not self.flush:
                for phase in phases:
                    phase()
            for _ in range(samples):
                if self.flush:
                    before = self.clock()
                    self.flush()
                    flushing = self.clock() - before
                with collections_counted() as collections:
                    spent = self.block(run.subject, phases, run.calls)
                run.gc_runs += len(collections)
                yield flushing + math.fsum(spent) / 1e3, spent

    def block(self, subject: Subject, phases: Sequence[Phase], calls: int) -> tuple[float, ...]:
        """Return the ms per phase of all calls of one block."""
        if not subject.queued:
            return self.stopwatch.block(phases, calls)
        (phase,) = phases
        return (self.stopwatch.queued(phase, calls),)

    def would_end_late(self, seconds: float, until: float) -> bool:
        """Return whether a block of these seconds would end after the time `until`."""
        return until < math.inf and self.clock() + seconds > until

    def warm_up(self, run: _Run, until: float) -> None:
        """Call until the latest half of the blocks shows no drift beyond noise, and set the calls per block.

        until: the time at which the warm-up must end.
        """
        plan, blocks, seconds = self.plan, list[float](), 0.0
        most_seconds = MOST_WARMUP * plan.min_seconds
        least_seconds = min(plan.warmup_seconds, most_seconds)
        run.calls = least = LEAST_QUEUED if run.subject.queued else 1
        while True:
            for block_seconds, spent in self.turn(run):
                ms = math.fsum(spent)
                blocks.append(ms / run.calls)
                run.warmup_calls += run.calls
                seconds += block_seconds
            latest = blocks[-min(max(len(blocks) // 2, LEAST_PLATEAU), MOST_PLATEAU) :]
            plateau = seconds >= most_seconds or (len(blocks) >= 2 * LEAST_PLATEAU and not drifting(latest))
            if plateau and seconds >= least_seconds and run.warmup_calls >= plan.warmup_calls:
                break
            if self.would_end_late(block_seconds, until):
                break
            if self.flush is None and ms < plan.block_ms:
                run.calls *= 2
        run.warm_seconds = seconds / (len(blocks) * run.calls)
        if self.flush is None:
            per_call = statistics.median(blocks[-LEAST_PLATEAU:])
            run.calls = max(least, math.ceil(SLACK * plan.block_ms / per_call) if per_call < plan.block_ms else 1)
            run.warm_seconds = per_call / 1e3
        run.gc_runs = 0

    def sample(self, runs: list[_Run], failed: dict[str, Exception], look: Callable[[], object], until: float) -> None:
        """Sample in rounds until every subject has the requested amount, or until the time is up.

        look: called after each round. until: the time at which sampling must end.

        The shares of the rounds are estimated again before each round, from the time that samples took, so that all
        subjects finish at the same time. A subject that has finished goes on until the others have, up to twice the
        requested amount. Sampling also ends when no subject that lacks samples has time for another block.
        """
        order = random.Random(self.plan.seed)  # noqa: S311 - nothing secret
        last, number, since_collection = "", 0, 0.0
        while (rounds_left := max((run.missing_samples(self.plan) / self._turn(run) for run in runs), default=0)) > 0:
            late = set[str]()
            for run in order.sample(runs, len(runs)):
                name = run.subject.name
                refill = last != name or run.block_seconds < QUICK_S or run.subject.queued
                if run.samples and self.would_end_late((1 + refill) * run.block_seconds, until):
                    late.add(name)
                    continue
                if (samples := self._samples_due(run, number, rounds_left)) == 0:
                    continue
                with _guarded(name, failed), closing(self.turn(run, samples, refill=refill)) as blocks:
                    for seconds, spent in blocks:
                        since_collection += seconds
                        self._keep_sample(run, number, seconds, spent)
                        if self.would_end_late(run.block_seconds, until):
                            break
                last = name
            runs = [run for run in runs if run.subject.name not in failed]
            if all(run.subject.name in late for run in runs if run.missing_samples(self.plan) > 0):
                break
            number += 1
            if since_collection >= COLLECT_S:
                gc.collect()
                since_collection = 0.0
            look()

    def _turn(self, run: _Run) -> int:
        """Return how many samples a subject takes in one turn."""
        return 1 if self.flush or run.calls > 1 else LONG_TURN

    def _samples_due(self, run: _Run, number: int, rounds_left: float) -> int:
        """Return how many samples a subject takes in this round."""
        turn, missing = self._turn(run), run.missing_samples(self.plan)
        if missing > 0:
            run.share = missing / turn / rounds_left
        else:
            missing = run.missing_samples(self.plan, times=2)
        return min(turn, math.ceil(missing)) if missing > 0 and run.share > _van_der_corput(number) else 0

    def _keep_sample(self, run: _Run, number: int, seconds: float, spent: tuple[float, ...]) -> None:
        run.seconds += seconds
        run.rounds.append(number)
        run.sizes.append(run.calls)
        run.samples.append(tuple(ms / run.calls for ms in spent))
        if self.flush is None and math.fsum(spent) < self.plan.block_ms:
            run.calls *= 2  # calls are faster than in the warm-up: double until blocks are long enough

    def timed(self, run: _Run) -> Timed:
        """Return the results of one subject."""
        phases = run.subject.phases
        columns = zip(*run.samples, strict=True)
        return Timed(
            rounds=tuple(run.rounds),
            phases=dict(zip(phases, columns, strict=True)),
            calls=tuple(run.sizes),
            loop_ms=self._loop_ms(run),
            warmup_calls=run.warmup_calls,
            gc_runs=run.gc_runs,
            cut_off=run.missing_samples(self.plan) > 0,
        )

    def _loop_ms(self, run: _Run) -> float:
        """Return the ms per call of the loop itself, with empty phases and, if the samples had these, empty caches."""
        empty, spent = [_nothing] * len(run.subject.phases), list[float]()
        if self.flush is None:
            return math.fsum(self.block(run.subject, empty, LOOP_CALLS)) / LOOP_CALLS
        for _ in range(COLD_LOOP_CALLS):
            self.flush()
            spent.append(math.fsum(self.block(run.subject, empty, 1)))
        return statistics.median(spent)


def measure(
    subjects: Sequence[Subject],
    stopwatch: Stopwatch,
    plan: Plan,
    *,
    flush: Callable[[], object] | None = None,
    threads: int | None = None,
    usage: Callable[[], contention.Usage] = contention.snapshot,
    gpu: Watch | None = None,
    clock: Callable[[], float] = time.perf_counter,
    on_phase: Callable[[str], None] = lambda _: None,
) -> Session:
    """Time the subjects side by side. Their names must differ.

    Each subject is warmed up to its plateau. Then all are sampled in rounds, until each has the requested samples and
    seconds. In a round, each has at most one turn, in random order. A sample is a block of calls that takes at least
    plan.block_ms. A subject with longer blocks needs fewer samples, and its turns are spread evenly over the rounds. A
    turn starts with one untimed call, which refills the caches, if another subject ran before, if the blocks are
    shorter than QUICK_S, or if the calls are queued. With `flush` there is no such call: `flush` empties the caches
    before every sample, and a sample is one call. Automatic garbage collection is off during samples; instead, garbage
    is collected between rounds, every COLLECT_S.

    threads: number of threads that should be busy while sampling; None with an accelerator, for which the CPU waits.
    gpu: read between rounds. clock: returns s; it times flushing and warm-up. on_phase: called with the name of each
    phase of the session. A subject that raises is removed with its samples, and its error is in `failed`.
    """
    bench = _Bench(stopwatch, plan, flush, clock)
    runs, failed, start = [_Run(subject) for subject in subjects], dict[str, Exception](), clock()
    for place, run in enumerate(runs, 1):
        on_phase(f"warming up {run.subject.name}")
        with _guarded(run.subject.name, failed):
            bench.warm_up(run, start + MOST_WARMUP * plan.max_seconds * place / len(runs))
    warmup_seconds = clock() - start
    ready = [run for run in runs if run.subject.name not in failed]
    if not ready:
        return Session({}, failed, None, None, warmup_seconds=warmup_seconds)
    on_phase("sampling")
    with no_automatic_collection():
        processes_before, before = contention.processes_now(), usage()
        bench.sample(ready, failed, gpu.look if gpu else _nothing, start + plan.max_seconds)
        after = usage()
        busiest = contention.busiest(
            processes_before, contention.processes_now(), after.wall_s - before.wall_s, after.cpus
        )
    return Session(
        timed={run.subject.name: bench.timed(run) for run in ready if run.subject.name not in failed},
        failed=failed,
        contention=contention.contention(before, after, threads),
        gpu=gpu.watched() if gpu else None,
        neighbours=busiest,
        warmup_seconds=warmup_seconds,
        sampled_seconds=math.fsum(run.seconds for run in ready),
    )


def _nothing() -> None:
    """Do nothing: a call that costs only the call itself."""


def _van_der_corput(number: int) -> float:
    """Return a number in [0, 1): the first 2^k of them are the multiples of 2^-k (van der Corput's sequence).

    A subject takes part in a round when this number is below its share. Its rounds are then evenly spread, and include
    all rounds of subjects with a smaller share.
    """
    return int(f"{number:b}"[::-1], 2) / (1 << number.bit_length())


@contextmanager
def _guarded(name: str, failed: dict[str, Exception]) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - a model may raise anything; it is reported as this model's result
        traceback.clear_frames(error.__traceback__)  # frees the tensors in local variables, which may fill the memory
        failed[name] = error
