"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def _run_id(*, primary_key: bool = False) -> "sa.Column[int]":
    return sa.Column(
        "run_id", sa.Integer, sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False, primary_key=primary_key
    )


def upgrade() -> None:
    """Apply the migration."""
    _runs()
    _attempts()
    _results()
    _holdings()
    changes = op.create_table("changes", sa.Column("revision", sa.Integer, nullable=False))
    op.bulk_insert(changes, [{"revision": 0}])


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("key", sa.String(200), unique=True),
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("devices", sa.Text, nullable=False),
        sa.Column("exclusive", sa.Boolean, nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("cause", sa.String(20)),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("started_at", sa.Float),
        sa.Column("ended_at", sa.Float),
        sa.Column("cancel_requested", sa.Boolean, nullable=False),
        sa.Column("attempt_id", sa.Integer),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("tries_left", sa.Integer, nullable=False),
        sa.Column("done", sa.Integer, nullable=False),
        sa.Column("total", sa.Integer),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("environment", sa.Text),
        sa.Column("revision", sa.Integer, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("runs_by_state", "runs", ["state", "id"])


def _attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("id", sa.Integer, primary_key=True),
        _run_id(),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("begun_at", sa.Float),
        sa.Column("heartbeat_at", sa.Float, nullable=False),
        sa.Column("stop_at", sa.Float),
        sa.Column("closed_at", sa.Float),
        sa.Column("exit", sa.Text),
        sqlite_autoincrement=True,
    )
    op.create_index("attempts_by_host", "attempts", ["host", "closed_at"])
    op.create_index("attempts_by_run", "attempts", ["run_id"])


def _results() -> None:
    op.create_table(
        "rows",
        sa.Column("id", sa.Integer, primary_key=True),
        _run_id(),
        sa.Column("attempt_id", sa.Integer, nullable=False),
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("library", sa.String(40), nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
    )
    op.create_index("rows_by_run", "rows", ["run_id", "id"])
    op.create_table(
        "metrics",
        _run_id(primary_key=True),
        sa.Column("name", sa.String(100), primary_key=True),
        sa.Column("step", sa.Integer, primary_key=True),
        sa.Column("value", sa.Float, nullable=False),
    )
    op.create_table(
        "artifacts",
        _run_id(primary_key=True),
        sa.Column("name", sa.String(300), primary_key=True),
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
    )


def _holdings() -> None:
    op.create_table(
        "slots",
        sa.Column("host", sa.String(255), primary_key=True),
        sa.Column("device", sa.String(40), primary_key=True),
        sa.Column("attempt_id", sa.Integer, nullable=False),
        _run_id(),
        sa.Column("exclusive", sa.Boolean, nullable=False),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
    )
    op.create_table(
        "machines",
        sa.Column("host", sa.String(255), primary_key=True),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("probed_at", sa.Float, nullable=False),
    )
