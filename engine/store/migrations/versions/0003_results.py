"""Add a summary of each run's rows, which a later migration fills in, and the estimated time left."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


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
