"""Run a real server and scheduler with a temporary runs folder, and drive a real browser."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from playwright.sync_api import Browser, BrowserContext, Error, Locator, Page, expect, sync_playwright
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from app import UNEXPECTED
from engine.jobs import stop_scheduler
from engine.jobs.lifecycle import fingerprint
from engine.results import Device, Machine
from engine.settings import ROOT, Settings
from engine.store import Filter, open_store

WINDOW: dict[str, Any] = {"viewport": {"width": 1440, "height": 1400}, "reduced_motion": "reduce"}
"""Options of a browser context. Without animations, Streamlit's pages take 10 to 25 % less CPU time to draw."""
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SHORT_LIVED = "--js-flags=--no-opt --no-maglev"
"""Flag that compiles no script optimised, which costs a page of a test more CPU time than it saves: 10 to 15 %."""
PATIENCE_S = 60
"""Wait at most this many seconds for a server or a page."""
expect.set_options(timeout=5 * PATIENCE_S * 1000)  # Playwright has one value per process
DRAWN = (
    "() => document.querySelector('[data-testid=stApp]')?.dataset.testScriptState === 'notRunning'"
    " && document.querySelector('[data-testid=stMainBlockContainer] h1')"
    " && !document.querySelector('[data-testid=stSkeleton], .chart[aria-busy=true]')"
)
"""JavaScript that is true when the page's script has ended and all its elements and charts are drawn."""
TOLD_MS = 500
"""Wait this long after a click in a table. It waits 150 ms for another click, then sends the selection."""
LONG_S = 1500
"""Wait at most this many seconds for a run: importing and compiling are slow on a loaded machine."""
PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 800}, "is_mobile": True, "has_touch": True}
"""Options of a context that is drawn and touched as on a phone."""
ROW = 31
"""Height of a row of a table in pixels, at our font size."""
NUMBER = 68
"""Pixels from the left of the list of runs to a run's number, which opens the run."""


@dataclass(frozen=True)
class Server:
    """A running app."""

    url: str
    pid: int
    settings: Settings
    log: Path


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def serve(folder: Path, *, probed: bool = True, secrets: Path | None = None, **settings: str) -> Iterator[Server]:
    """Run `streamlit run app.py` with its runs in `folder`. End it and its scheduler afterwards.

    secrets: file that configures sign-in. probed: store a description of this machine first, so that the scheduler
    starts no probe, which imports torch.
    """
    port, log = free_port(), folder / "server.log"
    used = Settings(runs_dir=folder / "runs")
    if probed:
        store = open_store(used)
        known = {"host": socket.gethostname(), "platform": "Linux", "cpu": "a CPU", "threads": 2, "memory_gb": 16.0}
        store.save_machine(Machine(**known, devices=(Device(name="cpu", model="a CPU"),), date=""), fingerprint())
        store.close()
    # the last page may start a scheduler while the server ends; that scheduler must exit by itself
    chosen = {"runs_dir": str(folder / "runs"), "idle_exit_s": "20", **settings}
    env = {f"VITALS_{name.upper()}": value for name, value in chosen.items()}
    command = [sys.executable, "-m", "streamlit", "run", "app.py"]
    command += ["--secrets.files", str(secrets or folder / "no.toml")]  # never the secrets of this checkout
    with log.open("wb") as out:
        server = subprocess.Popen(
            [*command, "--server.port", str(port)],
            cwd=ROOT,
            env=os.environ | env | {"HF_HUB_OFFLINE": "1"},
            stdin=subprocess.DEVNULL,  # Streamlit may ask for an e-mail at its first start
            stdout=out,
            stderr=out,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(f"{url}/health", server, log)
        yield Server(url, server.pid, used, log)
    finally:
        server.terminate()
        server.wait(30)
        stop_scheduler(used)


@contextmanager
def without_runs(server: Server) -> Iterator[Server]:
    """Yield the server. Afterwards, delete all runs, and fail if a traceback was added to the server's log.

    No run may be active. The store never uses the number of a deleted run again, so pages cache nothing wrong.
    """
    logged = server.log.stat().st_size
    yield server
    with closing(open_store(server.settings)) as store:
        for run_id in store.ids(Filter()):
            store.request_cancel(run_id)
            store.delete(run_id)
    assert b"Traceback" not in server.log.read_bytes()[logged:]


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with {server.returncode}: {log.read_text()}")
        try:
            with urlopen(url, timeout=5) as answer:
                assert answer.status == 200
                return
        except HTTPError as answer:
            if answer.code == 503 and json.load(answer).get("store") == "ok":  # a test may simulate a full disk
                return
            time.sleep(0.05)
        except OSError:  # refused, reset or timed out: the first start compiles all modules that it imports
            time.sleep(0.05)
    raise TimeoutError(f"no answer from {url}: {log.read_text()}")


def executable(*, shell: bool = False) -> str:
    """Return the path of $CHROMIUM, else of the system's browser, else of Playwright's own.

    shell: prefer the headless shell, which takes about two thirds of the CPU time of the whole browser but answers
    interactions more slowly. Benchmarks use the browser that people have.
    """
    names = ["chromium-headless-shell"] if shell else []
    names += ["chromium", "chromium-browser", "google-chrome", "chromium-headless-shell"]
    if system := os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None):
        return system
    with sync_playwright() as playwright:
        return playwright.chromium.executable_path


@contextmanager
def chromium(*, shell: bool = False) -> Iterator[Browser]:
    """Run a browser, driven by Playwright. shell: as for `executable`, and with SHORT_LIVED."""
    system, flags = executable(shell=shell), [*FLAGS, SHORT_LIVED] if shell else FLAGS
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=system, args=flags)
        yield browser
        browser.close()


def unexpected_errors(page: Page) -> Locator:
    """Return the messages on exceptions that no page expects: of app.py or, where it cannot act, of Streamlit."""
    return page.get_by_test_id("stException").or_(page.get_by_text(UNEXPECTED))


@contextmanager
def new_tab(profile: BrowserContext) -> Iterator[Page]:
    """Open a tab from the first one of the profile, so that both share a process."""
    with profile.expect_page() as opened:
        profile.pages[0].evaluate("() => { window.open() }")
    with opened.value as page:
        page.set_default_timeout(PATIENCE_S * 1000)
        yield page


def select_rows(table: Locator, *places: int) -> None:
    """Tick the boxes in front of rows. places: row numbers from 0. A table is a canvas, so clicks go to coordinates.

    Wait for the page before each click. While the page is being drawn, a click may be lost, or hit another element
    because buttons appear above the table.
    """
    for place in places:
        table.page.wait_for_function(DRAWN, timeout=PATIENCE_S * 1000)
        table.click(position={"x": 16, "y": ROW * (place + 1.5)})
        table.page.wait_for_timeout(TOLD_MS)


def downloaded(page: Page, button: str | re.Pattern[str], menu: str = "") -> Path:
    """Click a download button, and return the file. menu: the menu that contains it, such as `Download rows`.

    If several menus have this name, the last one is used. A click is repeated when it is lost because the button is
    being redrawn, and when the download is "canceled", because Streamlit drops a file that is not fetched before two
    fragments of any page have run.
    """

    def click() -> Path:
        target = page.get_by_role("button", name=button, exact=True)
        if menu and not target.is_visible():
            page.get_by_role("button", name=menu, exact=True).last.click()
        with page.expect_download(timeout=20_000) as download:
            target.click()
        return Path(download.value.path())

    for _ in range(2):
        try:
            return click()
        except PlaywrightTimeout:
            continue
        except Error as error:
            if "canceled" not in error.message:
                raise
    return click()


def wait(page: Page, until: Callable[[], bool]) -> None:
    """Empty the tab, then wait until a condition holds. The page of an active run is redrawn every second."""
    page.goto("about:blank")
    deadline = time.monotonic() + LONG_S
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.2)
