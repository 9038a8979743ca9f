"""What the catalogue's plot shows: presets, and a figure for each axis, the size and the colour of its points."""

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
        "The publisher's zero-shot average over 38 data sets of every pretrained CLIP model against its MACs.",
        {"x": "gmacs", "y": "zeroshot_average_38", "log_x": True, "log_y": False},
    ),
    "ImageNet against latency here": presets.Preset(
        "Published top-1 accuracy against latency measured on this machine.",
        {"x": "latency_ms", "y": "imagenet_top1", "log_x": True, "log_y": False},
    ),
}


@dataclass(frozen=True)
class Axes:
    """What the plot shows, as columns."""

    x: str
    y: str
    colour: str | None
    """None: the family."""
    size: str | None
    log_x: bool
    log_y: bool
    flops: bool
    """Whether work is in FLOPs."""
    front: bool
    """Whether to draw the Pareto front: of two costs, both of which one wants small, it says nothing."""

    @property
    def published(self) -> list[str]:
        """The published accuracies among them."""
        return [column for column in (self.x, self.y, self.colour, self.size) if column in FIGURES]


def draw(everything: pd.DataFrame) -> Axes:
    """The presets and the choices."""
    place, row = st.container(), st.container(horizontal=True, vertical_alignment="bottom")
    options = catalog_choose.offered(everything)
    with row:
        flops = unit()

    def called(column: str) -> str:
        fixed = {"family": "Family", "equal": "All alike"}
        return fixed.get(column) or title(catalog_choose.in_unit(column, flops))

    def choose(label: str, key: str, first: str, *more: str) -> str:
        offered = [*more, *options]
        return str(
            st.selectbox(label, offered, offered.index(first), format_func=called, key=f"{PREFIX}_{key}", bind=BIND)
        )

    with row:
        x, y = choose("Across", "x", "gmacs"), choose("Up", "y", "mparams")
        colour, size = choose("Colour", "colour", "family", "family"), choose("Size", "size", "equal", "equal")
        log_x = st.toggle("log across", value=True, key=f"{PREFIX}_log_x", bind=BIND)
        log_y = st.toggle("log up", value=True, key=f"{PREFIX}_log_y", bind=BIND)
        front = st.toggle("front", value=True, key=f"{PREFIX}_front", bind=BIND, help="The Pareto front, as a line.")
    presets.draw(place, PREFIX, PRESETS, {"x": x, "y": y, "log_x": log_x, "log_y": log_y})
    chosen = [
        None if column in ("family", "equal") else catalog_choose.in_unit(column, flops) for column in (colour, size)
    ]
    telling = any(column in MEASURED or QUANTITIES[column].better == "larger" for column in (x, y))
    x, y = catalog_choose.in_unit(x, flops), catalog_choose.in_unit(y, flops)
    return Axes(x, y, *chosen, log_x=log_x, log_y=log_y, flops=flops, front=front and telling and x != y)
