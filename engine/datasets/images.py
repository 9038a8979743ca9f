"""Open images with Pillow. All modes are converted to RGB, and all errors become Unreadable."""

import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from engine.datasets.base import Unreadable
from engine.roots import Roots, open_within

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
"""Decoders that may open a file. Pillow has fifty, one of which starts Ghostscript."""
MOST_PIXELS = 80_000_000
"""Maximum pixels of an image. Larger files are decompression bombs or need other programs; Pillow warns above 89
million."""
BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    ArithmeticError,
    LookupError,
    TypeError,
    EOFError,
    NotImplementedError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)
"""Errors that Pillow raises for damaged files and decompression bombs."""


def read(path: Path, roots: Roots = None) -> Image.Image:
    """Return the image in a file, upright and in RGB. Errors: Unreadable."""
    return decode(lambda: open_within(path, roots), str(path))


def decode(open_file: Callable[[], IO[bytes]], source: str) -> Image.Image:
    """Return the image in a file, upright and in RGB. Transparency is dropped, as in open_clip.

    source: name of the image for messages. Errors: Unreadable.
    """
    with _open_image(open_file, source) as image:
        image.load()
        with suppress(*BROKEN):  # an image with damaged EXIF data can still be used
            ImageOps.exif_transpose(image, in_place=True)
        return _in_rgb(image)


def check(content: bytes, source: str) -> None:
    """Check by its header alone that this is an image of a known format and an allowed size. Errors: Unreadable."""
    with _open_image(lambda: BytesIO(content), source):
        pass


def unreadable(source: str, reason: str) -> Unreadable:
    return Unreadable(f"{source}: {reason}", reason)


@contextmanager
def _open_image(open_file: Callable[[], IO[bytes]], source: str) -> Iterator[Image.Image]:
    """Open an image by its header. Errors: Unreadable, also for errors of using it."""
    try:
        with open_file() as file, Image.open(file, formats=FORMATS) as image:
            width, height = image.size
            if width * height > MOST_PIXELS:
                raise unreadable(source, f"it has {width} x {height} pixels, at most {MOST_PIXELS:,} are opened")
            yield image
    except Unreadable:
        raise
    except UnidentifiedImageError as error:
        raise unreadable(source, f"it is no image of a known format ({', '.join(FORMATS)})") from error
    except BROKEN as error:
        raise unreadable(source, getattr(error, "strerror", "") or str(error) or type(error).__name__) from error


def _in_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        # Pillow's own conversion clips values above 255, which makes most of such an image white.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        image = Image.fromarray(_spread(np.asarray(image, dtype=np.float64)))
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow warns of a direct conversion
    return image if image.mode == "RGB" else image.convert("RGB")


def _spread(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return the values scaled from black (the smallest) to white (the largest), because their range is unknown."""
    low, high = np.nanmin(values), np.nanmax(values)
    if not np.isfinite(high - low):
        raise ValueError("it holds infinite values")
    shares = (values - low) / (high - low) if high > low else np.zeros_like(values)
    return np.asarray(np.nan_to_num(shares) * 255).round().astype(np.uint8)
