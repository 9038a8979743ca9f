"""Processes: closed pipes, streams and terminals, full disks, children, counts of kills, jobs of a cluster."""

import logging
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from engine import process
from engine.process import joined_cluster
from engine.settings import ROOT
from engine.specs import DeviceSpec
from engine.store import State, Store


def run_in_bash(line: str) -> subprocess.CompletedProcess[str]:
    """Run a line in bash. `engine` is the command line, and the exit code is that of the first command of a pipe."""
    script = f'engine() {{ {shlex.quote(sys.executable)} -m engine "$@"; }}; {line}; exit ${{PIPESTATUS[0]}}'
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=240, cwd=ROOT)


TINY = "python:tests.support.own_models:tiny"
"""A model whose count does not load timm."""
MISSING = "python:tests.support.own_models:missing"
PARENT = """
import os, signal, time
from engine.process import exit_with_parent, fork_context

def work(connection):
    exit_with_parent()
    connection.send(os.getpid())
    time.sleep(3600)

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: None)
    context = fork_context("json")
    connection, other = context.Pipe()
    context.Process(target=work, args=(other,)).start()
    print(connection.recv(), flush=True)
    time.sleep(3600)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a fork server here")
def test_children_end_with_their_parent_but_not_at_signals_to_its_group(tmp_path: Path) -> None:
    """Ctrl+C in a terminal is such a signal: the parent stops after the current model, for which it needs them."""
    (tmp_path / "parent.py").write_text(PARENT)
    command = [sys.executable, str(tmp_path / "parent.py")]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stdout
        child = psutil.Process(int(parent.stdout.readline()))
        try:
            family = psutil.Process(parent.pid).children(recursive=True)
            assert child in family
            os.killpg(parent.pid, signal.SIGTERM)
            time.sleep(0.3)
            assert all(member.is_running() and member.status() != psutil.STATUS_ZOMBIE for member in family)
            for pid in (parent.pid, child.pid):  # a user stops the one, which may terminate the other
                assert "SigBlk:\t0000000000000000\n" in Path(f"/proc/{pid}/status").read_text()
            parent.kill()
            assert psutil.wait_procs([child], timeout=60)[0] == [child]
        finally:
            parent.kill()
            if child.is_running():
                child.kill()


def test_process_that_leaves_runs_its_exit_functions_and_joins_threads() -> None:
    code = "import atexit, threading, time; from engine.process import leave; atexit.register(print, 'the end'); "
    code += "threading.Thread(target=lambda: (time.sleep(0.1), print('a thread'))).start(); leave(3)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (3, "a thread\nthe end\n", "")


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        ({"self/cgroup": "0::/a/b\n", "a/b/memory.events": "oom 5\noom_kill 2\noom_group_kill 9\n"}, 2),
        ({"self/cgroup": "4:cpu:/x\n3:memory:/x\n", "memory/memory.oom_control": "under_oom 0\noom_kill 3\n"}, 3),
        (
            {
                "self/cgroup": "3:memory,misc:/x\n",
                "memory/x/memory.oom_control": "oom_kill 4\n",
                "memory/memory.oom_control": "oom_kill 8\n",
            },
            4,
        ),
        ({"self/cgroup": "0::/a/b\n", "a/b/memory.events": "max 0\n"}, 7),
    ],
    ids=["cgroup 2", "cgroup 1 in a container", "cgroup 1", "without a counter of the cgroup"],
)
def test_kills_are_counted_in_the_own_cgroup(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, str], kills: int
) -> None:
    paths = {str(process.CGROUPS / name): text for name, text in files.items()}
    paths |= {"/proc/self/cgroup": files["self/cgroup"], str(process.VMSTAT): "nr_free_pages 1\noom_kill 7\n"}
    monkeypatch.setattr(process, "_read", lambda path: paths.get(str(path), ""))
    assert process.oom_kills() == kills
    paths.clear()
    assert process.oom_kills() == 0


def test_job_of_a_cluster_keeps_its_own_signal_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray sets a handler that exits, and colours the lines of a log and leaves out repeated ones."""
    calls = list[object]()

    def init(**options: object) -> None:
        calls.append(options | {name: os.environ[name] for name in ("RAY_COLOR_PREFIX", "RAY_DEDUP_LOGS")})
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    ray = SimpleNamespace(init=init, shutdown=lambda: calls.append("left"))
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(os, "environ", {})
    before = signal.getsignal(signal.SIGTERM)
    with joined_cluster(log_to_driver=True) as module:
        assert (module, signal.getsignal(signal.SIGTERM)) == (ray, before)
    options = {"address": "auto", "log_to_driver": True, "logging_level": logging.WARNING}
    assert calls == [options | {"RAY_COLOR_PREFIX": "0", "RAY_DEDUP_LOGS": "0"}, "left"]


@pytest.mark.slow
def test_closed_pipe_is_not_an_error() -> None:
    command = run_in_bash("engine catalog | head -1")
    assert (command.returncode, command.stderr) == (0, "")
    assert "gmacs" in command.stdout


@pytest.mark.slow
def test_run_goes_on_after_its_pipe_was_closed(store: Store) -> None:
    command = f"engine profile --models {TINY},{MISSING} --image-size 8"
    assert run_in_bash(f"{command} 2>&1 | head -1").returncode == 1, "a row failed; a closed pipe would end with 2"
    (run,) = store.runs()
    assert run.state == State.FINISHED
    assert {row.name: row.status for row in store.rows(run.id)} == {TINY: "ok", MISSING: "error"}


@pytest.mark.slow
def test_run_goes_on_after_its_terminal_was_closed(store: Store) -> None:
    """The process is in a session of its own, so it gets no SIGHUP, as after `disown`."""
    terminal, end = pty.openpty()
    line = [sys.executable, "-m", "engine", "profile", "--models", TINY, "--image-size", "8"]
    with subprocess.Popen(line, cwd=ROOT, stdin=end, stdout=end, stderr=end, start_new_session=True) as command:
        os.close(end)
        assert os.read(terminal, 1)
        os.close(terminal)
    (run,) = store.runs()
    assert (command.returncode, run.state, run.error) == (0, State.FINISHED, "")


@pytest.mark.slow
def test_closed_stream_discards_only_its_own_output(store: Store) -> None:
    for line, code in (
        ("engine catalog >&-", 0),
        ("engine runs list --state lost >&-", 2),
        ("engine runs list --state lost 2>&-", 2),
        ("engine runs list --limit 1 >&- 2>&-", 0),
    ):
        command = run_in_bash(line)
        assert (command.returncode, command.stdout) == (code, ""), command
        assert "Traceback" not in command.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("ascii_locale")
def test_signs_that_the_terminal_lacks_are_escaped(store: Store) -> None:
    store.enqueue(DeviceSpec(), name="größer 字")
    assert r"gr\xf6\xdfer \u5b57" in run_in_bash("engine runs").stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", ["--version", "runs list --help", "catalog"])
def test_output_to_a_full_disk_gives_one_error(command: str) -> None:
    done = run_in_bash(f"engine {command} > /dev/full")
    assert (done.returncode, done.stderr) == (2, "error: [Errno 28] No space left on device\n")


@pytest.mark.slow
def test_disk_that_fills_during_a_run_gives_a_short_error(store: Store) -> None:
    """The end needs less space than the rows, so it may be recorded."""
    command = run_in_bash("ulimit -f 300; engine profile --models timm:test_*")  # 300 KiB per file, also the store
    recorded = store.run(1).state == State.FAILED
    assert command.returncode in ((1, 2) if recorded else (2,)), "1: a run failed. 2: the command did"
    assert "run 1 failed: the store " in command.stderr
    assert recorded != ("run 1 could not record its end: the store " in command.stderr)
    assert "has no space left. Look at the disk's free space" in command.stderr.splitlines()[-1]
    assert "Traceback" not in command.stderr
    assert "log has the" not in command.stderr


@pytest.mark.slow
def test_full_disk_error_says_how_to_free_space(store: Store) -> None:
    """SQLite needs to write a file next to the store even to read it, so no command can delete runs then."""
    store.close()
    command = run_in_bash("ulimit -f 0; engine runs list")
    assert (command.returncode, command.stdout) == (2, "")
    assert "because its disk fails or has no space left. Look at the disk's free space" in command.stderr
    assert "delete scheduler.older.log in the runs folder, or move a run's folder to another disk" in command.stderr
    assert run_in_bash("engine runs list").returncode == 0


def test_ctrl_c_during_imports_prints_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "pydantic_settings.py").write_text("raise KeyboardInterrupt\n")
    variables = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-m", "engine", "runs"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=variables)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "interrupted\n")
