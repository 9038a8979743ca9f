"""Published accuracies and the rows of the catalogue they belong to."""

import csv
from pathlib import Path

import pandas as pd
import pytest
import timm

from engine import shipped
from engine.published import match
from engine.published.publishers import ACCURACIES, TABLE_OF, TABLES, TIMM
from engine.report.catalog import catalog, choose
from engine.report.quantities import QUANTITIES
from engine.report.timings import stored
from engine.report.timings.stored import Setting
from engine.settings import Settings
from tests.support.page import write_catalogue


@pytest.fixture(scope="module")
def published() -> pd.DataFrame:
    return match.read()


@pytest.fixture(scope="module")
def matched(published: pd.DataFrame) -> match.Matched:
    folder = Settings().catalog_dir
    return match.match(published, catalog.read(folder), shipped.versions(folder))


def written(name: str) -> list[dict[str, str]]:
    with (match.SHIPPED / name).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_every_published_row_finds_its_model_or_is_listed_with_the_reason(matched: match.Matched) -> None:
    """Against the files, read by the csv module alone."""
    for kind, table in TABLES.items():
        models = matched.rows["model"].str.partition(".")[0]  # a tag may be a model of its own
        found = set(zip(models, matched.rows["pretrained"], strict=True))
        left = matched.unmatched[matched.unmatched["kind"] == kind]
        listed = {tuple(row) for row in left[["model", "pretrained"]].to_numpy()}
        rows = written(table.shipped)
        assert {(row["model"], row["pretrained"]) for row in rows} <= found | listed
        counts = matched.counts.set_index("kind").loc[kind]
        assert counts["rows"] == len(rows)
        assert counts["matched"] + counts["unmatched"] == len(rows)
        assert counts["unmatched"] == len(left)
    assert (matched.unmatched["reason"] != "").all()


def test_an_accuracy_stands_in_the_row_of_its_own_model_and_size(matched: match.Matched) -> None:
    """Every accuracy of the files, at the place of the catalogue where it should be."""
    models = catalog.read(Settings().catalog_dir)
    at = models.loc[matched.rows["place"], ["library", "model", "image_size"]].to_numpy()
    assert (at == matched.rows[["library", "model", "image_size"]].to_numpy()).all()
    for table in TABLES.values():
        mine = matched.rows[matched.rows["library"] == table.library]
        mine = mine.assign(model=mine["model"].str.partition(".")[0])
        key = ["model", "pretrained", *(["image_size"] if table is TIMM else [])]
        places = {tuple(line[name] for name in key): line for line in mine.to_dict("records")}
        for row in written(table.shipped):
            if found := places.get(tuple(row[name] for name in key)):
                for accuracy in table.accuracies:
                    theirs, got = row[accuracy.name.removeprefix(table.prefix)], found[accuracy.name]
                    assert pd.isna(got) if theirs == "" else got == pytest.approx(float(theirs) * table.scale)


HAND = [
    # looked up in the publishers' own files, the costs in papers
    ("timm", "beit3_base_patch16_224", "in22k_ft_in1k", "224", "imagenet_top1", 85.390),
    ("timm", "bat_resnext26ts", "ch_in1k", "256", "imagenet_a_top1", 8.920),
    ("open_clip", "ViT-H-14-378-quickgelu", "dfn5b", "378", "zeroshot_imagenet_1k", 84.37),
    ("open_clip", "ViT-H-14-378-quickgelu", "dfn5b", "378", "zeroshot_average_38", 70.79),
    ("open_clip", "ViT-SO400M-14-SigLIP-384", "webli", "384", "retrieval_flickr_text_to_image_r1", 82.96),
    ("open_clip", "ViT-SO400M-14-SigLIP-384", "webli", "384", "retrieval_mscoco_image_to_text_r10", 94.48),
]


@pytest.mark.parametrize(("library", "model", "tag", "size", "accuracy", "percent"), HAND)
def test_accuracies_by_hand(
    matched: match.Matched, library: str, model: str, tag: str, size: str, accuracy: str, percent: float
) -> None:
    rows = matched.rows
    row = rows[(rows["library"] == library) & (rows["model"] == model) & (rows["pretrained"] == tag)].iloc[0]
    assert row["image_size"] == size
    assert row[accuracy] == pytest.approx(percent)
    assert matched.sources.loc[row.name, accuracy] == TABLE_OF[accuracy].source


def test_costs_are_counted_at_the_rows_own_image_size(matched: match.Matched) -> None:
    """A convolutional network's multiply-adds grow with the area of the image; its last layer's do not."""
    joined = matched.beside(catalog.read(Settings().catalog_dir), ["imagenet_top1"])
    resnet = joined[(joined["name"] == "timm:resnet50") & (joined["imagenet_top1"].notna())]
    by_size = resnet.drop_duplicates("image_size").set_index("image_size")["gmacs"]
    head = 2048 * 1000 / 1e9
    assert (by_size["288"] - head) / (by_size["224"] - head) == pytest.approx((288 / 224) ** 2, rel=1e-4)
    assert not resnet.duplicated(["pretrained", "image_size"]).any()


def test_costs_are_those_of_the_classifier_that_has_the_accuracy(matched: match.Matched) -> None:
    """timm builds some models without a tag for another data set than the one of the published accuracy."""
    rows = matched.rows[matched.rows["library"] == "timm"].drop_duplicates(["model", "pretrained"])
    for model, tag in zip(rows["model"], rows["pretrained"], strict=True):
        published_for = timm.get_pretrained_cfg(f"{model.partition('.')[0]}.{tag}")
        assert timm.get_pretrained_cfg(model).num_classes == published_for.num_classes, (model, tag)

    joined = matched.beside(catalog.read(Settings().catalog_dir), ["imagenet_top1"]).set_index("name")
    without, tagged = joined.loc["timm:tiny_vit_21m_224"], joined.loc["timm:tiny_vit_21m_224.in1k"]
    assert pd.isna(without["imagenet_top1"])
    assert (tagged["imagenet_top1"], tagged["pretrained"]) == (83.268, "in1k")
    fewer = (576 + 1) * (21841 - 1000) / 1e6  # weights and biases of a linear layer
    assert tagged["mparams"] == pytest.approx(without["mparams"] - fewer)
    assert tagged["gmacs"] == pytest.approx(without["gmacs"] - 576 * (21841 - 1000) / 1e9, rel=1e-6)


def test_everything_is_in_per_cent_and_said_to_be_published(published: pd.DataFrame) -> None:
    assert published["percent"].between(0, 100).all()
    assert published.groupby("accuracy")["percent"].max().min() > 10  # nothing was left a fraction
    for name in ACCURACIES:
        assert QUANTITIES[name].unit == "%"
        assert QUANTITIES[name].better == "larger"
        assert TABLE_OF[name].repository in QUANTITIES[name].help
    assert len(TABLE_OF) == 12 + 39 + 12


def line(library: str, model: str, size: str = "", accuracy: str = "imagenet_top1") -> dict[str, object]:
    return {
        **{"library": library, "model": model, "pretrained": "tag", "image_size": size},
        **{"accuracy": accuracy, "percent": 50.0, "source": "somebody"},
    }


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (line("timm", "resnet18", "224"), ""),
        (line("timm", "resnet18", "288"), "not counted at 288 px: run catalog-build --sizes-only"),
        (line("timm", "resnet19", "224"), "timm 1.2 has no model of this name"),
        (line("timm", "broken", "1024"), "cannot be counted at 1024 px: RuntimeError: **no** <b>way</b>"),
        (line("open_clip", "ViT-B-32", accuracy="zeroshot_mnist"), ""),
        (line("open_clip", "ViT-B-32-quickgelu", accuracy="zeroshot_mnist"), ""),
        (line("open_clip", "ViT-B-33-quickgelu", accuracy="zeroshot_mnist"), "open_clip 3.4 has no model of this name"),
    ],
)
def test_the_reason_is_true(tmp_path: Path, row: dict[str, object], reason: str) -> None:
    models = catalog.read(write_catalogue(tmp_path / "catalog"))
    found = match.match(pd.DataFrame([row]), models, {"timm": "1.2", "open_clip_torch": "3.4"})
    assert list(found.unmatched["reason"]) == ([reason] if reason else [])
    assert len(found.rows) == (0 if reason else 1)
    if not reason:
        assert models.at[found.rows["place"].iloc[0], "name"] == f"{row['library']}:{row['model']}".removesuffix(
            "-quickgelu"
        )


def test_models_without_a_published_accuracy_stay_in_the_table(tmp_path: Path) -> None:
    models = catalog.read(write_catalogue(tmp_path / "catalog"))
    lines = [line("timm", "resnet18", "224"), line("timm", "resnet18", "224") | {"pretrained": "other"}]
    found = match.match(pd.DataFrame(lines), models, {})
    timed = stored.within(stored.table([]), Setting())
    table = choose.table(models, found, ["imagenet_top1"], timed, "torch 1")
    assert len(table) == len(models) + 1
    assert table.index.is_unique
    assert list(table.loc[["timm:resnet18 224 other", "timm:resnet18 224 tag"], "imagenet_top1"]) == [50.0, 50.0]
    assert "published by somebody" in table.loc["timm:resnet18 224 tag", "provenance"]
    assert table.loc["timm:resnet50 224", "provenance"] == "costs counted here, torch 1"


def test_two_names_of_the_same_cost_stay_apart(tmp_path: Path) -> None:
    models = catalog.read(write_catalogue(tmp_path / "catalog"))
    lines = [line("open_clip", name, accuracy="zeroshot_mnist") for name in ("ViT-B-32", "ViT-B-32-quickgelu")]
    joined = match.match(pd.DataFrame(lines), models, {}).beside(models, ["zeroshot_mnist"])
    assert list(joined.loc[joined["model"] == "ViT-B-32", "pretrained"]) == ["tag", "tag (ViT-B-32-quickgelu)"]


def test_sizes_wanted_are_those_published(published: pd.DataFrame) -> None:
    wanted = match.sizes(published)
    assert set(wanted["timm:resnet50"]) >= {"224", "288"}
    assert not any(name.startswith("open_clip:") for name in wanted)
