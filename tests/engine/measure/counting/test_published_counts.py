"""Shipped and new counts against published numbers, each with its source."""

import csv
from collections.abc import Iterator

import pytest

from engine.settings import Settings
from engine.shipped import COLUMNS
from engine.specs import ProfileSpec
from engine.tasks.catalogue import catalogue_row, count
from engine.tasks.profile import profile

PAPERS = {
    # model: (GMACs, parameters in millions, source)
    "torchvision:resnet18": (1.8, 11.7, "He et al. 2015, arXiv:1512.03385, table 1"),
    "torchvision:resnet34": (3.6, 21.8, "He et al. 2015, table 1"),
    "torchvision:resnet50": (4.1, 25.6, "torchvision documentation: GFLOPS 4.09 of multiply-adds"),
    "torchvision:resnet101": (7.8, 44.5, "torchvision documentation: 7.80"),
    "torchvision:resnet152": (11.5, 60.2, "torchvision documentation: 11.51"),
    "timm:vgg16": (15.5, 138.4, "Simonyan & Zisserman 2014; torchvision documentation: 15.47"),
    "timm:deit_tiny_patch16_224": (1.26, 5.7, "Touvron et al. 2020, arXiv:2012.12877: 1.3"),
    "timm:deit_base_patch16_224": (17.58, 86.6, "Touvron et al. 2020: 17.6, 86M"),
    "timm:convnext_tiny": (4.5, 28.6, "Liu et al. 2022, arXiv:2201.03545, table 9"),
    "timm:convnext_base": (15.4, 88.6, "Liu et al. 2022, table 9"),
    "timm:swin_tiny_patch4_window7_224": (4.5, 28.3, "Liu et al. 2021, arXiv:2103.14030, table 1"),
    "timm:swin_base_patch4_window7_224": (15.4, 87.8, "Liu et al. 2021, table 1"),
    "timm:efficientnet_b0": (0.39, 5.3, "Tan & Le 2019, arXiv:1905.11946, table 2"),
    "timm:mobilenetv2_100": (0.30, 3.5, "Sandler et al. 2018, arXiv:1801.04381, table 4"),
    "timm:regnety_040": (4.0, 20.6, "Radosavovic et al. 2020, arXiv:2003.13678, table 8"),
}
PROFILER = {
    # docs/model_profile.csv of mlfoundations/open_clip at 3b37473: gflops, image_gflops, text_gflops, mparams
    "ViT-B-32": (14.78, 8.82, 5.96, 151.28),
    "ViT-B-16": (41.09, 35.13, 5.96, 149.62),
    "ViT-L-14": (175.33, 162.03, 13.3, 427.62),
    "ViT-H-14": (381.68, 334.59, 47.09, 986.11),
    "ViT-bigG-14": (1065.36, 967.5, 97.86, 2539.57),
    "RN50": (18.18, 12.22, 5.96, 102.01),
    "RN50x64": (552.65, 529.11, 23.55, 623.26),
    "convnext_base": (36.67, 30.71, 5.96, 151.52),
    "ViT-B-16-SigLIP": (46.44, 35.42, 11.02, 203.16),
    "EVA02-B-16": (41.09, 35.13, 5.96, 149.69),
    "mt5-base-ViT-B-32": (22.12, 8.82, 13.3, 365.71),
}


COUNTED = (
    # counting a larger model of the same architecture again would find nothing more
    *("torchvision:resnet18", "torchvision:resnet50", "timm:vgg16", "timm:deit_tiny_patch16_224"),
    *("timm:convnext_tiny", "timm:swin_tiny_patch4_window7_224", "timm:efficientnet_b0", "timm:mobilenetv2_100"),
    *("timm:regnety_040", "open_clip:ViT-B-32", "open_clip:RN50", "open_clip:convnext_base"),
    *("open_clip:ViT-B-16-SigLIP", "open_clip:EVA02-B-16", "open_clip:mt5-base-ViT-B-32"),
)
"""One or two models of each architecture above."""


def shipped_rows() -> Iterator[dict[str, str]]:
    """Yield every row of the shipped catalogue."""
    for path in sorted(Settings().catalog_dir.glob("*.csv")):
        with path.open(newline="") as file:
            yield from csv.DictReader(file)


@pytest.fixture(scope="module")
def shipped() -> dict[str, dict[str, str]]:
    """Return {library:model: row} of the shipped catalogue."""
    return {f"{row['library']}:{row['model']}": row for row in shipped_rows()}


@pytest.mark.parametrize("name", PAPERS)
def test_shipped_counts_equal_those_of_the_papers(name: str, shipped: dict[str, dict[str, str]]) -> None:
    gmacs, mparams, _source = PAPERS[name]
    row = shipped[name]
    assert float(row["gmacs"]) == pytest.approx(gmacs, rel=0.02, abs=0.006)
    assert float(row["mparams"]) == pytest.approx(mparams, rel=0.011)
    assert row["complete"] == "True"


@pytest.mark.parametrize("name", PROFILER)
def test_shipped_counts_equal_those_of_the_open_clip_profile(name: str, shipped: dict[str, dict[str, str]]) -> None:
    row = shipped[f"open_clip:{name}"]
    columns = ("gflops", "image_gflops", "text_gflops", "mparams")
    assert tuple(round(float(row[column]), 2) for column in columns) == PROFILER[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", COUNTED)
def test_new_count_equals_the_shipped_row(name: str, shipped: dict[str, dict[str, str]]) -> None:
    assert catalogue_row(count(name)) == shipped[name]


@pytest.mark.slow
def test_count_of_1024_tokens_equals_that_of_the_open_clip_profile() -> None:
    spec = ProfileSpec(models=("open_clip:nllb-clip-base",), context_length=1024)
    row = profile("open_clip:nllb-clip-base", spec).row
    assert round(row.text_gflops or 0, 2) == 360.78


def test_shipped_catalogue_is_complete_and_explains_its_gaps() -> None:
    rows = list(shipped_rows())
    assert len(rows) >= 1500
    for row in rows:
        assert list(row) == COLUMNS
        if row["status"] == "ok":
            assert float(row["gflops"]) == pytest.approx(2 * float(row["gmacs"]), abs=2e-6)
            assert (row["complete"] == "True") == ("unknown size" not in row["notes"])
        else:
            assert row["error"]
