"""Every page, and what one does on it, with a store of very many runs: part of `benchmarks/ui.py --runs N --rows M`."""

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
"""Medians. A page in a browser that has never been here, the same in one that has, and from another page of the app;
then what one does on a page.

Pages are timed in a browser without a debugger; else Playwright clicks and types, and the page itself holds the watch.
"""
BARE = "a bare page"
"""Measured among the others: what Streamlit's own table and chart of the catalogue take on this machine just then."""
LOOKED_UP_MS = 3000  # after which a form has heard of weights and memory, and is drawn anew for it
KNOWN = 2  # visits after which a browser keeps a page's scripts compiled
WINDOW: Any = {"viewport": {"width": 1440, "height": 1400}}
SEARCH, MODEL, KIND = "sweep 12", "resnet_1*", "train"
HEADED_OTHERWISE = "document.querySelector('h1')?.textContent.trim() !== {title}"
LABELLED = "[...document.querySelectorAll('label')].some(label => label.textContent.trim() === {label})"
PROMISE = re.compile("^Trains .* for [0-9,]+ steps")
PROMISED_OTHERWISE = """[...document.querySelectorAll("[data-testid=stText]")].some(
  part => part.textContent.startsWith("Trains ") && part.textContent.trim() !== {text})"""
TABLES = "document.querySelectorAll('[data-testid=stDataFrame]').length === {count}"


def measure(runs: int, rows: int, repeats: int, folder: Path) -> dict[str, object]:
    """Milliseconds, `repeats` of each, with so many runs and rows in a new store below `folder`."""
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
                for _ in range(repeats + 1):  # the first time loads what the server keeps for later ones
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
    """The same million additions each time: how quick this machine is just then, as a virtual one swings."""
    start, total = time.perf_counter(), 0
    for number in range(1_000_000):
        total += number
    return 1000 * (time.perf_counter() - start)


def medians(samples: dict[str, object]) -> dict[str, dict[str, float]]:
    """Of every page and interaction."""
    return {
        part: {name: statistics.median(took) for name, took in found.items()}
        for part in GOALS
        if isinstance(found := samples[part], dict)
    }


def _paths(browser: Browser, server: Server, store: Store) -> list[str]:
    """All pages of the navigation, a run of every kind and a far page of the list."""
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
    """From each page of the navigation to the next; twice around, as the first time loads what the second finds."""
    page = browser.new_page(**WINDOW)
    page.goto(server.url)
    page.wait_for_function(DRAWN, timeout=PATIENCE_MS)
    links = page.get_by_test_id("stSidebarNavLink")
    for took in (False, True):
        for link in [*links.all()[1:], links.first]:  # the catalogue, where it begins, last
            title = page.locator("h1").first.inner_text()
            took_ms = answered(page, link.click, HEADED_OTHERWISE.format(title=json.dumps(title)))
            if took:
                yield urlsplit(page.url).path, took_ms
    page.close()


def _interactions(browser: Browser, server: Server, store: Store) -> Iterator[tuple[str, float]]:
    """What one does on the list of runs and on a run, each from the key or click until its answer is there."""
    page = browser.new_page(**WINDOW)
    page.goto(f"{server.url}/runs")
    page.wait_for_function(DRAWN, timeout=PATIENCE_MS)
    everything = store.count(Filter())

    took = partial(answered, page)

    def first_page(wanted: Filter) -> str:
        total = store.count(wanted)
        return says(f"1 to {min(50, total):,} of {total:,} runs")

    search, model = page.get_by_label("Search", exact=True), page.get_by_label("Model", exact=True)
    following = page.get_by_role("button", name="Next page")
    yield "next page", took(following.click, says(f"51 to 100 of {everything:,} runs"))
    yield "search", took(lambda: search.fill(SEARCH), first_page(Filter(text=SEARCH)))
    nothing = says("No runs match these filters.")
    yield "search for nothing", took(lambda: search.fill("no such run"), nothing)
    yield "search cleared", took(lambda: search.fill(""), first_page(Filter()))
    yield "model", took(lambda: model.fill(MODEL), first_page(Filter(model=MODEL)))
    yield "model cleared", took(lambda: model.fill(""), first_page(Filter()))
    kind = page.get_by_role("button", name=KIND, exact=True)
    yield "kind", took(kind.click, first_page(Filter(kinds=(KIND,))))
    yield "kind cleared", took(kind.click, first_page(Filter()))
    table = page.get_by_test_id("stDataFrame").first
    yield "tick a run", took(lambda: table.click(position={"x": 16, "y": 52}), says("1 selected"))
    storage = page.get_by_text("Storage", exact=True)
    yield "storage", took(storage.click, says("Runs with the largest artifacts"))
    page.goto(f"{server.url}/train")
    page.wait_for_function(DRAWN, timeout=PATIENCE_MS)
    page.wait_for_timeout(LOOKED_UP_MS)
    group = page.get_by_role("button", name="Validation", exact=True)
    yield "further settings", took(group.click, LABELLED.format(label=json.dumps("Best checkpoint by")))
    promise, epochs = page.get_by_text(PROMISE), page.get_by_label("Epochs", exact=True)
    before = json.dumps(promise.inner_text())
    yield "a training's epochs", took(lambda: _type(epochs, "7"), PROMISED_OTHERWISE.format(text=before))
    run_id = store.runs(kind="profile", limit=1)[0].id
    page.goto(f"{server.url}/run?run={run_id}")
    page.wait_for_function(DRAWN, timeout=PATIENCE_MS)
    tab = page.get_by_role("tab", name="Environment", exact=True)
    yield "a run's environment", took(tab.click, TABLES.format(count=2))
    page.close()


def _type(field: Locator, text: str) -> None:
    field.fill(text)
    field.press("Enter")
