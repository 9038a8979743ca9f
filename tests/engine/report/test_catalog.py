"""The catalogue as a table: reading, search, filters and versions."""

import json
from importlib import metadata
from pathlib import Path

import pandas as pd
import pytest

from engine import shipped
from engine.published import match
from engine.report.catalog import catalog, choose
from engine.report.timings import stored
from engine.results import LOW_MEMORY
from engine.settings import Settings
from engine.specs import Refused
from engine.store import Store
from tests.support.page import benchmark_row, finish, queue_benchmark, write_catalogue

CSV = """library,model,family,image_size,mparams,gmacs,macts,complete,uncounted,notes,status,error
open_clip,ViT-B-32,clip_vit,224,151.28,7.39,10.3,True,{},[],ok,
open_clip,ViT-L-14-336,clip_vit,336,427.94,197.76,270.0,True,{},[],ok,
timm,resnet50,resnet,224,25.56,4.11,11.1,True,{},[],ok,
timm,resnet50d_wide,resnet,224x320,26.0,6.2,16.9,False,"{""sort"": 2}","[""work of unknown size is \
missing: sort (2 calls)""]",ok,
timm,broken,none,1024,,,,True,{},[],error,RuntimeError: no
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = CSV.splitlines(keepends=True)
    (tmp_path / "open_clip.csv").write_text("".join(lines[:3]))
    (tmp_path / "timm.csv").write_text("".join([lines[0], *lines[3:]]))
    return tmp_path


@pytest.fixture
def frame(folder: Path) -> pd.DataFrame:
    return catalog.read(folder)


def test_read_keeps_text_and_numbers_apart(frame: pd.DataFrame) -> None:
    assert list(frame["image_size"]) == ["224", "336", "224", "224x320", "1024"]
    assert frame["gmacs"].dtype == float
    assert frame.loc[2, "name"] == "timm:resnet50"
    assert frame.loc[0, "error"] == ""


def test_remarks_name_missing_work_and_errors(frame: pd.DataFrame) -> None:
    assert list(frame["remark"]) == [
        *("", "", ""),
        "incomplete: work of unknown size is missing: sort (2 calls)",
        "error: RuntimeError: no",
    ]


def test_remark_of_a_complete_count_says_that_its_memory_is_too_low(folder: Path) -> None:
    line = CSV.splitlines()[3]
    notes = [json.dumps([note]).replace('"', '""') for note in ("read as a boolean", LOW_MEMORY)]
    with (folder / "timm.csv").open("a") as file:
        for number, note in enumerate(notes):
            file.write(line.replace("resnet50", f"noted{number}").replace("[]", f'"{note}"') + "\n")
    assert list(catalog.read(folder)["remark"])[-2:] == ["", LOW_MEMORY]


def test_sizes_to_count_are_common_to_the_selected_models(frame: pd.DataFrame) -> None:
    other_sizes = frame.assign(image_size=["288", "288", "288", "288", "1024"])
    catalogue = pd.concat([frame, other_sizes.iloc[:4], frame.iloc[2:3].assign(image_size="160")], ignore_index=True)
    is_resnet50, is_either = catalogue["model"] == "resnet50", catalogue["model"].isin(["resnet50", "ViT-B-32"])
    assert catalog.sizes_to_count(catalogue, catalogue[is_resnet50]) == ("160", "224", "288")
    assert catalog.sizes_to_count(catalogue, catalogue[is_resnet50 & (catalogue["image_size"] != "224")]) == (
        "160",
        "288",
    )
    assert catalog.sizes_to_count(catalogue, catalogue[is_either & (catalogue["image_size"] == "288")]) == ("288",)
    assert catalog.sizes_to_count(catalogue, catalogue[is_either]) == (), "ViT-B-32 was not selected at 160 px"
    assert catalog.sizes_to_count(catalogue, frame) == (), "the models' own sizes are the default"


def test_folder_without_catalogue_gives_an_empty_table(tmp_path: Path) -> None:
    empty = catalog.read(tmp_path)
    assert empty.empty
    assert {"name", "library", "model", "gmacs", "remark"} <= set(empty.columns)
    assert shipped.versions(tmp_path) == {}


@pytest.mark.parametrize(
    ("search", "models"),
    [
        ("", 5),
        ("vit", 2),
        ("VIT-B-*", 1),
        ("resnet50", 2),
        ("timm:resnet50*", 2),
        ("resnet50?", 0),
        ("*{32,336}", 2),
        ("open_clip", 2),
        ("clip 336", 1),
        ("family:res*", 2),
        ("vit-b-32, broken", 2),
        ("nothing like it", 0),
        ("ViT-B/32", 1),
        ("vit l14", 1),
        ("/", 0),
        ("[", 0),
    ],
)
def test_search_finds_the_expected_number_of_models(frame: pd.DataFrame, search: str, models: int) -> None:
    assert len(catalog.select(frame, search=search)) == models


def test_search_finds_pretrained_tags_and_suggests_close_names(frame: pd.DataFrame) -> None:
    tagged = frame.assign(tags=["openai laion2b_s34b_b79k", "openai", "a1_in1k", "", ""])
    assert list(catalog.select(tagged, search="laion2b")["model"]) == ["ViT-B-32"]
    assert list(catalog.select(tagged, search="resnet50.a1_in1k, vit openai")["model"]) == [
        *("ViT-B-32", "ViT-L-14-336", "resnet50")
    ]
    assert list(catalog.select(tagged, search="resnet50.a1*")["model"]) == ["resnet50"]
    assert catalog.closest(frame, "resnet500") == ["resnet50", "resnet50d_wide"]
    assert catalog.closest(frame, "ViT-L-14@336px")[0] == "ViT-L-14-336"


def test_filters_combine_and_bounds_omit_rows_without_a_value(frame: pd.DataFrame) -> None:
    assert list(catalog.select(frame, max_gmacs=10)["model"]) == ["ViT-B-32", "resnet50", "resnet50d_wide"]
    assert list(catalog.select(frame, max_gmacs=10, library="timm", max_mparams=25.9)["model"]) == ["resnet50"]
    assert list(catalog.select(frame, min_mparams=400)["model"]) == ["ViT-L-14-336"]
    assert list(catalog.select(frame, families=["resnet"], image_sizes=["224x320"])["model"]) == ["resnet50d_wide"]
    assert list(catalog.select(frame, image_size=224)["model"]) == ["ViT-B-32", "resnet50", "resnet50d_wide"]
    assert list(catalog.select(frame, max_gmacs=None)["model"])[-1] == "broken"


def test_long_search_texts_are_refused(frame: pd.DataFrame) -> None:
    for search, answer in (("vit " * 300, "at most 1,000 characters"), (",".join(["{a,b}" * 9] * 6), "3,000 patterns")):
        with pytest.raises(Refused, match=answer):
            catalog.select(frame, search=search)


def test_image_sizes_and_families_are_in_a_useful_order(frame: pd.DataFrame) -> None:
    assert catalog.image_sizes(frame) == ["224", "224x320", "336", "1024"]
    assert catalog.families(frame) == ["clip_vit", "resnet", "none"]


def test_versions_that_differ_from_the_installed_ones_are_named(folder: Path) -> None:
    installed = metadata.version("pydantic")
    counted = {"pydantic": f"{installed}+cpu", "pandas": "0.1", "no-such-package": "1.0", "counted_on": "2026-11-20"}
    (folder / "versions.json").write_text(json.dumps(counted))
    versions = shipped.versions(folder)
    assert shipped.mismatches(versions) == {
        "pandas": ("0.1", metadata.version("pandas")),
        "no-such-package": ("1.0", "not installed"),
    }


def test_description_has_versions_and_date() -> None:
    counted = {"torch": "2.15.0", "timm": "1.0.31", "fvcore": "0.1", "counted_on": "2026-11-20T10:00:00+00:00"}
    assert catalog.describe(counted) == "torch 2.15.0, timm 1.0.31 on 2026-11-20"


def test_shipped_catalogue_can_be_read_and_searched() -> None:
    shipped = catalog.read(Settings().catalog_dir)
    assert not shipped.duplicated(["library", "model", "image_size"]).any()
    vit = shipped[shipped["name"] == "open_clip:ViT-B-32"].iloc[0]
    assert vit["gflops"] == pytest.approx(2 * vit["gmacs"])
    assert len(catalog.select(shipped, search="ViT-B-32", library="open_clip")) >= 1


@pytest.mark.slow
def test_latency_is_joined_only_to_costs_at_the_same_text_length(tmp_path: Path, store: Store) -> None:
    clip: dict[str, object] = {"library": "open_clip", "image_size": "224"}
    lines = []
    for model, length, latency in (("ViT-B-32", 77, 50.0), ("ViT-B-32", 16, 35.0), ("ViT-L-14", 16, 90.0)):
        row = benchmark_row(model, **clip, context_length=length, latency_ms=latency)
        run_id = queue_benchmark(store, f"open_clip:{model}")
        finish(store, run_id, [row])
        lines.append(stored.of_run(store.run(run_id), [row]))
    latest = stored.latest(reversed(lines))
    (setting,) = stored.settings(latest)
    models = catalog.read(write_catalogue(tmp_path / "catalog"))
    no_accuracies = match.match(match.read().iloc[:0], models, {})
    table = choose.table(models, no_accuracies, [], stored.within(latest, setting), "torch 1", setting.label)
    table = table.set_index("name")
    assert table.loc["open_clip:ViT-B-32", "latency_ms"] == 50.0
    assert pd.isna(table.loc["open_clip:ViT-L-14", "latency_ms"])
    provenance = table.loc["open_clip:ViT-B-32", "provenance"]
    assert "latency measured: eager, batch 8, float32 on a cpu, 2 threads" in provenance
