"""Match published accuracies to the catalogue, by model, pretrained tag and image size.

All are in per cent. Values from different publishers are in different columns and are never combined.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from engine.published.publishers import TABLE_OF, TABLES, Table
from engine.settings import ROOT
from engine.specs import Refused

SHIPPED = ROOT / "data" / "published"
KEY = ["library", "model", "pretrained", "image_size"]
COLUMNS = [*KEY, "accuracy", "percent", "source"]
QUICKGELU = "-quickgelu"
"""open_clip adds this to a model's name for another activation, which costs no multiply-adds."""


def read(imported: Path | None = None, shipped: Path = SHIPPED) -> pd.DataFrame:
    """Return one line per published accuracy: KEY, accuracy, percent, source. Imported ones replace shipped ones.

    imported: the folder of imported tables, `update.folder`. `image_size` is empty if the publisher does not give it:
    open_clip does not, because its models have one size each. Errors: Refused when an imported table is damaged.
    """
    files = sorted(imported.glob("*.csv")) if imported else []
    parts = [read_lines(path) for path in files]
    types = {"model": str, "pretrained": str, "image_size": str}
    tables = ((table, pd.read_csv(shipped / table.shipped, dtype=types)) for table in TABLES.values())
    parts += [tidy(frame, table, table.source) for table, frame in tables]
    return pd.concat(parts).drop_duplicates([*KEY, "accuracy"], ignore_index=True)


def read_lines(path: Path) -> pd.DataFrame:
    """Return the lines of an imported file: COLUMNS. In older files, `accuracy` is called `figure`. Errors: Refused."""
    try:
        lines = pd.read_csv(path, dtype=str, na_filter=False).rename(columns={"figure": "accuracy"})
        return lines[COLUMNS].astype({"percent": float})
    except (OSError, ValueError, KeyError) as error:
        advice = "delete it, and import the publisher's table again"
        raise Refused(f"{path} is no table of imported accuracies that can be read: {advice}") from error


def tidy(frame: pd.DataFrame, table: Table, source: str) -> pd.DataFrame:
    """Return a publisher's table as lines of COLUMNS. frame: columns under our names, values in their unit."""
    frame = frame.assign(library=table.library)
    if "image_size" not in frame:
        frame["image_size"] = ""
    names = [accuracy.name for accuracy in table.accuracies if accuracy.name in frame]
    lines = frame.fillna({"pretrained": ""}).melt(KEY, names, "accuracy", "percent").dropna(subset="percent")
    return lines.assign(percent=(lines["percent"] * table.scale).round(6), source=source)[COLUMNS]


def with_tagged_models(published: pd.DataFrame, models: Collection[str]) -> pd.DataFrame:
    """Return published accuracies with `model.tag` as the model where the catalogue has a model of this name.

    An example is `tiny_vit_21m_224.in1k`. models: qualified names of the catalogue.
    """
    tagged = published["model"] + "." + published["pretrained"]
    known = (published["library"] + ":" + tagged).isin(list(models))
    return published.assign(model=published["model"].where(~known, tagged))


@dataclass(frozen=True)
class Matched:
    """Published accuracies with the rows of the catalogue to which they belong."""

    rows: pd.DataFrame
    """One line per KEY: KEY, `place` (the catalogue's row label), and one column per accuracy, in per cent."""
    sources: pd.DataFrame
    """The source of each accuracy in `rows`."""
    counts: pd.DataFrame
    """One line per table: kind, rows, matched, unmatched."""
    unmatched: pd.DataFrame
    """One line per row without a match: kind, KEY and the reason."""

    @cached_property
    def tags(self) -> "pd.Series[str]":
        """Return the pretrained tags, separated by spaces, of each row of the catalogue that has any."""
        return self.rows.groupby("place")["pretrained"].agg(" ".join)

    def beside(self, catalogue: pd.DataFrame, accuracies: Sequence[str]) -> pd.DataFrame:
        """Return the catalogue with these accuracies: a row per model, size and tag that has one of them, and one row
        for each other model and size.

        It has two more columns: `pretrained`, which includes the published model's name if that differs from the
        catalogue's, and `published`, the sources.
        """
        rows = self.rows.dropna(subset=list(accuracies), how="all")
        sources = self.sources.loc[rows.index, list(accuracies)].to_numpy()
        published = ["; ".join(dict.fromkeys(text for text in texts if isinstance(text, str))) for texts in sources]
        has_same_name = rows["model"] == catalogue.loc[rows["place"], "model"].to_numpy()
        tags = rows["pretrained"].where(has_same_name, rows["pretrained"] + " (" + rows["model"] + ")")
        more = rows[["place", *accuracies]].assign(pretrained=tags, published=published)
        joined = catalogue.merge(more, left_index=True, right_on="place", how="left").drop(columns="place")
        return joined.fillna({"pretrained": "", "published": ""}).reset_index(drop=True)


def match(published: pd.DataFrame, catalogue: pd.DataFrame, versions: dict[str, str]) -> Matched:
    """Match every published row to the catalogue's row counted at the published image size.

    versions: libraries with which the catalogue was counted. A row without a match gets a reason.
    """
    published = with_tagged_models(published, set(catalogue["name"]))
    entries = published[KEY].drop_duplicates()
    find = _Finder(catalogue, versions)
    matches = [find(*entry) for entry in entries[["library", "model", "image_size"]].itertuples(index=False, name=None)]
    counted_at = [catalogue["image_size"].get(place, "") for place, _ in matches]  # open_clip's tables contain no size
    entries = entries.assign(place=pd.array([place for place, _ in matches], dtype="Int64"), counted_at=counted_at)
    lines = published.merge(entries.assign(reason=[reason for _, reason in matches]), on=KEY)
    lines["kind"] = lines["accuracy"].map({name: table.kind for name, table in TABLE_OF.items()})
    per_row = lines.drop_duplicates(["kind", *KEY])
    counts = per_row.groupby("kind", sort=False)["place"].agg(rows="size", matched="count").reset_index()
    matched = lines[lines["place"].notna()].assign(image_size=lambda part: part["counted_at"])
    return Matched(
        rows=_wide(matched, "percent").reset_index(),
        sources=_wide(matched, "source").reset_index(drop=True),
        counts=counts.assign(unmatched=counts["rows"] - counts["matched"]),
        unmatched=per_row.loc[per_row["place"].isna(), ["kind", *KEY, "reason"]].reset_index(drop=True),
    )


def _wide(lines: pd.DataFrame, values: str) -> pd.DataFrame:
    """Return a line per KEY and place, with a column per accuracy."""
    wide = lines.pivot(index=[*KEY, "place"], columns="accuracy", values=values)
    return wide.reindex(columns=list(TABLE_OF)).rename_axis(columns=None)


class _Finder:
    """Find published rows in the catalogue."""

    def __init__(self, catalogue: pd.DataFrame, versions: dict[str, str]) -> None:
        names = catalogue[["library", "model", "image_size", "status", "error"]]
        self.rows = {tuple(row[:3]): (label, *row[3:]) for label, *row in names.itertuples(name=None)}
        first = names.drop_duplicates(["library", "model"])
        keys = zip(first["library"], first["model"], strict=True)
        self.first_sizes = dict(zip(keys, first["image_size"], strict=True))
        self.versions = {"timm": versions.get("timm", ""), "open_clip": versions.get("open_clip_torch", "")}

    def __call__(self, library: str, model: str, size: str) -> tuple[int | None, str]:
        """Return the row's label, or None and the reason why there is none."""
        if (library, model) not in self.first_sizes:
            model = model.removesuffix(QUICKGELU)
        if (library, model) not in self.first_sizes:
            return None, f"{library} {self.versions.get(library, '')} has no model of this name".replace("  ", " ")
        size = size or self.first_sizes[library, model]
        if (library, model, size) not in self.rows:
            return None, f"not counted at {size} px: run catalog-build --sizes-only"
        label, status, error = self.rows[library, model, size]
        return (label, "") if status == "ok" else (None, f"cannot be counted at {size} px: {error}")


def sizes(published: pd.DataFrame) -> dict[str, list[str]]:
    """Return the image sizes that accuracies are published for, by qualified model name."""
    distinct = published.loc[published["image_size"] != "", ["library", "model", "image_size"]].drop_duplicates()
    return {f"{library}:{model}": list(part) for (library, model), part in distinct.groupby(KEY[:2])["image_size"]}
