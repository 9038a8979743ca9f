"""Alembic's entry: migrate over the connection, and within the transaction, that `upgrade` hands over."""

from alembic import context

from engine.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,  # SQLite too, as our connections begin their transactions themselves
)
context.run_migrations()
