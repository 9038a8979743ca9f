"""Tests of our build of plotly.js, which must match the release of the Python package plotly."""

import json
import re
from pathlib import Path

import plotly
import plotly.graph_objects as go
import pytest

from engine.settings import ROOT
from pages.shared.chart.chart import TRACES, chart

BUNDLE = ROOT / "pages" / "static" / "plotly.min.js"


def release(source: str) -> str:
    """Return the release of plotly.js that is written in the source of a build."""
    found = re.search(r'version="(\d+\.\d+\.\d+)"|plotly\.js v(\d+\.\d+\.\d+)', source)
    assert found
    return found[1] or found[2]


def test_bundle_has_the_plotly_js_release_of_the_python_package() -> None:
    full_build = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    expected = release(full_build.read_text(encoding="utf-8")[:2000])
    assert release(BUNDLE.read_text(encoding="utf-8")) == expected
    packages = json.loads((ROOT / "frontend" / "package.json").read_text())["dependencies"]
    assert packages == {"plotly.js": expected}


def test_bundle_has_the_traces_that_charts_may_use() -> None:
    assert set(re.findall(r'moduleType:"trace",name:"(\w+)"', BUNDLE.read_text(encoding="utf-8"))) == TRACES, (
        "`make plotly` builds the bundle with the traces in frontend/plotly.js"
    )


def test_bundle_is_small_and_has_its_licence_file() -> None:
    assert BUNDLE.stat().st_size < 1.5e6, "all of plotly.js has 4.7 MB: does the build contain unused traces?"
    assert "MIT" in BUNDLE.with_name("LICENSE.plotly.txt").read_text()


@pytest.mark.parametrize("kind", ["pie", "scattergl"])
def test_trace_type_missing_from_the_bundle_is_refused_by_name(kind: str) -> None:
    assert kind not in TRACES
    with pytest.raises(ValueError, match=f"{kind} yet: add it to frontend/plotly.js"):
        chart(go.Figure({"data": [{"type": kind}]}), key="any", alt="any")
