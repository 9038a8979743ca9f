"""A command whose output nobody reads, because the reader of its pipe has left or a stream is closed."""

import subprocess
import sys

import pytest

from engine.settings import ROOT
from engine.store import State, Store


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """Run a line in bash. `engine` is the command line, and the exit code is that of the first command of a pipe."""
    script = f'engine() {{ {sys.executable} -m engine "$@"; }}; {line}; exit ${{PIPESTATUS[0]}}'
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=240, cwd=ROOT)


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_no_error() -> None:
    done = shell("engine catalog | head -1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "gmacs" in done.stdout


@pytest.mark.slow
def test_a_run_goes_on_without_a_reader_and_its_outcome_is_the_exit_code(store: Store) -> None:
    assert shell("engine profile --models timm:resnet18,timm:resnet34 2>&1 | head -1").returncode == 0
    # 16 pixels are half a patch of ViT-B-32
    assert shell("engine profile --models timm:resnet18,ViT-B-32 --image-size 16 2>&1 | head -1").returncode == 1
    failed, finished = store.runs()
    assert [finished.state, failed.state] == [State.FINISHED] * 2
    assert [row.status for row in store.rows(finished.id)] == ["ok"] * 2
    assert sorted(row.status for row in store.rows(failed.id)) == ["error", "ok"]


@pytest.mark.slow
def test_a_closed_stream_discards_its_output_alone(store: Store) -> None:
    for line, code in (
        ("engine catalog >&-", 0),
        ("engine runs list --state lost >&-", 2),
        ("engine runs list --state lost 2>&-", 2),
        ("engine runs list --limit 1 >&- 2>&-", 0),
    ):
        done = shell(line)
        assert (done.returncode, done.stdout) == (code, ""), done
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_disk_that_fills_during_a_run_is_named_without_traces(store: Store) -> None:
    done = shell("ulimit -f 300; engine profile --models timm:resnet*")  # files of at most 300 KiB, also the store's
    assert done.returncode == 2
    assert "run 1 failed: the store " in done.stderr
    recorded = store.run(1).state == State.FAILED  # its end needs less space than its rows, so there may be enough
    assert recorded != ("run 1 could not record its end: the store " in done.stderr)
    assert "has no space left. Look at the disk's free space" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert "log has the" not in done.stderr


@pytest.mark.slow
def test_a_full_disk_comes_with_a_way_to_make_room(store: Store) -> None:
    """SQLite needs a file beside the store even to read it, so no command of ours can delete anything then."""
    store.close()
    done = shell("ulimit -f 0; engine runs list")
    assert (done.returncode, done.stdout) == (2, "")
    assert "because its disk fails or has no space left. Look at the disk's free space" in done.stderr
    assert "delete scheduler.older.log in the runs folder, or move a run's folder to another disk" in done.stderr
    assert shell("engine runs list").returncode == 0
