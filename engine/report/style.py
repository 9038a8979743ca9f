"""What all charts share: colours, shapes and the writing of numbers and names.

Colours are Okabe and Ito's (jfly.uni-koeln.de/color), told apart in all common forms of colour blindness. Since there
are more families than colours, the marker's shape tells the further rings of families apart.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

import pandas as pd

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
SHAPES = ("circle", "diamond", "square", "cross", "triangle-up", "star", "x", "hexagon")
GREY = "#8A8F98"
TOWER_COLOURS = {"image": COLOURS[0], "text": COLOURS[1], "other": GREY}

Style = tuple[str, str]
"""Colour and marker shape."""


def family_styles(families: Sequence[str]) -> dict[str, Style]:
    """The style of each family. families: of the whole catalogue, so that a family looks alike on every page."""
    return {
        family: (COLOURS[rank % len(COLOURS)], SHAPES[rank // len(COLOURS) % len(SHAPES)])
        for rank, family in enumerate(families)
    }


def digits(value: float | None) -> str:
    """Three significant digits, thousands apart: 1234.5 is 1,230 and 0.012345 is 0.0123."""
    if value is None or pd.isna(value):
        return "–"
    return f"{float(f'{value:.3g}'):,.10g}"


def text(value: Any) -> str:
    """Return a name as Plotly shows it literally: Plotly reads a few tags, and `%{x}` in hovers as a format."""
    return escape(str(value), quote=False).replace("%{", "%&#123;")


def compute(gflop_per_s: float) -> str:
    """`112 GFLOP/s`, `1.23 TFLOP/s`."""
    return f"{digits(gflop_per_s / 1e3)} TFLOP/s" if gflop_per_s >= 1e3 else f"{digits(gflop_per_s)} GFLOP/s"


def bandwidth(gb_per_s: float) -> str:
    """`23.4 GB/s`, `4.1 TB/s`."""
    return f"{digits(gb_per_s / 1e3)} TB/s" if gb_per_s >= 1e3 else f"{digits(gb_per_s)} GB/s"
