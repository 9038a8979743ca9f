"""Add the held-out loss of trainings to the summary of rows. A later migration fills it in."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Apply the migration."""
    op.add_column("run_results", sa.Column("held_out_loss", sa.Float))
