"""The tables of the store. Times are seconds since the epoch (UTC). JSON is stored as text in every database."""

from sqlalchemy import BigInteger, Boolean, Column, Float, ForeignKey, Index, Integer, MetaData, String, Table, Text

HEAD = "0007"
"""The newest migration. Kept here so that opening an up-to-date store does not import Alembic."""

metadata = MetaData()


def _of_run(*, primary_key: bool = False) -> Column[int]:
    return Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), nullable=False, primary_key=primary_key)


runs = Table(
    "runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("key", String(200), unique=True),  # idempotency key: two submissions with one key make one run
    Column("kind", String(40), nullable=False),
    Column("name", Text, nullable=False, default=""),
    Column("spec", Text, nullable=False),
    Column("summary", Text, nullable=False, server_default=""),  # copied from the spec, so that a list parses no specs
    Column("devices", Text, nullable=False),  # JSON list, so that the queue parses no specs
    Column("exclusive", Boolean, nullable=False),
    Column("state", String(20), nullable=False),
    Column("cause", String(20)),
    Column("error", Text, nullable=False, default=""),
    Column("created_at", Float, nullable=False),
    Column("started_at", Float),
    Column("ended_at", Float),
    Column("cancel_requested", Boolean, nullable=False, default=False),
    Column("attempt_id", Integer),  # the fencing token: only this attempt may write
    Column("attempt", Integer, nullable=False, default=0),
    Column("tries_left", Integer, nullable=False),
    Column("done", Integer, nullable=False, default=0),
    Column("total", Integer),
    Column("note", Text, nullable=False, default=""),
    Column("seconds_left", Float),  # as the task itself estimates it
    Column("progressed_at", Float),  # when `done` last changed
    Column("environment", Text),
    Column("notes", Text, nullable=False, server_default=""),
    Column("owner", String(320), nullable=False, server_default=""),  # an e-mail; empty: submitted without sign-in
    Column("revision", Integer, nullable=False, default=0),
    Index("runs_by_state", "state", "id", "kind", "devices"),  # both indexes cover the common filters, so that
    Index("runs_by_kind", "kind", "id", "state", "devices"),  # counts read no specs
    Index("runs_by_owner", "owner", "attempt_id"),  # an owner's latest start, which decides whose turn it is
    sqlite_autoincrement=True,  # the number of a deleted run is never reused
)

attempts = Table(
    "attempts",
    metadata,
    Column("id", Integer, primary_key=True),  # never reused, so that it can serve as fencing token
    _of_run(),
    Column("number", Integer, nullable=False),
    Column("host", String(255), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("begun_at", Float),  # when its worker reported; only one worker can
    Column("heartbeat_at", Float, nullable=False),
    Column("stop_at", Float),  # when it was asked to stop
    Column("closed_at", Float),  # when its process was known to have ended; its slots are free
    Column("exit", Text),
    Index("attempts_by_host", "host", "closed_at"),
    Index("attempts_by_run", "run_id"),
    sqlite_autoincrement=True,
)

rows = Table(
    "rows",
    metadata,
    Column("id", Integer, primary_key=True),
    _of_run(),
    Column("attempt_id", Integer, nullable=False),
    Column("kind", String(40), nullable=False),
    Column("library", String(40), nullable=False),
    Column("model", Text, nullable=False),
    Column("status", String(20), nullable=False),
    Column("payload", Text, nullable=False),
    Index("rows_by_run", "run_id", "id"),
)

run_tags = Table(
    "run_tags",
    metadata,
    _of_run(primary_key=True),
    Column("tag", String(40), primary_key=True),
    Index("runs_by_tag", "tag", "run_id"),
)

run_models = Table(
    "run_models",
    metadata,
    _of_run(primary_key=True),
    Column("model", String(300), primary_key=True),  # from listing.folded_names, of requests and rows
    Index("runs_by_model", "model", "run_id"),
)

run_texts = Table(
    "run_texts",
    metadata,
    _of_run(primary_key=True),
    Column("text", Text, nullable=False),  # casefolded; outside `runs`, so that a search reads only this text
)

run_results = Table(
    "run_results",
    metadata,
    _of_run(primary_key=True),
    Column("rows", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("loss", Float),
    Column("accuracy", Float),
    Column("latency_ms", Float),
    Column("flags", Text, nullable=False),
    Column("held_out_loss", Float),
    Column("mean_average_precision", Float),
)
"""A summary of the rows of each run that has ended, so that lists show and sort results without reading rows."""

metrics = Table(
    "metrics",
    metadata,
    _of_run(primary_key=True),
    Column("name", String(100), primary_key=True),
    Column("step", Integer, primary_key=True),
    Column("value", Float, nullable=False),
)

artifacts = Table(
    "artifacts",
    metadata,
    _of_run(primary_key=True),
    Column("name", String(300), primary_key=True),
    Column("kind", String(40), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("sha256", String(64), nullable=False),
)

slots = Table(
    "slots",
    metadata,
    Column("host", String(255), primary_key=True),
    Column("device", String(40), primary_key=True),
    Column("attempt_id", Integer, nullable=False),
    _of_run(),
    Column("exclusive", Boolean, nullable=False),  # the holder needs the whole host
)

leases = Table(
    "leases",
    metadata,
    Column("name", String(255), primary_key=True),
    Column("holder", Text, nullable=False),  # JSON: pid and start time
    Column("fingerprint", String(64), nullable=False),
    Column("expires_at", Float, nullable=False),
)

machines = Table(
    "machines",
    metadata,
    Column("host", String(255), primary_key=True),
    Column("payload", Text, nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column("probed_at", Float, nullable=False),
)

changes = Table("changes", metadata, Column("revision", Integer, nullable=False))
"""One row: the number of changes that readers could see. Pages poll this number only."""
