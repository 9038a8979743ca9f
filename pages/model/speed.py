"""Draw the speed of a model on this machine and on the published devices: measured first, otherwise estimated."""

import pandas as pd
import streamlit as st

from engine.report.timings import estimates
from engine.specs import ModelName
from pages.shared import table
from pages.shared.timing import calibrate, speeds


def draw(name: ModelName, sizes: pd.DataFrame) -> None:
    """Draw the tab of speeds. sizes: from model.sizes, one row per image size."""
    work = speeds.work()
    if work is None:
        st.caption(
            "The catalogue has no table of operators, so speeds cannot be estimated. Run "
            "`python -m engine catalog-build` to count them."
        )
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        image_size = st.selectbox(
            "Image size (px)", list(sizes["image_size"]), key="model_speed_size", bind="query-params", width=160
        )
        calibrate.draw("model_calibrate")
    timed = speeds.timed()
    devices = speeds.devices(timed)
    frame = estimates.of_model(devices, timed, work, name, image_size)
    if frame.empty:
        st.caption(
            "This model is not timed here, and without a complete count its speed cannot be estimated. Time it on "
            "the page Vision speed."
        )
        return
    speeds.table(frame, devices, key="model_speed", alt="Speed on each device")
    table.download_table(lambda: frame, f"{name.model}-{image_size}-speeds", key="model_speed_file")
