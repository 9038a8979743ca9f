"""Weights, checkpoints and what lies beside them are read below the data roots only."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine.jobs import references
from engine.results.embeddings import read_embeddings
from engine.settings import Settings
from engine.specs import Refused
from engine.specs.evaluate import EvaluateSpec
from engine.specs.questions import Outlook, Search
from engine.specs.train import TrainSpec
from engine.store import Store
from engine.tasks import evaluate
from engine.training import checkpoints, outlook
from engine.training.distributed import Place
from engine.training.evaluation import search
from engine.training.loop import Training
from engine.training.setup import prepare
from tests.support.training import TINY, tiny, train

PLAIN: dict[str, Any] = {"model": "config:tiny", "configs": {"tiny": TINY}}
"""The model alone, as an evaluation asks for it."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training, outside all roots; its weights as safetensors too."""
    folder = tmp_path_factory.mktemp("elsewhere") / "run"
    train(tiny(epochs=1), folder)
    weights = checkpoints.load(folder / "checkpoints" / "best.pt")["state_dict"]
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "weights.safetensors")
    return folder


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder from which may be read, beside the runs of nobody."""
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.setenv("VITALS_DATA_ROOTS", str(folder))
    monkeypatch.setenv("VITALS_RUNS_DIR", str(tmp_path / "runs"))
    return folder


def refusal(act: Callable[[], object], path: Path) -> str:
    """Return why something is refused, without the path that was asked for."""
    with pytest.raises(Refused) as refused:
        act()
    return str(refused.value).replace(str(path), "PATH").replace(path.name, "NAME")


def started(spec: TrainSpec, run_dir: Path, root: Path) -> Training:
    """Return a training of a queued run, before its first step."""
    return Training(prepare(spec, Place(), run_dir, (root,)), run_dir, "here")


@pytest.mark.parametrize("field", ["pretrained", "distill_pretrained"])
@pytest.mark.parametrize("name", ["checkpoints/best.pt", "weights.safetensors"])
@pytest.mark.parametrize("way", ["file", "folder"])
def test_linked_weights_are_absent(trained: Path, root: Path, tmp_path: Path, field: str, name: str, way: str) -> None:
    suffix = Path(name).suffix
    (root / "folder").symlink_to((trained / name).parent)
    path = root / "folder" / Path(name).name if way == "folder" else root / f"link{suffix}"
    (root / f"link{suffix}").symlink_to(trained / name)
    teacher = {"loss": "distill", "distill_model": "config:tiny"} if field == "distill_pretrained" else {}

    def start(path: Path) -> None:
        started(tiny(**{field: str(path)}, **teacher), tmp_path / "run", root)

    absent = root / f"nothing{suffix}"
    assert refusal(lambda: start(path), path) == refusal(lambda: start(absent), absent)
    for copy in (root / f"copy{suffix}", root / f"inner{suffix}"):
        if copy.stem == "copy":
            shutil.copy(trained / name, copy)
        else:
            copy.symlink_to(root / f"copy{suffix}")
        start(copy)


@pytest.mark.parametrize("name", ["checkpoints/best.pt", "weights.safetensors"])
def test_weights_that_are_swapped_for_a_link_are_not_read(
    trained: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """They are looked into before they are loaded, and may be swapped in between."""
    path = root / f"mine{Path(name).suffix}"
    shutil.copy(trained / name, path)
    forked = torch.random.fork_rng

    def fork_then_swap(*given: Any, **options: Any) -> Any:
        path.unlink(missing_ok=True)
        path.symlink_to(trained / name)
        return forked(*given, **options)

    monkeypatch.setattr(torch.random, "fork_rng", fork_then_swap)  # which building the model begins with
    with pytest.raises(Refused, match="cannot be read: there is no such file"):
        started(tiny(pretrained=str(path)), tmp_path / "run", root)


@pytest.mark.parametrize("way", ["checkpoint", "run", "its checkpoints", "its files"])
def test_a_linked_training_is_not_resumed(trained: Path, root: Path, tmp_path: Path, way: str) -> None:
    path = root / ("link.pt" if way == "checkpoint" else "run")
    if way == "checkpoint":
        path.symlink_to(trained / "checkpoints" / "best.pt")
    elif way == "run":
        path.symlink_to(trained)
    else:
        path.mkdir()
        (path / "checkpoints").mkdir()
        for file in (trained / "checkpoints").iterdir():
            (path / "checkpoints" / file.name).symlink_to(file)
        if way == "its checkpoints":
            shutil.rmtree(path / "checkpoints")
            (path / "checkpoints").symlink_to(trained / "checkpoints")

    def go_on(path: Path) -> None:
        list(started(tiny(epochs=2, resume=str(path)), tmp_path / "next", root).run())

    absent = root / "nothing"
    message = refusal(lambda: go_on(path), path)
    assert message == refusal(lambda: go_on(absent), absent)
    assert message.startswith("PATH has no checkpoint that can be loaded")


@pytest.mark.slow
def test_links_beside_a_checkpoint_are_not_carried_on(trained: Path, root: Path, tmp_path: Path) -> None:
    """A training that goes on takes over curves, results and the list of images that could not be read."""
    before = root / "run"
    shutil.copytree(trained, before)
    secret = tmp_path / "secret"
    secret.mkdir()
    kept = {"metrics.jsonl": '{"step": 1, "name": "a secret", "value": 1}', "results.jsonl": '{"secret": 1}'}
    kept["unreadable_data.json"] = json.dumps({f"digits:{index}": "a secret" for index in range(1797)})
    for name, text in kept.items():
        (secret / name).write_text(text)
        (before / name).unlink(missing_ok=True)
        (before / name).symlink_to(secret / name)
    after = tmp_path / "next"
    events = list(started(tiny(epochs=2, resume=str(before)), after, root).run())
    assert "secret" not in "".join(str(event) for event in events)
    assert "secret" not in (after / "results.jsonl").read_text() + (after / "metrics.jsonl").read_text()


def test_a_manifest_that_is_a_link_is_none(trained: Path, root: Path, store: Store, settings: Settings) -> None:
    """What a checkpoint's manifest tells decides about the seed and the share of an evaluation."""
    path = root / "mine.pt"
    shutil.copy(trained / "checkpoints" / "best.pt", path)
    manifest = checkpoints.manifest_path(path)
    spec = EvaluateSpec(**PLAIN, checkpoint=str(path), seed=5)
    shutil.copy(trained / "checkpoints" / "best.pt.json", manifest)
    with pytest.raises(Refused, match=r"mine\.pt was trained with seed 0"):
        references.resolve(store, settings, spec)
    resolved = references.resolve(store, settings, EvaluateSpec(**PLAIN, checkpoint=str(path)))
    assert isinstance(resolved, EvaluateSpec)
    assert resolved.samples == 40
    manifest.unlink()
    manifest.symlink_to(trained / "checkpoints" / "best.pt.json")
    assert references.resolve(store, settings, spec) == spec


@pytest.mark.timeout(120)
def test_a_pipe_beside_a_checkpoint_is_not_waited_for(
    trained: Path, root: Path, tmp_path: Path, store: Store, settings: Settings
) -> None:
    path = root / "mine.pt"
    shutil.copy(trained / "checkpoints" / "best.pt", path)
    os.mkfifo(checkpoints.manifest_path(path))
    spec = EvaluateSpec(**PLAIN, checkpoint=str(path), tasks=("retrieval",), samples=20, held_out=False)
    assert references.resolve(store, settings, spec) == spec
    assert checkpoints.request(path) == {}
    (tmp_path / "run").mkdir()
    assert list(evaluate.run(spec, tmp_path / "run")), "as any checkpoint without a manifest"
    with pytest.raises(checkpoints.Corrupt, match="no manifest"):
        checkpoints.verify(path)


@pytest.mark.slow
def test_a_linked_checkpoint_is_neither_evaluated_nor_searched_nor_looked_into(
    trained: Path, root: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    mine, link, absent = root / "mine.pt", root / "link.pt", root / "nothing.pt"
    shutil.copy(trained / "checkpoints" / "best.pt", mine)
    shutil.copy(trained / "checkpoints" / "best.pt.json", checkpoints.manifest_path(mine))
    link.symlink_to(trained / "checkpoints" / "best.pt")
    checkpoints.manifest_path(link).symlink_to(trained / "checkpoints" / "best.pt.json")
    common = PLAIN | {"tasks": ("retrieval",), "samples": 20, "held_out": False}

    def spec(path: Path) -> EvaluateSpec:
        return EvaluateSpec(**common, checkpoint=str(path))

    def problems(path: Path) -> list[str]:
        found = outlook.answer(Outlook.of(spec(path), 4))
        assert [needed.path for needed in found.needed] == ([str(path)] if path == mine else [])
        return [problem.replace(str(path), "PATH") for problem in found.problems]

    list(evaluate.run(spec(mine), folder))
    ways: list[Callable[[Path], object]] = [
        lambda path: list(evaluate.run(spec(path), folder)),
        lambda path: search.answer(Search(spec=spec(path), folder=folder, text="a seven")),
    ]
    for way in ways:
        assert refusal(lambda way=way: way(link), link) == refusal(lambda way=way: way(absent), absent)  # type: ignore[misc]
    assert problems(mine) == []
    assert problems(link) == problems(absent) != []
    assert ways[1](mine), "the same search with a checkpoint below the root"


def test_linked_embeddings_are_absent(trained: Path, root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    spec = EvaluateSpec(**PLAIN, tasks=("retrieval",), samples=20, held_out=False)
    list(evaluate.run(spec, folder))
    (folder / "embeddings.npz").rename(tmp_path / "embeddings.npz")
    (folder / "embeddings.npz").symlink_to(tmp_path / "embeddings.npz")
    with pytest.raises(Refused, match=r"embeddings.npz was not kept with this run"):
        search.answer(Search(spec=spec, folder=folder, text="a seven"))
    assert len(read_embeddings(tmp_path / "embeddings.npz").images) == 20
