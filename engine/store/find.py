"""Queries for the runs that match a filter, without reading their results."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, Select, case, exists, func, or_, select

from engine.specs import BenchmarkSpec, ModelName, Refused, TrainSpec
from engine.specs.base import numbered
from engine.store.listing import LONGEST_MODEL
from engine.store.model import ENDED, State
from engine.store.records import EARLIER_S, TAGS, storable
from engine.store.tables import run_models, run_results, run_tags, run_texts, runs

WILDCARDS = {"*": "%", "?": "_"}
Order = Literal["newest", "oldest", "loss", "held_out_loss", "accuracy", "latency"]
ORDERS: dict[Order, tuple[ColumnElement[Any], ...]] = {
    "newest": (runs.c.id.desc(),),
    "oldest": (runs.c.id.asc(),),
    "loss": (run_results.c.loss.asc().nulls_last(), runs.c.id.desc()),
    "held_out_loss": (run_results.c.held_out_loss.asc().nulls_last(), runs.c.id.desc()),
    "accuracy": (run_results.c.accuracy.desc().nulls_last(), runs.c.id.desc()),
    "latency": (run_results.c.latency_ms.asc().nulls_last(), runs.c.id.desc()),
}
"""Orders of a list over all its pages. Runs without the value come last."""
_CONTINUING = [spec.kind for spec in (BenchmarkSpec, TrainSpec) if spec.continues]
LINES: Select[Any] = select(
    runs.c.id.label("run"),
    runs.c.kind,
    runs.c.name,
    runs.c.summary.label("what"),
    *(runs.c[name] for name in "state cause error done total".split()),
    *(runs.c[f"{name}_at"].label(name) for name in ("created", "started", "ended")),
    case((runs.c.kind.in_(_CONTINUING), EARLIER_S), else_=0.0).label("duration_s"),
    run_results.c.rows,
    run_results.c.failed.label("failed_rows"),
    run_results.c.loss.label("train_loss"),
    run_results.c.held_out_loss.label("clip_val_loss"),
    run_results.c.accuracy.label("top1"),
    run_results.c.mean_average_precision,
    run_results.c.latency_ms,
    run_results.c.flags,
    runs.c.devices,
    TAGS.label("tags"),
    runs.c.owner,
    runs.c.notes,
).join_from(runs, run_results, isouter=True)
"""Query for runs as lines of a table, in the order in which exported files have its columns. Times are seconds since
the epoch, devices a JSON list, tags joined by newlines. `duration_s` is the duration of earlier attempts, without the
latest one."""
_FAILED_ROWS = select(run_results.c.run_id).where(run_results.c.failed > 0)
_ONLY_FAILED_ROWS = _FAILED_ROWS.where(run_results.c.failed == run_results.c.rows)
_FINISHED = runs.c.state == State.FINISHED
OUTCOMES: dict[str, ColumnElement[bool]] = {state.value: runs.c.state == state for state in State} | {
    "finished": _FINISHED & runs.c.id.not_in(_FAILED_ROWS),
    "finished with errors": _FINISHED & runs.c.id.in_(_FAILED_ROWS) & runs.c.id.not_in(_ONLY_FAILED_ROWS),
    "all failed": _FINISHED & runs.c.id.in_(_ONLY_FAILED_ROWS),
}
"""Conditions for the states that a list shows: those of `State`, with finished runs told apart by their failed rows."""
LONGEST_SEARCH = 200
"""Characters of one search text. Each word becomes a condition of the query, and SQLite allows 1,000."""


@dataclass(frozen=True)
class Filter:
    """Conditions and order of a list of runs. Empty fields do not restrict it."""

    kinds: tuple[str, ...] = ()
    states: tuple[State, ...] = ()
    outcomes: tuple[str, ...] = ()
    """Names from OUTCOMES. The run must have one of them."""
    model: str = ""
    """Part of the name of a model that the run requested or has a row for; the full name if it contains `*` or `?`.
    With a library in front (`timm:resnet18`), only models of that library."""
    only_model: str = ""
    """Full name of a model that the run requested or has a row for, with or without its library."""
    device: str = ""
    tags: tuple[str, ...] = ()
    """The run must have all of these tags."""
    text: str = ""
    """Words that must all occur in the run's name, summary, notes or error. `7` or `run 7` also finds run 7, first."""
    created_after: float | None = None
    """The run must have been submitted at or after this moment, in seconds since the epoch."""
    ended_before: float | None = None
    """The run must have ended before this moment, in seconds since the epoch."""
    unmarked: bool = False
    """The run must have neither tags nor notes."""
    uses: tuple[int, ...] = ()
    """The request must contain `/` and one of these numbers. `/1` also matches `/12`, so callers check the paths."""
    order: Order = "newest"

    @property
    def number(self) -> int | None:
        """Return the number of a run if the text is one, such as `7` or `run 7`."""
        match = re.fullmatch(r"(?:run\s+)?(\d{1,18})", self.text.strip(), re.ASCII | re.IGNORECASE)
        return int(match[1]) if match else None

    def __post_init__(self) -> None:
        """Check the texts. Errors: Refused when one is too long or has a character that is never stored."""
        for searched in (self.model, self.only_model, self.text, *self.tags):
            if len(searched) > LONGEST_SEARCH:
                raise Refused(
                    f"a search has at most {LONGEST_SEARCH} characters, this one {len(searched):,}: shorten it"
                )
            if storable(searched) != searched:
                raise Refused(f"{searched!r} has a character that no text of a run has: remove it")


def ids(wanted: Filter) -> Select[Any]:
    """Return a query for the ids of the matching runs, in order."""
    query = select(runs.c.id).where(*conditions(wanted)).order_by(*order(wanted))
    by_result = wanted.order not in ("newest", "oldest")
    return query.join_from(runs, run_results, isouter=True) if by_result else query


def order(wanted: Filter) -> tuple[ColumnElement[Any], ...]:
    """Return the order of the matching runs. The run whose number is the search text comes first."""
    first = () if wanted.number is None else ((runs.c.id == wanted.number).desc(),)
    return first + ORDERS[wanted.order]


def conditions(wanted: Filter) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions of a filter, without its order."""
    if wanted.kinds:
        yield runs.c.kind.in_(wanted.kinds)
    if wanted.states:
        yield runs.c.state.in_(wanted.states)
    if wanted.outcomes:
        yield or_(*(OUTCOMES[name] for name in wanted.outcomes))
    if wanted.device:
        yield runs.c.devices.contains(json.dumps(numbered(wanted.device)), autoescape=True)
    for tag in wanted.tags:
        yield runs.c.id.in_(select(run_tags.c.run_id).where(run_tags.c.tag == tag))
    if wanted.created_after is not None:
        yield runs.c.created_at >= wanted.created_after
    if wanted.ended_before is not None:
        yield runs.c.state.in_(ENDED) & (runs.c.ended_at < wanted.ended_before)
    if wanted.unmarked:
        yield (runs.c.notes == "") & runs.c.id.not_in(select(run_tags.c.run_id))
    if wanted.model:
        yield runs.c.id.in_(_of_model(wanted.model))
    if wanted.only_model:
        yield runs.c.id.in_(_of_one_model(wanted.only_model))
    for word in dict.fromkeys(wanted.text.casefold().split()):
        matching = select(run_texts.c.run_id).where(run_texts.c.text.contains(word, autoescape=True))
        failed = (runs.c.state == State.FAILED) & func.lower(runs.c.error).contains(word, autoescape=True)
        found = or_(runs.c.id.in_(matching), runs.c.id.in_(select(runs.c.id).where(failed)))
        yield found if wanted.number is None else or_(found, runs.c.id == wanted.number)
    if wanted.uses:
        yield or_(*(runs.c.spec.contains(f"/{run_id}", autoescape=True) for run_id in wanted.uses))


def _of_model(pattern: str) -> Select[Any]:
    """Return a query for runs of models whose names match."""
    query = select(run_models.c.run_id).where(run_models.c.model.like(_like(_folded(pattern)), escape="/"))
    # leave out the names with a library, which begin with a colon
    return query if ":" in pattern else query.where(run_models.c.model.not_like(":%"))


def _of_one_model(name: str) -> Select[Any]:
    """Return a query for runs of one model, also those that requested it without its library and have no row yet."""
    query = select(run_models.c.run_id)
    if ":" not in name:
        return query.where(run_models.c.model == _folded(name))
    bare = _folded(ModelName(name).model)
    same_run = run_models.alias()
    with_library = exists().where(
        same_run.c.run_id == run_models.c.run_id, same_run.c.model.endswith(f":{bare}", autoescape=True)
    )
    return query.where(or_(run_models.c.model == _folded(name), (run_models.c.model == bare) & ~with_library))


def _folded(name: str) -> str:
    """Return a name or pattern as `listing.folded_names` stores it: with a colon in front if it has a library."""
    return (f":{name}" if ":" in name else name).casefold()[:LONGEST_MODEL]


def _like(pattern: str) -> str:
    """Return a LIKE pattern for a name with wildcards; for a name without, one that matches any part."""
    whole = any(sign in pattern for sign in WILDCARDS)
    escaped = "".join(f"/{sign}" if sign in "/%_" else WILDCARDS.get(sign, sign) for sign in pattern)
    return escaped if whole else f"%{escaped}%"
