"""Tests that limit the server's memory: the size of its caches, and the memory that closed tabs keep."""

import ast
import asyncio
import tomllib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from engine.settings import ROOT, Settings
from engine.store import open_store
from tests.support.browser import serve
from tests.support.clip import queue_train, record, train_row
from tests.support.session import open_tab
from tests.support.store import fill

HEAVY = ("tasks", "replicates", "training", "models", "measure")
"""Packages of the engine that the server never loads: see test_architecture.py."""
LIMITS = {"cache": "", "lru_cache": "maxsize", "cache_data": "max_entries", "cache_resource": "max_entries"}
"""Decorators that cache, with the option that limits them."""
FINITE = {
    "engine/shipped.py": "installed",  # an entry per distribution in versions.json
}
"""Functions whose arguments have few values, so that their cache needs no limit."""
GROWTH_MB = 40
"""Closed tabs may keep at most this much. They kept 11 MB; if each session kept the data of a page, 50 MB."""


def caches() -> Iterator[tuple[Path, ast.FunctionDef, str, dict[str, ast.expr]]]:
    """Yield the file, function, decorator name and decorator arguments of each cached function of the server."""
    sources = [path for folder in ("engine", "pages") for path in (ROOT / folder).rglob("*.py")]
    for path in sources:
        if path.relative_to(ROOT).parts[1] in HEAVY:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for decorator in getattr(node, "decorator_list", []):
                call = decorator if isinstance(decorator, ast.Call) else ast.Call(decorator, [], [])
                name = ast.unparse(call.func).rpartition(".")[2]
                if name in LIMITS:
                    yield path, node, name, {str(argument.arg): argument.value for argument in call.keywords}


def has_limit(function: ast.FunctionDef, name: str, options: dict[str, ast.expr]) -> bool:
    """Return whether the size of a cache is limited. A time to live alone does not limit it."""
    if not ast.unparse(function.args):
        return True
    return LIMITS[name] in options and ast.unparse(options[LIMITS[name]]) != "None"


@pytest.mark.slow
def test_every_cache_of_the_server_has_a_limit() -> None:
    cached = list(caches())
    assert len(cached) > 20
    unlimited = {
        (str(path.relative_to(ROOT)), function.name)
        for path, function, name, options in cached
        if not has_limit(function, name, options)
    }
    assert unlimited == set(FINITE.items()), "give it max_entries or maxsize"


def test_cached_data_has_a_limit_in_bytes() -> None:
    server = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text(encoding="utf-8"))["server"]
    assert server["maxCacheDataSize"].endswith("mb")


@pytest.mark.slow
@pytest.mark.soak
def test_closed_tabs_keep_little_memory(tmp_path: Path) -> None:
    """Streamlit keeps the last 128 closed sessions with all their data, so that a browser can reconnect."""
    store = open_store(Settings(runs_dir=tmp_path / "runs"))
    fill(store, 200, 5)
    run_id = queue_train(store)
    record(store, run_id, [train_row(epoch) for epoch in range(1, 1001)])
    store.close()
    tabs = {"/": 25, "/compare": 60, f"/run?run={run_id}": 15}

    async def load(url: str, address: str, count: int) -> None:
        for _ in range(count):
            async with open_tab(url, address):
                pass

    with serve(tmp_path, preload="") as server:
        for address in tabs:
            asyncio.run(load(server.url, address, 5))  # warm-up: imports libraries and fills caches
        before = psutil.Process(server.pid).memory_info().rss
        for address, count in tabs.items():
            asyncio.run(load(server.url, address, count))
        grown = psutil.Process(server.pid).memory_info().rss - before
    assert grown < GROWTH_MB * 1e6
