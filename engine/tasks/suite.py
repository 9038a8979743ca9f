"""Update the suite for the installed timm: `python -m engine suite-build`."""

import csv
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from engine import atomic, suite
from engine.models import timm_models
from engine.settings import ROOT
from engine.specs import Refused
from engine.suite import Entry
from engine.tasks.catalogue import table

CATALOG = ROOT / "data" / "catalog" / "timm.csv"
LARGEST_BATCH = 1024
"""Maximum batch size of a new entry, as in the list of PyTorch's benchmark."""
Counted = Mapping[str, tuple[float, float]]
"""GMACs and millions of activations per image, by model."""


def build(file: Path = suite.FILE, catalog: Path = CATALOG) -> list[Entry]:
    """Keep the listed models that timm still has, add one for every family without one, and rewrite the file.

    Errors: Refused if the catalogue has no model of a family.
    """
    entries = updated(suite.read(file), timm_models.families(), _read_counts(catalog))
    atomic.write(file, table([field.name for field in fields(Entry)], map(asdict, entries)))
    suite.entries.cache_clear()
    return entries


def updated(listed: Sequence[Entry], families: Mapping[str, str], counted: Counted) -> list[Entry]:
    """Return the updated entries, sorted by name. families: the family of every model of timm."""
    kept = [entry for entry in listed if entry.model in families]
    members: dict[str, list[str]] = {}
    for model, family in families.items():
        if not model.startswith("test_"):  # timm's own test models, which are tiny
            members.setdefault(family, []).append(model)
    for family in {families[entry.model] for entry in kept}:
        members.pop(family, None)
    budget = _budget(kept, counted)
    added = [_entry(_median_model(family, models, counted), counted, budget) for family, models in members.items()]
    return sorted([*kept, *added], key=lambda entry: entry.name)


def _median_model(family: str, models: Sequence[str], counted: Counted) -> str:
    """Return the model of median GMACs; of two in the middle, the smaller. Errors: Refused."""
    by_cost = [(counted[model][0], model) for model in models if model in counted]
    if not by_cost:
        raise Refused(f"the catalogue has no model of the family {family}: run catalog-build first")
    return statistics.median_low(by_cost)[1]


def _budget(listed: Sequence[Entry], counted: Counted) -> float:
    """Return millions of activations per batch, the median of the listed models. Errors: Refused."""
    batches = [entry.batch_size * counted[entry.model][1] for entry in listed if entry.model in counted]
    if not batches:
        raise Refused("none of the listed models is in the catalogue: batch sizes of new ones cannot be estimated")
    return statistics.median(batches)


def _entry(model: str, counted: Counted, budget: float) -> Entry:
    """Return the entry of a model. Its batch size is the largest power of two within the budget of activations."""
    largest = max(1, min(LARGEST_BATCH, int(budget / counted[model][1])))
    return Entry(name=model, model=model, batch_size=2 ** (largest.bit_length() - 1))


def _read_counts(catalog: Path) -> dict[str, tuple[float, float]]:
    with catalog.open(newline="", encoding="utf-8") as file:
        return {
            line["model"]: (float(line["gmacs"]), float(line["macts"]))
            for line in csv.DictReader(file)
            if line["gmacs"] and float(line["macts"] or 0) > 0
        }
