"""Describe one model of the catalogue: resolve its name, and return its costs and the requests to measure it here."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from engine.names import ModelNotFound, resolve
from engine.published.match import QUICKGELU
from engine.published.publishers import ACCURACIES
from engine.results import Row
from engine.results.clip import EvaluateRow, TrainRow, best_epoch
from engine.specs import BenchmarkSpec, ModelName, ProfileSpec, Refused, Spec
from engine.specs.evaluate import EvaluateSpec
from engine.specs.train import TrainSpec
from engine.store import Run
from engine.words import shortened

LONGEST_NAME = 200
HEADLINES = ("imagenet_top1", "zeroshot_imagenet_1k")
"""The accuracies that a model's page states at the top."""
TRAINABLE = "open_clip"
"""The library whose models can be trained and evaluated here."""


def find(text: str, families: Mapping[ModelName, str]) -> ModelName:
    """Return the only model that matches a name or pattern. families: as for names.resolve.

    Errors: ModelNotFound with the closest names, or with all matches of a pattern; Refused when the name is too long.
    """
    if len(text) > LONGEST_NAME:
        raise Refused(f"a model's name has at most {LONGEST_NAME} characters, this one {len(text):,}")
    matches = resolve([text], families)
    if len(matches) > 1:
        raise ModelNotFound(f"{text!r} means {len(matches)} models ({shortened(matches)}), and this page shows one")
    return matches[0]


def sizes(catalogue: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return a model's rows in the catalogue, its own image size first."""
    return catalogue[catalogue["name"] == name].reset_index(drop=True)


def published(accuracies: pd.DataFrame, name: ModelName, families: Mapping[ModelName, str]) -> pd.DataFrame:
    """Return all accuracies published for a model, one per line: their columns, and `label`, the accuracy's label.

    accuracies: from published.match.read. Those of the same architecture with the activation QuickGELU are included if
    the catalogue does not have it as a model of its own.
    """
    quick = ModelName(f"{name}{QUICKGELU}")
    names = [name.model, *([quick.model] if name.library == TRAINABLE and quick not in families else [])]
    lines = accuracies[(accuracies["library"] == name.library) & accuracies["model"].isin(names)]
    return lines.assign(label=lines["accuracy"].map(lambda name: ACCURACIES[name].label)).reset_index(drop=True)


def headline(lines: pd.DataFrame) -> "pd.Series[Any] | None":
    """Return the highest accuracy on ImageNet 1k among those published for a model; None if there is none."""
    on_imagenet = lines[lines["accuracy"].isin(HEADLINES)]
    return None if on_imagenet.empty else on_imagenet.sort_values("percent").iloc[-1]


def by_tag(lines: pd.DataFrame) -> pd.DataFrame:
    """Return published accuracies with a row per accuracy and a column per pretrained tag (and image size if there are
    several).

    lines: from `published`. Columns: label, the tags, source (of the whole line).
    """
    tag = lines["pretrained"].where(lines["pretrained"] != "", lines["model"])
    if lines["image_size"].nunique() > 1:
        tag += " at " + lines["image_size"] + " px"
    wide = lines.assign(tag=tag).pivot_table("percent", "label", "tag", aggfunc="first", sort=False)
    sources = lines.groupby("label", sort=False)["source"].agg(lambda parts: "; ".join(dict.fromkeys(parts)))
    order = [accuracy.label for accuracy in ACCURACIES.values() if accuracy.label in wide.index]
    return wide.assign(source=sources).loc[order].rename_axis(columns=None).reset_index()


def requests(name: ModelName, accuracies: pd.DataFrame) -> dict[str, Spec]:
    """Return requests that measure a model here, by their label. accuracies: from `published`, for its tags."""
    model, models = name.model, (name,)
    specs: dict[str, Spec] = {
        "Count it, module by module": ProfileSpec(models=models),
        "Time inference": BenchmarkSpec(models=models),
        "Time training": BenchmarkSpec(models=models, mode="training"),
        "Time eager against compile": BenchmarkSpec(models=models, variants=("eager", "compile")),
        "Find the largest batch that fits": BenchmarkSpec(models=models, batch_size="max"),
    }
    if name.library == TRAINABLE:
        tag = next((line.pretrained for line in accuracies.itertuples() if line.model == model), "")
        specs["Train it from scratch"] = TrainSpec(model=model)
        if tag:
            specs["Fine-tune it"] = TrainSpec(model=model, pretrained=tag)
        specs["Evaluate it"] = EvaluateSpec(model=model, checkpoint=tag)
    return specs


MAIN_SHARES = ("zeroshot_top1", "linear_probe_top1", "mean_average_precision", "image_to_text_r1", "text_to_image_r1")
"""The columns with values from 0 to 1."""
COLUMNS = ["run", "date", "what", "state", "data", "begins_with", "epochs", *MAIN_SHARES, "clip_val_loss", "seconds"]


def of_runs(runs: Iterable[tuple[Run, Sequence[Row]]], name: ModelName) -> pd.DataFrame:
    """Return a line per training or evaluation of a model: COLUMNS, newest first. runs: with their rows.

    A training has the values of its best epoch, or else of its last; if the model was only the teacher, it has none,
    because the values are the student's. An evaluation has the values of its tasks.
    """
    lines = [line for run, rows in runs if (line := _line(run, rows, name.model))]
    frame = pd.DataFrame(lines, columns=COLUMNS)
    numbers = [*MAIN_SHARES, "clip_val_loss", "seconds", "epochs"]
    frame = frame.astype(dict.fromkeys(numbers, float)).assign(date=pd.to_datetime(frame["date"], utc=True))
    return frame.sort_values("run", ascending=False, ignore_index=True)


def _line(run: Run, rows: Sequence[Row], model: str) -> dict[str, object]:
    spec = run.spec
    shared = {"run": run.id, "date": run.created_at, "state": run.outcome}
    if isinstance(spec, TrainSpec) and model in (spec.model, spec.distill_model):
        what = "fine-tune" if spec.begins_with else "from scratch"
        weights, values = spec.begins_with, _train_values(rows)
        if spec.model != model:
            what, weights = f"taught {spec.model}", spec.distill_pretrained
            values = {name: values[name] for name in ("epochs", "seconds") if name in values}
        return shared | {"what": what, "data": spec.data, "begins_with": weights} | values
    if isinstance(spec, EvaluateSpec):
        subject = next((names for names in spec.subjects if names[0] == model), None)
        if subject:  # only the first of several checkpoints or data sets is shown
            part = (*subject, spec.data)
            if len(spec.parts) > 1:
                rows = [row for row in rows if isinstance(row, EvaluateRow) and row.part == part]
            return shared | {"what": "evaluation", "data": spec.data, "begins_with": subject[1]} | _task_values(rows)
    return {}


def _train_values(rows: Sequence[Row]) -> dict[str, object]:
    epochs = [row for row in rows if isinstance(row, TrainRow)]
    if not epochs:
        return {}
    last_values: dict[str, object] = {"epochs": epochs[-1].epoch, "seconds": epochs[-1].seconds}
    if not epochs[-1].step:  # the initial weights alone
        return last_values
    best = best_epoch(epochs) or epochs[-1]
    names = [name for name in (*MAIN_SHARES, "clip_val_loss") if name in TrainRow.model_fields]
    return {name: getattr(best, name) for name in names} | last_values


def _task_values(rows: Sequence[Row]) -> dict[str, object]:
    values: dict[str, object] = {}
    for row in rows:
        if not isinstance(row, EvaluateRow) or row.status != "ok":
            continue
        if row.task == "retrieval":
            values |= {name: getattr(row, name) for name in ("image_to_text_r1", "text_to_image_r1", "clip_val_loss")}
        else:
            values[{"zeroshot": "zeroshot_top1", "linear-probe": "linear_probe_top1"}[row.task]] = row.acc1
            if row.mean_average_precision is not None:
                values["mean_average_precision"] = row.mean_average_precision
    seconds = [row.seconds for row in rows if isinstance(row, EvaluateRow) and row.seconds is not None]
    return values | ({"seconds": sum(seconds)} if seconds else {})
