"""Why a compiled model is as fast as it is: graph breaks, recompilations, and the slowest operators of a trace."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st

from engine.report.compare.rows import full_label
from engine.results import BenchmarkRow
from engine.roots import file_within, open_within
from engine.store import Run
from pages.shared import backend
from pages.shared.table import PERCENT, download, in_percent

SLOWEST = {
    "name": st.column_config.TextColumn("Kernel or operator", width="large"),
    "calls": st.column_config.NumberColumn("Calls", format="%,.3g", help="Number of calls per call of the model."),
    "ms": st.column_config.NumberColumn(
        "Own time (ms)",
        format="%,.3g",
        help="Time per call of the model, without operators inside it, with the profiler's overhead.",
    ),
    "share": st.column_config.ProgressColumn("Share", format=PERCENT, min_value=0, max_value=100),
}


def draw_breaks(rows: Sequence[BenchmarkRow]) -> None:
    """Draw where and why torch.compile split the models, and why it compiled graphs again."""
    lines = [
        {"timing": full_label(row), "what": what, "reason": reason}
        for row in rows
        for what, reasons in (("graph break", row.graph_break_reasons), ("recompilation", row.recompile_reasons))
        for reason in reasons
    ]
    config = {"reason": st.column_config.TextColumn("Where and why", width="large")}
    st.dataframe(pd.DataFrame(lines), hide_index=True, column_config=config, alt="Graph breaks and recompilations")


def draw_slowest(run: Run, rows: Sequence[BenchmarkRow]) -> None:
    """Draw the slowest kernels or operators of one traced row, and the download of its trace."""
    traced = [row for row in rows if row.slowest or row.trace_file]
    by_label = {full_label(row): row for row in traced}
    row = by_label[st.selectbox("Timing", list(by_label), key=f"traced_{run.id}") or next(iter(by_label))]
    table = pd.DataFrame([operator.model_dump() for operator in row.slowest])
    config: dict[str, Any] = SLOWEST
    st.dataframe(
        in_percent(table, ["share"]), hide_index=True, column_config=config, alt="The slowest kernels or operators"
    )
    path, roots = backend.folder(run) / row.trace_file, backend.own_files(run)
    if row.trace_file and file_within(path, roots):

        def content() -> bytes:
            with open_within(path, roots) as file:
                return file.read()

        help = "Open it at ui.perfetto.dev, or in Chromium at chrome://tracing."
        download("Chrome trace", content, path.name, key=f"trace_{run.id}", help=help)
