"""Start runs when their turn comes, and watch every attempt until it ends."""

import logging
import os
import signal
import time
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

import psutil

from engine.jobs import disk
from engine.jobs.attempt import failures
from engine.jobs.executors.local import Executor
from engine.jobs.hosts import GIVE_UP_LEASES, NODE, close_lost, host_name, this_host
from engine.jobs.lifecycle import detach, fingerprint, lease_name, runs_this_code, start_engine
from engine.jobs.log import FailureLog
from engine.jobs.processes import Identity
from engine.jobs.wake import Wake, nudge
from engine.settings import Settings
from engine.specs import Spec
from engine.specs.base import CLUSTER
from engine.store import Attempt, Busy, Damaged, Exit, Store, attempts, leases, open_store, queue

if TYPE_CHECKING:
    from engine.jobs.executors.ray import Executor as Cluster  # imports ray

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Seconds between two turns when nobody wakes the scheduler."""
LONGEST_STEP_S = 2 * LOOK_S
"""Count at most this many seconds of silence per turn. A turn takes longer when the machine sleeps or the store is
locked, and then workers cannot report either."""
PROBE_S = 86_400.0
"""Seconds after which the host is probed again: one day."""


def main(settings: Settings) -> None:
    """Run `python -m engine scheduler`: serve until idle, stopped or replaced. Return at once when another one runs."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    store = open_store(settings)
    name, code, holder = lease_name(), fingerprint(), str(Identity.mine())
    if not _take_lease(store, settings, name, holder, code):
        return
    log.info("scheduler %d of %s", os.getpid(), name)
    executor = Executor(settings)
    cluster = import_module("engine.jobs.executors.ray").Executor(settings, store) if settings.ray_address else None
    try:
        Scheduler(store, executor, settings, code, cluster).serve()
    finally:
        executor.close()
        leases.release(store.database, name, holder)
        store.close()


def _take_lease(store: Store, settings: Settings, name: str, holder: str, code: str) -> bool:
    """Take the lease, which the process that started this one may have taken for it. Return False if another has it."""
    for _ in range(2):  # again, because that process may take it between our read and our write
        lease = leases.read(store.database, name)
        if runs_this_code(settings, lease, code) and lease and lease.holder != holder:
            return False
        if leases.take(store.database, name, holder, code, settings.lease_s, lease):
            return True
    return False


class Scheduler:
    """The main loop. Its state is in the store and with the executors, so a successor can take over."""

    def __init__(
        self, store: Store, executor: Executor, settings: Settings, code: str, cluster: "Cluster | None" = None
    ) -> None:
        self._store = store
        self._executor = executor
        self._cluster = cluster
        self._settings = settings
        self._code = code
        self._name = lease_name()
        self._holder = str(Identity.mine())
        self._host = this_host()
        self._stopped = False
        self._renewed_at = -settings.lease_s
        self._watched_at = self._busy_at = time.monotonic()
        self._watched_s = 0.0
        """Seconds watched so far, without the time in which watching was impossible. This clock measures silence."""
        self._heartbeats: dict[int, tuple[float, float]] = {}
        """An attempt's latest heartbeat, and the value of `_watched_s` when it was first seen, by token."""
        self._stop_seen: dict[int, float] = {}
        """The value of `_watched_s` when a cancelled attempt was first seen after its request to stop, by token."""
        self._failures = FailureLog(log, "looking after runs")

    def serve(self) -> None:
        """Run turns until stopped, replaced, or idle and not woken for idle_exit_s seconds. Go on after any failure."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        with closing(Wake(self._settings.runs_dir)) as wake:
            with self._failures.catching():
                self._start_probe()
            woken = False
            while not self._stopped:
                with self._failures.catching():
                    if not self._turn(woken):
                        return
                woken = wake.wait(LOOK_S)

    def _turn(self, woken: bool) -> bool:
        """Do each part of one turn, even if another part fails. Return False when the scheduler should exit.

        woken: whether a process woke the scheduler, as a server does while a browser is connected, so that it stays.
        """
        if not self._keep_lease():
            return False
        busy = True  # stays True if `_watch` fails
        with self._failures.catching():
            self._executor.tend()
        with self._failures.catching():
            if self._cluster:
                self._cluster.tend()
        with self._failures.catching():
            busy = self._watch()
        with self._failures.catching():
            busy = self._claim() or busy
        return not self._leave_when_idle(busy or woken)

    def _stop(self, _number: int, _frame: object) -> None:
        self._stopped = True
        nudge(self._settings.runs_dir)

    def _keep_lease(self) -> bool:
        lease_s = self._settings.lease_s
        if time.monotonic() - self._renewed_at < lease_s / 3:
            return True
        if leases.renew(self._store.database, self._name, self._holder, lease_s):
            self._renewed_at = time.monotonic()
            return True
        log.info("another scheduler has taken over and watches the open runs")
        return False

    def _leave_when_idle(self, busy: bool) -> bool:
        """Give up the lease after `idle_exit_s` seconds without work. Return whether the scheduler should exit."""
        now = time.monotonic()
        if busy:
            self._busy_at = now
        if now - self._busy_at < self._settings.idle_exit_s:
            return False
        return leases.release(self._store.database, self._name, self._holder, host=self._host, only_idle=True)

    def _claim(self) -> bool:
        """Start queued runs while their devices are free and the disk has space. Return whether there were any."""
        claimed = False
        nodes = self._cluster.offers if self._cluster else {}
        for host, host_nodes in [(self._host, None), *([(CLUSTER, nodes)] if nodes else [])]:
            while not disk.shortage(self._settings, host):
                if (attempt := queue.claim(self._store.database, host, nodes=host_nodes)) is None:
                    break
                log.info("run %d, attempt %d on %s", attempt.run_id, attempt.number, attempt.host)
                executor = self._executor_of(attempt)
                assert executor
                try:
                    executor.start(attempt)
                except OSError as error:
                    log.exception("run %d, attempt %d could not be started", attempt.run_id, attempt.number)
                    self._give_up(attempt, error, "it could not be started")
                claimed = True
        return claimed

    def _executor_of(self, attempt: Attempt) -> "Executor | Cluster | None":
        """Return the executor that sees an attempt's processes; None if they are on another host."""
        if NODE in attempt.host:
            return self._cluster
        return self._executor if attempt.host == self._host else None

    def _watch(self) -> bool:
        """Watch every open attempt. Return whether any of them is on this host or the cluster."""
        current = attempts.open_attempts(self._store.database)
        self._note_heartbeats(current)
        for attempt in current:
            try:
                if executor := self._executor_of(attempt):
                    self._look_after(attempt, executor)
                else:
                    self._look_at_lost(attempt)
            except Busy:
                raise  # a busy store affects every attempt: each would wait as long
            except Exception as error:  # noqa: BLE001  one attempt that cannot be watched must not stop the others
                with self._failures.catching():
                    self._give_up_unreadable(attempt, error)
        return any(self._executor_of(attempt) for attempt in current)

    def _note_heartbeats(self, current: list[Attempt]) -> None:
        """Note which attempts reported since the last turn. Only changes count, because clocks differ and may jump."""
        now = time.monotonic()
        self._watched_s += min(now - self._watched_at, LONGEST_STEP_S)
        self._watched_at = now
        for attempt in current:
            if self._heartbeats.get(attempt.token, (None, 0.0))[0] != attempt.heartbeat_at:
                self._heartbeats[attempt.token] = attempt.heartbeat_at, self._watched_s
        open_tokens = {attempt.token for attempt in current}
        self._heartbeats = {token: heartbeat for token, heartbeat in self._heartbeats.items() if token in open_tokens}
        self._stop_seen = {token: seen for token, seen in self._stop_seen.items() if token in open_tokens}

    def _silence(self, attempt: Attempt) -> float:
        """Return the seconds watched since an attempt's last new heartbeat."""
        return self._watched_s - self._heartbeats[attempt.token][1]

    def _look_after(self, attempt: Attempt, executor: "Executor | Cluster") -> None:
        silence, lease_s = self._silence(attempt), self._settings.lease_s
        silent_too_long = attempt.begun_at is not None and silence > GIVE_UP_LEASES * lease_s
        if end := executor.exit(attempt):
            if silent_too_long and end.code == -signal.SIGKILL:  # killed below
                end = replace(end, note=f"killed by the scheduler, because it had not reported for {silence:.0f} s")
            self._close(attempt, end)
        elif not executor.alive(attempt):
            if silence > lease_s:
                began = attempt.begun_at is not None  # the record of its processes is lost, or was copied here
                note = "none of its processes is known here" if began else "its process never started"
                self._close(attempt, Exit(note=note))
        elif attempt.cancel_requested:
            self._cancel(attempt, executor)
        elif attempt.begun_at is not None and silence > lease_s:
            attempts.mark_vanished(self._store.database, attempt)
            if silent_too_long:
                executor.stop(attempt, force=True)

    def _look_at_lost(self, attempt: Attempt) -> None:
        """Handle an attempt whose processes we cannot see: on another host, or on this host before it restarted."""
        if self._silence(attempt) <= GIVE_UP_LEASES * self._settings.lease_s:
            return
        name = host_name(attempt.host)
        if name == host_name(self._host):
            close_lost(self._store, attempt, f"its host {name} has restarted")
        elif attempt.cancel_requested:
            close_lost(self._store, attempt, f"its host {name} is out of reach")
        else:
            attempts.mark_vanished(self._store.database, attempt)  # the host may come back

    def _give_up_unreadable(self, attempt: Attempt, error: Exception) -> None:
        """Close an attempt whose records are unreadable for longer than a lease; before that, raise the error again."""
        if self._silence(attempt) <= self._settings.lease_s:
            raise error
        log.error("run %d, attempt %d is closed: its records cannot be read", attempt.run_id, attempt.number)
        self._give_up(attempt, error, "its records cannot be read")

    def _cancel(self, attempt: Attempt, executor: "Executor | Cluster") -> None:
        if attempt.stop_at is None:
            attempts.mark_stopping(self._store.database, attempt)
            executor.stop(attempt, force=False)
        elif self._watched_s - self._stop_seen.setdefault(attempt.token, self._watched_s) > self._settings.stop_grace_s:
            executor.stop(attempt, force=True)

    def _close(self, attempt: Attempt, end: Exit) -> None:
        cause, error = failures.of_exit(end, self._spec(attempt))
        attempts.close(self._store.database, attempt, end, cause, error)
        log.info("run %d, attempt %d has ended: %s", attempt.run_id, attempt.number, end)

    def _give_up(self, attempt: Attempt, error: Exception, note: str) -> None:
        """Close an attempt with the error that prevents it from continuing."""
        cause = failures.of_exception(error)
        message = failures.message(error, cause, self._spec(attempt))
        attempts.close(self._store.database, attempt, Exit(note=note), cause, message)

    def _spec(self, attempt: Attempt) -> Spec | None:
        """Return the attempt's spec; None if this version cannot read it, though the attempt is still watched."""
        try:
            return self._store.run(attempt.run_id).spec
        except (LookupError, Damaged):
            return None

    def _start_probe(self) -> None:
        """Start a process that probes the devices, once a day and after a boot. Separate, because it needs torch."""
        age = self._store.machine_age(host_name(self._host), self._code)
        if age is None or age > min(PROBE_S, time.time() - psutil.boot_time()):
            detach(start_engine(self._settings, "probe"))


def probe(settings: Settings) -> None:
    """Run `python -m engine probe`: store the devices of this host, for processes without torch."""
    machine = import_module("engine.measure.environment").probe()
    with closing(open_store(settings)) as store:
        store.save_machine(machine, fingerprint())
