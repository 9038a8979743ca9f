"""Tests of estimated speeds on the pages, with the shipped catalogue."""

import os
import re
from collections.abc import Callable
from io import StringIO

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from engine.estimate import devices, work
from engine.report.timings import estimates
from engine.settings import ROOT, Settings
from engine.specs import BenchmarkSpec
from engine.store import Store
from pages.shared import table
from tests.support.page import (
    benchmark_row,
    calibrated_by_hand,
    charts,
    finish,
    open_page,
    queue_benchmark,
    texts,
    ticked,
    unfold,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("own_world"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


@pytest.fixture(autouse=True)
def shipped_catalogue(own_world: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITALS_CATALOG_DIR", str(ROOT / "data" / "catalog"))


def test_catalogue_shows_speeds_of_a_shipped_device() -> None:
    app = open_page()
    app.selectbox(key="catalog_x").set_value("latency_ms")
    app.selectbox(key="catalog_y").set_value("imagenet_top1").run()
    assert "latency_ms" not in app.dataframe[0].value, "no model is timed on this machine"
    assert "choose a device in *Estimate speed on* or calibrate this machine" in texts(app)
    device = devices.find(devices.shipped(), "i7")[0].label
    app.selectbox(key="catalog_device").set_value(device).run()
    assert not app.exception
    table = app.dataframe[0].value
    assert table["latency_ms"].notna().mean() > 0.9
    assert list(table.columns)[3:6] == ["samples_per_s", "batch_size", "measured"], "the source is beside the values"
    sources = table["measured"].str.partition(",")[0]
    assert set(sources[table["latency_ms"].notna()]) == {"published", "estimated"}
    assert (table["flags"] == "estimate outside the fitted range").any()
    front = table[table["front"]]
    assert len(front) > 5
    assert (front["flags"] == "").all()
    assert "Hollow points are estimates and flagged timings. Disturbed timings and" in texts(app)
    marks = {str(symbol) for trace in charts(app)[0]["data"] for symbol in _symbols(trace)}
    assert any(mark.endswith("-open") for mark in marks)
    assert any(not mark.endswith("-open") for mark in marks)
    assert "on the Pareto front" in texts(app)
    assert f"Speeds are those of {device}" in texts(app).replace("\\", "")
    assert app.button(key="catalog_measure").disabled, "timings here cannot change the front of another device"
    assert ticked(app) == []


def test_catalogue_names_an_imported_device_that_cannot_be_read(settings: Settings) -> None:
    settings.device_dir.mkdir(parents=True)
    (settings.device_dir / "laptop.json").write_text('{"device": "lap')
    app = open_page()
    assert not app.exception
    assert "laptop.json cannot be read. Repeat its" in texts(app).replace("\\", "")
    assert len(app.selectbox(key="catalog_device").options) > 5, "published devices are still offered"


def test_latency_preset_shows_estimates_of_the_calibrated_machine(store: Store) -> None:
    calibrated_by_hand(store, flags=("contended",))
    app = open_page()
    app.button(key="catalog_preset_ImageNet against latency here").click().run()
    assert not app.exception
    assert app.selectbox(key="catalog_device").value == app.selectbox(key="catalog_setting").value
    table = app.dataframe[0].value
    sources = table["measured"].str.partition(",")[0].value_counts()
    assert sources["estimated"] > 1000
    assert sources["measured"] >= 20
    timed = table[table["measured"].str.startswith("measured")]
    assert timed["measured"].str.startswith("measured, run 1, ").all()
    assert (timed["flags"] == "contended").all(), "a timing keeps its flags"
    assert not timed["front"].any()
    near_front = re.search(r"Estimated to be near the front\\: (\d+) models not timed yet", texts(app))
    assert near_front
    assert 1 < int(near_front[1]) <= 20
    assert app.button(key="catalog_measure").label.startswith(f"Time {near_front[1]} models on this machine")
    assert ticked(app) == ["ImageNet against latency here"]
    app.selectbox(key="catalog_x").set_value("gmacs").run()
    assert not app.exception
    assert "Pareto front\\: " in texts(app), "the front by MACs does not depend on estimated latencies"
    assert "near the front" not in texts(app)
    app.selectbox(key="catalog_x").set_value("latency_ms").run()
    app.selectbox(key="catalog_device").set_value(None).run()
    assert ticked(app) == []


def test_speed_limit_offers_estimates_for_rows_without_a_timing(store: Store) -> None:
    app = open_page(catalog_max_latency_ms="30")
    assert "No rows match these filters" in texts(app)
    app.button(key="catalog_estimate").click().run()
    assert not app.exception
    published = app.selectbox(key="catalog_device").value
    assert published == devices.find(devices.shipped(), "i7")[0].label, "a CPU, because this machine has only a CPU"
    assert len(app.dataframe[0].value) > 400
    assert not [button for button in app.button if button.key == "catalog_estimate"]
    calibrated_by_hand(store)
    app = open_page(catalog_max_latency_ms="30")
    timed_rows = len(app.dataframe[0].value)
    assert 0 < timed_rows < 48
    assert re.search(r"Left out by limits: 1,\d\d\d rows without a known speed\.", plain_text(app))
    app.button(key="catalog_estimate").click().run()
    assert not app.exception
    assert app.selectbox(key="catalog_device").value == app.selectbox(key="catalog_setting").value
    assert len(app.dataframe[0].value) > 10 * timed_rows
    assert "Left out by limits" not in texts(app)


def plain_text(app: AppTest) -> str:
    return texts(app).replace("\\", "")


def test_pages_warn_of_an_unreliable_calibration(store: Store) -> None:
    """Check a calibration with a small error whose timings are all flagged as contended."""
    calibrated_by_hand(store, flags=("single_process", "contended"))
    message = "timings flagged (contended). Calibrate again on a quiet machine."
    app = open_page()
    assert not app.warning, "no device is chosen"
    app.button(key="catalog_preset_ImageNet against latency here").click().run()
    assert [message in warning.value.replace("\\", "") for warning in app.warning] == [True]
    app.session_state["catalog_calibrate"] = True  # open the menu
    app.run()
    assert len(app.warning) == 2
    device = devices.find(devices.shipped(), "i7")[0].label
    app.session_state["catalog_calibrate"] = False
    app.selectbox(key="catalog_device").set_value(device).run()
    assert not app.warning
    for page, query in {
        "model/page.py": {"name": "open_clip:ViT-B-32", "model_part": "Speed"},
        "run/page.py": {"run": "1"},
    }.items():
        app = open_page(page, **query)
        assert not app.exception
        assert [message in warning.value.replace("\\", "") for warning in app.warning] == [True]
    assert "error on unseen families of the timed models" in texts(app)


def test_downloads_mark_unreliable_estimates(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files lack the warning that the pages show above their tables."""
    calibrated_by_hand(store, flags=("contended",))
    files: list[Callable[[str], str | bytes]] = []
    monkeypatch.setattr(table, "download_formats", lambda content, *_, **__: files.append(content))
    model_page = open_page("model/page.py", name="open_clip:ViT-B-32", model_part="Speed")
    assert "estimated, unreliable" in set(model_page.dataframe[0].value["source"])
    app = open_page()
    app.button(key="catalog_preset_ImageNet against latency here").click().run()
    of_model, of_catalogue = (pd.read_csv(StringIO(str(files[place]("csv")))) for place in (0, -1))
    here = of_model["device"].str.endswith("(here)")
    assert set(of_model.loc[here, "source"]) == {"estimated, unreliable"}
    assert set(of_model.loc[~here, "source"]) == {"estimated"}, "published devices are reliable"
    sources = of_catalogue["source"].dropna()
    assert (sources == "estimated, unreliable").sum() > 1000
    assert "estimated" not in set(sources)


def test_pages_do_not_warn_of_a_reliable_calibration(store: Store) -> None:
    calibrated_by_hand(store)
    app = open_page("model/page.py", name="open_clip:ViT-B-32", model_part="Speed")
    assert not app.exception
    assert not app.warning
    app = open_page("run/page.py", run="1")
    assert not app.warning
    assert "error on unseen families of the timed models" in texts(app)


def _symbols(trace: dict) -> list[str]:
    symbol = trace.get("marker", {}).get("symbol", [])
    return [symbol] if isinstance(symbol, str) else list(symbol)


def test_models_are_compared_on_all_devices() -> None:
    app = open_page("compare/page.py", compare_models="timm:resnet50,open_clip:ViT-B-32")
    unfold(app, "Which device?")
    assert "Type the power or the price of devices" in texts(app)
    assert not app.exception
    table = next(frame.value for frame in app.dataframe if "error_percent" in frame.value)
    assert table.groupby("model")["device"].nunique().eq(12).all()
    assert set(table[table["model"] == "timm:resnet50"]["source"]) == {"published"}
    assert table[table["model"] == "open_clip:ViT-B-32"]["source"].str.startswith("estimated").all()
    unfold(app, "Effective rates")
    rates = next(frame.value for frame in app.dataframe if "GFLOP/s" in frame.value).set_index("kind")
    device = devices.shipped()[0]
    assert rates.loc["convolution", "GFLOP/s"] == pytest.approx(1 / device.costs["convolution:gflop"])


def test_model_page_shows_measured_speeds_first(store: Store) -> None:
    row = benchmark_row("ViT-B-32", library="open_clip", latency_ms=70.0)
    finish(store, queue_benchmark(store, "open_clip:ViT-B-32"), [row])
    app = open_page("model/page.py", name="open_clip:ViT-B-32", model_part="Speed")
    assert not app.exception
    table = next(frame.value for frame in app.dataframe if "error_percent" in frame.value)
    first, others = table.iloc[0], table.iloc[1:]
    assert (first["source"], first["latency_ms"], first["batch_size"]) == ("measured", 70.0, 8)
    assert pd.isna(first["interval"])
    assert len(others) == 12
    assert others["source"].str.startswith("estimated").all()
    assert others["interval"].str.match(r"[\d.,]+ to [\d.,]+$").all()
    assert others["error_percent"].between(5, 15).all()


def test_timings_of_one_family_do_not_add_a_device(store: Store) -> None:
    counted = work.read(ROOT / "data" / "catalog").query("family == 'resnet'").reset_index()
    names = [name.removeprefix("timm:") for name in counted["name"].unique() if name.startswith("timm:")]
    assert len(names) > devices.FEWEST
    sizes = counted.drop_duplicates("name").set_index("name")["image_size"]
    rows = [benchmark_row(name, image_size=sizes[f"timm:{name}"], batch_size=1, flags=()) for name in names]
    finish(store, queue_benchmark(store, "family:resnet"), rows)
    app = open_page()
    assert not app.exception
    assert app.selectbox(key="catalog_device").options[0].startswith("i7-12700H"), "one family is not enough"


def test_model_page_queues_a_calibration_of_this_machine(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (9.8, 3.0, 1.0))
    app = open_page("model/page.py", name="timm:resnet50", model_part="Speed")
    app.session_state["model_calibrate"] = True  # open the menu
    assert "**Calibrate later: the load is 10 on 2 CPUs.**" in texts(app.run())
    monkeypatch.setattr(os, "getloadavg", lambda: (1.2, 3.0, 9.8))
    assert "Calibrate later" not in texts(app.run())
    app.button(key="model_calibrate_go").click().run()
    assert not app.exception
    (run,) = store.runs()
    assert isinstance(run.spec, BenchmarkSpec)
    assert (run.name, run.spec.batch_size, len(run.spec.models)) == (estimates.CALIBRATION, 1, 48)
    assert "next in the queue" in texts(app)
    assert [link.proto.label for link in app.get("page_link")].count("Calibration: run 1") == 1
    assert not [button for button in app.button if button.key == "model_calibrate_go"], "one calibration at a time"
