"""The sidebar of the catalogue: which models to look at, and the limits they must keep. All of it is in the address."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd
import streamlit as st

from engine.published.publishers import FIGURES
from engine.report.catalog import catalog
from engine.report.catalog.choose import in_unit
from engine.report.quantities import MEASURED, QUANTITIES, title
from engine.report.timings.stored import Setting

BIND = "query-params"
COSTS = ("mparams", "gmacs", "macts", "inference_peak_mb")


@dataclass(frozen=True)
class Filters:
    """What the sidebar asks for."""

    search: str
    library: str | None
    families: Sequence[str]
    image_sizes: Sequence[str]
    figure: str | None
    """The published accuracy that a limit is set on."""
    setting: Setting
    """In which models were timed here."""
    bounds: dict[str, float | None] = field(default_factory=dict)
    """`min_` or `max_` with a column: its limit."""

    def kept(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows that meet all of it. Errors: Refused of a search with too many alternatives."""
        asked = {"library": self.library, "families": self.families, "image_sizes": self.image_sizes}
        return catalog.select(frame, search=self.search, **asked, **self.bounds)

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set."""
        return {name: bound for name, bound in self.bounds.items() if bound is not None}


def reset() -> None:
    """Forget every filter, in the address too."""
    st.session_state["catalog_search"] = ""
    for name in [name for name in st.session_state if str(name).startswith(("catalog_max_", "catalog_min_"))]:
        st.session_state[name] = None
    st.session_state["catalog_library"] = st.session_state["catalog_figure"] = None
    st.session_state["catalog_families"] = st.session_state["catalog_sizes"] = []


def limit(column: str) -> tuple[str, float | None]:
    """A number field for the least or the most of a figure, whichever one would ask for; its name and what it says."""
    side, sign = ("min", "≥") if QUANTITIES[column].better == "larger" else ("max", "≤")
    most = 100.0 if QUANTITIES[column].unit == "%" else None
    value = st.number_input(
        f"{sign} {title(column)}",
        min_value=0.0,
        max_value=most,
        value=None,
        key=f"catalog_{side}_{column}",
        bind=BIND,
        placeholder="any",
    )
    return f"{side}_{column}", value


def unit() -> bool:
    """Whether work is shown in FLOPs; limits that are set follow."""
    chosen = st.segmented_control(
        "Work in",
        ["MACs", "FLOPs"],
        default="MACs",
        required=True,
        key="catalog_unit",
        bind=BIND,
        on_change=_convert,
        help="1 MAC, a multiply-add, is 2 FLOPs.",
    )
    return chosen == "FLOPs"


def _convert() -> None:
    macs, flops = "catalog_max_gmacs", "catalog_max_gflops"
    if st.session_state["catalog_unit"] == "FLOPs":
        before = st.session_state.get(macs)
        st.session_state[flops] = None if before is None else 2 * before
    else:
        before = st.session_state.get(flops)
        st.session_state[macs] = None if before is None else before / 2


def draw(everything: pd.DataFrame, settings: Sequence[Setting], flops: bool) -> Filters:
    """The fields. settings: of timings, to choose one from."""
    with st.sidebar:
        search = st.text_input(
            "Search",
            key="catalog_search",
            bind=BIND,
            type="search",
            live="50ms",
            placeholder="ViT-B-*, timm:resnet*, clip large",
            help="Words that occur in a name or family, or wildcards * ? [ ] { } for whole names; commas mean or.",
        )
        library = st.pills("Library", sorted(everything["library"].unique()), key="catalog_library", bind=BIND)
        families = st.multiselect("Family", catalog.families(everything), key="catalog_families", bind=BIND)
        sizes = st.multiselect("Image size (px)", catalog.image_sizes(everything), key="catalog_sizes", bind=BIND)
        bounds = _limits([in_unit(column, flops) for column in COSTS])
        figure = st.selectbox(
            "Published accuracy",
            list(FIGURES),
            index=None,
            format_func=title,
            key="catalog_figure",
            bind=BIND,
            placeholder="none: a row per model",
            help="Shows it in the table, a row per pretrained tag, and takes a limit.",
        )
        if figure:
            bounds |= _limits([figure])
        labels = {setting.label: setting for setting in settings}
        label = st.selectbox(
            "Timed here",
            list(labels),
            key="catalog_setting",
            bind=BIND,
            help="Timings in this setting alone are shown. Others can be made under Vision speed.",
        )
        bounds |= _limits(MEASURED)
        st.button(
            "Reset filters", key="catalog_reset", on_click=reset, icon=":material/filter_alt_off:", type="tertiary"
        )
    return Filters(search or "", library, families, sizes, figure, labels[label], bounds)


def _limits(columns: Sequence[str]) -> dict[str, float | None]:
    with st.grid(2, min_column_width=90, vertical_alignment="bottom"):
        return dict(limit(column) for column in columns)
