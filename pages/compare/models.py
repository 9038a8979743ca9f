"""Models side by side: what they cost, what others have published of them, and how fast they are here."""

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from engine import shipped
from engine.report.catalog import catalog, model
from engine.report.compare import models
from engine.report.compare import values as compare_values
from engine.report.compare.timings import Timed
from engine.report.quantities import COMPARABLE
from engine.report.timings.stored import Setting
from engine.specs import BenchmarkSpec
from pages.compare import timings
from pages.compare import values as values_view
from pages.shared import backend, launch
from pages.shared.comparison_link import BIND
from pages.shared.form_link import form_link
from pages.shared.table import results_table
from pages.shared.text import plain

PUBLISHED = ("model", "pretrained", "image_size", "percent", "source")


def draw(names: Sequence[str]) -> None:
    """Of models by their qualified names."""
    if not names:
        st.info("Choose models to see what they cost side by side.", icon=":material/compare_arrows:")
        st.page_link("catalog/page.py", label="Catalogue", icon=":material/table_view:")
        return
    baseline = _costs(names)
    _published(names)
    _timings(names, baseline)


def _costs(names: Sequence[str]) -> str:
    """Counts of the catalogue; answers the baseline."""
    catalogue = backend.catalogue()
    st.header("Costs", anchor=False)
    own = catalogue[catalogue["name"].isin(list(names))].drop_duplicates("name").set_index("name")
    if remarks := [f"{name}: {own.at[name, 'remark']}" for name in names if own.at[name, "remark"]]:
        st.warning("  \n".join(map(plain, remarks)), icon=":material/warning:")
    sizes = {name: f"at {own.at[name, 'image_size']} px" for name in names}
    counted = catalog.describe(shipped.versions(backend.settings().catalog_dir))
    each = ", ".join(f"{name} {size}" for name, size in sizes.items())
    told = f"Per image, of CLIP models with its text. Each at its own image size ({each}); counted with {counted}. "
    values = compare_values.of_catalogue(catalogue, names, COMPARABLE)
    return values_view.side_by_side(values, sizes, how="ratio", told=plain(told + values_view.TOLD["ratio"]))


def _published(names: Sequence[str]) -> None:
    """Accuracies, one figure at a time: every pretrained tag of every model."""
    published, families = backend.published_accuracies(), launch.families()
    lines = pd.concat([model.published(published, name, families) for name in names], ignore_index=True)
    st.header("Published accuracy", anchor=False)
    if lines.empty:
        st.caption("Nobody's accuracies of these models are shipped or imported here.")
        return
    counts = lines.groupby("label", sort=False)["model"].nunique().sort_values(ascending=False, kind="stable")
    label = st.selectbox("Accuracy", list(counts.index), key="compare_accuracy", bind=BIND)
    shown = lines[lines["label"] == label].sort_values("percent", ascending=False, kind="stable")
    results_table(
        shown.assign(model=shown["library"] + ":" + shown["model"]),
        key="compare_published",
        alt=f"{label} as published, by model and pretrained weights",
        columns=PUBLISHED,
        config={"percent": st.column_config.NumberColumn(f"{label} (%)", format="%.2f")},
    )


def _timings(names: Sequence[str], baseline: str) -> None:
    """In a setting of one's choice, over the baseline or the first model that was timed in it."""
    st.header("Speed here", anchor=False)
    found = {setting.label: those for setting, those in _timed(tuple(names), backend.store().revision())}
    several = {label: those for label, those in found.items() if len(those) > 1}
    if not several:
        st.caption("No two of these models have been timed in the same setting.")
        form_link(BenchmarkSpec(models=tuple(names)), "Time them", icon=":material/timer:", key="compare_time")
        return
    label = st.selectbox("Setting", list(several), key="compare_setting", bind=BIND)
    those = several[label]
    first = next((each for each in those if f"{each.row.library}:{each.row.model}" == baseline), those[0])
    pairs = [(first, each) for each in those if each is not first]
    timings.show(pairs, "ms", seed=BenchmarkSpec.model_fields["seed"].default)
    if missing := [name for name in names if name not in {f"{each.row.library}:{each.row.model}" for each in those}]:
        st.caption(plain(f"Not timed in this setting: {', '.join(missing)}."))


@st.cache_data(max_entries=16, show_spinner="Looking for timings")
def _timed(names: tuple[str, ...], revision: int) -> list[tuple[Setting, list[Timed]]]:
    """As of a revision of the store."""
    store = backend.store()
    newest = ((run, backend.folder(run), store.rows(run.id)) for run in models.runs(store, names))
    return models.timed(newest, names)
