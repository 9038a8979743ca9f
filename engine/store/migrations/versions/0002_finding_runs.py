"""Add tags, notes and the search data of runs."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

BATCH = 1000


def upgrade() -> None:
    """Apply the migration."""
    op.add_column("runs", sa.Column("summary", sa.Text, nullable=False, server_default=""))
    op.add_column("runs", sa.Column("notes", sa.Text, nullable=False, server_default=""))
    op.drop_index("runs_by_state", "runs")
    op.create_index("runs_by_state", "runs", ["state", "id", "kind", "devices"])
    op.create_index("runs_by_kind", "runs", ["kind", "id", "state", "devices"])
    _of_runs("run_tags", sa.Column("tag", sa.String(40), primary_key=True))
    _of_runs("run_models", sa.Column("model", sa.String(300), primary_key=True))
    _of_runs("run_texts", sa.Column("text", sa.Text, nullable=False))
    _fill(op.get_bind())
    op.create_index("runs_by_tag", "run_tags", ["tag", "run_id"])
    op.create_index("runs_by_model", "run_models", ["model", "run_id"])


def _of_runs(name: str, column: "sa.Column[str]") -> None:
    run_id = sa.ForeignKey("runs.id", ondelete="CASCADE")
    op.create_table(name, sa.Column("run_id", sa.Integer, run_id, nullable=False, primary_key=True), column)


def _fill(connection: sa.Connection) -> None:
    """Add the search data of stored runs. Runs that this version cannot read are found only by name and rows."""
    from engine import specs
    from engine.store.listing import asked_for, folded_names, searchable

    runs = sa.table("runs", *map(sa.column, ("id", "kind", "name", "spec", "summary")))
    rows = sa.table("rows", *map(sa.column, ("run_id", "model")))
    texts = sa.table("run_texts", *map(sa.column, ("run_id", "text")))
    models = sa.table("run_models", *map(sa.column, ("run_id", "model")))
    last = 0
    while found := connection.execute(sa.select(runs).where(runs.c.id > last).order_by(runs.c.id).limit(BATCH)).all():
        ids = sa.select(rows).distinct().where(rows.c.run_id.between(found[0].id, found[-1].id))
        named = {(run_id, folded_names(model)[0]) for run_id, model in connection.execute(ids)}
        described = []
        for run in found:
            try:
                spec = specs.load(run.kind, run.spec)
                named |= {(run.id, model) for model in asked_for(spec)}
                summary = spec.summary
            except (LookupError, ValueError):
                summary = ""
            described.append({"run": run.id, "name": run.name, "new": summary})
        change = sa.update(runs).where(runs.c.id == sa.bindparam("run")).values(summary=sa.bindparam("new"))
        connection.execute(change, [{"run": line["run"], "new": line["new"]} for line in described])
        connection.execute(
            sa.insert(texts),
            [{"run_id": line["run"], "text": searchable(line["name"], line["new"], "")} for line in described],
        )
        if named:
            connection.execute(sa.insert(models), [{"run_id": run, "model": model} for run, model in sorted(named)])
        last = found[-1].id
