"""Add a summary of each run's rows, the estimated time left, and names of models with their library."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

BATCH = 1000
"""Runs read at once, which limits memory use."""
ENDED = ("finished", "failed", "cancelled")


def upgrade() -> None:
    """Apply the migration."""
    op.add_column("runs", sa.Column("seconds_left", sa.Float))
    run_id = sa.ForeignKey("runs.id", ondelete="CASCADE")
    op.create_table(
        "run_results",
        sa.Column("run_id", sa.Integer, run_id, nullable=False, primary_key=True),
        sa.Column("rows", sa.Integer, nullable=False),
        sa.Column("failed", sa.Integer, nullable=False),
        sa.Column("loss", sa.Float),
        sa.Column("accuracy", sa.Float),
        sa.Column("latency_ms", sa.Float),
        sa.Column("flags", sa.Text, nullable=False),
    )
    _fill(op.get_bind())


def _fill(connection: sa.Connection) -> None:
    """Summarise the rows of stored runs, and add the models' names, with and without their library."""
    from engine import specs
    from engine.specs import ModelName
    from engine.store.listing import WITH_RESULTS, folded_names, requested_models, results_of

    runs = sa.table("runs", *map(sa.column, ("id", "kind", "spec", "state")))
    rows = sa.table("rows", *map(sa.column, ("id", "run_id", "kind", "library", "model", "status", "payload")))
    models = sa.table("run_models", *map(sa.column, ("run_id", "model")))
    columns = ("rows", "failed", "loss", "accuracy", "latency_ms", "flags")
    results = sa.table("run_results", *map(sa.column, ("run_id", *columns)))
    payload = sa.case((rows.c.kind.in_(WITH_RESULTS), rows.c.payload), else_="{}")
    last = 0
    while found := connection.execute(sa.select(runs).where(runs.c.id > last).order_by(runs.c.id).limit(BATCH)).all():
        ids = (found[0].id, found[-1].id)
        names = set()
        for run in found:
            try:
                names |= {(run.id, name) for name in requested_models(specs.load(run.kind, run.spec))}
            except (LookupError, ValueError):
                continue  # a run that this version cannot read
        stored: dict[int, list[tuple[str, str]]] = {}
        query = sa.select(rows.c.run_id, rows.c.library, rows.c.model, rows.c.status, payload)
        for run_id, library, model, status, text in connection.execute(
            query.where(rows.c.run_id.between(*ids)).order_by(rows.c.id)
        ):
            stored.setdefault(run_id, []).append((status, text))
            names |= {(run_id, name) for name in folded_names(ModelName.of(library, model))}
        known = sa.select(models.c.run_id, models.c.model).where(models.c.run_id.between(*ids))
        names -= {(run_id, name) for run_id, name in connection.execute(known)}
        if names:
            connection.execute(sa.insert(models), [{"run_id": run, "model": name} for run, name in sorted(names)])
        ended = [run.id for run in found if run.state in ENDED and run.id in stored]
        if ended:
            summaries = {run: results_of(stored[run]) for run in ended}
            lines = [{"run_id": run, **{name: values[name] for name in columns}} for run, values in summaries.items()]
            connection.execute(sa.insert(results), lines)
        last = found[-1].id
