"""Checkpoints stay loadable when the process that writes them is killed."""

import json
import subprocess
import sys
from typing import Any

import pytest

from engine.settings import ROOT

pytestmark = pytest.mark.slow

KILLS = 50

SAVE_AND_LOAD = """
import itertools, json, os, random, signal, sys, time
from pathlib import Path
import torch
from engine import atomic
from engine.training import checkpoints

def save(folder, name, step):
    state = {"vitals": {"step": step}, "state_dict": {"weight": torch.full((30_000,), float(step))}}
    checkpoints.save(folder, name, state, about={"step": step})

def fork(work):
    if (pid := os.fork()) == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid

def latest(folder):
    if (found := checkpoints.load_latest(folder)) is None:
        return {"step": 0, "notes": []}
    state, _, notes = found
    step = state["vitals"]["step"]
    assert bool((state["state_dict"]["weight"] == step).all())
    return {"step": step, "notes": notes}
"""

KILL_AT_RANDOM_TIMES = """
folder, kills = Path(sys.argv[1]), int(sys.argv[3])
rng, step_file = random.Random(0), Path(sys.argv[1] + ".step")

def work(first):
    for step in itertools.count(first):
        save(folder, "latest.pt", step)
        if step % 3 == 0:
            save(folder, f"epoch_{step}.pt", step)
            checkpoints.prune(folder, 2, {"latest.pt"})
        os.pwrite(file, step.to_bytes(8, "big"), 0)

def last_saved_step():
    return int.from_bytes(os.pread(file, 8, 0), "big")

file = os.open(step_file, os.O_RDWR | os.O_CREAT)
began = time.monotonic()
for step in range(1, 6):
    save(folder, "latest.pt", step)
one_save = (time.monotonic() - began) / 5
found = {"step": 5}
for _ in range(kills):
    goal = last_saved_step() + rng.randrange(2)
    pid = fork(lambda: work(found["step"] + 1))
    while last_saved_step() < goal and os.waitpid(pid, os.WNOHANG) == (0, 0):
        time.sleep(one_save / 10)
    time.sleep(rng.uniform(0, 2 * one_save))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    found = latest(folder)
    print(json.dumps({**found, "saved": last_saved_step()}))
"""

KILL_AT_EACH_CALL = """
folder, calls_left = Path(sys.argv[2]), 0

def kill_in_call(call):
    def counting_call(*arguments):
        global calls_left
        calls_left -= 1
        if calls_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments)
    return counting_call

os.fsync, Path.replace = kill_in_call(os.fsync), kill_in_call(Path.replace)
atomic.Hashed.write = kill_in_call(atomic.Hashed.write)
save(folder, "latest.pt", 1)
for calls in itertools.count(1):
    def work():
        global calls_left
        calls_left = calls
        save(folder, "latest.pt", calls + 1)
    _, status = os.waitpid(fork(work), 0)
    print(json.dumps({**latest(folder), "killed": os.WIFSIGNALED(status)}))
    if not os.WIFSIGNALED(status):
        break
    calls_left = 0
"""


Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Found, Found]:
    """Return what was loaded after each kill: at random times, and at each call. One interpreter imports torch."""
    folder = tmp_path_factory.mktemp("checkpoints")
    code = f"{SAVE_AND_LOAD}{KILL_AT_RANDOM_TIMES}print(flush=True){KILL_AT_EACH_CALL}"
    command = [sys.executable, "-W", "error", "-c", code, str(folder / "random"), str(folder / "each"), str(KILLS)]
    process = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    assert process.returncode == 0, process.stderr
    at_random_times, at_each_call = process.stdout.split("\n\n")
    return [json.loads(line) for line in at_random_times.splitlines()], [
        json.loads(line) for line in at_each_call.splitlines()
    ]


def test_checkpoint_saved_before_a_kill_is_loaded_after_it(found: tuple[Found, Found]) -> None:
    kills, _ = found
    assert len(kills) == KILLS
    assert all(kill["step"] >= kill["saved"] for kill in kills)
    assert kills[-1]["saved"] > KILLS / 10
    assert not [note for kill in kills for note in kill["notes"] if "damaged" in note]


def test_kill_at_any_call_leaves_the_old_or_the_new_checkpoint(found: tuple[Found, Found]) -> None:
    _, kills = found
    assert [kill["killed"] for kill in kills] == [True] * (len(kills) - 1) + [False]
    assert len(kills) > 10
    steps = [kill["step"] for kill in kills]
    assert steps == sorted(steps)
    assert steps[0] == 1
    assert steps[-1] == len(kills) + 1
    assert not any(kill["notes"] for kill in kills)
