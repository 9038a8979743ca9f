"""Texts stored among arrays: compact, read back exactly, and also read from older files."""

from pathlib import Path

import numpy as np
import pytest

from engine.results.embeddings import pack_texts, unpack_texts

TEXTS = ("a cat", "", "naïve 猫 \0\n", "\udc80.png", "x" * 100_000)


def test_texts_are_read_back_and_a_long_one_does_not_enlarge_the_file(tmp_path: Path) -> None:
    many = [*TEXTS, *(f"{place}.png" for place in range(10_000))]
    np.savez(tmp_path / "texts.npz", texts=pack_texts(many), none=pack_texts([]))
    with np.load(tmp_path / "texts.npz", allow_pickle=False) as stored:
        assert unpack_texts(stored["texts"]) == tuple(many)
        assert unpack_texts(stored["none"]) == ()
    assert (tmp_path / "texts.npz").stat().st_size < 1_000_000, "fixed width would be 4 GB"


def test_fixed_width_texts_of_older_files_are_read() -> None:
    assert unpack_texts(np.array(["a", "long one"])) == ("a", "long one")


@pytest.mark.parametrize(
    "array",
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
def test_other_arrays_are_refused(array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> None:
    with pytest.raises(ValueError, match="a JSON list in"):
        unpack_texts(array)
