"""The first tables. Every store of this version has them already: a new one gets the newest tables from `tables`."""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Do nothing."""
