"""Add the mean average precision of evaluations to the summary of rows, and fill in all search data and summaries.

A migration that changes their tables again must take this call over, because `rebuild` writes the newest tables.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Apply the migration."""
    from engine.store.listing import rebuild

    op.add_column("run_results", sa.Column("mean_average_precision", sa.Float))
    rebuild(op.get_bind())
