"""Colours of pages and charts: contrast, and differences that do not need all of colour vision."""

import tomllib
from itertools import combinations, pairwise

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from engine.report.figures import evaluation
from engine.report.style import COLOURS, GREY, INK, TOWER_COLOURS, style
from engine.settings import ROOT

THEMES = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text(encoding="utf-8"))["theme"]

COLOUR_VISION = {
    "usual": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
"""Matrices from linear sRGB to what a reader sees, by colour vision: Machado, Oliveira and Fernandes, "A
physiologically-based model for simulation of color vision deficiency", 2009, severity 1."""
LMS = [[0.41222147, 0.53633254, 0.05144599], [0.21190350, 0.68069955, 0.10739696], [0.08830246, 0.28171884, 0.62997870]]
LAB = [
    [0.21045426, 0.79361779, -0.00407205],
    [1.97799850, -2.42859221, 0.45059371],
    [0.02590404, 0.78277177, -0.80867577],
]
"""Matrices of Ottosson's Oklab, from linear sRGB over the cube roots of LMS."""
DISTINCT = 0.04
"""Distance in Oklab from which small marks can be distinguished: twice the smallest difference that can be seen."""


def contrast(first: str, second: str) -> float:
    """Return the contrast ratio of WCAG 2 between two colours such as #0D1117."""

    def luminance(colour: str) -> float:
        parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, light = sorted(map(luminance, (first, second)))
    return (light + 0.05) / (dark + 0.05)


def blend(colour: str, background: str, opacity: float) -> str:
    """Return a translucent colour as it looks on a background."""
    pairs = ((int(colour[start : start + 2], 16), int(background[start : start + 2], 16)) for start in (1, 3, 5))
    return "#" + "".join(f"{round(front * opacity + back * (1 - opacity)):02x}" for front, back in pairs)


@pytest.mark.parametrize("name", ["light", "dark"])
def test_text_has_enough_contrast_in_both_themes(name: str) -> None:
    """WCAG 2 asks for 4.5:1. Streamlit draws selected segments with opacity 10 % and pinned columns with 60 %."""
    theme = THEMES[name]
    sidebar, background, primary = theme["sidebar"], theme["backgroundColor"], theme["primaryColor"]
    pairs = {
        "selected segment": (primary, blend(primary, background, 0.1)),
        "selected pill in the sidebar": (primary, blend(primary, sidebar["backgroundColor"], 0.1)),
        "pinned column": (blend(theme["textColor"], background, 0.6), background),
        "caption in the sidebar": (
            blend(sidebar["textColor"], sidebar["backgroundColor"], 0.6),
            sidebar["backgroundColor"],
        ),
        "ticks of an axis": (theme["grayColor"], background),
        "link": (theme["linkColor"], background),
    }
    colours = dict(zip([*COLOURS, GREY], theme["chartCategoricalColors"], strict=True))
    pairs |= {f"text on tower {tower}": (INK, colours[colour]) for tower, colour in TOWER_COLOURS.items()}
    (matrix,) = evaluation.confusion(pd.DataFrame([[2, 1], [0, 3]], ["a", "b"], ["a", "b"])).data
    pairs |= {
        f"count in a cell of share {share:.0%}": (matrix.textfont.color, colours.get(colour, colour))
        for share, colour in matrix.colorscale
    }
    assert {element: ratio for element, pair in pairs.items() if (ratio := contrast(*pair)) < 4.5} == {}


def seen(colour: str, vision: str) -> NDArray[np.float64]:
    """Return the place in Oklab of what a reader with this colour vision sees."""
    parts = np.array([int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return np.array(LAB) @ np.cbrt(np.array(LMS) @ np.clip(np.array(COLOUR_VISION[vision]) @ linear, 0, 1))


@pytest.mark.parametrize("vision", list(COLOUR_VISION))
@pytest.mark.parametrize("name", ["light", "dark"])
def test_colours_of_charts_are_distinct_for_all_readers(name: str, vision: str) -> None:
    distances = {
        (first, second): float(np.linalg.norm(seen(first, vision) - seen(second, vision)))
        for first, second in combinations(THEMES[name]["chartCategoricalColors"], 2)
    }
    assert {pair: distance for pair, distance in distances.items() if distance < DISTINCT} == {}


def test_neighbouring_series_differ_without_colours() -> None:
    """Printed in grey, several colours of the palette look the same."""
    styles = [style(rank) for rank in range(48)]
    assert len(set(styles)) == 48
    assert all(first[1] != second[1] for first, second in pairwise(styles))
    assert len({shape for _, shape in styles[: len(COLOURS)]}) == len(COLOURS)
