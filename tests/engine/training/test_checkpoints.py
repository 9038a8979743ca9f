"""Checkpoints load exactly as they were written, or not at all."""

import json
import os
import pickle
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.training import checkpoints
from engine.training.checkpoints import Corrupt, NotSaved

DAMAGES = 300


def state(step: int) -> dict[str, Any]:
    """Return a small state with the structure of a training's."""
    weights = torch.randn(20, 30, generator=torch.Generator().manual_seed(step))
    moments = {"state": {0: {"step": torch.tensor(float(step)), "exp_avg": weights / 2}}, "param_groups": [{"lr": 0.1}]}
    return {
        "epoch": step // 10,
        "name": "a model",
        "state_dict": {"weight": weights},
        "optimizer": moments,
        "vitals": {"done": {"step": step, "rows": [{"loss": 0.5, "notes": ["é", "<b>"]}]}},
    }


def save_state(folder: Path, name: str, step: int) -> Path:
    return checkpoints.save(folder, name, state(step), about={"epoch": step // 10, "step": step})


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and torch.equal(left, right)
    if isinstance(left, dict):
        return isinstance(right, dict) and left.keys() == right.keys() and all(equal(left[k], right[k]) for k in left)
    return bool(left == right)


def file_names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def load_latest(folder: Path) -> tuple[str, list[str]]:
    """Return the name of the latest good checkpoint and the notes. Check that its contents are those of its step."""
    found = checkpoints.load_latest(folder)
    assert found is not None
    loaded, path, notes = found
    assert equal(loaded, state(loaded["vitals"]["done"]["step"]))
    return path.name, notes


def forge(path: Path, data: bytes, step: int = 1) -> Path:
    """Write a file with a manifest that matches it."""
    path.write_bytes(data)
    manifest = {"sha256": sha256(data).hexdigest(), "size": len(data), "step": step, "date": "now"}
    checkpoints.manifest_path(path).write_text(json.dumps(manifest))
    return path


def test_checkpoint_is_loaded_and_its_manifest_describes_it(tmp_path: Path) -> None:
    path = checkpoints.save(tmp_path / "new", "epoch_3.pt", state(31), about={"epoch": 3, "step": 31, "score": 0.5})
    assert equal(checkpoints.load(path), state(31))
    manifest = json.loads((tmp_path / "new" / "epoch_3.pt.json").read_text())
    assert manifest.pop("date").endswith("+00:00")
    data = path.read_bytes()
    digest = sha256(data).hexdigest()
    assert manifest == {"epoch": 3, "step": 31, "score": 0.5, "size": len(data), "sha256": digest}
    assert checkpoints.verify(path).step == 31
    assert file_names(path.parent) == {"epoch_3.pt", "epoch_3.pt.json"}


def test_latest_checkpoint_is_found_by_step_not_by_name_or_age(tmp_path: Path) -> None:
    assert checkpoints.load_latest(tmp_path) is None
    save_state(tmp_path, "epoch_9.pt", 90)
    save_state(tmp_path, "epoch_10.pt", 100)
    save_state(tmp_path, "best.pt", 20)
    assert load_latest(tmp_path) == ("epoch_10.pt", [])
    for step in (5, 101, 102):
        save_state(tmp_path, "latest.pt", step)
    assert load_latest(tmp_path) == ("latest.pt", [])


@pytest.mark.parametrize("cut", ["before the file", "after the file"])
def test_interrupted_replacement_leaves_the_old_or_new_checkpoint(tmp_path: Path, cut: str) -> None:
    """Between the two renames, the manifest is new, and the file may be old or new."""
    path, manifest = tmp_path / "latest.pt", tmp_path / "latest.pt.json"
    save_state(tmp_path, "latest.pt", 1)
    old, before = path.read_bytes(), json.loads(manifest.read_text())
    save_state(tmp_path, "latest.pt", 30)
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "before": before}))
    if cut == "before the file":
        path.write_bytes(old)
    save_state(tmp_path, "epoch_2.pt", 20)
    assert load_latest(tmp_path) == ("epoch_2.pt" if cut == "before the file" else "latest.pt", [])
    assert checkpoints.verify(path).step == (1 if cut == "before the file" else 30)
    save_state(tmp_path, "latest.pt", 40)
    assert load_latest(tmp_path) == ("latest.pt", [])
    assert "before" not in json.loads(manifest.read_text())


@pytest.mark.slow
def test_flipped_bits_and_truncations_are_detected(tmp_path: Path) -> None:
    draw = random.Random(0)
    save_state(tmp_path, "epoch_1.pt", 10)
    newest = save_state(tmp_path, "epoch_2.pt", 20)
    for path, must_fall_back in ((newest, True), (checkpoints.manifest_path(newest), False)):
        whole = path.read_bytes()
        for number in range(DAMAGES // 2):
            damaged = bytearray(whole)
            if number % 3:
                damaged[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
            else:
                del damaged[draw.randrange(len(whole)) :]
            path.write_bytes(damaged)
            name, notes = load_latest(tmp_path)  # this also checks its contents
            if must_fall_back or name == "epoch_1.pt":
                assert name == "epoch_1.pt"
                assert "epoch_2.pt" in notes[0]
        path.write_bytes(whole)
    assert load_latest(tmp_path) == ("epoch_2.pt", [])


def test_incomplete_checkpoints_are_skipped_with_a_note(tmp_path: Path) -> None:
    save_state(tmp_path, "epoch_1.pt", 10)
    (tmp_path / "tmp.pt").write_bytes(save_state(tmp_path, "epoch_2.pt", 20).read_bytes())
    save_state(tmp_path, "epoch_3.pt", 30).unlink()
    (tmp_path / ".latest.pt.tmp").write_bytes(b"begun")
    name, notes = load_latest(tmp_path)
    assert name == "epoch_2.pt"
    assert len(notes) == 2
    assert "epoch_3.pt cannot be read: there is no such file" in notes[0]
    assert "tmp.pt has no manifest" in notes[1]
    assert equal(checkpoints.load(tmp_path / "tmp.pt"), state(20))  # a path given by the user may be of another program
    with pytest.raises(Corrupt, match="damaged"):  # an existing manifest must match
        checkpoints.load(forge(tmp_path / "epoch_4.pt", b"x").rename(tmp_path / "epoch_1.pt"))


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("how", ["pickle", "torch"])
def test_pickle_is_refused_even_with_a_matching_manifest(tmp_path: Path, how: str) -> None:
    trap = tmp_path / "sprung"
    if how == "pickle":
        data = pickle.dumps({"state_dict": {}, "vitals": Bomb(trap)}, protocol=2)
    else:
        torch.save({"state_dict": {}, "vitals": Bomb(trap)}, tmp_path / "bomb")
        data = (tmp_path / "bomb").read_bytes()
    path = forge(tmp_path / "epoch_1.pt", data)
    with pytest.raises(Corrupt, match="can run any code"):
        checkpoints.load(path)
    with pytest.raises(Corrupt, match="can run any code"):
        checkpoints.load(path)
    assert checkpoints.load_latest(tmp_path) is None
    assert not trap.exists()


def test_files_that_are_not_checkpoints_are_refused(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "list")
    with pytest.raises(Corrupt, match="holds a list"):
        checkpoints.load(forge(tmp_path / "a.pt", (tmp_path / "list").read_bytes()))
    with pytest.raises(Corrupt, match=r"a\.pt"):
        checkpoints.load(forge(tmp_path / "a.pt", b"PK\x03\x04 nothing of the kind"))
    with pytest.raises(Corrupt, match=r"gone\.pt cannot be read"):
        checkpoints.load(tmp_path / "gone.pt")


@pytest.mark.parametrize("bad", [Path("/"), np.float64(1)])
def test_state_that_could_not_be_loaded_is_not_saved(tmp_path: Path, bad: object) -> None:
    save_state(tmp_path, "latest.pt", 1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(TypeError, match="more than tensors"):
        checkpoints.save(tmp_path, "latest.pt", {**state(2), "vitals": {"bad": bad}}, about={"step": 2})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@contextmanager
def limit_file_size(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 500, 200_000])
def test_full_disk_gives_an_error_and_keeps_earlier_checkpoints(tmp_path: Path, size: int) -> None:
    save_state(tmp_path, "latest.pt", 1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    large = {**state(2), "state_dict": {"weight": torch.zeros(100_000)}}
    with limit_file_size(size), pytest.raises(NotSaved, match=r"latest\.pt could not .* File too large") as caught:
        checkpoints.save(tmp_path, "latest.pt", large, about={"step": 2})
    assert isinstance(caught.value.__cause__, OSError)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert load_latest(tmp_path) == ("latest.pt", [])


def test_pruning_keeps_the_last_and_the_protected_checkpoints(tmp_path: Path) -> None:
    for epoch in (2, 10, 1, 9, 3):
        save_state(tmp_path, f"epoch_{epoch}.pt", epoch * 10)
    save_state(tmp_path, "latest.pt", 1)
    save_state(tmp_path, "best.pt", 20)
    (tmp_path / ".epoch_4.pt.tmp").write_bytes(b"begun")
    (tmp_path / "epoch_5.pt").write_bytes(b"without a manifest")
    before = file_names(tmp_path)
    checkpoints.prune(tmp_path, 0, set())
    assert file_names(tmp_path) == before - {".epoch_4.pt.tmp"}
    checkpoints.prune(tmp_path, 2, {"epoch_2.pt"})
    remaining = {"epoch_10.pt", "epoch_9.pt", "epoch_2.pt", "latest.pt", "best.pt"}
    assert file_names(tmp_path) == remaining | {f"{name}.json" for name in remaining} | {"epoch_5.pt"}
    checkpoints.prune(tmp_path, 1, set())
    remaining = {"epoch_10.pt", "latest.pt", "best.pt"}
    assert file_names(tmp_path) == remaining | {f"{name}.json" for name in remaining} | {"epoch_5.pt"}
    assert load_latest(tmp_path)[0] == "epoch_10.pt"


def test_content_is_on_the_disk_before_its_rename_and_the_name_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut must not leave a name without its content. No test can cut the power, so the calls are checked."""
    calls: list[tuple[str, Path]] = []
    sync, replace = os.fsync, Path.replace

    def recorded_sync(descriptor: int) -> None:
        calls.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink()))
        sync(descriptor)

    def recorded_replace(path: Path, target: Path) -> Path:
        calls.append(("rename", path))
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", recorded_sync)
    monkeypatch.setattr(Path, "replace", recorded_replace)
    save_state(tmp_path, "epoch_1.pt", 1)
    renamed = [path for what, path in calls if what == "rename"]
    assert len(renamed) == 2, "the checkpoint and its manifest"
    for path in renamed:
        place = calls.index(("rename", path))
        assert ("sync", path) in calls[:place]
        assert calls[place + 1] == ("sync", tmp_path)
