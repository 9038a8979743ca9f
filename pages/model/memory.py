"""The memory a model should take by batch size and data type, beside what there is and what was measured."""

from typing import Any

import pandas as pd
import streamlit as st

from engine.report.figures import memory
from pages.model import timings
from pages.model.runs_table import runs_table
from pages.shared import backend, download
from pages.shared.chart.chart import chart
from pages.shared.table import results_table
from pages.shared.text import plain, size


def draw(name: str, sizes: pd.DataFrame) -> None:
    """All of it. sizes: of model.sizes."""
    counted = sizes[sizes["status"] == "ok"]
    if counted.empty:
        st.caption("This model could not be counted, so its memory cannot be estimated.")
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        ways = {"default": "inference", "required": True, "key": "model_way"}
        way = st.segmented_control("What for", list(memory.WAYS), **ways)
        at = st.selectbox("Image size (px)", list(counted["image_size"]), key="model_memory_size", width=160)
    row = counted[counted["image_size"] == at].head(1)
    estimated = memory.estimate(row, way)
    peaks = memory.peaks(timings.timed(name))
    peaks = peaks[(peaks["way"] == way) & (peaks["image_size"] == at)]
    there = _there()
    chart(memory.figure(estimated, peaks, there), key="model_memory", alt="Memory by batch size and data type")
    for device, gb in there.items():
        fits = memory.largest(estimated, gb)
        said = ", ".join(f"{precision} {batch or 'none'}" for precision, batch in fits.items())
        st.caption(plain(f"{device}, {size(gb)}: the largest of these batch sizes that should fit: {said}."))
    if not there:
        st.caption("What this machine has is not known yet; the page Device tells once it was looked at.")
    st.caption(
        "Lines are estimates from the catalogue's counts: weights, and activations that grow with the batch; in "
        "training also gradients, the optimizer's state and, guessed, twice the activations. PyTorch itself is not in "
        "them."
    )
    formats: dict[str, Any] = {
        precision: st.column_config.NumberColumn(f"{precision} (GB)", format="%.3g") for precision in memory.PRECISIONS
    }
    results_table(
        estimated, key="model_memory_table", alt="Estimated memory in GB", pinned="batch_size", config=formats
    )
    if len(peaks):
        runs_table(
            peaks,
            key="model_peaks",
            alt="Peaks that timings have measured",
            columns=("run", "date", "batch_size", "variant", "precision", "peak_gb", "what", "where"),
        )
    else:
        st.caption("No timing here has measured a peak of this model in this way yet.")
    stem = name.partition(":")[2]
    with st.container(horizontal=True):
        in_gb = estimated.rename(columns={precision: f"{precision}_gb" for precision in memory.PRECISIONS})
        download.table(lambda: in_gb, f"{stem}-memory", key="model_memory_file", label="estimates")
        if len(peaks):
            download.table(lambda: peaks, f"{stem}-peaks", key="model_peaks_file", label="peaks")


def _there() -> dict[str, float]:
    """GB of every device of this machine that the probe has told."""
    machine = backend.store().machine()
    if machine is None:
        return {}
    accelerators = {
        f"{device.name} {device.model}": device.memory_gb for device in machine.devices if device.name != "cpu"
    }
    return {"this host": machine.memory_gb} | {name: gb for name, gb in accelerators.items() if gb}
