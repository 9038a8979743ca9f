"""The catalogue page, driven in process."""

from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from engine.report.quantities import title
from engine.results import Device, Machine
from engine.specs import BenchmarkSpec
from engine.store import Store
from tests.support.page import (
    ENVIRONMENT,
    benchmark_row,
    charts,
    finish,
    open_page,
    queue_benchmark,
    texts,
    ticked,
    unfold,
)

# A scheduler outlives whoever started it: that nobody waits for it is meant.
pytestmark = [
    pytest.mark.usefixtures("own_world"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]
TOP1, AVERAGE, LATENCY = title("imagenet_top1"), title("zeroshot_average_38"), title("latency_ms")


def models(app: AppTest) -> list[str]:
    return list(app.dataframe[0].value["model"])


@pytest.mark.slow
def test_it_shows_every_row_and_says_with_what_they_were_counted() -> None:
    app = open_page()
    assert not app.exception
    assert len(models(app)) == 7
    assert "7 models" in texts(app)
    assert "2026" in texts(app)
    assert charts(app)


@pytest.mark.slow
def test_it_warns_when_other_versions_are_installed() -> None:
    (warning,) = open_page().warning
    assert "torch 0.0.1, installed " in warning.value.replace("\\", "")


@pytest.mark.slow
def test_failed_and_incomplete_rows_are_visible_as_such() -> None:
    app = open_page()
    remarks = dict(zip(models(app), app.dataframe[0].value["remark"], strict=True))
    assert remarks["broken"] == "error: RuntimeError: **no** <b>way</b>"
    assert remarks["odd_one"] == "incomplete: work of unknown size is missing: sort (2 calls)"
    assert "1 of these rows could not be counted and 1 are incomplete" in texts(app)


@pytest.mark.slow
def test_filters_narrow_table_and_plot() -> None:
    app = open_page()
    app.text_input(key="catalog_search").set_value("vit").run()
    assert models(app) == ["ViT-B-32", "ViT-L-14", "vit_tiny_patch16_224"]
    app.number_input(key="catalog_max_gmacs").set_value(10.0).run()
    assert models(app) == ["ViT-B-32", "vit_tiny_patch16_224"]
    app.get_by_key("catalog_library").set_value("timm").run()
    assert models(app) == ["vit_tiny_patch16_224"]
    assert not app.exception
    app.button(key="catalog_reset").click().run()
    assert len(models(app)) == 7


@pytest.mark.slow
def test_a_link_carries_the_view() -> None:
    app = open_page(catalog_search="resnet", catalog_x=title("mparams"), catalog_log_x="false")
    assert models(app) == ["resnet18", "resnet50"]
    assert app.selectbox(key="catalog_x").value == "mparams"
    assert app.toggle(key="catalog_log_x").value is False


@pytest.mark.slow
def test_a_link_sorts_by_several_columns_and_a_search_finds_tags_and_names_what_is_close() -> None:
    app = open_page(catalog_search="in1k, openai", catalog_sort=["↓ Library", "↑ Parameters (M)"])
    assert not app.exception
    assert models(app) == ["vit_tiny_patch16_224", "resnet18", "resnet50", "ViT-B-32", "ViT-L-14"]
    app.text_input(key="catalog_search").set_value("resnet500").run()
    app.button(key="catalog_near_resnet50").click().run()
    assert models(app) == ["resnet50"]


@pytest.mark.slow
@pytest.mark.parametrize("colour", ["family", "macts"])
def test_any_two_figures_can_be_plotted_with_size_and_colour(colour: str) -> None:
    app = open_page(
        **{"catalog_x": title("macts"), "catalog_y": title("inference_peak_mb")},
        **{"catalog_size": title("mparams"), "catalog_colour": title(colour)},
    )
    assert not app.exception
    figure = charts(app)[0]
    assert figure["layout"]["xaxis"]["title"]["text"] == "Activations (M)"
    assert figure["layout"]["yaxis"]["title"]["text"] == "Peak mem. (MB)"
    assert ("colorbar" in figure["data"][0]["marker"]) == (colour != "family")


@pytest.mark.slow
def test_filters_that_nothing_meets_say_so_and_offer_a_way_back() -> None:
    app = open_page(catalog_search="no such model")
    assert not app.exception
    assert "No rows match these filters" in texts(app)
    app.button(key="catalog_show_all").click().run()
    assert len(models(app)) == 7


@pytest.mark.slow
def test_a_plot_of_nothing_says_so() -> None:
    app = open_page(catalog_search="odd_one", catalog_y=TOP1)
    assert "**0** of" in texts(app)
    layout = figure(app)["layout"]
    assert layout["annotations"][0]["text"].startswith("Nothing to plot")
    assert not layout["xaxis"]["visible"]


@pytest.mark.slow
def test_a_selection_is_the_same_in_plot_and_table_and_what_is_downloaded() -> None:
    app = open_page(catalog_search="resnet")
    app.session_state["catalog_rows"] = ["timm:resnet50 224"]
    app.run()
    assert not app.exception
    assert app.session_state["catalog_table"]["selection"]["rows"] == [models(app).index("resnet50")]
    (sent,) = [item.proto.bytes for item in app.get("bidi_component") if item.proto.component_name == "chart"]
    assert sent.partition(b"\n")[0] == b'["timm:resnet50 224"]'
    assert "Download 1 selected" in [menu.proto.popover.label for menu in app.get("popover")]


@pytest.mark.slow
def test_a_link_carries_the_selected_rows_and_names_those_it_does_not_know() -> None:
    app = open_page(catalog_search="resnet", catalog_rows=["timm:resnet50 224", "timm:vit_tiny_patch16_224 224", "nix"])
    assert not app.exception
    assert "Download 1 selected" in [menu.proto.popover.label for menu in app.get("popover")]
    assert app.multiselect(key="catalog_rows").value == ["timm:resnet50 224", "timm:vit_tiny_patch16_224 224"]
    assert "catalog_rows 'nix': not available here" in plainly(app)
    app.multiselect(key="catalog_rows").set_value([]).run()
    assert "Download 2 rows" in [menu.proto.popover.label for menu in app.get("popover")]


def test_without_a_catalogue_it_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("VITALS_CATALOG_DIR", str(tmp_path / "empty"))
    app = open_page()
    assert not app.exception
    assert "python -m engine catalog-build" in texts(app)


@pytest.mark.slow
def test_nothing_can_be_profiled_before_something_is_selected() -> None:
    app = open_page()
    assert "Select points (drag or click) or rows" in plainly(app)
    assert not [item for item in app.get("page_link") if item.proto.label.startswith("Profile ")]


def plainly(app: AppTest) -> str:
    return texts(app).replace("\\", "")


def figure(app: AppTest) -> dict[str, Any]:
    drawn: dict[str, Any] = charts(app)[0]
    return drawn


def front(app: AppTest) -> list[str]:
    """The models on the front, in the order of the table."""
    table = app.dataframe[0].value
    return list(table.loc[table["front"], "model"] + "." + table.loc[table["front"], "pretrained"])


def machine(store: Store) -> None:
    """This host, as a probe finds it."""
    store.save_machine(
        Machine(
            **{"host": ENVIRONMENT.host, "platform": "Linux", "cpu": "a cpu", "threads": 2, "memory_gb": 8.0},
            **{"devices": (Device(name="cpu", model="a cpu", memory_gb=8.0),), "date": ENVIRONMENT.date},
        )
    )


@pytest.mark.slow
def test_an_accuracy_brings_a_row_per_pretrained_tag_a_front_and_its_source() -> None:
    app = open_page(catalog_y=TOP1, catalog_log_y="false")
    assert not app.exception
    table = app.dataframe[0].value
    tagged = table[table["pretrained"] != ""]
    assert set(tagged["model"]) == {"resnet18", "resnet50", "vit_tiny_patch16_224"}
    assert len(tagged[tagged["model"] == "resnet50"]) > 5
    assert (tagged["published"] == "huggingface/pytorch-image-models at aa4b585 (Apache-2.0)").all()
    assert front(app)[0].startswith("vit_tiny")  # least MACs
    assert front(app)[-1].startswith("resnet50.")  # most accurate
    traces = {trace["name"]: trace for trace in figure(app)["data"]}
    assert len(traces[f"Pareto front ({len(front(app))})"]["x"]) == len(front(app))
    counts = f"**{len(tagged)}** of {len(table)} rows shown (one per model, image size and pretrained tag)"
    assert f"{counts}; {len(table) - len(tagged)} more in the table have no value for this plot" in texts(app)
    hovers = [str(point[-1]) for trace in figure(app)["data"] for point in trace.get("customdata", [])]
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
def test_limits_leave_what_meets_them_and_are_in_the_address() -> None:
    app = open_page(catalog_y=TOP1, catalog_figure=TOP1, catalog_min_imagenet_top1="80", catalog_max_gmacs="5")
    table = app.dataframe[0].value
    assert set(table["model"]) == {"resnet50"}
    assert (table["imagenet_top1"] >= 80).all()
    app.button(key="catalog_reset").click().run()
    assert not app.exception
    assert len(set(models(app))) == 7


@pytest.mark.slow
def test_limits_that_nothing_meets_say_what_each_leaves_alone() -> None:
    app = open_page(catalog_figure=TOP1, catalog_min_imagenet_top1="99", catalog_max_gmacs="2")
    assert not app.exception
    assert "No rows match these filters" in texts(app)
    assert "With only the limit ImageNet top-1 (%) ≥ 99, 0 of the" in plainly(app)
    assert "With only the limit MACs (G) ≤ 2, " in plainly(app)
    app.button(key="catalog_show_all").click().run()
    assert len(set(models(app))) == 7
    assert app.selectbox(key="catalog_figure").value == "imagenet_top1", "it is a column, and no filter"


@pytest.mark.slow
def test_a_limit_on_latency_without_timings_says_that_nothing_is_timed(store: Store) -> None:
    machine(store)
    app = open_page(catalog_max_latency_ms="100")
    assert not app.exception
    assert f"No row has a value for {LATENCY}: no model is timed in the chosen timing setting." in plainly(app)
    assert "With only the limit" not in plainly(app)
    assert "To filter by speed, calibrate this machine or choose a device" in plainly(app)
    app.button(key="catalog_no_speed").click().run()
    assert len(set(models(app))) == 7
    assert app.number_input(key="catalog_max_latency_ms").value is None


@pytest.mark.slow
def test_limits_say_how_many_rows_they_leave_out_for_want_of_a_value_or_for_a_flagged_one(store: Store) -> None:
    machine(store)
    one = {"batch_size": 1, "batch_size_requested": "1"}
    timed = [
        benchmark_row("resnet18", **one, latency_ms=4.0),
        benchmark_row("resnet50", **one, latency_ms=72.0, flags=("contended",)),
        benchmark_row("vit_tiny_patch16_224", **one, latency_ms=90.0),
    ]
    finish(store, queue_benchmark(store, "resnet18"), timed)
    app = open_page(catalog_max_latency_ms="30")
    assert not app.exception
    assert models(app) == ["resnet18"]
    flagged = "1 row with a flagged timing that misses the limit"
    assert f"Left out by limits: 4 rows without a known speed; {flagged}." in plainly(app)
    app.text_input(key="catalog_search").set_value("resnet50").run()
    assert "No rows match these filters" in texts(app)
    assert f"Left out by limits: {flagged}." in plainly(app)
    app.number_input(key="catalog_max_latency_ms").set_value(None).run()
    assert "Left out by limits" not in texts(app)
    app = open_page(catalog_figure=TOP1, catalog_min_imagenet_top1="80", catalog_max_gmacs="5")
    assert set(models(app)) == {"resnet50"}
    assert "Left out by limits: 1 row without a published value." in plainly(app), "it is odd_one"


@pytest.mark.slow
def test_work_can_be_shown_in_flops_and_limits_follow() -> None:
    app = open_page(catalog_max_gmacs="4.5")
    app.get_by_key("catalog_unit").set_value("FLOPs").run()
    assert not app.exception
    assert figure(app)["layout"]["xaxis"]["title"]["text"] == "FLOPs (G)"
    assert app.number_input(key="catalog_max_gflops").value == 9.0
    table = app.dataframe[0].value
    assert "gmacs" not in table
    assert set(table["model"]) == {"resnet18", "resnet50", "vit_tiny_patch16_224", "odd_one"}


@pytest.mark.slow
def test_without_timings_it_says_so_and_offers_to_make_them(store: Store) -> None:
    machine(store)
    app = open_page(catalog_x=LATENCY, catalog_y=TOP1, catalog_log_y="false")
    assert not app.exception
    assert "**0** of" in texts(app)
    captions = [item.value.replace("\\", "") for item in app.caption]
    (status,) = (
        text for text in captions if text.startswith("Pareto front by MACs: 2 models not timed yet. Setting: ")
    )
    assert "Select points" not in status  # two lines would move the rows at the first selection
    assert "Setting: eager, batch 1, float32 on a cpu, 2 threads (here)" in plainly(app)
    app.button(key="catalog_measure").click().run()
    assert not app.exception
    (run,) = store.runs()
    names = {"timm:vit_tiny_patch16_224", "timm:resnet50"}
    assert isinstance(run.spec, BenchmarkSpec)
    assert set(run.spec.models) == names
    assert run.spec == BenchmarkSpec(models=run.spec.models, image_size="224", threads=2)
    assert app.button(key="catalog_measure").disabled
    assert "2 submitted" in plainly(app)


@pytest.mark.slow
def test_a_run_that_was_queued_before_a_refusal_keeps_its_link(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two image sizes are two runs, and the queue has one free place."""
    monkeypatch.setenv("VITALS_QUEUE_LIMIT", "1")
    machine(store)
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
def test_timings_stand_beside_accuracies_with_when_and_what_to_know(store: Store) -> None:
    machine(store)
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
    assert set(timed.loc[timed["model"] == "resnet18", "latency_ms"]) == {10.0}  # the latest
    measured = "run 2, 2026-11-20, torch 2.15.0, single process"
    assert set(timed.loc[timed["model"] == "resnet18", "measured"]) == {measured}
    assert [name for name in front(app) if name.startswith("resnet18.")], "a single process is marked but not spoiled"
    app.number_input(key="catalog_max_latency_ms").set_value(12.0).run()
    assert set(models(app)) == {"resnet18"}
    app.number_input(key="catalog_max_latency_ms").set_value(None)
    app.selectbox(key="catalog_setting").set_value("eager, batch 1, float32 on a cpu, 2 threads (here)").run()
    assert not app.exception
    assert set(app.dataframe[0].value.dropna(subset="latency_ms")["model"]) == {"resnet50"}


@pytest.mark.slow
def test_a_flagged_timing_is_hollow_off_the_front_and_timed_again_by_one_click(store: Store) -> None:
    machine(store)
    one = {"batch_size": 1, "batch_size_requested": "1"}
    spoiled = benchmark_row("resnet50", **one, latency_ms=1.0, flags=("contended", "unstable"))
    finish(store, queue_benchmark(store, "resnet50"), [spoiled, benchmark_row("resnet18", **one, latency_ms=9.0)])
    app = open_page(catalog_x=LATENCY, catalog_y=TOP1, catalog_log_y="false", catalog_search="resnet")
    assert not app.exception
    table = app.dataframe[0].value
    assert set(table.loc[table["model"] == "resnet50", "flags"]) == {"contended, unstable"}
    assert {name.partition(".")[0] for name in front(app)} == {"resnet18"}
    assert "flagged rows left off the front" in plainly(app)
    drawn = [trace for trace in figure(app)["data"] if "customdata" in trace]
    symbols = {
        point[1]: symbol.endswith("-open")
        for trace in drawn
        for point, symbol in zip(trace["customdata"], trace["marker"]["symbol"], strict=True)
    }
    assert symbols == {"timm:resnet50": True, "timm:resnet18": False}
    app.toggle(key="catalog_flagged").set_value(True).run()
    assert {name.partition(".")[0] for name in front(app)} == {"resnet50"}
    assert "timed, 1 flagged." in plainly(app)
    app.button(key="catalog_again").click().run()
    assert store.runs()[0].spec == BenchmarkSpec(models=("timm:resnet50",), image_size="224", threads=2)


@pytest.mark.slow
def test_what_is_timed_is_not_timed_again(store: Store) -> None:
    machine(store)
    rows = [
        benchmark_row(name, batch_size=1, batch_size_requested="1") for name in ("resnet50", "vit_tiny_patch16_224")
    ]
    finish(store, queue_benchmark(store, "resnet50"), rows[:1])
    app = open_page(catalog_y=TOP1)
    assert "1 of 2 models timed. Setting:" in plainly(app)
    assert app.button(key="catalog_measure").label.startswith("Time 1 model on this machine (")
    app.button(key="catalog_measure").click().run()
    assert store.runs()[0].spec.models == ("timm:vit_tiny_patch16_224",)
    finish(store, store.runs()[0].id, rows[1:])
    app.run()
    assert not app.exception
    assert "Pareto front: 2 of 2 models timed." in plainly(app)
    assert app.button(key="catalog_measure").disabled


@pytest.mark.slow
def test_timings_of_another_machine_are_not_made_here(store: Store) -> None:
    finish(store, queue_benchmark(store, "resnet50"), [benchmark_row("resnet50")])
    machine(store)
    store.save_machine(store.machine().model_copy(update={"host": "elsewhere"}))  # which is probed last
    app = open_page(catalog_y=TOP1)
    assert app.selectbox(key="catalog_setting").value == "eager, batch 1, float32 on a cpu, 2 threads (elsewhere)"
    app.selectbox(key="catalog_setting").set_value("eager, batch 8, float32 on a cpu, 2 threads (here)").run()
    assert set(app.dataframe[0].value.dropna(subset="latency_ms")["model"]) == {"resnet50"}
    assert "These timings were made on here, but this machine is elsewhere" in plainly(app)
    assert app.button(key="catalog_measure").disabled


def uploaded(app: AppTest, name: str, content: str) -> AppTest:
    unfold(app, "Published accuracies")
    app.file_uploader(key="catalog_table_file").set_value((name, content.encode(), "text/csv")).run()
    return app.button(key="catalog_import").click().run()


TABLE = """model,top1,top1_err,top5,top5_err,param_count,img_size,crop_pct,interpolation
resnet18.mine_in1k,{top1},1.000,99.500,0.500,11.69,224,0.900,bicubic
"""


@pytest.mark.slow
def test_a_newer_table_is_taken_in(store: Store) -> None:
    app = uploaded(open_page(catalog_y=TOP1), "results-imagenet.csv", TABLE.format(top1="99.000"))
    assert not app.exception
    told = app.success[0].value.replace("\\", "")
    assert "1 row of huggingface/pytorch-image-models: 2 new values, 0 changed. Imported values replace" in told
    assert told.endswith(
        f". {len(app.dataframe[-1].value):,} published rows match no counted model and are listed above."
    )
    table = app.dataframe[0].value
    row = table[table["pretrained"] == "mine_in1k"].iloc[0]
    assert row["imagenet_top1"] == 99.0
    assert "results-imagenet.csv, imported 20" in row["published"]
    assert "resnet18.mine_in1k" in front(app)


@pytest.mark.slow
def test_tables_are_imported_from_files_only() -> None:
    app = unfold(open_page(), "Published accuracies")
    assert "https://github.com/huggingface/pytorch-image-models/tree/main/results" in texts(app)
    assert "https://github.com/mlfoundations/open_clip/tree/main/docs" in texts(app)
    assert not [field.key for field in app.text_input if "url" in str(field.key) or "address" in field.label]
    assert app.button(key="catalog_import").disabled


@pytest.mark.slow
def test_a_table_that_is_wrong_changes_nothing() -> None:
    app = uploaded(open_page(catalog_y=TOP1), "results-imagenet.csv", TABLE.format(top1="98.000"))
    assert not app.exception
    assert "line 2: top1 is '98.000', which is not 100 less its top1_err" in plainly(app)
    assert "mine_in1k" not in set(app.dataframe[0].value["pretrained"])
