"""Read the shipped catalogue as a table: one row per (library, model, image size), counted by our own engine."""

import json
import re
from collections.abc import Collection
from difflib import get_close_matches
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from engine import shipped
from engine.names import WILDCARD, expand, fits
from engine.results import LOW_MEMORY
from engine.specs import Refused, split_patterns

TEXT = ("library", "model", "family", "image_size", "test_size", "uncounted", "notes", "status", "error")
LONGEST_SEARCH = 1000
"""Longest search in characters. Each alternative is compared with every row at every keystroke."""


def read(catalog_dir: Path) -> pd.DataFrame:
    """Return every row of the catalogue, with `name` (library:model) as the first column and `remark` as the last.

    Models come at their own image size first, then at other sizes with published accuracies, if both tables were
    counted with the same versions. Empty if no catalogue was built yet.
    """
    files, sizes = sorted(catalog_dir.glob("*.csv")), catalog_dir / shipped.SIZES
    if shipped.versions(sizes) == shipped.versions(catalog_dir):
        files += sorted(sizes.glob("*.csv"))
    options: dict[str, Any] = {"dtype": dict.fromkeys(TEXT, str), "keep_default_na": False, "na_values": [""]}
    parts = [pd.read_csv(path, **options) for path in files]
    frame: pd.DataFrame = pd.concat(parts or [pd.DataFrame(columns=shipped.COLUMNS)], ignore_index=True)
    frame = frame.reindex(columns=list(dict.fromkeys([*frame, *shipped.COLUMNS])))  # an older catalogue has fewer
    frame = frame.astype(dict.fromkeys(TEXT, str)).fillna(dict.fromkeys(TEXT, ""))
    frame.insert(0, "name", frame["library"] + ":" + frame["model"])
    frame["remark"] = [_remark(row) for row in frame[["status", "error", "complete", "notes"]].itertuples(index=False)]
    return frame


def _remark(row: Any) -> str:
    """Return a warning about a row's values: why it failed, is incomplete or has too little memory of training."""
    if row.status != "ok":
        return f"{row.status}: {row.error}"
    if not row.complete:
        return f"incomplete: {'; '.join(json.loads(row.notes or '[]'))}"
    return LOW_MEMORY if LOW_MEMORY in str(row.notes) else ""  # a file may lack the column


def select(
    frame: pd.DataFrame,
    *,
    search: str = "",
    library: str | None = None,
    families: Collection[str] = (),
    image_sizes: Collection[str] = (),
    image_size: int | None = None,
    **bounds: float | None,
) -> pd.DataFrame:
    """Return the rows that meet every condition.

    image_sizes: as written in the column. image_size: a height in pixels. bounds: `min_` or `max_` with a column's
    name; they remove rows without a value, such as failed ones.
    """
    keep = matches(frame, search)
    if library:
        keep &= frame["library"] == library
    if families:
        keep &= frame["family"].isin(list(families))
    if image_sizes:
        keep &= frame["image_size"].isin(list(image_sizes))
    if image_size is not None:
        keep &= frame["image_size"].str.partition("x")[0] == str(image_size)
    for name, bound in bounds.items():
        if bound is not None:
            keep &= meets(frame, name, bound)
    return frame[keep]


def meets(frame: pd.DataFrame, name: str, bound: float) -> "pd.Series[bool]":
    """Return which rows meet a bound. A row without a value does not. name: as for `select`."""
    side, _, column = name.partition("_")
    return frame[column] >= bound if side == "min" else frame[column] <= bound


def matches(frame: pd.DataFrame, search: str) -> "pd.Series[bool]":
    """Return which rows match a search.

    Commas separate alternatives. A pattern with a wildcard (`ViT-B-*`, `timm:resnet*`) must match the whole name, with
    or without a pretrained tag (`resnet50.a1_in1k`). Without one, each word must occur in the name, the family or a
    tag. If no row has all words, punctuation is ignored: `ViT-B/32` finds ViT-B-32. Case does not matter. frame: may
    have a column `tags` with pretrained tags. Errors: Refused when the search is too long; those of `expand`.
    """
    if not (terms := _terms(search)):
        return pd.Series(not search.strip(" ,"), index=frame.index, dtype=bool)
    tags = frame["tags"].str.lower().str.split() if "tags" in frame else [()] * len(frame)
    named = zip(frame["name"].str.lower(), tags, strict=True)
    names = [[name, *(f"{name}.{tag}" for tag in row_tags)] for name, row_tags in named]
    families = list(frame["family"].str.lower())
    lines = [f"{' '.join(row_names)} {family}" for row_names, family in zip(names, families, strict=True)]

    @cache
    def letters() -> list[str]:
        return [" ".join(map(_letters, line.split())) for line in lines]

    def alternative(term: str) -> list[bool]:
        if term.startswith("family:"):
            return list(map(fits(term.removeprefix("family:")), families))
        if WILDCARD.search(term):
            fits_term = fits(term if ":" in term else f"*:{term}")
            return [any(map(fits_term, row_names)) for row_names in names]
        words = term.split()
        keep = [all(word in line for word in words) for line in lines]
        if not any(keep) and all(words := list(map(_letters, words))):
            keep = [all(word in line for word in words) for line in letters()]
        return keep

    found = np.any(list(map(alternative, dict.fromkeys(terms))), axis=0)
    return pd.Series(found, index=frame.index, dtype=bool)


def _terms(search: str) -> list[str]:
    if len(search) > LONGEST_SEARCH:
        raise Refused(f"a search has at most {LONGEST_SEARCH:,} characters, this one {len(search):,}: shorten it")
    return expand(split_patterns(search.lower()))


def _letters(text: str) -> str:
    """Return a text without its punctuation: `vit-b/32` is `vitb32`."""
    return re.sub(r"[\W_]+", "", text)


def closest(frame: pd.DataFrame, search: str) -> list[str]:
    """Return up to three names of models similar to a search that matches none, closest first."""
    if matches(frame, search).any():
        return []
    names = {_letters(model.lower()): model for model in frame["model"]}
    similar = [get_close_matches(_letters(term.rpartition(":")[2]), names, 3, 0.5) for term in _terms(search)]
    return [names[name] for name in dict.fromkeys(chain.from_iterable(similar))][:3]


def image_sizes(frame: pd.DataFrame) -> list[str]:
    """Return the image sizes that occur, smallest first."""
    return sorted(set(frame["image_size"]) - {""}, key=lambda size: [int(side) for side in size.split("x")])


def sizes_to_count(everything: pd.DataFrame, rows: pd.DataFrame) -> tuple[str, ...]:
    """Return the image sizes with which a profile of these rows' models counts these rows and no others.

    Empty for rows at their models' own image sizes, and if no list of sizes fits all models. everything: from `read`.
    """
    wanted = rows.drop_duplicates(["name", "image_size"])
    own_sizes = wanted["name"].map(everything.drop_duplicates("name").set_index("name")["image_size"])
    sizes = image_sizes(wanted)
    is_grid = len(wanted) == wanted["name"].nunique() * len(sizes)
    return tuple(sizes) if is_grid and not wanted["image_size"].equals(own_sizes) else ()


def families(frame: pd.DataFrame) -> list[str]:
    """Return the families that occur, most models first. This order gives each family its colour."""
    counts = frame.groupby("family").size().reset_index(name="models")
    return list(counts.sort_values(["models", "family"], ascending=[False, True])["family"])


def describe(counted_with: dict[str, str]) -> str:
    """Return the versions that affect the counts, such as `torch 2.15.0, timm 1.0.31 on 2026-11-20`."""
    names = ("torch", "open_clip_torch", "timm", "torchvision")
    parts = [f"{name} {counted_with[name]}" for name in names if name in counted_with]
    date = counted_with.get("counted_on", "")
    return ", ".join(parts) + (f" on {date[:10]}" if date else "")
