"""Tests of app.py without a server: access rules, health check, scheduler start, warnings and theme colours."""

import json
import logging
import os
import re
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import pytest
from sqlalchemy import text
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient
from streamlit import get_option
from streamlit.testing.v1 import AppTest

import app
from app import _keep_scheduler, health, refuse_strangers
from engine.__main__ import main
from engine.jobs.hosts import this_host
from engine.jobs.lifecycle import lease_name
from engine.jobs.processes import Identity
from engine.settings import Settings
from engine.specs import ProfileSpec, Refused
from engine.store import Store, attempts, leases, open_store
from engine.store import queue as queueing
from tests.support.store import overwrite, table_pages


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_addresses_are_allowed(address: str) -> None:
    refuse_strangers(Settings(), address, signed_in=False)


@pytest.mark.parametrize("address", [None, "", "0.0.0.0", "::", "192.168.0.7", "8.8.8.8", "example.org"])
def test_public_addresses_need_sign_in_or_the_public_setting(address: str | None) -> None:
    with pytest.raises(Refused, match="sign-in is not configured"):
        refuse_strangers(Settings(), address, signed_in=False)
    refuse_strangers(Settings(public=True), address, signed_in=False)
    refuse_strangers(Settings(), address, signed_in=True)


@pytest.mark.parametrize("hosts", [["localhost", "vitals.example.org"], ["*"], []])
def test_allowed_hosts_beyond_localhost_need_sign_in(hosts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"server.address": "127.0.0.1", "server.allowedHosts": hosts}
    monkeypatch.setattr(app.st, "get_option", lambda name: options.get(name, get_option(name)))

    async def start() -> None:
        async with app.lifespan(app.app):
            pass

    with pytest.raises(Refused, match="sign-in is not configured"):
        anyio.run(start)


def health_response() -> Response:
    """Request /health over HTTP, and return the response."""
    with TestClient(Starlette(routes=[Route("/health", health)])) as client:
        return client.get("/health")


def text_fields(answer: Response) -> dict[str, str]:
    """Return the text fields of a response of /health."""
    return {name: answer.json()[name] for name in ("status", "store", "scheduler")}


@contextmanager
def locked_store(settings: Settings) -> Iterator[None]:
    """Lock the store so that other connections cannot even read it."""
    with closing(sqlite3.connect(settings.runs_dir / "vitals.sqlite", isolation_level=None)) as connection:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        yield


def test_health_fails_if_runs_wait_without_a_live_scheduler(
    settings: Settings, store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = health_response()
    assert (answer.status_code, text_fields(answer)) == (200, {"status": "ok", "store": "ok", "scheduler": "idle"})
    store.enqueue(ProfileSpec(models=("resnet18",), device="cpu"))
    answer = health_response()
    expected = {"status": "unavailable", "store": "ok", "scheduler": "there are open runs, and no scheduler is alive"}
    assert (answer.status_code, text_fields(answer)) == (503, expected)
    dead_holder = str(Identity(Identity.mine().pid, 0.0))
    assert leases.take(store.database, lease_name(), dead_holder, "", 60, None)
    assert health_response().status_code == 503, "the lease has not expired, but its holder is dead"
    own = str(Identity.mine())
    for holder, seconds, status in (("{", 60, 503), (own, -1, 503), (own, 60, 200)):  # "{" stands for a damaged lease
        lease = leases.read(store.database, lease_name())
        assert leases.take(store.database, lease_name(), holder, "", seconds, lease)
        assert health_response().status_code == status
    answer = health_response()
    assert (answer.status_code, text_fields(answer)) == (200, {"status": "ok", "store": "ok", "scheduler": "working"})
    assert (answer.json()["queued"], answer.json()["disk"]) == (1, "ok")
    assert 0 < answer.json()["lease_left_s"] <= 60
    numbers = {"queued", "active", "oldest_wait_s", "lease_left_s", "free_gb"}
    assert set(answer.json()) == {"status", "store", "scheduler", "disk", "devices", *numbers}, "no paths, no names"
    with monkeypatch.context() as full:
        full.setenv("VITALS_MIN_FREE_GB", "1e9")
        answer = health_response()
        assert (answer.status_code, answer.json()["disk"]) == (503, "less than 1e+09 GB are free, so no run starts")
    assert main(["health", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert [*output] == [*answer.json()]
    assert output["status"] == "ok"


def test_health_ignores_running_runs_of_other_hosts(settings: Settings, store: Store) -> None:
    for host, status in (("elsewhere#0123456789ab", 200), (this_host(), 503)):
        run_id = store.enqueue(ProfileSpec(models=("resnet18",), device="cpu"))
        attempt = queueing.claim(store.database, host, run_id)
        assert attempt
        attempts.begin(store.database, attempt)
        answer = health_response()
        assert (answer.status_code, answer.json()["queued"]) == (status, 0)
    assert answer.json()["active"] == 2


def test_health_describes_a_damaged_or_missing_store(settings: Settings, store: Store) -> None:
    assert leases.take(store.database, lease_name(), str(Identity.mine()), "", 60, None)
    store.close()
    path = settings.runs_dir / "vitals.sqlite"
    overwrite(path, *table_pages(path, "leases"))
    damaged = health_response()
    path.write_bytes(b"\0" * 8192)
    no_database = health_response()
    path.unlink()
    absent = health_response()
    assert not path.exists(), "the health check must not create a store"
    assert {answer.status_code for answer in (damaged, no_database, absent)} == {503}
    assert text_fields(damaged) == {
        "status": "unavailable",
        "store": "the store is damaged: parts of it cannot be read",
        "scheduler": "unknown",
    }
    assert no_database.json()["store"] == "the store is damaged: it is not a SQLite database"
    assert absent.json()["store"] == "there is no store yet"
    assert str(settings.runs_dir) not in damaged.text + no_database.text + absent.text


def test_health_describes_a_runs_folder_that_may_not_be_entered(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, **_: object) -> bool:  # root, as whom tests may run, may enter every folder
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "is_file", refuse)
    answer = health_response()
    assert (answer.status_code, answer.json()["store"]) == (503, "the runs folder cannot be read (Permission denied)")


def test_health_describes_a_store_of_a_newer_version(settings: Settings, store: Store) -> None:
    with store.database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    answer = health_response()
    assert answer.status_code == 503
    assert answer.json()["store"].startswith("the store is at schema 9999, which this version of the program")


@pytest.mark.slow
def test_health_answers_on_a_locked_store_without_blocking_the_server(settings: Settings, store: Store) -> None:
    store.close()
    ticks, answers = 0, list[Response]()

    async def tick() -> None:
        nonlocal ticks
        while len(answers) < 3:
            await anyio.sleep(0.01)
            ticks += 1

    async def ask() -> None:
        answers.append(await health(Request({"type": "http"})))

    async def ask_thrice() -> None:
        async with anyio.create_task_group() as tasks:
            for task in (tick, ask, ask, ask):
                tasks.start_soon(task)

    with locked_store(settings):
        anyio.run(ask_thrice)
        assert {answer.status_code for answer in answers} == {503}, "answered while the store is locked"
    assert b'"store":"the store is locked' in answers[0].body or b"does not answer within" in answers[0].body
    assert ticks > 10, "the event loop ran meanwhile"


@pytest.mark.slow
def test_server_survives_a_damaged_store_and_logs_it_once(
    settings: Settings, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.close()
    (settings.runs_dir / "vitals.sqlite").write_bytes(b"\0" * 8192)
    caplog.set_level(logging.INFO)

    async def serve() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_keep_scheduler, settings.model_copy(update={"lease_s": 0.01}))
            while "is damaged" not in caplog.text:
                await anyio.sleep(0.01)
            await anyio.sleep(0.5)  # several more rounds
            tasks.cancel_scope.cancel()

    anyio.run(serve)
    assert caplog.text.count("keeping the scheduler alive failed: the store") == 1
    assert "Traceback" not in caplog.text


def test_server_starts_the_scheduler_while_a_browser_is_connected(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected, calls = False, []
    monkeypatch.setattr(app, "browser_connected", lambda: connected)
    monkeypatch.setattr(app, "ensure_scheduler", lambda *_: calls.append(connected))
    monkeypatch.setattr(app, "LOOK_S", 0.01)

    async def serve() -> None:
        nonlocal connected
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_keep_scheduler, settings.model_copy(update={"lease_s": 60, "idle_exit_s": 600}))
            while not calls:
                await anyio.sleep(0.01)
            await anyio.sleep(0.1)
            assert calls == [False], "once, at the start"
            connected = True
            while len(calls) < 2:  # long before the lease expires
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
            connected = False
        calls.clear()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_keep_scheduler, settings.model_copy(update={"lease_s": 60, "idle_exit_s": 0.02}))
            await anyio.sleep(0.3)
            assert calls == [False], "no browser is connected, so the scheduler may exit when idle"
            connected = True
            while len(calls) < 5:
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()

    anyio.run(serve)


def test_unexpected_error_has_an_id_that_page_and_log_share(caplog: pytest.LogCaptureFixture) -> None:
    def script() -> None:
        import app

        app.show_id(KeyError("secret"))

    assert app.app._on_script_error is app.show_id
    (message,) = AppTest.from_function(script).run(timeout=60).error
    (error_id,) = re.findall(r"unexpected error: ([0-9a-f]{8})\.", message.value)
    assert f"error {error_id}: KeyError" in caplog.text
    assert "secret" not in message.value


def test_public_server_has_a_warning() -> None:
    assert Settings().public_warning == ""
    warning = Settings(public=True, data_roots="/data").public_warning
    assert "sign-in is not configured" in warning
    assert "home folder" not in warning
    for roots in ("", os.pathsep):
        assert "the whole home folder" in Settings(public=True, data_roots=roots).public_warning


@pytest.fixture
def usual_umask() -> Iterator[None]:
    """Set the usual umask, which lets other users read new files."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("usual_umask")
@pytest.mark.parametrize(
    "use",
    [
        lambda settings: open_store(settings).close(),
        lambda settings: main(["published-import", os.devnull]),
        lambda settings: main(["runs", "list"]),
    ],
)
def test_new_runs_folder_is_private(settings: Settings, use: Callable[[Settings], object]) -> None:
    use(settings)
    assert stat.S_IMODE(settings.runs_dir.stat().st_mode) == 0o700
    assert settings.sharing_warning == ""


@pytest.mark.usefixtures("usual_umask")
def test_shared_runs_folder_keeps_its_mode_and_has_a_warning(settings: Settings) -> None:
    settings.runs_dir.mkdir()
    open_store(settings).close()
    assert stat.S_IMODE(settings.runs_dir.stat().st_mode) == 0o755
    assert f"runs folder {settings.runs_dir} (mode 755)" in settings.sharing_warning
    assert settings.sharing_warning.endswith(f"chmod 700 {settings.runs_dir}")
