"""The process boundary: start, watch and end runs in processes of their own. Never imports torch."""

from engine.jobs.lifecycle import ensure_scheduler, stop_scheduler
from engine.jobs.submit import check_models, delete_run, retry, submit, submit_sweep, why_not_again
