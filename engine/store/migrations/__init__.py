"""Migrate a database to the newest schema: in one transaction, and only once when several processes open it."""

from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

from engine.store.database import Database, Unavailable
from engine.store.tables import HEAD

if TYPE_CHECKING:
    from alembic.config import Config


def upgrade(database: Database) -> None:
    """Apply the missing migrations. Errors: Unavailable, also when the database was written by a newer version."""
    with database.read() as connection:
        if _version(connection) == HEAD:
            return
    with database.write() as connection:
        version = _version(connection)  # read again: another process may have migrated while we waited
        if version != HEAD:
            _run(database, connection, version)


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _run(database: Database, connection: Connection, version: str | None) -> None:
    from alembic import command  # imported late: slow to import and seldom needed
    from alembic.script import ScriptDirectory

    config = alembic_config()
    revisions = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if version is not None and version not in revisions:
        cause = f"is at schema {version}, which this version of the program (schema {HEAD}) does not know"
        other = "folder in VITALS_RUNS_DIR" if database.sqlite else "database in VITALS_DATABASE_URL"
        raise Unavailable(database.place, cause, f"Upgrade the program, or name another {other}")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def alembic_config() -> "Config":
    """Return Alembic's configuration. It has no file, because it lives in this package and gets a connection."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "engine.store:migrations")
    config.set_main_option("path_separator", "os")
    return config
