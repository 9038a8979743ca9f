"""Draw a model's costs: its values and actions, its modules, and commands that reproduce them."""

from collections.abc import Iterable

import pandas as pd
import streamlit as st

from engine import shipped
from engine.report import frames
from engine.report.catalog import catalog, model
from engine.report.quantities import title
from engine.report.style import digits
from engine.report.timings import by_model
from engine.results import ProfileRow, detail_name
from engine.specs import BenchmarkSpec, ModelName, ProfileSpec, Spec
from engine.specs.evaluate import EvaluateSpec
from engine.specs.fields.building import changes
from engine.specs.train import TrainSpec
from engine.store import Run
from pages.shared import backend, module_map, table
from pages.shared.chart.chart import verbatim
from pages.shared.form.command import command
from pages.shared.form.link import form_link
from pages.shared.runs import comparison_link, launch, view
from pages.shared.table import results_table
from pages.shared.text import plain

VALUES = ("mparams", "gmacs", "gflops", "macts", "intensity", "weights_mb", "inference_peak_mb")
COLUMNS = (
    *("image_size", "mparams", "gmacs", "gflops", "macts", "traffic_mb", "intensity", "weights_mb"),
    *("inference_peak_mb", "live_mb", "kept_mb", "context_length", "embed_dim", "image_width", "text_width", "remark"),
)


def draw_head(name: ModelName, sizes: pd.DataFrame, accuracies: pd.DataFrame) -> None:
    """Draw title, actions, costs and the best published accuracy.

    sizes: from model.sizes, one row per image size, the model's own size first. accuracies: from model.published.
    """
    own = sizes.iloc[0]
    st.title(plain(own["model"]), anchor=False)
    st.caption(f"{plain(own['library'])}, family {plain(own['family'])}")
    _actions(name)
    if own["status"] != "ok":
        st.error(plain(own["remark"]), icon=":material/error:", title="Could not be counted")
    elif own["remark"]:
        heading = "Memory of training" if own["complete"] else "Incomplete"
        st.warning(plain(own["remark"]), icon=":material/warning:", title=heading)
    with st.container(horizontal=True):
        for column in VALUES:
            if column in own and pd.notna(own[column]):
                st.metric(title(column), digits(own[column]), width="content")
        if (best := model.headline(accuracies)) is not None:
            size = f"{best['image_size']} px" if best["image_size"] else ""
            origin = ", ".join(filter(None, [best["pretrained"], size]))
            help = (
                f"Highest published value: {origin}. Published by {best['source']}. The tab Published shows all values."
            )
            size_note = f" at {best['image_size']} px" if best["image_size"] not in ("", own["image_size"]) else ""
            label = f"{best['label']} (%){size_note}"  # costs are those of the model's own size
            st.metric(label, f"{best['percent']:.2f}", width="content", help=plain(help))
    library_versions = plain(catalog.describe(shipped.versions(backend.settings().catalog_dir)))
    size = f" of {plain(own['image_size'])} px" if own["image_size"] else ""
    tagged_names = [other for other in launch.families() if other.startswith(f"{name}.")]
    with_text = " with its text" if own["library"] == model.TRAINABLE else ""
    st.caption(
        f"Costs of one image{size}{with_text}, counted by this program with {library_versions}. 1 MAC is 2 FLOPs."
    )
    if tagged_names:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption("Tags with ImageNet's 1,000 classes have a classifier of another size:", width="content")
            for other in tagged_names:
                st.page_link("model/page.py", label=plain(ModelName(other).model), query_params={"name": other})


def counts(sizes: pd.DataFrame) -> None:
    """Draw the costs by tower and by image size. sizes: as for draw_head."""
    own = sizes.iloc[0]
    if len(towers := frames.towers(own.to_dict())) > 2:  # the last row is the whole model
        module_map.draw_towers(towers, "model")
    results_table(
        sizes.dropna(axis=1, how="all"),
        key="model_sizes",
        alt="Counts at each image size of the catalogue",
        columns=[column for column in COLUMNS if column != "remark" or any(sizes["remark"])],
        pinned="image_size",
    )
    if len(sizes) > 1:
        st.caption("The first row is the model's own image size. Accuracies are published for the other sizes.")
    table.download_table(lambda: sizes, f"{own['model']}-counts", key="model_sizes_file")


def _actions(name: ModelName) -> None:
    """Draw links to forms filled with this model, and the comparison with other models."""
    forms: dict[str, tuple[Spec, str]] = {
        "Profile": (ProfileSpec(models=(name,)), ":material/calculate:"),
        "Time it": (BenchmarkSpec(models=(name,)), ":material/timer:"),
    }
    if name.library == model.TRAINABLE:
        forms["Train"] = (TrainSpec(model=name.model), ":material/model_training:")
        forms["Evaluate"] = (EvaluateSpec(model=name.model), ":material/fact_check:")
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


MOST_RUNS = 50
"""Maximum number of profile runs that are checked for a table of modules, newest first."""


def draw_modules(name: ModelName, image_size: str) -> None:
    """Draw the treemap and the table of modules. While the linked run counts them, draw its progress.

    image_size: the model's own. A newer count at another size is drawn only if there is none at this one.
    """
    linked = backend.linked_run()
    if linked and linked.spec == count_request(name) and _stored_modules([linked], name, image_size) is None:
        view.follow(linked, beside_form=True)
        if not linked.state.ended:
            return
    result = _stored_modules(by_model.runs(backend.store(), name, "profile", MOST_RUNS), name, image_size)
    if result is None:
        _draw_count_button(name)
        return
    run, row, frame = result
    with st.container(horizontal=True, vertical_alignment="center"):
        setting = f"{row.image_size} px, batch {row.batch_size}"
        st.caption(plain(f"Counted in run {run.id} on {run.created_at:%Y-%m-%d} at {setting}."), width="content")
        link = {"run": str(run.id)}
        st.page_link("run/page.py", label=f"Run {run.id}", icon=":material/receipt_long:", query_params=link)
        if backend.may_start() and st.button(
            "Count again", key="model_recount", icon=":material/replay:", type="tertiary"
        ):
            launch.start(count_request(name))
    module_map.draw(frame, "model", f"{row.model}-{row.image_size}-batch{row.batch_size}-modules")


def count_request(name: ModelName) -> ProfileSpec:
    """Return the spec of a count, which keeps the table of modules."""
    return ProfileSpec(models=(name,))


def _stored_modules(
    runs: Iterable[Run], name: ModelName, image_size: str
) -> tuple[Run, ProfileRow, pd.DataFrame] | None:
    """Return the first of the runs that kept the modules of a model, with row and table; None if there is none.

    The model is built as its library defines it. image_size: counts at this size come first.
    """
    rows = ((run, row) for run in runs for row in backend.store().rows(run.id, name.model))
    counts = [(run, row) for run, row in rows if isinstance(row, ProfileRow) and row.name == name and not changes(row)]
    for run, row in sorted(counts, key=lambda count: count[1].image_size != image_size):
        file = row.detail_file or detail_name(row.library, row.model)
        if (frame := frames.read_modules(backend.folder(run), file)) is not None:
            return run, row, frame
    return None


def _draw_count_button(name: ModelName) -> None:
    st.caption("The catalogue has no costs of single modules. A count takes seconds and needs no weights.")
    icon = ":material/account_tree:"
    if backend.may_start() and st.button("Count modules", key="model_count", icon=icon, type="primary"):
        launch.start(count_request(name))
    verbatim(command(count_request(name)), key="model_count_command")


def draw_commands(name: ModelName, accuracies: pd.DataFrame) -> None:
    """Draw each command with a link to its form. accuracies: published accuracies of the model."""
    for heading, spec in model.requests(name, accuracies).items():
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f"**{heading}**", width="content")
            form_link(spec, "Open the form", icon=":material/edit_note:", key=f"model_form_{heading}")
        verbatim(command(spec), key=f"model_command_{heading}")
    # not a caption, in which code has a contrast of only 4:1
    st.markdown("Run a command in the folder of this program. `python -m engine submit ...` queues it instead.")
