"""The head of a model's page: its costs, links to forms filled with it, and the table of counts."""

from typing import Any

import pandas as pd
import streamlit as st

from engine import shipped
from engine.report.catalog import catalog, model
from engine.report.figures import profile
from engine.report.quantities import title
from engine.report.style import digits
from engine.specs import BenchmarkSpec, ProfileSpec, Spec
from engine.specs.evaluate import EvaluateSpec
from engine.specs.train import TrainSpec
from pages.shared import backend, comparison_link, download, launch
from pages.shared.chart.chart import chart
from pages.shared.form.link import form_link
from pages.shared.table import results_table
from pages.shared.text import plain

VALUES = ("mparams", "gmacs", "gflops", "macts", "intensity", "weights_mb", "inference_peak_mb")
COLUMNS = (
    *("image_size", "mparams", "gmacs", "gflops", "macts", "traffic_mb", "intensity", "weights_mb"),
    *("inference_peak_mb", "context_length", "embed_dim", "image_width", "text_width", "remark"),
)


def draw(name: str, sizes: pd.DataFrame) -> None:
    """Draw title, actions and costs. sizes: from model.sizes, one row per image size, the model's own size first."""
    own = sizes.iloc[0]
    st.title(plain(own["model"]), anchor=False)
    st.caption(f"{plain(own['library'])}, family {plain(own['family'])}")
    _actions(name)
    if own["status"] != "ok":
        st.error(plain(own["remark"]), icon=":material/error:", title="Could not be counted")
    elif own["remark"]:
        st.warning(plain(own["remark"]), icon=":material/warning:", title="Incomplete")
    with st.container(horizontal=True):
        for column in VALUES:
            if column in own and pd.notna(own[column]):
                st.metric(title(column), digits(own[column]), width="content")
    counted = plain(catalog.describe(shipped.versions(backend.settings().catalog_dir)))
    unit = "image with its text" if own["library"] == model.TRAINABLE else "image"
    size = f" of {plain(own['image_size'])} px" if own["image_size"] else ""
    st.caption(f"Costs of one {unit}{size}, counted by this program with {counted}. 1 MAC is 2 FLOPs.")


def counts(sizes: pd.DataFrame) -> None:
    """Draw the costs by tower and by image size. sizes: as for draw."""
    own = sizes.iloc[0]
    _towers(own)
    results_table(
        sizes.dropna(axis=1, how="all"),
        key="model_sizes",
        alt="Counts at each image size of the catalogue",
        columns=[column for column in COLUMNS if column != "remark" or any(sizes["remark"])],
        pinned="image_size",
    )
    if len(sizes) > 1:
        st.caption("The first row is the model's own image size. Accuracies are published for the other sizes.")
    with st.container(horizontal=True):
        download.table(lambda: sizes, f"{own['model']}-counts", key="model_sizes_file", label="counts")


def _towers(own: "pd.Series[Any]") -> None:
    towers = model.towers(own)
    if len(towers) > 2:  # the last row is the whole model
        chart(profile.towers(towers), key="model_towers", alt="Shares of image and text tower")
        results_table(towers, key="model_towers_table", alt="Costs of each tower", pinned="tower")


def _actions(name: str) -> None:
    """Draw links to forms filled with this model, and the comparison with other models."""
    plain_name = name.partition(":")[2]
    forms: dict[str, tuple[Spec, str]] = {
        "Profile": (ProfileSpec(models=(name,)), ":material/calculate:"),
        "Time it": (BenchmarkSpec(models=(name,)), ":material/timer:"),
    }
    if name.startswith(f"{model.TRAINABLE}:"):
        forms["Train"] = (TrainSpec(model=plain_name), ":material/model_training:")
        forms["Evaluate"] = (EvaluateSpec(model=plain_name), ":material/fact_check:")
    with st.container(horizontal=True, vertical_alignment="center"):
        for label, (spec, icon) in forms.items():
            form_link(spec, label, icon=icon, key=f"model_go_{label}", help="Open the form with this model.")
        with st.popover("Compare with ...", icon=":material/compare_arrows:"):
            names = [other for other in launch.families() if other != name]
            others = st.multiselect(
                "Other models", names, key="model_others", select_all=False, max_selections=comparison_link.MOST - 1
            )
            if st.button("Compare", key="model_compare", disabled=not others, type="primary"):
                st.switch_page("compare/page.py", query_params={comparison_link.MODELS: ",".join([name, *others])})
