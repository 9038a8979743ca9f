"""The warm process: it has the heavy libraries imported, and forks itself for every requested run.

It runs no operator and touches no device: a fork after a parallel operator would hang in the child, and a CUDA context
cannot be forked at all. For the same reason it loads neither sklearn nor pandas.
Linux only: on other systems workers start cold.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from importlib import import_module

from engine.jobs.lifecycle import start_engine
from engine.settings import Settings
from engine.specs import Refused

log = logging.getLogger(__name__)


def main(settings: Settings) -> None:
    """Run `python -m engine warm`: import, then read run ids from standard input, one per line, until it is closed."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    started = time.monotonic()
    for name in filter(None, ("engine.jobs.attempt.worker", *settings.preload.split(","))):
        import_module(name.strip())
    log.info("warm process %d: imported %s in %.1f s", os.getpid(), settings.preload, time.monotonic() - started)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody here waits for supervisors
    for line in sys.stdin.buffer:
        if os.fork() == 0:
            _become_supervisor(settings, int(line))


def _become_supervisor(settings: Settings, run_id: int) -> None:
    """Run the supervisor in the forked child. Never returns."""
    try:
        from engine.jobs.attempt import worker

        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)  # only the warm process may read the scheduler's pipe and see its end
        worker.main(settings, run_id)
    except Refused as refusal:  # the run was cancelled while this process was loading
        log.info("%s", refusal)
    except BaseException:  # no exception may reach the stack frames of the forked parent
        log.exception("the supervisor of run %d has failed", run_id)
    finally:
        os._exit(0)


class WarmProcess:
    """Starts the warm process for a scheduler, sends it run ids, and replaces it when it dies."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._deaths = 0

    @property
    def alive(self) -> bool:
        """Return whether the warm process can take a run."""
        return self._process is not None and self._process.poll() is None

    def ensure(self) -> bool:
        """Start the warm process if needed, and return whether it runs.

        There is none off Linux, without libraries to load, and after 4 deaths.
        """
        if self.alive:
            return True
        if self._process is not None:
            self._deaths += 1
            self._process = None
        if sys.platform != "linux" or not self._settings.preload or self._deaths >= 4:
            return False
        self._process = start_engine(self._settings, "warm", stdin=subprocess.PIPE)
        return True

    def ask(self, run_id: int) -> bool:
        """Request a run; return False if there is no warm process to take it."""
        if not self.ensure():
            return False
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"%d\n" % run_id)
            self._process.stdin.flush()
        except BrokenPipeError:
            return False
        return True

    def close(self) -> None:
        """End the warm process. Supervisors that it started keep running."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
