"""Fixtures of all tests: settings with a temporary runs folder, and a real store there."""

import gc
import locale
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import psutil
import pytest

from engine.settings import Settings
from engine.store import Store, open_store

if TYPE_CHECKING:
    from tests.support.page import Answering
    from tests.support.servers.postgres import Server

gc.set_threshold(100_000)  # with torch and streamlit loaded, a garbage collection takes 0.5 s
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run in parallel, so more threads would only compete
hypothesis.settings.register_profile("any machine", deadline=None)  # a slow machine must not fail a test
hypothesis.settings.load_profile("any machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run browser tests first. They are the longest, and at the end they would leave other workers idle."""
    items.sort(key=lambda item: item.get_closest_marker("browser") is None)


@pytest.fixture(autouse=True, scope="session")
def default_runs_dir(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Make tests without settings of their own leave the repository's runs folder alone: tars are indexed there."""
    os.environ.setdefault("VITALS_RUNS_DIR", str(tmp_path_factory.mktemp("runs")))


@pytest.fixture(autouse=True)
def main_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore `__main__` after each test. AppTest replaces it with a page, and processes spawned later would run it."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


GARBAGE_MB = 300
"""Growth of the process, since its last full garbage collection, after which the next one is due."""
memory_mb = {"collected": 0.0}


@pytest.fixture(autouse=True)
def collections_are_rare(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Collect garbage between tests, once it takes much memory: with torch and streamlit loaded, this takes 0.5 s."""
    gc.freeze()
    # a timing asks whether there are frozen objects, and Python counts all of them, which takes 30 ms
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 1)
    yield
    gc.unfreeze()
    process = psutil.Process()
    if process.memory_info().rss / 1e6 > memory_mb["collected"] + GARBAGE_MB:
        gc.collect()
        memory_mb["collected"] = process.memory_info().rss / 1e6


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Reset torch to one thread after each test, because a command that ran in this process may have set more."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture
def ascii_locale(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set a locale in which files and streams without an explicit encoding are ASCII, also for child processes."""
    for name, value in {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}.items():
        monkeypatch.setenv(name, value)
    before = locale.setlocale(locale.LC_CTYPE)
    locale.setlocale(locale.LC_CTYPE, "C")
    yield
    locale.setlocale(locale.LC_CTYPE, before)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return settings with short leases. Environment variables pass them to processes that the test starts."""
    chosen = {"RUNS_DIR": str(tmp_path / "runs"), "LEASE_S": "3", "IDLE_EXIT_S": "20", "STOP_GRACE_S": "2"}
    for name, value in chosen.items():
        monkeypatch.setenv(f"VITALS_{name}", value)
    return Settings()


@pytest.fixture(scope="session")
def postgres() -> "Iterator[Server]":
    """Run a PostgreSQL server for the tests marked `cluster`."""
    from tests.support.servers.postgres import server  # needs requirements-cluster.txt

    with server() as running:
        yield running


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.cluster)])
def database_url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the store's URL, and set it in the environment. A test with this fixture runs once on each database."""
    url = request.getfixturevalue("postgres").new_database() if request.param == "postgresql" else ""
    monkeypatch.setenv("VITALS_DATABASE_URL", url)
    return url


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an empty SQLite database of the newest schema, because a copy is quicker than new tables."""
    settings = Settings(runs_dir=tmp_path_factory.mktemp("empty"), database_url="")
    open_store(settings).close()
    (database,) = settings.runs_dir.glob("*.sqlite")
    return database


@pytest.fixture
def store(settings: Settings, empty_store: Path) -> Iterator[Store]:
    settings.make_runs_dir()
    if not settings.database_url:
        shutil.copy(empty_store, settings.runs_dir / empty_store.name)
    store = open_store(settings)
    yield store
    store.close()


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> "Answering":
    """Replace the process that answers slow questions of pages by a fake, and return it. The test sets the answers."""
    from pages.shared import backend
    from tests.support.page import Answering

    answering = Answering()
    monkeypatch.setattr(backend, "answers", lambda: answering)
    return answering


@pytest.fixture
def no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no process, so that queued runs stay queued."""
    monkeypatch.setattr("engine.jobs.lifecycle.start_scheduler", lambda *_arguments: None)


@pytest.fixture(scope="session")
def small_catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small catalogue. Tests share it and must not change it: pages read it once."""
    from tests.support.page import write_catalogue  # imports streamlit

    return write_catalogue(tmp_path_factory.mktemp("small") / "catalog")


@pytest.fixture
def own_world(
    settings: Settings,
    answers: "Answering",
    no_scheduler: None,
    small_catalogue: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prepare a test of pages: a small catalogue, no answer process and no scheduler, so queued runs stay queued."""
    monkeypatch.setenv("VITALS_CATALOG_DIR", str(small_catalogue))


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the models that the test registered with open_clip."""
    from open_clip import factory

    monkeypatch.setattr(factory, "_MODEL_CONFIG_PATHS", list(factory._MODEL_CONFIG_PATHS))
    monkeypatch.setattr(factory, "_MODEL_CONFIGS", dict(factory._MODEL_CONFIGS))


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache of Hugging Face's hub, and return its folder."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"
