"""Draw what the catalogue's plot shows (axes, colour, unit) and which models it keeps (filters)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
import streamlit as st

from engine.estimate.devices import FittedDevice
from engine.published.publishers import ACCURACIES
from engine.report.catalog import catalog
from engine.report.catalog import choose as catalog_choose
from engine.report.catalog.choose import in_unit
from engine.report.quantities import MEASURED, QUANTITIES, title
from engine.report.timings.stored import Setting
from engine.results.flags import SPOILING
from pages.shared.form import presets
from pages.shared.text import plain
from pages.shared.timing import calibrate

SORTABLE = ("model", "library", "family", "image_size", "pretrained")
LIMITED = ("mparams", "gmacs", "macts", "inference_peak_mb")
"""Costs that have a field for a limit."""
SIDEBAR_LETTERS = 28
"""Number of letters that a field of the sidebar shows: 165 px at up to 6 px each."""


@dataclass(frozen=True)
class Filters:
    """Values of the sidebar's fields."""

    search: str
    library: str | None
    families: Sequence[str]
    image_sizes: Sequence[str]
    accuracy: str | None
    """Column of the published accuracy to show and to set a limit on."""
    setting: Setting
    """Timing setting whose timings are shown."""
    device: str = ""
    """Label of the device whose speeds are shown, measured or estimated; empty for the timings of `setting`."""
    sort: Sequence[str] = ()
    """Columns to sort by, the first one first, with a leading `-` for descending order."""
    limits: dict[str, float] = field(default_factory=dict)
    """Limits by `min_` or `max_` and the column's name, such as `max_gmacs`."""

    @property
    def timings(self) -> list[str]:
        """Return the timings that the limits, the order or the choice of a device refer to."""
        columns = {key.removeprefix("-") for key in self.sort} | {name.partition("_")[2] for name in self.limits}
        return [column for column in MEASURED if self.device or column in columns]

    def select(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the rows that match all filters. Errors: Refused for too many alternatives in the search."""
        choices: dict[str, Any] = {"library": self.library, "families": self.families, "image_sizes": self.image_sizes}
        return catalog.select(frame, search=self.search, **choices | self.limits)


def reset() -> None:
    """Clear every filter, in the address too. The published accuracy stays: a preset shows it beside its axis."""
    st.session_state["catalog_search"] = ""
    for name in [name for name in st.session_state if str(name).startswith(("catalog_max_", "catalog_min_"))]:
        st.session_state[name] = None
    st.session_state["catalog_library"] = st.session_state["catalog_device"] = None
    st.session_state["catalog_families"] = st.session_state["catalog_sizes"] = st.session_state["catalog_sort"] = []


def draw_left_out(frame: pd.DataFrame, filters: Filters, device: FittedDevice | None) -> None:
    """Say how many rows the limits leave out for want of a value. Draw a button that shows speeds of `device`.

    If a limit is on a speed that no row has, say how to get it and draw a button that clears these limits.
    frame: from data.table.
    """
    if not filters.limits:
        return
    unlimited = replace(filters, limits={}).select(frame)
    columns = {name: name.partition("_")[2] for name in filters.limits}
    timed = {name: column for name, column in columns.items() if column in MEASURED}
    unmet = {f"catalog_{name}": None for name, column in timed.items() if frame[column].isna().all()}
    if unmet:
        st.caption("To filter by speed, calibrate this machine or choose a device to estimate it on, in the sidebar.")
    with st.container(horizontal=True, vertical_alignment="center"):
        if not unmet and (sentence := catalog_choose.left_out(unlimited, filters.limits)):
            st.caption(plain(sentence), width="content")
        if device and not filters.device and unlimited[list(timed.values())].isna().to_numpy().any():
            st.button(
                "Estimate speed" + ("" if device.label == filters.setting.label else f" on {_short(device.label)}"),
                key="catalog_estimate",
                on_click=st.session_state.update,
                args=({"catalog_device": device.label},),
                help="Show speeds on this device, measured or estimated. Calibrate this machine to add it.",
            )
        if unmet:
            label, update = "Remove limits on speed", st.session_state.update
            st.button(label, key="catalog_no_speed", on_click=update, args=(unmet,))


def _short(device: str) -> str:
    """Return the label of a device without the names of its maker and series."""
    return device.removeprefix("NVIDIA GeForce ").removeprefix("Intel Core ")


def _repeat_long(value: str) -> None:
    """Draw the value of a field of the sidebar below it if the field cuts it. A browser cannot wrap it in the field."""
    if len(value) > SIDEBAR_LETTERS:
        st.caption(plain(value))


def _draw_unit() -> bool:
    """Draw the choice between MACs and FLOPs and return True for FLOPs. Changing the choice converts the limit."""
    units, help = ["MACs", "FLOPs"], "Unit of work. 1 MAC, a multiply-add, is 2 FLOPs."
    chosen = st.selectbox("Unit", units, key="catalog_unit", bind="query-params", on_change=_convert_limit, help=help)
    # Streamlit writes a converted limit into the address only if the state already knew its field.
    st.session_state.setdefault("catalog_max_gmacs" if chosen == "FLOPs" else "catalog_max_gflops", None)
    return chosen == "FLOPs"


def _convert_limit() -> None:
    names, factor = ["catalog_max_gmacs", "catalog_max_gflops"], 2.0
    if st.session_state["catalog_unit"] == "MACs":
        names, factor = names[::-1], 0.5
    limit = st.session_state.get(names[0])
    st.session_state[names[1]] = None if limit is None else factor * limit


def draw_filters(everything: pd.DataFrame, settings: Sequence[Setting], devices: Sequence[str], flops: bool) -> Filters:
    """Draw the filters and return their values. settings, devices: timing settings and devices to choose from."""
    with st.sidebar:
        search = st.text_input(
            "Search",
            key="catalog_search",
            bind="query-params",
            type="search",
            live=True,
            placeholder="ViT-B/32 laion, timm:resnet*",
            help="Type words of a name, family or pretrained tag, or a pattern for the whole name with * ? [ ] { }. "
            "Separate alternatives with commas.",
        )
        columns = [*SORTABLE, *catalog_choose.offered(everything)]
        sort = st.multiselect(
            "Sort by",
            [f"{sign}{column}" for column in columns for sign in ("", "-")],
            format_func=lambda key: f"{'↓' if key.startswith('-') else '↑'} {title(key.removeprefix('-'))}",
            key="catalog_sort",
            bind="query-params",
            select_all=False,
            placeholder="default order",
            help="Sort the table by these columns, in this order: ↑ smallest first, ↓ largest first. A click on a "
            "column's header also sorts, but the address does not store it.",
        )
        libraries = sorted(set(everything["library"]))
        library = st.pills("Library", libraries, key="catalog_library", bind="query-params")
        families = st.multiselect("Family", catalog.families(everything), key="catalog_families", bind="query-params")
        sizes = st.multiselect(
            "Image size (px)", catalog.image_sizes(everything), key="catalog_sizes", bind="query-params"
        )
        limits = _draw_limits([in_unit(column, flops) for column in LIMITED])
        accuracy = st.selectbox(
            "Published accuracy",
            list(ACCURACIES),
            index=None,
            format_func=title,
            key="catalog_figure",
            bind="query-params",
            placeholder="none: one row per model",
            help="Show this accuracy in the table, with one row per pretrained tag. You can then set a limit on it.",
        )
        if accuracy:
            limits |= _draw_limits([accuracy])
        labels = {setting.label: setting for setting in settings}
        help = "Show only timings made with these settings. Use the page Vision speed to time with other settings."
        label = st.selectbox("Timing setting", list(labels), key="catalog_setting", bind="query-params", help=help)
        _repeat_long(label)
        device = None
        if devices:
            device = st.selectbox(
                "Estimate speed on",
                devices,
                index=None,
                format_func=_short,
                key="catalog_device",
                bind="query-params",
                placeholder="timings of this machine only",
                help="Show the speed of every model on this device: measured if there is a timing, otherwise estimated "
                "from its operators. Calibrate this machine to add it.",
            )
            _repeat_long(_short(device or ""))
        calibrate.draw("catalog_calibrate")
        limits |= _draw_limits(MEASURED)
        st.button(
            "Reset filters", key="catalog_reset", on_click=reset, icon=":material/filter_alt_off:", type="tertiary"
        )
    return Filters(search or "", library, families, sizes, accuracy, labels[label], device or "", sort, limits)


def _draw_limits(columns: Sequence[str]) -> dict[str, float]:
    """Draw a field for a limit of each column and return the limits that are set, by their names.

    A limit is a minimum if larger values are better, else a maximum.
    """
    limits = {}
    with st.grid(2, min_column_width=90, vertical_alignment="bottom"):
        for column in columns:
            side, sign = ("min", "≥") if QUANTITIES[column].better == "larger" else ("max", "≤")
            name, label = f"{side}_{column}", f"{sign} {title(column)}"
            limit = st.number_input(label, value=None, key=f"catalog_{name}", bind="query-params", placeholder="any")
            if limit is not None:
                limits[name] = limit
    return limits


PREFIX = "catalog"
LATENCY_HERE = "ImageNet against latency here"
PRESETS: presets.Presets = {
    "Cost": presets.Preset(
        "Plot MACs against parameters.", {"x": "gmacs", "y": "mparams", "log_x": True, "log_y": True, "figure": None}
    ),
    "ImageNet against MACs": presets.Preset(
        "Plot the published top-1 accuracy of every pretrained timm model against its MACs at the image size of that "
        "accuracy.",
        {"x": "gmacs", "y": "imagenet_top1", "log_x": True, "log_y": False, "figure": "imagenet_top1"},
    ),
    "Zero-shot against MACs": presets.Preset(
        "Plot the published zero-shot average over 38 data sets of every pretrained CLIP model against its MACs.",
        {"x": "gmacs", "y": "zeroshot_average_38", "log_x": True, "log_y": False, "figure": "zeroshot_average_38"},
    ),
    LATENCY_HERE: presets.Preset(
        "Plot published top-1 accuracy against latency on this machine. After a calibration, missing latencies are "
        "estimated.",
        {"x": "latency_ms", "y": "imagenet_top1", "log_x": True, "log_y": False, "figure": "imagenet_top1"},
    ),
}


@dataclass(frozen=True)
class Axes:
    """Columns and options of the plot."""

    x: str
    y: str
    colour: str | None
    """Column that sets the colour of a point; None for one colour per family."""
    size: str | None
    """Column that sets the size of a point; None for points of equal size."""
    log_x: bool
    log_y: bool
    flops: bool
    """Show work in FLOPs instead of MACs."""
    front: bool
    """Draw the Pareto front. False if both axes are costs, because a cheap model is small in both."""
    spoiled: bool
    """Allow rows with spoiled timings on the front. True if no axis is a timing."""

    @property
    def published(self) -> list[str]:
        """Return the columns that are published accuracies."""
        return [column for column in self._columns if column in ACCURACIES]

    @property
    def timings(self) -> list[str]:
        """Return the columns that are timings of this machine."""
        return [column for column in self._columns if column in MEASURED]

    @property
    def _columns(self) -> tuple[str | None, ...]:
        return self.x, self.y, self.colour, self.size


def draw_presets(place: Any, filters: Filters, devices: Sequence[str]) -> None:
    """Draw the presets in `place`, after all fields, whose values they compare. devices: as for `draw_filters`.

    If this machine is calibrated, the preset LATENCY_HERE also shows estimated latencies.
    """
    # A device of this machine has the label of the setting in which it was timed.
    device = filters.setting.label if filters.setting.label in devices else None
    latency = replace(PRESETS[LATENCY_HERE], fields={**PRESETS[LATENCY_HERE].fields, "device": device})
    values = {name: st.session_state[f"{PREFIX}_{name}"] for name in ("x", "y", "log_x", "log_y", "figure")}
    values["device"] = filters.device or None
    presets.draw(place, PREFIX, {**PRESETS, LATENCY_HERE: latency}, values)


def draw_axes(everything: pd.DataFrame) -> Axes:
    """Draw the settings of the plot and return them."""
    row = st.container(horizontal=True, vertical_alignment="bottom")
    options = catalog_choose.offered(everything)
    axes, menu = row.container(horizontal=True, width=450), row.popover("Plot options", icon=":material/tune:")
    with menu:
        flops = _draw_unit()

    def label_of(column: str) -> str:
        fixed = {"family": "Family", "equal": "Same size"}
        return fixed.get(column) or title(catalog_choose.in_unit(column, flops))

    def choose(label: str, key: str, first: str, *extra: str) -> str:
        columns = [*extra, *options]
        return str(
            st.selectbox(
                label, columns, columns.index(first), format_func=label_of, key=f"{PREFIX}_{key}", bind="query-params"
            )
        )

    with menu:
        colour, size = choose("Colour", "colour", "family", "family"), choose("Size", "size", "equal", "equal")
        log_x = st.toggle("Log X", value=True, key=f"{PREFIX}_log_x", bind="query-params")
        log_y = st.toggle("Log Y", value=True, key=f"{PREFIX}_log_y", bind="query-params")
    with axes:
        x, y = choose("X axis", "x", "gmacs"), choose("Y axis", "y", "mparams")
    with row:
        has_front = any(column in MEASURED or QUANTITIES[column].better == "larger" for column in (x, y)) and x != y
        front_help = (
            "Draw the Pareto front: the models for which no other model is at least as good on both axes and better on "
            "one. A plot of two costs has no front."
        )
        front = has_front & st.toggle(
            "Front", value=True, key=f"{PREFIX}_front", bind="query-params", help=front_help, disabled=not has_front
        )
    with menu:
        flags = ", ".join(SPOILING)
        help = f"Draw the front also through timings that are flagged ({flags}) and estimates outside the fitted range."
        on_timings = front and {x, y} & set(MEASURED)
        spoiled = not on_timings or st.toggle("Unreliable", key=f"{PREFIX}_flagged", bind="query-params", help=help)
    colour_by, size_by = [
        None if column in ("family", "equal") else catalog_choose.in_unit(column, flops) for column in (colour, size)
    ]
    x, y = catalog_choose.in_unit(x, flops), catalog_choose.in_unit(y, flops)
    return Axes(x, y, colour_by, size_by, log_x=log_x, log_y=log_y, flops=flops, front=front, spoiled=spoiled)
