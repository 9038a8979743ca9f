"""Compare values without intervals: counts, rates and accuracies of runs, or costs of models."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from engine.report.compare import values as compare_values
from engine.report.compare.values import PERCENT, How
from engine.report.figures import compare
from engine.report.quantities import CLIP_LABELS
from engine.report.quantities import title as known_title
from engine.results import Row
from engine.store import Run
from engine.words import plural
from pages.shared.chart.chart import chart
from pages.shared.runs import comparison_link
from pages.shared.table import download_table, results_table

FIRST = ("gmacs", "zeroshot_top1_percent", "acc1_percent", "image_to_text_r1_percent")
"""The chart starts with the first of these metrics that the rows have."""
CAPTIONS: dict[How, str] = {
    "ratio": "Ratios are relative to the baseline: 2 is twice as much. Counts are exact, so they have no interval.",
    "difference": "A difference is the value minus the value of the baseline. Differences of shares are in percentage "
    "points. Each value comes from one run with one seed.",
}
RATES = "Ratios are relative to the baseline: 2 is twice as much. Each rate is a median, shown without its spread."


def title(metric: str) -> str:
    """Return the title of a metric as other pages show it."""
    name = metric.removesuffix(PERCENT)
    label = CLIP_LABELS.get(name) or known_title(name)
    return f"{label} (%)" if name != metric else label


def draw(runs: Sequence[Run], rows: Mapping[int, Sequence[Row]]) -> None:
    """Draw the values of runs of one kind."""
    kind = runs[0].kind
    values = compare_values.of_runs(rows)
    failed = sum(row.status != "ok" for run_rows in rows.values() for row in run_rows)
    how = compare_values.HOW.get(kind, "ratio")
    caption = RATES if kind == "device" else CAPTIONS[how]
    st.header("Results", anchor=False)
    if failed:
        st.caption(f":material/error: {plural(failed, 'failed row')} left out. Open the runs to see why.")
    subjects = {f"run {run.id}": run.name or run.spec.summary for run in runs}
    side_by_side(values, subjects, how=how, caption=caption)


def side_by_side(
    values: pd.DataFrame, subjects: Mapping[str, str], *, how: How, caption: str, first: Sequence[str] = FIRST
) -> str:
    """Draw a chart of one metric and a table of all, and return the subject chosen as baseline.

    values: frame with the columns compare_values.LONG. subjects: description of each run or model, by label. first: as
    FIRST.
    """
    if values.empty:
        st.info("No values to compare yet.", icon=":material/table_view:")
        return next(iter(subjects))
    metrics = list(values["metric"].drop_duplicates())
    with st.container(horizontal=True, vertical_alignment="bottom"):
        baseline = comparison_link.baseline(list(subjects))
        index = next((metrics.index(name) for name in first if name in metrics), 0)
        metric = st.selectbox("Metric", metrics, index, format_func=title, key="compare_figure", bind="query-params")
    frame = compare_values.beside(values, list(subjects), baseline, how)
    if len(subjects) > 1 and (frame[list(subjects)].notna().sum(axis=1) < 2).all():
        message = "No row is in more than one of these columns: models, image sizes, batch sizes or tasks differ."
        st.info(message, icon=":material/info:")
    drawn, ratio = frame[frame["metric"] == metric], how == "ratio"
    figure = compare.bars(drawn, list(subjects), baseline, title(metric), described=subjects, ratio=ratio)
    chart(figure, key="compare_bars", alt=f"{title(metric)} of {', '.join(subjects)}")
    shown = frame.assign(metric=frame["metric"].map(title))
    shown = shown.drop(columns="what") if (shown["what"] == "").all() else shown
    numbers = {name: st.column_config.NumberColumn(name, format="%,.4g") for name in subjects}
    format = "%,.3g×" if how == "ratio" else "%+,.3g"
    for subject in [name for name in subjects if name != baseline]:  # a header with both names would be cut
        name = compare_values.against(subject, baseline, how)
        numbers[name] = st.column_config.NumberColumn(f"{subject}, {how}", format=format, help=name)
    metric_column: dict[str, Any] = {"metric": st.column_config.Column("Metric", pinned=True)}
    config = metric_column | numbers
    results_table(shown, key="compare_values", alt="Values side by side", pinned="metric", config=config)
    st.caption(caption)
    download_table(lambda: frame.assign(label=frame["metric"].map(title)), "compare", key="compare")  # with units
    return baseline
