"""Results of an evaluation: metrics, confusion matrix, predictions, map of the embeddings, text search."""

import csv
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from engine.datasets import note_on_repeats
from engine.report import frames
from engine.report.export import tables
from engine.report.figures import evaluation
from engine.report.quantities import RANK_LABELS, RECALL_LABELS, is_share, title
from engine.report.style import digits
from engine.results.clip import EvaluateRow
from engine.results.embeddings import read_embeddings
from engine.roots import Roots, file_within, open_within
from engine.specs.evaluate import EvaluateSpec
from engine.store import Run
from engine.words import count_captions, plural, sentence
from pages.clip import pictures, try_it
from pages.evaluate import search
from pages.shared import backend
from pages.shared.chart.chart import chart, tabs
from pages.shared.table import PERCENT, download, download_rows, in_percent, results_table
from pages.shared.text import plain, show_error

TASKS = {"retrieval": "Retrieval", "zeroshot": "Zero-shot classification", "linear-probe": "Linear probe"}
NUMBERS = (*RANK_LABELS, "clip_val_loss")
HELP = {
    "acc1": "Share of images whose class is predicted.",
    "acc5": "Share of images whose class is among the five most likely. Not computed for five classes or fewer.",
    "mean_per_class_recall": "Share of correct predictions per class, averaged over the classes that occur.",
    "mean_average_precision": "Average precision of ranking images by similarity to a class; mean over classes.",
    "image_to_text_r1": "Share of images for which one of their own captions ranks first among all captions. Of "
    "equal captions, the first in the data ranks first.",
    "text_to_image_r1": "Share of captions for which their own image ranks first among all images.",
    "image_to_text_mean_rank": "Mean rank of the first of an image's own captions. 1 is best.",
    "text_to_image_mean_rank": "Mean rank of a caption's own image. 1 is best.",
}
COLUMNS = (
    *("model", "checkpoint", "data", "task", "status", "acc1", "acc5", "mean_per_class_recall"),
    "mean_average_precision",
)
"""First columns of the table of several models or data sets. Recalls, ranks, loss, images and errors follow."""
DEFAULT_SHOWN, MOST_SHOWN = 24, 96
"""Number of images shown by default, and its maximum, because each image is read from the data."""
KINDS = ("Mistakes", "Right", "All")


def draw(run: Run, rows: Sequence[EvaluateRow]) -> None:
    """Draw the results of the rows so far."""
    assert isinstance(run.spec, EvaluateSpec)
    if len(run.spec.parts) > 1:
        run, rows = _choose(run, rows)
    # several tasks share notes, such as the epoch of the checkpoint
    common = [note for note in rows[0].notes if len(rows) > 1 and all(note in row.notes for row in rows)]
    for note in common:
        st.caption(plain(sentence(note)))
    for row in rows:
        _metrics(row, common)
    names = [name for row in rows for name in (row.confusion_file, row.predictions_file, row.average_precision_file)]
    folder, roots = backend.folder(run), backend.own_files(run)
    with st.container(horizontal=True), download_rows(run):
        for name in names:
            if name and file_within(folder / name, roots):
                label, file = name.removesuffix(".csv").replace("_", " ").capitalize(), f"evaluate-{run.id}-{name}"
                download(label, partial(_read_guarded, folder / name, roots), file, icon=None, key=f"{name}_{run.id}")
    contents: dict[str, Any] = {}
    for row in rows:
        if row.confusion_file:
            contents[f"Confusion, {row.task}"] = lambda row=row: _confusion(run, row)
        if row.average_precision_file:
            contents["Average precision"] = lambda row=row: _average_precision(run, row)
        if row.predictions_file:
            contents["Predictions"] = lambda row=row: _predictions(run, row)
    if file := next((row.embeddings_file for row in rows if row.embeddings_file), ""):
        contents["Map"] = lambda: _map(run, file)
        contents["Search"] = lambda: search.draw(run, file)
        contents["Try a picture"] = lambda: try_it.content(run)
    tabs(contents, key=f"charts_{run.id}", bind="query-params")


def _choose(run: Run, rows: Sequence[EvaluateRow]) -> tuple[Run, list[EvaluateRow]]:
    """Draw a table of all models and data sets. Return the run with only the chosen model and data, and its rows."""
    table = frames.evaluate(rows)
    names = dict.fromkeys((*COLUMNS, *filter(is_share, table.columns), *NUMBERS, "images", "error"))
    filled = [name for name in names if table[name].replace("", None).notna().any()]
    results_table(table[filled], key=f"parts_{run.id}", alt="Results of all models")
    parts = list(dict.fromkeys(row.part for row in rows))
    chosen = st.selectbox("Details of", parts, format_func=_part_name, key=f"part_{run.id}", bind="query-params")
    assert isinstance(run.spec, EvaluateSpec)
    return replace(run, spec=run.spec.part(*chosen)), [row for row in rows if row.part == chosen]


def _part_name(part: tuple[str, str, str]) -> str:
    model, checkpoint, data = part
    return f"{model} from {checkpoint} on {data}" if checkpoint else f"{model} on {data}"


def _read_guarded(path: Path, roots: Roots) -> str:
    """Return a table written by a run, with formulas escaped, so that a spreadsheet can open it safely."""
    with TextIOWrapper(open_within(path, roots), newline="", encoding="utf-8") as file:
        return tables.guarded(csv.reader(file))


def _metrics(row: EvaluateRow, drawn: Collection[str]) -> None:
    """Draw the metrics of one task. drawn: notes that are drawn for all tasks together."""
    with st.container(border=True):
        st.header(TASKS.get(row.task, row.task), anchor=False)
        if row.status != "ok":
            show_error(row.error, title=row.status.replace("_", " ").capitalize())
        with st.container(horizontal=True):
            values = dict(row) | row.recalls
            for name in (*filter(is_share, values), *NUMBERS):
                if (value := values[name]) is not None:
                    text = f"{100 * value:.1f} %" if is_share(name) else digits(value)
                    st.metric(title(name), text, width="content", help=HELP.get(name))
        parts = [
            plural(row.images, "image") if row.images else "",
            count_captions(row.captions, row.distinct_captions) if row.captions else "",
        ]
        if row.classes:
            guessing = f" (guessing is right for {100 / row.classes:.3g} %)" if row.acc1 is not None else ""
            parts.append(plural(row.classes, "class", "es") + guessing)
        if row.images and (largest := _largest_rank(row)):
            chance = 100 * min(1.0, largest / row.images)
            parts.append(f"guessing gives a text → image R@{largest} of {chance:.3g} %")
        parts.append(f"{row.device}, {row.precision}")
        if row.probe_images is not None and row.probe_c is not None:
            parts.append(f"probe trained on {plural(row.probe_images, 'image')} with C = {row.probe_c:g}")
        if row.clip_val_loss is not None and row.val_batch_size:
            parts.append(f"the loss depends on the batch size, here {row.val_batch_size}")
        st.caption(plain("; ".join(part for part in parts if part)))
        if row.task == "retrieval" and (warning := note_on_repeats(row.captions or 0, row.distinct_captions)):
            st.caption(f":material/warning: {plain(sentence(warning))}")
        for note in row.notes:
            if note not in drawn:
                st.caption(plain(sentence(note)))


def _largest_rank(row: EvaluateRow) -> int:
    """Return the largest k of the row's recalls at k from text to image, 0 without any."""
    known = [name for name in RECALL_LABELS if getattr(row, name) is not None]
    ranks = [int(name.rpartition("_r")[2]) for name in (*known, *row.recalls) if name.startswith("text_to_image_r")]
    return max(ranks, default=0)


def _confusion(run: Run, row: EvaluateRow) -> None:
    if (counts := backend.read_file(run, row.confusion_file, evaluation.read_confusion)) is None:
        return
    alt = f"Confusion matrix of {len(counts)} classes: true classes as rows, predicted classes as columns"
    chart(evaluation.confusion(counts, source=f"run {run.id}"), key=f"{row.task}_matrix_{run.id}", alt=alt)
    if len(counts) > evaluation.MOST_CLASSES:
        st.caption(f"The {evaluation.MOST_CLASSES} classes with the most mistakes, of {len(counts):,} classes.")
    mistakes = evaluation.mistakes(counts)
    if mistakes.empty:
        st.caption("No mistakes.")
        return
    config = {
        "true": st.column_config.TextColumn("True class"),
        "predicted": st.column_config.TextColumn("Predicted class"),
        "count": st.column_config.NumberColumn("Count", format="%,d"),
        "share": st.column_config.NumberColumn("Share of true class", format=PERCENT),
    }
    st.dataframe(in_percent(mistakes, ["share"]), hide_index=True, column_config=config, alt="Most frequent mistakes")


def _average_precision(run: Run, row: EvaluateRow) -> None:
    """Draw the average precision of each class, the best first."""
    if (table := backend.read_file(run, row.average_precision_file, evaluation.read_average_precision)) is None:
        return
    alt = "Average precision of each class, the best first"
    results_table(table, key=f"precision_{run.id}", alt=alt, pinned="class")


def _predictions(run: Run, row: EvaluateRow) -> None:
    """Draw images with their true and predicted classes, the most confident predictions first."""
    if (predictions := backend.read_file(run, row.predictions_file, evaluation.read_predictions)) is None:
        return
    bound: dict[str, Any] = {"bind": "query-params"}
    with st.container(horizontal=True):
        default = "Mistakes" if (~predictions["right"]).any() else "All"
        kind = st.segmented_control("Show", KINDS, default=default, required=True, key=f"kind_{run.id}", **bound)
        classes = sorted(set(predictions["true"]))
        true_class = st.selectbox("True class", classes, index=None, placeholder="any", key=f"true_{run.id}", **bound)
        limit = st.number_input("Images", 1, MOST_SHOWN, DEFAULT_SHOWN, key=f"many_{run.id}", **bound)
    chosen = predictions if kind == "All" else predictions[predictions["right"] == (kind == "Right")]
    chosen = chosen[chosen["true"] == true_class] if true_class else chosen
    st.caption(
        f"{len(chosen):,} of {len(predictions):,} predictions, the most confident first. Confidence is the softmax of "
        "the cosines times the model's logit scale."
    )
    shown = chosen.sort_values("confidence", ascending=False, kind="stable").head(limit)
    if not pictures.grid(run, shown, _caption, "{true}, predicted as {predicted}".format_map):
        predictions = shown[list(evaluation.PREDICTIONS)]
        st.dataframe(predictions, hide_index=True, alt="Predictions, also of images that cannot be shown")


def _caption(line: dict[Any, Any]) -> str:
    """Return the caption of a prediction, in Markdown."""
    confidence = f"{100 * line['confidence']:.0f} %"
    if line["right"]:
        return f":material/check: {plain(line['true'])}, {confidence}"
    return f":material/close: {plain(line['true'])}, predicted as **{plain(line['predicted'])}**, {confidence}"


def _project(path: Path, roots: Roots, aligned: bool) -> tuple[pd.DataFrame, list[float], int]:
    """Return the points of the map, the share of the variance on each axis, and the number of images."""
    embeddings = read_embeddings(path, roots)
    points, shares = evaluation.place(embeddings, aligned=aligned)
    return points, shares.tolist(), len(embeddings.images)


def _map(run: Run, file: str) -> None:
    help = "CLIP places images and captions far apart. Without centring, the map shows mainly that gap."
    label, key = "Centre images and captions separately", f"aligned_{run.id}"
    aligned = st.toggle(label, value=True, key=key, help=help, bind="query-params")
    if (projected := backend.read_file(run, file, _project, aligned)) is None:
        return
    points, shares, images = projected
    alt = "Map of the embeddings of images and captions by their first two principal components"
    chart(evaluation.embeddings(points, shares, source=f"run {run.id}"), key=f"map_{run.id}", alt=alt)
    part = f" {evaluation.MOST_DRAWN:,} of {images:,} images are drawn." if images > evaluation.MOST_DRAWN else ""
    st.caption(f"First two principal components of the embeddings. Points with an outline are captions.{part}")
