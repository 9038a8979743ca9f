"""Stopwatches: how long a block of calls takes on a device, each with the device synchronised before it is read."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch

from engine.specs.base import numbered

Phase = Callable[[], object]


class Stopwatch(Protocol):
    """Times blocks of calls on one kind of device."""

    def block(self, phases: Sequence[Phase], calls: int) -> tuple[float, ...]:
        """ms each phase took in all `calls` calls together; a call runs all phases in turn.

        The device is synchronised before every reading of the clock. One phase alone is read twice per block, several
        once per phase and call.
        """


@dataclass(frozen=True)
class HostStopwatch:
    """Reads the host's clock."""

    synchronize: Callable[[], object]
    clock: Callable[[], float] = time.perf_counter
    """In s."""

    def block(self, phases: Sequence[Phase], calls: int) -> tuple[float, ...]:
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


class Event(Protocol):
    """What is used of torch.cuda.Event."""

    def record(self) -> None: ...
    def elapsed_time(self, end_event: Any) -> float: ...


@dataclass(frozen=True)
class EventStopwatch:
    """Lets the device note the time, between the phases on its own queue; reads the notes once all work is done."""

    synchronize: Callable[[], object]
    event: Callable[[], Event]

    def block(self, phases: Sequence[Phase], calls: int) -> tuple[float, ...]:
        # one phase alone needs no notes between its calls
        repeated, calls = (phases, calls) if len(phases) > 1 else ([_repeated(phases[0], calls)], 1)
        notes = [self.event() for _ in range(calls * len(phases) + 1)]
        self.synchronize()
        notes[0].record()
        following = iter(notes[1:])
        for _ in range(calls):
            for phase in repeated:
                phase()
                next(following).record()
        self.synchronize()
        spans = [start.elapsed_time(end) for start, end in pairwise(notes)]
        return tuple(math.fsum(spans[index :: len(phases)]) for index in range(len(phases)))


def _repeated(phase: Phase, calls: int) -> Phase:
    def repeat() -> None:
        for _ in range(calls):
            phase()

    return repeat


def stopwatch(device: str) -> Stopwatch:
    """What times on this device: its own events on CUDA, the host's clock elsewhere, after the device is done."""
    target = torch.device(device)
    if target.type == "cpu":
        return HostStopwatch(lambda: None)
    if target.type == "cuda":
        torch.cuda.set_device(numbered(device))  # events are recorded on the current device's stream

        def event() -> Event:
            return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

        return EventStopwatch(lambda: torch.cuda.synchronize(target), event)
    return HostStopwatch(lambda: torch.accelerator.synchronize(target))


def first_call(stopwatch: Stopwatch, phases: Sequence[Phase]) -> float:
    """ms of one call as it comes, with all that only a first call does."""
    return math.fsum(stopwatch.block(phases, 1))
