"""Weights, checkpoints and the files beside them are read only below the data roots."""

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
from engine.results.checkpoints import read_manifest
from engine.results.embeddings import read_embeddings
from engine.settings import Settings
from engine.specs import Refused
from engine.specs.evaluate import EvaluateSpec
from engine.specs.questions import Outlook, Search
from engine.specs.train import TrainSpec
from engine.store import Store
from engine.tasks import evaluate
from engine.training import checkpoints
from engine.training.answers import outlook
from engine.training.distributed import Place
from engine.training.evaluation import search
from engine.training.loop import Training
from engine.training.setup import prepare
from tests.support.training import TINY, tiny, train

PLAIN: dict[str, Any] = {"model": "config:tiny", "configs": {"tiny": TINY}}
"""Fields of an evaluation that name only the model."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a training outside all roots, with its weights also as safetensors."""
    folder = tmp_path_factory.mktemp("elsewhere") / "run"
    train(tiny(epochs=1), folder)
    weights = checkpoints.load(folder / "checkpoints" / "best.pt")["state_dict"]
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "weights.safetensors")
    return folder


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only data root. The folder of runs has no runs."""
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.setenv("VITALS_DATA_ROOTS", str(folder))
    monkeypatch.setenv("VITALS_RUNS_DIR", str(tmp_path / "runs"))
    return folder


def refusal(act: Callable[[], object], path: Path) -> str:
    """Return the message of a refusal, with placeholders for the path and its name."""
    with pytest.raises(Refused) as refused:
        act()
    return str(refused.value).replace(str(path), "PATH").replace(path.name, "NAME")


def prepare_training(spec: TrainSpec, run_dir: Path, root: Path) -> Training:
    """Return a training of a queued run, before its first step."""
    return Training(prepare(spec, Place(), run_dir, (root,)), run_dir, "here")


@pytest.mark.parametrize("field", ["pretrained", "distill_pretrained"])
@pytest.mark.parametrize("name", ["checkpoints/best.pt", "weights.safetensors"])
@pytest.mark.parametrize("way", ["file", "folder"])
def test_weights_behind_links_out_of_the_roots_count_as_missing(
    trained: Path, root: Path, tmp_path: Path, field: str, name: str, way: str
) -> None:
    suffix = Path(name).suffix
    (root / "folder").symlink_to((trained / name).parent)
    path = root / "folder" / Path(name).name if way == "folder" else root / f"link{suffix}"
    (root / f"link{suffix}").symlink_to(trained / name)
    teacher = {"loss": "distill", "distill_model": "config:tiny"} if field == "distill_pretrained" else {}

    def start(path: Path) -> None:
        prepare_training(tiny(**{field: str(path)}, **teacher), tmp_path / "run", root)

    missing = root / f"nothing{suffix}"
    assert refusal(lambda: start(path), path) == refusal(lambda: start(missing), missing)
    for copy in (root / f"copy{suffix}", root / f"inner{suffix}"):
        if copy.stem == "copy":
            shutil.copy(trained / name, copy)
        else:
            copy.symlink_to(root / f"copy{suffix}")
        start(copy)


@pytest.mark.parametrize("name", ["checkpoints/best.pt", "weights.safetensors"])
def test_weights_that_are_replaced_by_a_link_are_not_read(
    trained: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The file is examined before it is loaded, and may be replaced in between."""
    path = root / f"mine{Path(name).suffix}"
    shutil.copy(trained / name, path)
    original = torch.random.fork_rng

    def replace_then_fork(*args: Any, **options: Any) -> Any:
        path.unlink(missing_ok=True)
        path.symlink_to(trained / name)
        return original(*args, **options)

    monkeypatch.setattr(torch.random, "fork_rng", replace_then_fork)  # building the model calls this first
    with pytest.raises(Refused, match="cannot be read: there is no such file"):
        prepare_training(tiny(pretrained=str(path)), tmp_path / "run", root)


@pytest.mark.parametrize("way", ["checkpoint", "run", "its checkpoints", "its files"])
def test_training_behind_a_link_is_not_resumed(trained: Path, root: Path, tmp_path: Path, way: str) -> None:
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

    def resume(path: Path) -> None:
        list(prepare_training(tiny(epochs=2, resume=str(path)), tmp_path / "next", root).run())

    missing = root / "nothing"
    message = refusal(lambda: resume(path), path)
    assert message == refusal(lambda: resume(missing), missing)
    assert message.startswith("PATH has no checkpoint that can be loaded")


@pytest.mark.slow
def test_links_beside_a_checkpoint_are_not_followed_on_resuming(trained: Path, root: Path, tmp_path: Path) -> None:
    """A resumed training copies curves, results and the list of images that could not be read."""
    before = root / "run"
    shutil.copytree(trained, before)
    secret = tmp_path / "secret"
    secret.mkdir()
    files = {"metrics.jsonl": '{"step": 1, "name": "a secret", "value": 1}', "results.jsonl": '{"secret": 1}'}
    files["unreadable_data.json"] = json.dumps({f"digits:{index}": "a secret" for index in range(1797)})
    for name, text in files.items():
        (secret / name).write_text(text)
        (before / name).unlink(missing_ok=True)
        (before / name).symlink_to(secret / name)
    after = tmp_path / "next"
    events = list(prepare_training(tiny(epochs=2, resume=str(before)), after, root).run())
    assert "secret" not in "".join(str(event) for event in events)
    assert "secret" not in (after / "results.jsonl").read_text() + (after / "metrics.jsonl").read_text()


def test_manifest_that_is_a_link_is_ignored(trained: Path, root: Path, store: Store, settings: Settings) -> None:
    """The manifest of a checkpoint decides the seed and the number of samples of an evaluation."""
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
def test_pipe_beside_a_checkpoint_does_not_block(
    trained: Path, root: Path, tmp_path: Path, store: Store, settings: Settings
) -> None:
    path = root / "mine.pt"
    shutil.copy(trained / "checkpoints" / "best.pt", path)
    os.mkfifo(checkpoints.manifest_path(path))
    spec = EvaluateSpec(**PLAIN, checkpoint=str(path), tasks=("retrieval",), samples=20, held_out=False)
    assert references.resolve(store, settings, spec) == spec
    assert read_manifest(path, None) == {}
    (tmp_path / "run").mkdir()
    assert list(evaluate.run(spec, tmp_path / "run")), "it is evaluated like a checkpoint without a manifest"
    with pytest.raises(checkpoints.Corrupt, match="no manifest"):
        checkpoints.verify(path)


@pytest.mark.slow
def test_linked_checkpoint_is_not_evaluated_searched_or_examined(trained: Path, root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    inside, link, missing = root / "mine.pt", root / "link.pt", root / "nothing.pt"
    shutil.copy(trained / "checkpoints" / "best.pt", inside)
    shutil.copy(trained / "checkpoints" / "best.pt.json", checkpoints.manifest_path(inside))
    link.symlink_to(trained / "checkpoints" / "best.pt")
    checkpoints.manifest_path(link).symlink_to(trained / "checkpoints" / "best.pt.json")
    common = PLAIN | {"tasks": ("retrieval",), "samples": 20, "held_out": False}

    def spec(path: Path) -> EvaluateSpec:
        return EvaluateSpec(**common, checkpoint=str(path))

    def problems(path: Path) -> list[str]:
        found = outlook.answer(Outlook.of(spec(path), 4))
        assert [needed.path for needed in found.needed] == ([str(path)] if path == inside else [])
        return [problem.replace(str(path), "PATH") for problem in found.problems]

    list(evaluate.run(spec(inside), folder))
    ways: list[Callable[[Path], object]] = [
        lambda path: list(evaluate.run(spec(path), folder)),
        lambda path: search.answer(Search(spec=spec(path), folder=folder, text="a seven")),
    ]
    for way in ways:
        assert refusal(lambda way=way: way(link), link) == refusal(lambda way=way: way(missing), missing)  # type: ignore[misc]
    assert problems(inside) == []
    assert problems(link) == problems(missing) != []
    assert ways[1](inside), "the same search with a checkpoint below the root"


def test_linked_embeddings_count_as_missing(trained: Path, root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    spec = EvaluateSpec(**PLAIN, tasks=("retrieval",), samples=20, held_out=False)
    list(evaluate.run(spec, folder))
    (folder / "embeddings.npz").rename(tmp_path / "embeddings.npz")
    (folder / "embeddings.npz").symlink_to(tmp_path / "embeddings.npz")
    with pytest.raises(Refused, match=r"embeddings.npz was not kept with this run"):
        search.answer(Search(spec=spec, folder=folder, text="a seven"))
    assert len(read_embeddings(tmp_path / "embeddings.npz").images) == 20
