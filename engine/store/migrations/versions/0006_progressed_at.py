"""Add the time of a run's last progress, from which its estimated end is counted down."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Apply the migration."""
    op.add_column("runs", sa.Column("progressed_at", sa.Float))
