"""Store what lists need of a run: its models and texts for searches, and a summary of its rows.

Names and texts are casefolded, so that SQLite and PostgreSQL compare them in the same way.
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection, case, delete, insert, select, update

from engine import specs
from engine.results import ProfileRow
from engine.specs import ModelName, Spec
from engine.store.model import ENDED
from engine.store.records import UNREADABLE, storable
from engine.store.tables import rows, run_models, run_results, run_texts, runs

LONGEST_MODEL = 300
"""Characters of a model's name, as many as its column takes. Longer names are cut."""


def rebuild(connection: Connection) -> None:
    """Store again what lists need of all runs, after a migration or in a restored store.

    A run that this version cannot read is found only by its name, notes and rows.
    """
    for table in (run_texts, run_models, run_results):
        connection.execute(delete(table))
    for run_id, state in connection.execute(select(runs.c.id, runs.c.state).order_by(runs.c.id)).all():
        is_run = runs.c.id == run_id
        run = connection.execute(select(runs.c.kind, runs.c.spec, runs.c.name, runs.c.notes).where(is_run)).one()
        models = connection.execute(select(rows.c.library, rows.c.model).where(rows.c.run_id == run_id).distinct())
        with suppress(*UNREADABLE):  # a damaged name of the run, which no list can show
            names = [name for library, model in models for name in folded_names(ModelName.of(library, model))]
            spec = None
            with suppress(*UNREADABLE):
                spec = specs.load(run.kind, run.spec)
                connection.execute(update(runs).where(is_run).values(summary=storable(spec.summary)))
            insert_listing(connection, run_id, spec, run.name, run.notes, names)
        if state in ENDED:
            set_results(connection, run_id)


def insert_listing(
    connection: Connection, run_id: int, spec: Spec | None, name: str, notes: str = "", models: Iterable[str] = ()
) -> None:
    """Add the search data of a run. spec: None if this version cannot read it. models: folded names from its rows."""
    text = searchable(name, spec.summary if spec else "", notes)
    connection.execute(insert(run_texts).values(run_id=run_id, text=text))
    if names := dict.fromkeys([*(requested_models(spec) if spec else ()), *models]):
        connection.execute(insert(run_models), [{"run_id": run_id, "model": model} for model in names])


def insert_models(connection: Connection, run_id: int, models: Iterable[ModelName]) -> None:
    """Add the models that a run's list lacks, such as those that matched a wildcard."""
    names = {name for model in models for name in folded_names(model)}
    listed = select(run_models.c.model).where(run_models.c.run_id == run_id, run_models.c.model.in_(names))
    if missing := names.difference(connection.scalars(listed)):
        connection.execute(insert(run_models), [{"run_id": run_id, "model": name} for name in missing])


def searchable(name: str, summary: str, notes: str) -> str:
    """Return the search text of a run. The error of a failed run is searched separately."""
    return storable("\n".join(part for part in (name, summary, notes) if part).casefold())


def requested_models(spec: Spec) -> list[str]:
    """Return the names of the models or recurrent-layer runners that a spec requests, folded and without duplicates."""
    names = getattr(spec, "models", None) or getattr(spec, "chosen", None) or [getattr(spec, "model", "")]
    return list(dict.fromkeys(folded for name in names if name for folded in folded_names(name)))


def folded_names(name: str) -> list[str]:
    """Return the names that filters compare: `resnet18` and `:timm:resnet18` for `timm:ResNet18`.

    The colon in front marks the name with its library, so that `t*` does not find every model of timm.
    """
    model = ModelName(name).model
    return [storable(text.casefold()[:LONGEST_MODEL]) for text in ([model, f":{name}"] if model else [name])]


def set_results(connection: Connection, run_id: int) -> None:
    """Summarise the rows of a run that has ended, in place of an earlier summary."""
    delete_results(connection, run_id)
    # those of profiles are large and hold no value of the summary
    payload = case((rows.c.kind != ProfileRow.kind, rows.c.payload), else_="{}")
    found = connection.execute(select(rows.c.status, payload).where(rows.c.run_id == run_id).order_by(rows.c.id))
    if lines := [(status, text) for status, text in found]:
        connection.execute(insert(run_results).values(run_id=run_id, **results_of(lines)))


def delete_results(connection: Connection, run_id: int) -> None:
    """Delete the summary of a run's rows."""
    connection.execute(delete(run_results).where(run_results.c.run_id == run_id))


def results_of(lines: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the columns of `run_results` for the (status, payload) of a run's rows, in their order.

    loss: mean training loss of the last epoch. held_out_loss: of a training's last validation. accuracy: last top-1 of
    a training, else that of an evaluation, zero-shot first; None for several models or data sets, as is
    mean_average_precision, of images with several classes. latency_ms: of the only timed row; None for several, because
    these have no common latency. flags: all flags of the rows.
    """
    payloads: list[dict[str, Any]] = []
    for status, payload in lines:
        if status == "ok":
            with suppress(*UNREADABLE):
                payloads.append(dict(json.loads(payload)))

    def values(name: str, found: list[dict[str, Any]] = payloads) -> list[float]:
        return [float(value) for row in found if isinstance(value := row.get(name), int | float)]

    trained = values("zeroshot_top1")
    evaluated = values("acc1", sorted(payloads, key=lambda row: row.get("task") != "zeroshot"))
    parts = {str([row.get(name) for name in ("model", "checkpoint", "data")]) for row in payloads if "task" in row}
    precisions = values("mean_average_precision") if len(parts) == 1 else []
    # the time of an operation of a device depends on its size, which the list does not show
    latencies = values("latency_ms", [row for row in payloads if "operation" not in row])
    validations = [row for row in payloads if "train_loss" in row]  # an evaluation has its loss in the same field
    flags = [str(flag) for row in payloads for flag in row.get("flags") or ()]
    return {
        "rows": len(lines),
        "failed": sum(status != "ok" for status, _ in lines),
        "loss": next(reversed(values("train_loss")), None),
        "held_out_loss": next(reversed(values("clip_val_loss", validations)), None),
        "accuracy": trained[-1] if trained else evaluated[0] if evaluated and len(parts) == 1 else None,
        "mean_average_precision": next(iter(precisions), None),
        "latency_ms": latencies[0] if len(latencies) == 1 else None,
        "flags": "; ".join(dict.fromkeys(flags)),
    }
