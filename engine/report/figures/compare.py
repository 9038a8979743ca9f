"""Draw the values of several runs or models as bars beside each other."""

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from engine.report.figures.speed import times
from engine.report.style import COLOURS, digits, horizontal, text, write_beside


def bars(
    frame: pd.DataFrame,
    subjects: Sequence[str],
    baseline: str,
    title: str,
    *,
    described: Mapping[str, str] | None = None,
    ratio: bool = True,
) -> go.Figure:
    """Return one bar per value, labelled with it and with its ratio to the baseline's, if the baseline has one.

    frame: rows of one metric, from compare.values.beside. described: text per subject, for hovers.
    """
    figure, beside = go.Figure(), []
    single = len(frame) == 1
    names = {
        (line["what"], subject): text(subject) if single else f"{text(line['what'])} · {text(subject)}"
        for line in frame.to_dict("records")
        for subject in subjects
        if pd.notna(line[subject])
    }
    for place, subject in enumerate(subjects):
        drawn = frame.dropna(subset=[subject])
        labels = [names[what, subject] for what in drawn["what"]]
        detail = text((described or {}).get(subject, ""))
        hover = f"<b>%{{y}}</b><br>{text(title)}: %{{x:,.4~g}}<br>{detail}<extra></extra>"
        trace = {"x": drawn[subject], "y": labels, "orientation": "h", "marker_color": COLOURS[place % len(COLOURS)]}
        figure.add_bar(**trace, name=text(subject), hovertemplate=hover)
        for label, value, base in zip(labels, drawn[subject], drawn[baseline], strict=True):
            value_text = digits(value)
            value_text += f"  <i>{times(value / base)}</i>" if ratio and subject != baseline and base > 0 else ""
            beside.append((max(value, 0), label, value_text))
    widest = write_beside(figure, beside)
    horizontal(figure, list(names.values()), text(title))
    figure.update_layout(barmode="overlay", showlegend=not single)
    figure.update_xaxes(range=[min(0.0, float(frame[list(subjects)].min().min())), widest])
    return figure
