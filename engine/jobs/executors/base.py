"""What starts attempts, here or elsewhere. Everything about an attempt is found by its run and number alone, so that a
new scheduler knows what an old one has started.
"""

from typing import Protocol

from engine.settings import Settings
from engine.store import Attempt, Exit


class Executor(Protocol):
    """Implemented by the modules of this package, each as `Executor(settings)`."""

    def __init__(self, settings: Settings) -> None: ...

    def start(self, attempt: Attempt) -> None:
        """Begin; returns at once."""

    def alive(self, attempt: Attempt) -> bool:
        """Return whether a process has it, or is about to."""

    def exit(self, attempt: Attempt) -> Exit | None:
        """Return how it ended, once it has and all its processes are gone."""

    def stop(self, attempt: Attempt, *, force: bool) -> None:
        """Ask it to end; with force: end it."""

    def tend(self) -> None:
        """Called now and then: keep up what starts attempts."""

    def close(self) -> None:
        """Leave; what was started goes on."""
