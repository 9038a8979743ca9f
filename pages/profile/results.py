"""Results of a profile run: the table of rows, charts, and one card per selected model."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from engine.report import frames
from engine.report.figures import profile, scatter
from engine.report.quantities import COMPARABLE, title
from engine.report.style import digits
from engine.results import ProfileRow, detail_name
from engine.specs import ProfileSpec
from engine.specs.fields.building import OPTIONS, changes
from engine.store import Run
from pages.shared import backend, module_map
from pages.shared.chart.chart import chart, choice, tabs
from pages.shared.runs import view
from pages.shared.table import csv_rows, download, download_rows, download_table, failures, results_table
from pages.shared.text import plain

COLUMNS = (
    *("model", "image_size", "gmacs", "mparams"),  # visible on a phone
    *("batch_size", "macts", "image_gmacs", "text_gmacs", "fvcore_gmacs", "library", *OPTIONS),
    *("intensity", "weights_mb", "inference_peak_mb", "training_peak_mb", "status", "error", "notes", "seconds"),
)
BARS = ("gmacs", "fvcore_gmacs", "mparams", "macts", "fvcore_macts")
VALUES = (
    *("mparams", "gmacs", "gflops", "macts", "fvcore_gmacs", "fvcore_macts"),
    *("intensity", "inference_peak_mb", "training_peak_mb"),
)
# Number of bars that are drawn. A bar takes 0.2 ms and 26 px, and a run may have 100,000 rows.
MOST_BARS = 500
SWEEP_METRICS = ("gmacs", "macts", "inference_peak_mb", "training_peak_mb", "traffic_mb", "intensity", "fvcore_gmacs")


def draw(run: Run, rows: Sequence[ProfileRow]) -> None:
    """Draw the results of the rows so far."""
    frame = frames.profile(rows)
    failed = int((frame["status"] != "ok").sum())
    names = _names(frame)
    shown = frame.set_index(names).dropna(axis=1, how="all")
    shown = shown.drop(columns=["model_kwargs"] if (frame["model_kwargs"] == "").all() else [])
    columns = dict.fromkeys(["model", *["error"] * bool(failed), *COLUMNS])  # an error is visible without scrolling
    selected = results_table(
        shown, key=f"rows_{run.id}", alt="Counted models, cheapest first", columns=list(columns), selectable=True
    )
    with st.container(horizontal=True, vertical_alignment="center"):
        _downloads(run)
        failures(rows, "could not be counted")
    if len(frame) - failed > 1:
        _comparison(run, frame.assign(name=names))
    by_key = {(row.name, row.image_size, row.batch_size): row for row in rows}
    keys = zip(frame["library"] + ":" + frame["model"], frame["image_size"], frame["batch_size"], strict=True)
    by_name = {name: by_key[key] for name, key in zip(names, keys, strict=True)}
    cards = [by_name[name] for name in selected or (list(names) if len(rows) == 1 else [])]
    if not cards:
        has_modules = any(row.detail_file for row in rows)
        st.caption(f"Select rows to see {'modules, ' * has_modules}operators and what was not counted.")
    for row in cards:
        card(run, row)


def _names(frame: pd.DataFrame) -> "pd.Series[str]":
    """Return a name for each row: its model, with image size and batch size where a model has several."""
    models = frame["library"] + ":" + frame["model"]
    names = models
    for column, template in (("image_size", " @ {}"), ("batch_size", " batch {}")):
        if frame.groupby(models)[column].nunique().max() > 1:
            names = names + frame[column].map(template.format)
    return names


def _downloads(run: Run) -> None:
    assert isinstance(run.spec, ProfileSpec)
    with download_rows(run):
        for counter in [name for name in frames.REFERENCE if run.spec.counter in (name, "both")]:
            label, file = f"CSV as open_clip's profiler ({counter})", f"profile-{run.id}-{counter}.csv"
            content = csv_rows(run, partial(frames.reference, counter=counter))
            download(label, content, file, icon=None, key=f"{counter}_{run.id}")


def _comparison(run: Run, frame: pd.DataFrame) -> None:
    """Draw one metric of all models as bars, or two metrics as a scatter plot."""
    assert isinstance(run.spec, ProfileSpec)
    source = f"run {run.id}, counter {run.spec.counter} on {run.spec.device}"
    swept = [name for name in ("image_size", "batch_size") if len(getattr(run.spec, name)) > 1]
    contents = {"Sweep": lambda: _sweep(run, frame, swept, source)} if swept else {}
    contents |= {"Bars": lambda: _bars(run, frame, source), "Scatter": lambda: _scatter(run, frame, source)}
    tabs(contents, key=f"compare_{run.id}", bind="query-params")


def _sweep(run: Run, frame: pd.DataFrame, swept: Sequence[str], source: str) -> None:
    columns = [column for column in SWEEP_METRICS if frame[column].notna().any()]
    with st.container(horizontal=True):
        x = st.selectbox("X axis", swept, format_func=title, key=f"sweep_x_{run.id}", bind="query-params", width=200)
        y = st.selectbox("Y axis", columns, format_func=title, key=f"sweep_y_{run.id}", bind="query-params", width=300)
    alt = f"{title(y)} by {title(x)}, one line per model"
    chart(profile.sweep(frame, x, y, source=source), key=f"sweep_{run.id}", alt=alt)


def _bars(run: Run, frame: pd.DataFrame, source: str) -> None:
    columns = [column for column in BARS if frame[column].notna().any()]
    column = choice("Metric", columns, format_func=title, key=f"bars_{run.id}", bind="query-params")
    alt = f"{title(column)} of each model, split into towers"
    if (counted := int(frame[column].notna().sum())) > MOST_BARS:
        st.caption(f"The {MOST_BARS:,} largest of {counted:,} rows. The table and Scatter have all.")
        frame = frame.nlargest(MOST_BARS, column)
    chart(profile.bars(frame, column, source=source), key=f"bars_chart_{run.id}", alt=alt)


def _scatter(run: Run, frame: pd.DataFrame, source: str) -> None:
    choices = [column for column in COMPARABLE if column in frame and frame[column].notna().any()]
    with st.container(horizontal=True):
        x = st.selectbox("X axis", choices, format_func=title, key=f"x_{run.id}", bind="query-params", width=300)
        y = st.selectbox("Y axis", choices, 1, format_func=title, key=f"y_{run.id}", bind="query-params", width=300)
    figure = scatter.scatter(frame, x, y, styles=backend.family_colours(), source=source)
    chart(figure, key=f"scatter_{run.id}", alt=f"{title(y)} against {title(x)} of the counted models")


def card(run: Run, row: ProfileRow) -> None:
    """Draw one model: its main values, and tabs with details."""
    name = f"{row.library}:{row.model}"
    with st.container(border=True):
        setting = f" at {row.image_size} px" * bool(row.image_size) + f", batch {row.batch_size}" * (row.batch_size > 1)
        st.header(plain(name + setting), anchor=False)
        if row.status != "ok":
            st.error(plain(row.error), title=row.status.replace("_", " ").capitalize(), icon=":material/error:")
            return
        _values(row)
        if row.complete is False:
            st.warning(plain("; ".join(row.notes)), icon=":material/warning:", title="Incomplete")
        _tabs(run, row, f"{run.id}_{name}_{row.image_size}_{row.batch_size}")


def _tabs(run: Run, row: ProfileRow, tag: str) -> None:
    """Draw the tabs of a card. A model with one tower has no tab for towers."""
    towers = frames.towers(dict(row))
    contents = {
        "Towers": lambda: module_map.draw_towers(towers, tag),
        "Modules": lambda: _modules(run, row, tag),
        "Operators": lambda: _operators(row, tag),
        "Cross-check": lambda: _cross_check(run, row, tag),
    }
    if len(towers) <= 2:  # one tower and the whole model
        del contents["Towers"]
    tabs(contents, key=f"tabs_{tag}")


def _values(row: ProfileRow) -> None:
    with st.container(horizontal=True):
        for column in VALUES:
            if (value := getattr(row, column)) is not None:
                st.metric(title(column), digits(value), width="content")
    settings = [f"counter {row.counter} on {row.device_used or row.device}", f"batch {row.batch_size}", row.precision]
    if row.context_length:
        settings.append(f"{row.context_length} text tokens")
    settings += [changes(row)] if changes(row) else []
    st.caption(plain("; ".join([*settings, *row.notes])))


def _modules(run: Run, row: ProfileRow, tag: str) -> None:
    frame = frames.read_modules(backend.folder(run), row.detail_file or detail_name(row.library, row.model))
    if frame is None:
        if row.counter == "fvcore":
            st.caption("fvcore does not count by module. A count with both counters keeps a table of modules.")
            _count_again(run, row, "Count with both counters", "compare_arrows", f"detail_{tag}", counter="both")
            return
        st.caption("This run has no table of modules that can be read. A new count of this model alone keeps one.")
        _count_again(run, row, "Count this model again", "account_tree", f"detail_{tag}")
        return
    module_map.draw(frame, tag, f"{row.model}-{row.image_size}-batch{row.batch_size}-modules")


def _operators(row: ProfileRow, tag: str) -> None:
    frame = frames.operators(row)
    if frame.empty:
        st.caption("This counter keeps no table of operators.")
        return
    chart(profile.operators(frame), key=f"operators_{tag}", alt="Share of MACs and traffic by operator")
    config = {"operator": st.column_config.Column("Operator", pinned=True, width="medium")}
    results_table(frame, key=f"operators_table_{tag}", alt="Calls, work and bytes by operator", config=config)
    stem = f"{row.model}-{row.image_size}-batch{row.batch_size}-operators"
    download_table(lambda: frame, stem, key=f"operators_file_{tag}", label="operators")
    st.caption(
        "Views, copies and elementwise operations count as 0. Minor operators have no formula but do only a few "
        "operations per element. Unknown operators have no formula and make a count incomplete."
    )
    if row.uncounted:
        uncounted = ", ".join(f"{operator} ({calls})" for operator, calls in row.uncounted.items())
        st.caption(plain(f"Not counted, with number of calls: {uncounted}"))


def _cross_check(run: Run, row: ProfileRow, tag: str) -> None:
    if row.fvcore_gmacs is not None:
        frame = frames.differences(row)
        if row.counter == "fvcore":
            st.caption(
                "This run has no count by the torch counter, so there is nothing to compare. Run with the counter "
                "*both* to get the comparison."
            )
            _count_again(run, row, "Count with both counters", "compare_arrows", f"check_{tag}", counter="both")
        elif frame.empty:
            st.caption("fvcore and the torch counter agree on every operator.")
        else:
            results_table(frame, key=f"differences_{tag}", alt="Differences between the counters", pinned="operator")
        if row.fvcore_unsupported:
            skipped = ", ".join(f"{operator} ({calls})" for operator, calls in row.fvcore_unsupported.items())
            st.caption(plain(f"fvcore skipped: {skipped}"))
        return
    st.caption("fvcore traces the real model on the CPU, with its weights in memory. A table explains each difference.")
    changed = {"counter": "both", "device": "cpu"}
    _count_again(run, row, "Cross-check with fvcore", "compare_arrows", f"check_{tag}", **changed)


def _count_again(run: Run, row: ProfileRow, label: str, icon: str, key: str, **changed_fields: Any) -> None:
    """Draw the button that counts this one model again with some fields changed, and opens the run."""
    if not (backend.may_start() and st.button(label, key=key, icon=f":material/{icon}:")):
        return
    place = {"models": row.name, "image_size": row.image_size, "batch_size": row.batch_size}
    if not run.spec.model_dump()["image_size"]:
        del place["image_size"]
    fields = run.spec.model_dump() | place | changed_fields
    view.submit_and_open(ProfileSpec.model_validate(fields))
