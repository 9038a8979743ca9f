"""One process of a training in several processes, started by `torchrun ... -m engine.training.torchrun JOB.json`."""

import logging
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

from engine.process import collect_rarely, leave

collect_rarely()

import psutil
import torch

from engine.measure import environment
from engine.settings import Settings
from engine.training.distributed import joined
from engine.training.loop import Training
from engine.training.setup import prepare
from engine.training.torchrun import launch

WATCH_S = 1.0
"""Seconds between two checks whether the parent processes still run."""


def main() -> None:
    """Train to the end. After SIGTERM or SIGINT, finish the current step, save a checkpoint and stop."""
    job = launch.Job.model_validate_json(Path(sys.argv[1]).read_bytes())
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING, force=True)
    # open_clip gathers features with this deprecated function
    warnings.filterwarnings("ignore", "torch.distributed.nn.functional.all_gather is deprecated", FutureWarning)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    threading.Thread(target=_exit_with, args=(job.parent, os.getppid()), daemon=True).start()
    try:
        _train(job, stop)
    except Exception as error:
        launch.write_failure(error, job.run_dir)
        raise


def _train(job: launch.Job, stop: threading.Event) -> None:
    with joined(job.spec.device) as place:
        logging.getLogger("engine").setLevel(logging.INFO if place.first else logging.WARNING)
        local_processes = int(os.environ["LOCAL_WORLD_SIZE"])  # torchrun sets it
        torch.set_num_threads(job.spec.threads or max(1, environment.threads() // local_processes))
        training = Training(
            prepare(job.spec, place, job.run_dir, Settings().roots),
            job.run_dir,
            job.device_name,
            stopped=stop.is_set,
            notes=job.notes,
        )
        last = None
        for event in training.run():
            if place.first and event != last:
                launch.write(event, job.run_dir)
            last = event


def _exit_with(*process_ids: int) -> None:
    """Exit this process as soon as one of these has ended, because nobody would read its events or stop it."""
    try:
        watched = [psutil.Process(process) for process in process_ids]
        while all(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in watched):
            time.sleep(WATCH_S)
    except psutil.NoSuchProcess:
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
    leave(0)
