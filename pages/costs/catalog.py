"""The catalogue: what every model costs, as a plot and a table of the same rows."""

import pandas as pd
import streamlit as st

from engine import shipped
from engine.report import catalog, export, scatter
from engine.report.quantities import COMPARABLE, title
from engine.report.scatter import SHOWN_FAMILIES
from engine.specs import ProfileSpec, Refused
from pages.components import backend, spec_form
from pages.components.chart import CONFIG
from pages.components.download import download
from pages.components.results_table import results_table
from pages.components.text import plain

BIND = "query-params"
SHOWN = (
    *("model", "library", "family", "image_size", "mparams", "gmacs", "macts", "intensity", "weights_mb"),
    *("inference_peak_mb", "remark", "image_mparams", "text_mparams", "image_gmacs", "text_gmacs", "gflops"),
    "traffic_mb",
)
BOUNDS = ("mparams", "gmacs", "macts", "inference_peak_mb")
NO_FILTER = {"search": "", "library": None, "families": [], "sizes": []} | {f"max_{column}": None for column in BOUNDS}


def reset() -> None:
    """Forget every filter, in the address too."""
    for name, value in NO_FILTER.items():
        st.session_state[f"catalog_{name}"] = value


def bound(column: str) -> float | None:
    """A number field for the largest value of a quantity to show."""
    return st.number_input(
        f"≤ {title(column)}", min_value=0.0, value=None, key=f"catalog_max_{column}", bind=BIND, placeholder="any"
    )


def axis(label: str, default: str, key: str) -> str:
    """A choice of one quantity."""
    options = [column for column in COMPARABLE if column in everything]
    return st.selectbox(label, options, options.index(default), format_func=title, key=f"catalog_{key}", bind=BIND)


def size_title(column: str) -> str:
    """The name of a choice of marker size."""
    return "All alike" if column == "equal" else title(column)


st.title("What does a vision model cost?", anchor=False)
counted_with = shipped.versions(backend.settings().catalog_dir)
everything = backend.catalogue()
if everything.empty:
    st.info("No model has been counted yet. This counts the whole catalogue:", icon=":material/table_view:")
    st.code("python -m engine catalog-build", language=None)
    st.stop()
st.caption(
    f"{everything['name'].nunique():,} models of open_clip, timm and torchvision, each at its own image size, "
    f"counted by this program with {plain(catalog.describe(counted_with))}. Per image or text; 1 MAC is 2 FLOPs."
)
if different := shipped.mismatches(counted_with):
    st.warning(
        "Installed here are other versions than these figures were counted with: "
        + plain("; ".join(f"{name} {here} instead of {then}" for name, (then, here) in different.items()))
        + ". A model may have changed: profile it, or recount with `python -m engine catalog-build`.",
        icon=":material/warning:",
    )

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
    with st.grid(2, min_column_width=90, vertical_alignment="bottom"):
        bounds = {f"max_{column}": bound(column) for column in BOUNDS}
    st.button("Reset filters", key="catalog_reset", on_click=reset, icon=":material/filter_alt_off:", type="tertiary")

try:
    selected = catalog.select(
        everything, search=search or "", library=library, families=families, image_sizes=sizes, **bounds
    )
except Refused as refusal:
    st.error(plain(str(refusal)), icon=":material/error:")
    st.stop()
if selected.empty:
    st.info(f"None of the {len(everything):,} rows meets these filters.", icon=":material/filter_alt:")
    st.button("Show all again", key="catalog_show_all", on_click=reset)
    st.stop()

bar = st.container(horizontal=True, vertical_alignment="bottom")
with st.container(horizontal=True, vertical_alignment="bottom"):
    x = axis("Across", "gmacs", "x")
    y = axis("Up", "mparams", "y")
    colours = ["family", *(column for column in COMPARABLE if column in everything)]
    colour = st.selectbox("Colour", colours, format_func=title, key="catalog_colour", bind=BIND)
    areas = ["equal", *(column for column in COMPARABLE if column in everything)]
    size = st.selectbox("Size", areas, format_func=size_title, key="catalog_size", bind=BIND)
    log_x = st.toggle("log across", value=True, key="catalog_log_x", bind=BIND)
    log_y = st.toggle("log up", value=True, key="catalog_log_y", bind=BIND)

points = st.plotly_chart(
    scatter.scatter(
        selected,
        x,
        y,
        styles=backend.family_colours(),
        size=None if size == "equal" else size,
        colour=None if colour == "family" else colour,
        log_x=log_x,
        log_y=log_y,
        source=f"counted here, {catalog.describe(counted_with)}",
    ),
    key="catalog_scatter",
    on_select="rerun",
    config={**CONFIG, "scrollZoom": True, "toImageButtonOptions": {"filename": "catalogue", "scale": 2}},
    alt=f"{title(y)} against {title(x)} of {len(selected)} models",
)
in_plot = [int(point["customdata"][0]) for point in points.selection.points if point.get("customdata")]
rows = results_table(
    selected, key="catalog_table", alt="The rows of the plot", columns=SHOWN, height=520, selectable=True
)
failed = (selected["status"] != "ok").sum()
incomplete = selected["remark"].str.startswith("incomplete").sum()
st.caption(
    f"{failed} of these could not be counted and {incomplete} are incomplete: their remark says why. "
    f"The plot names the ends of each axis; its legend names the {SHOWN_FAMILIES} largest families."
)

chosen = pd.Index([*rows, *in_plot]).unique().intersection(selected.index)
with bar:
    st.markdown(
        f"**{len(selected):,}** of {len(everything):,} rows" + (f", **{len(chosen)}** selected" * bool(len(chosen)))
    )
    if st.button(
        f"Profile {len(chosen)} selected" if len(chosen) else "Profile selected",
        icon=":material/calculate:",
        type="primary",
        disabled=not len(chosen),
        key="catalog_profile",
        help="Select points (box or lasso) or rows; then count these models anew, at your image size if you like.",
    ):
        spec = ProfileSpec(models=tuple(everything.loc[chosen, "name"].unique()))
        st.switch_page("costs/profile.py", query_params=spec_form.address("profile", spec))
    download(f"CSV of {len(selected):,} rows", lambda: export.to_csv(selected), "catalogue.csv")
