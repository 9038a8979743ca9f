"""Create the tables, or migrate them to the newest schema: in one transaction, and once if several processes open it.

A new database gets the tables of `tables` and the number of the newest migration. Only older stores are migrated.
"""

from pathlib import Path

from sqlalchemy import Connection, insert, inspect, text

from engine.store.database import Database, Unavailable
from engine.store.tables import HEAD, changes, metadata


def upgrade(database: Database) -> None:
    """Create or migrate the tables if needed. Errors: Unavailable, also for a database that a newer version wrote."""
    with database.read() as connection:
        if _version(connection) == HEAD:
            return
    with database.write() as connection:
        version = _version(connection)  # read again: another process may have migrated while we waited
        if version != HEAD:
            _run(database, connection, version)


def check(database: Database) -> None:
    """Check that no newer version of the program wrote the database. Errors: Unavailable."""
    with database.read() as connection:
        version = _version(connection)
    if version not in (None, HEAD):
        _refuse_unknown(database, version)


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _run(database: Database, connection: Connection, version: str | None) -> None:
    from alembic import command  # imported late: slow to import and seldom needed
    from alembic.config import Config

    config = Config()  # without a file, because it lives in this package and gets a connection
    config.set_main_option("script_location", "engine.store:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    if version is None:
        metadata.create_all(connection, checkfirst=False)
        connection.execute(insert(changes).values(revision=0))
        command.stamp(config, "head")
        return
    _refuse_unknown(database, version)
    command.upgrade(config, "head")


def _refuse_unknown(database: Database, version: str | None) -> None:
    from alembic.script import ScriptDirectory

    if version not in {script.revision for script in ScriptDirectory(str(Path(__file__).parent)).walk_revisions()}:
        cause = f"is at schema {version}, which this version of the program (schema {HEAD}) does not know"
        other = "folder in VITALS_RUNS_DIR" if database.sqlite else "database in VITALS_DATABASE_URL"
        raise Unavailable(database.place, cause, f"Upgrade the program, or name another {other}")
