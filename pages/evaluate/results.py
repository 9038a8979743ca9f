"""What an evaluation of CLIP found: figures in a row, mistakes, predictions, a map of the embeddings, a search."""

import csv
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from engine.report import frames
from engine.report.export import tables
from engine.report.figures import evaluation
from engine.report.style import digits
from engine.results.clip import EvaluateRow
from engine.results.embeddings import Embeddings, read_embeddings
from engine.roots import Roots, file_within, open_within
from engine.store import Run
from pages.clip import pictures
from pages.evaluate import search
from pages.shared import backend
from pages.shared.chart.chart import chart, tabs
from pages.shared.download import download, rows_table
from pages.shared.text import plain

TASKS = {"retrieval": "Retrieval", "zeroshot": "Zero-shot classification", "linear-probe": "Linear probe"}
SHARES = {
    "acc1": "Top-1",
    "acc5": "Top-5",
    "mean_per_class_recall": "Mean per class",
    "image_to_text_r1": "Image → text R@1",
    "image_to_text_r5": "R@5",
    "image_to_text_r10": "R@10",
    "text_to_image_r1": "Text → image R@1",
    "text_to_image_r5": "R@5",
    "text_to_image_r10": "R@10",
}
NUMBERS = {
    "image_to_text_mean_rank": "Image → text: mean rank",
    "image_to_text_median_rank": "median rank",
    "text_to_image_mean_rank": "Text → image: mean rank",
    "text_to_image_median_rank": "median rank",
    "clip_val_loss": "CLIP loss",
}
MEANT = {
    "acc1": "How many images get their own class.",
    "acc5": "How many have their own class among the five likeliest; of fewer than five classes there is none.",
    "mean_per_class_recall": "The share that is right of each class, averaged over the classes that occur.",
    "image_to_text_r1": "How many images have one of their own captions ranked first among all captions.",
    "text_to_image_r1": "How many captions have their own image ranked first among all images.",
    "image_to_text_mean_rank": "Where the first caption of an image's own stands on average; 1 is first.",
    "text_to_image_mean_rank": "Where a caption's own image stands on average; 1 is first.",
}
FEW, MOST_SHOWN = 24, 96
"""Pictures of a grid, and the most that can be asked for."""
KINDS = ("Mistakes", "Right", "All")


def draw(run: Run, rows: Sequence[EvaluateRow]) -> None:
    """All of it, for the rows that have come so far."""
    if not rows:
        st.caption("Nothing has been found yet: each task's figures appear when it is done.")
        return
    for row in rows:
        _figures(row)
    files = [name for row in rows for name in (row.confusion_file, row.predictions_file) if name]
    with st.container(horizontal=True):
        folder, own = backend.folder(run), backend.own_files(run)
        rows_table(run, frames.evaluate)
        for name in (name for name in files if file_within(folder / name, own)):
            label = name.removesuffix(".csv").replace("_", " ").capitalize()
            file = f"evaluate-{run.id}-{name}"
            download(label, (lambda name=name: _guarded(folder / name, own)), file, key=f"{name}_{run.id}")
    contents: dict[str, Any] = {}
    for row in rows:
        if row.confusion_file:
            contents[f"Confusion, {row.task}"] = lambda row=row: _confusion(run, row)
        if row.predictions_file:
            contents["Predictions"] = lambda row=row: _predictions(run, row)
    if file := next((row.embeddings_file for row in rows if row.embeddings_file), ""):
        contents["Map"] = lambda: _map(run, file)
        contents["Search"] = lambda: search.draw(run)
    tabs(contents, key=f"charts_{run.id}")


def _guarded(path: Path, own: Roots) -> str:
    """Return a table that a run has written, safe to be opened by a spreadsheet."""
    with TextIOWrapper(open_within(path, own), newline="", encoding="utf-8") as file:
        return tables.guarded(csv.reader(file))


def _figures(row: EvaluateRow) -> None:
    """One task's figures, in a row."""
    with st.container(border=True):
        st.header(TASKS.get(row.task, row.task), anchor=False)
        if row.status != "ok":
            st.error(plain(row.error), title=row.status.replace("_", " "), icon=":material/error:")
        with st.container(horizontal=True):
            for name, title in SHARES.items():
                if (value := getattr(row, name)) is not None:
                    st.metric(title, f"{100 * value:.1f} %", width="content", help=MEANT.get(name))
            for name, title in NUMBERS.items():
                if (value := getattr(row, name)) is not None:
                    st.metric(title[0].upper() + title[1:], digits(value), width="content", help=MEANT.get(name))
        parts = [f"{row.images:,} images" if row.images else "", f"{row.captions:,} captions" if row.captions else ""]
        parts += [f"{row.classes:,} classes" if row.classes else "", f"{row.device}, {row.precision}"]
        if row.clip_val_loss is not None and row.val_batch_size:
            parts.append(f"the loss is over batches of {row.val_batch_size}, on which it depends")
        st.caption(plain("; ".join(part for part in parts if part)))
        for note in row.notes:
            st.caption(plain(note))


def _gone(file: str, error: Exception) -> None:
    if isinstance(error, FileNotFoundError):
        st.caption(plain(f"{file} was not kept with this run."))
    else:
        st.error(plain(f"{file} cannot be read: {error}"), icon=":material/error:")


@st.cache_data(max_entries=8, show_spinner=False)
def _read_confusion(path: Path, own: Roots, stamp: int) -> pd.DataFrame:
    return evaluation.read_confusion(path, own)


def _confusion(run: Run, row: EvaluateRow) -> None:
    folder, own = backend.folder(run), backend.own_files(run)
    try:
        counts = _read_confusion(folder / row.confusion_file, own, backend.modified_ns(folder, row.confusion_file))
    except (OSError, ValueError) as error:
        _gone(row.confusion_file, error)
        return
    alt = f"Confusion matrix of {len(counts)} classes: true ones down, predicted ones across"
    chart(evaluation.confusion(counts, source=f"run {run.id}"), key=f"{row.task}_matrix_{run.id}", alt=alt)
    if len(counts) > evaluation.MOST_CLASSES:
        st.caption(f"Of {len(counts):,} classes, the {evaluation.MOST_CLASSES} most often mistaken.")
    mistakes = evaluation.mistakes(counts)
    if mistakes.empty:
        st.caption("Nothing is taken for anything else.")
        return
    config = {
        "true": st.column_config.TextColumn("True"),
        "predicted": st.column_config.TextColumn("Taken for"),
        "count": st.column_config.NumberColumn("Times", format="%,d"),
        "share": st.column_config.NumberColumn("Of the true class", format="percent"),
    }
    st.dataframe(mistakes, hide_index=True, column_config=config, alt="What is taken for what most often")


@st.cache_data(max_entries=8, show_spinner=False)
def _read_predictions(path: Path, own: Roots, stamp: int) -> pd.DataFrame:
    return evaluation.read_predictions(path, own)


def _predictions(run: Run, row: EvaluateRow) -> None:
    """Pictures with what they are and what they were taken for, the surest first."""
    folder, own = backend.folder(run), backend.own_files(run)
    try:
        found = _read_predictions(folder / row.predictions_file, own, backend.modified_ns(folder, row.predictions_file))
    except (OSError, ValueError) as error:
        _gone(row.predictions_file, error)
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        words: dict[str, Any] = {"required": True, "key": f"kind_{run.id}"}
        kind = st.segmented_control("Show", KINDS, default=KINDS[0] if (~found["right"]).any() else KINDS[2], **words)
        classes = sorted(set(found["true"]))
        true = st.selectbox("True class", classes, index=None, placeholder="any", key=f"true_{run.id}")
        many = st.number_input("Pictures", 1, MOST_SHOWN, FEW, key=f"many_{run.id}")
    kept = found if kind == "All" else found[found["right"] == (kind == "Right")]
    kept = kept[kept["true"] == true] if true else kept
    st.caption(f"{len(kept):,} of {len(found):,}, those first that the model is surest of.")
    shown = kept.sort_values("confidence", ascending=False, kind="stable").head(many)
    _grid(run, shown)


def _grid(run: Run, shown: pd.DataFrame) -> None:
    shows = "{true}, taken for {predicted}".format_map
    if not pictures.grid(run, shown, _said, shows):
        predictions = shown[list(evaluation.PREDICTIONS)]
        st.dataframe(predictions, hide_index=True, alt="Predictions whose pictures cannot be shown, among others")


def _said(line: dict[Any, Any]) -> str:
    sure = f"{100 * line['confidence']:.0f} %"
    if line["right"]:
        return f":material/check: {plain(line['true'])}, {sure}"
    return f":material/close: {plain(line['true'])}, taken for **{plain(line['predicted'])}**, {sure}"


@st.cache_data(max_entries=4, show_spinner="Reading embeddings")
def _placed(path: Path, own: Roots, stamp: int, aligned: bool) -> tuple[pd.DataFrame, list[float], int]:
    """A map, its axes' shares of the variance, and how many images there are in all."""
    found: Embeddings = read_embeddings(path, own)
    places, shares = evaluation.place(found, aligned=aligned)
    return places, [float(share) for share in shares], len(found.images)


def _map(run: Run, file: str) -> None:
    folder, own = backend.folder(run), backend.own_files(run)
    aligned = st.toggle(
        "Images and captions each centred",
        value=True,
        key=f"aligned_{run.id}",
        help="CLIP keeps images apart from captions: without centring, that gap is most of what a map shows.",
    )
    try:
        places, shares, images = _placed(folder / file, own, backend.modified_ns(folder, file), aligned)
    except (OSError, ValueError) as error:
        _gone(file, error)
        return
    alt = "Map of the embeddings of images and captions, by their two principal components"
    chart(evaluation.embeddings(places, shares, source=f"run {run.id}"), key=f"map_{run.id}", alt=alt)
    some = f" {evaluation.MOST_DRAWN:,} of {images:,} images are drawn." * (images > evaluation.MOST_DRAWN)
    st.caption(f"Principal components of the embeddings; captions have a rim.{some}")
