"""The modules of a model with their costs: from the latest count that kept them, or a button that counts them."""

import pandas as pd
import streamlit as st

from engine.report import details
from engine.report.timings import by_model
from engine.results import detail_name
from engine.specs import ProfileSpec
from engine.store import Run
from pages.shared import backend, download, launch, module_map, run_view
from pages.shared.chart.verbatim import verbatim
from pages.shared.form.command import command
from pages.shared.text import plain

LATEST = 50
"""Most profile runs that are checked for a table of modules, newest first."""


def draw(name: str) -> None:
    """Draw treemap and table. While a count started here is active, draw its progress instead."""
    linked = backend.linked_run()
    if linked and linked.kind == "profile" and linked.spec == request(name) and _modules(linked, name) is None:
        run_view.follow(linked, beside_form=True)
        if not linked.state.ended:
            return
    result = latest(name)
    if result is None:
        _draw_count_button(name)
        return
    run, frame = result
    with st.container(horizontal=True, vertical_alignment="center"):
        size = "its own image size" if run.spec.image_size is None else f"{run.spec.model_dump()['image_size']} px"
        st.caption(
            plain(f"Counted in run {run.id} on {run.created_at:%Y-%m-%d} at {size}."),
            width="content",
        )
        st.page_link("run/page.py", label=f"Run {run.id}", icon=":material/receipt_long:", query_params=_link(run))
        if st.button("Count again", key="model_recount", icon=":material/replay:", type="tertiary"):
            launch.start(request(name))
    module_map.draw(frame, "model")
    with st.container(horizontal=True):
        stem = f"{name.partition(':')[2]}-modules"
        download.table(lambda: frame, stem, key="model_modules_file", label="modules")


def request(name: str) -> ProfileSpec:
    """Return the spec of a count that keeps the table of modules."""
    return ProfileSpec(models=(name,), detail=True)


def latest(name: str) -> tuple[Run, pd.DataFrame] | None:
    """Return the newest run that kept the modules of a model, with their table; None if there is none."""
    for run in by_model.runs(backend.store(), name, "profile", LATEST):
        if (frame := _modules(run, name)) is not None:
            return run, frame
    return None


def _modules(run: Run, name: str) -> pd.DataFrame | None:
    library, _, model = name.partition(":")
    return details.modules(backend.folder(run), detail_name(library, model))


def _draw_count_button(name: str) -> None:
    st.caption("The catalogue has no costs of single modules. A count on meta takes seconds and allocates no weights.")
    if st.button("Count modules", key="model_count", icon=":material/account_tree:", type="primary"):
        launch.start(request(name))
    verbatim(command(request(name)), key="model_count_command")


def _link(run: Run) -> dict[str, str]:
    return {"run": str(run.id)}
