"""Errors of data and names of files, for all modules of data."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from engine.specs import Refused


class DataProblem(Refused):
    """The data cannot be used. The message names what was given and what would be right."""


class Unreadable(ValueError):
    """One image cannot be read. The message names it and the reason; `reason` holds the reason alone."""

    # The message alone must be enough: torch's DataLoader raises the error again in another process.
    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message


@contextmanager
def reading(place: object) -> Iterator[None]:
    """Turn the system's errors into DataProblem. place: the file or folder that is read, for the message."""
    try:
        yield
    except OSError as error:
        raise DataProblem(f"{place} cannot be read: {error.strerror or error}") from error


def distinct(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct texts in their order, without white space around them. Empty ones are left out.

    Half of an emoji, as in a .json whose texts were cut, becomes a question mark: it cannot be stored or shown.
    """
    whole = (text.strip().encode(errors="replace").decode() for text in texts)
    return tuple(dict.fromkeys(text for text in whole if text))


def shown_name(name: str) -> str:
    """Return a file's name with each byte that is not UTF-8 as text, such as `\\xe9`, because it cannot be stored."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def file_of_package(package: str, path: str) -> Path:
    """Return a file of a package in requirements.txt. The package is not imported: most would import torch."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / path


def file_identifier() -> Callable[[str], str]:
    """Return a function that returns the same text for every spelling of a file's path.

    Links are followed only in folders, and once per folder, because a data set may have millions of files.
    """
    real_folder = cache(os.path.realpath)

    def identify(path: str) -> str:
        folder, name = os.path.split(path)
        return path if "\0" in folder else f"{real_folder(folder)}/{name}"

    return identify
