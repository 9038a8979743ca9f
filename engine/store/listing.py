"""What a run is found by, written beside it: the models it is about, and the text that a search looks through.

Both are casefolded, so that SQLite and PostgreSQL compare them alike.
"""

from sqlalchemy import Connection, exists, insert, literal, select, update

from engine.specs import ModelName, Spec
from engine.store.records import storable
from engine.store.tables import run_models, run_texts

LONGEST_MODEL = 300


def insert_listing(connection: Connection, run_id: int, spec: Spec, name: str, notes: str = "") -> None:
    """Make a new run findable."""
    connection.execute(insert(run_texts).values(run_id=run_id, text=searchable(name, spec.summary, notes)))
    names = [{"run_id": run_id, "model": model} for model in asked_for(spec)]
    if names:
        connection.execute(insert(run_models), names)


def insert_model(connection: Connection, run_id: int, name: str) -> None:
    """Add a model to a run's list, for a name that a wildcard stood for."""
    model = folded_model(name)
    known = exists().where(run_models.c.run_id == run_id, run_models.c.model == model)
    new = select(literal(run_id), literal(model)).where(~known)
    connection.execute(insert(run_models).from_select(["run_id", "model"], new))


def set_text(connection: Connection, run_id: int, text: str) -> None:
    """Replace what a search looks through."""
    connection.execute(update(run_texts).where(run_texts.c.run_id == run_id).values(text=text))


def searchable(name: str, summary: str, notes: str) -> str:
    """Return what a search looks through; of a run that failed, its error as well."""
    return storable("\n".join(part for part in (name, summary, notes) if part).casefold())


def asked_for(spec: Spec) -> list[str]:
    """Return the models, or runners of recurrent layers, that a spec names: as they are filtered by, each once."""
    several = getattr(spec, "models", None) or getattr(spec, "chosen", None)
    names = several or [getattr(spec, "model", "")]
    return list(dict.fromkeys(folded_model(name) for name in names if name))


def folded_model(name: str) -> str:
    """`timm:ResNet18` is filtered by as `resnet18`."""
    return storable((ModelName(name).model or name).casefold()[:LONGEST_MODEL])
