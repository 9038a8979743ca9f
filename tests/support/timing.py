"""A simulated clock, and a simulated device that works asynchronously while the host continues."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.measure.plan import Plan, Session, Subject
from engine.measure.stopwatch import EventStopwatch, Stopwatch
from engine.measure.timing import measure

PLAN = Plan()


@dataclass
class Clock:
    """A clock that advances by the simulated work, and by `reading_s` at each reading."""

    now: float = 0.0
    reading_s: float = 0.0
    readings: int = 0

    def __call__(self) -> float:
        self.now += self.reading_s
        self.readings += 1
        return self.now

    def work(self, seconds: float) -> Callable[[], None]:
        def run() -> None:
            self.now += seconds

        return run


def run(clock: Clock, subjects: Sequence[Subject], plan: Plan = PLAN, **more: object) -> Session:
    return measure(subjects, Stopwatch(lambda: None, clock), plan, clock=clock, **more)  # type: ignore[arg-type]


def subject(name: str, phase: Callable[[], object], **more: object) -> Subject:
    return Subject(name, {"forward": phase}, **more)  # type: ignore[arg-type]


@dataclass
class Device:
    """A device that does queued work in order while the host launches more. Both start at 0 s."""

    launch_s: float = 0.0
    """Seconds of the host per launch."""
    host: float = 0.0
    done: float = 0.0
    """Time in s at which all work queued so far is done."""

    def launch(self, seconds: float) -> Callable[[], None]:
        def call() -> None:
            self.host += self.launch_s
            self.done = max(self.done, self.host) + seconds

        return call

    def synchronize(self) -> None:
        self.host = max(self.host, self.done)

    def clock(self) -> float:
        assert self.done <= self.host, "the clock is read while the device is at work"
        return self.host

    def event(self) -> "DeviceEvent":
        return DeviceEvent(self)

    def stopwatch(self) -> EventStopwatch:
        return EventStopwatch(self.synchronize, self.clock, self.event)


@dataclass
class DeviceEvent:
    """An event in the queue. It records the time at which the work queued before it is done."""

    device: Device
    at: float = -1.0

    def record(self) -> None:
        self.at = max(self.device.done, self.device.host)

    def elapsed_time(self, end_event: "DeviceEvent") -> float:
        assert end_event.at <= self.device.host, "the events are read before the device is done"
        return (end_event.at - self.at) * 1e3
