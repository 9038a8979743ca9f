"""What this machine is, what its devices were measured to do, and what the models timed here made of that."""

from operator import eq
from typing import Any

import pandas as pd
import streamlit as st

from engine.report.figures.roofline import roofline
from engine.report.machine import facts
from engine.report.timings import rates as timings_rates
from engine.specs import DeviceSpec
from pages.shared import backend, launch
from pages.shared.chart.chart import chart
from pages.shared.download import table
from pages.shared.form import spec_form
from pages.shared.text import duration, plain

PREFIX = "device"


@st.cache_data(max_entries=4, show_spinner=False)
def read(runs_dir: str, revision: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Latest rates and the models timed, as of a revision of the store."""
    return timings_rates.rates(backend.store()), timings_rates.models(backend.store())


@st.fragment
def machine() -> None:
    """Ten lines, or what to wait for."""
    found = backend.store().machine()
    st.header("This machine", anchor=False)
    if found is None:
        st.caption("Being looked at: the scheduler does that when it starts, within seconds.")
        st.button("Look again", icon=":material/refresh:", key="device_look")
        return
    lines = {what: plain(value) for what, value in facts(found).items()}
    st.table(
        {"what": list(lines), "value": list(lines.values())}, border="horizontal", hide_index=True, hide_header=True
    )


def peaks(rates: pd.DataFrame) -> None:
    """The latest measured rates, each with its date; a selected one opens its run."""
    st.header("Measured peaks", anchor=False)
    if rates.empty:
        st.info(
            "Nothing has been measured yet. Measure this device below: it takes about a minute.",
            icon=":material/speed:",
        )
        return
    shown = timings_rates.readable(rates)
    places = list(rates["where"].unique())
    event = st.dataframe(
        shown[["what", "rate", "at", "date", "run", "flags", *(["where"] if len(places) > 1 else [])]],
        key="device_peaks",
        on_select="rerun",
        selection_mode="single-row",
        hide_index=True,
        alt="Latest measured rate of every operation and data type",
        column_config={
            "what": st.column_config.TextColumn("Operation", pinned=True),
            "rate": st.column_config.TextColumn("Rate", alignment="right"),
            "at": st.column_config.TextColumn("At size", alignment="right"),
            "where": st.column_config.TextColumn("Device"),
            "date": st.column_config.DatetimeColumn("Measured (UTC)", format="YYYY-MM-DD HH:mm", timezone="UTC"),
            "run": st.column_config.NumberColumn("Run", format="%d", width="small"),
            "flags": st.column_config.TextColumn("Flags"),
        },
    )
    if event.selection.rows:
        run_id = int(shown.iloc[event.selection.rows[0]]["run"])
        st.switch_page("run/page.py", query_params={"run": str(run_id)})
    with st.container(horizontal=True, vertical_alignment="center"):
        table(lambda: rates, "device-rates", key="device_rates")
        st.caption(
            "Best median of several sizes; 2 n³ FLOPs per product; bytes read plus written. Select one for its run."
        )


def promise(spec: DeviceSpec) -> str:
    """What pressing the button will do."""
    last = launch.last_similar_run(spec, eq)
    took = last.seconds() if last else None
    time = f", about {duration(took)} going by the last time" if took else ""
    types = ", ".join(spec.dtypes)
    return f"Multiplies matrices ({types}) and copies memory on {spec.device}{time}; other runs wait meanwhile."


@st.fragment
def form() -> None:
    """Four fields and the button."""
    columns = st.columns([2, 3, 1, 1])
    values: dict[str, Any] = {}
    choices = {"device": launch.devices()}
    for column, name in zip(columns, ("device", "dtypes", "seconds", "threads"), strict=True):
        with column:
            values[name] = spec_form.field(DeviceSpec, name, PREFIX, choices.get(name))
    spec, problems = spec_form.build(DeviceSpec, values)
    launch.launch(
        spec,
        problems,
        key="device_go",
        label="Measure",
        icon=":material/speed:",
        sentence=promise(spec) if isinstance(spec, DeviceSpec) else "",
    )


def figure(rates: pd.DataFrame, models: pd.DataFrame) -> None:
    """The roofline of one device."""
    st.header("Roofline", anchor=False)
    places = list(dict.fromkeys([*rates["where"], *models["where"]]))
    if not places:
        st.caption(
            "Measured rates become roofs, models timed here become points. Measure the device, then time models."
        )
        st.page_link("vision/page.py", label="Time models", icon=":material/timer:")
        return
    where = places[0]
    if len(places) > 1:
        where = st.selectbox("Device", places, key="device_where", bind="query-params")
    roofs, points = rates[rates["where"] == where], models[models["where"] == where]
    chart(
        roofline(roofs, points, styles=backend.family_colours()),
        key="device_roofline",
        alt=f"Roofline of {where}: {len(roofs)} measured rates and {len(points)} timed models",
    )
    with st.container(horizontal=True, vertical_alignment="center"):
        table(lambda: points, "roofline", key="device_points", label="the points", disabled=points.empty)
        if points.empty:
            st.page_link("vision/page.py", label="No model has been timed here yet: time some", icon=":material/timer:")
        else:
            st.caption(
                "Traffic is counted as if nothing stayed in a cache, so a point may lie above the slope. "
                "Of a training step, its forward pass."
            )


st.title("Device", anchor=False)
st.caption("What this machine is, what it was measured to do, and how much of that models get.")
rates, models = read(str(backend.settings().runs_dir), backend.store().revision())
left, right = st.columns([2, 3], gap="large")
with left:
    machine()
with right:
    peaks(rates)
st.header("Measure again" if len(rates) else "Measure", anchor=False)
form()
launch.linked_run("device", "")
figure(rates, models)
