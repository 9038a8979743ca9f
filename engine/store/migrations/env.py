"""Alembic's entry point: migrate with the connection, and in the transaction, that `upgrade` passes."""

from alembic import context

from engine.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,  # for SQLite too, because our connections begin their transactions themselves
)
context.run_migrations()
