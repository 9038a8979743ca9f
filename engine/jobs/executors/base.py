"""The interface of executors, which start attempts on this host or elsewhere.

An executor finds everything about an attempt by its run and number alone, so a new scheduler can take over the attempts
that an old one started.
"""

from typing import Protocol

from engine.settings import Settings
from engine.store import Attempt, Exit


class Executor(Protocol):
    """The protocol that each module of this package implements as `Executor(settings)`."""

    def __init__(self, settings: Settings) -> None: ...

    def start(self, attempt: Attempt) -> None:
        """Start the attempt and return at once."""

    def alive(self, attempt: Attempt) -> bool:
        """Return whether a process runs the attempt or is about to."""

    def exit(self, attempt: Attempt) -> Exit | None:
        """Return how the attempt ended, once all its processes have ended; None before."""

    def stop(self, attempt: Attempt, *, force: bool) -> None:
        """Ask the attempt to end; with force, kill it."""

    def tend(self) -> None:
        """Keep the processes that start attempts running. The scheduler calls this at every turn."""

    def close(self) -> None:
        """Release the executor's own resources; started attempts keep running."""
