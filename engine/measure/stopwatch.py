"""Measure how long calls take on a device. A stopwatch synchronises the device before it reads a clock."""

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from engine.measure import environment
from engine.specs.base import numbered

Phase = Callable[[], object]


@dataclass(frozen=True)
class Stopwatch:
    """Time blocks of calls with the host's clock. It is read only after the device is synchronised."""

    synchronize: Callable[[], object]
    clock: Callable[[], float] = time.perf_counter
    """Returns the time in s."""

    def block(self, phases: Sequence[Phase], calls: int) -> tuple[float, ...]:
        """Return the ms each phase took in all `calls` calls together. A call runs all phases in order.

        This is latency, as one request sees it: the device is idle when a phase begins, and the results are ready when
        it ends. With one phase the clock is read twice per block, with several once per phase and call.
        """
        if len(phases) == 1:
            return (self._single(phases[0], calls),)
        spent = [0.0] * len(phases)
        self.synchronize()
        before = self.clock()
        for _ in range(calls):
            for index, phase in enumerate(phases):
                phase()
                self.synchronize()
                now = self.clock()
                spent[index] += now - before
                before = now
        return tuple(seconds * 1e3 for seconds in spent)

    def _single(self, phase: Phase, calls: int) -> float:
        self.synchronize()
        before = self.clock()
        for _ in range(calls):
            phase()
            self.synchronize()
        return (self.clock() - before) * 1e3

    def queued(self, call: Phase, calls: int) -> float:
        """Return the ms that `calls` calls took back to back, each queued behind the previous one.

        The device is synchronised after the last call, not between calls. Work queued earlier is not counted.
        """
        self.synchronize()
        before = self.clock()
        for _ in range(calls):
            call()
        self.synchronize()
        return (self.clock() - before) * 1e3


@dataclass(frozen=True)
class EventStopwatch(Stopwatch):
    """Time queued calls with events on the device's own queue. Latency is measured with the host's clock."""

    event: Callable[[], Any] = lambda: torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def queued(self, call: Phase, calls: int) -> float:
        # no synchronisation before `begin`: the host launches the first calls while the device still works on others
        begin, end = self.event(), self.event()
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        self.synchronize()
        return float(begin.elapsed_time(end))


def stopwatch_for(device: str) -> Stopwatch:
    """Return the stopwatch for a device: the host's clock and, for queued calls on CUDA, the device's own events."""
    target = torch.device(device)
    if target.type == "cpu":
        return Stopwatch(lambda: None)
    if target.type == "cuda":
        torch.cuda.set_device(numbered(device))  # events are recorded on the current device's stream
        return EventStopwatch(lambda: torch.cuda.synchronize(target))
    return Stopwatch(lambda: torch.accelerator.synchronize(target))


def first_call_ms(stopwatch: Stopwatch, phases: Sequence[Phase]) -> float:
    """Return the ms of one call without a warm-up, which includes all one-time work."""
    return math.fsum(stopwatch.block(phases, 1))


UNKNOWN_BYTES = 256 * 2**20
"""Bytes to write when the size of a device's cache is unknown. triton's benchmark uses the same size."""


def flusher(device: str) -> Callable[[], object]:
    """Return a function that writes twice the last-level cache's size (of a GPU: its L2) and waits for the device."""
    target = torch.device(device)
    size = 2 * environment.last_level_cache(device) or UNKNOWN_BYTES
    buffer = torch.empty(size, dtype=torch.uint8, device=target)

    def flush() -> None:
        buffer.zero_()
        if target.type != "cpu":
            torch.accelerator.synchronize(target)

    return flush


@contextmanager
def no_automatic_collection() -> Iterator[None]:
    """Turn off automatic garbage collection. Objects alive on entry are frozen, so that collections are quick.

    If the caller has frozen objects, all stay frozen, because Python can only unfreeze all of them.
    """
    was_on, had_frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        if not had_frozen:
            gc.unfreeze()
        if was_on:
            gc.enable()


@contextmanager
def collections_counted() -> Iterator[list[int]]:
    """Yield a list that collects the generation of every garbage collection inside the block."""
    seen: list[int] = []

    def note(phase: str, details: dict[str, int]) -> None:
        if phase == "start":
            seen.append(details["generation"])

    gc.callbacks.append(note)
    try:
        yield seen
    finally:
        gc.callbacks.remove(note)
