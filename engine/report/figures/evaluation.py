"""What evaluations have written to files, read and drawn: confusion matrices, predictions, maps of embeddings."""

import csv
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from engine.report.style import COLOURS, GREY, LEGEND, MARGIN, digits, family_styles, text
from engine.results.embeddings import Embeddings
from engine.roots import Roots, open_within

WRITTEN_OUT = 20
"""Up to so many classes, a confusion matrix has its counts written into its cells."""
MOST_CLASSES = 60
"""Of a confusion matrix that is drawn."""
MOST_DRAWN = 2000
"""Images, and captions, of a map."""
MOST_COLOURED = 24
"""Classes that colour and shape can tell apart."""
PREDICTIONS = ("source", "index", "true", "predicted", "confidence")


def read_confusion(path: Path, roots: Roots = None) -> pd.DataFrame:
    """Read (C, C) counts: true classes as index, predicted ones as columns.

    roots: below which the file must lie. Errors: OSError, ValueError of another file.
    """
    with TextIOWrapper(open_within(path, roots), newline="", encoding="utf-8") as file:
        head, *lines = list(csv.reader(file)) or [[]]
    if len(head) < 2 or [line[0] for line in lines if line] != head[1:]:
        raise ValueError(f"{path.name} is no confusion matrix: its rows and columns are not the same classes")
    if any(len(line) != len(head) for line in lines):
        raise ValueError(f"{path.name} is no confusion matrix: its lines are not equally long")
    counts = np.array([[int(cell) for cell in line[1:]] for line in lines], dtype=np.int64)
    return pd.DataFrame(counts, index=head[1:], columns=head[1:])


def read_predictions(path: Path, roots: Roots = None) -> pd.DataFrame:
    """Read source, index, true, predicted, confidence; and whether it is `right`. Errors: as of read_confusion."""
    words = dict.fromkeys(("source", "true", "predicted"), str)
    with open_within(path, roots) as file:
        frame = pd.read_csv(file, dtype=words, keep_default_na=False)
    if missing := [name for name in PREDICTIONS if name not in frame]:
        raise ValueError(f"{path.name} lacks the columns {', '.join(missing)}")
    frame = frame.astype({"index": int, "confidence": float})
    return frame.assign(right=frame["true"] == frame["predicted"])


def confusion(counts: pd.DataFrame, *, source: str = "") -> go.Figure:
    """Return a cell per true and predicted class, coloured by its share of the true class; of many classes, only
    those that are mistaken most often. counts: of read_confusion."""
    values, totals, names = _most_mistaken(counts)
    shares = np.divide(values, totals[:, None], out=np.zeros(values.shape), where=totals[:, None] > 0)
    places, written = list(range(len(names))), len(names) <= WRITTEN_OUT
    hovers = [
        [
            f"true <b>{true}</b>, taken for <b>{guess}</b><br>{values[row, column]:,} of {totals[row]:,}"
            for column, guess in enumerate(names)
        ]
        for row, true in enumerate(names)
    ]
    figure = go.Figure(
        go.Heatmap(
            z=shares,
            x=places,  # two classes may have one name
            y=places,
            text=np.where(values > 0, values.astype(str), "") if written else None,
            texttemplate="%{text}" if written else None,
            hovertext=hovers,
            hovertemplate=f"%{{hovertext}} (%{{z:.1%}})<br>{text(source)}<extra></extra>",
            colorscale=[[0, "rgba(0,114,178,0.04)"], [1, COLOURS[0]]],
            zmin=0,
            zmax=1,
            xgap=1,
            ygap=1,
            colorbar={"title": {"text": "of the true"}, "tickformat": ".0%", "thickness": 12},
        )
    )
    ticks = {"tickvals": places, "ticktext": names, "showgrid": False, "zeroline": False, "automargin": True}
    figure.update_layout(height=min(900, 150 + 28 * len(names)), margin=MARGIN, uirevision="confusion")
    figure.update_xaxes(**ticks, title_text="Predicted", tickangle=-45 if len(names) > 12 else 0)
    figure.update_yaxes(**ticks, title_text="True", autorange="reversed")
    return figure


def _most_mistaken(counts: pd.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.int64], list[str]]:
    """Counts, how often each class truly occurs, and names: of all classes, or of those with most mistakes."""
    values = counts.to_numpy()
    totals = values.sum(axis=1)
    names = [text(name) for name in counts.columns]
    if len(names) <= MOST_CLASSES:
        return values, totals, names
    mistakes = totals + values.sum(axis=0) - 2 * values.diagonal()
    kept = np.sort(np.argsort(-mistakes, kind="stable")[:MOST_CLASSES])
    return values[np.ix_(kept, kept)], totals[kept], [names[place] for place in kept]


def mistakes(counts: pd.DataFrame, most: int = 10) -> pd.DataFrame:
    """Return what is taken for what most often: true, predicted, count, share of the true class. counts: of
    read_confusion."""
    values = counts.to_numpy()
    totals, wrong = values.sum(axis=1), values.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:most]
    rows, columns = np.unravel_index(order, wrong.shape)
    found = [
        {
            "true": counts.index[row],
            "predicted": counts.columns[column],
            "count": int(wrong[row, column]),
            "share": float(wrong[row, column] / totals[row]),
        }
        for row, column in zip(rows, columns, strict=True)
        if wrong[row, column]
    ]
    return pd.DataFrame(found, columns=["true", "predicted", "count", "share"])


def prompts(classes: Sequence[str], templates: Sequence[str], most: int = 6) -> tuple[list[str], int]:
    """Some of the prompts that stand for classes, from different templates, and how many there are in all."""
    if not templates:
        templates = ["a photo of a {}."]  # the first of open_clip's
    count = len(classes) * len(templates)
    some = [
        templates[place % len(templates)].replace("{}", classes[place % len(classes)])
        for place in range(min(most, count))
    ]
    return list(dict.fromkeys(some)), count


def pca(points: NDArray[Any], components: int = 2) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Coordinates (N, components) along the directions in which points (N, D) vary most, and each one's share of the
    whole variance (components,). By singular value decomposition of the centred points; of each direction's two signs,
    the one whose largest weight is positive."""
    centred = points.astype(np.float64) - points.mean(axis=0, dtype=np.float64)
    _, lengths, directions = np.linalg.svd(centred, full_matrices=False)
    directions = directions[:components]
    largest = np.abs(directions).argmax(axis=1)
    directions = directions * np.sign(directions[np.arange(len(directions)), largest])[:, None]
    total = float((lengths**2).sum())
    shares = lengths[:components] ** 2 / total if total else np.zeros(len(directions))
    return centred @ directions.T, shares


def place(found: Embeddings, *, aligned: bool = True) -> tuple[pd.DataFrame, NDArray[np.float64]]:
    """Return where images and captions are on a map, a line each: x, y, what, label, name; and the axes' shares of
    variance.

    aligned: images and captions are each centred on their own mean, since CLIP keeps the two apart, and else the gap
    between them is all that a map shows. Of many, evenly spaced ones.
    """
    chosen, chosen_texts = _some(len(found.images)), _some(len(found.texts))
    images, texts = (part.astype(np.float64) for part in (found.images[chosen], found.texts[chosen_texts]))
    if aligned:
        images, texts = images - images.mean(axis=0), texts - texts.mean(axis=0)
    coordinates, shares = pca(np.concatenate([images, texts]))
    names = [*(found.sources[at] for at in chosen), *(found.captions[at] for at in chosen_texts)]
    labels = [*(found.labels[at] for at in chosen), *(found.text_labels[at] for at in chosen_texts)]
    what = ["image"] * len(chosen) + ["caption"] * len(chosen_texts)
    axes = dict(zip("xy", [*coordinates.T, np.zeros(len(names))], strict=False))
    return pd.DataFrame({**axes, "what": what, "label": labels, "name": names}), np.append(shares, 0.0)[:2]


def _some(count: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, count - 1, min(count, MOST_DRAWN)).astype(np.int64))


def embeddings(places: pd.DataFrame, shares: Sequence[float], *, source: str = "") -> go.Figure:
    """Return the map: images as points, captions as larger signs with a rim, coloured by class where there are few,
    whose names stand in the middle of their images.

    places, shares: of place.
    """
    labels = sorted(set(places["label"]))
    if len(labels) > MOST_COLOURED:
        labels, places = [""], places.assign(label="")
    styles = family_styles(labels)
    figure = go.Figure()
    for (what, label), rows in places.groupby(["what", "label"], sort=False):
        colour, symbol = styles[str(label)]
        place = labels.index(str(label))
        sign = {"color": colour, "symbol": symbol, "size": 6, "opacity": 0.75}
        if what == "caption":
            sign |= {"size": 12, "opacity": 1, "line": {"width": 1.5, "color": GREY}}
        figure.add_scatter(
            x=rows["x"],
            y=rows["y"],
            mode="markers",
            name=text(label) if label else f"{what}s",
            legendgroup=str(label),
            legendrank=1000 + place,
            showlegend=what == "image" or not label,
            marker=sign,
            customdata=np.stack([rows["name"].map(_short)], axis=-1),
            hovertemplate=f"{what} <b>%{{customdata[0]}}</b><br>{text(label)}<br>{text(source)}<extra></extra>",
        )
    for label, rows in places[places["what"] == "image"].groupby("label"):
        middle = rows[["x", "y"]].median()
        look = {"showarrow": False, "font": {"size": 13, "weight": 600}, "bgcolor": "rgba(128,128,128,0.15)"}
        figure.add_annotation(x=middle["x"], y=middle["y"], text=text(label), visible=bool(label), **look)
    figure.update_layout(height=520, margin=MARGIN, legend=LEGEND, showlegend=True, uirevision="map")
    for update, number in ((figure.update_xaxes, 0), (figure.update_yaxes, 1)):
        share = digits(100 * float(shares[number]))
        update(title_text=f"Component {number + 1} ({share} % of the variance)", zeroline=False, automargin=True)
    return figure


def _short(name: str) -> str:
    return text(name if len(name) <= 80 else f"…{name[-79:]}")
