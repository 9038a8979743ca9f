"""Costs at published image sizes: sizes other than a model's default, for which accuracies are published."""

import csv
import json
from pathlib import Path

import pytest
import timm

from engine.published import match
from engine.report.catalog import catalog
from engine.results import LOW_MEMORY
from engine.settings import Settings
from engine.specs import format_image_size
from engine.tasks import catalogue
from tests.support.pieces import spread_here


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_build_sizes_counts_missing_sizes_and_keeps_existing_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The models are counted in this process; test_catalog_build.py has a test with a worker process."""
    monkeypatch.setattr(catalogue, "spread", spread_here)
    list(catalogue.build(["timm:resnet18", "timm:test_vit"], tmp_path, workers=1))
    wanted = {"timm:resnet18": ["224", "288", "160"], "timm:test_vit": ["161"], "timm:resnet26": ["288"]}
    events = list(catalogue.build_sizes(wanted, tmp_path, workers=1))
    assert (events[0].done, events[0].total) == (0, 3)  # 224 is the default; resnet26 is not in this catalogue
    small, large, odd = read_rows(tmp_path / "sizes" / "timm.csv")
    assert [row["image_size"] for row in (small, large)] == ["160", "288"]
    head = 512 * 1000 / 1e9
    assert float(small["gmacs"]) - head == pytest.approx((1.814073 - head) * (160 / 224) ** 2, rel=1e-5)
    assert float(large["mparams"]) == 11.689512
    assert (odd["model"], odd["status"]) == ("test_vit", "error")
    assert "161" in odd["error"]

    frame = catalog.read(tmp_path)
    assert list(frame["image_size"]) == ["224", "160", "160", "288", "161"]  # default sizes first
    assert list(catalogue.build_sizes(wanted, tmp_path, workers=1))[-1].total == 0
    assert list(catalogue.build_sizes({"timm:resnet18": ["160"]}, tmp_path, workers=1))[-1].total == 0

    versions = json.loads((tmp_path / "versions.json").read_text()) | {"timm": "0.0.1"}
    (tmp_path / "sizes" / "versions.json").write_text(json.dumps(versions))
    assert list(catalog.read(tmp_path)["image_size"]) == ["224", "160"]  # counted with other versions: not shown
    (tmp_path / "versions.json").write_text(json.dumps(versions))
    with pytest.raises(catalogue.VersionsDiffer):
        list(catalogue.build_sizes(wanted, tmp_path, workers=1))


def test_every_published_size_is_shipped() -> None:
    frame = catalog.read(Settings().catalog_dir)
    counted = set(zip(frame["name"], frame["image_size"], strict=True))
    wanted = {(name, size) for name, sizes in match.sizes(match.read()).items() for size in sizes}
    assert wanted <= counted
    assert not frame.duplicated(["library", "model", "image_size"]).any()


@pytest.mark.slow
def test_shipped_size_rows_equal_a_fresh_count() -> None:
    for row in read_rows(Settings().catalog_dir / "sizes" / "timm.csv")[::100]:
        counted = catalogue.count(f"timm:{row['model']}", row["image_size"])
        assert catalogue.catalogue_row(counted) == row


@pytest.mark.slow
def test_counted_memory_of_models_with_lstms_has_a_note() -> None:
    """Only the three Sequencers have LSTMs. Their notes are shown as remarks."""
    row = catalogue.count("timm:sequencer2d_s", "56")
    assert row.kept_mb, row.error
    assert row.notes == (LOW_MEMORY,)
    frame = catalog.read(Settings().catalog_dir)
    assert set(frame.loc[frame["remark"] == LOW_MEMORY, "family"]) == {"sequencer"}
    assert (frame.loc[frame["family"] == "sequencer", "remark"] == LOW_MEMORY).all()


def test_shipped_catalogue_has_the_test_sizes_of_timm() -> None:
    frame = catalog.read(Settings().catalog_dir)
    rows = frame[(frame["library"] == "timm") & (frame["status"] == "ok")].drop_duplicates("name")
    assert len(rows) > 1300
    for model, train_size, test_size in zip(rows["model"], rows["image_size"], rows["test_size"], strict=True):
        _, *resolution = timm.get_pretrained_cfg(model).test_input_size or (0, 0, 0)
        size = format_image_size((resolution[0], resolution[1])) if any(resolution) else ""
        assert test_size == ("" if size == train_size else size), model
