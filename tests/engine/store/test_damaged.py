"""A damaged, read-only, full, locked or unreachable store: a one-line error with the remedy, and `runs restore`."""

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
from engine.jobs.attempt import failures
from engine.settings import ROOT, Settings
from engine.specs import ProfileSpec
from engine.store import Busy, Cause, Damaged, Filter, State, Store, Unavailable, attempts, open_store, queue
from engine.store.tables import rows, runs, slots
from tests.support.page import finish, open_page, profile_row
from tests.support.store import fill, overwrite, table_pages

RESTORE = "Stop the app, run `python -m engine stop`, then `python -m engine runs restore`"
INDEXES = "SELECT name FROM sqlite_master WHERE tbl_name = 'runs' AND type = 'index' AND sql IS NOT NULL"
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
"""Run a command as the user `nobody`, because root may write all files. Modules are imported before the change."""


def file_of(settings: Settings) -> Path:
    return settings.runs_dir / "vitals.sqlite"


@pytest.fixture
def path(settings: Settings, store: Store) -> Path:
    """Return the file of a closed store with 30 runs, of which run 30 is queued."""
    fill(store, 29, 4)
    store.enqueue(ProfileSpec(models=("resnet18",), device="cpu"))
    store.close()
    return file_of(settings)


def engine(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "engine", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=ROOT, check=False)


def error_line(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run a command that must fail, and return its only line of output, which is on stderr."""
    assert main(list(map(str, arguments))) == 2
    out, error = capsys.readouterr()
    assert out == ""
    (line,) = error.splitlines()
    return line


@pytest.mark.parametrize("share", [0.01, 0.3, 0.6, 0.97])
def test_truncated_store_gives_a_one_line_error(path: Path, share: float, capsys: pytest.CaptureFixture[str]) -> None:
    os.truncate(path, int(path.stat().st_size * share))
    line = error_line(capsys, "runs", "list", "--model", "resnet18", "--tag", "paper")
    assert line.startswith(f"error: the store {path} is damaged: ")
    assert RESTORE in line


@pytest.mark.slow
def test_store_that_is_no_database_gives_a_one_line_error(path: Path) -> None:
    path.write_bytes(b"\0" * path.stat().st_size)
    process = engine("runs", "list")
    assert process.returncode == 2
    assert process.stdout == ""
    (line,) = process.stderr.splitlines()
    assert line.startswith(f"error: the store {path} is damaged: it is not a SQLite database. {RESTORE}")


def test_damaged_pages_give_an_error_only_when_they_are_read(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overwrite(path, *table_pages(path, "rows"))
    assert main(["runs", "list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 31
    line = error_line(capsys, "runs", "show", 7)
    assert line.startswith(f"error: the store {path} is damaged: parts of it cannot be read. {RESTORE}")


def test_database_of_another_program_gives_a_clear_error(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE runs RENAME COLUMN state TO country")
    assert "does not have the tables of this program" in error_line(capsys, "runs", "list")


def test_store_of_a_newer_version_gives_a_clear_error(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    line = error_line(capsys, "runs", "list")
    assert f"the store {path} is at schema 9999" in line
    assert "Upgrade the program" in line


@pytest.mark.slow
def test_flipped_bits_cause_no_traceback(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    intact, rng = path.read_bytes(), random.Random(20_261_123)
    outcomes = set()
    for _ in range(20):
        for ending in ("-wal", "-shm"):
            path.with_name(path.name + ending).unlink(missing_ok=True)
        flipped = bytearray(intact)
        for page in rng.sample(range(len(flipped) // 4096), 5):  # in the header, where damage is worst, and anywhere
            for offset in (rng.randrange(64), rng.randrange(4096)):
                flipped[4096 * page + offset] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        outcomes.add(main(["runs", "list"]))
        assert "Traceback" not in capsys.readouterr().err
    assert outcomes == {0, 2}, "some flips are harmless, some are not"


@pytest.mark.slow
@pytest.mark.parametrize("value", ["'{'", "x'ff'", "'[]'", "7", "1e18"])
def test_damaged_value_of_a_run_hides_no_other_run(
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
def test_error_of_a_damaged_value_names_its_run(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    run_id = store.enqueue(ProfileSpec(models=("resnet18",), device="cpu"))
    finish(store, run_id, [profile_row("resnet18")])
    for change, what in ((update(rows).values(payload="{"), "a row"), (update(runs).values(spec="{"), "its request")):
        with store.database.write() as connection:
            connection.execute(change)
        line = error_line(capsys, "runs", "show", run_id)
        assert f"holds run {run_id}, but {what}" in line
        assert f"delete it with `python -m engine runs delete {run_id}`" in line
    assert main(["runs", "delete", str(run_id)]) == 0


def test_queued_run_with_damaged_devices_fails_and_blocks_no_other(store: Store) -> None:
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
    """Return a folder that the user `nobody` may enter, unlike `tmp_path`."""
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
def test_store_without_permission_gives_a_one_line_error(
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
    process = subprocess.run(command, capture_output=True, text=True, cwd="/", env=environment, check=False)
    folder.chmod(0o777)
    assert process.returncode == 2, process.stderr
    (line,) = process.stderr.splitlines()
    assert line.startswith(f"error: the store {runs_dir}")
    assert cause in line
    assert "Let this user write to" in line


def test_full_disk_gives_a_clear_error_and_the_cause_disk_full(store: Store) -> None:
    spec = ProfileSpec(models=("resnet18",), device="cpu")
    with store.database.write() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")  # SQLite raises it to the present number of pages
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
        ("sqlite://", "has a URL without a file"),
        ("sqlite:///:memory:", "has a URL without a file"),
    ],
)
def test_error_of_a_wrong_url_hides_the_password(
    url: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VITALS_DATABASE_URL", url)
    line = error_line(capsys, "runs", "list")
    assert message in line
    assert "secret" not in line
    assert "secret" not in repr(Settings())


@pytest.mark.cluster
def test_unreachable_server_is_busy_and_its_error_hides_the_password(
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


def test_open_store_reads_a_replaced_file_at_once(settings: Settings, store: Store) -> None:
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
    """The command `runs restore`."""

    @pytest.mark.slow
    def test_restore_copies_all_readable_rows(self, settings: Settings, path: Path) -> None:
        with closing(open_store(settings)) as store:
            matches = store.count(Filter(text="resnet"))
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE runs SET note = CAST(x'ff41' AS TEXT) WHERE id = 3")
            connection.execute("UPDATE sqlite_sequence SET seq = 40 WHERE name = 'runs'")
            connection.execute("UPDATE changes SET revision = 9000")
            connection.execute("INSERT INTO run_tags (run_id, tag) VALUES (35, 'of a lost run')")
            indexes = [name for (name,) in connection.execute(INDEXES)]
        _, *leaves = table_pages(path, "rows")
        pages = [page for table in ("run_texts", *indexes) for page in table_pages(path, table)]
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("PRAGMA writable_schema = ON")
            connection.execute("UPDATE sqlite_master SET sql = 'CREATE INDEX x' WHERE name = 'attempts_by_run'")
        overwrite(path, *leaves[3:5], *pages)
        path.with_name("vitals-restoring.sqlite").write_text("of an interrupted restore")
        damaged = path.read_bytes()
        process = engine("runs", "restore")
        assert process.returncode == 0, process.stderr
        assert "No part of the damaged store" not in process.stderr, "there are no metrics, but runs and rows"
        first_line, *counts = process.stdout.splitlines()
        numbers = {line.split()[0]: line.split()[1:] for line in counts}
        assert numbers["runs"] == ["30", "brought", "over,", "0", "lost"]
        rows_kept, rows_lost = int(numbers["rows"][0]), int(numbers["rows"][3])
        assert rows_kept + rows_lost == 29 * 4
        assert 0 < rows_lost < 30
        (damaged_copy,) = settings.runs_dir.glob("vitals-damaged-*.sqlite")
        assert first_line.endswith(str(damaged_copy))
        assert damaged_copy.read_bytes() == damaged
        with closing(open_store(settings)) as store:
            assert [run.id for run in store.runs()] == list(range(30, 0, -1))
            assert sum(len(store.rows(run.id)) for run in store.runs()) == rows_kept
            assert store.count(Filter(text="resnet")) == matches > 0, (
                "the index of text search was damaged and is built again"
            )
            assert store.position(30) == 1
            assert store.enqueue(ProfileSpec(models=("resnet18",), device="cpu")) == 41, "ids are never reused"
            assert store.revision() > 9000
            with store.database.read() as connection:
                assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"

    @pytest.mark.slow
    def test_restore_keeps_devices_of_active_runs_or_ends_them(self, settings: Settings, store: Store) -> None:
        active, lost = (store.enqueue(ProfileSpec(models=("a",), device=device)) for device in ("cpu", "cuda:0"))
        for run_id in (active, lost):
            attempt = queue.claim(store.database, "here", run_id)
            assert attempt is not None
            attempts.begin(store.database, attempt)
        with store.database.write() as connection:
            connection.execute(text("DELETE FROM attempts WHERE run_id = 2"))
            connection.execute(insert(slots).values(host="here", device="x", attempt_id=9, run_id=1, exclusive=False))
        revision = store.revision()
        store.close()
        path = file_of(settings)
        overwrite(path, *table_pages(path, "metrics"), *table_pages(path, "changes"))
        assert main(["runs", "restore"]) == 0
        assert queue.holders(store.database, "here") == {"cpu": active}
        assert store.run(active).state is State.STARTING
        assert (store.run(lost).state, store.run(lost).cause) == (State.FAILED, Cause.ERROR)
        assert store.revision() > revision, "open pages must notice the new store"

    @pytest.mark.slow
    def test_restore_of_an_unreadable_store_creates_an_empty_one(
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

    def test_restore_leaves_an_intact_store_unchanged(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        before = path.read_bytes()
        assert error_line(capsys, "runs", "restore").endswith("is whole: there is nothing to restore")
        assert path.read_bytes() == before

    @pytest.mark.slow
    def test_restore_refuses_a_store_that_is_in_use(self, path: Path, store: Store) -> None:
        overwrite(path, *table_pages(path, "metrics"))
        assert len(store.runs()) == 30  # opens the file
        process = engine("runs", "restore")
        assert process.returncode == 2
        assert f"is open in process {os.getpid()} (" in process.stderr
        assert "Stop the app, run `python -m engine stop`" in process.stderr
        store.close()
        assert engine("runs", "restore").returncode == 0


@pytest.mark.usefixtures("own_world")
class TestPages:
    """Pages with a damaged store."""

    PAGES = ("catalog/page.py", "vision/page.py", "history/page.py")

    @pytest.mark.slow
    @pytest.mark.parametrize("page", PAGES)
    def test_page_shows_the_damage_and_works_again_after_repair(self, path: Path, page: str) -> None:
        app = open_page(page)
        assert not app.error
        intact = path.read_bytes()
        for damaged in (b"\0" * 8192, intact[: len(intact) // 3]):
            _replace(path, damaged)
            app.run()
            assert not app.exception
            (error,) = app.error
            assert "is damaged" in error.value
            assert "runs restore" in error.value
            _replace(path, intact)
            app.run()
            assert not app.exception
            assert not app.error

    @pytest.mark.slow
    def test_part_of_a_page_shows_the_damage(self, path: Path) -> None:
        overwrite(path, *table_pages(path, "changes"))
        app = open_page("history/page.py")
        assert [button.label for button in app.button if button.key == "runs_cancel_30"] == ["Cancel run 30"]
        assert not app.exception
        (error,) = app.error
        assert "is damaged" in error.value

    @pytest.mark.slow
    def test_page_of_a_run_with_damaged_values_shows_an_error(self, settings: Settings, path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE runs SET spec = '{' WHERE id = 7")
        app = open_page("run/page.py", run="7")
        assert not app.exception
        (error,) = app.error
        assert "holds run 7" in error.value


def _replace(path: Path, content: bytes) -> None:
    """Replace the file of a store, as an operator does who restores a backup."""
    for ending in ("-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
    new = path.with_name("new")
    new.write_bytes(content)
    new.replace(path)
