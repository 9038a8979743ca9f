"""Tests of the catalogue page with AppTest."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from engine.published import update
from engine.report.quantities import title
from engine.settings import Settings
from engine.specs import BenchmarkSpec
from engine.store import Store
from pages.shared.table import column_config
from tests.support.page import (
    benchmark_row,
    charts,
    finish,
    open_page,
    queue_benchmark,
    store_machine,
    texts,
    ticked,
    unfold,
)

# The scheduler outlives the process that starts it, so the warning about a running subprocess is expected.
pytestmark = [
    pytest.mark.usefixtures("own_world"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]
TOP1, AVERAGE, LATENCY = title("imagenet_top1"), title("zeroshot_average_38"), title("latency_ms")


def table_models(app: AppTest) -> list[str]:
    return list(app.dataframe[0].value["model"])


@pytest.mark.slow
def test_catalogue_shows_every_row_and_when_it_was_counted() -> None:
    app = open_page()
    assert not app.exception
    assert len(table_models(app)) == 7
    assert "7 models" in texts(app)
    assert "2026" in texts(app)
    assert charts(app)


@pytest.mark.slow
def test_catalogue_warns_of_different_installed_versions() -> None:
    (warning,) = open_page().warning
    assert "torch 0.0.1, installed " in warning.value.replace("\\", "")


@pytest.mark.slow
def test_failed_and_incomplete_rows_are_marked() -> None:
    app = open_page()
    remarks = dict(zip(table_models(app), app.dataframe[0].value["remark"], strict=True))
    assert remarks["broken"] == "error: RuntimeError: **no** <b>way</b>"
    assert remarks["odd_one"] == "incomplete: work of unknown size is missing: sort (2 calls)"
    assert "1 row could not be counted, 1 row counted incompletely; the column Remark" in texts(app)
    app.text_input(key="catalog_search").set_value("odd_one").run()
    assert "\n1 row counted incompletely; the column Remark" in texts(app)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["catalog", "model"])
def test_damaged_import_is_explained(page: str, settings: Settings) -> None:
    folder = update.folder(settings)
    folder.mkdir(parents=True)
    (folder / "timm_imagenet.csv").write_text("library,model,pretr")
    app = open_page(page, name="timm:resnet18") if page == "model" else open_page()
    assert not app.exception
    assert "delete it, and import the publisher's table again" in app.error[0].value.replace("\\", "")


@pytest.mark.slow
def test_filters_select_rows_of_the_table() -> None:
    app = open_page()
    app.text_input(key="catalog_search").set_value("vit").run()
    assert table_models(app) == ["ViT-B-32", "ViT-L-14", "vit_tiny_patch16_224"]
    app.number_input(key="catalog_max_gmacs").set_value(10.0).run()
    assert table_models(app) == ["ViT-B-32", "vit_tiny_patch16_224"]
    app.get_by_key("catalog_library").set_value("timm").run()
    assert table_models(app) == ["vit_tiny_patch16_224"]
    assert not app.exception
    app.button(key="catalog_reset").click().run()
    assert len(table_models(app)) == 7


@pytest.mark.slow
def test_link_restores_search_and_axes() -> None:
    app = open_page(catalog_search="resnet", catalog_x=title("mparams"), catalog_log_x="false")
    assert table_models(app) == ["resnet18", "resnet50"]
    assert app.selectbox(key="catalog_x").value == "mparams"
    assert app.toggle(key="catalog_log_x").value is False


@pytest.mark.slow
def test_link_sorts_by_several_columns_and_search_finds_tags() -> None:
    app = open_page(catalog_search="in1k, openai", catalog_sort=["↓ Library", "↑ Parameters (M)"])
    assert not app.exception
    assert table_models(app) == ["vit_tiny_patch16_224", "resnet18", "resnet50", "ViT-B-32", "ViT-L-14"]
    app.text_input(key="catalog_search").set_value("resnet500").run()
    app.button(key="catalog_near_resnet50").click().run()
    assert table_models(app) == ["resnet50"]


@pytest.mark.slow
@pytest.mark.parametrize("colour", ["family", "macts"])
def test_any_two_metrics_can_be_plotted_with_size_and_colour(colour: str) -> None:
    app = open_page(
        **{"catalog_x": title("macts"), "catalog_y": title("inference_peak_mb")},
        **{"catalog_size": title("mparams"), "catalog_colour": title(colour)},
    )
    assert not app.exception
    plot = charts(app)[0]
    assert plot["layout"]["xaxis"]["title"]["text"] == "Activations (M)"
    assert plot["layout"]["yaxis"]["title"]["text"] == "Peak mem. (MB)"
    assert ("colorbar" in plot["data"][0]["marker"]) == (colour != "family")


@pytest.mark.slow
def test_filters_without_matches_offer_to_show_all_rows() -> None:
    app = open_page(catalog_search="no such model")
    assert not app.exception
    assert "No rows match these filters" in texts(app)
    app.button(key="catalog_show_all").click().run()
    assert len(table_models(app)) == 7


@pytest.mark.slow
def test_empty_plot_shows_a_message() -> None:
    app = open_page(catalog_search="odd_one", catalog_y=TOP1)
    assert "**0** of" in texts(app)
    plot = first_chart(app)
    layout = plot["layout"]
    assert layout["annotations"][0]["text"].startswith("Nothing to plot")
    assert not layout["xaxis"]["visible"]
    assert (layout["height"], plot["height"]) == (120, ""), "the table follows without a blank area"
    assert "The plot labels the extremes of each axis" in texts(app), "there is no front"


@pytest.mark.slow
def test_large_values_have_separators_of_thousands() -> None:
    columns = json.loads(open_page().dataframe[0].proto.columns)
    formats = {column["type_config"].get("format") for column in columns.values() if column.get("type_config")}
    assert "%,.3g" in formats
    assert "%.3g" not in formats


def test_columns_of_tables_have_units_digits_and_a_pinned_name() -> None:
    frame = pd.DataFrame({"model": ["a"], "latency_ms": [1.0], "p99_ms": ["needs 662 samples"], "speedup": [1.1]})
    config = column_config(frame, "model")
    assert {name: column["pinned"] for name, column in config.items() if column.get("pinned")} == {"model": True}
    numbers = ("latency_ms", "p99_ms", "speedup")
    assert [config[name]["alignment"] for name in numbers] == ["right"] * 3, "also a reason in place of a number"
    assert config["latency_ms"]["label"] == "Latency p50 (ms)"
    assert [config[name]["type_config"]["format"] for name in ("latency_ms", "speedup")] == ["%,.3g", "%,.4g"]


@pytest.mark.slow
def test_selection_is_the_same_in_plot_table_and_download() -> None:
    app = open_page(catalog_search="resnet")
    app.session_state["catalog_rows"] = ["timm:resnet50 224"]
    app.run()
    assert not app.exception
    assert app.session_state["catalog_table"]["selection"]["rows"] == [table_models(app).index("resnet50")]
    (message,) = [item.proto.bytes for item in app.get("bidi_component") if item.proto.component_name == "chart"]
    assert message.partition(b"\n")[0] == b'["timm:resnet50 224"]'
    assert "Download 1 selected" in [menu.proto.popover.label for menu in app.get("popover")]
    downloads = [button.proto.ignore_rerun for button in app.get("download_button")]
    assert downloads == [True] * 3, "a download in each format, which does not draw the page again"


@pytest.mark.slow
def test_link_restores_selected_rows_and_names_unknown_rows() -> None:
    app = open_page(catalog_search="resnet", catalog_rows=["timm:resnet50 224", "timm:vit_tiny_patch16_224 224", "nix"])
    assert not app.exception
    assert "Download 1 selected" in [menu.proto.popover.label for menu in app.get("popover")]
    assert app.multiselect(key="catalog_rows").value == ["timm:resnet50 224", "timm:vit_tiny_patch16_224 224"]
    assert "catalog_rows 'nix': not available here" in plain_text(app)
    app.multiselect(key="catalog_rows").set_value([]).run()
    assert "Download 2 rows" in [menu.proto.popover.label for menu in app.get("popover")]


def test_missing_catalogue_shows_the_build_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("VITALS_CATALOG_DIR", str(tmp_path / "empty"))
    app = open_page()
    assert not app.exception
    assert "python -m engine catalog-build" in texts(app)


@pytest.mark.slow
def test_profile_link_appears_only_with_a_selection() -> None:
    app = open_page()
    assert "Select points (drag or click) or rows" in plain_text(app)
    assert not [item for item in app.get("page_link") if item.proto.label.startswith("Profile ")]


def plain_text(app: AppTest) -> str:
    return texts(app).replace("\\", "")


def first_chart(app: AppTest) -> dict[str, Any]:
    chart: dict[str, Any] = charts(app)[0]
    return chart


def front_names(app: AppTest) -> list[str]:
    """Return `model.tag` of each row on the Pareto front, in the order of the table."""
    table = app.dataframe[0].value
    return list(table.loc[table["front"], "model"] + "." + table.loc[table["front"], "pretrained"])


@pytest.mark.slow
def test_accuracy_axis_shows_pretrained_tags_front_and_source() -> None:
    app = open_page(catalog_y=TOP1, catalog_log_y="false")
    assert not app.exception
    table = app.dataframe[0].value
    tagged = table[table["pretrained"] != ""]
    assert set(tagged["model"]) == {"resnet18", "resnet50", "vit_tiny_patch16_224"}
    assert len(tagged[tagged["model"] == "resnet50"]) > 5
    assert (tagged["published"] == "huggingface/pytorch-image-models at aa4b585 (Apache-2.0)").all()
    assert front_names(app)[0].startswith("vit_tiny")  # fewest MACs
    assert front_names(app)[-1].startswith("resnet50.")  # most accurate
    traces = {trace["name"]: trace for trace in first_chart(app)["data"]}
    assert len(traces[f"Pareto front ({len(front_names(app))})"]["x"]) == len(front_names(app))
    counts = f"**{len(tagged)}** of {len(table)} rows shown (one per model, image size and pretrained tag)"
    assert f"{counts}; {len(table) - len(tagged)} more in the table without a value for this plot" in texts(app)
    hovers = [str(point[-1]) for trace in first_chart(app)["data"] for point in trace.get("customdata", [])]
    assert all("published by huggingface/pytorch-image-models" in hover for hover in hovers)


@pytest.mark.slow
def test_presets_set_the_axes_and_are_ticked() -> None:
    app = open_page()
    assert ticked(app) == ["Cost"]
    app.button(key="catalog_preset_Zero-shot against MACs").click().run()
    assert not app.exception
    assert ticked(app) == ["Zero-shot against MACs"]
    linked = open_page(catalog_y=AVERAGE, catalog_figure=AVERAGE, catalog_log_y="false")
    assert ticked(linked) == ["Zero-shot against MACs"]
    table = app.dataframe[0].value
    assert set(table.loc[table["pretrained"] != "", "model"]) == {"ViT-B-32", "ViT-L-14"}
    assert "mlfoundations/open_clip at 89fb801 (MIT)" in set(table["published"])


@pytest.mark.slow
def test_limits_in_the_address_select_rows() -> None:
    app = open_page(catalog_y=TOP1, catalog_figure=TOP1, catalog_min_imagenet_top1="80", catalog_max_gmacs="5")
    table = app.dataframe[0].value
    assert set(table["model"]) == {"resnet50"}
    assert (table["imagenet_top1"] >= 80).all()
    app.button(key="catalog_reset").click().run()
    assert not app.exception
    assert len(set(table_models(app))) == 7


@pytest.mark.slow
def test_limits_without_matches_show_the_count_for_each_limit() -> None:
    app = open_page(catalog_figure=TOP1, catalog_min_imagenet_top1="99", catalog_max_gmacs="2")
    assert not app.exception
    assert "No rows match these filters" in texts(app)
    assert "With only the limit ImageNet top-1 (%) ≥ 99, 0 of 26 rows with a value remain." in plain_text(app)
    assert "With only the limit MACs (G) ≤ 2, " in plain_text(app)
    app.button(key="catalog_show_all").click().run()
    assert len(set(table_models(app))) == 7
    assert app.selectbox(key="catalog_figure").value == "imagenet_top1", "the chosen accuracy is a column, not a filter"


@pytest.mark.slow
def test_latency_limit_without_timings_shows_a_message(store: Store) -> None:
    store_machine(store)
    app = open_page(catalog_max_latency_ms="100")
    assert not app.exception
    assert f"No row has a value for {LATENCY}: no model is timed in the chosen timing setting." in plain_text(app)
    assert "With only the limit" not in plain_text(app)
    assert "To filter by speed, calibrate this machine or choose a device" in plain_text(app)
    app.button(key="catalog_no_speed").click().run()
    assert len(set(table_models(app))) == 7
    assert app.number_input(key="catalog_max_latency_ms").value is None


@pytest.mark.slow
def test_limits_show_how_many_unknown_or_flagged_rows_they_leave_out(store: Store) -> None:
    store_machine(store)
    batch_1 = {"batch_size": 1, "batch_size_requested": "1"}
    timed = [
        benchmark_row("resnet18", **batch_1, latency_ms=4.0),
        benchmark_row("resnet50", **batch_1, latency_ms=72.0, flags=("contended",)),
        benchmark_row("vit_tiny_patch16_224", **batch_1, latency_ms=90.0),
    ]
    finish(store, queue_benchmark(store, "resnet18"), timed)
    app = open_page(catalog_max_latency_ms="30")
    assert not app.exception
    assert table_models(app) == ["resnet18"]
    flagged = "1 row with an unreliable timing that misses the limit"
    assert f"Left out by limits: 4 rows without a known speed; {flagged}." in plain_text(app)
    app.text_input(key="catalog_search").set_value("resnet50").run()
    assert "No rows match these filters" in texts(app)
    assert f"Left out by limits: {flagged}." in plain_text(app)
    app.number_input(key="catalog_max_latency_ms").set_value(None).run()
    assert "Left out by limits" not in texts(app)
    app = open_page(catalog_figure=TOP1, catalog_min_imagenet_top1="80", catalog_max_gmacs="5")
    assert set(table_models(app)) == {"resnet50"}
    assert "Left out by limits: 1 row without a published value." in plain_text(app), "the row is odd_one"


@pytest.mark.slow
def test_unit_flops_converts_axis_and_limits() -> None:
    app = open_page(catalog_max_gmacs="4.5")
    app.get_by_key("catalog_unit").set_value("FLOPs").run()
    assert not app.exception
    assert first_chart(app)["layout"]["xaxis"]["title"]["text"] == "FLOPs (G)"
    assert app.number_input(key="catalog_max_gflops").value == 9.0
    table = app.dataframe[0].value
    assert "gmacs" not in table
    assert set(table["model"]) == {"resnet18", "resnet50", "vit_tiny_patch16_224", "odd_one"}


@pytest.mark.slow
def test_catalogue_without_timings_offers_to_time_the_front(store: Store) -> None:
    store_machine(store)
    app = open_page(catalog_x=LATENCY, catalog_y=TOP1, catalog_log_y="false")
    assert not app.exception
    assert "**0** of" in texts(app)
    captions = [item.value.replace("\\", "") for item in app.caption]
    (status,) = (
        text for text in captions if text.startswith("Pareto front by MACs: 2 models not timed yet. Setting: ")
    )
    assert "Select points" not in status  # a second line would move the rows at the first selection
    assert "Setting: eager, batch 1, float32 on a cpu, 2 threads (here)" in plain_text(app)
    app.button(key="catalog_measure").click().run()
    assert not app.exception
    (run,) = store.runs()
    names = {"timm:vit_tiny_patch16_224", "timm:resnet50"}
    assert isinstance(run.spec, BenchmarkSpec)
    assert set(run.spec.models) == names
    assert run.spec == BenchmarkSpec(models=run.spec.models, image_size="224", threads=2)
    assert app.button(key="catalog_measure").disabled
    assert "2 submitted" in plain_text(app)


@pytest.mark.slow
def test_run_queued_before_a_refused_one_has_a_link(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two image sizes need two runs, but the queue limit is one run."""
    monkeypatch.setenv("VITALS_QUEUE_LIMIT", "1")
    store_machine(store)
    app = open_page(catalog_rows=["timm:resnet50 224", "timm:odd_one 320"])
    app.button(key="catalog_measure").click().run()
    assert not app.exception
    assert [run.spec.models for run in store.runs()] == [("timm:resnet50",)]
    (error,) = app.error
    assert "1 may" in error.value
    assert [item.proto.label for item in app.get("page_link") if item.proto.label.startswith("Run ")] == [
        "Run 1: queued"
    ]


@pytest.mark.slow
def test_timings_are_shown_beside_accuracies_with_run_and_flags(store: Store) -> None:
    store_machine(store)
    slow = benchmark_row("resnet18", latency_ms=30.0, samples_per_s=266.0)
    fast = benchmark_row("resnet18", latency_ms=10.0, samples_per_s=800.0, flags=("single_process",))
    other = benchmark_row("resnet50", batch_size=1, batch_size_requested="1", latency_ms=5.0, samples_per_s=200.0)
    finish(store, queue_benchmark(store, "resnet18", batch_size=8), [slow])
    finish(store, queue_benchmark(store, "resnet18", batch_size=8), [fast, benchmark_row("vit_tiny_patch16_224")])
    finish(store, queue_benchmark(store, "resnet50"), [other])
    app = open_page(catalog_x=LATENCY, catalog_y=TOP1, catalog_log_y="false")
    assert not app.exception
    assert app.selectbox(key="catalog_setting").value == "eager, batch 8, float32 on a cpu, 2 threads (here)"
    table = app.dataframe[0].value
    timed = table[table["latency_ms"].notna()]
    assert set(timed["model"]) == {"resnet18", "vit_tiny_patch16_224"}
    assert set(timed.loc[timed["model"] == "resnet18", "latency_ms"]) == {10.0}  # the latest timing
    measured = "run 2, 2026-11-20, torch 2.15.0, single process"
    assert set(timed.loc[timed["model"] == "resnet18", "measured"]) == {measured}
    assert [name for name in front_names(app) if name.startswith("resnet18.")], "a single process stays on the front"
    app.number_input(key="catalog_max_latency_ms").set_value(12.0).run()
    assert set(table_models(app)) == {"resnet18"}
    app.number_input(key="catalog_max_latency_ms").set_value(None)
    app.selectbox(key="catalog_setting").set_value("eager, batch 1, float32 on a cpu, 2 threads (here)").run()
    assert not app.exception
    assert set(app.dataframe[0].value.dropna(subset="latency_ms")["model"]) == {"resnet50"}


@pytest.mark.slow
def test_timings_stand_behind_the_costs_unless_the_view_is_about_speed(store: Store) -> None:
    store_machine(store)
    figures: dict[str, object] = {"batch_size": 1, "batch_size_requested": "1", "flags": ("contended",)}
    finish(store, queue_benchmark(store, "resnet18"), [benchmark_row("resnet18", **figures)])
    places = {}
    for view, query in {
        "cost": {},
        "axis": {"catalog_x": LATENCY},
        "limit": {"catalog_max_latency_ms": "1000"},
        "order": {"catalog_sort": f"↑ {LATENCY}"},
    }.items():
        app = open_page(**query)
        columns = list(app.dataframe[0].value)
        places[view] = [columns.index(name) < columns.index("library") for name in ("samples_per_s", "flags")]
    assert places == {"cost": [False, False], "axis": [True, True], "limit": [True, True], "order": [True, True]}
    assert "eager, batch 1, float32 on a cpu, 2 threads (here)" in texts(app).replace("\\", ""), "the field cuts it"


@pytest.mark.slow
def test_flagged_timings_are_hollow_and_can_be_repeated(store: Store) -> None:
    store_machine(store)
    batch_1 = {"batch_size": 1, "batch_size_requested": "1"}
    flagged = benchmark_row("resnet50", **batch_1, latency_ms=1.0, flags=("contended", "unstable"))
    finish(store, queue_benchmark(store, "resnet50"), [flagged, benchmark_row("resnet18", **batch_1, latency_ms=9.0)])
    app = open_page(catalog_x=LATENCY, catalog_y=TOP1, catalog_log_y="false", catalog_search="resnet")
    assert not app.exception
    table = app.dataframe[0].value
    assert set(table.loc[table["model"] == "resnet50", "flags"]) == {"contended, unstable"}
    assert {name.partition(".")[0] for name in front_names(app)} == {"resnet18"}
    assert "unreliable rows left off the front" in plain_text(app)
    traces = [trace for trace in first_chart(app)["data"] if "customdata" in trace]
    symbols = {
        point[1]: symbol.endswith("-open")
        for trace in traces
        for point, symbol in zip(trace["customdata"], trace["marker"]["symbol"], strict=True)
    }
    assert symbols == {"timm:resnet50": True, "timm:resnet18": False}
    app.toggle(key="catalog_flagged").set_value(True).run()
    assert {name.partition(".")[0] for name in front_names(app)} == {"resnet50"}
    assert "timed, 1 flagged." in plain_text(app)
    app.button(key="catalog_again").click().run()
    assert store.runs()[0].spec == BenchmarkSpec(models=("timm:resnet50",), image_size="224", threads=2)


@pytest.mark.slow
def test_timed_models_are_not_timed_again(store: Store) -> None:
    store_machine(store)
    rows = [
        benchmark_row(name, batch_size=1, batch_size_requested="1") for name in ("resnet50", "vit_tiny_patch16_224")
    ]
    finish(store, queue_benchmark(store, "resnet50"), rows[:1])
    app = open_page(catalog_y=TOP1)
    assert "1 of 2 models timed. Setting:" in plain_text(app)
    assert app.button(key="catalog_measure").label.startswith("Time 1 model on this machine (")
    app.button(key="catalog_measure").click().run()
    assert store.runs()[0].spec.models == ("timm:vit_tiny_patch16_224",)
    finish(store, store.runs()[0].id, rows[1:])
    app.run()
    assert not app.exception
    assert "Pareto front: 2 of 2 models timed." in plain_text(app)
    assert app.button(key="catalog_measure").disabled


@pytest.mark.slow
def test_settings_of_another_machine_cannot_be_timed_here(store: Store) -> None:
    finish(store, queue_benchmark(store, "resnet50"), [benchmark_row("resnet50")])
    store_machine(store)
    store.save_machine(store.machine().model_copy(update={"host": "elsewhere"}))  # elsewhere is probed last
    app = open_page(catalog_y=TOP1)
    assert app.selectbox(key="catalog_setting").value == "eager, batch 1, float32 on a cpu, 2 threads (elsewhere)"
    app.selectbox(key="catalog_setting").set_value("eager, batch 8, float32 on a cpu, 2 threads (here)").run()
    assert set(app.dataframe[0].value.dropna(subset="latency_ms")["model"]) == {"resnet50"}
    assert "These timings were made on here, but this machine is elsewhere" in plain_text(app)
    assert app.button(key="catalog_measure").disabled


def import_table(app: AppTest, name: str, content: str) -> AppTest:
    unfold(app, "Published accuracies")
    app.file_uploader(key="catalog_table_file").set_value((name, content.encode(), "text/csv")).run()
    return app.button(key="catalog_import").click().run()


TABLE = """model,top1,top1_err,top5,top5_err,param_count,img_size,crop_pct,interpolation
resnet18.mine_in1k,{top1},1.000,99.500,0.500,11.69,224,0.900,bicubic
"""


@pytest.mark.slow
def test_uploaded_table_of_accuracies_is_imported(store: Store) -> None:
    app = import_table(open_page(catalog_y=TOP1), "results-imagenet.csv", TABLE.format(top1="99.000"))
    assert not app.exception
    message = app.toast[0].value.replace("\\", "")
    assert app.toast[0].proto.duration == 10, "seconds"
    assert "1 row of huggingface/pytorch-image-models: 2 new values, 0 changed. Imported values replace" in message
    table = app.dataframe[0].value
    row = table[table["pretrained"] == "mine_in1k"].iloc[0]
    assert row["imagenet_top1"] == 99.0
    assert "results-imagenet.csv, imported 20" in row["published"]
    assert "resnet18.mine_in1k" in front_names(app)


@pytest.mark.slow
def test_tables_can_be_imported_only_from_files() -> None:
    app = unfold(open_page(), "Published accuracies")
    assert "https://github.com/huggingface/pytorch-image-models/tree/main/results" in texts(app)
    assert "https://github.com/mlfoundations/open_clip/tree/main/docs" in texts(app)
    assert not [field.key for field in app.text_input if "url" in str(field.key) or "address" in field.label]
    assert app.button(key="catalog_import").disabled


@pytest.mark.slow
def test_inconsistent_table_is_refused() -> None:
    app = import_table(open_page(catalog_y=TOP1), "results-imagenet.csv", TABLE.format(top1="98.000"))
    assert not app.exception
    assert "line 2: top1 is '98.000', which is not 100 less its top1_err" in plain_text(app)
    assert "mine_in1k" not in set(app.dataframe[0].value["pretrained"])
