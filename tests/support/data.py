"""Write small data sets for tests, with real images made by Pillow."""

import tarfile
from io import BytesIO
from pathlib import Path

from PIL import Image

Colour = tuple[int, int, int]


def encoded(colour: Colour = (255, 0, 0), size: tuple[int, int] = (8, 6), kind: str = "PNG") -> bytes:
    """Return the bytes of an image file of one colour."""
    file = BytesIO()
    Image.new("RGB", size, colour).save(file, kind)
    return file.getvalue()


def write_image(path: Path, colour: Colour = (255, 0, 0), size: tuple[int, int] = (8, 6)) -> Path:
    """Write a PNG image of one colour, and return its path. The file name may have any ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(colour, size))
    return path


def write_classes(folder: Path, counts: dict[str, int]) -> Path:
    """Write a folder per class, with images of different colours, and return `folder`. counts: images by class."""
    for number, (name, count) in enumerate(counts.items()):
        for index in range(count):
            write_image(folder / name / f"{index:03}.png", (number * 20, index, 0))
    return folder


def write_tar(path: Path, files: dict[str, bytes], mode: str = "w") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, BytesIO(content))
    return path
