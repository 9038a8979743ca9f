"""Files that belong together by name: an image, and beside it its captions (.txt, .json) and its class (.cls), or its
classes (.npy).

They are in a folder or, as in webdataset, in an uncompressed tar, where each file is a range of the tar's bytes.
"""

import json
import os
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from pathlib import Path
from tokenize import TokenError
from typing import BinaryIO, NamedTuple

import numpy as np
from PIL import Image

from engine.archives import whole
from engine.datasets import images
from engine.datasets.base import DataProblem, distinct, reading, shown_name
from engine.roots import Entry, Roots, files_within, open_within, scan_within

IMAGES = tuple(suffix.removeprefix(".") for suffix in images.SUFFIXES)
TEXTS = ("txt", "json", "cls")
LARGEST_TEXT = 1_000_000
"""Maximum bytes of a file beside an image. A larger one was not meant as its caption or class."""
CAPTION_KEYS = ("caption", "captions", "text", "title")
"""Keys of a .json that may hold captions: a string or a list of strings."""
WEBDATASET_KEY = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)")
"""In a tar, the key ends at the first dot of the file's name, and the rest is the type."""
FILE_KEY = re.compile(r"((?:.*/)?[^./][^/]*)\.([^./]+)")
"""In a folder, the key ends at the last dot."""
HIDDEN = re.compile(r"(?:^|/)(?:\.|__MACOSX)")


class Member(NamedTuple):
    """A file, or a file inside a tar. offset, size: its bytes in `path`."""

    name: str
    path: str
    offset: int
    size: int
    origin: str = ""
    """The packed file that was unpacked to `path`; empty if `path` is the original."""

    @property
    def source(self) -> str:
        """Return the path of the original, with the name of the file inside it."""
        file = self.origin or self.path
        return file if self.path.endswith(self.name) else f"{file}/{self.name}"

    def image(self, roots: Roots) -> Image.Image:
        """Return the image in RGB. Errors: Unreadable."""
        return images.decode(lambda: BytesIO(self.read(roots)), shown_name(self.source))

    def read(self, roots: Roots = None) -> bytes:
        """Return the content. Errors: OSError, also if the file has become shorter."""
        with open_within(Path(self.path), roots) as file:
            return self.read_from(file)

    def read_from(self, file: BinaryIO) -> bytes:
        """Return the content from the open file at `path`. Errors: those of `read`."""
        file.seek(self.offset)
        content = file.read(self.size)
        if len(content) != self.size:
            raise OSError(f"{self.path} has been cut short since it was opened")
        return content


class Sample(NamedTuple):
    """An image with its captions and label."""

    image: Member
    captions: tuple[str, ...]
    label: int | None
    labels: tuple[int, ...] | None = None
    """The image's classes; None if an image has one class."""


def in_tar(packed: Path, plain: Path, roots: Roots = None) -> tuple[list[Member], bool]:
    """Return the files in a tar, and whether it ends with a block of zeros, unlike one cut short between two files.

    plain: the file itself or, if it is packed, its plain copy. Errors: DataProblem if it is damaged.
    """
    origin = str(packed) if packed != plain else ""
    try:
        with reading(packed), open_within(plain, roots) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            members = [
                Member(info.name, str(plain), info.offset_data, info.size, origin)
                for info in whole(archive)
                if info.isreg() and not info.issparse()
            ]
            file.seek(-tarfile.BLOCKSIZE, os.SEEK_END)
            return members, not file.read().strip(b"\0")
    except tarfile.TarError as error:
        raise DataProblem(f"{packed} is no {'' if origin else 'uncompressed '}tar, or is damaged: {error}") from error


def in_folder(folder: Path, roots: Roots = None) -> list[Member]:
    """Return all visible files below a folder, sorted by name. Errors: DataProblem."""
    start = len(str(folder / "-")) - 1  # of names in paths; relative_to takes 10 µs
    with reading(folder):
        found = ((entry.folder + entry.name, entry.status.st_size) for entry in files_within(folder, roots))
        return sorted(Member(path[start:], path, 0, size) for path, size in found if visible(path[start:]))


def entries_in(folder: Path, roots: Roots = None) -> list[Entry]:
    """Return the visible files and folders directly in a folder, sorted by name. Errors: DataProblem."""
    with reading(folder):
        return sorted(entry for entry in scan_within(folder, roots) if visible(entry.name))


def visible(name: str) -> bool:
    """Return whether a file is visible: hidden files and files added by macOS are not."""
    return not HIDDEN.search(name)


def dotted_images(members: Iterable[Member]) -> list[str]:
    """Return the images in a tar that are left out because their name has a dot: the type of `1.v2.png` is `v2.png`.

    An image beside one of a known type, such as `1.mask.png` beside `1.png`, is not meant to be a pair.
    """
    without_image = (parts for parts in _groups(members, WEBDATASET_KEY) if not parts.keys() & set(IMAGES))
    return [part.name for parts in without_image for type, part in parts.items() if type.endswith(images.SUFFIXES)]


def samples(
    members: Iterable[Member], key: re.Pattern[str], read: Callable[[Member], bytes]
) -> Iterator[Sample | None]:
    """Yield each image with the files of the same key directly beside it; None for an image without caption and class.

    read: returns the content of a member. Errors: those of `read`; ValueError for a damaged .json, .cls or .npy.
    """
    for parts in _groups(members, key):
        image = next((parts[suffix] for suffix in IMAGES if suffix in parts), None)
        if image is None:
            continue
        contents = {suffix: _read(parts[suffix], read) for suffix in TEXTS if suffix in parts}
        texts = {suffix: content.decode("utf-8-sig", errors="replace") for suffix, content in contents.items()}
        captions = distinct(texts.get("txt", "").splitlines()) or _captions_in_json(texts.get("json", "{}"), image.name)
        label = _class_number(texts["cls"], image.name) if "cls" in texts else None
        several = _class_numbers(_read(parts["npy"], read), image.name) if "npy" in parts else None
        known = captions or label is not None or several is not None
        yield Sample(image, captions, label, several) if known else None


def _groups(members: Iterable[Member], key: re.Pattern[str]) -> Iterator[dict[str, Member]]:
    current = ""
    parts: dict[str, Member] = {}
    for member in members:
        if not (match := key.fullmatch(member.name)):
            continue
        suffix = match[2].lower()
        if match[1] != current or suffix in parts:
            yield parts
            current, parts = match[1], {}
        parts[suffix] = member
    yield parts


def _read(member: Member, read: Callable[[Member], bytes]) -> bytes:
    if member.size > LARGEST_TEXT:
        raise ValueError(
            f"{member.name} has {member.size:,} bytes, more than {LARGEST_TEXT:,}: it holds no caption or class"
        )
    return read(member)


def _captions_in_json(text: str, name: str) -> tuple[str, ...]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the .json beside {name} is damaged: {error}") from error
    values = next((content[key] for key in CAPTION_KEYS if content.get(key)), ()) if isinstance(content, dict) else ()
    captions = [values] if isinstance(values, str) else values if isinstance(values, list) else []
    return distinct(text for text in captions if isinstance(text, str))


def _class_numbers(content: bytes, name: str) -> tuple[int, ...]:
    """Return the classes of an image: the indices of the ones in a 0/1 vector, as in CLIP_benchmark."""
    try:
        values = np.lib.format.read_array(BytesIO(content), allow_pickle=False)
    except (ValueError, TokenError, MemoryError) as error:  # the last two for a damaged header
        raise ValueError(f"the .npy beside {name} is damaged: {error}") from error
    if values.dtype.kind not in "biuf" or values.ndim != 1 or not np.isin(values, (0, 1)).all():
        raise ValueError(f"the .npy beside {name} is not a vector with a 0 or 1 for each class")
    return tuple(np.flatnonzero(values).tolist())


def _class_number(text: str, name: str) -> int:
    if not re.fullmatch(r"\d{1,6}", text.strip()):
        raise ValueError(f"the .cls beside {name} holds {text[:40]!r}, which is not the number of a class")
    return int(text)
