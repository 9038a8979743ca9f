"""Runs and models side by side, kind by kind, by their address alone."""

import numpy as np
import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from engine.results import FLAGS, DeviceRow, Flag, Row
from engine.settings import Settings
from engine.specs import DeviceSpec
from engine.store import Store
from engine.store.files import RunFiles
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
    """Without the signs that keep texts from being interpreted."""
    return texts(app).replace("\\", "")


def around(ms: float, processes: int = 3) -> list[list[float]]:
    """Samples that scatter by four in a thousand."""
    generator = np.random.default_rng(round(100 * ms))
    return [[float(x) for x in ms * generator.normal(1, 0.004, 40)] for _ in range(processes)]


def benchmark(
    store: Store, settings: Settings, ms: float, variant: str = "eager", flags: tuple[Flag, ...] = (), **fields: object
) -> int:
    """A finished benchmark of resnet18 with its samples."""
    run_id = queue_benchmark(store, "timm:resnet18", variants=(variant,), batch_size=8, **fields)
    row = benchmark_row("resnet18", variant, latency_ms=ms, baseline="", flags=flags)
    write_samples(RunFiles(settings.runs_dir, run_id).dir, row, **{variant: around(ms)})
    finish(store, run_id, [row])
    return run_id


def table(app: AppTest, column: str) -> pd.DataFrame:
    """The first table with that column."""
    return next(frame.value for frame in app.dataframe if column in frame.value)


def test_without_anything_it_says_what_to_do() -> None:
    app = open_page(PAGE)
    assert not app.exception
    assert "Choose runs of one kind" in page_text(app)
    assert not app.markdown, "strings in a page's source are no text for readers"
    app = open_page(PAGE, compare_what="models")
    assert not app.exception
    assert "Choose models" in page_text(app)


def test_two_benchmarks_have_a_ratio_with_an_interval(store: Store, settings: Settings) -> None:
    first, second = benchmark(store, settings, 20.0), benchmark(store, settings, 10.0, threads=1)
    app = open_page(PAGE, compare_runs=f"{first},{second}")
    assert not app.exception
    line = table(app, "speedup").iloc[0]
    assert line["speedup"] == pytest.approx(2, rel=0.01)
    assert line["speedup_low"] < 2 < line["speedup_high"]
    assert (line["verdict"], line["run"]) == ("needs 3 runs", second)
    assert charts(app)
    assert "needs 3 runs: Different runs differ by more than their processes do" in page_text(app).replace("*", "")
    assert f"Threads: 2 (run {first}), 1 (run {second})." in page_text(app)
    differing = table(app, "where")
    assert list(differing["what"]) == ["threads"]
    app.get_by_key("compare_baseline").set_value(f"run {second}").run()
    assert table(app, "speedup").iloc[0]["speedup"] == pytest.approx(1 / 2, rel=0.01)
    assert {"compare_speed_csv", "compare_settings_csv"} <= {button.key for button in app.get("download_button")}


@pytest.mark.parametrize(("model", "said"), [("resnet34", True), ("resnet18", False)])
def test_runs_without_a_common_row_say_so(model: str, said: bool, store: Store) -> None:
    for models in (("resnet18", "resnet50"), (model, "resnet101")):
        run_id = queue(store, *models)
        finish(store, run_id, [profile_row(name) for name in models])
    app = open_page(PAGE, compare_runs="1,2")
    assert not app.exception
    assert ("No row is in more than one of these" in page_text(app)) is said


def test_a_setting_that_was_left_open_shows_its_default(store: Store, settings: Settings) -> None:
    first, second = benchmark(store, settings, 20.0), benchmark(store, settings, 10.0, image_size=224)
    app = open_page(PAGE, compare_runs=f"{first},{second}")
    assert not app.exception
    (line,) = table(app, "where").to_dict("records")
    shown = (line["what"], line[f"run {first}"], line[f"run {second}"])
    assert shown == ("image size", "default: the model's own", "224")


def test_flags_of_both_sides_are_named_with_their_meaning(store: Store, settings: Settings) -> None:
    first = benchmark(store, settings, 20.0, flags=("contended", "below_floor"))
    second = benchmark(store, settings, 10.0, flags=("below_floor",))
    app = open_page(PAGE, compare_runs=f"{first},{second}")
    assert not app.exception
    contended = f"contended] run {first}: timm:resnet18 · inference · eager · batch 8 · 224 px. {FLAGS['contended']}"
    assert contended in page_text(app)
    assert f"below floor] all timings. {FLAGS['below_floor']}" in page_text(app)
    line = table(app, "speedup").iloc[0]
    assert (line["flags"], line["baseline_flags"]) == ("below floor", "contended, below floor")


def test_the_address_is_the_view(store: Store, settings: Settings) -> None:
    ids = [benchmark(store, settings, ms, variant) for ms, variant in ((20.0, "eager"), (10.0, "compile"))]
    app = open_page(PAGE)
    app.multiselect(key="compare_runs_field").set_value([str(run) for run in ids]).run()
    app.get_by_key("compare_baseline").set_value(f"run {ids[1]}").run()
    app.selectbox(key="compare_figure").set_value("per_sample").run()
    assert app.query_params["compare_runs"] == f"{ids[0]},{ids[1]}"
    # a browser writes what the fields say into the address, which this is not
    bound = {"compare_baseline": f"run {ids[1]}", "compare_figure": "Time per image or sequence"}
    fresh = open_page(PAGE, compare_runs=f"{ids[0]},{ids[1]}", **bound)
    assert not fresh.exception
    pd.testing.assert_frame_equal(table(fresh, "speedup"), table(app, "speedup"))
    assert fresh.selectbox(key="compare_figure").value == "per_sample"
    assert fresh.get_by_key("compare_baseline").value == f"run {ids[1]}"
    assert page_text(fresh) == page_text(app)


def test_every_row_can_be_compared_with_one(store: Store, settings: Settings) -> None:
    run_id = queue_benchmark(store, "timm:resnet18", variants=("eager", "compile"))
    rows: list[Row] = [benchmark_row("resnet18"), benchmark_row("resnet18", "compile", latency_ms=10.0)]
    folder = RunFiles(settings.runs_dir, run_id).dir
    write_samples(folder, rows[0], eager=around(20), compile=around(10))  # type: ignore[arg-type]
    finish(store, run_id, rows)
    app = open_page(PAGE, compare_runs=str(run_id))
    assert not app.exception, "one run has rows enough"
    assert "compile" in set(table(app, "speedup")["variant"])
    other = benchmark(store, settings, 5.0, "trace")
    app = open_page(PAGE, compare_runs=f"{run_id},{other}")
    assert "No two rows of different runs have the same model and settings" in page_text(app)
    app.get_by_key("compare_how").set_value("all with one row").run()
    assert not app.exception
    assert list(table(app, "speedup")["variant"]) == ["compile", "trace"]
    assert table(app, "speedup")["speedup"].tolist() == pytest.approx([2, 4], rel=0.01)


def test_recurrent_layers_compare(store: Store, settings: Settings) -> None:
    ids = []
    for ms in (20.0, 10.0):
        run_id = queue_recurrent(store, runners="aten,py")
        rows = [recurrent_row("aten"), recurrent_row("py", status="error", error="no", latency_ms=None)]
        write_recurrent_samples(RunFiles(settings.runs_dir, run_id).dir, rows[0], aten=(around(ms), around(ms)))
        finish(store, run_id, list(rows))
        ids.append(run_id)
    app = open_page(PAGE, compare_runs=f"{ids[0]},{ids[1]}", compare_figure="Forward")
    assert not app.exception
    lines = table(app, "verdict").set_index("model")
    assert lines.loc["aten", "speedup"] == pytest.approx(2, rel=0.01)
    app = open_page(PAGE, compare_runs=f"{ids[0]},{ids[1]}")
    assert f"run {ids[1]}: no" in table(app, "verdict").set_index("model").loc["py", "note"]


def test_runs_without_samples_have_a_ratio_and_say_so(store: Store) -> None:
    ids = [queue_benchmark(store, "timm:resnet18", threads=threads) for threads in (1, 2)]
    for run_id, ms in zip(ids, (20.0, 10.0), strict=True):
        finish(store, run_id, [benchmark_row("resnet18", latency_ms=ms)])
    app = open_page(PAGE, compare_runs=f"{ids[0]},{ids[1]}")
    assert not app.exception
    line = table(app, "speedup").iloc[0]
    assert (line["speedup"], line["verdict"]) == (2.0, "needs 3 runs")
    assert "kept no samples" in line["note"]


def test_counts_stand_side_by_side(store: Store) -> None:
    ids = [queue(store, "timm:resnet18", image_size=size) for size in (224, 320)]
    for run_id, size, gmacs in zip(ids, ("224", "320"), (2.0, 4.0), strict=True):
        finish(store, run_id, [profile_row("resnet18", gmacs=gmacs, image_size=size)])
    app = open_page(PAGE, compare_runs=f"{ids[0]},{ids[1]}")
    assert not app.exception
    assert not app.warning, "another image size is what is compared"
    lines = table(app, f"run {ids[1]} / run {ids[0]}").set_index("metric")
    assert lines.loc["MACs (G)", f"run {ids[1]} / run {ids[0]}"] == 2.0
    app.selectbox(key="compare_figure").set_value("gmacs").run()
    assert not app.exception


def test_rates_of_devices_stand_side_by_side(store: Store) -> None:
    ids = []
    for rate in (100.0, 150.0):
        run_id = store.enqueue(DeviceSpec(dtypes=("float32",)))
        known = {"model": "matmul float32", "device": "cpu", "operation": "matmul", "dtype": "float32"}
        finish(store, run_id, [DeviceRow.model_validate(known | {"gflop_per_s": rate, "latency_ms": 1.0})])
        ids.append(run_id)
    app = open_page(PAGE, compare_runs=f"{ids[0]},{ids[1]}")
    assert not app.exception
    lines = table(app, f"run {ids[1]} / run {ids[0]}").set_index("metric")
    assert lines.loc["Rate (GFLOP/s)", f"run {ids[1]} / run {ids[0]}"] == 1.5


def test_trainings_have_their_curves_over_each_other(store: Store) -> None:
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
    assert "opt" in set(table(unfold(app, label), "value")["what"])
    lines = table(app, f"run {ids[1]} − run {ids[0]}").set_index("metric")
    assert lines.loc["Zero-shot top-1 (%)", f"run {ids[1]} − run {ids[0]}"] == pytest.approx(1)
    assert lines.loc["Epoch", f"run {ids[0]}"] == 2
    app = open_page(PAGE, compare_runs=f"{ids[0]},{queue_train(store)}")
    assert not app.exception
    assert "Only the results so far are compared" in page_text(app)
    empty = [queue_train(store) for _ in range(2)]
    address = ",".join(map(str, empty))
    assert "No curves yet. They appear after the first steps." in page_text(open_page(PAGE, compare_runs=address))
    for run_id in empty:
        store.request_cancel(run_id)
    assert "These runs ended without curves." in page_text(open_page(PAGE, compare_runs=address))


def test_evaluations_have_their_metrics_side_by_side(store: Store) -> None:
    ids = [queue_evaluate(store, model=model) for model in ("ViT-B-32", "digits-clip")]
    for run_id, right in zip(ids, (0.9, 0.75), strict=True):
        record(store, run_id, [evaluate_row("retrieval"), evaluate_row("zeroshot", acc1=right)])
    app = open_page(PAGE, compare_runs=f"{ids[0]},{ids[1]}")
    assert not app.exception
    lines = table(app, f"run {ids[1]} − run {ids[0]}").set_index(["what", "metric"])
    assert lines.loc[("zeroshot", "Top-1 accuracy (%)"), f"run {ids[1]} − run {ids[0]}"] == pytest.approx(-15)
    images = [lines.loc[("zeroshot", "Images"), f"run {run_id}"] for run_id in ids]
    assert images == [evaluate_row("zeroshot").images] * 2, "a share of few images says little"


def test_models_have_costs_and_timings_side_by_side(store: Store, settings: Settings) -> None:
    names = "timm:resnet18,timm:resnet50,timm:nothing"
    app = open_page(PAGE, compare_models=names)
    assert not app.exception
    assert "The catalogue has no model timm:nothing" in page_text(app)
    assert "No two of these models are timed" in page_text(app)
    lines = table(app, "timm:resnet50 / timm:resnet18").set_index("metric")
    assert lines.loc["MACs (G)", "timm:resnet50 / timm:resnet18"] == pytest.approx(4.09 / 1.82)
    run_id = queue_benchmark(store, "timm:resnet18", "timm:resnet50")
    rows = [benchmark_row("resnet18"), benchmark_row("resnet50", latency_ms=40.0)]
    for row, ms in zip(rows, (20, 40), strict=True):
        write_samples(RunFiles(settings.runs_dir, run_id).dir, row, eager=around(ms))
    finish(store, run_id, list(rows))
    app = open_page(PAGE, compare_models=names)
    assert not app.exception
    line = table(app, "verdict").iloc[0]
    assert (line["model"], line["verdict"]) == ("resnet50", "slower")
    app.get_by_key("compare_baseline").set_value("timm:resnet50").run()
    assert table(app, "verdict").iloc[0]["verdict"] == "faster"


def test_one_model_is_no_comparison_yet() -> None:
    app = open_page(PAGE, compare_models="timm:resnet18")
    assert not app.exception
    assert "Choose a second model to compare with this one." in page_text(app)
    assert "No row is in more than one" not in page_text(app)
    assert "No two of these models" not in page_text(app)


def test_the_best_published_accuracies_of_each_model_come_first() -> None:
    app = open_page(PAGE, compare_models="timm:resnet18,timm:resnet50")
    lines = table(app, "pretrained")
    assert list(lines["model"])[:2] == ["timm:resnet50", "timm:resnet18"]
    by_model = lines.groupby("model")["percent"]
    assert by_model.first().to_dict() == by_model.max().to_dict()
    assert (lines["percent"].iloc[2:].diff().iloc[1:] <= 0).all()


def test_the_same_request_twice_has_no_settings_that_differ(store: Store) -> None:
    ids = [queue(store, "resnet18") for _ in range(2)]
    for day, run_id in enumerate(ids, start=1):
        environment = ENVIRONMENT.model_copy(update={"date": f"2026-11-0{day}T10:00:00+00:00"})
        finish(store, run_id, [profile_row("resnet18")], environment)
    first, second = ids
    app = open_page(PAGE, compare_runs=f"{first},{second}")
    assert not app.exception
    assert "All settings and environments are the same." in page_text(app)


def test_models_show_what_cannot_be_trusted_and_what_is_published() -> None:
    app = open_page(PAGE, compare_models="timm:broken,timm:resnet18,timm:resnet50")
    assert not app.exception
    assert "RuntimeError: **no** <b>way</b>" in page_text(app)
    assert {"timm:resnet18", "timm:resnet50"} <= set(table(app, "percent")["model"])


def fill(store: Store, kind: str) -> int:
    """A finished run of a kind."""
    if kind == "profile":
        run_id = queue(store, "timm:resnet18")
        finish(store, run_id, [profile_row("resnet18")])
    else:
        run_id = queue_benchmark(store, "timm:resnet18")
        finish(store, run_id, [benchmark_row("resnet18")])
    return run_id


def test_other_kinds_are_told_apart_and_can_be_left_out(store: Store) -> None:
    counted, timed = fill(store, "profile"), fill(store, "benchmark")
    app = open_page(PAGE, compare_runs=f"{counted},{timed}")
    assert not app.exception
    assert f"profile ({counted}), benchmark ({timed})" in page_text(app)
    assert not charts(app)


def test_one_run_without_rows_to_compare_asks_for_another(store: Store) -> None:
    app = open_page(PAGE, compare_runs=str(fill(store, "profile")))
    assert not app.exception
    assert "Choose a second run" in page_text(app)


def test_runs_that_are_not_there_are_named_and_the_others_shown(store: Store) -> None:
    there = fill(store, "benchmark")
    app = open_page(PAGE, compare_runs=f"00{there},{there},99,-1,x; drop,{'9' * 40},<i>")
    assert not app.exception
    assert f"There are no runs 99, -1, x; drop, {'9' * 40}, <i>" in page_text(app)
    assert f"Run {there}" in str([link.proto.label for link in app.get("page_link")])


def test_what_waits_is_told_and_compared_later(store: Store, settings: Settings) -> None:
    first, waiting = benchmark(store, settings, 20.0), queue_benchmark(store, "timm:resnet18")
    app = open_page(PAGE, compare_runs=f"{first},{waiting}")
    assert not app.exception
    assert f"Not started: run {waiting}" in page_text(app)
    assert f"The environment of run {waiting} is not recorded" in page_text(app)
    finish(store, waiting, [benchmark_row("resnet18", latency_ms=10.0)])
    app.button(key="compare_again").click().run()
    assert not app.exception
    assert len(table(app, "speedup")) == 1


def test_more_than_fit_are_left_out(store: Store) -> None:
    ids = [fill(store, "profile") for _ in range(9)]
    app = open_page(PAGE, compare_runs=",".join(map(str, ids)))
    assert not app.exception
    assert f"Left out: {ids[-1]}" in page_text(app)
    assert len(app.multiselect(key="compare_runs_field").value) == 8


def test_rows_that_timed_nothing_leave_nothing_to_compare(store: Store) -> None:
    ids = [queue_benchmark(store, "timm:resnet18", purpose="accuracy") for _ in range(2)]
    for run_id in ids:
        absent = dict.fromkeys(("latency_ms", "mean_ms", "std_ms", "samples_per_s"))
        finish(store, run_id, [benchmark_row("resnet18", accuracy="pass", **absent)])
    app = open_page(PAGE, compare_runs=f"{ids[0]},{ids[1]}")
    assert not app.exception
    assert "no timings to compare yet" in page_text(app)
