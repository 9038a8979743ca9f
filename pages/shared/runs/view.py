"""Follow a run: its state, its actions, and its results as they arrive."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import Any

import pandas as pd
import streamlit as st

from engine import jobs
from engine.jobs import hosts
from engine.report.compare import settings
from engine.report.style import duration
from engine.specs import BenchmarkSpec, RecurrentSpec, Refused, Spec
from engine.specs.fields.timed import QUOTABLE
from engine.store import RETRYABLE, Cause, Run, State, Store
from engine.words import plural
from pages.shared import backend, rerun
from pages.shared.form.link import form_link
from pages.shared.kinds import KINDS
from pages.shared.runs import actions as run_actions
from pages.shared.runs import durations
from pages.shared.table import results_table
from pages.shared.text import plain, refusals_shown, show_error

TICK_S = 1
"""Seconds between updates of a run that has not ended."""
TIMING_TICK_S = 3
"""Seconds between updates of a timing run: longer, because updates use the CPU and disturb the timing."""
COPY_HELP = "Open the form with this run's settings."
RESTART = "Restart", ":material/replay:", "Queue this run again under the same number. Its rows are replaced."
REST = (
    *("Run the rest", ":material/playlist_play:"),
    "Run the models that are not finished. Finished models keep their rows if host, device and versions are the same.",
)
RESUME = "Resume", ":material/play_arrow:", "Continue from the newest complete checkpoint."


def follow(run: Run, *, beside_form: bool = False) -> None:
    """Draw a run, and update it alone every few seconds until it ends. beside_form: draw no link to its form."""
    active = not run.state.ended
    tick = (TIMING_TICK_S if run.spec.exclusive else TICK_S) if active else None
    st.fragment(rerun.in_turn(_draw), run_every=tick, key=f"run_{run.id}")(run.id, active, beside_form)


def follow_several(run_ids: Sequence[int], draw: Callable[[list[Run]], None], *, key: str) -> None:
    """Draw runs with `draw`, and again alone while one of them goes on. Redraw the page when one stores a row or ends.

    Runs that were deleted are left out.
    """
    runs = backend.find_runs(run_ids)
    tick = None if all(run.state.ended for run in runs) else TIMING_TICK_S
    st.fragment(rerun.in_turn(_draw_several), run_every=tick, key=key)(run_ids, draw, _results(runs))


def _draw_several(
    run_ids: Sequence[int], draw: Callable[[list[Run]], None], drawn: list[tuple[int, bool, int]]
) -> None:
    """Draw the runs. drawn: what `_results` returned when the page was drawn."""
    runs = backend.find_runs(run_ids)
    if _results(runs) != drawn:
        rerun.page()
    draw(runs)


def _results(runs: Sequence[Run]) -> list[tuple[int, bool, int]]:
    """Return the number of each run, True if it has ended, and the number of its stored rows."""
    return [(run.id, run.state.ended, run.results.rows) for run in runs]


def _draw(run_id: int, ticking: bool, beside_form: bool) -> None:
    store = backend.store()
    run = backend.current_run(run_id)
    if ticking == run.state.ended:
        if ticking:  # screen readers announce a toast, but not a badge that changes
            rerun.show_later(f"Run {run.id}: {run.outcome}", _look(run)[0])
        rerun.page()  # the run has ended, or another window has queued it again: redraw once without or with the timer
    with st.container(horizontal=True, vertical_alignment="center"):
        badge(run)
        # A text that changes wraps beside the badge. Without a container it would move below it, and results with it.
        with nullcontext() if run.state.ended else st.container():
            st.text(sentence(run, store), width="stretch")
        actions(run, beside_form)
    progress(run)
    if problem := backend.fetch_problem(run):
        st.warning(plain(f"Log, samples or checkpoints may be missing here: {problem}"), icon=":material/cloud_off:")
    rows = store.rows(run.id)
    if rows or run.kind == "train":  # a training has curves before its first row
        import_module(f"pages.{KINDS[run.kind].folder}.results").draw(run, rows)
    else:
        draw_no_results(run)


def draw_no_results(run: Run) -> None:
    """Draw a caption instead of results."""
    if run.state.ended:
        st.caption("This run ended without results.")
    else:
        st.caption("No results." if run.cancel_requested else f"No results yet. {KINDS[run.kind].expected}")


def actions(run: Run, beside_form: bool) -> None:
    """Draw the actions that the user may take on a run: cancel, restart, run again, edit a copy."""
    may_change = backend.may_change(run)
    if may_change and not run.state.ended:
        st.button(
            "Stopping" if run.cancel_requested else "Cancel",
            key=f"cancel_{run.id}",
            icon=":material/stop:",
            disabled=run.cancel_requested,
            on_click=backend.store().request_cancel,
            args=(run.id,),
            help="Stop this run. Its finished rows are kept.",
        )
    if may_change and run.state in RETRYABLE:
        _draw_retries(run)
    if backend.may_start() and (run.state in RETRYABLE or run.all_failed):
        help = "Start a new run with the same settings."
        if st.button("Run again", key=f"again_{run.id}", icon=":material/restart_alt:", help=help):
            submit_and_open(run.spec)
    if may_change and run.state in (State.VANISHED, State.STOPPING):
        _declare_gone(run)
    if not beside_form:
        form_link(run.spec, "Edit a copy", icon=":material/content_copy:", key=f"clone_{run.id}", help=COPY_HELP)


def _declare_gone(run: Run) -> None:
    """Draw the button that declares a lost host, such as an old container, gone and closes its attempts."""
    host = hosts.lost_host(backend.store(), backend.settings(), run.id)
    if host is None:
        return
    label = f"Declare {plain(host.name)} gone"
    others = f" This closes all its {len(host.run_ids)} open runs." if len(host.run_ids) > 1 else ""
    help = f"No heartbeat for {duration(abs(host.silent_s))}. Use this if the host will not come back.{others}"
    if st.button(label, key=f"gone_{run.id}", icon=":material/link_off:", help=help):
        try:
            hosts.declare_gone(backend.store(), backend.settings(), host.id)
        except Refused as refusal:  # the host has sent a heartbeat since
            rerun.show_later(str(refusal), ":material/error:")
        jobs.ensure_scheduler(backend.settings(), backend.store())
        st.rerun()


def _draw_retries(run: Run) -> None:
    if run.cause is Cause.OUT_OF_MEMORY and run.spec.half_batch is not None:
        half = run.spec.half_batch
        if st.button(f"Run again with batch {half}", key=f"half_{run.id}", icon=":material/restart_alt:"):
            submit_and_open(type(run.spec).model_validate(run.spec.model_dump() | {run.spec.batch_field: half}))
    has_results = run.results.rows > run.results.failed
    began = run.kind == "train" and (run.done or backend.checkpoints(run))
    label, icon, help = RESUME if began else REST if run.kind == "benchmark" and has_results else RESTART
    if st.button(label, key=f"retry_{run.id}", icon=icon, help=help):
        run_actions.retry([run.id])


def more_processes(run: Run, **more: Any) -> None:
    """Draw the button that repeats a timing in enough processes if it had too few. more: other fields to change."""
    if not (run.state.ended and backend.may_start()):
        return
    if isinstance(run.spec, BenchmarkSpec | RecurrentSpec) and run.spec.processes < QUOTABLE:
        spec = run.spec.model_copy(update={"replicates": None, "min_seconds": None, **more})
        help = "Start a new run with the same settings in enough fresh processes to give a spread and verdicts."
        label = f"Run in {spec.processes} processes"
        if st.button(label, key=f"quotable_{run.id}", icon=":material/verified:", help=help):
            submit_and_open(spec)


@refusals_shown()
def submit_and_open(spec: Spec) -> None:
    """Submit a new run and open its page. If it is refused, show why."""
    open_run(jobs.submit(backend.store(), backend.settings(), spec))


OPENED = "run_opened"
"""Key of the number of the run that this tab opened last."""


def open_run(run_id: int | str) -> None:
    """Open the page of a run. Its number is kept in the session too.

    Under load, the address of a run that was just opened has been replaced by the query of the page before it.
    """
    st.session_state[OPENED] = str(run_id)
    st.switch_page("run/page.py", query_params={"run": str(run_id)})


def runs_table(
    frame: pd.DataFrame, *, key: str, alt: str, columns: Sequence[str], config: Mapping[str, Any] | None = None
) -> None:
    """Draw the table of a frame whose column `run` opens the run. config: as for results_table."""
    if (click := st.session_state.get(f"{key}_open")) is not None:
        open_run(click.label)
    column = st.column_config
    options: dict[str, Any] = {"pinned": True, "width": "small", "type": "tertiary", "key": f"{key}_open"}
    run_columns: dict[str, Any] = {
        "run": column.ButtonColumn("Run", help="Open this run.", **options),
        "date": column.DatetimeColumn("Date (UTC)", format="YYYY-MM-DD HH:mm"),
        "low_ms": column.NumberColumn("Fastest process (ms)", format="%,.3g"),
        "high_ms": column.NumberColumn("Slowest process (ms)", format="%,.3g"),
        "peak_gb": column.NumberColumn("Peak (GB)", format="%,.3g"),
    }
    shown = frame.assign(run=frame["run"].astype(str))
    results_table(shown, key=key, alt=alt, pinned="run", columns=columns, config=run_columns | dict(config or {}))


def draw_differences(runs: Sequence[Run]) -> None:
    """Draw a warning with a sentence per difference that changes what values mean. runs: of one kind."""
    if warnings := settings.warnings(runs):
        st.warning(
            "  \n".join(plain(sentence) for sentence in warnings),
            title="These runs differ in settings that change what their values mean",
            icon=":material/warning:",
        )


BADGES: dict[State, tuple[str, Any]] = {
    State.QUEUED: (":material/schedule:", "gray"),
    State.STARTING: (":material/hourglass_top:", "gray"),
    State.RUNNING: (":material/play_circle:", "blue"),
    State.STOPPING: (":material/stop_circle:", "gray"),
    State.FINISHED: (":material/check_circle:", "green"),
    State.FAILED: (":material/error:", "red"),
    State.VANISHED: (":material/visibility_off:", "orange"),
    State.CANCELLED: (":material/cancel:", "gray"),
}
"""Icon and colour of each state."""


def badge(run: Run) -> None:
    """Draw the state as a word with an icon."""
    icon, colour = _look(run)
    st.badge(run.outcome, icon=icon, color=colour)


def _look(run: Run) -> tuple[str, Any]:
    """Return icon and colour of a run's state. A finished run with failed rows looks like a failure or a warning."""
    if run.state is State.FINISHED and run.results.failed:
        return BADGES[State.FAILED] if run.all_failed else (":material/warning:", "orange")
    return BADGES[run.state]


def sentence(run: Run, store: Store) -> str:
    """Return the state and progress of a run as plain text."""
    elapsed = duration(seconds) if (seconds := run.seconds()) is not None else ""
    of_all = f"{run.done:,} of " if run.total else ""
    done = f"{of_all}{plural(run.total or run.done, *KINDS[run.kind].unit)} done"
    kept = f"{plural(run.results.rows, 'row')} kept"
    match run.state:
        case State.QUEUED:
            place = store.position(run.id)
            if not place:
                return "waiting"
            return f"{'next' if place == 1 else f'position {place}'} in the queue, {durations.start_of(run)}"
        case State.STARTING:
            return "loading PyTorch, about 10 s the first time"
        case State.RUNNING:
            remaining = run.seconds_left()
            remaining_text = f", about {duration(remaining)} left" if remaining else ""
            return f"{done}, {run.note} now{remaining_text}" if run.note else f"{done}{remaining_text}"
        case State.STOPPING:
            return f"stopping; {done}"
        case State.FINISHED:
            parts = [] if run.all_failed else [done]
            if run.results.failed:
                parts.append(f"{run.results.failed:,} of {plural(run.results.rows, 'row')} failed")
            return "; ".join([*parts, f"the run took {elapsed}"])
        case State.FAILED:
            return f"{(run.cause or 'error').replace('_', ' ')} after {elapsed or '0 s'}; {done}, {kept}"
        case State.VANISHED:
            return f"no heartbeat, and its process cannot be reached; {done}. It continues if its host returns"
        case State.CANCELLED:
            return f"stopped on request; {done}, {kept}"


def progress(run: Run) -> None:
    """Draw the progress bar of a running run, the error of a failed one, or the warning of another one."""
    if run.state in (State.RUNNING, State.STOPPING) and run.total:
        st.progress(min(run.done / run.total, 1.0))
    if run.state is State.FAILED and run.error:
        show_error(run.error)
    elif run.error:
        st.warning(plain(run.error), icon=":material/cloud_off:")
