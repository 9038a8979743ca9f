"""Compare models: their costs, published accuracies, and measured speed."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
import streamlit as st

from engine import shipped
from engine.estimate.devices import UNITS
from engine.estimate.devices import rates as rates_of
from engine.report import frames
from engine.report.catalog import catalog, model
from engine.report.compare import values as compare_values
from engine.report.compare.timed import Timed, by_setting, runs_of_models
from engine.report.quantities import COMPARABLE
from engine.report.timings import estimates
from engine.report.timings.stored import Setting
from engine.results import BenchmarkRow
from engine.specs import BenchmarkSpec, ModelName
from engine.store import Store
from pages.compare import timings
from pages.compare import values as values_view
from pages.shared import backend
from pages.shared.form.link import form_link
from pages.shared.rerun import fold
from pages.shared.runs import launch
from pages.shared.table import results_table
from pages.shared.text import plain
from pages.shared.timing import calibrate, speeds

PUBLISHED = ("model", "pretrained", "image_size", "percent", "source")


def draw(names: Sequence[str]) -> None:
    """Draw the comparison. names: qualified names of models."""
    if not names:
        st.info("Choose models to compare.", icon=":material/compare_arrows:")
        st.page_link("catalog/page.py", label="Catalogue", icon=":material/table_view:")
        return
    if len(names) == 1:
        st.info("Choose a second model to compare with this one.", icon=":material/compare_arrows:")
    baseline = _costs(names)
    _published(names)
    if len(names) > 1:
        _timings(names, baseline)
    if (work := speeds.work()) is not None:
        devices = partial(_devices, names, work)
        fold("Which device?", devices, icon=":material/developer_board:", key="compare_devices")
        fold("Effective rates of a device", _rates, icon=":material/bolt:", key="compare_rates")


def _devices(names: Sequence[str], work: pd.DataFrame) -> None:
    """Draw the models on all known devices side by side. Power and price are typed by the user."""
    devices = speeds.devices(speeds.timed())
    sizes = frames.own_sizes(backend.catalogue())["image_size"]
    keys = [(name, str(sizes[name])) for name in names if name in sizes.index]
    frame = estimates.side_by_side(devices, work[work.index.isin(keys)])
    if frame.empty:
        st.caption("The catalogue has no complete count of these models.")
        return
    st.caption("Type the power or the price of devices to see how many images each model gets for it.")
    cells = st.data_editor(
        pd.DataFrame({"device": [device.fitted.label for device in devices], "watts": np.nan, "price": np.nan}),
        key="compare_power",
        hide_index=True,
        disabled=["device"],
        placeholder="–",
        column_config={
            "device": "Device",
            "watts": st.column_config.NumberColumn("Power (W)", min_value=1.0),
            "price": st.column_config.NumberColumn("Price", min_value=0.01, help="Per hour, or to buy."),
        },
    )
    frame = frame.merge(cells, on="device")
    frame["per_joule"], frame["per_price"] = (frame["samples_per_s"] / frame[by] for by in ("watts", "price"))
    speeds.table(
        frame.sort_values(["model", "samples_per_s"], ascending=[True, False], kind="stable"),
        devices,
        key="compare_devices_table",
        alt="Speed of each model on each device",
        extra_columns=("per_joule", "per_price"),
        config={
            "per_joule": st.column_config.NumberColumn("Images/J", format="%,.3g"),
            "per_price": st.column_config.NumberColumn("Images/s per price", format="%,.4g"),
        },
    )
    calibrate.draw("compare_calibrate")


def _rates() -> None:
    """Draw the effective rates of the kinds of operators on one device."""
    by_label = {device.fitted.label: device for device in speeds.devices(speeds.timed())}
    label = st.selectbox("Device", list(by_label), key="compare_rates_device")
    speeds.draw_warnings([by_label[label]])
    rates = rates_of(by_label[label].fitted)
    by_unit = rates.pivot(index="kind", columns="unit", values="rate")
    results_table(
        by_unit.reindex(index=rates["kind"].unique(), columns=list(UNITS.values())).reset_index(),
        key="compare_rates_table",
        alt="Effective rate of each kind of operator",
        pinned="kind",
        config={
            "kind": st.column_config.TextColumn("Kind", pinned=True, width="medium"),
            **{
                unit: st.column_config.NumberColumn(unit.replace("us", "µs"), format="%,.3g") for unit in UNITS.values()
            },
        },
    )
    st.caption(
        "Fitted to the timings of whole models: the work of each kind of operator per second, and the cost of a "
        "call. FLOPs and bytes are those of float32. A kind that few models use may have an odd rate."
    )


def _costs(names: Sequence[str]) -> str:
    """Draw the costs and return the name of the baseline."""
    catalogue = backend.catalogue()
    st.header("Costs", anchor=False)
    rows = frames.own_sizes(catalogue[catalogue["name"].isin(list(names))])
    if remarks := [f"{name}: {remark}" for name, remark in rows["remark"].loc[list(names)].items() if remark]:
        st.warning("  \n".join(map(plain, remarks)), icon=":material/warning:")
    sizes = {name: f"at {size} px" for name, size in zip(names, rows.loc[list(names), "image_size"], strict=True)}
    library_versions = catalog.describe(shipped.versions(backend.settings().catalog_dir))
    parts = ", ".join(f"{name} {size}" for name, size in sizes.items())
    caption = (
        f"Costs are per image (CLIP: image and text), each model at its own image size ({parts}). "
        f"Counted with {library_versions}. "
    )
    values = compare_values.of_catalogue(catalogue, names, COMPARABLE)
    return values_view.side_by_side(values, sizes, how="ratio", caption=plain(caption + values_view.CAPTIONS["ratio"]))


def _published(names: Sequence[str]) -> None:
    """Draw one published accuracy, chosen from a list, of every pretrained tag of every model.

    The best one of each model comes first, so that the models can be compared.
    """
    published, families = backend.published_accuracies(), launch.families()
    lines = pd.concat([model.published(published, ModelName(name), families) for name in names], ignore_index=True)
    st.header("Published accuracy", anchor=False)
    if lines.empty:
        st.caption("No published accuracy of these models is shipped or imported.")
        return
    counts = lines.groupby("label", sort=False)["model"].nunique().sort_values(ascending=False, kind="stable")
    label = st.selectbox("Accuracy", list(counts.index), key="compare_accuracy", bind="query-params")
    shown = lines[lines["label"] == label].sort_values("percent", ascending=False, kind="stable")
    place_in_model = shown.groupby(["library", "model"]).cumcount()
    shown = shown.loc[place_in_model.clip(upper=1).sort_values(kind="stable").index]
    shown = shown.assign(model=shown["library"] + ":" + shown["model"])
    alt = f"{label} as published, by model and pretrained weights"
    config = {"percent": st.column_config.NumberColumn(f"{label} (%)", format="%.2f")}
    results_table(shown, key="compare_published", alt=alt, columns=PUBLISHED, config=config)


def _timings(names: Sequence[str], baseline: str) -> None:
    """Draw the speed-ups in one timing setting, over the baseline or, if it is not timed, the first timed model."""
    st.header("Measured speed", anchor=False)
    comparable = {setting.label: rows for setting, rows in _timed(backend.store(), tuple(names))}
    if not comparable:
        st.caption("No two of these models are timed with the same settings.")
        form_link(BenchmarkSpec(models=tuple(names)), "Time them", icon=":material/timer:", key="compare_time")
        return
    label = st.selectbox("Timing setting", list(comparable), key="compare_setting", bind="query-params")
    rows = {str(timed.row.name): timed for timed in comparable[label]}
    first = rows.get(baseline, comparable[label][0])
    pairs = [(first, timed) for timed in comparable[label] if timed is not first]
    sizes = {name: timed.row.image_size for name, timed in rows.items() if isinstance(timed.row, BenchmarkRow)}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name} at {size} px" for name, size in sizes.items())
        st.caption(plain(f"Each model was timed at its own image size: {listed}."))
    timings.draw_ratios(pairs, "ms", seed=BenchmarkSpec.model_fields["seed"].default)
    if missing := [name for name in names if name not in rows]:
        st.caption(plain(f"Not timed with these settings: {', '.join(missing)}."))


@st.cache_data(max_entries=16, show_spinner="Reading the timings", hash_funcs=backend.BY_VERSION)
def _timed(store: Store, names: tuple[str, ...]) -> list[tuple[Setting, list[Timed]]]:
    """Return the timings of these models by setting."""
    newest = ((run, backend.folder(run), store.rows(run.id)) for run in runs_of_models(store, names))
    return by_setting(store, newest, names)
