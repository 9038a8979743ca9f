"""The interface of all sets of pairs: images with captions, in a fixed order."""

from typing import Protocol

from PIL import Image

from engine.specs import Refused


class DataProblem(Refused):
    """Data that cannot be used. The message names what was given and what would be right."""


class Unreadable(ValueError):
    """One image that cannot be read. The message names it and the reason, which is kept beside it."""

    # Can be made of the message alone, which is how torch's DataLoader raises it again in another process.
    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message


class Pairs(Protocol):
    """Images with captions, counted from 0. Can be pickled, and read in several processes at once."""

    @property
    def name(self) -> str:
        """A word for it, such as `digits`."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes that `label` indexes; empty if there are none."""

    @property
    def templates(self) -> tuple[str, ...]:
        """Prompts with `{}` for the class; empty where there are none of its own."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on what was done with the data beyond the request, such as leaving some out."""

    def __len__(self) -> int: ...

    def image(self, index: int) -> Image.Image:
        """In RGB. Errors: Unreadable."""

    def captions(self, index: int) -> tuple[str, ...]:
        """Return one or more captions of a pair."""

    def label(self, index: int) -> int | None: ...

    def source(self, index: int) -> str:
        """Its file, or what names it else, such as `digits:17`."""
