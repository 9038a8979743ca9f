"""Opening data of every kind by their paths, their summaries, and refusals with reasons."""

import os
import pickle
import pickletools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from engine.datasets import DataProblem, Pairs, open_pairs, readable, split, summarise, weights
from engine.settings import ROOT
from engine.specs import Refused
from tests.support.data import encoded, write_classes, write_image, write_tar


def write_table(folder: Path, *rows: str) -> Path:
    path = folder / "pairs.csv"
    path.write_text("\n".join(["filepath,title", *rows]) + "\n")
    return path


def colours(pairs: Pairs) -> list[object]:
    return [pairs.image(index).getpixel((0, 0)) for index in range(len(pairs))]


def test_digits_equal_those_of_scikit_learn() -> None:
    reference = load_digits()
    pairs = open_pairs("digits")
    assert len(pairs) == len(reference.target) == 1797
    assert [pairs.label(index) for index in range(1797)] == reference.target.tolist()
    assert pairs.classes == ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    three = reference.target.tolist().index(3)
    assert pairs.captions(three) == ("a photo of the digit three", "the number three", "a handwritten three", "three")
    assert pairs.source(three) == f"digits:{three}"


@pytest.mark.parametrize("index", [0, 3, 1796])
def test_digit_image_is_the_scan_enlarged_bilinearly(index: int) -> None:
    """Pixel i of 32 lies at position (i + 1/2) / 4 - 1/2 of the scan, and its value is rounded three times."""
    positions = (np.arange(32) + 0.5) / 4 - 0.5
    rows = [np.interp(positions, range(8), row) for row in load_digits().images[index] * 255 / 16]
    expected = np.stack([np.interp(positions, range(8), column) for column in np.transpose(rows)], axis=1)
    image = np.asarray(open_pairs("digits").image(index)).astype(float)
    assert image.shape == (32, 32, 3)
    assert np.abs(image - expected[:, :, None]).max() <= 1.5


@pytest.mark.slow
def test_reading_the_digits_imports_neither_sklearn_nor_torch() -> None:
    code = (
        "import sys, engine.datasets as d; p = d.open_pairs('digits'); d.summarise(p, deadline_s=0);"
        "print(*{'sklearn', 'torch', 'torchvision', 'pandas', 'sqlalchemy'} & set(sys.modules))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []


def test_synthetic_images_depend_only_on_seed_and_index() -> None:
    pairs, same, other = open_pairs("synthetic"), open_pairs("synthetic"), open_pairs("synthetic", seed=1)
    assert len(pairs) == 100
    assert pairs.image(7).size == (224, 224)
    assert pairs.image(7).tobytes() == same.image(7).tobytes()
    assert pairs.image(7).tobytes() != pairs.image(8).tobytes()
    assert pairs.image(7).tobytes() != other.image(7).tobytes()
    assert len(open_pairs("synthetic", samples=100_000)) == 100_000
    assert summarise(pairs, deadline_s=0).distinct_captions == 100


def test_folders_that_would_be_one_class_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataProblem, match="would be the same class, 'tabby cat': rename one, or put their images"):
        open_pairs(str(write_classes(tmp_path, {"tabby cat": 1, "tabby_cat": 1, "dog": 1})))


def test_class_folders_are_sorted_by_name(tmp_path: Path) -> None:
    write_classes(tmp_path, {"tabby_cat": 2, "dog": 3, "empty": 0})
    write_image(tmp_path / "dog" / "deeper" / "x.PNG", (9, 9, 9))
    (tmp_path / "empty").mkdir()
    (tmp_path / "dog" / "README.md").write_text("no image")
    (tmp_path / ".hidden").mkdir()
    pairs = open_pairs(str(tmp_path))
    assert pairs.classes == ("dog", "tabby cat")
    assert [pairs.label(index) for index in range(len(pairs))] == [0, 0, 0, 0, 1, 1]
    assert pairs.captions(5) == ("a photo of a tabby cat.",)
    assert pairs.templates == ("a photo of a {}.",)
    assert colours(pairs)[:4] == [(20, 0, 0), (20, 1, 0), (20, 2, 0), (9, 9, 9)]
    assert pairs.source(4) == str(tmp_path / "tabby_cat" / "000.png")
    assert pairs.notes == ("folders without images are no classes: empty",)


def test_names_that_are_not_utf8_are_shown_with_their_bytes(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    write_image(folder / os.fsdecode(b"\xfc.png"), (7, 0, 0))
    write_image(folder / os.fsdecode(b"\xfc.ppm"))
    pairs = open_pairs(str(tmp_path), kind="folder")
    assert (pairs.classes, pairs.captions(0)) == (("caf\\xe9",), ("a photo of a caf\\xe9.",))
    assert (pairs.source(0), colours(pairs)) == (f"{tmp_path}/caf\\xe9/\\xfc.png", [(7, 0, 0)])
    assert pairs.notes[0].endswith(": caf\\xe9/\\xfc.ppm")
    (tmp_path / os.fsdecode(b"caf\xe9") / os.fsdecode(b"\xfc.txt")).write_text("a cup")
    assert open_pairs(str(folder)).source(0) == pairs.source(0)


def test_images_outside_class_folders_or_of_other_formats_are_noted(tmp_path: Path) -> None:
    write_classes(tmp_path, {"cat": 2, "dog": 2})
    write_image(tmp_path / "beside.png")
    (tmp_path / "labels.csv").write_text("no image")
    (tmp_path / "cat" / "scan.PPM").write_bytes(b"P6")
    pairs = open_pairs(str(tmp_path), kind="folder")
    assert len(pairs) == 4
    (note,) = pairs.notes
    assert note.startswith(
        "2 images left out, because an image must be in the folder of a class and end in one of .jpg"
    )
    assert note.endswith(": beside.png, cat/scan.PPM")


def test_single_subfolder_is_opened_instead_of_the_folder(tmp_path: Path) -> None:
    write_classes(tmp_path / "pets", {"cat": 1, "dog": 1})
    (tmp_path / "__MACOSX").mkdir()
    assert open_pairs(str(tmp_path)).classes == ("cat", "dog")
    table = write_table(tmp_path / "pets", "cat/000.png,a cat")
    assert open_pairs(str(tmp_path)).captions(0) == ("a cat",)
    table.unlink()
    write_image(tmp_path / "pets" / "1.png")
    write_tar(tmp_path / "pets" / "0.tar", {"1.png": encoded(), "1.txt": b"in a shard"})
    assert open_pairs(str(tmp_path)).captions(0) == ("in a shard",), "so it is no class folder"
    write_image(tmp_path / "cover.png")
    assert open_pairs(str(tmp_path)).classes == ("pets",), "the folder has more than this one"


@pytest.mark.parametrize("name", ["data.csv", "data.tar", "shards.parquet"])
def test_folders_called_like_tables_or_tars_are_folders(tmp_path: Path, name: str) -> None:
    write_classes(tmp_path / name, {"cat": 1, "dog": 1})
    assert open_pairs(str(tmp_path)).classes == ("cat", "dog")
    write_image(tmp_path / "1.png")
    (tmp_path / "1.txt").write_text("beside")
    assert open_pairs(str(tmp_path), kind="webdataset").captions(0) == ("beside",)


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "to_b").symlink_to(tmp_path / "b")
    (tmp_path / "b" / "to_a").symlink_to(tmp_path / "a")
    with pytest.raises(DataProblem, match="/a/to_b/to_a has no images"):
        open_pairs(str(tmp_path / "a"), roots=(tmp_path,))


def test_captions_are_read_from_text_files_beside_images(tmp_path: Path) -> None:
    for name in ("b", "a", "a.k"):
        write_image(tmp_path / f"{name}.png", (ord(name[-1]), 0, 0))
        (tmp_path / f"{name}.txt").write_text(f"picture {name}\n\n one more \n")
    write_image(tmp_path / "alone.png")
    pairs = open_pairs(str(tmp_path))
    assert [pairs.captions(index)[0] for index in range(len(pairs))] == ["picture a", "picture a.k", "picture b"]
    assert pairs.captions(0) == ("picture a", "one more")
    assert colours(pairs) == [(97, 0, 0), (107, 0, 0), (98, 0, 0)]
    assert pairs.notes == ("1 image without a caption left out",)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ((), "has no images: put the images of each class into a folder"),
        (("a.png", "b.png"), "has 2 images but no captions or classes"),
        (("train/cat/1.png", "val/cat/1.png"), "hold no images but folders: give one of them, such as train, val"),
        (("a.csv", "b.csv", "1.png"), "holds several tables: give one of a.csv, b.csv"),
    ],
)
def test_ambiguous_folders_are_refused(tmp_path: Path, files: tuple[str, ...], reason: str) -> None:
    for name in files:
        write_image(tmp_path / name)
    with pytest.raises(DataProblem, match=reason):
        open_pairs(str(tmp_path))


@pytest.mark.parametrize(
    ("data", "kind", "reason"),
    [
        ("", "auto", "no data are named"),
        ("nowhere", "auto", "there is no nowhere: give digits"),
        ("a\0b", "csv", "there is no a\0b"),
        ("x" * 3000, "folder", "there is no xxx"),
        ("~nobody/x", "folder", "there is no ~nobody/x"),
        ("https://example.org/{0..9}.tar", "webdataset", "not a file on this machine"),
        ("pipe:cat a", "auto", "not a file on this machine"),
        ("nowhere.csv", "digits", "is a path, and the format digits needs no path"),
        (str(Path(__file__)), "auto", "does not end in .csv, .tsv, .*: unpack a zip, or choose the format"),
        (str(Path(__file__)), "folder", "is not a folder"),
        (str(Path(__file__).parent), "csv", "is not a file, so not csv"),
    ],
)
def test_missing_or_unsupported_data_are_refused(data: str, kind: str, reason: str) -> None:
    with pytest.raises(DataProblem, match=reason) as refusal:
        open_pairs(data, kind)  # type: ignore[arg-type]
    assert isinstance(refusal.value, Refused)


def test_data_outside_the_roots_are_refused_like_missing_data(tmp_path: Path) -> None:
    """Missing and forbidden files have the same message, also behind links and in tables."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    write_classes(outside, {"cat": 1})
    write_image(inside / "own.png")
    (inside / "link").symlink_to(outside)
    roots = (inside,)
    for path in (outside, inside / "link", inside / ".." / "outside", inside / "absent"):
        with pytest.raises(DataProblem, match="there is no "):
            open_pairs(str(path), roots=roots)
    write_classes(outside, {"cat": 2})
    secret = outside / "cat" / "000.png"
    path = write_table(
        inside, "own.png,mine", f"{secret},theirs", "../outside/cat/001.png,theirs", "absent.png,nobody's"
    )
    found = summarise(open_pairs(str(path), roots=roots))
    assert found.opened == 4
    absent = "there is no such file in the folders of VITALS_DATA_ROOTS"
    assert [reason for _, reason in found.unreadable] == [absent] * 3
    assert len(summarise(open_pairs(str(path))).unreadable) == 1
    shard = write_tar(outside / "x.tar", {"1.png": encoded(), "1.txt": b"a"})
    with pytest.raises(DataProblem, match="1 of 1 shard missing"):
        open_pairs(str(shard), roots=roots)


def test_several_sources_are_opened_as_one(tmp_path: Path) -> None:
    write_classes(tmp_path / "one", {"cat": 2, "dog": 1})
    write_classes(tmp_path / "two", {"bird": 1, "cat": 1})
    first, second, csv = (str(tmp_path / name) for name in ("one", "two", "pairs.csv"))
    write_table(tmp_path, "one/cat/000.png,a cat", "one/dog/000.png,a dog")
    mixed = open_pairs(f"{first}::{second} :: {csv}")
    assert mixed.name == "one+two+pairs"
    assert sum(open_pairs("digits::synthetic", samples=1850).parts) <= 100, "a part of the usual number of each"
    assert mixed.classes == ("cat", "dog", "bird")
    assert mixed.templates == ("a photo of a {}.",)
    (tmp_path / "two" / "empty").mkdir()
    noted = open_pairs(f"{first}::{second}").notes
    assert noted == ("two: folders without images are no classes: empty",)
    assert [mixed.label(index) for index in range(len(mixed))] == [0, 0, 1, 2, 0, None, None]
    assert [mixed.captions(index)[0] for index in (3, 6)] == ["a photo of a bird.", "a dog"]
    assert mixed.source(3) == str(tmp_path / "two" / "bird" / "000.png")
    assert mixed.image(5).size == (8, 6)
    with pytest.raises(IndexError):
        mixed.captions(7)


def test_source_weights_follow_their_pairs_through_a_split() -> None:
    mixed = open_pairs("digits::synthetic")
    assert weights(mixed, ()) is None
    assert weights(mixed, (2, 2)) is None
    train, held_out = split(mixed, 0.25, 0)
    for part in (mixed, train, held_out):
        found = weights(part, (1, 4))
        assert found is not None
        expected = [4 if part.source(index).startswith("synthetic") else 1 for index in range(len(part))]
        assert found.tolist() == expected


def test_pairs_can_be_pickled(tmp_path: Path) -> None:
    write_classes(tmp_path / "classes", {"cat": 2, "dog": 2})
    path = write_table(tmp_path, "classes/cat/000.png,a cat")
    shard = write_tar(tmp_path / "x.tar", {"1.png": encoded(), "1.txt": b"a"})
    pairs = split(open_pairs(f"digits::synthetic::{tmp_path / 'classes'}::{path}::{shard}"), 0.5, 0)[0]
    copy = pickle.loads(pickle.dumps(pairs))
    assert [copy.source(index) for index in range(len(copy))] == [pairs.source(index) for index in range(len(pairs))]
    assert colours(copy)[-1] == colours(pairs)[-1]
    assert pairs.to_load(0) is pairs
    loaded = pickle.loads(pickle.dumps(pairs.to_load(2)))
    assert colours(loaded) == colours(pairs)
    assert [*loaded.texts] == [*pairs.texts]


def test_pickled_pairs_to_load_have_no_objects_for_each_pair() -> None:
    few, many = (pickle.dumps(open_pairs("synthetic", samples=count).to_load(1)) for count in (10, 1000))
    assert len([*pickletools.genops(many)]) < len([*pickletools.genops(few)]) + 10


def test_summary_counts_pairs_and_names_unreadable_images(tmp_path: Path) -> None:
    write_classes(tmp_path, {"cat": 30, "dog": 10})
    write_image(tmp_path / "cat" / "005.png", size=(40, 30))
    write_image(tmp_path / "cat" / "006.png", size=(50, 1))
    write_image(tmp_path / "dog" / "000.png", size=(1, 2))
    for name in ("cat/003.png", "dog/004.png"):
        (tmp_path / name).write_bytes(b"<html>")
    pairs = open_pairs(str(tmp_path), roots=(tmp_path,))
    found = summarise(pairs)
    assert (found.count, found.captions, found.distinct_captions) == (40, 40, 2)
    assert (found.classes, found.per_class) == (("cat", "dog"), (30, 10))
    assert [index for index, _ in found.examples] == [0, 4, 9, 13, 17, 22, 26, 30, 35, 39]
    assert found.examples[-1] == (39, "a photo of a dog.")
    assert found.opened == 40
    assert [source for source, _ in found.unreadable] == [str(tmp_path / "cat/003.png"), str(tmp_path / "dog/004.png")]
    assert "no image of a known format" in found.unreadable[0][1]
    assert (found.smallest, found.median, found.largest) == ((1, 2), (8, 6), (40, 30))
    assert readable(pairs, range(40)) == (pairs, ())
    (tmp_path / "dog/004.png").unlink()
    rest, notes = readable(pairs, [index for index in range(40) if index not in (3, 34)])
    unknown = "it is no image of a known format (JPEG, PNG, WEBP, BMP, GIF, TIFF)"
    assert notes == (
        f"2 of 40 images left out as unreadable: {tmp_path / 'cat/003.png'} ({unknown}), "
        f"{tmp_path / 'dog/004.png'} (there is no such file in the folders of VITALS_DATA_ROOTS)",
    )
    assert len(rest) == 38
    (many,) = readable(pairs, range(30))[1]
    assert many.count(str(tmp_path)) == 3, "only the first images are named"
    assert summarise(rest).unreadable == ()
    (tmp_path / "cat/000.png").unlink()
    first = summarise(pairs, deadline_s=0)
    assert (first.opened, first.unreadable) == (1, ()), "not the first of the data, because the order is random"
    assert summarise(pairs.at([1])).per_class == (1, 0)
    assert len(summarise(pairs, examples=100).examples) == 40
