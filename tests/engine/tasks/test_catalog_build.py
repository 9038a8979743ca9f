"""Building the files of the catalogue."""

import csv
import gzip
import json
from pathlib import Path

import open_clip
import pytest

from engine import shipped
from engine.names import ModelNotFound
from engine.results import Progress
from engine.settings import ROOT
from engine.tasks import catalogue
from engine.tasks.catalogue import VersionsDiffer, build
from tests.support.pieces import spread_here


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_build_recounts_requested_models_and_keeps_other_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first models are counted in a worker process, the last one in this process."""
    events = list(build(["torchvision:resnet18", "timm:resnet{18,26}"], tmp_path, workers=1))
    assert all(isinstance(event, Progress) for event in events)
    assert (events[0].done, events[0].total) == (0, 3)
    assert (events[-1].done, events[-1].total) == (3, 3)
    assert shipped.families(tmp_path) == {
        "timm:resnet18": "resnet",
        "timm:resnet26": "resnet",
        "torchvision:resnet18": "resnet",
    }
    (torchvision,) = read_rows(tmp_path / "torchvision.csv")
    assert torchvision["gmacs"] == "1.814073"
    assert torchvision["mparams"] == "11.689512"
    assert (torchvision["text_gmacs"], torchvision["status"], torchvision["complete"]) == ("", "ok", "True")

    operators = list(
        csv.DictReader(gzip.decompress((tmp_path / "operators.csv.gz").read_bytes()).decode().splitlines())
    )
    resnet_operators = [row for row in operators if (row["library"], row["model"]) == ("torchvision", "resnet18")]
    assert sum(int(row["flops"]) for row in resnet_operators) == round(1.814073344e9) * 2
    assert "openai" in shipped.weights(tmp_path)["ViT-B-32"]
    assert json.loads((tmp_path / "versions.json").read_text()).keys() >= {"torch", "timm", "counted_on"}

    before = read_rows(tmp_path / "timm.csv")
    assert [row["test_size"] for row in before] == ["288", "288"], "timm publishes the accuracies at 288 px"
    monkeypatch.setattr(catalogue, "spread", spread_here)
    list(build(["open_clip:ViT-S-32-alt"], tmp_path, workers=1))
    assert read_rows(tmp_path / "timm.csv") == before
    assert [row["model"] for row in read_rows(tmp_path / "open_clip.csv")] == ["ViT-S-32-alt"]
    assert not list(tmp_path.glob(".*.tmp"))

    versions = json.loads((tmp_path / "versions.json").read_text()) | {"timm": "0.0.1"}
    (tmp_path / "versions.json").write_text(json.dumps(versions))
    with pytest.raises(VersionsDiffer, match="other versions of timm"):
        list(build(["open_clip:ViT-S-32-alt"], tmp_path, workers=1))


def test_shipped_tags_equal_those_of_the_installed_open_clip() -> None:
    shipped_tags = shipped.weights(ROOT / "data" / "catalog")
    assert {(model, tag) for model, tags in shipped_tags.items() for tag in tags} == set(open_clip.list_pretrained())


def test_unknown_model_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no model matches 'timm:resnet1O'"):
        list(build(["timm:resnet1O"], tmp_path / "catalog", workers=1))
    assert not (tmp_path / "catalog").exists()
