"""A store that is damaged, read-only, full, locked or out of reach: one sentence with the remedy, and a way back."""

import os
import random
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import insert, text, update

from engine.__main__ import main
from engine.jobs import failures
from engine.settings import ROOT, Settings
from engine.specs import ProfileSpec
from engine.store import Busy, Cause, Damaged, Filter, State, Store, Unavailable, attempts, open_store, queue
from engine.store.tables import rows, runs, slots
from tests.support.page import finish, open_page, profile_row
from tests.support.store import fill, overwrite, table_pages

RESTORE = "Stop the app, run `python -m engine stop`, then `python -m engine runs restore`"
AS_NOBODY = """
import os, sys
import engine.__main__, engine.store, engine.cli.bulk
import sqlalchemy.dialects.sqlite.pysqlite
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
sys.exit(engine.__main__.main(sys.argv[1:]))
"""
"""To root all files are writable, so the command runs as nobody; what it imports is imported before."""


def file_of(settings: Settings) -> Path:
    return settings.runs_dir / "vitals.sqlite"


@pytest.fixture
def path(settings: Settings, store: Store) -> Path:
    """The file of a closed store with 30 runs, of which run 30 still waits."""
    fill(store, 29, 4)
    store.enqueue(ProfileSpec(models=("resnet18",), device="cpu"))
    store.close()
    return file_of(settings)


def engine(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "engine", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=ROOT, check=False)


def error_line(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that a command says which cannot do its work."""
    assert main(list(map(str, arguments))) == 2
    out, error = capsys.readouterr()
    assert out == ""
    (line,) = error.splitlines()
    return line


@pytest.mark.parametrize("share", [0.01, 0.3, 0.6, 0.97])
def test_a_truncated_store_is_told_in_one_sentence(
    path: Path, share: float, capsys: pytest.CaptureFixture[str]
) -> None:
    os.truncate(path, int(path.stat().st_size * share))
    line = error_line(capsys, "runs", "list", "--model", "resnet18", "--tag", "paper")
    assert line.startswith(f"error: the store {path} is damaged: ")
    assert RESTORE in line


@pytest.mark.slow
def test_a_store_that_is_no_database_is_told_in_one_sentence(path: Path) -> None:
    path.write_bytes(b"\0" * path.stat().st_size)
    done = engine("runs", "list")
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: the store {path} is damaged: it is not a SQLite database. {RESTORE}")


def test_damaged_pages_are_told_where_they_are_needed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overwrite(path, *table_pages(path, "rows"))
    assert main(["runs", "list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 31
    line = error_line(capsys, "runs", "show", 7)
    assert line.startswith(f"error: the store {path} is damaged: parts of it cannot be read. {RESTORE}")


def test_a_database_of_another_program_is_told(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE runs RENAME COLUMN state TO country")
    assert "does not have the tables of this program" in error_line(capsys, "runs", "list")


def test_a_store_of_a_newer_version_is_told(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    line = error_line(capsys, "runs", "list")
    assert f"the store {path} is at schema 9999" in line
    assert "Upgrade the program" in line


@pytest.mark.slow
def test_no_flipped_byte_leads_to_a_traceback(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, dice = path.read_bytes(), random.Random(20_261_123)
    outcomes = set()
    for _ in range(50):
        for ending in ("-wal", "-shm"):
            path.with_name(path.name + ending).unlink(missing_ok=True)
        flipped = bytearray(whole)
        for page in dice.sample(range(len(flipped) // 4096), 5):  # at its head, where damage is worst, and anywhere
            for place in (dice.randrange(64), dice.randrange(4096)):
                flipped[4096 * page + place] ^= 1 << dice.randrange(8)
        path.write_bytes(flipped)
        outcomes.add(main(["runs", "list"]))
        assert "Traceback" not in capsys.readouterr().err
    assert outcomes == {0, 2}, "some flips are harmless, some are not"


@pytest.mark.slow
@pytest.mark.parametrize("value", ["'{'", "x'ff'", "'[]'", "7"])
def test_a_damaged_value_of_one_run_hides_no_other(
    store: Store, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = [store.enqueue(ProfileSpec(models=("resnet18",), device="cpu")) for _ in range(3)]
    finish(store, ids[0], [profile_row("resnet18")])
    for column in ("spec", "state", "name", "devices", "created_at", "environment"):
        with store.database.write() as connection:
            connection.execute(text("UPDATE runs SET spec = (SELECT spec FROM runs WHERE id = 3), state = 'queued'"))
            connection.execute(text(f"UPDATE runs SET {column} = {value} WHERE id = 2"))
        listed = [run.id for run in store.find(Filter(), limit=9)]
        assert {ids[0], ids[2]} <= set(listed), column
        assert "cpu" in store.devices()
        assert sum(len(batch) for batch in store.lines(Filter())) == 3
        assert main(["runs", "list"]) == 0


@pytest.mark.slow
def test_a_damaged_value_is_told_with_its_run(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    run_id = store.enqueue(ProfileSpec(models=("resnet18",), device="cpu"))
    finish(store, run_id, [profile_row("resnet18")])
    for change, what in ((update(rows).values(payload="{"), "a row"), (update(runs).values(spec="{"), "its request")):
        with store.database.write() as connection:
            connection.execute(change)
        line = error_line(capsys, "runs", "show", run_id)
        assert f"holds run {run_id}, but {what}" in line
        assert f"delete it with `python -m engine runs delete {run_id}`" in line
    assert main(["runs", "delete", str(run_id)]) == 0


def test_a_queued_run_whose_devices_are_lost_fails_and_holds_up_no_other(store: Store) -> None:
    ids = [store.enqueue(ProfileSpec(models=("resnet18",), device="cpu")) for _ in range(2)]
    with store.database.write() as connection:
        connection.execute(update(runs).where(runs.c.id == ids[0]).values(devices="[cp"))
    attempt = queue.claim(store.database, "here")
    assert attempt is not None
    assert attempt.run_id == ids[1]
    lost = store.run(ids[0])
    assert (lost.state, lost.cause) == (State.FAILED, Cause.ERROR)
    assert "its file is damaged" in lost.error


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that nobody may enter, unlike `tmp_path`."""
    folder = Path(tempfile.mkdtemp(prefix="vitals-store-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file_mode", "folder_mode", "arguments", "cause"),
    [
        (0o444, 0o777, ["runs", "tag", "1", "--add", "x"], "is read-only"),
        (0o444, 0o555, ["runs", "list"], "is read-only"),
        (0o000, 0o777, ["runs", "list"], "cannot be opened"),
        (0o666, 0o000, ["runs", "list"], "needs a folder that cannot be made"),
    ],
)
def test_a_store_without_permission_is_told(
    public_folder: Path, file_mode: int, folder_mode: int, arguments: list[str], cause: str
) -> None:
    folder = public_folder / "runs"
    with closing(open_store(Settings(runs_dir=folder))) as store:
        fill(store, 1, 1)
    (folder / "vitals.sqlite").chmod(file_mode)
    folder.chmod(folder_mode)
    runs_dir = folder / "below" if folder_mode == 0 else folder
    environment = os.environ | {"VITALS_RUNS_DIR": str(runs_dir), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", AS_NOBODY, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", env=environment, check=False)
    folder.chmod(0o777)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: the store {runs_dir}")
    assert cause in line
    assert "Let this user write to" in line


def test_a_full_disk_is_told_and_is_the_cause(store: Store) -> None:
    spec = ProfileSpec(models=("resnet18",), device="cpu")
    with store.database.write() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")  # not less than there are now
    with pytest.raises(Unavailable, match=r"cannot be written because the disk is full\. Free space") as raised:
        [store.enqueue(spec, name="x" * 200) for _ in range(100)]
    assert not isinstance(raised.value, Busy | Damaged)
    assert failures.of_exception(raised.value) == Cause.DISK_FULL
    store.enqueue(spec)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql+psycopg2://u:secret@h/d", "d on h:5432 needs a driver that is not installed"),
        ("postgresql://u:s@secret@h/d", "Write an @ of the password as %40"),
        ("postgresql://u:p@h:secret/d", "has no URL that can be read. Give `postgresql://USER"),
        ("secret", "has no URL that can be read"),
        ("mysql://u:secret@h/d", "of the kind 'mysql', and only PostgreSQL and SQLite"),
    ],
)
def test_a_wrong_url_is_told_without_its_password(
    url: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VITALS_DATABASE_URL", url)
    line = error_line(capsys, "runs", "list")
    assert message in line
    assert "secret" not in line
    assert "secret" not in repr(Settings())


@pytest.mark.cluster
def test_a_server_out_of_reach_is_told_as_busy_and_without_its_password(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    url = f"postgresql://vitals:secret@127.0.0.1:{port}/runs"
    with pytest.raises(Busy):
        open_store(settings.model_copy(update={"database_url": url}))
    monkeypatch.setenv("VITALS_DATABASE_URL", url)
    line = error_line(capsys, "runs", "list")
    assert line.startswith(f"error: the store runs on 127.0.0.1:{port} does not answer. Start PostgreSQL")
    assert line.endswith("failed: Connection refused")
    assert "secret" not in line
    assert "restore it from its own backup" in error_line(capsys, "runs", "restore")


def test_a_backup_put_in_place_is_read_at_once(settings: Settings, store: Store) -> None:
    store.enqueue(ProfileSpec(models=("resnet18",), device="cpu"))
    backup = settings.runs_dir / "backup"
    with closing(sqlite3.connect(file_of(settings))) as source, closing(sqlite3.connect(backup)) as target:
        source.backup(target)
    store.enqueue(ProfileSpec(models=("resnet50",), device="cpu"))
    assert len(store.runs()) == 2
    for ending in ("-wal", "-shm"):
        (settings.runs_dir / f"vitals.sqlite{ending}").unlink()
    backup.replace(file_of(settings))
    assert len(store.runs()) == 1


class TestRestore:
    """`runs restore`."""

    @pytest.mark.slow
    def test_all_that_can_be_read_is_brought_over(self, settings: Settings, path: Path) -> None:
        with closing(open_store(settings)) as store:
            findable = store.count(Filter(text="resnet"))
        _, *leaves = table_pages(path, "rows")
        overwrite(path, *leaves[3:5], *table_pages(path, "run_texts"))
        damaged = path.read_bytes()
        done = engine("runs", "restore")
        assert done.returncode == 0, done.stderr
        kept, *counts = done.stdout.splitlines()
        numbers = {line.split()[0]: line.split()[1:] for line in counts}
        assert numbers["runs"] == ["30", "brought", "over,", "0", "lost"]
        rows_kept, rows_lost = int(numbers["rows"][0]), int(numbers["rows"][3])
        assert rows_kept + rows_lost == 29 * 4
        assert 0 < rows_lost < 30
        (aside,) = settings.runs_dir.glob("vitals-damaged-*.sqlite")
        assert kept.endswith(str(aside))
        assert aside.read_bytes() == damaged
        with closing(open_store(settings)) as store:
            assert [run.id for run in store.runs()] == list(range(30, 0, -1))
            assert sum(len(store.rows(run.id)) for run in store.runs()) == rows_kept
            assert store.count(Filter(text="resnet")) == findable > 0, "the text of searches was lost and is made anew"
            assert store.position(30) == 1
            assert store.enqueue(ProfileSpec(models=("resnet18",), device="cpu")) == 31
            with store.database.read() as connection:
                assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"

    @pytest.mark.slow
    def test_runs_under_way_keep_their_slots_or_end(self, settings: Settings, store: Store) -> None:
        going, lost = (store.enqueue(ProfileSpec(models=("a",), device=device)) for device in ("cpu", "cuda:0"))
        for run_id in (going, lost):
            attempt = queue.claim(store.database, "here", run_id)
            assert attempt is not None
            attempts.begin(store.database, attempt)
        with store.database.write() as connection:
            connection.execute(text("DELETE FROM attempts WHERE run_id = 2"))
            connection.execute(insert(slots).values(host="here", device="x", attempt_id=9, run_id=1, exclusive=False))
        revision = store.revision()
        store.close()
        overwrite(file_of(settings), *table_pages(file_of(settings), "metrics"))
        assert main(["runs", "restore"]) == 0
        assert queue.holders(store.database, "here") == {"cpu": going}
        assert store.run(going).state is State.STARTING
        assert (store.run(lost).state, store.run(lost).cause) == (State.FAILED, Cause.ERROR)
        assert store.revision() > revision, "pages must not take the new store for the old one"

    @pytest.mark.slow
    def test_of_a_store_that_cannot_be_read_at_all_an_empty_one_is_made(
        self, settings: Settings, path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path.write_bytes(b"\0" * 8192)
        (settings.runs_dir / "7").mkdir()
        assert main(["runs", "restore"]) == 0
        out, error = capsys.readouterr()
        assert out.count("0 brought over, an unknown number lost") == 4
        assert "No part of the damaged store could be read. The new store is empty." in error
        assert (settings.runs_dir / "7").is_dir()
        assert len(list(settings.runs_dir.glob("vitals-damaged-*.sqlite"))) == 1
        with closing(open_store(settings)) as store:
            assert store.runs() == []

    def test_a_whole_store_is_left_alone(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        before = path.read_bytes()
        assert error_line(capsys, "runs", "restore").endswith("is whole: there is nothing to restore")
        assert path.read_bytes() == before

    @pytest.mark.slow
    def test_a_store_in_use_is_left_alone(self, path: Path, store: Store) -> None:
        overwrite(path, *table_pages(path, "metrics"))
        assert len(store.runs()) == 30  # opens it
        done = engine("runs", "restore")
        assert done.returncode == 2
        assert f"is open in process {os.getpid()} (" in done.stderr
        assert "Stop the app, run `python -m engine stop`" in done.stderr
        store.close()
        assert engine("runs", "restore").returncode == 0


@pytest.mark.usefixtures("own_world")
class TestPages:
    """Pages with such a store."""

    PAGES = ("catalog/page.py", "vision/page.py", "history/page.py")

    @pytest.mark.slow
    @pytest.mark.parametrize("page", PAGES)
    def test_a_page_says_what_is_wrong_and_goes_on_once_it_is_put_right(self, path: Path, page: str) -> None:
        app = open_page(page)
        assert not app.error
        whole = path.read_bytes()
        for damaged in (b"\0" * 8192, whole[: len(whole) // 3]):
            _replace(path, damaged)
            app.run()
            assert not app.exception
            (error,) = app.error
            assert "is damaged" in error.value
            assert "runs restore" in error.value
            _replace(path, whole)
            app.run()
            assert not app.exception
            assert not app.error

    @pytest.mark.slow
    def test_a_part_of_a_page_says_it_too(self, path: Path) -> None:
        overwrite(path, *table_pages(path, "changes"))
        app = open_page("history/page.py")
        assert [button.label for button in app.button if button.key == "runs_cancel_30"] == ["Cancel"]
        assert not app.exception
        (error,) = app.error
        assert "is damaged" in error.value

    @pytest.mark.slow
    def test_a_run_with_damaged_values_is_told(self, settings: Settings, path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE runs SET spec = '{' WHERE id = 7")
        app = open_page("run/page.py", run="7")
        assert not app.exception
        (error,) = app.error
        assert "holds run 7" in error.value


def _replace(path: Path, content: bytes) -> None:
    """Put another file in its place, as one who restores a backup does."""
    for ending in ("-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
    new = path.with_name("new")
    new.write_bytes(content)
    new.replace(path)
