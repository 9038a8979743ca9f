"""The build of plotly.js that draws the charts, and the Python package that makes the figures, belong together."""

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
    """Of plotly.js, as a build of it says."""
    found = re.search(r'version="(\d+\.\d+\.\d+)"|plotly\.js v(\d+\.\d+\.\d+)', source)
    assert found
    return found[1] or found[2]


def test_it_is_the_release_that_the_python_package_is_made_for() -> None:
    whole = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    wanted = release(whole.read_text(encoding="utf-8")[:2000])
    assert release(BUNDLE.read_text(encoding="utf-8")) == wanted
    packages = json.loads((ROOT / "frontend" / "package.json").read_text())["dependencies"]
    assert packages == {"plotly.js": wanted}


def test_it_is_small_and_its_licence_lies_beside_it() -> None:
    assert BUNDLE.stat().st_size < 1.5e6, "all of plotly.js has 4.7 MB: was another trace than needed added?"
    assert "MIT" in BUNDLE.with_name("LICENSE.plotly.txt").read_text()


@pytest.mark.parametrize("kind", ["pie", "scattergl"])
def test_a_trace_it_has_not_is_refused_by_name(kind: str) -> None:
    assert kind not in TRACES
    with pytest.raises(ValueError, match=f"{kind} yet: add it to frontend/plotly.js"):
        chart(go.Figure({"data": [{"type": kind}]}), key="any", alt="any")
