"""Commands whose pipe, output stream or terminal is closed, and commands on a full disk."""

import os
import pty
import shlex
import subprocess
import sys

import pytest

from engine.settings import ROOT
from engine.specs import DeviceSpec
from engine.store import State, Store


def run_in_bash(line: str) -> subprocess.CompletedProcess[str]:
    """Run a line in bash. `engine` is the command line, and the exit code is that of the first command of a pipe."""
    script = f'engine() {{ {shlex.quote(sys.executable)} -m engine "$@"; }}; {line}; exit ${{PIPESTATUS[0]}}'
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=240, cwd=ROOT)


@pytest.mark.slow
def test_closed_pipe_is_not_an_error() -> None:
    command = run_in_bash("engine catalog | head -1")
    assert (command.returncode, command.stderr) == (0, "")
    assert "gmacs" in command.stdout


@pytest.mark.slow
def test_run_goes_on_after_its_pipe_was_closed(store: Store) -> None:
    command = "engine profile --models timm:test_resnet,test_vit --image-size 8"  # half a patch of test_vit
    assert run_in_bash(f"{command} 2>&1 | head -1").returncode == 1, "a row failed; a closed pipe would end with 2"
    (run,) = store.runs()
    assert run.state == State.FINISHED
    assert {row.model: row.status for row in store.rows(run.id)} == {"test_resnet": "ok", "test_vit": "error"}


@pytest.mark.slow
def test_run_goes_on_after_its_terminal_was_closed(store: Store) -> None:
    """The process is in a session of its own, so it gets no SIGHUP, as after `disown`."""
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "engine", "profile", "--models", "timm:test_vit,test_resnet"]
    with subprocess.Popen(command, cwd=ROOT, stdin=end, stdout=end, stderr=end, start_new_session=True) as process:
        os.close(end)
        assert os.read(terminal, 1)
        os.close(terminal)
    (run,) = store.runs()
    assert (process.returncode, run.state, run.error) == (0, State.FINISHED, "")


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
