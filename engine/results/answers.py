"""Answers to `engine/specs/questions.py`."""

from engine.specs.base import Closed


class Hit(Closed):
    """One image found by a text search."""

    index: int
    """Index among the evaluated images."""
    source: str
    label: str
    """Class name; empty without classes."""
    similarity: float
    """Cosine similarity of image and text, from -1 to 1."""


class Hits(Closed):
    """The images nearest to a text, nearest first; ties keep their order."""

    hits: tuple[Hit, ...]
    images: int
    """Number of images searched."""


class MatchedText(Closed):
    """One text beside an image."""

    text: str
    similarity: float
    """Cosine similarity of image and text, from -1 to 1."""
    probability: float
    """Share of the softmax over all texts; for a sigmoid model (SigLIP) the probability that the text fits."""


class Matches(Closed):
    """How well texts fit an image, the best first."""

    texts: tuple[MatchedText, ...]


class Augmented(Closed):
    """Augmented versions of some images, one version per epoch. The versions of one image follow each other."""

    images: tuple[str, ...]
    """PNG files in base64."""


class Exported(Closed):
    """A model that was written for open_clip."""

    folder: str
    files: dict[str, int]
    """Bytes of each file, by name."""


class Needed(Closed):
    """A file that a run needs besides its data."""

    what: str
    """Name of the file, such as `weights openai of ViT-B-32` or `the tokenizer of roberta-base`."""
    path: str = ""
    """Path of the file on this host; empty if it must be downloaded."""
    address: str = ""
    """Address to download it from."""
    mb: float | None = None
    """Size of the download in MB; None if the hub does not report it."""


class Prospect(Closed):
    """The files and the memory that a training or an evaluation needs."""

    needed: tuple[Needed, ...] = ()
    problems: tuple[str, ...] = ()
    """Reasons why the run cannot work: an unknown tag, a hub out of reach, a checkpoint that does not fit, ..."""
    cache: str
    """Folder for downloaded files."""
    free_mb: float
    """Free MB on the disk of that folder."""
    peak_mb: float | None = None
    """Estimated peak memory of one process in MB; None if the estimate failed."""
    unused_mb: float | None = None
    """Available memory of the host in MB; None for an accelerator, where the query itself would take memory."""
    state_mb: float | None = None
    """The constant part of peak_mb: weights; in a training also gradients, the optimizer's moments and a teacher."""
