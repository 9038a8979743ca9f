"""Reading of webdataset shards by the rules of the webdataset package."""

import gzip
import json
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from engine.datasets import DataProblem, Pairs, Unreadable, open_pairs, summarise
from engine.datasets.formats.shards import expand
from tests.support.data import encoded, write_tar


def sample(key: str, number: int, **texts: str) -> dict[str, bytes]:
    """Return the files of a sample. number: the red value of its image."""
    return {f"{key}.jpg": encoded((number, 0, 0), kind="PNG")} | {
        f"{key}.{ending}": text.encode() for ending, text in texts.items()
    }


def write_shard(path: Path, *samples: dict[str, bytes]) -> Path:
    return write_tar(path, {name: content for item in samples for name, content in item.items()})


def reds(pairs: Pairs) -> list[int]:
    return [pairs.image(index).getpixel((0, 0))[0] for index in range(len(pairs))]  # type: ignore[index]


def test_shards_named_with_braces_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(12):
        files = [sample(f"{number:02}{i}", 10 * number + i, txt=f"caption {number} {i}") for i in range(2)]
        write_shard(tmp_path / f"cc-{number:02}.tar", *files)
    pairs = open_pairs(f"{tmp_path}/cc-{{00..11}}.tar")
    assert len(pairs) == 24
    assert pairs.name == "cc"
    assert pairs.captions(23) == ("caption 11 1",)
    assert reds(pairs) == [10 * number + i for number in range(12) for i in range(2)]
    assert pairs.source(0) == f"{tmp_path}/cc-00.tar/000.jpg"
    assert len(open_pairs(str(tmp_path))) == 24, "a folder opens all its shards"
    assert len(open_pairs(f"{tmp_path}/cc-{{03,05}}.tar")) == 4
    with pytest.raises(DataProblem, match=r"2 of 4 shards missing: .*cc-12.tar, .*cc-13.tar"):
        open_pairs(f"{tmp_path}/cc-{{10..13}}.tar")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cc-00.tar").rename("0.tar")
    assert open_pairs("{0..0}.tar").name == tmp_path.name, "the name of the folder"


def test_files_are_grouped_by_key_as_in_webdataset(tmp_path: Path) -> None:
    """webdataset's rule: a key ends at the first dot, and a file whose name begins with a dot is skipped."""
    path = write_shard(
        tmp_path / "x.tar",
        sample("./a/000", 1, txt="one"),
        sample("a.b/001", 2, json="{}", txt="two"),
        {"a/002.PNG": encoded((3, 0, 0)), "a/002.Txt": b"three"},
        {"a/003.seg.png": encoded(), "a/003.jpeg": encoded((4, 0, 0)), "a/003.txt": b"four"},
        {"a/._004.jpg": b"junk", "a/._004.txt": b"junk"},
        {"a/" + "long" * 40 + ".webp": encoded((5, 0, 0)), "a/" + "long" * 40 + ".txt": "fünf".encode()},
        {"a/006.png": encoded((6, 0, 0)), "a/006.txt": b"six", "a/006.PNG": encoded((7, 0, 0)), "a/006.TXT": b"seven"},
    )
    sparse = tarfile.TarInfo("a/008.png")
    sparse.type = tarfile.GNUTYPE_SPARSE
    with tarfile.open(path, "a") as archive:
        archive.addfile(sparse)  # its bytes in the tar are not those of the file
    pairs = open_pairs(str(path))
    assert reds(pairs) == [1, 2, 3, 4, 5, 6, 7]
    names = ["one", "two", "three", "four", "fünf", "six", "seven"]
    assert [pairs.captions(index)[0] for index in range(7)] == names
    assert pairs.notes == ()


def test_images_with_a_dot_in_their_name_are_left_out_with_a_note(tmp_path: Path) -> None:
    """webdataset reads `000.v2.png` as a file of the type `v2.png` of the sample `000`."""
    dotted = {"000.v2.png": encoded(), "000.v2.txt": b"one"}
    path = write_shard(tmp_path / "x.tar", dotted, sample("001", 2, txt="two"))
    pairs = open_pairs(str(path))
    assert reds(pairs) == [2]
    (note,) = pairs.notes
    assert note.startswith("1 image with a dot in the name left out, because")
    assert note.endswith(": 000.v2.png")


def test_captions_are_read_from_txt_and_json(tmp_path: Path) -> None:
    path = write_shard(
        tmp_path / "x.tar",
        sample("0", 0, txt="\ufeffone\n two\n\none\n"),
        sample("1", 1, json=json.dumps({"caption": "from json", "width": 3})),
        sample("2", 2, json=json.dumps({"caption": None, "captions": ["a", " b ", "", 7]})),
        sample("3", 3, txt=" \n", json=json.dumps({"caption": "rather this"})),
        sample("4", 4, json="{}"),
        sample("5", 5, txt=" "),
        sample("6", 6),
        sample("7", 7, cls="3"),
    )
    pairs = open_pairs(str(path))
    expected = [("one", "two"), ("from json",), ("a", "b"), ("rather this",)]
    assert [pairs.captions(index) for index in range(len(pairs))] == expected
    note = "4 images without a caption left out, 1 of them with a class, because there is no classnames.txt"
    assert pairs.notes == (note,)


def test_class_names_are_read_beside_the_shards(tmp_path: Path) -> None:
    """In CLIP benchmark's data sets, the names are one folder above the shards."""
    (tmp_path / "classnames.txt").write_text("cat\ndog\n")
    (tmp_path / "zeroshot_classification_templates.txt").write_text("a {c}.\nmy {c}.\n")
    path = write_shard(tmp_path / "test" / "0.tar", sample("a", 1, cls="1"), sample("b", 2, cls="0", txt="Tom"))
    pairs = open_pairs(str(path))
    assert (pairs.classes, pairs.templates) == (("cat", "dog"), ("a {}.", "my {}."))
    assert [pairs.label(index) for index in range(2)] == [1, 0]
    assert [pairs.captions(index) for index in range(2)] == [("a dog.", "my dog."), ("Tom",)]
    (tmp_path / "test" / "classnames.txt").write_text("ape\nbat\n")
    assert open_pairs(str(path)).classes == ("ape", "bat"), "the nearest file counts"
    (tmp_path / "test" / "classnames.txt").unlink()
    (tmp_path / "classnames.txt").write_text("cat\n")
    with pytest.raises(DataProblem, match=r"has a class 1, and classnames.txt names 1, from 0 on"):
        open_pairs(str(path))
    (tmp_path / "classnames.txt").unlink()
    pairs = open_pairs(str(path))
    assert [pairs.captions(index) for index in range(len(pairs))] == [("Tom",)]
    assert "1 of them with a class, because there is no classnames.txt" in pairs.notes[0]
    (tmp_path / "classnames.txt").write_text("cat\ndog\n")
    vectors = [sample("a", 1) | {"a.npy": npy([1, 1])}, sample("b", 2) | {"b.npy": npy([0, 0])}]
    pairs = open_pairs(str(write_shard(tmp_path / "test" / "2.tar", *vectors)))
    assert [pairs.captions(index)[0] for index in range(2)] == ["a cat, dog.", "a thing."]
    assert pairs.at([1, 0]).labels(1) == (0, 1)
    assert summarise(pairs).per_class == (1, 1)
    (tmp_path / "classnames.txt").unlink()
    with pytest.raises(DataProblem, match=r"has 1 image with a class \(.cls or .npy\) but no classnames.txt: write"):
        open_pairs(str(write_shard(tmp_path / "test" / "1.tar", sample("a", 1, cls="1"))))


def test_half_an_emoji_in_a_caption_can_be_stored(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "0.tar", sample("a", 1, json='{"caption": "a cat \\ud83d"}'))
    assert open_pairs(str(path)).captions(0) == ("a cat ?",)


def npy(values: object) -> bytes:
    file = BytesIO()
    np.save(file, values)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is damaged: EOF"),
        (b"PK\3\4" + bytes(100), "is damaged: the magic string is not correct"),
        (npy([0, 1]).replace(b"(2,), }", b"(2,   "), "is damaged: (.*EOF in|source code string)"),  # by version
        (
            npy([0, 1]).replace(b"(2,), }" + bytes([32] * 17), b"(2" + b"0" * 17 + b",), }"),
            "is damaged: Unable",
        ),
        (npy(["0", "1"]), "is not a vector with a 0 or 1 for each class"),
        (npy(np.zeros(2, [("a", int)])), "is not a vector with a 0 or 1 for each class"),
        (npy([[0, 1]]), "is not a vector with a 0 or 1 for each class"),
        (npy([0, 2]), "is not a vector with a 0 or 1 for each class"),
    ],
)
def test_wrong_vectors_of_classes_are_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(DataProblem, match=f"the .npy beside a.jpg {reason}"):
        open_pairs(str(write_shard(tmp_path / "0.tar", sample("a", 1) | {"a.npy": content})))


@pytest.mark.parametrize("template", ["{0.__class__}", "{!r}", "{:>1000000000}", "{classname}", "a photo", "%s"])
def test_templates_are_not_format_strings(tmp_path: Path, template: str) -> None:
    (tmp_path / "classnames.txt").write_text("cat {0}\ndog\n")
    templates = tmp_path / "zeroshot_classification_templates.txt"
    templates.write_text(f"{template} {{c}}\n{{{{c}}}}\n")
    path = write_shard(tmp_path / "0.tar", sample("a", 1, cls="0"))
    assert open_pairs(str(path)).captions(0) == (f"{template} cat {{0}}", "{cat {0}}")
    templates.write_text(f"{template}\n")
    with pytest.raises(DataProblem, match=r"a template has \{\} where the class name goes, unlike"):
        open_pairs(str(path))


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ({"json": "{"}, "the .json beside a.jpg is damaged"),
        ({"json": "[" * 100_000}, "the .json beside a.jpg is damaged"),
        ({"cls": "cat"}, "the .cls beside a.jpg holds 'cat', which is not the number of a class"),
        ({"txt": "x" * 1_000_001}, "a.txt has 1,000,001 bytes, more than 1,000,000: it holds no caption or class"),
        ({}, "holds 1 image, none with a caption: expected jpg, jpeg, png, webp files"),
    ],
)
def test_wrong_shards_are_refused(tmp_path: Path, texts: dict[str, str], reason: str) -> None:
    with pytest.raises(DataProblem, match=reason):
        open_pairs(str(write_shard(tmp_path / "x.tar", sample("a", 1, **texts))))


def test_damaged_tars_are_refused_and_cut_ones_have_a_note(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "x.tar", *(sample(str(i), i, txt="caption") for i in range(4)))
    whole = path.read_bytes()
    with tarfile.open(path) as archive:
        third = archive.getmembers()[4].offset
        end = archive.offset
    for damaged in (
        b"",
        b"no tar at all" * 100,
        whole[: third + 700],  # within a file
        whole[: third + 100],  # within a header
        whole[: third + 9] + b"!" + whole[third + 10 :],  # tarfile takes this header for the end
    ):
        path.write_bytes(damaged)
        with pytest.raises(DataProblem, match="is no uncompressed tar, or is damaged"):
            open_pairs(str(path))
    packed = write_tar(tmp_path / "y.tar", sample("a", 1, txt="x"), "w:gz")
    with pytest.raises(DataProblem, match="is no uncompressed tar"):
        open_pairs(str(packed))
    path.write_bytes(whole[:end])
    pairs = open_pairs(str(path))
    assert len(pairs) == 4, "without the blocks of zeros at the end"
    assert pairs.notes == ("1 tar without an end mark may be cut short: x.tar",)
    path.write_bytes(whole[:third])  # exactly between two files
    assert len(open_pairs(f"{path}::{write_shard(tmp_path / 'y.tar', sample('a', 1, txt='x'))}").notes) == 1
    path.write_bytes(whole)
    assert open_pairs(str(path)).notes == ()


def test_end_marks_of_other_programs_are_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITALS_RUNS_DIR", str(tmp_path / "runs"))
    (tmp_path / "a.png").write_bytes(encoded())
    (tmp_path / "a.txt").write_text("a cat")
    for options in ([], ["--format=ustar", "-b1"], ["--format=pax"]):
        subprocess.run(["tar", "-cf", "x.tar", *options, "a.png", "a.txt"], cwd=tmp_path, check=True)
        assert open_pairs(str(tmp_path / "x.tar")).notes == ()
    with tarfile.open(tmp_path / "x.tar", "w|", format=tarfile.USTAR_FORMAT) as archive:  # as webdataset writes them
        archive.add(tmp_path / "a.png", "a.png")
        archive.add(tmp_path / "a.txt", "a.txt")
    assert open_pairs(str(tmp_path / "x.tar")).notes == ()
    packed = gzip.compress((tmp_path / "x.tar").read_bytes()[:2048])
    (tmp_path / "x.tar.gz").write_bytes(packed)
    assert open_pairs(str(tmp_path / "x.tar.gz")).notes == ("1 tar without an end mark may be cut short: x.tar.gz",)


def test_shard_that_changes_while_open_raises_unreadable(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "x.tar", sample("a", 1, txt="x"), sample("b", 2, txt="x"))
    pairs = open_pairs(str(path))
    path.write_bytes(path.read_bytes()[:540])
    with pytest.raises(Unreadable, match=r"x.tar/a.jpg: .*cut short"):
        pairs.image(0)
    path.unlink()
    with pytest.raises(Unreadable, match="there is no such file"):
        pairs.image(1)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a.tar", ["a.tar"]),
        ("{8..11}", ["8", "9", "10", "11"]),
        ("{08..11}", ["08", "09", "10", "11"]),
        ("{000..2}", ["000", "001", "002"]),
        ("{9..010}", ["009", "010"]),
        ("{0..10..1}", ["{0..10..1}"]),
        ("{0..10}", [str(number) for number in range(11)]),
        ("{2..0}", ["2", "1", "0"]),
        ("{a,b}{0..1}.tar", ["a0.tar", "a1.tar", "b0.tar", "b1.tar"]),
        ("{}{x}{0..}", ["{}{x}{0..}"]),
        ("{a,}", ["a", ""]),
    ],
)
def test_braces_are_expanded_as_in_braceexpand(pattern: str, expected: list[str]) -> None:
    assert expand(pattern) == expected


@pytest.mark.parametrize("pattern", ["{0..999999999}.tar", "{0..999}{0..999}"])
def test_too_many_shards_are_refused_before_they_are_listed(pattern: str) -> None:
    with pytest.raises(DataProblem, match="shards, at most 100,000 are opened"):
        expand(pattern)
