"""Decides when a run starts, and sees to every attempt's end."""

import logging
import os
import signal
import socket
import time
from importlib import import_module

import psutil

from engine.jobs import failures
from engine.jobs.executors.base import Executor
from engine.jobs.lifecycle import at_work, detach, fingerprint, lease_name, start_engine
from engine.jobs.log import FailureLog
from engine.jobs.processes import Identity
from engine.jobs.wake import Wake, nudge
from engine.settings import Settings
from engine.specs import Spec
from engine.store import Attempt, Damaged, Exit, Store, attempts, leases, open_store, queue

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often it looks when nobody wakes it."""
GIVE_UP_LEASES = 4
"""A worker silent for so many leases is ended."""
PROBE_S = 86_400.0


def main(settings: Settings) -> None:
    """`python -m engine scheduler`: serve until idle, stopped or replaced; leaves at once when another is at work."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    store = open_store(settings)
    name, code = lease_name(settings), fingerprint()
    seen = leases.read(store.database, name)
    if at_work(seen, code):
        return
    if not leases.take(store.database, name, str(Identity.mine()), code, settings.lease_s, seen):
        return
    log.info("scheduler %d of %s", os.getpid(), name)
    executor = import_module(f"engine.jobs.executors.{settings.executor}").Executor(settings)
    try:
        Scheduler(store, executor, settings, code).serve()
    finally:
        executor.close()
        leases.release(store.database, name, str(Identity.mine()))
        store.close()


class Scheduler:
    """The loop. All it knows is in the store and with the executor, so a successor knows as much."""

    def __init__(self, store: Store, executor: Executor, settings: Settings, code: str) -> None:
        self._store = store
        self._executor = executor
        self._settings = settings
        self._code = code
        self._name = lease_name(settings)
        self._holder = str(Identity.mine())
        self._host = socket.gethostname()
        self._stopped = False
        self._looked = self._awake_since = self._busy = time.time()
        self._renewed = 0.0
        self._failures = FailureLog(log, "looking after runs")

    def serve(self) -> None:
        """Serve until asked to stop, replaced or idle for long enough; go on after any failure."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        with Wake(self._settings.runs_dir) as wake:
            with self._failures.catching():
                self._start_probe()
            while not self._stopped:
                with self._failures.catching():
                    if not self._turn():
                        return
                wake.wait(LOOK_S)

    def _turn(self) -> bool:
        """Look after everything once, each part even if another fails. False when it is time to leave."""
        if not self._keep_lease():
            return False
        busy = True  # unless a part says otherwise
        with self._failures.catching():
            self._executor.tend()
        with self._failures.catching():
            busy = self._watch()
        with self._failures.catching():
            busy = self._claim() or busy
        return not self._leave_when_idle(busy)

    def _stop(self, _number: int, _frame: object) -> None:
        self._stopped = True
        nudge(self._settings.runs_dir)

    def _keep_lease(self) -> bool:
        now, lease_s = time.time(), self._settings.lease_s
        if now - self._looked > LOOK_S + lease_s:
            self._awake_since = now  # the machine slept, or we were stopped: nobody's silence counts from before
        self._looked = now
        if now - self._renewed < lease_s / 3:
            return True
        self._renewed = now
        if leases.renew(self._store.database, self._name, self._holder, lease_s):
            return True
        log.info("another scheduler has taken over: runs under way are its own now")
        return False

    def _leave_when_idle(self, busy: bool) -> bool:
        now = time.time()
        if busy:
            self._busy = now
        if now - self._busy < self._settings.idle_exit_s:
            return False
        return leases.release(self._store.database, self._name, self._holder, host=self._host, only_idle=True)

    def _claim(self) -> bool:
        claimed = False
        while attempt := queue.claim(self._store.database, self._host):
            log.info("run %d, attempt %d", attempt.run_id, attempt.number)
            try:
                self._executor.start(attempt)
            except OSError as error:
                log.exception("run %d, attempt %d could not be started", attempt.run_id, attempt.number)
                self._give_up(attempt, error)
            claimed = True
        return claimed

    def _watch(self) -> bool:
        """See to every open attempt. Answers whether there is one of this host."""
        found = False
        for attempt in attempts.open_attempts(self._store.database):
            if attempt.host == self._host:
                found = True
                self._see_to(attempt)
            elif self._silence(attempt) > GIVE_UP_LEASES * self._settings.lease_s:
                attempts.mark_vanished(self._store.database, attempt)  # its host is out of reach; its own may be back
        return found

    def _see_to(self, attempt: Attempt) -> None:
        silence, lease_s = self._silence(attempt), self._settings.lease_s
        if end := self._executor.exit(attempt):
            self._close(attempt, end)
        elif not self._executor.alive(attempt):
            if silence > lease_s:
                self._close(attempt, Exit(note="its process never showed up"))
        elif attempt.cancel_requested:
            self._cancel(attempt)
        elif attempt.begun_at is not None and silence > lease_s:
            attempts.mark_vanished(self._store.database, attempt)
            if silence > GIVE_UP_LEASES * lease_s:
                self._executor.stop(attempt, force=True)

    def _silence(self, attempt: Attempt) -> float:
        return time.time() - max(attempt.heartbeat_at, self._awake_since)

    def _cancel(self, attempt: Attempt) -> None:
        if attempt.stop_at is None:
            attempts.mark_stopping(self._store.database, attempt)
        overdue = attempt.stop_at is not None and time.time() - attempt.stop_at > self._settings.stop_grace_s
        if attempt.stop_at is None or overdue:
            self._executor.stop(attempt, force=overdue)

    def _close(self, attempt: Attempt, end: Exit) -> None:
        cause, error = failures.of_exit(end, self._spec(attempt))
        attempts.close(self._store.database, attempt, end, cause, error)
        log.info("run %d, attempt %d has ended: %s", attempt.run_id, attempt.number, end)

    def _give_up(self, attempt: Attempt, error: OSError) -> None:
        """Close an attempt that has no process, by the cause that kept it from one."""
        cause = failures.of_exception(error)
        words = failures.message(error, cause, self._spec(attempt))
        attempts.close(self._store.database, attempt, Exit(note="it could not be started"), cause, words)

    def _spec(self, attempt: Attempt) -> Spec | None:
        """None for one that this version cannot read: its run is seen to its end all the same."""
        try:
            return self._store.run(attempt.run_id).spec
        except (LookupError, Damaged):
            return None

    def _start_probe(self) -> None:
        """Which devices there are takes torch to know: asked of a process of its own, once a day and after a boot."""
        age = self._store.machine_age(self._host, self._code)
        if age is None or age > min(PROBE_S, time.time() - psutil.boot_time()):
            log_file = self._settings.runs_dir / "scheduler.log"
            detach(start_engine(self._settings, "probe", log=log_file))
