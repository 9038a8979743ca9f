"""The database layer, and the only place with SQL: runs, their attempts and results, on SQLite or PostgreSQL."""

from engine.store.access import Role, User
from engine.store.database import Busy, Damaged, Unavailable
from engine.store.find import Filter
from engine.store.model import (
    ACTIVE,
    ENDED,
    RETRYABLE,
    UNFINISHED,
    Attempt,
    Cause,
    Exit,
    QueueFull,
    Run,
    StaleAttempt,
    State,
    StoredArtifact,
)
from engine.store.store import Store, open_store
