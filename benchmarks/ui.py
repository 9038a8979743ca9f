"""Time how fast the pages answer, compared in the same run with a bare Streamlit page with the same rows and a plot.

    python benchmarks/ui.py [--repeats 5]
    python benchmarks/ui.py --runs 100000 --rows 1000000 [--repeats 5]

Writes benchmarks/results/ui.json. Goals: the catalogue's table is visible within 1.3 times the time of the bare page;
a filter is answered in 300 ms (the bare page's filter is timed for comparison); the row of a submitted ViT-B-32 is
stored within 1 s of the click when a warm process waits; the server stays below 300 MB.

With --runs it writes ui_large.json: the times of every page and of interactions, with this number of runs in the store,
and of the bare page in between. Goals: the median time is at most 2.5 s for a page and 400 ms for an interaction. Pages
are timed in a Chromium without a debugger, as people use it; interactions by a script in the page. A fixed piece of
work is timed in between, to distinguish a slow page from a slow moment of the machine.
"""

import argparse
import json
import os
import platform
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil
from playwright.sync_api import Browser, Page, expect

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import ui_large  # noqa: E402
from benchmarks.bare_page import serve_bare  # noqa: E402
from benchmarks.watch import answered, says  # noqa: E402
from engine.report.catalog import catalog  # noqa: E402 -- found once the root is on the path
from engine.settings import Settings  # noqa: E402
from engine.store import Store, open_store  # noqa: E402
from tests.support.browser import chromium, serve  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "ui.json"
SEARCHES = ("resnet", "ViT-B-", "convnext", "swin", "efficientnet_b")
VISIBLE = """() => ["[data-testid=stDataFrame] canvas", ".main-svg"].every(
  part => document.querySelector(part)?.checkVisibility())"""
GOALS = {"table_over_bare": 1.3, "filter_ms": 300, "submit_to_row_ms": 1000, "server_mb": 300}


def milliseconds(action: Callable[[], object]) -> float:
    """Return the wall time of an action in ms."""
    start = time.perf_counter()
    action()
    return 1000 * (time.perf_counter() - start)


def table_visible(browser: Browser, url: str) -> float:
    """Return the ms from the request for the page, in a fresh browser context, until chart and table are visible."""
    context = browser.new_context(viewport={"width": 1440, "height": 1400})
    page = context.new_page()

    def load() -> None:
        page.goto(url)
        page.wait_for_function(VISIBLE)

    took = milliseconds(load)
    context.close()
    return took


def filter_answered(page: Page, search: str, answer: str) -> float:
    """Return the ms from the last key in the search field until the answer is on the page.

    answer: the label of the download button, the last thing that either page's script sends, after table and chart.
    """
    field = page.get_by_test_id("stTextInputField").first
    return answered(page, lambda: field.fill(search), says(answer))


def filters_answered(ours: Page, bare: Page, search: str) -> tuple[float, float]:
    """Return the ms of both pages for the same search. Our page also searches in families, so it finds more rows."""
    everything = catalog.read(Settings().catalog_dir)
    found, held = catalog.select(everything, search=search), everything["model"].str.contains(search, regex=False)
    ours_ms = filter_answered(ours, search, f"Download {len(found):,} rows")
    return ours_ms, filter_answered(bare, search, f"CSV of {held.sum():,} rows")


def filter_page(browser: Browser, url: str) -> Page:
    """Open a page with a filter and wait until its chart is drawn."""
    page = browser.new_page(viewport={"width": 1440, "height": 1400})
    page.goto(url)
    page.locator(".main-svg").first.wait_for()
    return page


def submit_to_row(page: Page, url: str, store: Store) -> float:
    """Return the ms from the click on Count until the row of ViT-B-32 is in the store. Errors: TimeoutError."""
    page.goto(f"{url}/profile?profile_models=open_clip:ViT-B-32")
    button = page.get_by_role("button", name="Count", exact=True)
    expect(button).to_be_enabled(timeout=60_000)
    before = max((run.id for run in store.runs(limit=1)), default=0)
    start = time.perf_counter()
    button.click()
    while not (runs := [run for run in store.runs(limit=1) if run.id > before]) or not store.rows(runs[0].id):
        time.sleep(0.005)
        if time.perf_counter() - start > 120:
            raise TimeoutError("no row came")
    took = 1000 * (time.perf_counter() - start)
    expect(page.get_by_text("1 of 1 done in")).to_be_visible(timeout=60_000)
    return took


def wait_until_warm(runs_dir: Path) -> None:
    """Wait until the warm process has imported everything, by the scheduler's log. Errors: TimeoutError."""
    log, deadline = runs_dir / "scheduler.log", time.monotonic() + 180
    while not log.is_file() or not re.search(r"warm process \d+: imported", log.read_text()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no warm process: {log.read_text() if log.is_file() else 'no scheduler'}")
        time.sleep(0.2)


def measure(repeats: int) -> dict[str, object]:
    """Return all samples, in milliseconds and MB (1e6 bytes)."""
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        folder = Path(name)
        start = time.perf_counter()
        with serve(folder) as ours:
            started_ms = 1000 * (time.perf_counter() - start)
            wait_until_warm(ours.settings.runs_dir)  # importing torch beside it would slow both pages down
            with serve_bare(folder) as (bare_url, _):
                first_ms, bare_first_ms = table_visible(browser, ours.url), table_visible(browser, bare_url)
                pairs = [(table_visible(browser, ours.url), table_visible(browser, bare_url)) for _ in range(repeats)]
                page, bare = filter_page(browser, ours.url), filter_page(browser, bare_url)
                searches = [SEARCHES[place % len(SEARCHES)] for place in range(2 * repeats)]
                filters_answered(page, bare, "dla")  # a page's first answer fills the caches
                filters = [filters_answered(page, bare, search) for search in searches]
                bare.close()
            store = open_store(ours.settings)
            submits = [submit_to_row(page, ours.url, store) for _ in range(repeats)]
            store.close()
            server_mb = psutil.Process(ours.pid).memory_info().rss / 1e6
    return {
        "server_start_ms": started_ms,
        "first_table_ms": first_ms,
        "bare_first_table_ms": bare_first_ms,
        "table_ms": [ours_ms for ours_ms, _ in pairs],
        "bare_table_ms": [bare_ms for _, bare_ms in pairs],
        "filter_ms": [ours_ms for ours_ms, _ in filters],
        "bare_filter_ms": [bare_ms for _, bare_ms in filters],
        "submit_to_row_ms": submits,
        "server_mb": server_mb,
    }


def summarise(samples: dict[str, object]) -> dict[str, float]:
    """Return the medians of the samples, with the names of the goals."""
    median = {name: statistics.median(value) for name, value in samples.items() if isinstance(value, list)}
    return {
        "table_over_bare": median["table_ms"] / median["bare_table_ms"],
        "filter_ms": median["filter_ms"],
        "filter_over_bare": median["filter_ms"] / median["bare_filter_ms"],
        "submit_to_row_ms": median["submit_to_row_ms"],
        "server_mb": float(str(samples["server_mb"])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--runs", type=int, help="Time all pages with this number of runs in the store instead.")
    parser.add_argument("--rows", type=int, default=1_000_000, help="Rows of all these runs together.")
    chosen = parser.parse_args()
    if chosen.runs:
        measure_large(chosen.runs, chosen.rows, chosen.repeats)
        return
    samples = measure(chosen.repeats)
    medians = summarise(samples)
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": this_machine(),
        "versions": {name: version(name) for name in ("streamlit", "pandas", "plotly")},
        "rows": len(catalog.read(Settings().catalog_dir)),
        "goals": GOALS,
        "medians": medians,
        "samples": samples,
    }
    write(RESULTS, report)
    for name, value in medians.items():
        goal = f"goal {GOALS[name]:>6}   {'met' if value <= GOALS[name] else 'MISSED'}" if name in GOALS else ""
        print(f"{name:20} {value:10.2f}   {goal}")


def measure_large(runs: int, rows: int, repeats: int) -> None:
    """Time all pages with `runs` runs in the store, write the report and print the medians with their goals."""
    with tempfile.TemporaryDirectory() as name:
        samples = ui_large.measure(runs, rows, repeats, Path(name))
    medians = ui_large.medians(samples)
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": this_machine(),
        "versions": {name: version(name) for name in ("streamlit", "sqlalchemy", "pandas", "plotly")},
        "goals": ui_large.GOALS,
        "medians": medians,
        "samples": samples,
    }
    write(RESULTS.with_name("ui_large.json"), report)
    for part, goal in ui_large.GOALS.items():
        for what, value in medians[part].items():
            print(f"{part:15} {what:32} {value:8.0f}   goal {goal:>6}   {'met' if value <= goal else 'MISSED'}")
    work = samples["fixed_work_ms"]
    assert isinstance(work, list)
    median = statistics.median(work)
    print(f"a fixed piece of work between them took {min(work):.0f} to {max(work):.0f} ms, at the median {median:.0f}")


def this_machine() -> dict[str, object]:
    """Return a description of this machine, for a report."""
    machine: dict[str, object] = {"platform": platform.platform(), "cpus": os.cpu_count(), "load": os.getloadavg()[0]}
    machine |= {"memory_gb": round(psutil.virtual_memory().total / 1e9, 1)}
    return machine


def write(path: Path, report: dict[str, object]) -> None:
    """Write a report as JSON."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
