"""The process boundary: what starts runs, watches them and ends them. Never imports torch."""

from engine.jobs.lifecycle import ensure_scheduler, stop_scheduler
from engine.jobs.submit import delete_run, retry, submit

__all__ = ["delete_run", "ensure_scheduler", "retry", "stop_scheduler", "submit"]
