"""Checkpoints come back as they were written or not at all, and a process's random states with them."""

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
    """A small one of the shape that a training keeps."""
    weights = torch.randn(20, 30, generator=torch.Generator().manual_seed(step))
    moments = {"state": {0: {"step": torch.tensor(float(step)), "exp_avg": weights / 2}}, "param_groups": [{"lr": 0.1}]}
    return {
        "epoch": step // 10,
        "name": "a model",
        "state_dict": {"weight": weights},
        "optimizer": moments,
        "vitals": {"done": {"step": step, "rows": [{"loss": 0.5, "notes": ["é", "<b>"]}]}},
    }


def save(folder: Path, name: str, step: int) -> Path:
    return checkpoints.save(folder, name, state(step), about={"epoch": step // 10, "step": step})


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    return bool(one == other)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def latest(folder: Path) -> tuple[str, list[str]]:
    """The name of the latest good checkpoint, whose contents must be those of its step, and the notes."""
    found = checkpoints.load_latest(folder)
    assert found is not None
    loaded, path, notes = found
    assert equal(loaded, state(loaded["vitals"]["done"]["step"]))
    return path.name, notes


def forge(path: Path, data: bytes, step: int = 1) -> Path:
    """A file with a manifest that agrees with it."""
    path.write_bytes(data)
    manifest = {"sha256": sha256(data).hexdigest(), "size": len(data), "step": step, "date": "now"}
    checkpoints.manifest_path(path).write_text(json.dumps(manifest))
    return path


def test_a_checkpoint_comes_back_with_a_manifest_that_says_what_it_is(tmp_path: Path) -> None:
    path = checkpoints.save(tmp_path / "new", "epoch_3.pt", state(31), about={"epoch": 3, "step": 31, "score": 0.5})
    assert equal(checkpoints.load(path), state(31))
    manifest = json.loads((tmp_path / "new" / "epoch_3.pt.json").read_text())
    assert manifest.pop("date").endswith("+00:00")
    data = path.read_bytes()
    digest = sha256(data).hexdigest()
    assert manifest == {"epoch": 3, "step": 31, "score": 0.5, "size": len(data), "sha256": digest}
    assert checkpoints.verify(path).step == 31
    assert names(path.parent) == {"epoch_3.pt", "epoch_3.pt.json"}


def test_the_latest_is_told_by_its_step_not_by_its_name_or_its_age(tmp_path: Path) -> None:
    assert checkpoints.load_latest(tmp_path) is None
    save(tmp_path, "epoch_9.pt", 90)
    save(tmp_path, "epoch_10.pt", 100)
    save(tmp_path, "best.pt", 20)
    assert latest(tmp_path) == ("epoch_10.pt", [])
    for step in (5, 101, 102):
        save(tmp_path, "latest.pt", step)
    assert latest(tmp_path) == ("latest.pt", [])


@pytest.mark.parametrize("cut", ["before the file", "after the file"])
def test_replacing_that_is_cut_off_leaves_the_old_one_or_the_new_one(tmp_path: Path, cut: str) -> None:
    """Between two renames the manifest is the new one, and the file may be either."""
    path, manifest = tmp_path / "latest.pt", tmp_path / "latest.pt.json"
    save(tmp_path, "latest.pt", 1)
    old, before = path.read_bytes(), json.loads(manifest.read_text())
    save(tmp_path, "latest.pt", 30)
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "before": before}))
    if cut == "before the file":
        path.write_bytes(old)
    save(tmp_path, "epoch_2.pt", 20)
    assert latest(tmp_path) == ("epoch_2.pt" if cut == "before the file" else "latest.pt", [])
    assert checkpoints.verify(path).step == (1 if cut == "before the file" else 30)
    save(tmp_path, "latest.pt", 40)
    assert latest(tmp_path) == ("latest.pt", [])
    assert "before" not in json.loads(manifest.read_text())


@pytest.mark.slow
def test_no_flipped_bit_and_no_truncation_is_taken(tmp_path: Path) -> None:
    draw = random.Random(0)
    save(tmp_path, "epoch_1.pt", 10)
    newest = save(tmp_path, "epoch_2.pt", 20)
    for path, must_fall_back in ((newest, True), (checkpoints.manifest_path(newest), False)):
        whole = path.read_bytes()
        for number in range(DAMAGES // 2):
            damaged = bytearray(whole)
            if number % 3:
                damaged[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
            else:
                del damaged[draw.randrange(len(whole)) :]
            path.write_bytes(damaged)
            name, notes = latest(tmp_path)  # whose contents are right, whatever it is
            if must_fall_back or name == "epoch_1.pt":
                assert name == "epoch_1.pt"
                assert "epoch_2.pt" in notes[0]
        path.write_bytes(whole)
    assert latest(tmp_path) == ("epoch_2.pt", [])


def test_what_is_incomplete_is_passed_over_and_named(tmp_path: Path) -> None:
    save(tmp_path, "epoch_1.pt", 10)
    (tmp_path / "tmp.pt").write_bytes(save(tmp_path, "epoch_2.pt", 20).read_bytes())
    save(tmp_path, "epoch_3.pt", 30).unlink()
    (tmp_path / ".latest.pt.tmp").write_bytes(b"begun")
    name, notes = latest(tmp_path)
    assert name == "epoch_2.pt"
    assert len(notes) == 2
    assert "epoch_3.pt cannot be read: there is no such file" in notes[0]
    assert "tmp.pt has no manifest" in notes[1]
    assert equal(checkpoints.load(tmp_path / "tmp.pt"), state(20))  # named by the user, it may be another program's
    with pytest.raises(Corrupt, match="damaged"):  # a manifest that is there counts
        checkpoints.load(forge(tmp_path / "epoch_4.pt", b"x").rename(tmp_path / "epoch_1.pt"))


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("how", ["pickle", "torch"])
def test_a_pickle_is_refused_even_with_a_manifest_that_agrees(tmp_path: Path, how: str) -> None:
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


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "list")
    with pytest.raises(Corrupt, match="holds a list"):
        checkpoints.load(forge(tmp_path / "a.pt", (tmp_path / "list").read_bytes()))
    with pytest.raises(Corrupt, match=r"a\.pt"):
        checkpoints.load(forge(tmp_path / "a.pt", b"PK\x03\x04 nothing of the kind"))
    with pytest.raises(Corrupt, match=r"gone\.pt cannot be read"):
        checkpoints.load(tmp_path / "gone.pt")


@pytest.mark.parametrize("name", ["../a.pt", "a/b.pt", ".a.pt", "a.json", "", "a\n.pt", "a.pt.pt"])
def test_a_name_stays_in_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="no name of a checkpoint"):
        checkpoints.save(tmp_path, name, state(1), about={"step": 1})


@pytest.mark.parametrize("bad", [Path("/"), np.float64(1)])
def test_a_state_that_could_not_be_loaded_again_is_not_kept(tmp_path: Path, bad: object) -> None:
    save(tmp_path, "latest.pt", 1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(TypeError, match="more than tensors"):
        checkpoints.save(tmp_path, "latest.pt", {**state(2), "vitals": {"bad": bad}}, about={"step": 2})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 500, 200_000])
def test_a_full_disk_is_named_and_hurts_no_earlier_checkpoint(tmp_path: Path, size: int) -> None:
    save(tmp_path, "latest.pt", 1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    large = {**state(2), "state_dict": {"weight": torch.zeros(100_000)}}
    with no_file_beyond(size), pytest.raises(NotSaved, match=r"latest\.pt could not .* File too large") as caught:
        checkpoints.save(tmp_path, "latest.pt", large, about={"step": 2})
    assert isinstance(caught.value.__cause__, OSError)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert latest(tmp_path) == ("latest.pt", [])


def test_pruning_leaves_the_last_and_those_to_be_kept(tmp_path: Path) -> None:
    for epoch in (2, 10, 1, 9, 3):
        save(tmp_path, f"epoch_{epoch}.pt", epoch * 10)
    save(tmp_path, "latest.pt", 1)
    save(tmp_path, "best.pt", 20)
    (tmp_path / ".epoch_4.pt.tmp").write_bytes(b"begun")
    (tmp_path / "epoch_5.pt").write_bytes(b"without a manifest")
    assert checkpoints.prune(tmp_path, 0, set()) == []
    assert not (tmp_path / ".epoch_4.pt.tmp").exists()
    assert checkpoints.prune(tmp_path, 2, {"epoch_2.pt"}) == ["epoch_3.pt", "epoch_1.pt"]
    left = {"epoch_10.pt", "epoch_9.pt", "epoch_2.pt", "latest.pt", "best.pt"}
    assert names(tmp_path) == left | {f"{name}.json" for name in left} | {"epoch_5.pt"}
    assert checkpoints.prune(tmp_path, 1, set()) == ["epoch_9.pt", "epoch_2.pt"]
    assert latest(tmp_path)[0] == "epoch_10.pt"
