"""Add the held-out loss of trainings to the summary of rows, and fill in all search data and summaries.

A migration that changes their tables again must take this call over, because `rebuild` writes the newest tables.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Apply the migration."""
    from engine.store.listing import rebuild

    op.add_column("run_results", sa.Column("held_out_loss", sa.Float))
    rebuild(op.get_bind())
