"""The settings of the catalogue's plot: presets, a column for each axis, and the size and colour of the points."""

from dataclasses import dataclass

import pandas as pd
import streamlit as st

from engine.published.publishers import FIGURES
from engine.report.catalog import choose as catalog_choose
from engine.report.quantities import MEASURED, QUANTITIES, title
from pages.catalog.filters import BIND, unit
from pages.shared.form import presets

PREFIX = "catalog"
PRESETS: presets.Presets = {
    "Cost": presets.Preset("MACs against parameters.", {"x": "gmacs", "y": "mparams", "log_x": True, "log_y": True}),
    "ImageNet against MACs": presets.Preset(
        "Published top-1 accuracy of every pretrained timm model against its MACs at that image size.",
        {"x": "gmacs", "y": "imagenet_top1", "log_x": True, "log_y": False},
    ),
    "Zero-shot against MACs": presets.Preset(
        "Published zero-shot average over 38 data sets of every pretrained CLIP model against its MACs.",
        {"x": "gmacs", "y": "zeroshot_average_38", "log_x": True, "log_y": False},
    ),
    "ImageNet against latency here": presets.Preset(
        "Published top-1 accuracy against latency measured on this machine.",
        {"x": "latency_ms", "y": "imagenet_top1", "log_x": True, "log_y": False},
    ),
}


@dataclass(frozen=True)
class Axes:
    """Columns and options of the plot."""

    x: str
    y: str
    colour: str | None
    """None: colour by family."""
    size: str | None
    """None: all points have the same size."""
    log_x: bool
    log_y: bool
    flops: bool
    """Show work in FLOPs instead of MACs."""
    front: bool
    """Draw the Pareto front. It is not drawn for two costs: a cheap model is small in both."""

    @property
    def published(self) -> list[str]:
        """Return the columns that are published accuracies."""
        return [column for column in (self.x, self.y, self.colour, self.size) if column in FIGURES]


def draw(everything: pd.DataFrame) -> Axes:
    """Draw the presets and the settings of the plot, and return the settings."""
    place, row = st.container(), st.container(horizontal=True, vertical_alignment="bottom")
    options = catalog_choose.offered(everything)
    with row:
        flops = unit()

    def label_of(column: str) -> str:
        fixed = {"family": "Family", "equal": "Same size"}
        return fixed.get(column) or title(catalog_choose.in_unit(column, flops))

    def choose(label: str, key: str, first: str, *more: str) -> str:
        columns = [*more, *options]
        return str(
            st.selectbox(label, columns, columns.index(first), format_func=label_of, key=f"{PREFIX}_{key}", bind=BIND)
        )

    with row:
        x, y = choose("X axis", "x", "gmacs"), choose("Y axis", "y", "mparams")
        colour, size = choose("Colour", "colour", "family", "family"), choose("Size", "size", "equal", "equal")
        log_x = st.toggle("Log X", value=True, key=f"{PREFIX}_log_x", bind=BIND)
        log_y = st.toggle("Log Y", value=True, key=f"{PREFIX}_log_y", bind=BIND)
        front_help = "Draw the Pareto front: models that no other model beats in both axes."
        front = st.toggle("Pareto front", value=True, key=f"{PREFIX}_front", bind=BIND, help=front_help)
    presets.draw(place, PREFIX, PRESETS, {"x": x, "y": y, "log_x": log_x, "log_y": log_y})
    chosen = [
        None if column in ("family", "equal") else catalog_choose.in_unit(column, flops) for column in (colour, size)
    ]
    has_front = any(column in MEASURED or QUANTITIES[column].better == "larger" for column in (x, y))
    x, y = catalog_choose.in_unit(x, flops), catalog_choose.in_unit(y, flops)
    return Axes(x, y, *chosen, log_x=log_x, log_y=log_y, flops=flops, front=front and has_front and x != y)
