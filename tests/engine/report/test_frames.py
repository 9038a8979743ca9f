"""Tables of results, compared with values computed by hand."""

import json
from pathlib import Path

import pandas as pd

from engine import results
from engine.report import frames
from engine.report.catalog import catalog
from engine.report.quantities import CLIP_LABELS, QUANTITIES
from engine.results import ModuleCount, OperatorCount, ProfileRow
from engine.settings import Settings


def row(model: str = "ViT-B-32", **fields: object) -> ProfileRow:
    defaults: dict[str, object] = {"library": "open_clip", "model": model, "counter": "torch", "device": "meta"}
    return ProfileRow.model_validate(defaults | {"batch_size": 1, "precision": "float32"} | fields)


def test_profile_has_all_fields_sorted_by_cost_with_failures_last() -> None:
    rows = [
        row("c", gmacs=8.0, mparams=3.0),
        row("failed", status="error", error="RuntimeError: no"),
        row("b", gmacs=2.0, mparams=9.0),
        row("a", gmacs=2.0, mparams=4.0, uncounted={"aten.sort": 3}, notes=("one", "two")),
    ]
    frame = frames.profile(rows)
    assert list(frame["model"]) == ["a", "b", "c", "failed"]
    assert set(frame.columns) == set(ProfileRow.model_fields) - {"operators"}
    assert json.loads(frame.loc[0, "uncounted"]) == {"aten.sort": 3}
    assert frame.loc[0, "notes"] == "one; two"
    assert frame.loc[3, "error"] == "RuntimeError: no"
    assert frame["gmacs"].dtype == float


def test_no_rows_give_an_empty_table_with_all_columns() -> None:
    assert list(frames.profile([]).columns[:4]) == ["library", "model", "status", "error"]
    assert set(frames.profile([]).columns) == set(ProfileRow.model_fields) - {"operators"}
    for counter in ("torch", "fvcore"):
        assert list(frames.reference([], counter).columns) == frames.REFERENCE[counter]


def test_every_value_of_a_table_has_a_label() -> None:
    """Without one, a column has neither unit nor help text. Shares of spread are shown as spread_percent."""
    unlabelled = {"spread", "forward_spread", "backward_spread"}
    sizes = {"context_length", "embed_dim", "image_width", "text_width"}
    values = set(catalog.read(Settings().catalog_dir).select_dtypes("number")) - sizes
    for row_type in results.kinds().values():
        values |= {name for name, field in row_type.model_fields.items() if field.annotation == float | None}
    missing = values - {*QUANTITIES, *CLIP_LABELS} - unlabelled
    assert not missing, "add these to QUANTITIES or, without a help text, to CLIP_LABELS in engine/report/quantities.py"


def test_reference_has_the_columns_of_the_profiler_of_open_clip() -> None:
    assert ",".join(frames.REFERENCE["torch"]) == (
        "model,image_size,image_width,text_width,embed_dim,mparams,image_mparams,text_mparams,"
        "gflops,image_gflops,text_gflops"
    )
    assert ",".join(frames.REFERENCE["fvcore"]) == (
        "model,image_size,image_width,text_width,embed_dim,mparams,image_mparams,text_mparams,"
        "gmacs,macts,image_gmacs,image_macts,text_gmacs,text_macts"
    )


def test_reference_rounds_to_two_decimals_and_uses_the_height() -> None:
    fields = {"image_size": "224x320", "image_width": 768, "text_width": 512, "embed_dim": 512}
    model_row = row(mparams=151.277313, gflops=14.7758, gmacs=7.3879, **fields)
    frame = frames.reference([model_row], "torch")
    assert frame.to_csv(index=False).splitlines()[1] == "ViT-B-32,224,768,512,512,151.28,,,14.78,,"


def test_reference_sorts_by_the_value_of_its_counter() -> None:
    rows = [
        row("x", gflops=1.0, gmacs=0.5, fvcore_gmacs=0.9, fvcore_macts=1.5, mparams=1.0),
        row("y", gflops=2.0, gmacs=1.0, fvcore_gmacs=0.4, fvcore_macts=2.5, mparams=1.0),
        row("b", gflops=2.0, gmacs=1.0, fvcore_gmacs=0.4, fvcore_macts=2.5, mparams=1.0),
    ]
    assert list(frames.reference(rows, "torch")["model"]) == ["x", "b", "y"]
    fvcore = frames.reference(rows, "fvcore")
    assert list(fvcore["model"]) == ["b", "y", "x"]
    assert list(fvcore["gmacs"]) == [0.4, 0.4, 0.9]
    assert list(fvcore["macts"]) == [2.5, 2.5, 1.5]


def test_reference_keeps_failed_models() -> None:
    frame = frames.reference([row("failed", status="error", error="no"), row("ok", gflops=1.0)], "torch")
    assert list(frame["model"]) == ["ok", "failed"]
    assert pd.isna(frame.loc[1, "gflops"])


def test_towers_omit_those_that_a_model_lacks() -> None:
    both = row(
        **{"mparams": 10.0, "image_mparams": 7.0, "text_mparams": 3.0, "other_mparams": 0.0},
        **{"gmacs": 4.0, "image_gmacs": 3.0, "text_gmacs": 1.0, "other_gmacs": 0.0},
    )
    assert list(frames.towers(dict(both))["tower"]) == ["image", "text", "total"]
    assert list(frames.towers(dict(both))["gmacs"]) == [3.0, 1.0, 4.0]
    single = row(mparams=10.0, image_mparams=10.0, gmacs=4.0, image_gmacs=4.0)
    assert list(frames.towers(dict(single))["tower"]) == ["image", "total"]


def test_operators_are_per_sample_and_start_with_unknown_work() -> None:
    def count(operator: str, flops: int, work: str = "counted") -> OperatorCount:
        sizes = {"activations": 6_000_000, "read_bytes": 5_000_000, "written_bytes": 1_000_000}
        return OperatorCount(operator=operator, calls=2, flops=flops, work=work, **sizes)

    several = row(batch_size=2, operators=(count("mm", 12_000_000_000), count("conv", 4_000_000_000)))
    frame = frames.operators(several)
    assert list(frame["operator"]) == ["mm", "conv"]
    assert list(frame["gmacs"]) == [3.0, 1.0]  # 12e9 FLOPs are 6e9 MACs of two samples
    assert list(frame["share"]) == [75.0, 25.0]
    assert list(frame["macts"]) == [3.0, 3.0]
    assert list(frame["read_mb"]) == [5.0, 5.0]
    left_out = row(operators=(count("softmax", 0, "minor"), count("mm", 2), count("sort", 0, "unknown")))
    assert list(frames.operators(left_out)["operator"]) == ["sort", "mm", "softmax"]
    assert frames.operators(row()).empty


def test_parent_of_a_module_is_the_nearest_listed_one() -> None:
    def module(path: str) -> ModuleCount:
        return ModuleCount(path=path, type="Linear", mparams=1, gmacs=1, macts=1, calls=1)

    frame = frames.modules([module(path) for path in ("", "visual", "visual.blocks.0", "visual.blocks.0.mlp", "text")])
    assert list(frame["parent"].fillna("none")) == ["none", "", "visual", "visual.blocks.0", ""]
    assert list(frame["name"]) == ["model", "visual", "blocks.0", "mlp", "text"]
    assert list(frame["depth"]) == [0, 1, 3, 4, 1]


def test_cut_file_of_modules_counts_as_missing(tmp_path: Path) -> None:
    fields = {"path": "", "type": "ResNet", "mparams": 1.0, "gmacs": 1.0, "macts": 1.0, "calls": 1}
    content = json.dumps([ModuleCount.model_validate(fields).model_dump(mode="json")])
    (tmp_path / "detail.json").write_text(content)
    found = frames.read_modules(tmp_path, "detail.json")
    assert found is not None
    assert list(found["name"]) == ["model"]
    (tmp_path / "detail.json").write_text(content[:-9])
    assert frames.read_modules(tmp_path, "detail.json") is None
    assert frames.read_modules(tmp_path, "other.json") is None
