"""Open the settings, the store and the catalogue, once per server, for all pages."""

import os
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from engine import shipped
from engine.jobs.answers import Answers
from engine.jobs.checkpoints import complete
from engine.published import match, speeds, update
from engine.report.catalog import catalog
from engine.report.compare.timed import Timed
from engine.report.style import Style, family_styles
from engine.roots import Roots, stat_within
from engine.settings import Settings
from engine.store import Role, Run, Store, Unavailable, User, open_store
from engine.store.bundles import files
from engine.store.copies import mirror, remote
from engine.store.files import RunFiles
from pages.shared import sign_in
from pages.shared.text import plain, show_error

Content = TypeVar("Content")
LONGEST_ID = 18
"""Maximum number of digits of a run's number in a link. The 64-bit integers of every database hold 18 digits."""


def settings() -> Settings:
    """Return the settings, read from the server's environment variables."""
    return _settings(tuple(item for item in os.environ.items() if item[0].upper().startswith("VITALS_")))


@lru_cache(maxsize=4)
def _settings(environment: tuple[tuple[str, str], ...]) -> Settings:
    return Settings()  # cached, because a page asks for them a dozen times and each call reads all sources


def _tables_modified_ns(folder: Path) -> tuple[int, ...]:
    """Return the modification times of the tables and JSON files below a folder, in ns."""
    return tuple(path.stat().st_mtime_ns for path in sorted([*folder.rglob("*.csv"), *folder.rglob("*.json")]))


BY_VERSION: dict[str | type[Any], Callable[[Any], Any]] = {
    Run: lambda run: f"{run.id} {run.revision} {run.created_at}",  # the date tells stores apart
    Store: lambda store: (settings().store_url, store.revision()),
    Timed: lambda timed: (repr(timed), modified_ns(timed.folder, timed.row.samples_file)),
    type(Path()): lambda folder: (str(folder), _tables_modified_ns(folder)),  # PosixPath: keys are exact types
}
"""`hash_funcs` of cached functions. They are called again when an argument has changed: a run, any run of a store, the
samples of a timed row, or the files of a folder."""


def user() -> User:
    """Return the user of this page."""
    return sign_in.user(settings())


def may_change(run: Run) -> bool:
    """Return whether the user of this page may change a run and take its checkpoints."""
    return user().may_change(run.owner)


def may_start() -> bool:
    """Return whether the user of this page may start runs."""
    return user().role >= Role.RUNNER


def store() -> Store:
    """Return the store for the user of this page. If it is or becomes unusable, the page shows the reason and stops."""
    try:
        return _open(settings()).acting_as(user())
    except Unavailable as failure:
        _stop(failure)
        raise


def _stop(failure: Unavailable) -> None:
    """Show why the store cannot be used and stop the page. Outside a page, do nothing."""
    if get_script_run_ctx(suppress_warning=True):
        text = str(failure)
        st.error(plain(f"{text[0].upper()}{text[1:]}."), icon=":material/database_off:")
        st.stop()


@st.cache_resource(max_entries=4, show_spinner=False, on_release=Store.close)
def _open(settings: Settings) -> Store:
    return open_store(settings, on_failure=_stop)


def answers() -> Answers:
    """Return the process that answers questions which need torch. Its answers arrive later."""
    return _answers(settings())


@st.cache_resource(max_entries=4, show_spinner=False, on_release=Answers.close)
def _answers(settings: Settings) -> Answers:
    return Answers(settings)


def find_run(number: str | int) -> Run | None:
    """Return the run with a number, or None if there is no such run. number: may be any text from a link."""
    text = str(number)
    if not text.isdecimal() or len(text) > LONGEST_ID:
        return None
    try:
        return store().run(int(text))
    except LookupError:
        return None


def find_runs(numbers: Iterable[str | int]) -> list[Run]:
    """Return the runs with these numbers, without those that do not exist."""
    return [run for run in map(find_run, numbers) if run]


def linked_run() -> Run | None:
    """Return the run that the address names with `?run=ID`, or None if there is no such run."""
    return find_run(st.query_params.get("run", ""))


def current_run(run_id: int) -> Run:
    """Return a run for a part of a page that updates itself. If it was deleted meanwhile, redraw the page."""
    try:
        return store().run(run_id)
    except LookupError:
        st.rerun()


def folder(run: Run) -> Path:
    """Return the folder that holds the files of a run, after fetching those that another machine has made."""
    fetch_problem(run)
    return RunFiles(settings().runs_dir, run.id).dir


def fetch_problem(run: Run) -> str:
    """Fetch a run's files from the machine that made them, except for checkpoints. Return the problem, if any."""
    try:
        mirror.fetch(settings(), run)
    except remote.Unreachable as problem:
        return str(problem)
    return ""


def not_in_bundle(run: Run) -> list[str]:
    """Return sentences about files that a bundle of the run leaves out; none while their machine cannot be reached."""
    try:
        return files.left_out(store(), settings(), run)
    except remote.Unreachable:
        return []


def checkpoints(run: Run) -> dict[Path, int]:
    """Return the complete checkpoints of a run, as `complete` does; none while their machine cannot be reached."""
    try:
        return complete(settings(), run)
    except remote.Unreachable:
        return {}


def own_files(run: Run) -> tuple[Path, ...]:
    """Return the only folder in which a file named by a run's row may be opened: the folder of that run.

    Rows of an imported run may name any file of this machine.
    """
    return (folder(run).resolve(),)


def modified_ns(folder: Path, name: str) -> int:
    """Return the modification time of a file named by a row, in ns; 0 if the run's folder has no such file."""
    status = stat_within(folder / name, (folder.resolve(),)) if name else None
    return status.st_mtime_ns if status else 0


def read_file(run: Run, file: str, read: Callable[..., Content], *options: Any) -> Content | None:
    """Return the content of a file named by a row of a run. If it is missing or damaged, show a message, return None.

    read, options: read the file as `read(path, roots, *options)`.
    """
    directory = folder(run)
    try:
        return _content(read, directory / file, own_files(run), modified_ns(directory, file), *options)
    except FileNotFoundError:
        st.caption(plain(f"{file} was not kept with this run."))
    except (OSError, ValueError, OverflowError) as error:
        show_error(f"{file} cannot be read: {error}")
    return None


@st.cache_data(max_entries=20, show_spinner="Reading results")
def _content(_read: Callable[..., Content], path: Path, roots: Roots, stamp: int, *options: Any) -> Content:
    """Call `_read`, which is no part of the cache's key, because each file has one reader. stamp: time of change."""
    return _read(path, roots, *options)


def catalogue() -> pd.DataFrame:
    """Return the shipped catalogue. It is read again when its files change."""
    return _read(settings().catalog_dir)


def family_colours() -> dict[str, Style]:
    """Return the colour and marker of every model family, the same on all pages."""
    return _styles(settings().catalog_dir)


@st.cache_data(max_entries=2, show_spinner="Reading the catalogue", hash_funcs=BY_VERSION)
def _read(folder: Path) -> pd.DataFrame:
    return catalog.read(folder)


@st.cache_data(max_entries=2, show_spinner=False, hash_funcs=BY_VERSION)
def _styles(folder: Path) -> dict[str, Style]:
    return family_styles(catalog.families(catalog.read(folder)))


def imported_accuracies() -> Path | None:
    """Return the folder of imported tables of accuracies, or None if there is none."""
    folder = update.folder(settings())
    return folder if folder.is_dir() else None


def published_accuracies() -> pd.DataFrame:
    """Return the published accuracies of the catalogue's models, shipped and imported, as `match.read` does."""
    return _accuracies(imported_accuracies(), match.SHIPPED, settings().catalog_dir)


@st.cache_data(max_entries=2, show_spinner="Reading published accuracies", hash_funcs=BY_VERSION)
def _accuracies(imported: Path | None, published: Path, catalog_dir: Path) -> pd.DataFrame:
    return match.with_tagged_models(match.read(imported, published), shipped.families(catalog_dir))


@st.cache_data(max_entries=1, show_spinner="Reading published speeds")
def published_speeds() -> pd.DataFrame:
    """Return all published speeds, as `speeds.speeds` does."""
    return speeds.speeds()
