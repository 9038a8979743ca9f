"""Answers to `engine/specs/questions.py`."""

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """The answer to a question."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Hit(Answer):
    """An image near a text."""

    index: int
    """Among the images that were evaluated."""
    source: str
    label: str
    """Its class; empty where there is none."""
    similarity: float
    """Cosine between image and text, from -1 to 1."""


class Hits(Answer):
    """The images nearest to a text, the nearest first; equally near ones in their order."""

    hits: tuple[Hit, ...]
    images: int
    """How many were searched."""


class Needed(Answer):
    """A file that a run needs beside its data."""

    what: str
    """`weights openai of ViT-B-32`, `the tokenizer of roberta-base`."""
    path: str = ""
    """Where it lies; else it is to be fetched."""
    address: str = ""
    """From here."""
    mb: float | None = None
    """To be fetched, where the hub says."""


class Prospect(Answer):
    """Files and memory that a training or an evaluation needs."""

    needed: tuple[Needed, ...] = ()
    problems: tuple[str, ...] = ()
    """What cannot work: an unknown tag, a hub out of reach, a checkpoint that does not fit, ..."""
    cache: str
    """The folder that files are fetched into."""
    free_mb: float
    """On its disk."""
    peak_mb: float | None = None
    """Memory of a process at the most, estimated; None where that failed."""
    unused_mb: float | None = None
    """Memory of the host that could be had now; None for an accelerator, where looking would itself take some."""
    state_mb: float | None = None
    """What of it is there throughout: weights, and in a training gradients and the optimizer's moments."""
