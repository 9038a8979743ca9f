"""Time the pages of a real server while sessions poll it: part of benchmarks/scale.py.

Each session is a WebSocket that speaks Streamlit's protocol (tests/support/session.py): it draws its page, then asks
for each fragment at its interval, as a browser's timer does. Half of them show the list of runs, half a training
that gets metrics and a line of its log every second, and a row every 20 s. Meanwhile another session opens pages and
types into a search field. A browser would add the time for scripts, styles and drawing.
"""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.server_memory import ROWS_EACH, RUNS, growing_run, measure
from engine.settings import Settings
from engine.store import open_store
from tests.support.browser import Server, serve
from tests.support.session import Tab, open_tab
from tests.support.store import fill

WINDOW_S = 12.0
"""Seconds in which sessions poll and pages are opened, per number of sessions, plus the time of the last answers."""
ALONE_S = 6.0
"""Seconds before that in which sessions only poll."""
SEARCHES = ("resnet", "vit", "convnext", "swin", "deit", "mixer")

Samples = dict[str, list[float]]


async def probe(url: str, seconds: float) -> Samples:
    """Open pages in turn for `seconds`, each in a new session, and search. Return the seconds of each answer."""
    end, samples = time.monotonic() + seconds, {"catalogue": [], "runs": [], "search": []}
    searches = cycle(SEARCHES)
    while time.monotonic() < end or not samples["runs"]:
        begin = time.monotonic()
        async with open_tab(url, "/") as tab:
            samples["catalogue"].append(round(time.monotonic() - begin, 4))
            begin = time.monotonic()
            await tab.type("Search", next(searches))
            samples["search"].append(round(time.monotonic() - begin, 4))
        begin = time.monotonic()
        async with open_tab(url, "/runs"):
            samples["runs"].append(round(time.monotonic() - begin, 4))
    return samples


async def under(server: Server, addresses: list[str], numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Measure with each number of sessions that poll, the smallest first; they stay open for the next number.

    Times are in seconds. `tick`: from a request for fragments until the answer. `polling_cpu`: cores that
    the server uses while sessions only poll. `server_cpu_s`: CPU time over all `seconds` in which pages are opened too.
    """
    found = []
    async with AsyncExitStack() as opened:
        tabs: list[Tab] = []
        for number in numbers:
            while len(tabs) < number:
                address = addresses[len(tabs) % len(addresses)]
                tabs.append(await opened.enter_async_context(open_tab(server.url, address)))
            alone = measure(server.pid)["cpu_s"]
            await asyncio.gather(*(tab.tick(ALONE_S) for tab in tabs))
            for tab in tabs:
                tab.waits_s.clear()
            before, begin = measure(server.pid), time.monotonic()
            ticking = asyncio.gather(*(tab.tick(WINDOW_S) for tab in tabs))
            samples = await probe(server.url, WINDOW_S)
            await ticking
            took, after = time.monotonic() - begin, measure(server.pid)
            waits = [round(wait, 4) for tab in tabs for wait in tab.waits_s]
            found.append(
                {
                    "sessions": number,
                    **samples,
                    "tick": waits,
                    "polling_cpu": (before["cpu_s"] - alone) / ALONE_S,
                    "seconds": took,
                    "server_cpu_s": after["cpu_s"] - before["cpu_s"],
                    "server_mb": after["rss_mb"],
                }
            )
    return found


def polled(numbers: Sequence[int], rounds: int) -> list[list[dict[str, Any]]]:
    """Return the measurements of each round, each with a server and sessions of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = Settings(runs_dir=folder / "runs")
        with closing(open_store(settings)) as store:
            fill(store, RUNS, ROWS_EACH)
            with growing_run(store, settings.runs_dir) as run_id:
                addresses = ["/runs", f"/run?run={run_id}"]
                measured = []
                for _ in range(rounds):
                    with serve(folder, preload="") as server:
                        asyncio.run(probe(server.url, 0))  # the first page fills the server's caches
                        measured.append(asyncio.run(under(server, addresses, numbers)))
    return measured
