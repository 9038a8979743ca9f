"""Work spread over real processes, some of which are killed."""

import subprocess
import sys
import time
from functools import partial
from multiprocessing import active_children
from pathlib import Path

import psutil
import pytest

from engine.jobs.foreground import run_here
from engine.measure import environment
from engine.replicates.child import Ended
from engine.results import Event, Progress, Row
from engine.settings import ROOT, Settings
from engine.specs import ProfileSpec
from engine.store import State, Store
from engine.tasks import profile
from engine.tasks.shards import spread
from tests.support.pieces import square

PATIENCE_S = 60
MODELS = ("timm:test_resnet", "timm:test_vit")


@pytest.mark.slow
def test_piece_of_a_killed_process_is_retried_and_then_reported_lost(tmp_path: Path) -> None:
    found = [item for item in spread(partial(square, tmp_path), range(8), processes=2) if item]
    assert sorted(place for place, _ in found) == list(range(8))
    results = dict(found)
    lost = results.pop(5)
    assert isinstance(lost, Ended)
    assert (lost.status, "SIGKILL" in lost.error) == ("error", True)
    assert results == {number: number**2 for number in range(8) if number != 5}


@pytest.mark.slow
def test_processes_end_when_the_calling_process_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys; from functools import partial; from pathlib import Path; from engine.tasks.shards import spread; "
        "from tests.support.pieces import wait_long; list(spread(partial(wait_long, Path(sys.argv[1])), range(2), 2))"
    )
    caller = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT)
    deadline = time.monotonic() + PATIENCE_S
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    children = psutil.Process(caller.pid).children(recursive=True)
    assert len(children) >= 2
    caller.kill()
    caller.wait()
    _, remaining = psutil.wait_procs(children, timeout=PATIENCE_S)
    assert remaining == []


SIGNALS_SCRIPT = """
import os, signal, sys, threading
from functools import partial
from pathlib import Path
from engine.tasks.shards import spread
from tests.support.pieces import square

received = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: received.append("stop"))
    for seconds in (0.02, 0.5, 1.5):
        threading.Timer(seconds, os.killpg, (0, number)).start()
found = [item for item in spread(partial(square, Path(sys.argv[1])), [1, 2, 4], 2) if item]
print(sorted(found), bool(received))
"""


@pytest.mark.slow
def test_signal_that_asks_the_caller_to_stop_leaves_its_processes(tmp_path: Path) -> None:
    """A cancellation and Ctrl+C signal the whole group of a run's worker, also while the libraries are imported."""
    command = [sys.executable, "-c", SIGNALS_SCRIPT, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, start_new_session=True, timeout=PATIENCE_S)
    assert done.stdout == "[(0, 1), (1, 4), (2, 16)] True\n", done.stderr


@pytest.mark.slow
def test_parallel_count_survives_a_kill_and_equals_a_serial_count(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "threads", lambda: 2)
    monkeypatch.setattr(profile, "MODELS_EACH", 4)
    spec = ProfileSpec(models=MODELS, batch_size=(1, 2, 3, 4))
    events: list[Event] = []

    def kill_one(event: Event) -> None:
        events.append(event)
        if len([row for row in events if isinstance(row, Row)]) == 3 and isinstance(event, Row):
            counting = active_children()
            assert len(counting) == 2
            counting[0].kill()

    run_id = run_here(store, settings, spec, kill_one)
    assert store.run(run_id).state is State.FINISHED
    rows = {(row.model, row.batch_size): row for row in store.rows(run_id)}
    assert len(rows) == len(store.rows(run_id)) == 8
    last = [event for event in events if isinstance(event, Progress)][-1]
    assert (last.done, last.total, last.note) == (len(rows), len(rows), "in 2 processes")
    for model in MODELS:
        for point in spec.points:
            serial_row = profile.profile(model, point.model_copy(update={"detail": True})).row
            row = rows[serial_row.model, serial_row.batch_size]
            assert row.model_copy(update={"seconds": 0.0}) == serial_row.model_copy(update={"seconds": 0.0})
