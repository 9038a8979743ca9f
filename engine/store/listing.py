"""Search data of a run: the models it is about, and the text for full-text search.

Both are casefolded, so that SQLite and PostgreSQL compare them in the same way.
"""

from sqlalchemy import Connection, exists, insert, literal, select

from engine.specs import ModelName, Spec
from engine.store.records import storable
from engine.store.tables import run_models, run_texts

LONGEST_MODEL = 300


def insert_listing(connection: Connection, run_id: int, spec: Spec, name: str, notes: str = "") -> None:
    """Add the search data of a new run."""
    connection.execute(insert(run_texts).values(run_id=run_id, text=searchable(name, spec.summary, notes)))
    names = [{"run_id": run_id, "model": model} for model in asked_for(spec)]
    if names:
        connection.execute(insert(run_models), names)


def insert_model(connection: Connection, run_id: int, name: str) -> None:
    """Add a model to a run's list if it is missing, such as one that matched a wildcard."""
    model = folded_model(name)
    known = exists().where(run_models.c.run_id == run_id, run_models.c.model == model)
    new = select(literal(run_id), literal(model)).where(~known)
    connection.execute(insert(run_models).from_select(["run_id", "model"], new))


def searchable(name: str, summary: str, notes: str) -> str:
    """Return the search text of a run. The error of a failed run is searched separately."""
    return storable("\n".join(part for part in (name, summary, notes) if part).casefold())


def asked_for(spec: Spec) -> list[str]:
    """Return the names of the models or recurrent-layer runners that a spec requests, folded and without duplicates."""
    several = getattr(spec, "models", None) or getattr(spec, "chosen", None)
    names = several or [getattr(spec, "model", "")]
    return list(dict.fromkeys(folded_model(name) for name in names if name))


def folded_model(name: str) -> str:
    """Return the name that filters compare: `resnet18` for `timm:ResNet18`."""
    return storable((ModelName(name).model or name).casefold()[:LONGEST_MODEL])
