"""Add tags, notes and the search data of runs."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

BATCH = 1000
"""Runs read at once, which limits memory use."""


def upgrade() -> None:
    """Apply the migration."""
    op.add_column("runs", sa.Column("summary", sa.Text, nullable=False, server_default=""))
    op.add_column("runs", sa.Column("notes", sa.Text, nullable=False, server_default=""))
    op.drop_index("runs_by_state", "runs")
    op.create_index("runs_by_state", "runs", ["state", "id", "kind", "devices"])
    op.create_index("runs_by_kind", "runs", ["kind", "id", "state", "devices"])
    _create_table("run_tags", sa.Column("tag", sa.String(40), primary_key=True))
    _create_table("run_models", sa.Column("model", sa.String(300), primary_key=True))
    _create_table("run_texts", sa.Column("text", sa.Text, nullable=False))
    _fill(op.get_bind())
    op.create_index("runs_by_tag", "run_tags", ["tag", "run_id"])
    op.create_index("runs_by_model", "run_models", ["model", "run_id"])


def _create_table(name: str, column: "sa.Column[str]") -> None:
    run_id = sa.ForeignKey("runs.id", ondelete="CASCADE")
    op.create_table(name, sa.Column("run_id", sa.Integer, run_id, nullable=False, primary_key=True), column)


def _fill(connection: sa.Connection) -> None:
    """Add the search texts of stored runs. Runs that this version cannot read are found only by name and rows.

    The next migration adds the models of all runs.
    """
    from engine import specs
    from engine.store.listing import searchable

    runs = sa.table("runs", *map(sa.column, ("id", "kind", "name", "spec", "summary")))
    texts = sa.table("run_texts", *map(sa.column, ("run_id", "text")))
    change = sa.update(runs).where(runs.c.id == sa.bindparam("run")).values(summary=sa.bindparam("new"))
    last = 0
    while found := connection.execute(sa.select(runs).where(runs.c.id > last).order_by(runs.c.id).limit(BATCH)).all():
        summaries = {}
        for run in found:
            try:
                summaries[run] = specs.load(run.kind, run.spec).summary
            except (LookupError, ValueError):
                summaries[run] = ""
        connection.execute(change, [{"run": run.id, "new": summary} for run, summary in summaries.items()])
        lines = [{"run_id": run.id, "text": searchable(run.name, summary, "")} for run, summary in summaries.items()]
        connection.execute(sa.insert(texts), lines)
        last = found[-1].id
