"""Add the owner of each run. Runs submitted before, and without sign-in, have none."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Apply the migration."""
    op.add_column("runs", sa.Column("owner", sa.String(320), nullable=False, server_default=""))
    op.create_index("runs_by_owner", "runs", ["owner", "attempt_id"])
