"""Read and draw the files of evaluations: confusion matrices, predictions, maps of embeddings."""

import csv
from collections.abc import Sequence
from io import TextIOWrapper
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from engine.report.style import GREY, LEGEND, MARGIN, digits, family_styles, text
from engine.results.embeddings import Embeddings
from engine.roots import Roots, open_within

WRITTEN_OUT = 20
"""Write the counts into the cells of a confusion matrix with at most this many classes."""
MOST_CLASSES = 60
"""Draw at most this many classes of a confusion matrix."""
MOST_DRAWN = 2000
"""Draw at most this many images, and as many captions, on a map."""
MOST_COLOURED = 24
"""Colour classes only if there are at most this many. More cannot be distinguished by colour and shape."""
PREDICTIONS = ("source", "index", "true", "predicted", "confidence")


def read_confusion(path: Path, roots: Roots = None) -> pd.DataFrame:
    """Read a confusion matrix: counts (C, C), with true classes as index and predicted ones as columns.

    roots: folders below which the file must lie. Errors: OSError; ValueError when the file is no confusion matrix.
    """
    problem, rows = f"{path.name} is no confusion matrix", list[NDArray[np.int64]]()
    other_classes = f"{problem}: its rows and columns are not the same classes"
    with TextIOWrapper(open_within(path, roots), newline="", encoding="utf-8") as file:
        lines = csv.reader(file)
        try:
            names = next(lines, [])[1:]
            for line in lines:  # one by one: the text of all lines takes several times the memory of the numbers
                if line[:1] != names[len(rows) : len(rows) + 1]:
                    raise ValueError(other_classes)
                if len(line) != len(names) + 1:
                    raise ValueError(f"{problem}: its lines are not equally long")
                rows.append(np.fromiter(map(int, line[1:]), np.int64, len(names)))
        except csv.Error as error:  # a quote that is never closed
            raise ValueError(f"{problem}: {error}") from error
    if not names or len(rows) != len(names):
        raise ValueError(other_classes)
    return pd.DataFrame(np.array(rows), index=names, columns=names)


def read_predictions(path: Path, roots: Roots = None) -> pd.DataFrame:
    """Read the columns PREDICTIONS, and add whether a prediction is `right`. Errors: as read_confusion."""
    frame = _table(path, roots, PREDICTIONS, dtype=dict.fromkeys(("source", "true", "predicted"), str))
    frame = frame.astype({"index": int, "confidence": float})
    return frame.assign(right=frame["true"] == frame["predicted"])


def read_average_precision(path: Path, roots: Roots = None) -> pd.DataFrame:
    """Read class, images and average_precision, the best first. Errors: as read_confusion."""
    frame = _table(path, roots, ("class", "images", "average_precision"), dtype={"class": str})
    frame = frame.astype({"images": int, "average_precision": float})
    return frame.sort_values("average_precision", ascending=False, kind="stable")


def _table(path: Path, roots: Roots, columns: Sequence[str], **options: Any) -> pd.DataFrame:
    """Read a CSV in which empty texts are no missing values. Errors: as read_confusion."""
    with open_within(path, roots) as file:
        frame: pd.DataFrame = pd.read_csv(file, keep_default_na=False, **options)
    if missing := [name for name in columns if name not in frame]:
        raise ValueError(f"{path.name} lacks the columns {', '.join(missing)}")
    return frame


def confusion(counts: pd.DataFrame, *, source: str = "") -> go.Figure:
    """Return a cell per true and predicted class, coloured by its share of the true class. counts: from read_confusion.

    With more than MOST_CLASSES classes, only those with the most mistakes are drawn.
    """
    values, totals, names = _most_mistaken(counts)
    shares = np.divide(values, totals[:, None], out=np.zeros(values.shape), where=totals[:, None] > 0)
    places, with_counts = list(range(len(names))), len(names) <= WRITTEN_OUT
    hovers = [
        [
            f"true <b>{true}</b>, taken for <b>{guess}</b><br>{values[row, column]:,} of {totals[row]:,}"
            for column, guess in enumerate(names)
        ]
        for row, true in enumerate(names)
    ]
    figure = go.Figure(
        go.Heatmap(
            z=100 * shares,
            x=places,  # positions, because two classes may have the same name
            y=places,
            text=np.where(values > 0, values.astype(str), "") if with_counts else None,
            texttemplate="%{text}" if with_counts else None,
            textfont={"color": "#0d1117"},  # readable on the whole colour scale in both themes
            hovertext=hovers,
            hovertemplate=f"%{{hovertext}} (%{{z:.1f}} %)<br>{text(source)}<extra></extra>",
            colorscale=[[0, "#EDF2F6"], [1, "#2E86CC"]],  # opaque, or Plotly writes dark on dark in the dark theme
            zmin=0,
            zmax=100,
            xgap=1,
            ygap=1,
            colorbar={"title": {"text": "Share of true class (%)", "side": "right"}, "thickness": 12},
        )
    )
    ticks = {"tickvals": places, "ticktext": names, "showgrid": False, "zeroline": False}
    figure.update_layout(height=min(900, 150 + 28 * len(names)), margin=MARGIN, uirevision="confusion")
    figure.update_xaxes(**ticks, title_text="Predicted", autotickangles=[0, -45, -90])
    figure.update_yaxes(**ticks, title_text="True", autorange="reversed")
    return figure


def _most_mistaken(counts: pd.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.int64], list[str]]:
    """Return counts, totals per true class and names: of all classes, or of the MOST_CLASSES with most mistakes."""
    values = counts.to_numpy()
    totals = values.sum(axis=1)
    names = [text(name) for name in counts.columns]
    if len(names) <= MOST_CLASSES:
        return values, totals, names
    mistakes = totals + values.sum(axis=0) - 2 * values.diagonal()
    chosen = np.sort(np.argsort(-mistakes, kind="stable")[:MOST_CLASSES])
    return values[np.ix_(chosen, chosen)], totals[chosen], [names[place] for place in chosen]


def mistakes(counts: pd.DataFrame, most: int = 10) -> pd.DataFrame:
    """Return the most frequent mistakes: true, predicted, count, share of the true. counts: from read_confusion."""
    values = counts.to_numpy()
    rows, columns = np.unravel_index(np.flatnonzero(values > 0), values.shape)
    wrong = rows != columns
    rows, columns = rows[wrong], columns[wrong]
    order = np.argsort(-values[rows, columns], kind="stable")[:most]
    rows, columns = rows[order], columns[order]
    found = {"true": counts.index[rows], "predicted": counts.columns[columns], "count": values[rows, columns]}
    return pd.DataFrame({**found, "share": values[rows, columns] / values.sum(axis=1)[rows]})


def prompts(classes: Sequence[str], templates: Sequence[str], most: int) -> tuple[list[str], int]:
    """Return some of the prompts for the classes, from different templates, and the number of all prompts."""
    count = len(classes) * len(templates)
    some = islice(zip(cycle(templates), cycle(classes)), min(most, count))
    return list(dict.fromkeys(template.replace("{}", name) for template, name in some)), count


def pca(points: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return coordinates (N, 2) on the two directions in which points (N, D) vary most, and their shares of variance.

    Shares (2,) are of the total variance. With N or D of 1, there is one direction. Method: singular value
    decomposition of the centred points. Each direction has the sign that makes its largest weight positive.
    """
    centred = points.astype(np.float64) - points.mean(axis=0, dtype=np.float64)
    _, lengths, directions = np.linalg.svd(centred, full_matrices=False)
    directions = directions[:2]
    largest = np.abs(directions).argmax(axis=1)
    directions = directions * np.sign(directions[np.arange(len(directions)), largest])[:, None]
    total = float((lengths**2).sum())
    shares = lengths[:2] ** 2 / total if total else np.zeros(len(directions))
    return centred @ directions.T, shares


def place(found: Embeddings, *, aligned: bool = True) -> tuple[pd.DataFrame, NDArray[np.float64]]:
    """Return the places of images and captions on a map, one per line, and the axes' shares of variance.

    Columns: x, y, what, label, name. aligned: centre images and captions each on their own mean. Otherwise the map
    shows only the gap between them, because CLIP keeps the two apart. At most MOST_DRAWN of each, evenly spaced, are
    drawn.
    """
    chosen, chosen_texts = _some(len(found.images)), _some(len(found.texts))
    images, texts = (part.astype(np.float64) for part in (found.images[chosen], found.texts[chosen_texts]))
    if aligned:
        images, texts = images - images.mean(axis=0), texts - texts.mean(axis=0)
    coordinates, shares = pca(np.concatenate([images, texts]))
    names = [*(found.sources[index] for index in chosen), *(found.captions[index] for index in chosen_texts)]
    labels = [*(found.labels[index] for index in chosen), *(found.text_labels[index] for index in chosen_texts)]
    what = ["image"] * len(chosen) + ["caption"] * len(chosen_texts)
    axes = dict(zip("xy", [*coordinates.T, np.zeros(len(names))], strict=False))
    return pd.DataFrame({**axes, "what": what, "label": labels, "name": names}), np.append(shares, 0.0)[:2]


def _some(count: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, count - 1, min(count, MOST_DRAWN)).astype(np.int64))


def embeddings(places: pd.DataFrame, shares: Sequence[float], *, source: str = "") -> go.Figure:
    """Return the map: images as points, captions as larger symbols with a border. places, shares: from `place`.

    With few classes, they are coloured by class, and the class's name is in the middle of its images.
    """
    labels = sorted(set(places["label"]))
    if len(labels) > MOST_COLOURED:
        labels, places = [""], places.assign(label="")
    styles = family_styles(labels)
    figure = go.Figure()
    for (what, label), rows in places.groupby(["what", "label"], sort=False):
        colour, symbol = styles[str(label)]
        place = labels.index(str(label))
        marker = {"color": colour, "symbol": symbol, "size": 6, "opacity": 0.75}
        if what == "caption":
            marker |= {"size": 12, "opacity": 1, "line": {"width": 1.5, "color": GREY}}
        figure.add_scatter(
            x=rows["x"],
            y=rows["y"],
            mode="markers",
            name=text(label) if label else f"{what}s",
            legendgroup=str(label),
            legendrank=1000 + place,
            showlegend=what == "image" or not label,
            marker=marker,
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
        update(title_text=f"Component {number + 1} ({share} % of the variance)", zeroline=False)
    return figure


def _short(name: str) -> str:
    return text(name if len(name) <= 80 else f"…{name[-79:]}")
