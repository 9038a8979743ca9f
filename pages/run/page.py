"""One run by its link: state, results, what was asked, where it ran and what it printed."""

import streamlit as st

from engine.store import Run
from engine.store.bundle import export_bundle
from engine.store.files import RunFiles
from pages.run import notes
from pages.shared import backend, run_deletion, run_view
from pages.shared.chart.verbatim import verbatim
from pages.shared.command import command
from pages.shared.download import download
from pages.shared.page_end import PageEnd
from pages.shared.text import quoted

LOG_LINES = 400
TICK_S = 2


def log(run_id: int) -> None:
    """The tail of the log, as text."""
    tail = RunFiles(backend.settings().runs_dir, run_id).log_tail(LOG_LINES)
    if tail:
        verbatim(tail, key=f"log_{run_id}")
    else:
        st.caption("Nothing has been printed.")


def request(run: Run) -> None:
    """What was asked, and the command that asks for it."""
    verbatim(command(run.spec), key=f"command_{run.id}")
    st.json(run.spec.model_dump(mode="json"), expanded=1)


def environment(run: Run) -> None:
    """Where and with what the rows were made."""
    if run.environment is None:
        st.caption("Not recorded yet: it comes with the first event of the run.")
        return
    facts = run.environment.model_dump()
    versions, gpu = facts.pop("versions"), facts.pop("gpu")
    facts |= {f"version of {name}": version for name, version in versions.items()}
    facts |= {f"GPU {name}": value for name, value in gpu.items()}
    st.dataframe(
        {"what": list(facts), "value": [str(value) for value in facts.values()]},
        hide_index=True,
        alt="Host, device and versions of this run",
    )


def about(run_id: int) -> None:
    """Log, request and environment, kept up to date while the run goes."""
    run = backend.store().run(run_id)
    tabs = st.tabs(["Log", "Request", "Environment"], key="run_about", on_change="rerun")
    for tab, content in zip(tabs, (lambda: log(run.id), lambda: request(run), lambda: environment(run)), strict=True):
        if tab.open:
            with tab:
                content()


if run_deletion.take_deleted():
    st.switch_page("history/page.py", query_params={})
run = backend.linked_run()
if run is None:
    st.title("No such run", anchor=False)
    asked = st.query_params.get("run", "")
    st.text(
        f"There is no run {quoted(asked)}; it may have been deleted." if asked else "Choose one from the list of runs."
    )
    st.page_link("history/page.py", label="All runs", icon=":material/history:")
    raise PageEnd

with st.container(horizontal=True, vertical_alignment="center"):
    st.title(f"Run {run.id}", anchor=False, width="content")
    st.page_link("history/page.py", label="All runs", icon=":material/arrow_back:")
st.text(f"{run.kind}: {run.name or run.spec.summary}")
run_view.follow(run)
notes.draw(run.id)

st.fragment(about, run_every=None if run.state.ended else TICK_S, key="run_about_now")(run.id)
with st.container(horizontal=True):
    if run.state.ended:
        download(
            "Export bundle",
            lambda: export_bundle(backend.store(), backend.settings(), run.id),
            f"run-{run.id}.zip",
            icon=":material/archive:",
            help="Request, environment, rows, metrics, log, tags and notes in a file that another machine can import.",
        )
    if run.state.ended and st.button("Delete", icon=":material/delete:", key="run_delete"):
        run_deletion.request([run.id])
run_deletion.draw_dialog()
