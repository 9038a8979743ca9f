"""Run attempts as processes of this host, forked from the warm process or started cold."""

import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import asdict

from engine.jobs.attempt.warm import WarmProcess
from engine.jobs.lifecycle import start_engine
from engine.jobs.processes import Processes, read_json, write_json
from engine.settings import Settings
from engine.store import Attempt, Exit
from engine.store.files import RunFiles

PATIENCE_LEASES = 8
"""Give up an attempt that the warm process has not started within this many leases. It may still be importing."""


class Executor:
    """Starts, watches and ends attempts. A new scheduler finds them by run and number alone."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._warm = WarmProcess(settings)
        self._requested: dict[int, tuple[Attempt, float]] = {}
        """Attempts requested from the warm process a short time ago, with the time of the request, by token."""
        self._cold: dict[int, subprocess.Popen[bytes]] = {}
        """Cold-started supervisors, by token. They are our children, so we must wait for them."""

    def start(self, attempt: Attempt) -> None:
        """Start an attempt from the warm process if there is one, else from a new interpreter. Return at once."""
        self._files(attempt).prepare(attempt.number)
        if self._warm.ask(attempt.run_id):
            self._requested[attempt.token] = attempt, time.monotonic()
        else:
            self._start_cold(attempt)

    def alive(self, attempt: Attempt) -> bool:
        """Return whether its processes run, or whether the warm or a cold process may still start them."""
        if processes := self._processes(attempt):
            return processes.supervisor.alive() or processes.worker.alive()
        cold = self._cold.get(attempt.token)
        return attempt.token in self._requested or (cold is not None and cold.poll() is None)

    def exit(self, attempt: Attempt) -> Exit | None:
        """Return the recorded exit, once all processes have ended; None before.

        A killed supervisor leaves no record, so this kills its worker and writes the record.
        """
        path = self._files(attempt).exit(attempt.number)
        processes = self._processes(attempt)
        # checked before the record is read, because a supervisor writes the record before it ends
        gone = processes is not None and not processes.supervisor.alive()
        if record := read_json(path):
            return Exit(**record)
        if processes is None or not gone:
            return None
        processes.signal_worker(signal.SIGKILL)
        if processes.worker.alive():
            return None
        foreground = processes.supervisor == processes.worker
        end = Exit(note="its process was killed" if foreground else "its supervisor was killed, and the worker with it")
        write_json(path, asdict(end))
        return end

    def stop(self, attempt: Attempt, *, force: bool) -> None:
        """Ask the attempt's worker to end; with force, kill it. Without a process yet, none will start."""
        if processes := self._processes(attempt):
            processes.signal_worker(signal.SIGKILL if force else signal.SIGTERM)
            return
        files = self._files(attempt)
        with suppress(FileExistsError):  # its supervisor is just starting, and the scheduler calls again
            files.process(attempt.number).open("x").close()  # as a supervisor does, so that no other one starts
            write_json(files.exit(attempt.number), asdict(Exit(note="it was cancelled before its process started")))

    def tend(self) -> None:
        """Keep a warm process running. If it died, start its requests cold. Drop requests open for too long."""
        self._cold = {token: process for token, process in self._cold.items() if process.poll() is None}
        oldest = time.monotonic() - PATIENCE_LEASES * self._settings.lease_s
        self._requested = {token: request for token, request in self._requested.items() if request[1] > oldest}
        if not self._warm.alive:
            requests, self._requested = self._requested, {}
            for attempt, _ in requests.values():
                if self._processes(attempt) is None:
                    self._start_cold(attempt)
        self._warm.ensure()

    def close(self) -> None:
        """End the warm process; supervisors and workers keep running."""
        self._warm.close()

    def _start_cold(self, attempt: Attempt) -> None:
        self._cold[attempt.token] = start_engine(self._settings, "work", str(attempt.run_id))

    def _files(self, attempt: Attempt) -> RunFiles:
        return RunFiles(self._settings.runs_dir, attempt.run_id)

    def _processes(self, attempt: Attempt) -> Processes | None:
        """Return an attempt's processes; None without a record, or if the record was copied with its folder.

        The processes in a copied record belong to the original's scheduler.
        """
        files = self._files(attempt)
        found = Processes.read(files.process(attempt.number))
        return found if found and found.folder in ("", files.folder_id) else None
