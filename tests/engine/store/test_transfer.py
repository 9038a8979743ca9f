"""Moving a store between databases, backing it up and restoring it."""

import json
import os
import re
import sqlite3
import stat
import subprocess
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import insert

from engine.__main__ import main
from engine.jobs.hosts import this_host
from engine.jobs.lifecycle import processes_with
from engine.settings import Settings
from engine.specs import EvaluateSpec, ProfileSpec, Refused
from engine.store import Exit, State, Store, Unavailable, attempts, leases, open_store, queue
from engine.store.backup import transfer
from engine.store.tables import metrics
from tests.support.page import finish, profile_row
from tests.support.store import fill

SPEC = ProfileSpec(models=("resnet18",), device="cpu")
RUNS = 32


@pytest.fixture
def filled(settings: Settings, store: Store) -> Settings:
    """Fill a store with runs of every kind, a queued run, and a deleted newest run, whose id must not be used again."""
    fill(store, RUNS - 2, 4)
    store.enqueue(SPEC, name="ÄRGER 100%_of/them 'quoted' <b> \N{GRINNING FACE}")
    deleted = store.enqueue(SPEC)
    store.request_cancel(deleted)
    store.delete(deleted)
    store.close()
    return settings


def contents(path: Path) -> list[str]:
    """Return the contents of a SQLite file, including the counters of ids, as SQL statements."""
    with closing(sqlite3.connect(path)) as connection:
        return sorted(connection.iterdump())


def settings_with_url(settings: Settings, url: str) -> Settings:
    return settings.model_copy(update={"database_url": url})


def check_moved(filled: Settings, tmp_path: Path, url: str) -> None:
    """Move a store to `url` and from there to a SQLite file, which must equal the first."""
    before = contents(filled.runs_dir / "vitals.sqlite")
    counts = transfer.move(filled, url)
    assert counts["runs"] == RUNS - 1
    assert counts["rows"] == 4 * (RUNS - 2)
    moved_back = tmp_path / "back.sqlite"
    assert transfer.move(settings_with_url(filled, url), f"sqlite:///{moved_back}") == counts
    assert contents(moved_back) == before
    with closing(open_store(settings_with_url(filled, url))) as store:
        store.request_cancel(RUNS - 1)
        assert store.enqueue(SPEC) == RUNS + 1
        finish(store, RUNS + 1, [profile_row("resnet18")])


def test_store_moves_to_another_file_and_back(filled: Settings, tmp_path: Path) -> None:
    check_moved(filled, tmp_path, f"sqlite:///{tmp_path / 'other.sqlite'}")


@pytest.mark.cluster
def test_store_moves_to_postgresql_and_back(filled: Settings, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    check_moved(filled, tmp_path, request.getfixturevalue("postgres").new_database())


@pytest.mark.slow
def test_store_copy_needs_an_unused_source_and_an_empty_target(
    filled: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "other.sqlite"

    def error_of_copy() -> str:
        assert main(["store", "copy", "--to", f"sqlite:///{target}"]) == 2
        return capsys.readouterr().err

    with closing(sqlite3.connect(target)) as connection:
        connection.execute("CREATE TABLE theirs (id INTEGER)")
    assert "holds other tables (theirs): name an empty database" in error_of_copy()
    target.unlink()
    with closing(open_store(filled)) as store:
        assert leases.take(store.database, "local@here", "{}", "", 60, None)
        assert "the scheduler local@here uses the store" in error_of_copy()
        assert leases.renew(store.database, "local@here", "{}", -1), "it expires"
        attempt = queue.claim(store.database, this_host())
        assert attempt is not None
        assert (
            f"run {attempt.run_id} of the store {filled.runs_dir / 'vitals.sqlite'} must end first" in error_of_copy()
        )
        leases.release(store.database, "local@here", "{}")
        attempts.close(store.database, attempt, Exit(1), "error", "")
    with subprocess.Popen(["tail", "-f", str(filled.runs_dir / "vitals.sqlite")], stdout=subprocess.DEVNULL) as reader:
        while not processes_with(filled.runs_dir / "vitals.sqlite"):
            time.sleep(0.01)  # until it has opened the file
        message = error_of_copy()
        reader.kill()
    assert f"is open in process {reader.pid} (tail -f" in message
    assert "let active runs end" in message, "the process may be a run"
    assert main(["store", "copy", "--to", f"sqlite:///{target}"]) == 0
    assert f"runs {RUNS - 1:>20}  equal" in capsys.readouterr().out
    assert target.stat().st_mode & 0o077 == 0, "only the owner of the file may read it"
    assert f"the store {target} is not empty (table runs: {RUNS - 1} rows): name an empty one" in error_of_copy()
    (tmp_path / "link").symlink_to(filled.runs_dir)
    for folder in (filled.runs_dir, tmp_path / "link"):
        with pytest.raises(Refused, match=r"is in .* already"):
            transfer.move(filled, f"sqlite:///{folder / 'vitals.sqlite'}")
    with pytest.raises(Unavailable, match="holds no tables"):
        transfer.move(
            settings_with_url(filled, f"sqlite:///{tmp_path / 'absent.sqlite'}"),
            f"sqlite:///{tmp_path / 'third.sqlite'}",
        )
    assert not list(tmp_path.glob("absent*"))
    with pytest.raises(Unavailable, match=r"needs a driver .* `make setup-cluster`"):
        transfer.move(filled, "postgresql+pg8000://host/database")


def test_store_moves_after_its_active_runs_have_ended_without_a_scheduler(filled: Settings, tmp_path: Path) -> None:
    """Otherwise, only a new scheduler could record that their processes ended, and it would start queued runs."""
    with closing(open_store(filled)) as store:
        attempt = queue.claim(store.database, this_host())
        assert attempt is not None
        attempts.begin(store.database, attempt)
        with pytest.raises(Refused, match=rf"run {attempt.run_id} of the store .* must end first"):
            transfer.move(filled, f"sqlite:///{tmp_path / 'refused.sqlite'}")
        attempts.finish(store.database, attempt, State.FINISHED)
    assert transfer.move(filled, f"sqlite:///{tmp_path / 'other.sqlite'}")["attempts"]


def test_copy_that_differs_leaves_an_empty_target(filled: Settings, tmp_path: Path) -> None:
    target = tmp_path / "other.sqlite"
    open_store(settings_with_url(filled, f"sqlite:///{target}")).close()
    with closing(sqlite3.connect(target)) as connection:
        spoil = "UPDATE rows SET model = 'x' WHERE id = 5"
        connection.execute(f"CREATE TRIGGER spoil AFTER INSERT ON rows WHEN new.id = 5 BEGIN {spoil}; END")
    with pytest.raises(Refused, match=r"in table rows \(120 rows there, 120 in the copy\)"):
        transfer.move(filled, f"sqlite:///{target}")
    with closing(sqlite3.connect(filled.runs_dir / "vitals.sqlite")) as connection, connection:
        connection.execute("DELETE FROM runs WHERE id = 1")
    with pytest.raises(Refused, match=r"a row of table .* is not accepted: FOREIGN KEY constraint failed"):
        transfer.move(filled, f"sqlite:///{target}")
    with closing(sqlite3.connect(target)) as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (0,)


@pytest.mark.cluster
def test_error_names_the_table_of_a_value_that_the_target_rejects(
    filled: Settings, request: pytest.FixtureRequest
) -> None:
    with closing(open_store(filled)) as store, store.database.write() as connection:
        connection.execute(insert(metrics).values(run_id=1, name="large", step=2**40, value=1.0))
    url = request.getfixturevalue("postgres").new_database()
    with pytest.raises(Refused, match=r"a row of table metrics is not accepted: integer out of range"):
        transfer.move(filled, url)
    with closing(open_store(settings_with_url(filled, url))) as store:
        assert store.runs() == []


def test_backup_during_a_run_can_be_restored(
    settings: Settings,
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("VITALS_ARTIFACTS_URL", f"file://{tmp_path}/copies")
    settings = settings_with_url(settings, database_url)
    with closing(open_store(settings)) as store:
        fill(store, 5, 4)
        tried_once, tried_again = store.enqueue(SPEC), store.enqueue(EvaluateSpec(device="cuda:0"))
        for _ in range(2):
            attempt = queue.claim(store.database, this_host())
            assert attempt is not None
            attempts.begin(store.database, attempt)
        assert leases.take(store.database, "local@here", "{}", "", 60, None)
        backup = tmp_path / "backup.sqlite"
        hidden = f".backup.sqlite.{os.getpid()}.{threading.get_native_id()}.tmp"
        (tmp_path / hidden).touch()  # left over from a killed backup
        (settings.runs_dir / "uploads").mkdir()
        (settings.runs_dir / "uploads" / "a.csv").write_bytes(bytes(2_000_000))
        assert main(["store", "backup", str(backup)]) == 0
        message = capsys.readouterr().err
        assert re.search(r"holds the database only.* files? with 2\.0 MB", message)
        assert f"Also back up {Settings().artifacts_url}, with files of other machines' runs" in message
        with closing(sqlite3.connect(backup)) as connection, connection:  # as if the version before had written it
            connection.execute("ALTER TABLE run_results DROP COLUMN mean_average_precision")
            connection.execute("UPDATE alembic_version SET version_num = '0006'")
        content = backup.read_bytes()
        assert main(["store", "backup", str(backup)]) == 2
        assert "exists: name a file that does not exist yet" in capsys.readouterr().err
        assert main(["store", "restore", str(backup)]) == 2
        assert "is not empty" in capsys.readouterr().err
        expected = [(store.run(run_id), store.rows(run_id)) for run_id in range(1, 6)]
        leases.release(store.database, "local@here", "{}")
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"backup.sqlite"}
    empty = settings.model_copy(update={"runs_dir": tmp_path / "fresh", "database_url": ""})
    monkeypatch.setenv("VITALS_RUNS_DIR", str(empty.runs_dir))
    monkeypatch.setenv("VITALS_DATABASE_URL", "")
    assert main(["store", "restore", str(backup)]) == 0
    printed = capsys.readouterr()
    assert f"runs {7:>20}  equal" in printed.out
    assert f"1 run will start with the app or the next submission: {tried_again}. If the original" in printed.err
    with closing(open_store(empty)) as restored:
        assert [(restored.run(run_id), restored.rows(run_id)) for run_id in range(1, 6)] == expected
        assert (restored.run(tried_once).state, restored.run(tried_again).state) == (State.FAILED, State.QUEUED)
        assert restored.run(tried_once).error.startswith("it was active when the backup was made")
        assert attempts.open_attempts(restored.database) == []
        assert queue.holders(restored.database, this_host()) == {}
        assert leases.read(restored.database, "local@here") is None
    assert backup.read_bytes() == content
    with closing(sqlite3.connect(backup)) as unclosed:
        unclosed.execute("UPDATE runs SET name = 'later'")
        unclosed.commit()
        with pytest.raises(Refused, match=rf"its last changes are in backup.sqlite-wal. .*sqlite:///{backup} python"):
            transfer.restore_backup(empty, backup)
    assert not list((tmp_path / "fresh").glob(".*")), "no temporary file is left"


def test_restore_refuses_files_that_are_no_backup(settings: Settings, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"\0" * 8192)
    empty = tmp_path / "empty"
    sqlite3.connect(empty).close()
    for path, message in (
        (damaged, "is damaged"),
        (empty, "holds no tables"),
        (tmp_path / "absent", "there is no backup"),
    ):
        with pytest.raises(Refused, match=message):
            transfer.restore_backup(settings, path)
    with pytest.raises(Refused, match="there is no folder"):
        transfer.back_up(settings, tmp_path / "absent" / "backup.sqlite")
    assert not (settings.runs_dir / "vitals.sqlite").exists()


def test_health_reports_store_scheduler_queue_and_disk(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def health() -> dict[str, object]:
        expected = main(["health", "--json"])
        report: dict[str, object] = json.loads(capsys.readouterr().out)
        assert report["status"] == ("unavailable" if expected else "ok")
        return report

    report = health()
    assert (report["status"], report["store"], report["scheduler"], report["disk"]) == ("ok", "ok", "idle", "ok")
    assert (report["queued"], report["active"], report["oldest_wait_s"], report["lease_left_s"]) == (0, 0, None, None)
    assert main(["health"]) == 0
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert [*printed] == ["status", "store", "scheduler", "disk", "queued", "active", "free_gb"], "only what is known"
    assert re.fullmatch(r"\d+\.\d", printed["free_gb"])
    with monkeypatch.context() as full:
        full.setenv("VITALS_MIN_FREE_GB", "1e9")
        report = health()
    disk = "less than 1e+09 GB are free, so no run starts"
    assert (report["status"], report["scheduler"], report["disk"]) == ("unavailable", "idle", disk)
    first, now = store.enqueue(SPEC), time.time()
    time.sleep(0.02)
    store.enqueue(SPEC)
    report = health()
    assert report["status"] == "unavailable"
    assert report["queued"] == 2
    assert 0.02 <= report["oldest_wait_s"] <= time.time() - now + 1
    attempt = queue.claim(store.database, this_host())
    assert attempt is not None
    assert attempt.run_id == first
    report = health()
    assert (report["queued"], report["active"]) == (1, 1)
    monkeypatch.setenv("VITALS_DATABASE_URL", "mysql://u:secret@h/d")
    assert health()["store"] == "the store is of the kind 'mysql', and only PostgreSQL and SQLite are known"
