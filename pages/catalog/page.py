"""Draw the catalogue: cost, published accuracy and speed of every model, as a plot and a table of the same rows."""

from dataclasses import replace
from functools import partial

import streamlit as st

from engine import shipped
from engine.published.publishers import ACCURACIES
from engine.report.catalog import catalog, choose
from engine.report.figures import scatter
from engine.report.figures.scatter import SHOWN_FAMILIES
from engine.report.quantities import MEASURED, title
from engine.report.timings import estimates
from engine.results import FLAGS
from engine.specs import ProfileSpec, Refused
from engine.words import in_words, plural
from pages.catalog import controls, data, measure
from pages.shared import backend, tour
from pages.shared.chart.chart import chart, verbatim
from pages.shared.form.link import form_link
from pages.shared.rerun import PageEnd
from pages.shared.runs import comparison_link
from pages.shared.table import download_table, results_table
from pages.shared.text import plain, show_error
from pages.shared.timing import speeds

COST_COLUMNS = (
    *("mparams", "gmacs", "macts", "intensity", "weights_mb", "inference_peak_mb", "remark"),
    *("image_mparams", "text_mparams", "image_gmacs", "text_gmacs", "traffic_mb"),
)

OPEN_HELP = "Open the page of this model: modules, memory, published accuracies, timings and commands."
FLAGS_HELP = "  \n".join(f"**{in_words([flag])}**: {meaning}" for flag, meaning in FLAGS.items())

with st.container(horizontal=True, vertical_alignment="center"):
    st.title("What does a vision model cost?", anchor=False, width="content")
    count = st.container()
counted_with = shipped.versions(backend.settings().catalog_dir)
everything = backend.catalogue()
if everything.empty:
    st.info("The catalogue is empty. Run this command to count all models:", icon=":material/table_view:")
    verbatim("python -m engine catalog-build", key="catalog_build")
    raise PageEnd
if mismatches := shipped.mismatches(counted_with):
    st.warning(
        "The catalogue was counted with other library versions than those installed: "
        + plain("; ".join(f"{name} {used}, installed {installed}" for name, (used, installed) in mismatches.items()))
        + ". A model may have changed. Profile it, or recount all models with `python -m engine catalog-build`.",
        icon=":material/warning:",
    )

if not backend.store().runs(limit=1):
    tour.draw()

timed = speeds.timed()
known_devices = speeds.devices(timed)
settings, devices = data.settings(timed), [device.fitted.label for device in known_devices]
presets_place = st.container()
axes = controls.draw_axes(everything)
filters = controls.draw_filters(everything, settings, devices, axes.flops)
controls.draw_presets(presets_place, filters, devices)
nearest_device = estimates.nearest_device(known_devices, filters.setting)
accuracies = data.accuracies(axes, filters)
frame = data.table(axes, filters)
chosen_labels = data.draw_chosen(frame)
try:
    selected = data.selected(frame, axes, filters)
except Refused as refusal:
    show_error(refusal)
    raise PageEnd from refusal
if selected.empty:
    st.info("No rows match these filters.", icon=":material/filter_alt:")
    if similar_names := catalog.closest(frame, filters.search):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption("Similar names:", width="content")
            for name in similar_names:
                search = {"catalog_search": name}
                st.button(name, key=f"catalog_near_{name}", on_click=st.session_state.update, args=(search,))
    for limit in choose.alone(frame, filters.limits):
        st.caption(plain(limit))
    controls.draw_left_out(frame, filters, nearest_device)
    st.button("Reset filters", key="catalog_show_all", on_click=controls.reset)
    raise PageEnd

controls.draw_left_out(frame, filters, nearest_device)
front = list(selected.index[selected["front"]]) if axes.front else []
left_off = 0 if axes.spoiled else choose.left_off(selected, axes.x, axes.y)
chosen = [label for label in selected.index if label in chosen_labels]
speeds.draw_warnings([device for device in known_devices if device.fitted.label == filters.device])
chart(
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
    alt=f"{title(axes.y)} against {title(axes.x)} of {len(selected)} rows, {len(front)} on the Pareto front",
    selected=chosen,
    on_select=data.choose_rows,
    height="max(640px - 60vw, clamp(280px, 40vh, 520px))",  # leaves room for rows or, on a phone, the legend
    wide=None if axes.colour else scatter.WIDE,
    scrollZoom=True,
    toImageButtonOptions={"filename": "catalogue", "scale": 2},
)
bar, status = st.container(horizontal=True, vertical_alignment="center"), st.container()  # in view with the table
timings_shown = [column for column in MEASURED if selected[column].notna().any()]
flags_shown = ["flags"] if (selected["flags"] != "").any() else []
speed_asked = axes.timings or filters.timings or measure.submitted_runs()
columns = [
    *("model", *(axis for axis in (axes.y, axes.x) if selected[axis].notna().any())),  # visible on a phone
    *([*timings_shown, "batch_size", "measured"] if filters.device else []),  # an estimate stays beside its mark
    *(["front"] if axes.front else []),
    *(*(["pretrained"] if accuracies else []), "image_size", *accuracies),
    *((*timings_shown, *flags_shown) if speed_asked else ()),  # a timing beside its flags
    *("library", "family"),
    *(choose.in_unit(column, axes.flops) for column in COST_COLUMNS),
    *(["published"] if accuracies else []),
    *(*timings_shown, *flags_shown),  # after the costs: few rows of a table of costs have a timing
    *(["measured"] if timings_shown else []),
]
results_table(
    selected,
    key="catalog_table",
    alt="Rows of the plot",
    columns=list(dict.fromkeys(columns)),
    height="auto" if len(selected) < 15 else 520,
    selected=chosen,
    on_select=data.choose_rows,
    config={
        "model": st.column_config.Column("Model", pinned=True, width=180),  # leaves room for the axes on a phone
        "pretrained": st.column_config.TextColumn("Pretrained", width=170),  # wide, because tags differ in their end
        "family": st.column_config.TextColumn("Family", width=130),
        "flags": st.column_config.TextColumn("Flags", help=FLAGS_HELP, width="medium"),
        **({"measured": st.column_config.TextColumn("Source of the speed", width=270)} if filters.device else {}),
    },
)
remarked = {
    "could not be counted": int((selected["status"] != "ok").sum()),
    "counted incompletely": int(selected["remark"].str.startswith("incomplete").sum()),
}
remarks = ", ".join(f"{plural(number, 'row')} {what}" for what, number in remarked.items() if number)
drawn_families = selected.dropna(subset=[axes.x, axes.y])["family"].nunique()
hollow = "flagged timings"
if filters.device:
    hollow = f"estimates and {hollow}. Disturbed timings and estimates outside the fitted range are left off the front"
many_families = not axes.colour and drawn_families > SHOWN_FAMILIES
st.caption(
    (f"{remarks}; the column Remark says why. " if remarks else "")
    + f"The plot labels the {'Pareto front' if front else 'extremes of each axis'} where there is room"
    + (f"; its legend lists the {SHOWN_FAMILIES} largest families" if many_families else "")
    + (f". Speeds are those of {plain(filters.device)}" if axes.timings and filters.device else "")
    + (f". Hollow points are {hollow}; the table says which" if axes.timings else "")
    + ". Models are listed at their own image size and at the sizes of published accuracies."
)
st.caption(
    f"{everything['name'].nunique():,} models of open_clip, timm and torchvision, counted with "
    f"{plain(catalog.describe(counted_with))}. Costs are per image; for CLIP models, per image and text."
)
data.draw_import()

# With a device, the table shows its speeds, and only rows without a timing of this machine are timed.
timed_here = data.table(axes, replace(filters, device="")).reindex(selected.index) if filters.device else selected
speed_front = filters.device and axes.x in MEASURED and axes.y in ACCURACIES
promising = list(estimates.worth_measuring(selected, axes.y).index) if speed_front else None
plan = measure.plan(timed_here, timed_here.loc[chosen], axes, filters.setting, promising)
if filters.device not in ("", filters.setting.label):
    plan = measure.Plan((), f"Speeds of {filters.device} are shown. Clear the field Estimate speed on to time here.")
hint = "" if chosen else "Select points (drag or click) or rows to open, compare, profile or save them."
with count:
    counts = choose.sentence(frame, selected, axes.x, axes.y, len(front), len(chosen), left_off)
    st.caption(f"{counts}. {hint}" if hint and plan.sentence else counts)
with status:
    if plan.sentence or hint:  # one line: the first selection must not move the rows below
        st.caption(plain(plan.sentence or hint))
    if axes.timings and not timings_shown and devices:
        st.caption("To see the speed of every model, choose a device in *Estimate speed on* or calibrate this machine.")
with bar:
    measure.buttons(plan)
    names = list(selected.loc[chosen, "name"].unique())
    if len(names) == 1:
        query = {"name": names[0]}
        st.page_link("model/page.py", label="Open", icon=":material/open_in_new:", help=OPEN_HELP, query_params=query)
    if 1 < len(names) <= comparison_link.MOST:
        query = {comparison_link.MODELS: ",".join(names)}
        st.page_link("compare/page.py", label="Compare", icon=":material/compare:", query_params=query)
    if names:
        spec = ProfileSpec(models=tuple(names), image_size=catalog.sizes_to_count(everything, selected.loc[chosen]))
        label = f"Profile {plural(len(names), 'model')}"
        help = "Open the form to count these models again, for example at another image size."
        form_link(spec, label, icon=":material/calculate:", key="catalog_profile", help=help)
    # Use a partial of data.rows, because a function defined in this script would keep all its tables in the session.
    label = f"{len(chosen):,} selected" if chosen else plural(len(selected), "row")
    download_table(partial(data.rows, axes, filters, chosen), "catalogue", key="catalog", label=label)
with status:  # after the buttons, which may have submitted a run before an error
    measure.draw_submitted()
