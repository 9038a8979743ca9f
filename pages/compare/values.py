"""Counts, rates and accuracies of several runs, or costs of several models, side by side."""

from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st

from engine.report.compare import values as compare_values
from engine.report.compare.values import PERCENT, How
from engine.report.figures import compare
from engine.report.quantities import QUANTITIES
from engine.report.quantities import title as known_title
from engine.results import Row
from engine.store import Run
from pages.clip import curves
from pages.shared import comparison_link
from pages.shared.chart.chart import chart
from pages.shared.comparison_link import BIND
from pages.shared.download import table
from pages.shared.table import results_table

TITLES = curves.TITLES | {
    "acc1": "Top-1 accuracy",
    "acc5": "Top-5 accuracy",
    "mean_per_class_recall": "Mean recall per class",
    "image_to_text_r10": "Image → text R@10",
    "text_to_image_r10": "Text → image R@10",
    "gflop_per_s": "Rate (GFLOP/s)",
    "gb_per_s": "Rate (GB/s)",
}
FIRST = ("gmacs", "zeroshot_top1_percent", "acc1_percent", "image_to_text_r1_percent")
"""What is drawn unless something else is asked for."""
TOLD: dict[How, str] = {
    "ratio": "Ratios are to the baseline: 2 is twice as much. Counts are exact, so there is no interval.",
    "difference": "Differences are to the baseline, those of shares in points. Each figure is of one run, one seed.",
}
RATES = "Ratios are to the baseline: 2 is twice as much. Each rate is a median; how much medians differ is not told."


def title(figure: str) -> str:
    """As other pages call it."""
    name = figure.removesuffix(PERCENT)
    named = known_title(name) if name in QUANTITIES else TITLES.get(name) or known_title(name)
    return f"{named} (%)" if name != figure else named


def draw(runs: Sequence[Run], rows: Mapping[int, Sequence[Row]]) -> None:
    """Of runs of one kind whose figures need no interval."""
    kind = runs[0].kind
    values = compare_values.of_runs(rows)
    failed = sum(row.status != "ok" for each in rows.values() for row in each)
    how = compare_values.HOW.get(kind, "ratio")
    told = RATES if kind == "device" else TOLD[how]
    st.header("Figures", anchor=False)
    if failed:
        st.caption(
            f":material/error: {failed} rows have failed, and have no figures here; the runs themselves say why."
        )
    described = {f"run {run.id}": run.name or run.spec.summary for run in runs}
    side_by_side(values, described, how=how, told=told)


def side_by_side(values: pd.DataFrame, subjects: Mapping[str, str], *, how: How, told: str) -> str:
    """One chart of a figure of one's choice, and the table of all; answers the subject chosen as baseline.

    values: compare_values.LONG; subjects: what each is.
    """
    if values.empty:
        st.info("There are no figures to compare yet.", icon=":material/table_view:")
        return next(iter(subjects))
    figures = list(values["figure"].drop_duplicates())
    with st.container(horizontal=True, vertical_alignment="bottom"):
        baseline = comparison_link.baseline(list(subjects))
        first = next((figures.index(name) for name in FIRST if name in figures), 0)
        figure = st.selectbox("Drawn", figures, first, format_func=title, key="compare_figure", bind=BIND)
    frame = compare_values.beside(values, list(subjects), baseline, how)
    chart(
        compare.bars(
            frame[frame["figure"] == figure],
            list(subjects),
            baseline,
            title(figure),
            described=subjects,
            ratio=how == "ratio",
        ),
        key="compare_bars",
        alt=f"{title(figure)} of {', '.join(subjects)}",
    )
    shown = frame.assign(figure=frame["figure"].map(title))
    shown = shown.drop(columns="what") if (shown["what"] == "").all() else shown
    numbers = {name: st.column_config.NumberColumn(name, format="%.4g") for name in subjects}
    against = compare_values.against(frame, list(subjects), baseline, how)
    form = "%.3g×" if how == "ratio" else "%+.3g"
    numbers |= {name: st.column_config.NumberColumn(name, format=form) for name in against}
    results_table(shown, key="compare_values", alt="Figures side by side", pinned="figure", config=numbers)
    st.caption(told)
    with st.container(horizontal=True):
        table(lambda: frame, "compare", key="compare")
    return baseline
