"""What a training of CLIP has come to: figures, curves as they grow, a row per epoch, and what can be taken away."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from engine.report import frames
from engine.report.figures import training
from engine.report.style import digits
from engine.results.clip import TrainRow
from engine.specs.evaluate import EvaluateSpec
from engine.specs.train import TrainSpec
from engine.store import RETRYABLE, Run
from pages.clip.curves import FOLDED, SMOOTH, TITLES, curve_points, points_of
from pages.shared import backend
from pages.shared.chart.chart import chart
from pages.shared.download import download, rows_table, table
from pages.shared.form_link import form_link
from pages.shared.table import results_table
from pages.shared.text import duration, plain

CHECKPOINTS, RESULTS = "checkpoints", "results.jsonl"
LARGEST_DOWNLOAD = 1_000_000_000
"""Bytes of a file that the server reads into memory to hand it over."""
OTHERS = 50  # trainings offered to be laid over this one
BEST = "★ best"
COLUMNS = (
    *("epoch", "mark", "step", "train_loss", "clip_val_loss", "val_generative_loss"),
    *("zeroshot_top1", "zeroshot_top5", "image_to_text_r1"),
    *("text_to_image_r1", "image_to_text_r5", "text_to_image_r5", "lr", "logit_scale", "samples_per_s", "data_share"),
    *("seconds", "peak_memory_mb", "image_to_text_mean_rank", "text_to_image_mean_rank", "samples_seen", "checkpoint"),
)
SHARES = (
    "zeroshot_top1",
    "zeroshot_top5",
    *(f"{way}_r{k}" for way in ("image_to_text", "text_to_image") for k in (1, 5)),
)


def draw(run: Run, rows: Sequence[TrainRow]) -> None:
    """All of it, for what has come so far."""
    points = curve_points(run)
    if run.state in RETRYABLE and (there := _checkpoints(run)):
        st.caption(plain(f"Resume goes on from a checkpoint: {', '.join(path.name for path in there)}"))
    if points.empty and not rows:
        st.caption("Nothing has been trained yet: curves begin after the first steps, a row comes with every epoch.")
        return
    best = next((row for row in reversed(rows) if row.best), None)
    _figures(rows, best, points)
    _curves(run, points, best)
    if rows:
        _table(run, rows, best)
    _take_away(run, rows, points)
    for note in dict.fromkeys(note for row in rows for note in row.notes):
        st.caption(plain(note))


def _figures(rows: Sequence[TrainRow], best: TrainRow | None, points: pd.DataFrame) -> None:
    """The last figures, and how they have changed in the last epoch."""
    loss = points[points["name"] == "train/loss"]["value"]
    last, before = (rows[-1] if rows else None), (rows[-2] if len(rows) > 1 else None)
    with st.container(horizontal=True):
        if len(loss):
            st.metric("Training loss now", digits(float(loss.iloc[-1])), width="content")
        classified = last is not None and last.zeroshot_top1 is not None
        right = ("zeroshot_top1", "zeroshot_top5") if classified else ("image_to_text_r1", "text_to_image_r1")
        for name in ("clip_val_loss", "val_generative_loss", *right):
            if last is not None and getattr(last, name) is not None:
                _metric(name, last, before)
        if best is not None:
            said = best.zeroshot_top1 if best.zeroshot_top1 is not None else best.image_to_text_r1
            shown = "–" if said is None else f"{100 * said:.1f} %"
            what = TITLES["zeroshot_top1" if best.zeroshot_top1 is not None else "image_to_text_r1"]
            st.metric(f"Best, of epoch {best.epoch}", shown, width="content", help=what)
        if last is not None and last.samples_per_s is not None:
            waiting = "" if last.data_share is None else f"{100 * last.data_share:.0f} % of a step waits for data."
            st.metric("Pairs/s", digits(last.samples_per_s), width="content", help=waiting or None)
        if last is not None and last.seconds is not None:
            st.metric("Trained for", duration(last.seconds), width="content")


def _metric(name: str, last: TrainRow, before: TrainRow | None) -> None:
    value, earlier = getattr(last, name), getattr(before, name) if before else None
    share = name in SHARES
    change = None if earlier is None else value - earlier
    delta = None if change is None else f"{100 * change:+.1f} points" if share else f"{change:+.3g}"
    shown = f"{100 * value:.1f} %" if share else digits(value)
    help = f"Of epoch {last.epoch}" + ("" if earlier is None else ", beside the epoch before that was measured.")
    colour: Any = "normal" if share else "inverse"
    st.metric(TITLES[name], shown, delta, delta_color=colour, width="content", help=help)


def _curves(run: Run, points: pd.DataFrame, best: TrainRow | None) -> None:
    """Loss and accuracy large, the rest small; other trainings may be laid over."""
    if points.empty:
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        others = _others(run)
        smooth = st.segmented_control(
            "Average over points", list(SMOOTH), default="no", required=True, key=f"smooth_{run.id}"
        )
    marks = {run.id: best.step} if best else {}
    marks |= {other.id: step for other in others if (step := _best(other.id, other.revision))}
    revisions = tuple((each.id, each.revision) for each in (run, *others))
    large, small = _drawn(backend.settings().store_url, revisions, tuple(marks.items()), SMOOTH[smooth])
    for column, (title, figure) in zip(st.columns(max(1, len(large))), large.items(), strict=False):
        with column:
            chart(figure, key=f"curve_{title}_{run.id}", alt=f"{title} over optimizer steps")
    for titles, figure in small.items():
        with st.expander(FOLDED, expanded=True):
            chart(figure, key=f"overview_{run.id}", alt=f"Small charts over optimizer steps: {titles}")


@st.cache_resource(max_entries=8, show_spinner=False)
def _drawn(
    store: str, revisions: tuple[tuple[int, int], ...], marks: tuple[tuple[int, int], ...], smooth: int
) -> tuple[dict[str, go.Figure], dict[str, go.Figure]]:
    """Return the large figures by title, and the overview of all others, if there are any, by the titles in it.

    Every session that follows these runs gets the same figures, because drawing them takes most of a tick: do not
    change them. revisions: of the runs, by id; marks: the step of the best model, by run.
    """
    points = pd.concat([points_of(store, *each) for each in revisions], ignore_index=True)
    look: dict[str, Any] = {"smooth": smooth, "source": "" if len(revisions) > 1 else f"run {revisions[0][0]}"}
    best = {f"run {run_id}": step for run_id, step in marks}
    panels = training.small(points)
    return (
        {each.title: training.curves(points, each, best=best, **look) for each in training.large(points)},
        {", ".join(each.title for each in panels): training.overview(points, panels, **look)} if panels else {},
    )


def _others(run: Run) -> list[Run]:
    """Other trainings, chosen to be laid over this one."""
    known = {other.id: other for other in backend.store().runs(kind=TrainSpec.kind, limit=OTHERS) if other.id != run.id}
    if not known:
        return []
    labels = {number: f"run {number}: {other.name or other.spec.summary}" for number, other in known.items()}
    chosen = st.multiselect(
        "Laid over this run",
        list(known),
        format_func=labels.get,
        key=f"others_{run.id}",
        placeholder="Choose other trainings",
    )
    return [known[number] for number in chosen if number in known]


@st.cache_data(max_entries=64, show_spinner=False)
def _best(run_id: int, revision: int) -> int | None:
    """The step of a run's best model."""
    rows = backend.store().rows(run_id)
    return next((row.step for row in reversed(rows) if isinstance(row, TrainRow) and row.best), None)


def _table(run: Run, rows: Sequence[TrainRow], best: TrainRow | None) -> None:
    """A row per epoch, the newest first, the best one marked."""
    frame = frames.train(rows)
    frame["mark"] = [BEST if row is best else "" for row in rows]
    shown = frame.iloc[::-1].dropna(axis=1, how="all")
    config = {name: st.column_config.NumberColumn(title, format="%.4g") for name, title in TITLES.items()}
    config |= {name: st.column_config.NumberColumn(TITLES[name], format="percent") for name in (*SHARES, "data_share")}
    config |= {name: st.column_config.Column(TITLES[name]) for name in ("mark", "checkpoint")}
    config |= {name: st.column_config.NumberColumn(TITLES[name], format="%,d") for name in ("step", "samples_seen")}
    look: dict[str, Any] = {"columns": COLUMNS, "pinned": "epoch", "config": config}
    results_table(shown, key=f"rows_{run.id}", alt="Results of every epoch, newest first", **look)


def _checkpoints(run: Run) -> list[Path]:
    """Those that are on the disk, newest first."""
    folder = backend.folder(run) / CHECKPOINTS
    found = {}
    for path in folder.glob("*.pt"):
        try:
            if path.with_name(f"{path.name}.json").is_file():
                found[path] = path.stat().st_mtime_ns
        except FileNotFoundError:  # a training removes old ones
            continue
    return sorted(found, key=found.__getitem__, reverse=True)


def _take_away(run: Run, rows: Sequence[TrainRow], points: pd.DataFrame) -> None:
    """Tables, files, and the way to an evaluation."""
    stem, folder = f"train-{run.id}", backend.folder(run)
    checkpoints = _checkpoints(run)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        if checkpoints:
            help = "On the pairs that this training held out, or on others."
            form_link(_evaluation(run), "Evaluate", icon=":material/fact_check:", key=f"evaluate_{run.id}", help=help)
        if rows:
            rows_table(run, frames.train, label="epochs")
        if len(points):
            table(partial(curve_points, run), f"{stem}-curves", key=f"curves_{run.id}", label="curves")
        if (folder / RESULTS).is_file():
            content = (folder / RESULTS).read_bytes
            download(RESULTS, content, f"{stem}-{RESULTS}", key=f"results_{run.id}")
        if checkpoints:
            _checkpoint(run, checkpoints)


def _evaluation(run: Run) -> EvaluateSpec:
    """Of this run's best model, on what it was not trained on."""
    spec = run.spec
    assert isinstance(spec, TrainSpec)
    shared = {name: getattr(spec, name) for name in ("csv_separator", "csv_img_key", "csv_caption_key", "classes")}
    shared |= {name: getattr(spec, name) for name in ("data_kind", "templates", "device")}
    if spec.precision != "auto":  # of an older or imported run that was not resolved
        shared["precision"] = spec.precision
    held = {"data": spec.val_data, "held_out": False} if spec.val_data else {"data": spec.data, "samples": spec.samples}
    return EvaluateSpec.model_validate({"model": str(run.id), **shared, **held})


def _checkpoint(run: Run, checkpoints: Sequence[Path]) -> None:
    """One of the checkpoints, for open_clip: `create_model(name, pretrained=path)` loads it."""
    names = [path.name for path in checkpoints]
    first = names.index("best.pt") if "best.pt" in names else 0
    chosen = st.selectbox("Checkpoint", names, first, key=f"checkpoint_{run.id}", width=160)
    path = checkpoints[names.index(chosen)]
    size = path.stat().st_size
    if size > LARGEST_DOWNLOAD:
        st.caption(plain(f"{size / 1e9:.1f} GB, too large to be sent from here: {path}"))
        return
    told = "Loads with open_clip.create_model(name, pretrained=path)."
    label = f"{chosen} ({size / 1e6:,.1f} MB)"
    download(label, path.read_bytes, f"train-{run.id}-{chosen}", key=f"checkpoint_file_{run.id}", help=told)
