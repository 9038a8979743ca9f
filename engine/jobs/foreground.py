"""Execute a run in the calling process and record it like any other, for the command line."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from engine.jobs import disk
from engine.jobs.attempt import failures
from engine.jobs.attempt.supervisor import Copies
from engine.jobs.attempt.worker import OnEvent, Stop, execute, retry_while_unreachable
from engine.jobs.hosts import this_host
from engine.jobs.lifecycle import ensure_scheduler
from engine.jobs.processes import Identity, Processes, write_json
from engine.jobs.references import resolve
from engine.jobs.submit import check
from engine.jobs.wake import nudge
from engine.results import Progress
from engine.settings import Settings
from engine.specs import Refused, Spec
from engine.specs.base import CLUSTER
from engine.store import Attempt, Exit, Store, attempts, queue
from engine.store.files import RunFiles

LOOK_S = 0.5
"""Seconds between two tries to claim the slots."""


def run_here(store: Store, settings: Settings, spec: Spec, on_event: OnEvent, *, name: str = "") -> int:
    """Execute a run in this process as soon as its slots are free, and return its id.

    The spec may name modules of the user's own, because the user has typed it here. The first Ctrl-C cancels the run
    after the current model, or at once while libraries are imported. The second one cancels it at once. Ctrl-C while
    waiting for slots raises KeyboardInterrupt, and no run is recorded. Errors: ModelNotFound, Refused, as in `submit`;
    DiskFull, also while waiting.
    """
    if any(device.startswith(CLUSTER) for device in spec.devices):
        raise Refused(f"runs on the cluster are queued: python -m engine submit {spec.kind}")
    spec = resolve(store, settings, spec)
    check(store, settings, spec, allow_code=True)
    attempt = _claim(store, settings, spec, name, on_event)
    files = RunFiles(settings.runs_dir, attempt.run_id)
    files.prepare()
    process = Identity.mine()
    Processes(process, process, group=False, folder=files.folder_id).write(files.process(attempt.number))
    stop = Stop()
    code: int | None = None
    try:
        with _interrupts(stop):
            code = execute(store, settings, attempt, stop, on_event, allow_code=True)
    finally:
        end = Exit(code=-stop.signal if code is None and stop.signal else code)
        write_json(files.exit(attempt.number), asdict(end))
        cause, error = failures.of_exit(end, spec, shown="the terminal shows the reason")
        retry_while_unreachable(lambda: attempts.close(store.database, attempt, end, cause, error), stop)
        nudge(settings.runs_dir)
        if settings.artifacts_url:
            copies = Copies(settings, store.run(attempt.run_id), attempt)
            if problem := copies.finish(end):
                copies.warn(problem)
    return attempt.run_id


def _claim(store: Store, settings: Settings, spec: Spec, name: str, on_event: OnEvent) -> Attempt:
    """Claim a new run as soon as its slots are free. While it waits, report the runs that hold them as progress."""
    host, last_note = this_host(), ""
    disk.refuse_shortage(settings)
    while (attempt := queue.claim_new(store.database, host, spec, name=name)) is None:
        if not last_note:
            # the process that holds a slot may have been killed, and only a scheduler frees its slots
            ensure_scheduler(settings)
        held = queue.holders(store.database, host)
        note = "waiting for " + ", ".join(f"run {run_id} on {device}" for device, run_id in sorted(held.items()))
        if held and note != last_note:  # else they have just become free
            on_event(Progress(done=0, note=note))
            last_note = note
        time.sleep(LOOK_S)
        disk.refuse_shortage(settings)
    return attempt


@contextmanager
def _interrupts(stop: Stop) -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and a closed terminal ask for a clean end.

    A second Ctrl-C raises KeyboardInterrupt, and so does a signal while libraries are imported.
    """

    def end(number: int, frame: object) -> None:
        at_once = stop.loading or (number == signal.SIGINT and stop.cancelled)
        if number == signal.SIGINT:
            stop.cancelled = True
        else:
            stop.on_signal(number, frame)
        if at_once:
            raise KeyboardInterrupt

    numbers = [signal.SIGINT, signal.SIGTERM]
    numbers += [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN else []  # nohup ignores it
    former = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
