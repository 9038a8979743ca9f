"""Decoding of images: any mode becomes upright RGB, and unreadable files raise `Unreadable`."""

import os
import pickle
import struct
import zlib
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from engine.datasets import Unreadable, images
from tests.support.data import encoded


def save_and_decode(image: Image.Image, kind: str = "PNG", **options: object) -> Image.Image:
    file = BytesIO()
    image.save(file, kind, **options)
    return images.decode(lambda: BytesIO(file.getvalue()), "x")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    white = save_and_decode(Image.new("RGB", (4, 3), "white").convert(mode))
    assert (white.mode, white.size, white.getpixel((0, 0))) == ("RGB", (4, 3), (255, 255, 255))


@pytest.mark.parametrize(("mode", "kind"), [("CMYK", "JPEG"), ("CMYK", "TIFF"), ("YCbCr", "JPEG")])
def test_cmyk_and_ycbcr_become_rgb(mode: str, kind: str) -> None:
    image = Image.new("RGB", (16, 16), (200, 30, 40)).convert(mode)
    red, green, blue = np.asarray(save_and_decode(image, kind))[8, 8].tolist()
    assert abs(red - 200) < 8
    assert abs(green - 30) < 8
    assert abs(blue - 40) < 8


def test_transparency_is_dropped_as_open_clip_does() -> None:
    half = Image.new("RGBA", (2, 2), (10, 20, 30, 0))
    assert save_and_decode(half).getpixel((0, 0)) == half.convert("RGB").getpixel((0, 0)) == (10, 20, 30)
    palette = Image.new("P", (2, 2), 0)
    palette.putpalette([10, 20, 30, 40, 50, 60])
    assert save_and_decode(palette, transparency=b"\0\x80").getpixel((0, 0)) == (10, 20, 30)


def test_16_bit_values_are_scaled_to_8_bits() -> None:
    values = np.array([[0, 257 * 100, 65535]], dtype=np.uint16)
    assert np.asarray(save_and_decode(Image.fromarray(values)))[0, :, 0].tolist() == [0, 100, 255]


def test_values_without_a_known_range_are_scaled_to_their_own() -> None:
    values = np.array([[-1.0, 0.0, 1.0, np.nan]], dtype=np.float32)
    assert np.asarray(save_and_decode(Image.fromarray(values), "TIFF"))[0, :, 0].tolist() == [0, 128, 255, 0]
    assert np.asarray(save_and_decode(Image.fromarray(np.full((1, 2), 7.0, np.float32)), "TIFF")).max() == 0
    whole = np.array([[0, 35_000, 70_000]], dtype=np.int32)
    assert np.asarray(save_and_decode(Image.fromarray(whole), "TIFF"))[0, :, 0].tolist() == [0, 128, 255]


@pytest.mark.parametrize("orientation", range(1, 10))
def test_exif_orientation_is_applied(orientation: int) -> None:
    image = Image.new("L", (2, 1))
    image.putdata([50, 200])
    exif = Image.Exif()
    exif[0x0112] = orientation
    upright = np.asarray(save_and_decode(image, exif=exif))[:, :, 0].tolist()
    wide, turned = [[50, 200]], [[50], [200]]
    by_standard = {1: wide, 2: [[200, 50]], 3: [[200, 50]], 4: wide, 5: turned, 6: turned, 7: [[200], [50]]}
    assert upright == {**by_standard, 8: [[200], [50]], 9: wide}[orientation]


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # Pillow's warning needs no action
def test_image_with_damaged_exif_data_is_read() -> None:
    for kind, order in (("JPEG", b"MM"), ("WEBP", b"GM")):
        exif = b"Exif\0\0" * (kind == "JPEG") + order + b"\0*\0\0\0\x08\xff\xff"
        assert save_and_decode(Image.new("RGB", (2, 2)), kind, exif=exif).size == (2, 2)


def bomb(width: int, height: int) -> bytes:
    """Return a small PNG whose header names this size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = (b"IHDR" + header, b"IDAT" + zlib.compress(bytes(1000)), b"IEND")
    framed = (struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no image of a known format"),
        (b"<html>", "no image of a known format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no image of a known format"),
        (encoded(kind="PPM"), "no image of a known format"),
        (encoded(size=(640, 480), kind="JPEG")[:-200], "truncated"),
        (encoded()[:50], ""),
        (bomb(9_000, 9_000), "9000 x 9000 pixels, at most 80,000,000"),
        (bomb(10_000, 9_000), ""),
        (bomb(100_000, 100_000), ""),
        (bomb(100, 100), ""),
    ],
)
def test_unreadable_contents_raise_unreadable(content: bytes, reason: str) -> None:
    with pytest.raises(Unreadable, match=f"^a.png: .*{reason}") as error:
        images.decode(lambda: BytesIO(content), "a.png")
    assert str(error.value) == f"a.png: {error.value.reason}"


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow warns of parts that it skips
def test_damaged_images_are_read_or_raise_unreadable() -> None:
    rng = np.random.default_rng(0)
    noise = Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8))
    refused = 0
    for kind in images.FORMATS:
        file = BytesIO()
        noise.save(file, kind)
        whole = file.getvalue()
        for _ in range(60):
            changed = bytearray(whole[: rng.integers(1, len(whole))] if rng.random() < 0.3 else whole)
            changed[rng.integers(0, min(len(changed), 80))] ^= 1 << int(rng.integers(8))
            try:
                assert images.decode(partial(BytesIO, bytes(changed)), "x").mode == "RGB"
            except Unreadable:
                refused += 1
    assert refused > 60


def test_missing_and_special_files_raise_unreadable(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "circle", "folder", "absent", "a\0b", "x" * 5000):
        with pytest.raises(Unreadable, match="there is no such file"):
            images.read(tmp_path / name)


def test_unreadable_errors_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(images.unreadable("a.png", "broken")))
    assert (str(error), error.reason) == ("a.png: broken", "broken")
    assert str(Unreadable("made of a message alone")) == "made of a message alone"
