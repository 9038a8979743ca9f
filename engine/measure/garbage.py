"""Keeping Python's garbage collector out of samples, and seeing it where it is not kept out."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_automatic_collection() -> Iterator[None]:
    """Collect only when told. What is alive now is left out of collections inside, so that they are quick."""
    was_on = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()


@contextmanager
def collections_counted() -> Iterator[list[int]]:
    """Yield a list that gets the generation of every garbage collection inside."""
    seen: list[int] = []

    def note(phase: str, details: dict[str, int]) -> None:
        if phase == "start":
            seen.append(details["generation"])

    gc.callbacks.append(note)
    try:
        yield seen
    finally:
        gc.callbacks.remove(note)
