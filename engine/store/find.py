"""Filter, count and page runs in the database, without reading their results."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, func, literal, or_, select

from engine.specs import Refused
from engine.specs.base import numbered
from engine.store.database import Database
from engine.store.listing import folded_model
from engine.store.model import Run, State
from engine.store.records import RUNS, TAGS, devices_of, readable_run
from engine.store.tables import run_models, run_tags, run_texts, runs

WILDCARDS = {"*": "%", "?": "_"}
BATCH = 500
LINES: Select[Any] = select(
    runs.c.id.label("run"),
    runs.c.summary.label("what"),
    *(runs.c[name] for name in "kind name state cause error done total devices notes".split()),
    *(runs.c[f"{name}_at"].label(name) for name in ("created", "started", "ended")),
    TAGS.label("tags"),
)
"""Query for runs as lines of a table. Times are seconds since the epoch, devices a JSON list, tags joined by newlines.
"""
LONGEST_SEARCH = 200
"""Characters of one search text. Each word becomes a condition of the query, and SQLite allows 1,000."""


@dataclass(frozen=True)
class Filter:
    """Conditions and order of a list of runs. Empty fields do not restrict it."""

    kinds: tuple[str, ...] = ()
    states: tuple[State, ...] = ()
    model: str = ""
    """Part of the name of a model that the run requested or has a row for; the full name if it contains `*` or `?`."""
    only_model: str = ""
    """The full name of such a model, with or without its library."""
    device: str = ""
    tags: tuple[str, ...] = ()
    """The run must have all of these tags."""
    text: str = ""
    """Words that must all occur in the run's name, summary, notes or error."""
    oldest_first: bool = False

    def __post_init__(self) -> None:
        """Errors: Refused when a text is too long or contains a NUL character."""
        for searched in (self.model, self.only_model, self.text):
            if len(searched) > LONGEST_SEARCH:
                raise Refused(
                    f"a search has at most {LONGEST_SEARCH} characters, this one {len(searched):,}: shorten it"
                )
            if "\0" in searched:
                raise Refused(f"{searched!r} has a NUL character, which no text of a run has: remove it")


def find(database: Database, wanted: Filter, *, limit: int, offset: int = 0) -> list[Run]:
    """Return one page of the matching runs. Runs that this version cannot read are left out."""
    order = runs.c.id.asc() if wanted.oldest_first else runs.c.id.desc()
    page = select(runs.c.id).where(*_conditions(wanted)).order_by(order).limit(limit).offset(offset)
    with database.read() as connection:
        ids = list(connection.scalars(page))  # ids first, from indexes alone: rows of `runs` are wide
        table_rows = connection.execute(RUNS.where(runs.c.id.in_(ids)).order_by(order))
        return [run for row in table_rows if (run := readable_run(row))]


def count(database: Database, wanted: Filter) -> int:
    """Return the number of matching runs on all pages."""
    with database.read() as connection:
        return connection.scalar(select(func.count()).select_from(runs).where(*_conditions(wanted))) or 0


def lines(database: Database, wanted: Filter) -> Iterator[list[dict[str, Any]]]:
    """Yield the columns LINES of all matching runs, in batches of BATCH. No spec is read."""
    order = runs.c.id.asc() if wanted.oldest_first else runs.c.id.desc()
    with database.read() as connection:
        ids = list(connection.scalars(select(runs.c.id).where(*_conditions(wanted)).order_by(order)))
    for place in range(0, len(ids), BATCH):
        with database.read() as connection:
            batch = LINES.where(runs.c.id.in_(ids[place : place + BATCH])).order_by(order)
            yield [dict(row._mapping) for row in connection.execute(batch)]


def devices(database: Database) -> list[str]:
    """Return all devices that any run has requested, sorted."""
    with database.read() as connection:
        lists = connection.scalars(select(runs.c.devices).distinct())
        return sorted({device for devices in lists for device in devices_of(devices)})


def _conditions(wanted: Filter) -> Iterator[ColumnElement[bool]]:
    if wanted.kinds:
        yield runs.c.kind.in_(wanted.kinds)
    if wanted.states:
        yield runs.c.state.in_(wanted.states)
    if wanted.device:
        yield runs.c.devices.contains(json.dumps(numbered(wanted.device)), autoescape=True)
    for tag in wanted.tags:
        yield runs.c.id.in_(select(run_tags.c.run_id).where(run_tags.c.tag == tag))
    if wanted.model:
        yield runs.c.id.in_(_of_model(wanted.model))
    if wanted.only_model:
        named = run_models.c.model == folded_model(wanted.only_model)
        yield runs.c.id.in_(select(run_models.c.run_id).where(named))
    for word in dict.fromkeys(wanted.text.casefold().split()):
        matching = select(run_texts.c.run_id).where(run_texts.c.text.contains(word, autoescape=True))
        failed = (runs.c.state == State.FAILED) & func.lower(runs.c.error).contains(word, autoescape=True)
        yield or_(runs.c.id.in_(matching), runs.c.id.in_(select(runs.c.id).where(failed)))


def _of_model(pattern: str) -> Select[Any]:
    """Return a query for runs of models whose names match.

    Distinct names are few, so a recursive query jumps from name to name along the index instead of reading every run.
    """
    first = select(func.min(run_models.c.model).label("model")).cte("names", recursive=True)
    following = select(func.min(run_models.c.model)).where(run_models.c.model > first.c.model).scalar_subquery()
    names = first.union_all(select(following).where(first.c.model.is_not(None)))
    matching = select(names.c.model).where(names.c.model.like(literal(_like(folded_model(pattern))), escape="/"))
    return select(run_models.c.run_id).where(run_models.c.model.in_(matching))


def _like(pattern: str) -> str:
    """Return a LIKE pattern for a name with wildcards; for a name without, one that matches any part."""
    whole = any(sign in pattern for sign in WILDCARDS)
    escaped = "".join(f"/{sign}" if sign in "/%_" else WILDCARDS.get(sign, sign) for sign in pattern)
    return escaped if whole else f"%{escaped}%"
