"""The list of runs, page by page, with actions for the selected runs."""

from collections.abc import Sequence
from typing import Any

import streamlit as st

from engine.report import frames
from engine.report.export import bulk
from engine.store import Filter, Run, State, Store
from engine.words import plural
from pages.history.filters import go_to_first_page, key
from pages.shared import backend, rerun, sign_in, tour
from pages.shared.runs import actions as run_actions
from pages.shared.runs import comparison_link
from pages.shared.runs.view import open_run
from pages.shared.table import PERCENT, WHOLE_PERCENT, download_table, drawn_key, in_percent, results_table

SIZES = (25, 50, 100, 200)
MARKS = {"finished": "✓", "failed": "✗", "all failed": "✗", "vanished": "?", "cancelled": "–", "queued": "…"}
"""Marks in front of a state in the list, which cannot draw the icons of a badge."""
HIDDEN = ("cause", "progress")
"""Columns that are seldom needed, and hidden by default."""
SELECTED = key("selected")
"""The parameter of the address with the numbers of the selected runs, such as `12,15`."""


def draw(filter: Filter) -> None:
    """Draw one page of the runs that match the filter."""
    store = backend.store()
    total = _count(store, filter)
    if not total and filter == Filter(order=filter.order):
        st.info("No runs yet.", icon=":material/history:")
        tour.draw()
        return
    if not total:
        st.info("No runs match these filters.", icon=":material/filter_alt:")
        return
    place = st.container()
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        size = st.selectbox(
            "Runs per page", SIZES, 1, key=key("size"), bind="query-params", label_visibility="collapsed", width=100,
            on_change=go_to_first_page,
        )  # fmt: skip
        page = st.pagination(-(-total // size), key=key("page"), bind="query-params")
        first = (page - 1) * size
        st.caption(f"{first + 1:,} to {min(first + size, total):,} of {plural(total, 'run')}")
        _choose_columns()
        label, help = plural(total, "run"), "One line per run, for the runs on all pages."
        download_table(lambda: bulk.runs(store, filter), "runs", key=key("file"), label=label, help=help)
    with place:
        _draw_page(filter, size, first)


def _choose_columns() -> None:
    """Draw the choice of the table's columns. `_table` leaves out columns without values."""
    config = _config()
    with st.popover("Columns", icon=":material/view_column:"):
        st.pills(
            "Columns",
            [name for name in frames.RUN_COLUMNS if name in config],
            selection_mode="multi",
            default=_default_columns(),
            key=key("columns"),
            bind="query-params",
            format_func=lambda name: config[name]["label"],
            label_visibility="collapsed",
        )
        st.caption("A column is shown if a run on this page has a value for it.")
    rerun.hold(key("columns"))


def _default_columns() -> list[str]:
    return [name for name in frames.RUN_COLUMNS if name in _config() and name not in HIDDEN]


@st.fragment
def _draw_page(filter: Filter, size: int, first: int) -> None:
    """Draw a page of runs and the actions for the selected ones. A selection redraws only this fragment."""
    runs = _page(backend.store(), filter, size, first)
    actions = st.container()
    selected = _table(runs)
    with actions:
        run_actions.draw_actions([run for run in runs if run.id in selected])
    st.caption(
        "Click a run's number to open it. Select runs to compare, tag, download, restart or delete them. "
        "With the keyboard, Shift+Space selects a row."
    )
    run_actions.draw_dialog()


@st.cache_data(max_entries=64, show_spinner=False, hash_funcs=backend.BY_VERSION)
def _count(store: Store, filter: Filter) -> int:
    """Return the number of runs that match, cached because all pages of the list need it."""
    return store.count(filter)


@st.cache_resource(max_entries=8, show_spinner=False, hash_funcs=backend.BY_VERSION)
def _page(store: Store, filter: Filter, size: int, first: int) -> list[Run]:
    """Return one page of runs, cached so that a selection does not read them again."""
    return store.find(filter, limit=size, offset=first)


def _table(runs: list[Run]) -> list[int]:
    """Draw the runs of a page and return the numbers of the selected ones. A click on a number opens the run.

    The address holds the selection, so that Back returns to it. Runs that are not on this page are not selected.
    """
    if (click := st.session_state.get(key("open"))) is not None:
        open_run(click.label)
    frame = frames.runs(runs)  # not cached, because the duration of a running run changes
    frame = in_percent(frame, ("progress",))
    frame["state"] = [f"{_mark(run)} {run.outcome}" for run in runs]
    shown = frame.assign(id=frame["id"].astype(str)).set_index(frame["id"].rename("run"))
    chosen, config = st.session_state.get(key("columns"), _default_columns()), _config()
    columns = [name for name in chosen if name in config and not all(map(_is_empty, frame[name]))]
    if drawn_key(key("table")) not in st.session_state or rerun.is_history_navigation():
        st.session_state[SELECTED] = comparison_link.parameter_values(SELECTED)
    selected = st.session_state[SELECTED]  # not from the address, which may be older than the last click
    options: dict[str, Any] = {"help": "Open this run.", "pinned": True, "width": 70, "type": "secondary"}
    number = st.column_config.ButtonColumn("Run", key=key("open"), **options)
    return [
        int(run)
        for run in results_table(
            shown[["id", *(name for name in frames.RUN_COLUMNS if name in columns)]],
            key=key("table"),
            alt="Runs on this page",
            pinned="id",
            selected=[run.id for run in runs if str(run.id) in selected],
            on_select=_select,
            config=config | {"id": number},
        )
    ]


def _select(run_ids: Sequence[int]) -> None:
    """Store the selected runs, in the address too."""
    st.session_state[SELECTED] = selected = [str(run_id) for run_id in run_ids]
    if selected:
        st.query_params[SELECTED] = ",".join(selected)
    else:
        st.query_params.pop(SELECTED, None)


def _is_empty(value: Any) -> bool:
    return value in ("", []) or value != value  # NaN is the only value that differs from itself


def _mark(run: Run) -> str:
    """Return the mark of a run's state: `!` for a finished run with some failed rows, `▸` for an active one."""
    return MARKS.get(run.outcome, "!" if run.state is State.FINISHED else "▸")


def _config() -> dict[str, Any]:
    column = st.column_config
    owner = {"owner": column.TextColumn("Owner", width="small")} if sign_in.configured() else {}
    return owner | {
        "kind": column.TextColumn("Kind", width="small"),
        "what": column.TextColumn("Request", width=220),
        "state": column.TextColumn("State", width=110),
        "train_loss": column.NumberColumn(
            "Training loss", format="%.4g", width=95, help="Mean training loss of the last epoch."
        ),
        "clip_val_loss": column.NumberColumn(
            "Held-out loss",
            format="%.4g",
            width=100,
            help="Loss on the held-out pairs at the last validation of the training. It grows with the batch size.",
        ),
        "zeroshot_top1": column.NumberColumn(
            "Top-1",
            format=PERCENT,
            width=70,
            help="Top-1 accuracy: zero-shot where it was measured, else that of a probe. An evaluation of several "
            "models or data sets has no common one: open it to see each. If a training measured none, compare "
            "held-out losses.",
        ),
        "mean_average_precision": column.NumberColumn(
            "mAP",
            format=PERCENT,
            width=70,
            help="Mean average precision of zero-shot, in place of top-1 if images have several classes.",
        ),
        "latency_ms": column.NumberColumn(
            "Latency (ms)",
            format="%,.3g",
            width=95,
            help="Median latency of a run with one timed row. A run of several models or variants has no common "
            "latency: open it to see each.",
        ),
        "flags": column.TextColumn("Flags", width=95, help="Conditions that limit what a timing of the run shows."),
        "tags": column.ListColumn("Tags", width="small"),
        "progress": column.ProgressColumn("Done", format=WHOLE_PERCENT, max_value=100, width="small"),
        "created": column.DatetimeColumn("Submitted", format="YYYY-MM-DD HH:mm [UTC]"),
        "duration_s": column.NumberColumn("Duration (s)", format="%,.3g", width="small"),
        "device": column.TextColumn("Device", width="small"),
        "cause": column.TextColumn("Cause", width="small"),
        "error": column.TextColumn("Error"),
    }
