"""The page Device: this machine's hardware, the measured peak rates, and the roofline with timed models."""

import pandas as pd
import streamlit as st

from engine.report.figures.roofline import FUSED, roofline
from engine.report.frames import machine_facts
from engine.report.timings import rates as timings_rates
from engine.specs import DeviceSpec
from engine.store import Store
from engine.words import plural
from pages.shared import backend
from pages.shared.chart.chart import chart
from pages.shared.form import spec_form
from pages.shared.runs import durations, launch, view
from pages.shared.table import download_table
from pages.shared.text import plain


@st.cache_data(max_entries=4, show_spinner=False, hash_funcs=backend.BY_VERSION)
def read(store: Store) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the latest measured rates and the timed models."""
    return timings_rates.rates(store), timings_rates.models(store)


@st.fragment
def draw_machine() -> None:
    """Draw the facts about this machine, or a note that the probe has not finished."""
    machine = backend.store().machine()
    st.header("This machine", anchor=False)
    if machine is None:
        st.caption("The scheduler is examining this machine. This takes a few seconds after its start.")
        st.button("Refresh", icon=":material/refresh:", key="device_look")
        return
    lines = {name: plain(value) for name, value in machine_facts(machine).items()}
    st.table(
        {"what": list(lines), "value": list(lines.values())}, border="horizontal", hide_index=True, hide_header=True
    )


def draw_peaks(rates: pd.DataFrame) -> None:
    """Draw the latest measured rates with their dates."""
    st.header("Measured peaks", anchor=False)
    if rates.empty:
        st.info("No measurements yet. Measure this device below; it takes about a minute.", icon=":material/speed:")
        return
    shown, alt = timings_rates.readable(rates), "Latest measured rate of every operation and data type"
    columns = ["run", "what", "rate", "at", "date", "flags", *["where"] * (rates["where"].nunique() > 1)]
    headings = {"what": "Operation", "at": "At size", "where": "Device"}
    view.runs_table(shown, key="device_peaks", alt=alt, columns=columns, config=headings)
    with st.container(horizontal=True, vertical_alignment="center"):
        download_table(lambda: rates, "device-rates", key="device_rates")
        st.caption(
            "Each rate is the best median over several sizes. A matrix product has 2 n³ FLOPs; a copy counts the bytes "
            "read and written."
        )


def describe(spec: DeviceSpec) -> str:
    """Return a sentence on what the button will do."""
    time = durations.promise(spec)
    types = ", ".join(spec.dtypes)
    return f"Multiplies matrices ({types}) and copies memory on {spec.device}{time}. Other runs wait meanwhile."


@st.fragment
def form() -> None:
    """Draw the form."""
    widths = {"device": 3, "dtypes": 7, "seconds": 5, "threads": 5}
    values = spec_form.row(DeviceSpec, widths, device=launch.devices())
    spec, problems = spec_form.build(DeviceSpec, values)
    sentence = describe(spec) if isinstance(spec, DeviceSpec) else ""
    launch.launch("device", spec, problems, "Measure", ":material/speed:", sentence=sentence)


def draw_roofline(rates: pd.DataFrame, models: pd.DataFrame) -> None:
    """Draw the roofline of one device."""
    st.header("Roofline", anchor=False)
    devices = list(dict.fromkeys([*rates["where"], *models["where"]]))
    if not devices:
        st.caption(
            "The roofline shows measured rates as lines and timed models as points. Measure the device and time models."
        )
        st.page_link("vision/page.py", label="Time models", icon=":material/timer:")
        return
    device = devices[0]
    if len(devices) > 1:
        device = st.selectbox("Device", devices, key="device_where", bind="query-params")
    roofs, points = rates[rates["where"] == device], models[models["where"] == device]
    counts = f"{plural(len(roofs), 'measured rate')} and {plural(len(points), 'timed model')}"
    alt = f"Roofline of {device}: {counts}"
    chart(roofline(roofs, points, styles=backend.family_colours()), key="device_roofline", alt=alt)
    if roofs.empty:
        st.caption("No rates of this device are measured yet, so the plot has no roof. Measure the device above.")
    with st.container(horizontal=True, vertical_alignment="center"):
        download_table(lambda: points, "roofline", key="device_points", disabled=points.empty)
        if points.empty:
            st.page_link("vision/page.py", label="No timed models yet. Time models", icon=":material/timer:")
        else:
            st.caption(
                "Memory traffic is counted as if there were no caches, so a point may lie above the slope. "
                "For training, the point is the forward pass. "
                f"The points are models of the latest {timings_rates.LATEST} benchmarks."
                + (f" Hollow points: {FUSED}." if (points["intensity_of"] == "eager").any() else "")
            )


st.title("Device", anchor=False)
st.caption("This machine's hardware, its measured peak rates, and the share of them that models reach.")
rates, models = read(backend.store())
grid = st.grid(3, min_column_width=300, gap="medium")
with grid.cell():
    draw_machine()
with grid.cell(column_span=2):
    draw_peaks(rates)
st.header("Measure again" if len(rates) else "Measure", anchor=False)
form()
launch.draw_linked_run("device", "")
draw_roofline(rates, models)
