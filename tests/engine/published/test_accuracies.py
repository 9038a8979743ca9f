"""Published accuracies, and how they are matched to rows of the catalogue."""

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


def rows_of_file(name: str) -> list[dict[str, str]]:
    with (match.SHIPPED / name).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_published_rows_match_a_model_or_have_a_reason(matched: match.Matched) -> None:
    """The expected rows come from the files, read with the `csv` module."""
    for kind, table in TABLES.items():
        models = matched.rows["model"].str.partition(".")[0]  # a tag may have its own model
        found = set(zip(models, matched.rows["pretrained"], strict=True))
        unmatched = matched.unmatched[matched.unmatched["kind"] == kind]
        listed = {tuple(row) for row in unmatched[["model", "pretrained"]].to_numpy()}
        rows = rows_of_file(table.shipped)
        assert {(row["model"], row["pretrained"]) for row in rows} <= found | listed
        counts = matched.counts.set_index("kind").loc[kind]
        assert counts["rows"] == len(rows)
        assert counts["matched"] + counts["unmatched"] == len(rows)
        assert counts["unmatched"] == len(unmatched)
    assert (matched.unmatched["reason"] != "").all()


def test_accuracies_are_in_the_row_of_their_model_and_size(matched: match.Matched) -> None:
    """Check each accuracy of the files against the row of the catalogue with its model, tag and size."""
    models = catalog.read(Settings().catalog_dir)
    matched_rows = models.loc[matched.rows["place"], ["library", "model", "image_size"]].to_numpy()
    assert (matched_rows == matched.rows[["library", "model", "image_size"]].to_numpy()).all()
    for table in TABLES.values():
        of_library = matched.rows[matched.rows["library"] == table.library]
        of_library = of_library.assign(model=of_library["model"].str.partition(".")[0])
        key = ["model", "pretrained", *(["image_size"] if table is TIMM else [])]
        row_of = {tuple(line[name] for name in key): line for line in of_library.to_dict("records")}
        for row in rows_of_file(table.shipped):
            if found := row_of.get(tuple(row[name] for name in key)):
                for accuracy in table.accuracies:
                    expected, value = row[accuracy.name], found[accuracy.name]
                    assert pd.isna(value) if expected == "" else value == pytest.approx(float(expected) * table.scale)


LOOKED_UP = [
    # looked up in the files of the publishers
    ("timm", "beit3_base_patch16_224", "in22k_ft_in1k", "224", "imagenet_top1", 85.390),
    ("timm", "bat_resnext26ts", "ch_in1k", "256", "imagenet_a_top1", 8.920),
    ("open_clip", "ViT-H-14-378-quickgelu", "dfn5b", "378", "zeroshot_imagenet_1k", 84.37),
    ("open_clip", "ViT-H-14-378-quickgelu", "dfn5b", "378", "zeroshot_average_38", 70.79),
    ("open_clip", "ViT-SO400M-14-SigLIP-384", "webli", "384", "retrieval_flickr_text_to_image_r1", 82.96),
    ("open_clip", "ViT-SO400M-14-SigLIP-384", "webli", "384", "retrieval_mscoco_image_to_text_r10", 94.48),
]


@pytest.mark.parametrize(("library", "model", "tag", "size", "accuracy", "percent"), LOOKED_UP)
def test_accuracies_equal_those_of_the_publishers(
    matched: match.Matched, library: str, model: str, tag: str, size: str, accuracy: str, percent: float
) -> None:
    rows = matched.rows
    row = rows[(rows["library"] == library) & (rows["model"] == model) & (rows["pretrained"] == tag)].iloc[0]
    assert row["image_size"] == size
    assert row[accuracy] == pytest.approx(percent)
    assert matched.sources.loc[row.name, accuracy] == TABLE_OF[accuracy].source


def test_costs_are_counted_at_the_image_size_of_the_accuracy(matched: match.Matched) -> None:
    """Multiply-adds of a convolutional network grow with the image area, except those of its last layer."""
    joined = matched.beside(catalog.read(Settings().catalog_dir), ["imagenet_top1"])
    resnet = joined[(joined["name"] == "timm:resnet50") & (joined["imagenet_top1"].notna())]
    by_size = resnet.drop_duplicates("image_size").set_index("image_size")["gmacs"]
    head = 2048 * 1000 / 1e9
    assert (by_size["288"] - head) / (by_size["224"] - head) == pytest.approx((288 / 224) ** 2, rel=1e-4)
    assert not resnet.duplicated(["pretrained", "image_size"]).any()


def test_costs_are_of_the_classifier_with_the_published_accuracy(matched: match.Matched) -> None:
    """timm builds some untagged models with the classifier of another data set than that of the accuracy."""
    rows = matched.rows[matched.rows["library"] == "timm"].drop_duplicates(["model", "pretrained"])
    for model, tag in zip(rows["model"], rows["pretrained"], strict=True):
        published_for = timm.get_pretrained_cfg(f"{model.partition('.')[0]}.{tag}")
        assert timm.get_pretrained_cfg(model).num_classes == published_for.num_classes, (model, tag)

    joined = matched.beside(catalog.read(Settings().catalog_dir), ["imagenet_top1"]).set_index("name")
    untagged, tagged = joined.loc["timm:tiny_vit_21m_224"], joined.loc["timm:tiny_vit_21m_224.in1k"]
    assert pd.isna(untagged["imagenet_top1"])
    assert (tagged["imagenet_top1"], tagged["pretrained"]) == (83.268, "in1k")
    fewer_mparams = (576 + 1) * (21841 - 1000) / 1e6  # weights and biases of a linear layer
    assert tagged["mparams"] == pytest.approx(untagged["mparams"] - fewer_mparams)
    assert tagged["gmacs"] == pytest.approx(untagged["gmacs"] - 576 * (21841 - 1000) / 1e9, rel=1e-6)


def test_accuracies_are_percentages_and_their_help_names_the_source(published: pd.DataFrame) -> None:
    assert published["percent"].between(0, 100).all()
    assert published.groupby("accuracy")["percent"].max().min() > 10  # no value is a fraction
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
def test_unmatched_rows_have_the_right_reason(tmp_path: Path, row: dict[str, object], reason: str) -> None:
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


def test_quickgelu_variants_share_costs_but_keep_separate_rows(tmp_path: Path) -> None:
    models = catalog.read(write_catalogue(tmp_path / "catalog"))
    lines = [line("open_clip", name, accuracy="zeroshot_mnist") for name in ("ViT-B-32", "ViT-B-32-quickgelu")]
    lines.append(line("open_clip", "ViT-B-32", accuracy="zeroshot_stl_10"))
    joined = match.match(pd.DataFrame(lines), models, {}).beside(models, ["zeroshot_mnist", "zeroshot_stl_10"])
    shown = joined.loc[joined["model"] == "ViT-B-32", ["pretrained", "published"]]
    assert shown.to_numpy().tolist() == [["tag", "somebody"], ["tag (ViT-B-32-quickgelu)", "somebody"]]


def test_sizes_to_count_are_the_published_ones(published: pd.DataFrame) -> None:
    sizes = match.sizes(published)
    assert set(sizes["timm:resnet50"]) >= {"224", "288"}
    assert not any(name.startswith("open_clip:") for name in sizes)
