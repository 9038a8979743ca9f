"""One model of the catalogue: which one a name means, what it costs, and the requests that find its figures again."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from engine.names import ModelNotFound, resolve
from engine.published.match import QUICKGELU
from engine.published.publishers import FIGURES
from engine.report import frames
from engine.results import ProfileRow
from engine.specs import BenchmarkSpec, ModelName, ProfileSpec, Refused, Spec
from engine.specs.evaluate import EvaluateSpec
from engine.specs.train import TrainSpec

LONGEST_NAME = 200
TRAINABLE = "open_clip"
"""The library whose models can be trained and evaluated here."""


def find(asked: str, families: Mapping[ModelName, str]) -> ModelName:
    """Return the model that a name or pattern means. families: as for names.resolve.

    Errors: ModelNotFound with the closest matches, or with those that a pattern means; Refused of what is no name.
    """
    if len(asked) > LONGEST_NAME:
        raise Refused(f"a model's name has at most {LONGEST_NAME} characters, this one {len(asked):,}")
    found = resolve([asked], families)
    if len(found) > 1:
        first = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
        raise ModelNotFound(f"{asked!r} means {len(found)} models ({first}), and this page shows one")
    return found[0]


def sizes(catalogue: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the rows of the catalogue that a model has, its own image size first."""
    return catalogue[catalogue["name"] == name].reset_index(drop=True)


def towers(row: "pd.Series[Any]") -> pd.DataFrame:
    """Return the towers of a catalogue row, as frames.towers has them; empty if they were not counted apart."""
    names = [
        f"{tower}{figure}" for tower in ("", "image_", "text_", "other_") for figure in ("mparams", "gmacs", "macts")
    ]
    figures = {name: row[name] for name in names if name in row.index and pd.notna(row[name])}
    how = {"counter": "torch", "device": "meta", "batch_size": 1, "precision": "float32"}
    return frames.towers(
        ProfileRow.model_validate({"library": row["library"], "model": row["model"], **how, **figures})
    )


def published(accuracies: pd.DataFrame, name: ModelName, families: Mapping[ModelName, str]) -> pd.DataFrame:
    """Return all accuracies published for a model, a line each: its columns, and `label`, what the figure is called.

    accuracies: of accuracies.read. A publisher's own name of the same model with another activation, which is not in
    the catalogue, counts as the model.
    """
    quick = ModelName(f"{name}{QUICKGELU}")
    names = [name.model, *([quick.model] if name.library == TRAINABLE and quick not in families else [])]
    lines = accuracies[(accuracies["library"] == name.library) & accuracies["model"].isin(names)]
    return lines.assign(label=lines["figure"].map(lambda figure: FIGURES[figure].label)).reset_index(drop=True)


def by_tag(lines: pd.DataFrame) -> pd.DataFrame:
    """Published accuracies with a row per figure and a column per pretrained tag (and image size where several differ).

    lines: of `published`. Columns: label, the tags, source (of the whole line).
    """
    several = lines.groupby(["model", "pretrained"])["image_size"].transform("nunique") > 1
    named = lines["pretrained"].where(lines["pretrained"] != "", lines["model"])
    tag = named.where(~several, named + " at " + lines["image_size"] + " px")
    wide = lines.assign(tag=tag).pivot_table("percent", "label", "tag", aggfunc="first", sort=False)
    sources = lines.groupby("label", sort=False)["source"].agg(lambda parts: "; ".join(dict.fromkeys(parts)))
    order = [figure.label for figure in FIGURES.values() if figure.label in wide.index]
    return wide.assign(source=sources).loc[order].rename_axis(columns=None).reset_index()


def requests(name: ModelName, accuracies: pd.DataFrame) -> dict[str, Spec]:
    """Return what finds the figures of a model again, by what it does. accuracies: of `published`, for its tags."""
    model, models = name.model, (name,)
    found: dict[str, Spec] = {
        "Count it, module by module": ProfileSpec(models=models, detail=True),
        "Time inference": BenchmarkSpec(models=models),
        "Time training": BenchmarkSpec(models=models, mode="training"),
        "Time eager against compile": BenchmarkSpec(models=models, variants=("eager", "compile")),
        "Find the largest batch that fits": BenchmarkSpec(models=models, batch_size="max"),
    }
    if name.library == TRAINABLE:
        tags = accuracies.loc[accuracies["model"] == model, "pretrained"] if len(accuracies) else accuracies
        tag = str(tags.iloc[0]) if len(tags) else ""
        found["Train it from scratch"] = TrainSpec(model=model)
        if tag:
            found["Fine-tune it"] = TrainSpec(model=model, pretrained=tag)
        found["Evaluate it"] = EvaluateSpec(model=model, checkpoint=tag)
    return found
