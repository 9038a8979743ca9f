"""Add tags, notes and the search data of runs. A later migration fills in the search data."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


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
    op.create_index("runs_by_tag", "run_tags", ["tag", "run_id"])
    op.create_index("runs_by_model", "run_models", ["model", "run_id"])


def _create_table(name: str, column: "sa.Column[str]") -> None:
    run_id = sa.ForeignKey("runs.id", ondelete="CASCADE")
    op.create_table(name, sa.Column("run_id", sa.Integer, run_id, nullable=False, primary_key=True), column)
