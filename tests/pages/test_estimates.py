"""Estimated speeds on the pages, with the shipped catalogue: measured first, and estimates told apart."""

import re

import pytest

from engine.settings import ROOT
from tests.support.page import charts, open_page, texts, unfold

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("own_world"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


@pytest.fixture(autouse=True)
def shipped_catalogue(own_world: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITALS_CATALOG_DIR", str(ROOT / "data" / "catalog"))


def test_the_catalogue_shows_a_device_that_is_not_here() -> None:
    app = open_page()
    app.selectbox(key="catalog_x").set_value("latency_ms")
    app.selectbox(key="catalog_y").set_value("imagenet_top1").run()
    assert "latency_ms" not in app.dataframe[0].value, "nothing is timed here"
    device = next(label for label in app.selectbox(key="catalog_device").options if "i7" in label)
    app.selectbox(key="catalog_device").set_value(device).run()
    assert not app.exception
    shown = app.dataframe[0].value
    assert shown["latency_ms"].notna().mean() > 0.9
    sources = shown["measured"].str.partition(",")[0]
    assert set(sources[shown["latency_ms"].notna()]) == {"published", "estimated"}
    assert (shown["flags"] == "estimate outside the fitted range").any()
    front = shown[shown["front"]]
    assert len(front) > 5
    assert (front["flags"] == "").all()
    assert "Hollow points are estimates" in texts(app)
    marks = {str(symbol) for trace in charts(app)[0]["data"] for symbol in _symbols(trace)}
    assert any(mark.endswith("-open") for mark in marks)
    assert any(not mark.endswith("-open") for mark in marks)
    assert "on the Pareto front" in texts(app)
    promising = re.search(r"Estimated to be near the front\\: (\d+) models not timed yet", texts(app))
    assert promising
    assert 1 < int(promising[1]) <= 20
    assert app.button(key="catalog_measure").label.startswith(f"Time {promising[1]} models on this machine")


def _symbols(trace: dict) -> list[str]:
    symbol = trace.get("marker", {}).get("symbol", [])
    return [symbol] if isinstance(symbol, str) else list(symbol)


def test_models_are_compared_on_all_devices() -> None:
    app = open_page("compare/page.py", compare_models="timm:resnet50,open_clip:ViT-B-32")
    unfold(app, "Which device?")
    assert not app.exception
    table = next(frame.value for frame in app.dataframe if "samples_per_s_low" in frame.value)
    assert table.groupby("model")["device"].nunique().eq(12).all()
    assert set(table[table["model"] == "timm:resnet50"]["source"]) == {"published"}
    assert set(table[table["model"] == "open_clip:ViT-B-32"]["source"]) == {"estimated"}
