"""The commands behind queue and pages: scheduler, warm, work, probe, answer, and stop, the only one for users."""

from contextlib import suppress
from importlib import import_module

from pydantic import BaseModel

from engine.cli.here import OneRun
from engine.settings import Settings


class Scheduler(BaseModel):
    """Start queued runs as devices become free; exits when idle for a while. The app and `submit` start it."""

    def cli_cmd(self) -> None:
        from engine.jobs import scheduler

        scheduler.main(Settings())


class Warm(BaseModel):
    """Keep the heavy libraries loaded, so that runs start faster. The scheduler starts it."""

    def cli_cmd(self) -> None:
        from engine.jobs.attempt import warm

        warm.main(Settings())


class Work(OneRun):
    """Do the work of one run. An executor starts it."""

    def cli_cmd(self) -> None:
        from engine.jobs.attempt import worker

        worker.main(Settings(), self.run_id)


class Probe(BaseModel):
    """Find the devices of this machine and store them. The scheduler starts it."""

    def cli_cmd(self) -> None:
        from engine.jobs import scheduler

        scheduler.probe(Settings())


class Answer(BaseModel):
    """Answer questions of the pages, sent as JSON lines. The app starts it."""

    def cli_cmd(self) -> None:
        with suppress(BrokenPipeError):  # the app is gone
            import_module("engine.tasks.answers").serve()


class Stop(BaseModel):
    """End the scheduler and its warm process now; queued runs wait for the next one."""

    def cli_cmd(self) -> None:
        from engine import jobs

        print("the scheduler is stopped" if jobs.stop_scheduler(Settings()) else "no scheduler was running")
