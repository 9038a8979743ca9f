"""Timing several subjects side by side: warm-up, blocks of calls, interleaved rounds, every sample kept.

Where the ideas come from: torch.utils.benchmark (blocks), triton.testing.do_bench (flushing), pyperf (calibration),
google-benchmark (interleaving), criterion (raw samples).
"""

import gc
import math
import random
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

from engine.measure import contention as cpu
from engine.measure.flush import flusher
from engine.measure.garbage import collections_counted, no_automatic_collection
from engine.measure.gpu_watch import Watch, Watched
from engine.measure.stopwatch import EventStopwatch, HostStopwatch, Phase, Stopwatch, first_call, stopwatch
from engine.results import Contention
from engine.statistics import drifting

__all__ = [
    "EventStopwatch",
    "HostStopwatch",
    "Phase",
    "Plan",
    "Session",
    "Stopwatch",
    "Subject",
    "Timed",
    "first_call",
    "flusher",
    "measure",
    "stopwatch",
]

LOOP_CALLS = 2_000
LEAST_PLATEAU, MOST_PLATEAU = 6, 300
"""Blocks of which a warm-up's plateau is told, the latest half of them."""
COLLECT_S = 0.1
"""So much sampled time lies between two garbage collections, or a round where that takes longer."""
QUICK_S = 0.01
"""Blocks shorter than this tell what went on before: after a change of settings, a first call is some 13 us slower,
after a garbage collection some 40."""
SLACK = 1.25
"""Blocks are made longer than asked for by this, so that a faster stretch does not make them too short."""


@dataclass(frozen=True)
class Subject:
    """What is timed: one call runs the phases in turn."""

    name: str
    phases: Mapping[str, Phase]
    settings: Callable[[], AbstractContextManager[object]] = nullcontext
    """Global switches (TF32, cuDNN, gradients), entered around its calls and outside the timed region."""


@dataclass(frozen=True)
class Plan:
    """How thoroughly to time. Seconds are sampled time, and the flushing that belongs to it."""

    min_samples: int = 10
    min_seconds: float = 2.0
    warmup_calls: int = 5
    warmup_seconds: float = 0.5
    max_warmup_seconds: float = 10.0
    block_ms: float = 1.0
    seed: int = 1337
    """Of the order of subjects in each round."""


@dataclass(frozen=True)
class Timed:
    """All samples of one subject."""

    rounds: tuple[int, ...]
    """In which round each sample was taken."""
    phases: Mapping[str, tuple[float, ...]]
    """ms per call, one for each sample."""
    calls: int
    """Per sample."""
    loop_ms: float
    """What the timing loop itself costs per call; it is part of the samples."""
    warmup_calls: int
    gc_runs: int
    """Garbage collections within samples: the automatic ones are off, a subject may start its own."""

    @property
    def samples_ms(self) -> tuple[float, ...]:
        """ms per call, all phases together."""
        return tuple(math.fsum(parts) for parts in zip(*self.phases.values(), strict=True))


@dataclass(frozen=True)
class Session:
    """What became of the subjects, and what the machine did meanwhile."""

    timed: dict[str, Timed]
    failed: dict[str, Exception]
    contention: Contention | None
    gpu: Watched | None


@dataclass
class _Run:
    """A subject under way."""

    subject: Subject
    calls: int = 1
    """Per block."""
    block_seconds: float = 0.0
    """What a block took at the end of the warm-up."""
    warmup_calls: int = 0
    seconds: float = 0.0
    """Sampled so far."""
    rounds: list[int] = field(default_factory=list)
    samples: list[tuple[float, ...]] = field(default_factory=list)
    """ms per call of each phase."""
    gc_runs: int = 0

    def has(self, plan: Plan) -> bool:
        """Whether it has all that was asked for."""
        return len(self.samples) >= plan.min_samples and self.seconds >= plan.min_seconds


@dataclass(frozen=True)
class _Bench:
    """What all subjects are timed with."""

    stopwatch: Stopwatch
    plan: Plan
    flush: Callable[[], object] | None
    clock: Callable[[], float]

    def block(self, run: _Run, *, refill: bool = False) -> tuple[float, tuple[float, ...]]:
        """Seconds that count as sampled, and ms per phase. refill: let the subject fill the caches first."""
        phases, flushing = tuple(run.subject.phases.values()), 0.0
        with run.subject.settings():
            if self.flush:
                before = self.clock()
                self.flush()
                flushing = self.clock() - before
            elif refill:
                for phase in phases:
                    phase()
            with collections_counted() as collections:
                spent = self.stopwatch.block(phases, run.calls)
            run.gc_runs += len(collections)
        return flushing + math.fsum(spent) / 1e3, spent

    def warm_up(self, run: _Run) -> None:
        """Call until the latest half of the blocks shows no drift; find the calls per block on the way."""
        plan, blocks, seconds = self.plan, [], 0.0
        while seconds < plan.max_warmup_seconds:
            block_seconds, spent = self.block(run)
            ms = math.fsum(spent)
            blocks.append(ms / run.calls)
            run.warmup_calls += run.calls
            seconds += block_seconds
            latest = blocks[-min(max(len(blocks) // 2, LEAST_PLATEAU), MOST_PLATEAU) :]
            enough = seconds >= plan.warmup_seconds and run.warmup_calls >= plan.warmup_calls
            if enough and len(blocks) >= 2 * LEAST_PLATEAU and not drifting(latest):
                break
            if self.flush is None and ms < plan.block_ms:
                run.calls *= 2
        if self.flush:
            run.block_seconds = seconds / len(blocks)
        else:
            plateau = statistics.median(blocks[-LEAST_PLATEAU:])
            run.calls = math.ceil(SLACK * plan.block_ms / plateau) if plateau < plan.block_ms else 1
            run.block_seconds = run.calls * plateau / 1e3
        run.gc_runs = 0

    def sample(self, runs: list[_Run], failed: dict[str, Exception], look: Callable[[], object]) -> None:
        """Rounds until every subject has what was asked for; `look` is called after each."""
        needed = [max(self.plan.min_samples, math.ceil(self.plan.min_seconds / run.block_seconds)) for run in runs]
        # powers of two, so that of any two subjects one takes part in all rounds of the other
        every = {r.subject.name: 2 ** int(math.log2(max(needed) / own)) for r, own in zip(runs, needed, strict=True)}
        order = random.Random(self.plan.seed)  # noqa: S311 - nothing secret
        last, number, since_collection = "", 0, 0.0
        while not all(run.has(self.plan) for run in runs):
            for run in order.sample(runs, len(runs)):
                name = run.subject.name
                if number % every[name] == 0:
                    with _guarded(name, failed):
                        seconds, spent = self.block(run, refill=last != name or run.block_seconds < QUICK_S)
                        run.seconds += seconds
                        since_collection += seconds
                        run.rounds.append(number)
                        run.samples.append(tuple(ms / run.calls for ms in spent))
                    last = name
            runs = [run for run in runs if run.subject.name not in failed]
            number += 1
            if since_collection >= COLLECT_S:
                gc.collect()
                since_collection = 0.0
            look()

    def timed(self, run: _Run) -> Timed:
        """What a subject's samples come to, with the cost of the loop around phases that do nothing."""
        phases = run.subject.phases
        loop = math.fsum(self.stopwatch.block([_nothing] * len(phases), LOOP_CALLS)) / LOOP_CALLS
        columns = zip(*run.samples, strict=True)
        return Timed(
            rounds=tuple(run.rounds),
            phases=dict(zip(phases, columns, strict=True)),
            calls=run.calls,
            loop_ms=loop,
            warmup_calls=run.warmup_calls,
            gc_runs=run.gc_runs,
        )


def measure(
    subjects: Sequence[Subject],
    stopwatch: Stopwatch,
    plan: Plan,
    *,
    flush: Callable[[], object] | None = None,
    threads: int | None = None,
    usage: Callable[[], cpu.Usage] = cpu.snapshot,
    gpu: Watch | None = None,
    clock: Callable[[], float] = time.perf_counter,
    on_phase: Callable[[str], None] = lambda _: None,
) -> Session:
    """Time the subjects, of different names, side by side.

    Each is warmed up to its plateau. Then come rounds: in each, one sample of every subject, in random order, until all
    have the samples and seconds asked for. A sample is a block of calls of at least plan.block_ms. A subject whose
    blocks are longer needs fewer samples, and sits out evenly between the rounds. One untimed call before a sample
    brings back to the caches what others drove out: another subject or, of a block shorter than QUICK_S, what
    goes on between samples. With `flush`, which is called before every sample instead, the caches are empty, and a
    sample is one call. Automatic garbage collection is off in samples and made up for between rounds, every COLLECT_S.

    threads: those that should be busy while sampling; None with an accelerator, for which the CPU waits. gpu: looked at
    between rounds. clock: in s, for the time that flushing takes. on_phase: told what begins. A subject that raises is
    taken out, without samples, and is found in `failed`.
    """
    bench = _Bench(stopwatch, plan, flush, clock)
    runs, failed = [_Run(subject) for subject in subjects], dict[str, Exception]()
    for run in runs:
        on_phase(f"warming up {run.subject.name}")
        with _guarded(run.subject.name, failed):
            bench.warm_up(run)
    ready = [run for run in runs if run.subject.name not in failed]
    if not ready:
        return Session({}, failed, None, None)
    on_phase("sampling")
    with no_automatic_collection():
        before = usage()
        bench.sample(ready, failed, gpu.look if gpu else _nothing)
        after = usage()
    return Session(
        timed={run.subject.name: bench.timed(run) for run in ready if run.subject.name not in failed},
        failed=failed,
        contention=cpu.contention(before, after, threads),
        gpu=gpu.watched() if gpu else None,
    )


def _nothing() -> None:
    """Costs no more than being called."""


@contextmanager
def _guarded(name: str, failed: dict[str, Exception]) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever a model raises is its own result
        traceback.clear_frames(error.__traceback__)  # the tensors in their variables may be what took all memory
        failed[name] = error
