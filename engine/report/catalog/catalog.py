"""Read the shipped catalogue as a table: one row per (library, model, image size), counted by our own engine."""

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pandas as pd

from engine import shipped
from engine.names import WILDCARD, expand, fits
from engine.specs import Refused, split_patterns

TEXT = ("library", "model", "family", "image_size", "test_size", "uncounted", "notes", "status", "error")
LONGEST_SEARCH = 1000
"""Longest search in characters. Each alternative is compared with every row at every keystroke."""
SIZES = "sizes"
"""Subfolder of the catalogue for image sizes other than the models' own."""
COLUMNS = (*TEXT[:4], "mparams", "gmacs", "macts", "complete", *TEXT[4:])


def read(catalog_dir: Path) -> pd.DataFrame:
    """Return every row of the catalogue, with `name` (library:model) as the first column and `remark` as the last.

    Models come at their own image size first, then at sizes with published accuracies, if those were counted with the
    same versions. Empty if no catalogue was built yet.
    """
    files, sizes = sorted(catalog_dir.glob("*.csv")), catalog_dir / SIZES
    if shipped.versions(sizes) == shipped.versions(catalog_dir):
        files += sorted(sizes.glob("*.csv"))
    parts = [
        pd.read_csv(path, dtype=dict.fromkeys(TEXT, str), keep_default_na=False, na_values=_numbers_only(path))
        for path in files
    ]
    frame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(COLUMNS))
    frame.insert(0, "name", frame["library"] + ":" + frame["model"])
    frame["remark"] = [_remark(row) for row in frame[["status", "error", "complete", "notes"]].itertuples(index=False)]
    return frame


def _remark(row: Any) -> str:
    """Return a warning about a row's values: why it failed or is incomplete. Empty for a complete count."""
    if row.status != "ok":
        return f"{row.status}: {row.error}"
    return "" if row.complete else f"incomplete: {'; '.join(json.loads(row.notes or '[]'))}"


def _numbers_only(path: Path) -> dict[str, list[str]]:
    """Return the columns in which empty cells are missing numbers. In all others they are empty texts."""
    columns = pd.read_csv(path, nrows=0).columns
    return {column: [""] for column in columns if column not in TEXT}


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
        side, _, column = name.partition("_")
        if bound is not None:
            keep &= frame[column] >= bound if side == "min" else frame[column] <= bound
    return frame[keep]


def matches(frame: pd.DataFrame, search: str) -> "pd.Series[bool]":
    """Return which rows match a search.

    Commas separate alternatives. One with a wildcard (`ViT-B-*`, `timm:resnet*`) must match the whole name. In one
    without, each word must occur in name or family. Case does not matter. Errors: Refused when the search is too long,
    and those of `expand`.
    """
    if len(search) > LONGEST_SEARCH:
        raise Refused(f"a search has at most {LONGEST_SEARCH:,} characters, this one {len(search):,}: shorten it")
    alternatives = [_alternative(term) for term in expand(split_patterns(search.lower()))]
    if not alternatives:
        return pd.Series(True, index=frame.index)
    names, families = frame["name"].str.lower(), frame["family"].str.lower()
    keep = [any(fit(name, family) for fit in alternatives) for name, family in zip(names, families, strict=True)]
    return pd.Series(keep, index=frame.index, dtype=bool)


def _alternative(term: str) -> Callable[[str, str], bool]:
    """Return a function that tests a name and a family for one alternative of a search."""
    if term.startswith("family:"):
        whole = fits(term.removeprefix("family:"))
        return lambda name, family: whole(family)
    if WILDCARD.search(term):
        whole = fits(term)
        return lambda name, family: whole(name if ":" in term else name.partition(":")[2])
    words = term.split()
    return lambda name, family: all(word in name or word in family for word in words)


def image_sizes(frame: pd.DataFrame) -> list[str]:
    """Return the image sizes that occur, smallest first."""
    return sorted(set(frame["image_size"]) - {""}, key=lambda size: [int(side) for side in size.split("x")])


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
