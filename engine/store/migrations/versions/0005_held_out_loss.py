"""Add the held-out loss of trainings to the summary of rows. Runs with several timed rows lose their common latency."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

NEW = ("held_out_loss", "latency_ms")


def upgrade() -> None:
    """Apply the migration."""
    op.add_column("run_results", sa.Column("held_out_loss", sa.Float))
    _fill(op.get_bind())


def _fill(connection: sa.Connection) -> None:
    """Compute both values again, for trainings and for runs that have a latency."""
    from engine.store.listing import results_of

    runs = sa.table("runs", *map(sa.column, ("id", "kind")))
    rows = sa.table("rows", *map(sa.column, ("id", "run_id", "status", "payload")))
    results = sa.table("run_results", *map(sa.column, ("run_id", *NEW)))
    with_values = sa.or_(runs.c.kind == "train", results.c.latency_ms.is_not(None))
    query = sa.select(results.c.run_id).join(runs, runs.c.id == results.c.run_id).where(with_values)
    for run_id in connection.scalars(query).all():
        stored = sa.select(rows.c.status, rows.c.payload).where(rows.c.run_id == run_id).order_by(rows.c.id)
        found = results_of([(status, payload) for status, payload in connection.execute(stored)])
        change = sa.update(results).where(results.c.run_id == run_id)
        connection.execute(change.values({name: found[name] for name in NEW}))
