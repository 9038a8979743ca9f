"""Time every page, and interactions on it, with very many runs in the store: part of `benchmarks/ui.py --runs N`."""

import json
import re
import statistics
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Locator

from benchmarks.bare_page import serve_bare
from benchmarks.own_browser import own_browser
from benchmarks.watch import PATIENCE_MS, answered, says
from engine.settings import Settings
from engine.store import Filter, Store, open_store
from tests.support.browser import DRAWN, Server, chromium, serve
from tests.support.store import fill

GOALS = {"page_ms": 2500, "page_again_ms": 2500, "page_inside_ms": 2500, "interaction_ms": 400}
"""Largest medians: a page on its first visit, on a later visit, and from another page of the app; an interaction.

The first two are timed in a browser without a debugger. For the others Playwright clicks and types, and a script in the
page measures the time.
"""
BARE = "a bare page"
"""Timed among the other pages: the time that Streamlit itself takes for a table and chart of the catalogue."""
LOOKED_UP_MS = 3000
"""After this time, a form has received the weights and the estimated memory, and has been redrawn with them."""
KNOWN = 2
"""Visits after which a browser keeps a page's compiled scripts."""
WINDOW: Any = {"viewport": {"width": 1440, "height": 1400}}
SEARCH, MODEL, KIND = "sweep 12", "resnet_1*", "train"
HEADED_OTHERWISE = "document.querySelector('h1')?.textContent.trim() !== {title}"
LABELLED = "[...document.querySelectorAll('label')].some(label => label.textContent.trim() === {label})"
PROMISE = re.compile("^Trains .* for [0-9,]+ steps")
PROMISED_OTHERWISE = """[...document.querySelectorAll("[data-testid=stText]")].some(
  part => part.textContent.startsWith("Trains ") && part.textContent.trim() !== {text})"""
TABLES = "document.querySelectorAll('[data-testid=stDataFrame]').length === {count}"


def measure(runs: int, rows: int, repeats: int, folder: Path) -> dict[str, object]:
    """Return `repeats` samples of each time in ms, with `runs` runs and `rows` rows in a new store below `folder`."""
    settings = Settings(runs_dir=folder / "runs")
    store = open_store(settings)
    filled_s = fill(store, runs, max(1, rows // runs))
    try:
        with serve(folder, preload="") as server, serve_bare(folder) as (bare_url, _):
            with chromium() as browser:
                urls = {path: f"{server.url}{path}" for path in _paths(browser, server, store)} | {BARE: bare_url}
            work: list[float] = []
            pages: dict[str, list[float]] = {path: [] for path in urls}
            again: dict[str, list[float]] = {path: [] for path in urls}
            with own_browser() as own:
                for _ in range(repeats + 1):  # the first time fills the server's caches
                    for path, url in urls.items():
                        work.append(fixed_work_ms())
                        own.forget()
                        pages[path].append(own.drawn_ms(url))
                for _ in range(repeats + KNOWN):
                    for path, url in urls.items():
                        work.append(fixed_work_ms())
                        again[path].append(own.drawn_ms(url))
            inside: dict[str, list[float]] = {}
            interactions: dict[str, list[float]] = {}
            with chromium() as browser:
                for _ in range(repeats + 1):
                    work.append(fixed_work_ms())
                    for path, took_ms in _moves(browser, server):
                        inside.setdefault(path, []).append(took_ms)
                    for name, took_ms in _interactions(browser, server, store):
                        interactions.setdefault(name, []).append(took_ms)
    finally:
        store.close()
    return {
        "runs": runs,
        "rows": max(1, rows // runs) * runs,
        "database_mb": sum(path.stat().st_size for path in settings.runs_dir.glob("vitals.sqlite*")) / 1e6,
        "filled_s": filled_s,
        "fixed_work_ms": work,
        "first_page_ms": {path: took[0] for path, took in pages.items()},
        "page_ms": {path: took[1:] for path, took in pages.items()},
        "page_again_ms": {path: took[KNOWN:] for path, took in again.items()},
        "page_inside_ms": {path: took[1:] for path, took in inside.items()},
        "interaction_ms": {name: took[1:] for name, took in interactions.items()},
    }


def fixed_work_ms() -> float:
    """Return the ms of a million additions, which tell the present speed of a virtual machine."""
    start, total = time.perf_counter(), 0
    for number in range(1_000_000):
        total += number
    return 1000 * (time.perf_counter() - start)


def medians(samples: dict[str, object]) -> dict[str, dict[str, float]]:
    """Return the median of every page and interaction."""
    return {
        part: {name: statistics.median(took) for name, took in found.items()}
        for part in GOALS
        if isinstance(found := samples[part], dict)
    }


def _paths(browser: Browser, server: Server, store: Store) -> list[str]:
    """Return the paths of all pages of the navigation, of a run of every kind and of the last page of the list."""
    page = browser.new_page()
    page.goto(server.url)
    page.get_by_test_id("stSidebarNavLink").first.wait_for()
    links = [link.get_attribute("href") or "" for link in page.get_by_test_id("stSidebarNavLink").all()]
    page.close()
    paths = [f"/{link.removeprefix(server.url).lstrip('/')}" for link in links]
    newest = {run.kind: run.id for run in store.runs(limit=500)}
    last = store.count(Filter()) // 50
    return [*paths, f"/runs?runs_page={last}", *(f"/run?run={newest[kind]}" for kind in sorted(newest))]


def _moves(browser: Browser, server: Server) -> Iterator[tuple[str, float]]:
    """Yield the path and ms of each move between pages of the navigation. A first round fills the caches."""
    page = browser.new_page(**WINDOW)
    page.goto(server.url)
    page.wait_for_function(DRAWN, timeout=PATIENCE_MS)
    links = page.get_by_test_id("stSidebarNavLink")
    for caches_filled in (False, True):
        for link in [*links.all()[1:], links.first]:  # the catalogue is the first page, so it comes last
            title = page.locator("h1").first.inner_text()
            took_ms = answered(page, link.click, HEADED_OTHERWISE.format(title=json.dumps(title)))
            if caches_filled:
                yield urlsplit(page.url).path, took_ms
    page.close()


def _interactions(browser: Browser, server: Server, store: Store) -> Iterator[tuple[str, float]]:
    """Yield name and ms of interactions on the list of runs, a form and a run, from the click or key to the answer."""
    page = browser.new_page(**WINDOW)
    page.goto(f"{server.url}/runs")
    page.wait_for_function(DRAWN, timeout=PATIENCE_MS)
    run_count = store.count(Filter())

    time_ms = partial(answered, page)

    def first_page(wanted: Filter) -> str:
        total = store.count(wanted)
        return says(f"1 to {min(50, total):,} of {total:,} runs")

    search, model = page.get_by_label("Search", exact=True), page.get_by_label("Model", exact=True)
    following = page.get_by_role("button", name="Next page")
    yield "next page", time_ms(following.click, says(f"51 to 100 of {run_count:,} runs"))
    yield "search", time_ms(lambda: search.fill(SEARCH), first_page(Filter(text=SEARCH)))
    nothing = says("No runs match these filters.")
    yield "search for nothing", time_ms(lambda: search.fill("no such run"), nothing)
    yield "search cleared", time_ms(lambda: search.fill(""), first_page(Filter()))
    yield "model", time_ms(lambda: model.fill(MODEL), first_page(Filter(model=MODEL)))
    yield "model cleared", time_ms(lambda: model.fill(""), first_page(Filter()))
    kind = page.get_by_role("button", name=KIND, exact=True)
    yield "kind", time_ms(kind.click, first_page(Filter(kinds=(KIND,))))
    yield "kind cleared", time_ms(kind.click, first_page(Filter()))
    table = page.get_by_test_id("stDataFrame").first
    yield "tick a run", time_ms(lambda: table.click(position={"x": 16, "y": 52}), says("1 selected"))
    storage = page.get_by_text("Storage", exact=True)
    yield "storage", time_ms(storage.click, says("Runs with the largest artifacts"))
    page.goto(f"{server.url}/train")
    page.wait_for_function(DRAWN, timeout=PATIENCE_MS)
    page.wait_for_timeout(LOOKED_UP_MS)
    group = page.get_by_role("button", name="Validation", exact=True)
    yield "further settings", time_ms(group.click, LABELLED.format(label=json.dumps("Best checkpoint by")))
    promise, epochs = page.get_by_text(PROMISE), page.get_by_label("Epochs", exact=True)
    before = json.dumps(promise.inner_text())
    yield "a training's epochs", time_ms(lambda: _type(epochs, "7"), PROMISED_OTHERWISE.format(text=before))
    run_id = store.runs(kind="profile", limit=1)[0].id
    page.goto(f"{server.url}/run?run={run_id}")
    page.wait_for_function(DRAWN, timeout=PATIENCE_MS)
    tab = page.get_by_role("tab", name="Environment", exact=True)
    yield "a run's environment", time_ms(tab.click, TABLES.format(count=2))
    page.close()


def _type(field: Locator, text: str) -> None:
    field.fill(text)
    field.press("Enter")
