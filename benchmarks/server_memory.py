"""Measure whether the server's memory stops growing: over page loads, over loads of each page alone, and under polling.

    python -m benchmarks.server_memory [--loads 500] [--each 150] [--sessions 30] [--minutes 10] [--browser 50]
                                       [--output benchmarks/results/server_memory.json]

1. All pages in turn, each load in a session of its own: one server, measured every 25 loads.
2. Each page alone, on a new server: the memory that `--each` sessions of it leave behind. Streamlit keeps the last 128
   disconnected sessions, so that a browser can reconnect, so a page costs the memory of one such session.
3. All pages in turn again, loaded by Chromium.
4. Sessions that stay open for minutes: half on the list of runs, half on a training that gets new rows, metrics and log
   lines every second. Each page polls as in a browser. In the end every session must draw its page again.

Parts 1, 2 and 4 use Streamlit's WebSocket protocol without a browser (tests/support/session.py), so that 500 loads take
about a minute. Only the server's own process is measured. 0 leaves a part out.
"""

import argparse
import asyncio
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import psutil

from benchmarks.ui import this_machine, write
from engine.results import Metric, Progress
from engine.settings import Settings
from engine.specs.train import TrainSpec
from engine.store import Store, attempts, open_store, queue
from engine.store.files import RunFiles
from tests.support.browser import DRAWN, Server, chromium, serve
from tests.support.clip import curve_points, train_row
from tests.support.page import ENVIRONMENT
from tests.support.session import open_tab
from tests.support.store import fill

RUNS, ROWS_EACH = 300, 20
EVERY = 25
"""Loads between two measurements."""
WARM_UP = 10
"""Loads of a page before it is measured alone: the first ones import libraries and fill caches."""
SAMPLE_S = 30
"""Seconds between two measurements while sessions poll."""
STEPS_BEFORE = 2000
"""Logged steps that the growing training begins with."""
STEPS_AN_EPOCH = 20
FORMS = ("/", "/profile", "/model?name=open_clip:ViT-B-32", "/vision", "/recurrent", "/device", "/train", "/evaluate")

Figures = dict[str, Any]


def measure(pid: int) -> Figures:
    """Return memory in MB (1e6 bytes), threads, open descriptors and used CPU seconds of a process."""
    process = psutil.Process(pid)
    memory, times = process.memory_full_info(), process.cpu_times()
    return {
        "rss_mb": round(memory.rss / 1e6, 1),
        "pss_mb": round(memory.pss / 1e6, 1),
        "threads": process.num_threads(),
        "descriptors": process.num_fds(),
        "cpu_s": round(times.user + times.system, 2),
    }


def show(name: str, count: object, figures: Figures) -> None:
    print(f"{name:>40} {count!s:>6}", *(f"{key} {value:>8}" for key, value in figures.items()), sep="  ", flush=True)


def addresses(store: Store) -> list[str]:
    """Return the addresses of all pages: the forms, the list of runs, and a run and a comparison of each kind."""
    kinds: dict[str, list[str]] = {}
    for run in store.runs(limit=RUNS):
        kinds.setdefault(run.kind, []).append(str(run.id))
    runs = [f"/run?run={ids[0]}" for ids in kinds.values()]
    return [
        *FORMS,
        "/runs",
        *runs,
        "/compare",
        *(f"/compare?compare_runs={','.join(ids[:3])}" for ids in kinds.values()),
    ]


async def load(server: Server, pages: Iterator[str], count: int) -> None:
    for address in islice(pages, count):
        async with open_tab(server.url, address):
            pass


def all_pages(folder: Path, pages: list[str], loads: int) -> list[Figures]:
    """Load all pages in turn, and measure after every EVERY loads."""
    with serve(folder, preload="") as server:
        found, following = [{"loads": 0} | measure(server.pid)], cycle(pages)
        while found[-1]["loads"] < loads:
            asyncio.run(load(server, following, EVERY))
            found.append({"loads": found[-1]["loads"] + EVERY} | measure(server.pid))
            show("all pages", found[-1]["loads"], found[-1])
    return found


def each_page(folder: Path, pages: list[str], loads: int) -> dict[str, Figures]:
    """Return the memory that `loads` sessions of one page leave behind, for each page on a new server."""
    found = {}
    for address in pages:
        with serve(folder, preload="") as server:
            asyncio.run(load(server, cycle([address]), WARM_UP))
            before = measure(server.pid)
            asyncio.run(load(server, cycle([address]), loads))
            after = measure(server.pid)
        grown = round(after["rss_mb"] - before["rss_mb"], 1)
        found[address] = {"before_mb": before["rss_mb"], "after_mb": after["rss_mb"], "grown_mb": grown}
        show(address, loads, found[address])
    return found


def by_browser(folder: Path, pages: list[str], loads: int) -> list[Figures]:
    """Load all pages in turn as `all_pages` does, but in Chromium, each in a context of its own."""
    with serve(folder, preload="") as server, chromium() as browser:
        found = [{"loads": 0} | measure(server.pid)]
        for number, address in enumerate(islice(cycle(pages), loads), 1):
            with browser.new_context() as context:
                page = context.new_page()
                page.goto(f"{server.url}{address}")
                page.wait_for_function(DRAWN, timeout=120_000)
            if number % EVERY == 0:
                found.append({"loads": number} | measure(server.pid))
                show("in Chromium", number, found[-1])
    return found


@contextmanager
def growing_run(store: Store, runs_dir: Path) -> Iterator[int]:
    """Yield the id of a training that gets metrics and a log line every second, a row every STEPS_AN_EPOCH seconds."""
    ended = threading.Event()
    attempt = queue.claim_new(store.database, ENVIRONMENT.host, TrainSpec(), name="")
    assert attempt, "no other run holds the slots"
    attempts.begin(store.database, attempt)
    attempts.record(store.database, attempt, [ENVIRONMENT, *curve_points(STEPS_BEFORE)])
    files = RunFiles(runs_dir, attempt.run_id)
    files.prepare()
    names = sorted({point.name for point in curve_points(1)})

    def work() -> None:
        step = STEPS_BEFORE
        while not ended.wait(1):
            step += 1
            with files.log.open("a", encoding="utf-8") as log:
                log.write(f"step {step}: loss {1 / step:.6f}\n")
            events = [Metric(step=step, name=name, value=1 / step) for name in names]
            rows = [train_row(step // STEPS_AN_EPOCH)] if step % STEPS_AN_EPOCH == 0 else []
            attempts.heartbeat(store.database, attempt)
            attempts.record(store.database, attempt, [*events, *rows, Progress(done=step, total=10 * STEPS_BEFORE)])

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield attempt.run_id
    finally:
        ended.set()
        worker.join()


async def poll(server: Server, tabs: list[str], seconds: float) -> Figures:
    """Keep sessions open for `seconds`. Return measurements, and the times until each session got its answers."""
    samples: list[Figures] = []

    async def sample() -> None:
        begin, before = time.monotonic(), measure(server.pid)
        while True:
            await asyncio.sleep(min(SAMPLE_S, seconds / 4))
            figures = await asyncio.to_thread(measure, server.pid)
            samples.append({"seconds": round(time.monotonic() - begin)} | figures)
            show("polling", samples[-1]["seconds"], samples[-1] | {"cpu_s": round(figures["cpu_s"] - before["cpu_s"])})

    async def stay(address: str) -> tuple[str, list[float], float]:
        async with open_tab(server.url, address) as tab:
            await tab.tick(seconds)
            begin = time.monotonic()
            await tab.draw()
            return address.partition("?")[0], tab.waits_s, time.monotonic() - begin

    sampling = asyncio.create_task(sample())
    stayed = await asyncio.gather(*map(stay, tabs))
    sampling.cancel()
    answers: Figures = {}
    for page in sorted({page for page, _, _ in stayed}):
        waits = [waits for name, waits, _ in stayed if name == page]
        every = sorted(wait for item in waits for wait in item)
        answers[page] = {
            "sessions": len(waits),
            "fewest_answers_of_a_session": min(map(len, waits)),
            "median_wait_s": round(statistics.median(every), 3),
            "longest_wait_s": round(every[-1], 3),
            "slowest_drawn_again_s": round(max(took for name, _, took in stayed if name == page), 3),
        }
        show(page, "", answers[page])
    return {"samples": samples, "answers": answers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", type=int, default=500, help="page loads of all pages in turn")
    parser.add_argument("--each", type=int, default=150, help="loads of each page alone")
    parser.add_argument("--browser", type=int, default=50, help="loads in Chromium")
    parser.add_argument("--sessions", type=int, default=30, help="sessions that stay open and poll")
    parser.add_argument("--minutes", type=float, default=10, help="minutes for which they stay open")
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    report: Figures = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": this_machine(),
        "versions": {name: version(name) for name in ("streamlit", "pandas", "pyarrow", "sqlalchemy")},
        "runs": RUNS,
        "rows": RUNS * ROWS_EACH,
    }
    with tempfile.TemporaryDirectory() as name, ExitStack() as opened:
        folder = Path(name)
        settings = Settings(runs_dir=folder / "runs")
        store = open_store(settings)
        opened.callback(store.close)
        fill(store, RUNS, ROWS_EACH)
        pages = addresses(store)
        if chosen.loads:
            report["all_pages"] = all_pages(folder, pages, chosen.loads)
        if chosen.each:
            report["each_page"] = each_page(folder, pages, chosen.each)
        if chosen.browser:
            report["in_chromium"] = by_browser(folder, pages, chosen.browser)
        if chosen.sessions:
            run_id = opened.enter_context(growing_run(store, settings.runs_dir))
            tabs = list(islice(cycle(["/runs", f"/run?run={run_id}"]), chosen.sessions))
            with serve(folder, preload="") as server:
                report["polling"] = asyncio.run(poll(server, tabs, 60 * chosen.minutes))
    if chosen.output:
        write(chosen.output, report)


if __name__ == "__main__":
    main()
