"""Draw the estimated memory of a model by batch size and data type, this machine's memory and measured peaks."""

from typing import Any

import pandas as pd
import streamlit as st

from engine.report.figures import memory
from engine.specs import ModelName
from engine.words import sentence
from pages.model import history
from pages.shared import backend, table
from pages.shared.chart.chart import chart, choice
from pages.shared.runs import view
from pages.shared.table import results_table
from pages.shared.text import plain, size

OTHER_GB_HELP = (
    "Memory of another device, such as 24. The page then finds the largest batch size that should fit into it."
)
AMP_LINE = {
    "cpu": "The line of amp is for a CPU; an accelerator needs more.",
    "cuda:0": "The line of amp is for an accelerator; a CPU needs less.",
}
HOST = "this host"  # the label of its memory


def draw(name: ModelName, sizes: pd.DataFrame) -> None:
    """Draw the memory tab. sizes: from model.sizes, one row per image size."""
    counted = sizes[sizes["status"] == "ok"]
    if counted.empty:
        st.caption("This model could not be counted, so its memory cannot be estimated.")
        return
    with st.container(horizontal=True):
        mode = choice("Mode", list(memory.WAYS), key="model_way", bind="query-params")
        image_size = st.selectbox(
            "Image size (px)", list(counted["image_size"]), key="model_memory_size", bind="query-params", width=160
        )
        other_gb = st.number_input(
            "Other device (GB)",
            0.1,
            value=None,
            key="model_memory_gb",
            bind="query-params",
            width=160,
            placeholder="none",
            help=OTHER_GB_HELP,
        )
    row = counted[counted["image_size"] == image_size].head(1)
    peaks = memory.peaks(history.timings(name)[0])
    peaks = peaks[(peaks["way"] == mode) & (peaks["image_size"] == image_size)]
    available = _available_gb() | ({"other device": other_gb} if other_gb else {})
    estimates = {device: memory.estimate(row, mode, device) for device in ("cpu", "cuda:0")}
    drawn = "cuda:0" if available.keys() - {HOST} else "cpu"
    estimated = estimates[drawn]
    chart(memory.figure(estimated, peaks, available), key="model_memory", alt="Memory by batch size and data type")
    for device, gb in available.items():
        fits = memory.largest(estimates["cpu" if device == HOST else "cuda:0"], gb)
        batches = ", ".join(f"{precision} {f'{batch:,}' if batch else 'none'}" for precision, batch in fits.items())
        text = f"{device}, {size(gb)}: largest batch size of the table that should fit: {batches}"
        st.caption(plain(sentence(text)))
    if not available:
        st.caption("This machine's memory is not known yet. See the page Device.")
    st.caption(
        "Lines are estimates from the catalogue's counts: weights, and activations that grow with the batch. Training "
        "adds gradients, the optimizer's state and all that is kept for the backward pass. PyTorch's own memory is not "
        f"included. {AMP_LINE[drawn]} In half precision, half of the memory of float32 is expected. The few models "
        "that convert to float32 inside, such as gemma4_vit, need more. Checked against timm's published batch sizes "
        "in amp, for models that ran out of memory at a larger one: the estimate was within one step (such as 384 to "
        "512) for 92 to 98 % of eager and 62 to 85 % of compiled models, depending on the GPU. Training was checked "
        "for eager models on one GPU only."
    )
    config: dict[str, Any] = {
        precision: st.column_config.NumberColumn(f"{precision} (GB)", format="%,.3g") for precision in memory.PRECISIONS
    }
    results_table(estimated, key="model_memory_table", alt="Estimated memory in GB", pinned="batch_size", config=config)
    if len(peaks):
        columns = ("run", "date", "batch_size", "variant", "precision", "peak_gb", "what", "where")
        view.runs_table(peaks, key="model_peaks", alt="Peak memory measured by timings", columns=columns)
    else:
        st.caption("No timing on this machine has measured the peak memory of this model in this mode.")
    with st.container(horizontal=True):
        what = {"model": name, "image_size": image_size, "mode": mode}
        stem = f"{name.model}-{image_size}-{mode.replace(', ', '-')}"
        in_gb = estimated.rename(columns={precision: f"{precision}_gb" for precision in memory.PRECISIONS})
        in_gb = pd.DataFrame(what, index=in_gb.index).join(in_gb)
        table.download_table(lambda: in_gb, f"{stem}-memory", key="model_memory_file", label="estimates")
        if len(peaks):
            table.download_table(lambda: peaks, f"{stem}-peaks", key="model_peaks_file", label="peaks")


def _available_gb() -> dict[str, float]:
    """Return the memory of the host and of each accelerator in GB, as found by the probe."""
    machine = backend.store().machine()
    if machine is None:
        return {}
    accelerators = {f"{entry.name} {entry.model}": entry.memory_gb for entry in machine.devices if entry.name != "cpu"}
    return {HOST: machine.memory_gb} | {name: gb for name, gb in accelerators.items() if gb}
