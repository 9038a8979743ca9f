"""Listing and deleting earlier uploads."""

import os
import shutil
import time
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import pytest
from PIL import Image

from engine.datasets import DataProblem, unpack
from engine.datasets.uploads import forget, kept


def store_upload(to: Path, *names: str) -> Path:
    picture, archive = BytesIO(), BytesIO()
    Image.new("RGB", (16, 16)).save(picture, "PNG")
    with ZipFile(archive, "w") as file:
        for name in names:
            file.writestr(name, picture.getvalue())
    return unpack(archive, "some.zip", to)[0]


def test_uploads_are_listed_with_their_sizes(tmp_path: Path) -> None:
    assert kept(tmp_path / "uploads") == []
    pets = store_upload(tmp_path / "uploads" / "pets", "all/cat/1.png", "all/dog/1.png")
    store_upload(tmp_path / "uploads" / "plants", "rose/1.png", "oak/1.png")
    (tmp_path / "uploads" / ".half").mkdir()
    os.utime(tmp_path / "uploads" / "plants", (0, 0))
    found = {item.folder.name: item for item in kept(tmp_path / "uploads")}
    assert list(found) == ["pets", "plants"], "the newest first"
    assert (found["pets"].data, found["pets"].kind) == (pets, "folder")
    assert found["pets"].size == sum(path.stat().st_size for path in pets.rglob("*.png"))
    shutil.rmtree(pets)
    assert [item.data for item in kept(tmp_path / "uploads") if item.kind == "auto"] == [found["pets"].folder]


def test_upload_recognises_paths_of_its_data(tmp_path: Path) -> None:
    store_upload(tmp_path / "pets", "cat/1.png", "dog/1.png")
    (upload,) = kept(tmp_path)
    assert upload.of(str(upload.data))
    assert upload.of(f"digits::{upload.folder}/table.csv")
    assert not upload.of(f"{upload.folder}-2")
    assert not upload.of("digits")
    assert not upload.of("")


def test_deleting_an_upload_keeps_the_others(tmp_path: Path) -> None:
    store_upload(tmp_path / "pets", "cat/1.png", "dog/1.png")
    store_upload(tmp_path / "plants", "rose/1.png", "oak/1.png")
    pets = next(item for item in kept(tmp_path) if item.folder.name == "pets")
    (tmp_path / ".pets" / "cat").mkdir(parents=True)  # as of a deletion that was interrupted
    forget(pets)
    forget(pets)  # as after a second click
    assert [path.name for path in tmp_path.iterdir()] == ["plants"]


def test_folders_of_killed_uploads_are_deleted_after_a_day(tmp_path: Path) -> None:
    for name, age_s in ((".killed-1a2b", 90_000), (".unpacked-now", 0)):
        (tmp_path / name / "cat").mkdir(parents=True)
        os.utime(tmp_path / name, (time.time() - age_s,) * 2)
    store_upload(tmp_path / "pets", "cat/1.png", "dog/1.png")
    assert {path.name for path in tmp_path.iterdir()} == {".unpacked-now", "pets"}


def test_failed_deletion_gives_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_upload(tmp_path / "pets", "cat/1.png", "dog/1.png")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(DataProblem, match="cannot be deleted: Permission denied"):
        forget(kept(tmp_path)[0])
