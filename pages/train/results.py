"""Results of a training: values so far, curves, a row per epoch, and downloads."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from engine.datasets import captions_repeat
from engine.jobs.checkpoints import fetch
from engine.report import frames
from engine.report.quantities import CLIP_LABELS, SHARES
from engine.report.style import digits, duration
from engine.results.checkpoints import mark_lost
from engine.results.clip import TrainRow, best_epoch, mean_pairs_per_s
from engine.specs.evaluate import EvaluateSpec
from engine.specs.train import METRICS, TrainSpec
from engine.store import RETRYABLE, Run
from engine.words import plural
from pages.clip import curves, try_it
from pages.shared import backend
from pages.shared.chart.chart import verbatim
from pages.shared.form.link import form_link
from pages.shared.runs import view
from pages.shared.table import download, download_rows, download_table, results_table
from pages.shared.text import plain
from pages.train import export

RESULTS = "results.jsonl"
LARGEST_DOWNLOAD = 1_000_000_000
"""Maximum size in bytes of a checkpoint that is offered for download, because the server reads it into memory."""
MOST_OTHERS = 50
"""Maximum number of other trainings that are offered for an overlay."""
BEST = "★ best"
BEST_BY = ("zeroshot_top1", "image_to_text_r1", "train_loss")
"""The first measured one of these metrics chose the best model of an older run, whose rows do not name the metric."""
FIRST = (
    *("epoch", "mark", "step", "train_loss", "clip_val_loss", "val_generative_loss"),
    *("zeroshot_top1", "zeroshot_top5", "image_to_text_r1"),
    *("text_to_image_r1", "image_to_text_r5", "text_to_image_r5", "lr", "logit_scale", "samples_per_s", "data_share"),
    *("neighbour_share", "seconds", "peak_memory_mb"),
)
COLUMNS = tuple(dict.fromkeys((*FIRST, *METRICS, "samples_seen", "checkpoint")))


def draw(run: Run, rows: Sequence[TrainRow]) -> None:
    """Draw the results so far."""
    points = curves.of_run(run)
    checkpoints = backend.checkpoints(run)
    if run.state in RETRYABLE and checkpoints:
        st.caption(plain(f"Resume continues from a checkpoint: {', '.join(path.name for path in checkpoints)}"))
    if points.empty and not rows:
        view.draw_no_results(run)
        return
    best = best_epoch(rows)
    notes = dict.fromkeys(note for row in rows for note in row.notes)
    recall = not captions_repeat(notes)
    _values(run, rows, best, points, recall=recall)
    if not points.empty:
        _curves(run, best, _loss_batches(rows[-1]) if rows else "", recall=recall)
    if rows:
        _table(run, rows, best, checkpoints)
    if checkpoints:
        _checkpoints(run, rows, checkpoints)
    for note in notes:
        st.caption(plain(note))
    if run.state.ended and checkpoints:
        try_it.draw(run)


def _values(run: Run, rows: Sequence[TrainRow], best: TrainRow | None, points: pd.DataFrame, *, recall: bool) -> None:
    """Draw the latest values, with their change since the initial weights or, if not measured, since the previous row.

    recall: show recall at 1 if there is no zero-shot accuracy.
    """
    assert isinstance(run.spec, TrainSpec)
    loss = points[points["name"] == "train/loss"]["value"]
    last = rows[-1] if rows else None
    reference = None if len(rows) < 2 else rows[0] if rows[0].step == 0 else rows[-2]
    with st.container(horizontal=True):
        if len(loss):
            help = "Training loss of the last logged step. The table below has the mean of each epoch."
            st.metric("Training loss (last step)", digits(float(loss.iloc[-1])), width="content", help=help)
        classified = last is not None and last.zeroshot_top1 is not None
        recalls = ("image_to_text_r1", "text_to_image_r1") if recall else ()
        accuracies = ("zeroshot_top1", "zeroshot_top5") if classified else recalls
        for name in ("clip_val_loss", "val_generative_loss", *accuracies):
            if last is not None and getattr(last, name) is not None:
                _metric(CLIP_LABELS[name], name, last, reference)
        if best is not None:
            metrics = (best.best_metric, run.spec.best_metric, *BEST_BY)
            name = next((name for name in metrics if getattr(best, name, None) is not None), BEST_BY[-1])
            position = f"step {best.step:,}" if run.spec.val_every_steps else f"epoch {best.epoch}"
            metric = CLIP_LABELS[name]
            label = f"Best {metric[0].lower()}{metric[1:]} ({position})"
            remark = " This metric chooses the best model"
            remark += "; the held-out loss decides between equal values." if name != "clip_val_loss" else "."
            _metric(label, name, best, reference if reference and reference.step == 0 else None, remark)
        resumed = " Includes the training that this one continues." if run.spec.resume else ""
        if last is not None and (pairs_per_s := mean_pairs_per_s(rows)) is not None:
            help = f"Pairs of all steps / seconds of all steps, without validation.{resumed}"
            if last.data_share is not None:
                help += (
                    f" In the latest epoch, {100 * last.data_share:.0f} % of the step time is spent waiting for data."
                )
            st.metric("Pairs/s", digits(pairs_per_s), width="content", help=help)
        if last is not None and last.seconds is not None:
            help = f"Time of steps and validations, without loading PyTorch and the data.{resumed}"
            label = "Training time" if last.step >= run.done else f"Training time to step {last.step:,}"
            st.metric(label, duration(last.seconds), width="content", help=help)
    if last is not None and (text := _guessing(last, recall=recall)):
        st.caption(text)


def _guessing(row: TrainRow, *, recall: bool) -> str:
    """Return how often guessing is right; empty without an accuracy or for older runs. recall: as for `_values`."""
    if row.zeroshot_images and row.zeroshot_classes:
        share, images = 100 / row.zeroshot_classes, row.zeroshot_images
        return f"Guessing is right for {share:.3g} % of the {images:,} images; one image is {100 / images:.3g} points."
    if recall and row.val_pairs:
        pairs = plural(row.val_pairs, "held-out pair")
        return f"Guessing reaches an R@1 of {100 / row.val_pairs:.3g} % among {pairs}."
    return ""


def _metric(label: str, name: str, row: TrainRow, reference: TrainRow | None, remark: str = "") -> None:
    """Draw a value of a row and its change since the row `reference`. remark: last sentence of the help text."""
    value, earlier_value = getattr(row, name), getattr(reference, name) if reference else None
    if value is None:
        st.metric(label, "–", width="content", help=f"{CLIP_LABELS[name]}.{remark}")
        return
    share = name in SHARES
    change = None if earlier_value is None else value - earlier_value
    delta = None if change is None else f"{100 * change:+.1f} points" if share else f"{change:+.3g}"
    text = f"{100 * value:.1f} %" if share else digits(value)
    origin = "the initial weights" if reference and reference.step == 0 else "the previous row"
    change_text = "." if earlier_value is None else f", and its change since {origin}."
    help = f"{CLIP_LABELS[name]} at step {row.step:,}{change_text}{remark}"
    options: dict[str, Any] = {"delta_color": "normal" if share else "inverse"}
    if delta is not None and not float(delta.split()[0]):
        delta, options = "no change", {"delta_color": "off", "delta_arrow": "off"}
    st.metric(label, text, delta, width="content", help=help, **options)


def _loss_batches(row: TrainRow) -> str:
    """Return a sentence on the batch sizes of both losses; empty when one is unknown."""
    if not row.step or not row.val_batch_size:
        return ""
    sizes = f"training {row.samples_seen // row.step:,} pairs, held out {row.val_batch_size:,}"
    return f"A contrastive loss grows with its batch size: {sizes}."


def _curves(run: Run, best: TrainRow | None, note: str, *, recall: bool) -> None:
    """Draw the curves, with other trainings overlaid. note: caption of the large charts. recall: as for `_values`."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        others = _others(run)
        smooth = curves.draw_smoothing(f"smooth_{run.id}")
        download_table(partial(curves.of_run, run), f"train-{run.id}-curves", key=f"curves_{run.id}", label="curves")
    marks = {f"run {run.id}": best.step} if best else {}
    marks |= {f"run {other.id}": step for other in others if (step := _best_step(other))}
    runs, key = (run, *others), str(run.id)
    curves.draw_large(runs, marks, smooth, recall=recall, key=key)
    if note:
        st.caption(f"{note} These are the sizes of run {run.id}." if others else note)
    if others:
        view.draw_differences(runs)
    curves.draw_small(runs, smooth, recall=recall, key=key)


def _others(run: Run) -> list[Run]:
    """Draw the choice of other trainings to overlay, and return the chosen ones."""
    runs = {
        other.id: other for other in backend.store().runs(kind=TrainSpec.kind, limit=MOST_OTHERS) if other.id != run.id
    }
    if not runs:
        return []
    labels = {number: f"run {number}: {other.name or other.spec.summary}" for number, other in runs.items()}
    chosen = st.multiselect(
        "Overlay other runs",
        list(runs),
        format_func=labels.__getitem__,
        key=f"others_{run.id}",
        bind="query-params",
        placeholder="Choose other trainings",
    )
    return [runs[number] for number in chosen if number in runs]


@st.cache_data(max_entries=64, show_spinner=False, hash_funcs=backend.BY_VERSION)
def _best_step(run: Run) -> int | None:
    """Return the step of a run's best model, or None."""
    best = best_epoch(backend.store().rows(run.id))
    return best.step if best else None


def _table(run: Run, rows: Sequence[TrainRow], best: TrainRow | None, checkpoints: Mapping[Path, int]) -> None:
    """Draw a row per validation, the newest first, with marks at the best one and at checkpoints that are gone."""
    frame = _frame(run, len(rows), rows)
    frame["mark"] = [BEST if row is best else "" for row in rows]
    if checkpoints:  # none may also mean that their machine cannot be reached
        frame["checkpoint"] = mark_lost([row.checkpoint for row in rows], {path.name for path in checkpoints})
    shown = frame.iloc[::-1].dropna(axis=1, how="all")
    numbers = [name for name in COLUMNS if name in CLIP_LABELS and name not in (*SHARES, "mark", "checkpoint")]
    formats = dict.fromkeys(numbers, "%.4g") | dict.fromkeys(("step", "samples_seen"), "%,d")
    config = {name: st.column_config.NumberColumn(CLIP_LABELS[name], format=format) for name, format in formats.items()}
    options: dict[str, Any] = {"columns": COLUMNS, "pinned": "epoch", "config": config}
    results_table(shown, key=f"rows_{run.id}", alt="Results of every epoch, newest first", **options)
    menu, file = download_rows(run, label="epochs"), backend.folder(run) / RESULTS
    if file.is_file():
        with menu:
            download(RESULTS, file.read_bytes, f"train-{run.id}-{RESULTS}", icon=None, key=f"results_{run.id}")


@st.cache_data(max_entries=32, show_spinner=False, hash_funcs=backend.BY_VERSION)
def _frame(run: Run, count: int, _rows: Sequence[TrainRow]) -> pd.DataFrame:
    """Return the rows of a run as a frame, made once for all sessions.

    count: number of rows, a key of the cache, because rows that are read after the run may be newer than its revision.
    """
    return frames.train(_rows)


def _checkpoints(run: Run, rows: Sequence[TrainRow], checkpoints: Mapping[Path, int]) -> None:
    """Draw the choice of a checkpoint with its path and downloads, and links to evaluate or train on the best model."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        path = _checkpoint(run, checkpoints)
        help = "Open the form to evaluate this training on its held-out pairs or on other data."
        form_link(_evaluation(run, rows), "Evaluate", icon=":material/fact_check:", key=f"evaluate_{run.id}", help=help)
        help = "Open the form to train the best model of this run further, on the same or other data."
        options: dict[str, Any] = {"icon": ":material/model_training:", "key": f"further_{run.id}", "help": help}
        form_link(_continuation(run), "Train on from this", source=str(run.id), **options)
    verbatim(str(path), key=f"checkpoint_path_{run.id}")
    if run.state.ended and backend.may_change(run):
        export.draw(run, rows, path.name)


def _evaluation(run: Run, rows: Sequence[TrainRow]) -> EvaluateSpec:
    """Return the spec that evaluates a run's best model on its held-out pairs, with zero-shot if these have classes."""
    spec = run.spec
    assert isinstance(spec, TrainSpec)
    names: tuple[str, ...] = ("data_kind", "json_split", "csv_separator", "csv_img_key", "csv_caption_key")
    names = (*names, "device") if spec.zeroshot_data else (*names, "classes", "templates", "device")
    shared = {name: getattr(spec, name) for name in names} | {"csv_class_key": spec.pairs_class_key}
    if rows and (spec.zeroshot_data or all(row.zeroshot_top1 is None for row in rows)):
        shared["tasks"] = ("retrieval",)
    if spec.precision != "auto":  # an older or imported run may not be resolved
        shared["precision"] = spec.precision
    data = {"data": spec.val_data, "held_out": False} if spec.val_data else {"data": spec.data, "samples": spec.samples}
    return EvaluateSpec.model_validate({"model": str(run.id), **shared, **data})


def _continuation(run: Run) -> TrainSpec:
    """Return the spec that trains on from the best model of a run, at the learning rate for trained weights."""
    assert isinstance(run.spec, TrainSpec)
    changed = {"pretrained": f"best of run {run.id}", "pretrained_image": False, "pretrained_text": False, "resume": ""}
    return run.spec.model_copy(update=changed | dict.fromkeys(("lr", "lr_image", "lr_text")))


def _checkpoint(run: Run, checkpoints: Mapping[Path, int]) -> Path:
    """Draw the choice of a checkpoint, which `open_clip.create_model(name, pretrained=path)` loads, and return it.

    Its owner and admins also get its download.
    """
    names = [path.name for path in checkpoints]
    first = names.index("best.pt") if "best.pt" in names else 0
    # The key changes when the first best checkpoint appears, so that the field then selects it.
    key = f"checkpoint_{run.id}" if "best.pt" in names else f"newest_of_{run.id}"
    chosen = st.selectbox("Checkpoint", names, first, key=key, width=160)
    path, size = list(checkpoints.items())[names.index(chosen)]
    if not backend.may_change(run):
        return path
    if size > LARGEST_DOWNLOAD:
        st.caption(f"{size / 1e9:.1f} GB, too large to download here. Copy the file.")
        return path
    help = "Load it with open_clip.create_model(name, pretrained=path)."
    label = f"{chosen} ({size / 1e6:,.1f} MB)"

    def content() -> bytes:
        fetch(backend.settings(), run, chosen)
        return path.read_bytes()

    download(label, content, f"train-{run.id}-{chosen}", key=f"checkpoint_file_{run.id}", help=help)
    return path
