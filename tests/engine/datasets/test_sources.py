"""Compressed tars, Parquet files and JSON of captions, and the splits that a JSON may have."""

import json
import os
import re
import tracemalloc
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pyarrow
import pytest
from pyarrow import parquet

from engine.datasets import DataProblem, Pairs, columns_of, formats, open_pairs, split
from engine.datasets.derived import sample
from engine.datasets.formats import unpacked
from engine.datasets.uploads import Kept, forget
from engine.specs.fields.clip import DataKind
from engine.training import setup
from tests.support.data import encoded, write_image, write_tar
from tests.support.training import tiny

COLOURS = [(10, 0, 0), (20, 0, 0), (30, 0, 0)]


@pytest.fixture(autouse=True)
def runs_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITALS_RUNS_DIR", str(tmp_path / "runs"))
    return tmp_path / "runs"


def reds(pairs: Pairs) -> list[int]:
    return [np.asarray(pairs.image(index))[0, 0, 0].item() for index in range(len(pairs))]


def captions(pairs: Pairs) -> list[tuple[str, ...]]:
    return [pairs.captions(index) for index in range(len(pairs))]


@pytest.mark.parametrize("ending", [".tar.gz", ".tgz", ".tar.bz2", ".tar.zst"])
def test_compressed_shards_are_unpacked_once(
    tmp_path: Path, runs_dir: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"{red}.{kind}": content for (red, *_), kind, content in shard_members()}
    plain = write_tar(tmp_path / "plain.tar", files)
    packed = tmp_path / f"shard-0{ending}"
    codec = {".tar.bz2": "bz2", ".tar.zst": "zstd"}.get(ending, "gzip")
    with pyarrow.CompressedOutputStream(str(packed), codec) as stream:
        stream.write(plain.read_bytes())
    pairs = open_pairs(f"{tmp_path}/shard-{{0..0}}{ending}", roots=(tmp_path,))
    assert reds(pairs) == reds(open_pairs(str(plain))) == [10, 20, 30]
    assert captions(pairs) == [("no 10",), ("no 20",), ("no 30",)]
    assert pairs.source(1) == f"{packed}/20.png"
    assert (runs_dir / "unpacked").stat().st_mode & 0o077 == 0, "other users cannot read the copies"
    (copy,) = (runs_dir / "unpacked").glob("*.tar")
    assert len(list((runs_dir / "unpacked").glob("shard-0-*.json"))) == 1
    inode = copy.stat().st_ino
    os.utime(copy, (0, 0))
    assert reds(open_pairs(str(packed))) == [10, 20, 30]
    assert copy.stat().st_ino == inode
    assert copy.stat().st_mtime > 0, "opening it again updates its time"
    times = packed.stat()
    os.utime(packed, (0, 0))
    open_pairs(str(packed))
    with packed.open("ab") as file:
        file.write(packed.read_bytes())
    os.utime(packed, ns=(times.st_atime_ns, times.st_mtime_ns))
    open_pairs(str(packed))
    assert len(list((runs_dir / "unpacked").glob("*.tar"))) == 3, "a changed time or size makes another copy"
    monkeypatch.setattr(unpacked, "SPARE_BYTES", 10**18)
    packed.touch()
    with pytest.raises(DataProblem, match=r"bytes free, [1-9].* are to be written"):
        open_pairs(str(packed))


def test_unpacked_copies_are_deleted_by_age_and_with_their_upload(tmp_path: Path, runs_dir: Path) -> None:
    upload, other = runs_dir / "uploads" / "mine", tmp_path / "other.tar.gz"
    upload.mkdir(parents=True)
    (runs_dir / "unpacked").mkdir()
    of_a_killed_process = runs_dir / "unpacked" / ".other-1.tar.7.7.tmp"
    of_a_killed_process.touch()
    os.utime(of_a_killed_process, (0, 0))
    files = {f"{red}.{kind}": content for (red, *_), kind, content in shard_members()}
    for path in (other, upload / "a.tgz", tmp_path / "b.tgz"):
        open_pairs(str(write_tar(path, files, "w:gz")))
        names = {copy.name.partition("-")[0] for copy in (runs_dir / "unpacked").iterdir()}
        for copy in (runs_dir / "unpacked").glob("other-*"):
            os.utime(copy, (0, 0))
    assert names == {"a", "b"}, "the copies of other were too old when a was unpacked"
    forget(Kept(upload, upload / "a.tgz", "webdataset", 0))
    assert {copy.name.partition("-")[0] for copy in (runs_dir / "unpacked").iterdir()} == {"b"}


def test_a_tar_is_read_once_until_it_changes(tmp_path: Path, runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a name that is no UTF-8, a damaged index, and none that can be written."""
    files = {
        "\udce91.png": encoded((1, 0, 0)),
        "\udce91.txt": b"one",
        "2.v2.png": b"",
        "3.png": b"",
    }
    shard = write_tar(tmp_path / "x.tar", files)
    first, status = open_pairs(str(shard)), shard.stat()
    (index,) = (runs_dir / "unpacked").iterdir()
    (unused := index.with_name("unused.json")).touch()
    os.utime(unused, (0, 0))
    shard.write_bytes(shard.read_bytes().replace(b"one", b"two"))
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    again = open_pairs(str(shard))
    assert captions(again) == captions(first) == [("one",)]
    assert index.exists()
    assert not unused.exists()
    assert (again.source(0), again.notes, reds(again)) == (first.source(0), first.notes, [1])
    assert len(again.notes) == 2, "a dot in a name, an image without a caption"
    index.write_bytes(b"[")
    assert captions(open_pairs(str(shard))) == [("two",)]
    shard.write_bytes(shard.read_bytes().replace(b"two", b"six"))
    assert captions(open_pairs(str(shard))) == [("six",)]
    monkeypatch.setenv("VITALS_RUNS_DIR", "/dev/null/none")
    assert captions(open_pairs(str(shard))) == [("six",)]


def shard_members() -> list[tuple[tuple[int, int, int], str, bytes]]:
    return [
        (c, kind, content) for c in COLOURS for kind, content in (("png", encoded(c)), ("txt", f"no {c[0]}".encode()))
    ]


def test_damaged_and_unknown_tars_are_refused(tmp_path: Path, runs_dir: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(b"\x1f\x8b\x08" + bytes(40))
    with pytest.raises(DataProblem, match=r"a\.tar\.gz cannot be unpacked, or is damaged"):
        open_pairs(str(tmp_path / "a.tar.gz"))
    assert list((runs_dir / "unpacked").iterdir()) == []
    (tmp_path / "a.tar.xz").write_bytes(b"x")
    with pytest.raises(DataProblem, match=r"does not end in \.csv, \.tsv, \.parquet, \.tar, \.tar\.gz"):
        open_pairs(str(tmp_path / "a.tar.xz"))


@pytest.mark.parametrize("kind", get_args(DataKind))
def test_file_of_another_format_is_refused(tmp_path: Path, kind: DataKind) -> None:
    """A format without a function that opens it ends in another error: `openers` in engine/datasets/opening.py."""
    (tmp_path / "a.bin").write_bytes(b"no data")
    with pytest.raises(DataProblem):
        open_pairs(str(tmp_path / "a.bin"), kind)


@pytest.mark.parametrize("kind", ["paths", "contents", "hugging face"])
def test_parquet_images_are_paths_or_contents(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = [encoded(colour) for colour in COLOURS]
    cells: list[Any] = [str(write_image(tmp_path / f"{c[0]}.png", c).relative_to(tmp_path)) for c in COLOURS]
    if kind != "paths":
        cells = [{"bytes": c, "path": "x.png"} for c in contents] if kind == "hugging face" else contents
    table = pyarrow.table({"image": cells, "text": ["one", "two", "three"], "kind": [1, 0, 1], "url": ["u"] * 3})
    if kind == "hugging face":
        features = {"features": {"kind": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": features})})
    parquet.write_table(table, tmp_path / "pairs.parquet", row_group_size=2)
    columns = {"image_column": "image", "caption_column": "text"}
    pairs = open_pairs(str(tmp_path / "pairs.parquet"), **columns, class_column="kind", roots=(tmp_path,))  # type: ignore[arg-type]
    assert reds(pairs) == [10, 20, 30]
    assert captions(pairs) == [("one",), ("two",), ("three",)]
    assert pairs.classes == (("cat", "dog") if kind == "hugging face" else ("0", "1"))
    assert [pairs.label(index) for index in range(3)] == [1, 0, 1]
    assert len({pairs.source(index) for index in range(3)}) == 3
    assert captions(open_pairs(str(tmp_path / "pairs.parquet"))) == captions(pairs), "image and text are common names"
    assert columns_of(str(tmp_path / "pairs.parquet")) == ["image", "text", "kind", "url"]
    with pytest.raises(DataProblem, match=r"needs one column called 'words', but has 0. Its columns are 'image', 'te"):
        open_pairs(str(tmp_path / "pairs.parquet"), caption_column="words")
    if kind == "contents":
        large = table.set_column(0, "image", table["image"].cast(pyarrow.large_binary()))
        parquet.write_table(large, tmp_path / "large.parquet")
        assert reds(open_pairs(str(tmp_path / "large.parquet"))) == [10, 20, 30]
        (tmp_path / "large.parquet").touch()  # so that its images are copied again
        with monkeypatch.context() as full:
            full.setattr(unpacked, "SPARE_BYTES", 10**18)
            with pytest.raises(DataProblem, match=f"bytes free, {len(contents[0])} are to be written"):
                open_pairs(str(tmp_path / "large.parquet"))
    if kind == "hugging face":
        unknown = table.set_column(2, "kind", pyarrow.array([1, 0, -1]))
        parquet.write_table(unknown, tmp_path / "unknown.parquet")
        named = open_pairs(str(tmp_path / "unknown.parquet"), class_column="kind").classes
        assert named == ("-1", "cat", "dog"), "-1 is not the last of the names"
    frame = pd.read_parquet(tmp_path / "pairs.parquet").assign(text=[["a", "b"], ["c"], ["d"]])
    frame.to_parquet(tmp_path / "lists.parquet")
    if kind != "hugging face":
        frame.assign(kind=[1.0, 10.0, 2.0]).to_parquet(tmp_path / "floats.parquet")
        floats = open_pairs(str(tmp_path / "floats.parquet"), **columns, class_column="kind")  # type: ignore[arg-type]
        assert floats.classes == ("1", "2", "10")
    assert captions(open_pairs(str(tmp_path / "lists.parquet"), **columns))[0] == ("a", "b")  # type: ignore[arg-type]


def test_missing_values_of_parquet_are_refused_with_their_row(tmp_path: Path) -> None:
    values = {"image": ["a.png", "b.png", "c.png"], "text": [1.5, float("nan"), None]}
    parquet.write_table(pyarrow.table(values), tmp_path / "pairs.parquet")
    with pytest.raises(DataProblem, match="2 rows without an image or a caption: row index 1, row index 2"):
        open_pairs(str(tmp_path / "pairs.parquet"))


def test_parquet_without_rows_or_content_is_refused(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"image": [""][:0], "text": [""][:0]}), tmp_path / "empty.parquet")
    with pytest.raises(DataProblem, match=r"empty\.parquet has no rows"):
        open_pairs(str(tmp_path / "empty.parquet"))
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 cut short")
    for read in (open_pairs, columns_of):
        with pytest.raises(DataProblem, match=r"cut\.parquet is no Parquet file, or is damaged"):
            read(str(tmp_path / "cut.parquet"))


def test_parquet_with_damaged_images_or_texts_is_refused(tmp_path: Path) -> None:
    path, contents = tmp_path / "pairs.parquet", [bytes([number]) * 300 for number in range(3)]
    parquet.write_table(pyarrow.table({"image": contents, "text": ["one", "two", "three"]}), path)
    whole = path.read_bytes()
    size = b"\x90\x07"  # 912, the bytes of the images' page, as snappy writes it
    for damaged in (whole.replace(b"three", b"\xe4hree"), whole.replace(size, b"\x90\x7f", 1)):
        path.write_bytes(damaged)
        with pytest.raises(DataProblem, match=r"pairs\.parquet is no Parquet file, or is damaged"):
            open_pairs(str(path))
    three, problems = 6, set[str]()  # as the footer writes the numbers of rows and values
    for place in (place for place, byte in enumerate(whole) if byte == three):
        path.write_bytes(whole[:place] + bytes([three - 2]) + whole[place + 1 :])
        try:
            open_pairs(str(path))
        except DataProblem as problem:
            problems.add(str(problem))
    assert "pairs.parquet is damaged: it has 3 images, but 2 texts" in problems


@pytest.mark.slow
@pytest.mark.parametrize(("count", "value"), [(400_000, "x.png"), (200, bytes(100_000))])
def test_parquet_bombs_are_refused_before_they_are_in_memory(
    tmp_path: Path, runs_dir: Path, count: int, value: str | bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats.parquet, "FREE_BYTES", 10_000_000)
    path = tmp_path / "bomb.parquet"
    same = pyarrow.DictionaryArray.from_arrays(np.zeros(count, np.int32), pyarrow.array([value]))
    parquet.write_table(pyarrow.table({"image": same.cast(same.type.value_type), "text": same}), path)
    assert path.stat().st_size < 20_000
    with pytest.raises(DataProblem, match=r"of [\d,]+ bytes would unpack to 1\d,\d{3},\d{3} bytes"):
        open_pairs(str(path))
    assert not list(runs_dir.glob("unpacked/*"))


def write_coco(folder: Path) -> Path:
    """Write files in COCO's layout, annotations beside a folder of images, and return the JSON."""
    for number, colour in enumerate(COLOURS):
        write_image(folder / "val2017" / f"{number}.png", colour)
    images = [
        {"id": 7 + n, "file_name": f"{n}.png", "coco_url": f"http://x/val2017/{n}.png"} for n in range(len(COLOURS))
    ]
    annotations = [{"image_id": 7 + n % 3, "caption": f"caption {n} "} for n in range(15)]
    (folder / "annotations").mkdir()
    path = folder / "annotations" / "captions_val2017.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations}))
    return path


def test_coco_images_have_five_captions(tmp_path: Path) -> None:
    pairs = open_pairs(str(write_coco(tmp_path)))
    assert reds(pairs) == [10, 20, 30]
    assert captions(pairs)[1] == tuple(f"caption {n}" for n in (1, 4, 7, 10, 13))
    with pytest.raises(DataProblem, match="has no splits, so there is no part 'test'"):
        open_pairs(str(write_coco(tmp_path / "again")), part="test")


@pytest.mark.parametrize("without_address", [0, 2])
def test_images_are_found_if_only_some_have_an_address_and_the_first_is_missing(
    tmp_path: Path, without_address: int
) -> None:
    path = write_coco(tmp_path)
    content = json.loads(path.read_text())
    del content["images"][without_address]["coco_url"]
    (tmp_path / "images").mkdir()
    (tmp_path / "val2017" / f"{without_address}.png").rename(tmp_path / "images" / f"{without_address}.png")
    (tmp_path / "val2017" / f"{2 - without_address}.png").unlink()
    path.write_text(json.dumps(content))
    pairs = open_pairs(str(path))
    assert [pairs.image(place).getpixel((0, 0))[0] for place in (1, without_address)] == [20, 10 + 10 * without_address]


def test_captions_of_unlisted_images_are_dropped_and_counted(tmp_path: Path) -> None:
    path = write_coco(tmp_path)
    content = json.loads(path.read_text())
    without_caption = {"id": 1234, "file_name": "0.png"}
    path.write_text(json.dumps({**content, "images": [*content["images"][:2], without_caption]}))
    pairs = open_pairs(str(path))
    assert reds(pairs) == [10, 20]
    assert pairs.notes[:2] == (
        "5 captions left out: their image_id, such as 9, is not among images",
        "1 image of other splits or without captions left out",
    )


def write_karpathy(folder: Path) -> Path:
    splits = ["train", "restval", "val", "test", "train", "val"]
    images = []
    for number, part in enumerate(splits):
        write_image(folder / "val2014" / f"{number}.png", (10 * number, 0, 0))
        sentences = [{"raw": f"{number} is {text}"} for text in ("one", "two")]
        images.append({"filename": f"{number}.png", "filepath": "val2014", "sentences": sentences, "split": part})
    path = folder / "dataset_coco.json"
    path.write_text(json.dumps({"images": images, "dataset": "coco"}))
    return path


def test_karpathy_split_decides_which_pairs_are_held_out(tmp_path: Path) -> None:
    path = str(write_karpathy(tmp_path))
    train, held_out = split(open_pairs(path), 0.2, seed=5)
    assert (reds(train), reds(held_out)) == ([0, 10, 40], [20, 50])
    assert captions(train)[0] == ("0 is one", "0 is two")
    assert reds(open_pairs(path, part="test")) == [30]
    assert reds(open_pairs(path, part="train")) == [0, 10, 40]
    assert open_pairs(path, part="val").notes == ("4 images of other splits or without captions left out",)
    (tmp_path / "test.json").write_text(re.sub('"split": "[a-z]+"', '"split": "test"', Path(path).read_text()))
    with pytest.raises(DataProblem, match="no images with captions except in test: choose this part with json_split"):
        open_pairs(str(tmp_path / "test.json"))
    drawn = sample(open_pairs(path), 4, seed=0)
    assert {*reds(split(drawn, 0.5, 0)[1])} <= {20, 50}
    fields = {"data": path, "samples": None, "batch_size": 2}
    assert reds(setup.hold(tiny(**fields, val_fraction=0), tmp_path / "a").train) == [0, 10, 40]
    held = setup.hold(tiny(**fields), tmp_path / "b")
    assert held.val is not None
    assert reds(held.val) == [20, 50]
    other = setup.hold(tiny(**fields, json_split="train", val_fraction=0.34), tmp_path / "c")
    assert other.val is not None
    assert {*reds(other.train), *reds(other.val)} == {0, 10, 40}
    split_note = "the file has its own split: 2 of 5 pairs in val"
    unused_note = "not used: 2 pairs that the split of dataset_coco holds out"
    assert split_note in held.notes
    assert unused_note not in held.notes
    assert {split_note, unused_note} <= {*setup.hold(tiny(**fields, val_fraction=0), tmp_path / "d").notes}
    digits = setup.hold(tiny(**fields, val_data="digits"), tmp_path / "e")
    assert {split_note, unused_note} <= {*digits.notes}
    swapped = setup.hold(tiny(data="digits", val_data=path), tmp_path / "f")
    assert swapped.val is not None
    assert reds(swapped.val) == [20, 50]
    assert "validation uses only the pairs of dataset_coco that its own split holds out: 2" in swapped.notes
    with pytest.raises(DataProblem, match="dataset_coco has its own split"):
        open_pairs(f"{path}::digits")


def test_reading_karpathys_json_takes_little_more_memory_than_its_captions(tmp_path: Path) -> None:
    """Most of the file are words of captions, which are not used and would take a gigabyte for COCO."""
    path = write_karpathy(tmp_path)
    content = json.loads(path.read_text())
    for image in content["images"]:
        image["sentences"][0]["tokens"] = [f"{image['filename']} {number}" for number in range(10_000)]
    path.write_text(json.dumps(content))
    open_pairs(str(path))  # without what is allocated once
    tracemalloc.start()
    try:
        assert len(open_pairs(str(path))) == 5
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * path.stat().st_size


@pytest.mark.parametrize("case", ["other sources", "validation data", "linked folder", "one"])
def test_images_both_held_out_and_trained_on_are_counted(tmp_path: Path, case: str) -> None:
    for number in range(8):
        write_image(tmp_path / "images" / f"{number}.png", (10 * number, 0, 0))
    (tmp_path / "link").symlink_to(tmp_path / "images")
    for name, folder in {"a": "images", "b": "./images/../images", "c": "link"}.items():
        lines = [f"{folder}/{number}.png,{name} {number}" for number in range(8)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["filepath,title", *lines]))
    first, second, third = (str(tmp_path / f"{name}.csv") for name in "abc")
    fields: dict[str, dict[str, Any]] = {
        "other sources": {"data": f"{first}::{second}", "val_fraction": 0.25},
        "validation data": {"data": first, "val_data": second},
        "linked folder": {"data": first, "val_data": third},
        "one": {"data": first, "val_fraction": 0.25},
    }
    held = setup.hold(tiny(samples=None, **fields[case]), tmp_path / "run")
    assert held.val is not None
    trained = {*reds(held.train)}
    shared = sum(red in trained for red in reds(held.val))
    assert shared > 0 or case == "one"
    text = f"{shared} of {len(held.val)} held-out images also used for training"
    assert [note for note in held.notes if "also used for training" in note] == [text] * (case != "one")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[1]", r"is no JSON of captions \(it holds a list instead of an object with images\)"),
        ("{", "is no JSON of captions"),
        ("[" * 200_000, "is no JSON of captions"),
        (
            '{"images": [{"filename": "captions.json", "sentences": [{"raw": "x"}]}, '
            '{"filename": "./captions.json", "sentences": [{"raw": "y"}]}]}',
            "has several entries for the same image",
        ),
        ('{"images": []}', "has no images with captions"),
        ('{"images": [], "annotations": [{"image_id": 1, "caption": "x"}]}', "has no images with captions"),
        ('{"images": [{"filename": "a.png"}]}', r"\(images\.0\.sentences [^{]*required"),
        (
            '{"images": [{"id": 1, "file_name": "a.png"}], "annotations": [{"image_id": 1, "caption": null}]}',
            r"is no JSON of captions \(annotations\.0\.caption is null: .*string",
        ),
        (
            '{"images": [{"id": 1, "file_name": "a.png"}], "annotations": [{"image_id": "1", "caption": "x"}]}',
            "no image_id, such as '1', is among the ids of the images, such as 1",
        ),
        (
            '{"images": [{"id": 1, "file_name": "a.png"}], "annotations": [{"image_id": 1, "caption": "x"}]}',
            "names images that are not there: .* has none of images/a.png, ../images/a.png, a.png, ../a.png",
        ),
    ],
)
def test_invalid_json_of_captions_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "captions.json").write_text(content)
    with pytest.raises(DataProblem, match=reason):
        open_pairs(str(tmp_path / "captions.json"))
