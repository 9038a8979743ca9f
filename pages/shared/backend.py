"""What pages read from: settings, the store and the catalogue, opened once per server."""

import os
from functools import lru_cache
from pathlib import Path

import pandas as pd
import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from engine.jobs.answers import Answers
from engine.published import match, speeds, update
from engine.report.catalog import catalog
from engine.report.style import Style, family_styles
from engine.roots import stat_within
from engine.settings import Settings
from engine.store import Run, Store, Unavailable, open_store
from engine.store.files import RunFiles
from pages.shared.text import plain

LONGEST_ID = 18  # digits that any database's integers hold


def settings() -> Settings:
    """From the environment of the server."""
    return _settings(tuple(item for item in os.environ.items() if item[0].upper().startswith("VITALS_")))


@lru_cache(maxsize=4)
def _settings(environment: tuple[tuple[str, str], ...]) -> Settings:
    return Settings()  # looks through all sources, which a page would do a dozen times


def store() -> Store:
    """Return the store, shared by all sessions. If it cannot be used, now or later, the page says why and stops."""
    try:
        return _open(settings())
    except Unavailable as failure:
        _stop(failure)
        raise


def _stop(failure: Unavailable) -> None:
    """Say why the store cannot be used and what to do, and end the page there; nothing outside of a page."""
    if get_script_run_ctx(suppress_warning=True):
        text = str(failure)
        st.error(plain(f"{text[0].upper()}{text[1:]}."), icon=":material/database_off:")
        st.stop()


@st.cache_resource(
    max_entries=4, show_spinner=False, hash_funcs={Settings: Settings.model_dump_json}, on_release=Store.close
)
def _open(settings: Settings) -> Store:
    return open_store(settings, on_failure=_stop)


def answers() -> Answers:
    """What needs the heavy libraries is asked here; the answers come later."""
    return _answers(settings())


@st.cache_resource(
    max_entries=4, show_spinner=False, hash_funcs={Settings: Settings.model_dump_json}, on_release=Answers.close
)
def _answers(settings: Settings) -> Answers:
    return Answers(settings)


def linked_run() -> Run | None:
    """The run that the address names by `?run=ID`; None when it names none that exists."""
    asked = st.query_params.get("run", "")
    if not asked.isdecimal() or len(asked) > LONGEST_ID:
        return None
    try:
        return store().run(int(asked))
    except LookupError:
        return None


def folder(run: Run) -> Path:
    """Where the files of a run lie."""
    return RunFiles(settings().runs_dir, run.id).dir


def own_files(run: Run) -> tuple[Path, ...]:
    """Return the root of files that the rows of a run name: its own folder. Imported rows may name any file."""
    return (folder(run).resolve(),)


def written(folder: Path, name: str) -> int:
    """Return when a file that a row names was written, in ns; 0 where its run's folder has no such file."""
    status = stat_within(folder / name, (folder.resolve(),)) if name else None
    return status.st_mtime_ns if status else 0


def catalogue() -> pd.DataFrame:
    """The shipped catalogue, read anew when its files change."""
    files = settings().catalog_dir
    return _read(files, stamp(files))


def family_colours() -> dict[str, Style]:
    """Colour and shape of every family, alike on all pages."""
    files = settings().catalog_dir
    return _styles(files, stamp(files))


def stamp(*folders: Path) -> tuple[int, ...]:
    """Return when each CSV file below these folders was written, in ns: a key of caches of what they hold."""
    return tuple(path.stat().st_mtime_ns for folder in folders for path in sorted(folder.rglob("*.csv")))


@st.cache_data(max_entries=2, show_spinner="Reading the catalogue")
def _read(folder: Path, stamp: tuple[int, ...]) -> pd.DataFrame:
    return catalog.read(folder)


@st.cache_data(max_entries=2, show_spinner=False)
def _styles(folder: Path, stamp: tuple[int, ...]) -> dict[str, Style]:
    return family_styles(catalog.families(catalog.read(folder)))


def published_accuracies() -> pd.DataFrame:
    """Return all published accuracies, shipped and imported, as `match.read` gives them; anew when a file changes."""
    folder = update.folder(settings())
    return _accuracies(folder, stamp(match.SHIPPED, folder))


@st.cache_data(max_entries=2, show_spinner="Reading published accuracies")
def _accuracies(folder: Path, stamp: tuple[int, ...]) -> pd.DataFrame:
    return match.read(folder)


@st.cache_data(max_entries=1, show_spinner="Reading published speeds")
def published_speeds() -> pd.DataFrame:
    """Return all published speeds, as `speeds.speeds` gives them."""
    return speeds.speeds()
