"""Tests of the Compare page: runs of each kind and models, opened by their address."""

import json

import numpy as np
import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from engine.results import FLAGS, DeviceRow, Flag, Row
from engine.settings import Settings
from engine.specs import BenchmarkSpec, DeviceSpec
from engine.store import Filter, State, Store
from engine.store.files import RunFiles
from pages.compare import values
from pages.shared import table
from tests.support.clip import curve_points, evaluate_row, queue_evaluate, queue_train, record, train_row
from tests.support.page import (
    ENVIRONMENT,
    benchmark_row,
    charts,
    finish,
    open_page,
    profile_row,
    queue,
    queue_benchmark,
    queue_recurrent,
    recurrent_row,
    store_machine,
    texts,
    unfold,
    write_recurrent_samples,
    write_samples,
)

PAGE = "compare/page.py"
pytestmark = [
    pytest.mark.usefixtures("own_world"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
    pytest.mark.slow,
]


def page_text(app: AppTest) -> str:
    """Return the text of the page without the backslashes that escape Markdown."""
    return texts(app).replace("\\", "")


def samples_at(median_ms: float, processes: int = 3) -> list[list[float]]:
    """Return samples in ms for each process, with a standard deviation of 0.4 %."""
    generator = np.random.default_rng(round(100 * median_ms))
    return [[float(sample) for sample in median_ms * generator.normal(1, 0.004, 40)] for _ in range(processes)]


def benchmark(
    store: Store, settings: Settings, ms: float, variant: str = "eager", flags: tuple[Flag, ...] = (), **fields: object
) -> int:
    """Store a finished benchmark of resnet18 with its samples, and return its run id."""
    run_id = queue_benchmark(store, "timm:resnet18", variants=(variant,), batch_size=8, **fields)
    row = benchmark_row("resnet18", variant, latency_ms=ms, baseline="", flags=flags)
    write_samples(RunFiles(settings.runs_dir, run_id).dir, row, **{variant: samples_at(ms)})
    finish(store, run_id, [row])
    return run_id


def table_with(app: AppTest, column: str) -> pd.DataFrame:
    """Return the first table with this column."""
    return next(frame.value for frame in app.dataframe if column in frame.value)


def test_empty_page_explains_the_first_step() -> None:
    app = open_page(PAGE)
    assert not app.exception
    assert "Choose runs of one kind" in page_text(app)
    assert not app.markdown, "docstrings of the page are not shown"
    app = open_page(PAGE, compare_what="models")
    assert not app.exception
    assert "Choose models" in page_text(app)


def test_two_benchmarks_have_a_speedup_with_an_interval(store: Store, settings: Settings) -> None:
    first, second = benchmark(store, settings, 20.0), benchmark(store, settings, 10.0, threads=1)
    store_machine(store)
    machine = store.machine()
    assert machine
    store.save_machine(machine.model_copy(update={"host": "another"}))
    app = open_page(PAGE, compare_runs=f"{first},{second}")
    assert not app.exception
    assert "compare_turns" not in [button.key for button in app.button], "runs of another host are not repeated here"
    line = table_with(app, "speedup").iloc[0]
    assert line["speedup"] == pytest.approx(2, rel=0.01)
    assert line["speedup_low"] < 2 < line["speedup_high"]
    assert (line["verdict"], line["run"]) == ("needs 3 runs", second)
    columns = json.loads(next(frame for frame in app.dataframe if "speedup" in frame.value).proto.columns)
    formats = [columns[name]["type_config"]["format"] for name in ("speedup", "speedup_low", "speedup_high")]
    assert formats == ["%,.4g"] * 3, "limits of 1.005 and 1.014 differ"
    assert charts(app)
    assert "needs 3 runs: They were timed one after the other" in page_text(app).replace("*", "")
    assert f"Threads: 2 (run {first}), 1 (run {second})." in page_text(app)
    settings_table = table_with(app, "where")
    assert list(settings_table["what"]) == ["threads"]
    app.get_by_key("compare_baseline").set_value(f"run {second}").run()
    assert table_with(app, "speedup").iloc[0]["speedup"] == pytest.approx(1 / 2, rel=0.01)
    assert {"compare_speed_csv", "compare_settings_csv"} <= {button.key for button in app.get("download_button")}


@pytest.mark.parametrize("order", ["ab", "ba", "aab"])
def test_runs_get_a_verdict_after_three_turns(order: str, store: Store, settings: Settings) -> None:
    """The button queues the missing runs, beginning with the request that did not run last."""
    store_machine(store)
    threads = {"a": 1, "b": 2}
    ids = {letter: benchmark(store, settings, 20.0 / threads[letter], threads=threads[letter]) for letter in order}
    app = open_page(PAGE, compare_runs=f"{ids['a']},{ids['b']}")
    (button,) = [button for button in app.button if button.key == "compare_turns"]
    assert button.label.startswith(f"Repeat runs {ids[order[0]]}, {ids[order[-1]]} in turns, 2 times each (about ")
    button.click().run()
    app.get_by_key("compare_turns").click().run()
    assert not app.exception
    assert "compare_turns" not in [button.key for button in app.button]
    assert "The runs that a verdict needs are queued or running." in page_text(app)
    queued = store.find(Filter(states=(State.QUEUED,), order="oldest"), limit=10)
    numbers = [run.spec.threads for run in queued if isinstance(run.spec, BenchmarkSpec)]
    assert numbers == 2 * [threads[order[0]], threads[order[-1]]], "queued once, although clicked twice"
    for run, number in zip(queued, numbers, strict=True):
        finish(store, run.id, [benchmark_row("resnet18", latency_ms=20.0 / (number or 1), baseline="")])
    app = open_page(PAGE, compare_runs=f"{ids['a']},{ids['b']}")
    line = table_with(app, "speedup").iloc[0]
    assert (line["verdict"], line["note"]) == ("faster", "of 3 and 3 turns")
    assert "compare_turns" not in [button.key for button in app.button]


def test_one_request_with_other_variables_is_not_repeated_in_turns(store: Store, settings: Settings) -> None:
    """New runs would all have the variables of the present scheduler."""
    store_machine(store)
    first = benchmark(store, settings, 20.0)
    second = queue_benchmark(store, "timm:resnet18", variants=("eager",), batch_size=8)
    row = benchmark_row("resnet18", latency_ms=10.0, baseline="")
    finish(store, second, [row], ENVIRONMENT.model_copy(update={"variables": "OMP_WAIT_POLICY=passive"}))
    app = open_page(PAGE, compare_runs=f"{first},{second}")
    assert table_with(app, "speedup").iloc[0]["verdict"] == "needs 3 runs"
    assert "compare_turns" not in [button.key for button in app.button]


def test_downloaded_values_have_their_units(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    tables: list[pd.DataFrame] = []
    monkeypatch.setattr(values, "download_table", lambda frame, *_, **__: tables.append(frame()))
    for run_id in (queue(store, "resnet18"), queue(store, "resnet18")):
        finish(store, run_id, [profile_row("resnet18", gmacs=2.0, intensity=30.0)])
    assert not open_page(PAGE, compare_runs="1,2").exception
    labels = tables[-1].set_index("metric")["label"]
    assert labels[["gmacs", "intensity"]].to_dict() == {"gmacs": "MACs (G)", "intensity": "Intensity (FLOP/B)"}


@pytest.mark.parametrize(("model", "shown"), [("resnet34", True), ("resnet18", False)])
def test_runs_without_a_common_row_show_a_message(model: str, shown: bool, store: Store) -> None:
    for models in (("resnet18", "resnet50"), (model, "resnet101")):
        run_id = queue(store, *models)
        finish(store, run_id, [profile_row(name) for name in models])
    app = open_page(PAGE, compare_runs="1,2")
    assert not app.exception
    assert ("No row is in more than one of these" in page_text(app)) is shown


def test_unset_setting_shows_its_default(store: Store, settings: Settings) -> None:
    first, second = benchmark(store, settings, 20.0), benchmark(store, settings, 10.0, image_size=224)
    app = open_page(PAGE, compare_runs=f"{first},{second}")
    assert not app.exception
    (line,) = table_with(app, "where").to_dict("records")
    shown = (line["what"], line[f"run {first}"], line[f"run {second}"])
    assert shown == ("image size", "default: the model's own", "224")


def test_flags_of_both_runs_are_explained(store: Store, settings: Settings) -> None:
    first = benchmark(store, settings, 20.0, flags=("contended", "below_floor"))
    second = benchmark(store, settings, 10.0, flags=("below_floor",))
    app = open_page(PAGE, compare_runs=f"{first},{second}")
    assert not app.exception
    contended = f"contended] run {first}: timm:resnet18 · inference · eager · batch 8 · 224 px. {FLAGS['contended']}"
    assert contended in page_text(app)
    assert f"below floor] All timings. {FLAGS['below_floor']}" in page_text(app)
    line = table_with(app, "speedup").iloc[0]
    assert (line["flags"], line["baseline_flags"]) == ("below floor", "contended, below floor")


def test_address_restores_the_view(store: Store, settings: Settings) -> None:
    ids = [benchmark(store, settings, ms, variant) for ms, variant in ((20.0, "eager"), (10.0, "compile"))]
    app = open_page(PAGE)
    assert all(run.endswith(" UTC") for run in app.multiselect(key="compare_runs_field").options)
    app.multiselect(key="compare_runs_field").set_value([str(run_id) for run_id in ids]).run()
    app.get_by_key("compare_baseline").set_value(f"run {ids[1]}").run()
    app.selectbox(key="compare_figure").set_value("per_sample").run()
    assert app.query_params["compare_runs"] == f"{ids[0]},{ids[1]}"
    # a browser would also write the values of fields into the address, AppTest does not
    field_values = {"compare_baseline": f"run {ids[1]}", "compare_figure": "Time per image or sequence"}
    fresh = open_page(PAGE, compare_runs=f"{ids[0]},{ids[1]}", **field_values)
    assert not fresh.exception
    pd.testing.assert_frame_equal(table_with(fresh, "speedup"), table_with(app, "speedup"))
    assert fresh.selectbox(key="compare_figure").value == "per_sample"
    assert fresh.get_by_key("compare_baseline").value == f"run {ids[1]}"
    assert page_text(fresh) == page_text(app)


def test_all_rows_can_be_compared_with_one_row(store: Store, settings: Settings) -> None:
    run_id = queue_benchmark(store, "timm:resnet18", variants=("eager", "compile"))
    rows: list[Row] = [benchmark_row("resnet18"), benchmark_row("resnet18", "compile", latency_ms=10.0)]
    folder = RunFiles(settings.runs_dir, run_id).dir
    write_samples(folder, rows[0], eager=samples_at(20), compile=samples_at(10))  # type: ignore[arg-type]
    finish(store, run_id, rows)
    app = open_page(PAGE, compare_runs=str(run_id))
    assert not app.exception, "one run with two rows is enough"
    assert "compile" in set(table_with(app, "speedup")["variant"])
    assert "one after the other" not in page_text(app)
    store_machine(store)
    other = queue_benchmark(store, "timm:resnet18", "timm:resnet34")
    finish(store, other, [benchmark_row("resnet18"), benchmark_row("resnet34", latency_ms=40.0)])
    app = open_page(PAGE, compare_runs=str(other))
    assert app.button(key="compare_turns").label.startswith(f"Repeat run {other} (2 times, about ")
    assert "different models and sizes of one run, were timed one after the other" in page_text(app)
    app.button(key="compare_turns").click().run()
    queued = store.find(Filter(states=(State.QUEUED,), order="oldest"), limit=10)
    assert [run.spec for run in queued] == [store.run(other).spec] * 2
    for run, factor in zip(queued, (1.01, 0.99), strict=True):
        rows = [benchmark_row(f"resnet{size}", latency_ms=ms * factor) for size, ms in ((18, 20.0), (34, 40.0))]
        finish(store, run.id, list(rows))
    assert table_with(open_page(PAGE, compare_runs=str(other)), "verdict")["verdict"].tolist() == ["slower"]
    other = benchmark(store, settings, 5.0, "trace")
    app = open_page(PAGE, compare_runs=f"{run_id},{other}")
    assert "No two rows of different runs have the same model and settings" in page_text(app)
    app.get_by_key("compare_how").set_value("all with one row").run()
    assert not app.exception
    assert list(table_with(app, "speedup")["variant"]) == ["compile", "trace"]
    assert table_with(app, "speedup")["speedup"].tolist() == pytest.approx([2, 4], rel=0.01)


def test_recurrent_runs_can_be_compared(store: Store, settings: Settings) -> None:
    ids = []
    for ms in (20.0, 10.0):
        run_id = queue_recurrent(store, runners="aten,py")
        rows = [recurrent_row("aten"), recurrent_row("py", status="error", error="no", latency_ms=None)]
        write_recurrent_samples(RunFiles(settings.runs_dir, run_id).dir, rows[0], aten=(samples_at(ms), samples_at(ms)))
        finish(store, run_id, list(rows))
        ids.append(run_id)
    app = open_page(PAGE, compare_runs=f"{ids[0]},{ids[1]}", compare_figure="Forward")
    assert not app.exception
    lines = table_with(app, "verdict").set_index("model")
    assert lines.loc["aten", "speedup"] == pytest.approx(2, rel=0.01)
    app = open_page(PAGE, compare_runs=f"{ids[0]},{ids[1]}")
    assert f"run {ids[1]}: no" in table_with(app, "verdict").set_index("model").loc["py", "note"]


def test_rows_of_a_sweep_can_be_told_apart(store: Store) -> None:
    rows = [recurrent_row("aten", hidden_size=size) for size in (32, 64, 128)]
    rows += [recurrent_row("resnet18", seq_length=None, hidden_size=None)]
    run_id = queue_recurrent(store, runners="aten,resnet18", sweep="hidden_size", sweep_values="32,64,128")
    finish(store, run_id, list(rows))
    app = open_page(PAGE, compare_runs=str(run_id))
    assert table_with(app, "verdict")["hidden_size"].iloc[0] == 64
    (chart,) = charts(app)
    assert "aten · hidden 64" in str(chart["data"])


def test_timings_with_other_channels_can_be_told_apart(store: Store) -> None:
    ids = [queue_benchmark(store, "resnet18", in_chans=channels) for channels in (None, 1, 4)]
    for run_id, channels in zip(ids, (None, 1, 4), strict=True):
        finish(store, run_id, [benchmark_row("resnet18", in_chans=channels)])
    app = open_page(PAGE, compare_runs=",".join(map(str, ids)))
    lines = table_with(app, "verdict")
    assert list(lines["in_chans"]) == [1, 4]
    assert "tower" not in lines
    assert "resnet18 · 4 channels" in str(charts(app)[0]["data"])


def test_runs_without_samples_have_a_speedup_and_a_note(store: Store) -> None:
    ids = [queue_benchmark(store, "timm:resnet18", threads=threads) for threads in (1, 2)]
    for run_id, ms in zip(ids, (20.0, 10.0), strict=True):
        finish(store, run_id, [benchmark_row("resnet18", latency_ms=ms)])
    app = open_page(PAGE, compare_runs=f"{ids[0]},{ids[1]}")
    assert not app.exception
    line = table_with(app, "speedup").iloc[0]
    assert (line["speedup"], line["verdict"]) == (2.0, "needs 3 runs")
    assert "kept no samples" in line["note"]


def test_counts_are_shown_side_by_side(store: Store) -> None:
    ids = [queue(store, "timm:resnet18", image_size=size) for size in (224, 320)]
    for run_id, size, gmacs in zip(ids, ("224", "320"), (2.0, 4.0), strict=True):
        failed = profile_row("resnet34", status="out_of_memory", error="too large", image_size="")
        finish(store, run_id, [profile_row("resnet18", gmacs=gmacs, image_size=size), failed])
    app = open_page(PAGE, compare_runs=f"{ids[0]},{ids[1]}")
    assert not app.exception
    assert "2 failed rows left out" in page_text(app)
    assert not app.warning, "different image sizes cause no warning"
    lines = table_with(app, f"run {ids[1]} / run {ids[0]}").set_index("metric")
    assert lines.loc["MACs (G)", f"run {ids[1]} / run {ids[0]}"] == 2.0
    app.selectbox(key="compare_figure").set_value("gmacs").run()
    assert not app.exception


def test_device_rates_are_shown_side_by_side(store: Store) -> None:
    ids = []
    for rate in (100.0, 150.0):
        run_id = store.enqueue(DeviceSpec(dtypes=("float32",)))
        fields = {"model": "matmul float32", "device": "cpu", "operation": "matmul", "dtype": "float32"}
        finish(store, run_id, [DeviceRow.model_validate(fields | {"gflop_per_s": rate, "latency_ms": 1.0})])
        ids.append(run_id)
    app = open_page(PAGE, compare_runs=f"{ids[0]},{ids[1]}")
    assert not app.exception
    lines = table_with(app, f"run {ids[1]} / run {ids[0]}").set_index("metric")
    assert lines.loc["Rate (GFLOP/s)", f"run {ids[1]} / run {ids[0]}"] == 1.5
    assert "Latency p50 (ms)" not in lines.index, "the fastest products of two runs may differ in size"


def test_curves_of_trainings_are_overlaid(store: Store) -> None:
    ids = [queue_train(store, batch_size=size) for size in (32, 64)]
    for run_id in ids:
        record(store, run_id, [*curve_points(44), train_row(1), train_row(2, zeroshot_top1=0.5 + run_id / 100)])
    app = open_page(PAGE, compare_runs=f"{ids[0]},{ids[1]}")
    assert not app.exception
    assert "a contrastive loss depends on the number of pairs in a step" in page_text(app)
    assert len(charts(app)) >= 3
    folded = len(charts(app))
    assert len(charts(unfold(app, "Learning rate"))) == folded + 1
    (label,) = [part.label for part in app.get("expander") if part.label.endswith("settings are the same")]
    assert "opt" in set(table_with(unfold(app, label), "value")["what"])
    lines = table_with(app, f"run {ids[1]} − run {ids[0]}").set_index("metric")
    assert lines.loc["Zero-shot top-1 (%)", f"run {ids[1]} − run {ids[0]}"] == pytest.approx(1)
    assert lines.loc["Epoch", f"run {ids[0]}"] == 2
    assert "Pairs/s" in lines.index, "as on the page Train"
    active, waiting = queue_train(store), queue_train(store)
    record(
        store,
        active,
        [train_row(1).model_copy(update={"epoch": 0, "step": 0, "best": False}), *curve_points(4)],
        state=None,
    )
    app = open_page(PAGE, compare_runs=f"{ids[0]},{active},{waiting}")
    assert not app.exception
    assert table_with(app, f"run {active} − run {ids[0]}")[f"run {active}"].isna().all(), "no epoch has ended"
    assert f"Not finished: run {active}, run {waiting}. Only the results so far are compared" in page_text(app)
    empty = [queue_train(store) for _ in range(2)]
    address = ",".join(map(str, empty))
    assert "No curves yet. They appear after the first steps." in page_text(open_page(PAGE, compare_runs=address))
    for run_id in empty:
        store.request_cancel(run_id)
    assert "These runs ended without curves." in page_text(open_page(PAGE, compare_runs=address))


def test_metrics_of_evaluations_are_shown_side_by_side(store: Store) -> None:
    ids = [queue_evaluate(store, model=model) for model in ("ViT-B-32", "digits-clip")]
    for run_id, accuracy in zip(ids, (0.9, 0.75), strict=True):
        record(store, run_id, [evaluate_row("retrieval"), evaluate_row("zeroshot", acc1=accuracy)])
    app = open_page(PAGE, compare_runs=f"{ids[0]},{ids[1]}")
    assert not app.exception
    lines = table_with(app, f"run {ids[1]} − run {ids[0]}").set_index(["what", "metric"])
    assert lines.loc[("zeroshot", "Top-1 (%)"), f"run {ids[1]} − run {ids[0]}"] == pytest.approx(-15)
    images = [lines.loc[("zeroshot", "Images"), f"run {run_id}"] for run_id in ids]
    assert images == [evaluate_row("zeroshot").images] * 2, "the number of images is shown beside the accuracy"


def test_costs_and_timings_of_models_are_shown_side_by_side(store: Store, settings: Settings) -> None:
    names = "timm:resnet18,timm:resnet50,timm:nothing"
    app = open_page(PAGE, compare_models=names)
    assert not app.exception
    assert "The catalogue has no model timm:nothing" in page_text(app)
    assert "No two of these models are timed" in page_text(app)
    lines = table_with(app, "timm:resnet50 / timm:resnet18").set_index("metric")
    assert lines.loc["MACs (G)", "timm:resnet50 / timm:resnet18"] == pytest.approx(4.09 / 1.82)
    run_id = queue_benchmark(store, "timm:resnet18", "timm:resnet50")
    rows = [benchmark_row("resnet18"), benchmark_row("resnet50", latency_ms=40.0)]
    for row, ms in zip(rows, (20, 40), strict=True):
        write_samples(RunFiles(settings.runs_dir, run_id).dir, row, eager=samples_at(ms))
    finish(store, run_id, list(rows))
    app = open_page(PAGE, compare_models=names)
    assert not app.exception
    line = table_with(app, "verdict").iloc[0]
    assert (line["model"], line["verdict"]) == ("resnet50", "needs 3 runs")
    assert line["speedup"] == pytest.approx(0.5, rel=0.01)
    assert "Measured speed" in [header.value for header in app.header], "an imported run is of another machine"
    for _ in range(2):
        finish(store, queue_benchmark(store, "timm:resnet18", "timm:resnet50"), list(rows))
    app = open_page(PAGE, compare_models=names)
    line = table_with(app, "verdict").iloc[0]
    assert (line["model"], line["verdict"]) == ("resnet50", "slower")
    app.get_by_key("compare_baseline").set_value("timm:resnet50").run()
    assert table_with(app, "verdict").iloc[0]["verdict"] == "faster"


def test_models_are_compared_at_their_own_image_sizes(store: Store) -> None:
    rows = [benchmark_row("resnet18", image_size="288"), benchmark_row("resnet50", image_size="224", latency_ms=40.0)]
    for _ in range(3):
        finish(store, queue_benchmark(store, "timm:resnet18", "timm:resnet50"), list(rows))
    app = open_page(PAGE, compare_models="timm:resnet18,timm:resnet50")
    line = table_with(app, "verdict").iloc[0]
    assert (line["verdict"], line["image_size"]) == ("slower", "224")
    sizes = "timm:resnet18 at 288 px, timm:resnet50 at 224 px"
    assert f"Each model was timed at its own image size: {sizes}." in page_text(app)


def test_files_of_costs_and_of_timings_have_different_names(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    monkeypatch.setattr(table, "download", lambda _label, _content, file_name, **_more: names.append(file_name))
    rows = [benchmark_row("resnet18"), benchmark_row("resnet50", latency_ms=40.0)]
    finish(store, queue_benchmark(store, "timm:resnet18", "timm:resnet50"), list(rows))
    assert not open_page(PAGE, compare_models="timm:resnet18,timm:resnet50").exception
    assert [name for name in names if name.endswith("csv")] == ["compare.csv", "compare-speed.csv"]


def test_page_with_one_model_asks_for_a_second() -> None:
    app = open_page(PAGE, compare_models="timm:resnet18")
    assert not app.exception
    assert "Choose a second model to compare with this one." in page_text(app)
    assert "No row is in more than one" not in page_text(app)
    assert "No two of these models" not in page_text(app)


def test_best_published_accuracy_of_each_model_comes_first() -> None:
    app = open_page(PAGE, compare_models="timm:resnet18,timm:resnet50")
    lines = table_with(app, "pretrained")
    assert list(lines["model"])[:2] == ["timm:resnet50", "timm:resnet18"]
    by_model = lines.groupby("model")["percent"]
    assert by_model.first().to_dict() == by_model.max().to_dict()
    assert (lines["percent"].iloc[2:].diff().iloc[1:] <= 0).all()


def test_equal_requests_show_no_different_settings(store: Store) -> None:
    ids = [queue(store, "resnet18") for _ in range(2)]
    for day, run_id in enumerate(ids, start=1):
        environment = ENVIRONMENT.model_copy(update={"date": f"2026-11-0{day}T10:00:00+00:00"})
        finish(store, run_id, [profile_row("resnet18")], environment)
    first, second = ids
    app = open_page(PAGE, compare_runs=f"{first},{second}")
    assert not app.exception
    assert "All settings and environments are the same." in page_text(app)


def test_models_show_count_errors_and_published_accuracies() -> None:
    app = open_page(PAGE, compare_models="timm:broken,timm:resnet18,timm:resnet50")
    assert not app.exception
    assert "RuntimeError: **no** <b>way</b>" in page_text(app)
    assert {"timm:resnet18", "timm:resnet50"} <= set(table_with(app, "percent")["model"])


def store_run(store: Store, kind: str) -> int:
    """Store a finished run of this kind, and return its run id."""
    if kind == "profile":
        run_id = queue(store, "timm:resnet18")
        finish(store, run_id, [profile_row("resnet18")])
    else:
        run_id = queue_benchmark(store, "timm:resnet18")
        finish(store, run_id, [benchmark_row("resnet18")])
    return run_id


def test_runs_of_different_kinds_are_named_and_not_compared(store: Store) -> None:
    counted, timed = store_run(store, "profile"), store_run(store, "benchmark")
    app = open_page(PAGE, compare_runs=f"{counted},{timed}")
    assert not app.exception
    assert f"profile ({counted}), benchmark ({timed})" in page_text(app)
    assert not charts(app)


def test_page_with_one_run_asks_for_a_second(store: Store) -> None:
    app = open_page(PAGE, compare_runs=str(store_run(store, "profile")))
    assert not app.exception
    assert "Choose a second run" in page_text(app)
    app = open_page(PAGE, compare_runs=str(store_run(store, "benchmark")))
    assert "There is only one timing. Choose a second run" in page_text(app)


def test_unknown_runs_are_named_and_the_others_are_shown(store: Store) -> None:
    run_id = store_run(store, "benchmark")
    app = open_page(PAGE, compare_runs=f"00{run_id},{run_id},99,-1,x; drop,{'9' * 40},<i>")
    assert not app.exception
    assert f"Not found, maybe deleted: runs 99, -1, x; drop, {'9' * 40}, <i>" in page_text(app)
    assert f"Run {run_id}" in str([link.proto.label for link in app.get("page_link")])


def test_queued_run_is_named_and_compared_after_it_finished(store: Store, settings: Settings) -> None:
    first, waiting = benchmark(store, settings, 20.0), queue_benchmark(store, "timm:resnet18")
    app = open_page(PAGE, compare_runs=f"{first},{waiting}")
    assert not app.exception
    assert f"Not started: run {waiting}" in page_text(app)
    assert f"The environment of run {waiting} is not recorded" in page_text(app)
    finish(store, waiting, [benchmark_row("resnet18", latency_ms=10.0)])
    app.run()
    assert not app.exception
    assert len(table_with(app, "speedup")) == 1


def test_runs_beyond_the_limit_are_left_out(store: Store) -> None:
    ids = [store_run(store, "profile") for _ in range(9)]
    app = open_page(PAGE, compare_runs=",".join(map(str, ids)))
    assert not app.exception
    assert f"Left out: {ids[-1]}" in page_text(app)
    assert len(app.multiselect(key="compare_runs_field").value) == 8


def test_accuracy_checks_have_no_timings_to_compare(store: Store) -> None:
    ids = [queue_benchmark(store, "timm:resnet18", purpose="accuracy") for _ in range(2)]
    for run_id in ids:
        no_timings = dict.fromkeys(("latency_ms", "mean_ms", "std_ms", "samples_per_s"))
        finish(store, run_id, [benchmark_row("resnet18", accuracy="pass", **no_timings)])
    app = open_page(PAGE, compare_runs=f"{ids[0]},{ids[1]}")
    assert not app.exception
    assert "no timings to compare yet" in page_text(app)
