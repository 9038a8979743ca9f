"""Unpacking of uploads: valid ones are stored; all others are refused and leave no files."""

import gzip
import json
import stat
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from engine import archives, datasets
from engine.datasets import DataProblem, open_pairs, summarise, uploads
from engine.datasets.formats import unpacked
from engine.specs.fields.clip import DataKind
from tests.engine.datasets.test_images import bomb
from tests.support.data import encoded, write_tar

CLASSES = {f"pets/{name}/{index}.png": encoded((index, 0, 0)) for name in ("cat", "dog") for index in range(2)}


def write_zip(path: Path, files: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, compression)
    return path


def unpack(upload: Path | BytesIO, name: str, to: Path) -> tuple[Path, DataKind]:
    with upload.open("rb") if isinstance(upload, Path) else upload as file:
        return datasets.unpack(file, name, to)


def check_refused(upload: Path, reason: str, folder: str = "made") -> None:
    """Check that the upload is refused with this reason and that no file is added or deleted."""
    before = sorted(upload.parent.rglob("*"))
    with pytest.raises(DataProblem, match=reason) as refusal:
        unpack(upload, upload.name, upload.parent / folder)
    assert upload.name[:200] in str(refusal.value)
    assert sorted(upload.parent.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.zip", write_zip),
        ("a.ZIP", write_zip),
        ("a.tar", write_tar),
        ("a.tgz", lambda path, files: write_tar(path, files, "w:gz")),
        ("a.tar.gz", lambda path, files: write_tar(path, files, "w:gz")),
    ],
)
def test_archive_of_class_folders_is_unpacked_without_other_files(
    tmp_path: Path, name: str, write: Callable[[Path, dict[str, bytes]], Path]
) -> None:
    junk = {"__MACOSX/pets/._1.png": b"x", "pets/.DS_Store": b"x", "pets/run.sh": b"#!/bin/sh", "pets/READ.ME": b"x"}
    path, kind = unpack(write(tmp_path / name, CLASSES | junk), name, tmp_path / "deep" / "made")
    assert (path, kind) == (tmp_path / "deep" / "made" / "pets", "folder")
    pairs = open_pairs(str(path), kind, roots=(tmp_path / "deep",))
    assert pairs.classes == ("cat", "dog")
    assert summarise(pairs).unreadable == ()
    files = {file.relative_to(tmp_path / "deep" / "made").as_posix() for file in path.rglob("*") if file.is_file()}
    assert files == set(CLASSES)
    assert not any(file.stat().st_mode & 0o111 for file in path.rglob("*.png"))
    assert [entry.name for entry in (tmp_path / "deep").iterdir()] == ["made"]


def test_table_with_images_cannot_name_files_outside_the_upload(tmp_path: Path) -> None:
    table = b"filepath,title\nimages/1.png,one\n../../secret.png,two\n"
    upload = write_zip(tmp_path / "a.zip", {"data/t.csv": table, "data/images/1.png": encoded()})
    (tmp_path / "secret.png").write_bytes(encoded())
    path, kind = unpack(BytesIO(upload.read_bytes()), "a.zip", tmp_path / "made")
    assert (path, kind) == (tmp_path / "made" / "data" / "t.csv", "csv")
    found = summarise(open_pairs(str(path), kind, roots=(tmp_path / "made",)))
    assert [reason for _, reason in found.unreadable] == ["there is no such file in the folders of VITALS_DATA_ROOTS"]


def test_tar_of_images_and_captions_is_opened_as_a_shard(tmp_path: Path) -> None:
    files = {"./1.jpg": encoded(kind="JPEG"), "./1.txt": b"one", "./2.jpg": encoded(kind="JPEG"), "./2.txt": b"two"}
    path, kind = unpack(write_tar(tmp_path / "00.tar", files), "00.tar", tmp_path / "made")
    assert kind == "webdataset"
    assert [open_pairs(str(path), kind).captions(index) for index in range(2)] == [("one",), ("two",)]


COCO = {
    "images": [{"id": 7, "file_name": "1.png", "coco_url": "http://x/val2017/1.png"}],
    "annotations": [{"image_id": 7, "caption": "one"}],
}
KARPATHY = {"images": [{"filename": "1.png", "filepath": "val2017", "sentences": [{"raw": "one"}], "split": "val"}]}


@pytest.mark.parametrize(
    ("json_name", "content"), [("coco/annotations/captions_val2017.json", COCO), ("dataset_coco.json", KARPATHY)]
)
def test_json_of_captions_is_opened_with_its_images(tmp_path: Path, json_name: str, content: dict[str, Any]) -> None:
    image = "coco/val2017/1.png" if json_name.startswith("coco/") else "val2017/1.png"
    files = {json_name: json.dumps(content).encode(), image: encoded()}
    path, kind = unpack(write_zip(tmp_path / "a.zip", files), "a.zip", tmp_path / "made")
    assert (path, kind) == (tmp_path / "made" / json_name, "coco")
    pairs = open_pairs(str(path), kind, roots=(tmp_path / "made",))
    assert (pairs.captions(0), summarise(pairs).unreadable) == (("one",), ())
    two = write_zip(tmp_path / "b.zip", {**files, json_name.replace(".json", "2.json"): files[json_name]})
    check_refused(two, "holds several files of captions: give one of", "again")


def test_json_without_captions_does_not_hide_class_folders(tmp_path: Path) -> None:
    boxes = {"images": [], "annotations": [{"bbox": [0, 0, 1, 1]}]}
    files = {**CLASSES, "pets/info.json": json.dumps(boxes).encode(), "pets/note.json": b'{"caption": "two pets"}'}
    files["pets/cat/coco/deep.json"] = json.dumps(COCO).encode()  # not looked at: there may be many
    assert unpack(write_zip(tmp_path / "a.zip", files), "a.zip", tmp_path / "made")[1] == "folder"


def test_json_beside_an_image_is_opened_as_webdataset(tmp_path: Path) -> None:
    about = json.dumps({"images": 1, "caption": "one"}).encode()
    path = write_zip(tmp_path / "a.zip", {"1.png": encoded(), "1.json": about})
    assert unpack(path, "a.zip", tmp_path / "made")[1] == "webdataset"


@pytest.mark.parametrize("name", ["a.zip", "my pairs.parquet"])
def test_parquet_is_opened_alone_or_with_its_images(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITALS_RUNS_DIR", str(tmp_path / "runs"))
    content = BytesIO()
    images = ["images/1.png"] if name == "a.zip" else [encoded()]
    pd.DataFrame({"image": images, "text": ["one"]}).to_parquet(content)
    upload = BytesIO(content.getvalue())
    if name == "a.zip":
        files = {"t.parquet": content.getvalue(), "images/1.png": encoded()}
        upload = BytesIO(write_zip(tmp_path / "a.zip", files).read_bytes())
    path, kind = unpack(upload, name, tmp_path / "made")
    assert kind == "parquet"
    pairs = open_pairs(str(path), kind, roots=(tmp_path / "made", tmp_path / "runs"))
    assert (pairs.captions(0), summarise(pairs).unreadable) == (("one",), ())


@pytest.mark.parametrize(
    "name", ["my pairs.csv", "../../evil.csv", "C:\\x\\evil.tsv", "/etc/.csv", "ü☃.csv", "漢" * 90 + ".csv"]
)
def test_single_table_is_stored_with_a_safe_name(tmp_path: Path, name: str) -> None:
    content = b"filepath,title\na.png,one\n"
    path, kind = unpack(BytesIO(content), name, tmp_path / "made")
    assert kind == "csv"
    assert path.parent == tmp_path / "made"
    assert path.read_bytes() == content
    assert open_pairs(str(path)).captions(0) == ("one",)
    assert list(tmp_path.iterdir()) == [tmp_path / "made"]


@pytest.mark.parametrize("write", [write_zip, write_tar])
@pytest.mark.parametrize(
    "name",
    [
        "../evil.png",
        "a/../../evil.png",
        "/etc/evil.png",
        "..",
        "a\\..\\evil.png",
        "C:evil.png",
        "a\nb.png",
        "../evil.sh",
        "x" * 301,
    ],
)
def test_unsafe_member_names_are_refused(
    tmp_path: Path, write: Callable[[Path, dict[str, bytes]], Path], name: str
) -> None:
    suffix = ".zip" if write is write_zip else ".tar"
    check_refused(write(tmp_path / f"a{suffix}", CLASSES | {name: encoded()}), "not the name of a file below a folder")


def test_links_and_devices_are_refused(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("link.png")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(write_zip(tmp_path / "a.zip", CLASSES), "a") as archive:
        archive.writestr(link, "/etc/passwd")
    check_refused(tmp_path / "a.zip", "'link.png' is a link or a device")
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.GNUTYPE_SPARSE):
        info = tarfile.TarInfo("link.png")
        info.type, info.linkname = kind, "/etc/passwd"
        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            tar.addfile(info)
        check_refused(tmp_path / "a.tar", "'link.png' is a link or a device")


def test_zip_whose_headers_name_a_smaller_size_takes_little_memory(tmp_path: Path) -> None:
    size, claimed = 60_000_000, 100
    upload = write_zip(tmp_path / "a.zip", CLASSES | {"pets/cat/zeros.png": bytes(size)})
    content = upload.read_bytes()
    assert content.count(size.to_bytes(4, "little")) == 2, "in the header of the file and in the list of files"
    upload.write_bytes(content.replace(size.to_bytes(4, "little"), claimed.to_bytes(4, "little")))
    tracemalloc.start()
    try:
        check_refused(upload, "cannot be unpacked|damaged")
        assert tracemalloc.get_traced_memory()[1] < size / 4
    finally:
        tracemalloc.stop()


def test_archive_bombs_are_refused_by_size_ratio_and_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "FREE_BYTES", 500_000)
    zeros = {f"{index}.txt": bytes(200_000) for index in range(3)}
    check_refused(write_zip(tmp_path / "ratio.zip", zeros), "it would unpack to 3 files of 600,000 bytes or more from")
    check_refused(write_tar(tmp_path / "ratio.tgz", zeros, "w:gz"), "it would unpack to 3 files")
    huge = write_zip(tmp_path / "size.zip", {"1.png": encoded()})
    with zipfile.ZipFile(huge, "a") as archive:
        archive.writestr("big.png", b"x")
        archive.getinfo("big.png").file_size = 50_000_001
    check_refused(huge, "it would unpack to 2 files of 50,000,")
    monkeypatch.setattr(uploads, "LIMITS", uploads.LIMITS._replace(files=3))
    for write, ending in ((write_zip, "zip"), (write_tar, "tar")):
        check_refused(write(tmp_path / f"count.{ending}", CLASSES), "4 files")
    monkeypatch.setattr(uploads, "LIMITS", uploads.LIMITS._replace(file_bytes=100))
    check_refused(write_zip(tmp_path / "large.zip", {"1.png": bytes(101)}), "has 101 bytes, at most 100 are taken")
    monkeypatch.setattr(uploads, "MOST_PACKED", 10)
    check_refused(tmp_path / "large.zip", "bytes, at most 10 are taken")


def test_member_with_a_wrong_size_is_refused(tmp_path: Path) -> None:
    for size in (10, 10_000):
        path = write_zip(tmp_path / "a.zip", CLASSES | {"more.png": encoded()})
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("last.txt", b"")
            archive.getinfo("more.png").file_size = size
        check_refused(path, "is damaged")


def test_table_is_found_inside_a_single_top_folder(tmp_path: Path) -> None:
    files = {"pics/a.png": encoded(), "pics/b.png": encoded(), "pics/captions.csv": b"file,text\na.png,A\nb.png,B\n"}
    path, kind = unpack(write_zip(tmp_path / "a.zip", files), "a.zip", tmp_path / "made")
    assert (path, kind) == (tmp_path / "made" / "pics" / "captions.csv", "csv")


def test_huge_header_sizes_are_refused_in_little_memory(tmp_path: Path) -> None:
    """tarfile would read the pax header of 8 GB into memory as a whole."""
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, 8 * 10**9
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(10_000))
    info = tarfile.TarInfo("big.png")
    info.size = 8 * 10**9
    (tmp_path / "b.tgz").write_bytes(gzip.compress(info.tobuf() + bytes(10_000)))
    tracemalloc.start()
    try:
        check_refused(tmp_path / "a.tar", "a header of more than 16,384 bytes")
        check_refused(tmp_path / "b.tgz", "it would unpack to 1 file of 8,000,000,000 bytes")
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_endless_nested_headers_are_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, 10
    header = info.tobuf() + b"10 a=2345\n".ljust(512, b"\0")
    (tmp_path / "a.tgz").write_bytes(gzip.compress(header * 2000))
    check_refused(tmp_path / "a.tgz", "is damaged: maximum recursion depth exceeded")


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (
            {"cat/1.png": b"\x7fELF\0\0\0"},
            r"1 file with contents that do not match the name: cat/1.png \(it is no",
        ),
        ({"cat/1.png": bomb(90_000, 90_000)}, "1 file with contents that do not match the name: cat/1.png"),
        ({"cat/1.png": bomb(9_000, 9_000)}, "9000 x 9000 pixels"),
        ({"a.csv": b"\0\1"}, r"a.csv \(it is no text\)"),
        ({"a.parquet": b"a,b"}, r"a.parquet \(it is no Parquet file\)"),
        ({"READ.ME": b"x"}, "holds no images"),
        ({}, "holds no images"),
        ({"1.png": encoded()}, "a.zip has 1 image but no captions or classes"),
        ({"a/1.png": encoded(), "./a/1.png": encoded()}, "it holds two files called 'a/1.png'"),
        ({"a.png": encoded(), "a.png/b.png": encoded()}, "cannot be written"),
    ],
)
def test_archives_with_wrong_contents_are_refused(tmp_path: Path, files: dict[str, bytes], reason: str) -> None:
    check_refused(write_zip(tmp_path / "a.zip", files), reason)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.zip", b"", "does not begin like .zip"),
        ("a.zip", b"Rar!", "does not begin like .zip"),
        ("a.zip", gzip.compress(b"x", mtime=0), "does not begin like .zip, but like a gzip"),
        ("a.csv", b"PK\3\4" + bytes(50), "does not begin like .csv, but like a zip"),
        ("a.csv", b"a,b\0", "is no text"),
        ("a.csv", b"", "a.csv is empty"),
        ("a.csv", b" \n\n", "a.csv is empty"),
        ("a.json", b"{\0", "is no text"),
        ("a.parquet", b"a,b", "does not begin like .parquet"),
        ("a.json", b"PAR1", "does not begin like .json, but like a parquet"),
        ("a.rar", b"Rar!", "is none of .zip, .tar"),
        ("a.exe", b"MZ", "is none of .zip, .tar"),
        ("noname", b"a,b", "is none of .zip, .tar"),
        ("a.zip", b"PK\3\4" + bytes(500), "is damaged"),
        ("a.tgz", gzip.compress(b"x" * 2000, mtime=0), "is damaged"),
        ("a.tgz", b"\x1f\x8b" + bytes(100), "is damaged"),
    ],
)
def test_uploads_that_do_not_match_their_names_are_refused(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    upload = tmp_path / name
    upload.write_bytes(content)
    check_refused(upload, reason)


def test_full_disk_and_used_folder_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upload = write_zip(tmp_path / "a.zip", CLASSES)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("mine")
    check_refused(upload, "cannot be written to .*not empty", "used")
    check_refused(upload, "cannot be written to .*File exists", "used/file/below")
    monkeypatch.setattr(unpacked, "SPARE_BYTES", 10**18)
    with pytest.raises(DataProblem, match=r"has .* bytes free, [1-9].* are to be written, and .* must stay free: make"):
        unpack(upload, "a.zip", tmp_path / "made")
    with pytest.raises(DataProblem, match=r"has .* bytes free, 4 are to be written"):
        unpack(BytesIO(b"a,b\n"), "a.csv", tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_archive_with_a_flipped_byte_is_unpacked_or_refused(tmp_path: Path) -> None:
    files = {"cat/1.png": encoded(), "dog/1.png": encoded()}
    refusals = 0
    for path in (write_zip(tmp_path / "a.zip", files), write_tar(tmp_path / "a.tgz", files, "w:gz")):
        whole = path.read_bytes()
        for position in range(0, len(whole), 5):
            changed = whole[:position] + bytes([whole[position] ^ 0xFF]) + whole[position + 1 :]
            try:
                unpack(BytesIO(changed), path.name, tmp_path / f"{path.suffix}{position}")
            except DataProblem:
                refusals += 1
    assert refusals > 20
