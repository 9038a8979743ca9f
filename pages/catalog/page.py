"""The catalogue: what every model costs, how accurate and how fast it is, as a plot and a table of the same rows."""

from functools import partial

import pandas as pd
import streamlit as st

from engine import shipped
from engine.report.catalog import catalog, choose
from engine.report.figures import scatter
from engine.report.figures.scatter import SHOWN_FAMILIES
from engine.report.quantities import MEASURED, title
from engine.specs import ProfileSpec, Refused
from pages.catalog import axes as catalog_axes
from pages.catalog import data, measure, published
from pages.catalog import filters as catalog_filters
from pages.shared import backend, comparison_link, tour
from pages.shared.chart.chart import chart
from pages.shared.chart.verbatim import verbatim
from pages.shared.download import table
from pages.shared.form_link import form_link
from pages.shared.page_end import PageEnd
from pages.shared.table import results_table
from pages.shared.text import plain

COSTS = (
    *("mparams", "gmacs", "macts", "intensity", "weights_mb", "inference_peak_mb", "remark"),
    *("image_mparams", "text_mparams", "image_gmacs", "text_gmacs", "traffic_mb"),
)

ALL_OF_IT = "All that is known of this model: modules, memory, published accuracies, timings here, commands"

st.title("What does a vision model cost?", anchor=False)
counted_with = shipped.versions(backend.settings().catalog_dir)
everything = backend.catalogue()
if everything.empty:
    st.info("No model has been counted yet. This counts the whole catalogue:", icon=":material/table_view:")
    verbatim("python -m engine catalog-build", key="catalog_build")
    raise PageEnd
st.caption(
    f"{everything['name'].nunique():,} models of open_clip, timm and torchvision, each at its own image size and at "
    f"those that accuracies are published for, counted by this program with {plain(catalog.describe(counted_with))}. "
    "Per image, of CLIP models per image with its text; 1 MAC is 2 FLOPs."
)
if different := shipped.mismatches(counted_with):
    st.warning(
        "Installed here are other versions than these figures were counted with: "
        + plain("; ".join(f"{name} {here} instead of {then}" for name, (then, here) in different.items()))
        + ". A model may have changed: profile it, or recount with `python -m engine catalog-build`.",
        icon=":material/warning:",
    )

if not backend.store().runs(limit=1):
    tour.draw()

axes = catalog_axes.draw(everything)
bar, beneath = st.container(horizontal=True, vertical_alignment="center"), st.container()
timed = data.timed()
filters = catalog_filters.draw(everything, data.settings(timed), axes.flops)
figures = data.figures(axes, filters)
frame = data.table(axes, filters)
try:
    selected = data.selected(frame, axes, filters)
except Refused as refusal:
    st.error(plain(str(refusal)), icon=":material/error:")
    raise PageEnd from refusal
if selected.empty:
    st.info(f"None of the {len(frame):,} rows meets these filters.", icon=":material/filter_alt:")
    for limit in choose.alone(frame, filters.limits):
        st.caption(plain(limit))
    st.button("Show all again", key="catalog_show_all", on_click=catalog_filters.reset)
    raise PageEnd

front = list(selected.index[selected["front"]]) if axes.front else []
in_plot = chart(
    scatter.scatter(
        selected,
        axes.x,
        axes.y,
        styles=backend.family_colours(),
        size=axes.size,
        colour=axes.colour,
        log_x=axes.log_x,
        log_y=axes.log_y,
        front=front,
    ),
    key="catalog_scatter",
    alt=f"{title(axes.y)} against {title(axes.x)} of {len(selected)} models, {len(front)} on the Pareto front",
    selectable=True,
    scrollZoom=True,
    toImageButtonOptions={"filename": "catalogue", "scale": 2},
)
timings_shown = [column for column in MEASURED if selected[column].notna().any()]
columns = [
    *("model", *(["pretrained"] if figures else []), "library", "family", "image_size"),
    *(["front"] if axes.front else []),
    *([] if axes.x in MEASURED else [axes.x]),
    *([] if axes.y in MEASURED else [axes.y]),
    *(*figures, *timings_shown, *(choose.in_unit(column, axes.flops) for column in COSTS)),
    *(["published"] if figures else []),
    *(["measured"] if timings_shown else []),
]
rows = results_table(
    selected,
    key="catalog_table",
    alt="The rows of the plot",
    columns=list(dict.fromkeys(columns)),
    height=520,
    selectable=True,
)
failed = (selected["status"] != "ok").sum()
incomplete = selected["remark"].str.startswith("incomplete").sum()
st.caption(
    f"{failed} of these could not be counted and {incomplete} are incomplete: their remark says why. "
    f"The plot names the {'front' if axes.front else 'ends of each axis'}"
    + ("" if axes.colour else f"; its legend names the {SHOWN_FAMILIES} largest families")
    + ". Costs are of the model as its library builds it, whatever its pretrained tag."
)
published.draw()

chosen = pd.Index([*rows, *in_plot]).unique().intersection(selected.index)
plan = measure.plan(selected, selected.loc[chosen], axes, filters.setting)
with beneath:
    measure.told(plan)
    if chosen.empty:
        st.caption("Select points (box or lasso) or rows to open, compare or profile them.")
with bar:
    st.markdown(choose.sentence(frame, selected, axes.x, axes.y, len(front), len(chosen)))
    measure.button(plan)
    names = list(selected.loc[chosen, "name"].unique())
    if len(names) == 1:
        one = {"name": names[0]}
        st.page_link("model/page.py", label="Open", icon=":material/open_in_new:", help=ALL_OF_IT, query_params=one)
    if 1 < len(names) <= comparison_link.MOST:
        several = {comparison_link.MODELS: ",".join(names)}
        st.page_link("compare/page.py", label="Compare", icon=":material/compare:", query_params=several)
    if names:
        form_link(
            ProfileSpec(models=tuple(names)),
            f"Profile {len(chosen)} selected",
            icon=":material/calculate:",
            key="catalog_profile",
            help="Count these models anew, at your image size if you like.",
        )
    # computed again when it is asked for: a function of this script would keep all of the page's tables in the session
    table(partial(data.rows, axes, filters), "catalogue", key="catalog", label=f"{len(selected):,} rows")
