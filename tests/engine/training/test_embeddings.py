"""Texts among arrays: as small as they are, read back exactly, and in older files too."""

from pathlib import Path

import numpy as np
import pytest

from engine.results.embeddings import pack_texts, unpack_texts

TEXTS = ("a cat", "", "naïve 猫 \0\n", "\udc80.png", "x" * 100_000)


def test_texts_come_back_and_one_long_one_makes_no_other_longer(tmp_path: Path) -> None:
    many = [*TEXTS, *(f"{place}.png" for place in range(10_000))]
    np.savez(tmp_path / "texts.npz", texts=pack_texts(many), none=pack_texts([]))
    with np.load(tmp_path / "texts.npz", allow_pickle=False) as held:
        assert unpack_texts(held["texts"]) == tuple(many)
        assert unpack_texts(held["none"]) == ()
    assert (tmp_path / "texts.npz").stat().st_size < 1_000_000, "fixed width would be 4 GB"


def test_the_fixed_width_text_of_older_files_is_read() -> None:
    assert unpack_texts(np.array(["a", "long one"])) == ("a", "long one")


@pytest.mark.parametrize(
    "held",
    [
        np.frombuffer(b'["a"', np.uint8),
        np.frombuffer(b"\xff", np.uint8),
        np.frombuffer(b'{"a": 1}', np.uint8),
        np.frombuffer(b"[1]", np.uint8),
        np.zeros(3),
        np.array([["a"]]),
        np.array([]),
    ],
)
def test_anything_else_holds_no_texts(held: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> None:
    with pytest.raises(ValueError, match="a JSON list in"):
        unpack_texts(held)
