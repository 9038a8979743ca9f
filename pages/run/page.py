"""The page of one run: state, results, notes, log, request and environment."""

import json
from functools import partial

import streamlit as st

from engine.jobs.log import why_no_log
from engine.report.compare.settings import environment_facts
from engine.store import Run
from engine.store.bundles.bundle import export_bundle
from engine.store.files import RunFiles
from engine.words import sentence
from pages.run import notes
from pages.shared import backend, rerun
from pages.shared.chart.chart import tabs, verbatim
from pages.shared.form.command import command
from pages.shared.kinds import described
from pages.shared.rerun import PageEnd
from pages.shared.runs import actions, view
from pages.shared.table import download
from pages.shared.text import plain, quoted

# Number of lines that the page shows from the end of the log.
LOG_LINES = 400
# Seconds between updates of log and environment while the run is active.
TICK_S = 2


def draw_log(run: Run) -> None:
    """Draw the end of the log."""
    problem, files = backend.fetch_problem(run), RunFiles(backend.settings().runs_dir, run.id)
    if tail := files.log_tail(LOG_LINES):
        verbatim(tail, key=f"log_{run.id}", at_end=True)
    else:
        why = "has its log on another machine: see the warning above" if problem else why_no_log(run, files)
        st.caption(f"Run {run.id} {why}.")


def draw_request(run: Run) -> None:
    """Draw the spec of the run and the command that submits it."""
    verbatim(command(run.spec), key=f"command_{run.id}")
    # not st.json, whose collapsed lists the keyboard cannot open, and whose colours are too light on white
    verbatim(json.dumps(run.spec.model_dump(mode="json"), indent=2, ensure_ascii=False), key=f"request_{run.id}")


def draw_environment(run: Run) -> None:
    """Draw host, device and library versions of the run."""
    if run.environment is None:
        expected = "The environment is not recorded yet. The run's first event records it."
        st.caption("No environment was recorded." if run.state.ended else expected)
        return
    facts = environment_facts(run.environment)
    facts |= {f"used {name.replace('_', ' ')}": value for name, value in run.environment.settings.items()}
    table = {"what": list(facts), "value": list(map(str, facts.values()))}
    st.dataframe(table, hide_index=True, alt="Host, device and versions of this run")


def draw_details(run_id: int) -> None:
    """Draw the tabs with log, request and environment."""
    run = backend.current_run(run_id)
    contents = {
        "Log": lambda: draw_log(run),
        "Request": lambda: draw_request(run),
        "Environment": lambda: draw_environment(run),
    }
    tabs(contents, key="run_about")


if actions.take_deleted():
    st.switch_page("history/page.py", query_params={})
if "run" not in st.query_params and view.OPENED in st.session_state:
    st.query_params["run"] = st.session_state[view.OPENED]
run = backend.linked_run()
if run is None:
    st.title("No such run", anchor=False)
    number = st.query_params.get("run", "")
    missing = f"There is no run {quoted(number)}; it may have been deleted."
    st.text(missing if number else "Choose a run from the list of runs.")
    st.page_link("history/page.py", label="All runs", icon=":material/history:")
    raise PageEnd

st.session_state[view.OPENED] = str(run.id)
st.set_page_config(page_title=f"Run {run.id} – Model Vitals")
with st.container(horizontal=True, vertical_alignment="center"):
    st.title(f"Run {run.id}", anchor=False, width="content")
    st.page_link("history/page.py", label="All runs", icon=":material/arrow_back:")
owner = f", by {run.owner}" if run.owner else ""
st.text(f"{described(run.kind)}{owner}: {run.name or run.spec.summary}")
view.follow(run)
notes.draw(run.id)

st.fragment(rerun.in_turn(draw_details), run_every=None if run.state.ended else TICK_S, key="run_about_now")(run.id)
if run.state.ended and backend.may_change(run):  # a bundle holds checkpoints
    with st.container(horizontal=True):
        download(
            "Export bundle",
            partial(export_bundle, backend.store(), backend.settings(), run.id),
            f"run-{run.id}.zip",
            icon=":material/archive:",
            help="Download request, environment, rows, metrics, log, tags, notes and up to 50 MB of files as a file "
            "that another machine can import. Of the files, the best checkpoint comes first, then the latest one, then "
            "the smallest of the others.",
        )
        if st.button("Delete", icon=":material/delete:", key="run_delete"):
            actions.request_deletion([run.id])
    for omitted in backend.not_in_bundle(run):
        st.caption(plain(sentence(omitted)))
actions.draw_dialog()
