"""Fill a store with any number of runs and rows in bulk, for tests of filters and for benchmarks."""

import json
import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, select

from engine.results import DeviceRow, EvaluateRow, Row, TrainRow
from engine.specs import BenchmarkSpec, DeviceSpec, ProfileSpec, RecurrentSpec, Spec, TrainSpec
from engine.specs.evaluate import EvaluateSpec
from engine.store import Cause, State, Store
from engine.store.listing import folded_names, requested_models, results_of, searchable
from engine.store.records import mark_change, run_values
from engine.store.tables import artifacts, attempts, metrics, rows, run_models, run_results, run_tags, run_texts, runs
from tests.support.page import ENVIRONMENT, benchmark_row, profile_row, recurrent_row

FAMILIES = ("resnet", "vit_base", "convnext", "swin", "efficientnet", "deit", "mixer", "regnet", "beit", "eva")
NAMES = tuple(f"{family}_{number}" for family in FAMILIES for number in range(200))
TAGS = ("baseline", "paper", "to delete", "h200", "nightly")
DEVICES = ("cpu", "cpu", "cpu", "cuda:0", "cuda:1")
WEIGHTS = {"profile": 40, "benchmark": 30, "recurrent": 10, "device": 5, "train": 10, "evaluate": 5}
STATES = {State.FINISHED: 90, State.FAILED: 6, State.CANCELLED: 4}
ERRORS = ("RuntimeError: CUDA out of memory", "ValueError: 100% of the images_are broken", "killed by SIGKILL")
BATCH = 2000
"""Runs per transaction."""
PLACE = "@MODEL@"
"""Placeholder for the model's name in a template of a row."""
NOW = 1_795_000_000.0
DEFAULTS = {column.name: column.default.arg for column in runs.c if column.default}
SPECS = 400
"""Number of different requests. Runs share them, because building a request takes longer than storing it."""


def fill(store: Store, count: int, rows_each: int, seed: int = 0) -> float:
    """Add `count` ended runs with `rows_each` rows each, and return the seconds that it took.

    The values come from the functions that store real runs.
    """
    begin, rng, templates = time.perf_counter(), random.Random(seed), _templates()
    requests = [_spec(rng) for _ in range(min(count, SPECS))]
    prepared = [(spec, run_values(spec, "", NOW), requested_models(spec)) for spec in requests]
    with store.database.read() as connection:
        last = connection.scalar(select(runs.c.id).order_by(runs.c.id.desc()).limit(1)) or 0
    for first in range(last + 1, last + 1 + count, BATCH):
        with store.database.write() as connection:
            if store.database.sqlite:
                connection.exec_driver_sql("PRAGMA cache_size = -400000")  # 400 MB, so that a transaction fits
            ids = range(first, min(first + BATCH, last + 1 + count))
            _write(connection, (_RandomRun(rng, run_id, rng.choice(prepared), templates, rows_each) for run_id in ids))
            if not store.database.sqlite:
                for table in ("runs", "attempts"):  # so that the next ids follow these
                    connection.exec_driver_sql(f"SELECT setval('{table}_id_seq', {ids[-1]})")
            mark_change(connection)
    return time.perf_counter() - begin


def _write(connection: Connection, made: "Iterator[_RandomRun]") -> None:
    lines: dict[Table, list[dict[str, Any]]] = {
        table: [] for table in (runs, attempts, rows, run_models, run_results, run_texts, run_tags, artifacts, metrics)
    }
    for run in made:
        for table, values in run.lines():
            lines[table] += values
    for table, values in lines.items():
        if values:
            # plain SQL, three times as fast as SQLAlchemy's insert
            marks = ", ".join("?" if connection.dialect.name == "sqlite" else "%s" for _ in values[0])
            insertion = f"INSERT INTO {table.name} ({', '.join(values[0])}) VALUES ({marks})"
            connection.exec_driver_sql(insertion, [tuple(line.values()) for line in values])


class _RandomRun:
    """A run with random values."""

    def __init__(
        self, rng: random.Random, run_id: int, prepared: Any, templates: dict[str, list[str]], rows_each: int
    ) -> None:
        self.id, (self.spec, self.values, self.asked) = run_id, prepared
        self.state = rng.choices(list(STATES), list(STATES.values()))[0]
        self.name = f"sweep {run_id // 50} of {rng.choice(FAMILIES)}" if rng.random() < 0.3 else ""
        self.notes = f"Looked at on day {run_id % 97}." if rng.random() < 0.05 else ""
        self.tags = rng.sample(TAGS, rng.randint(1, 2)) if rng.random() < 0.1 else []
        self.error = rng.choice(ERRORS) if self.state is State.FAILED else ""
        self.began, self.took = NOW - 60 * (200_000 - run_id), rng.lognormvariate(4, 1)
        self.models = rng.choices(NAMES, k=rows_each)
        self.templates = templates[self.spec.kind]
        self.bytes = int(rng.lognormvariate(10, 2))

    def lines(self) -> Iterator[tuple[Table, list[dict[str, Any]]]]:
        ended = {"started_at": self.began + 1, "ended_at": self.began + 1 + self.took, "created_at": self.began}
        cause = Cause.ERROR if self.state is State.FAILED else None
        known = {"id": self.id, "name": self.name, "notes": self.notes, "state": self.state, "cause": cause}
        known |= {"error": self.error, "attempt_id": self.id, "attempt": 1, "tries_left": 0, "revision": self.id}
        known |= {"done": len(self.models), "total": len(self.models), "environment": ENVIRONMENT.model_dump_json()}
        yield runs, [DEFAULTS | self.values | known | ended]
        mine = {"run_id": self.id}
        attempt = {"id": self.id, "number": 1, "host": "here", "created_at": self.began, "heartbeat_at": self.began}
        yield attempts, [mine | attempt | {"begun_at": self.began, "closed_at": self.began + 2 + self.took}]
        shared = mine | {"attempt_id": self.id, "kind": self.spec.kind, "library": "timm", "status": "ok"}
        payloads = [self._payload(model) for model in self.models]
        lines = zip(self.models, payloads, strict=True)
        yield rows, [shared | {"model": model, "payload": payload} for model, payload in lines]
        yield run_results, [mine | results_of([("ok", payload) for payload in payloads])]
        named = (name for model in self.models for name in folded_names(f"timm:{model}"))
        models = dict.fromkeys([*self.asked, *named])
        yield run_models, [mine | {"model": model} for model in models]
        yield run_texts, [mine | {"text": searchable(self.name, self.values["summary"], self.notes)}]
        yield run_tags, [mine | {"tag": tag} for tag in self.tags]
        yield artifacts, [mine | {"name": "detail/a.json", "kind": "detail", "size": self.bytes, "sha256": "0" * 64}]
        if self.spec.kind == "train":
            yield metrics, [mine | {"name": "loss", "step": step, "value": 1 / step} for step in range(1, 21)]

    def _payload(self, model: str) -> str:
        return self.templates[len(model) % len(self.templates)].replace(PLACE, model)


def _spec(rng: random.Random) -> Spec:
    models, device = tuple(f"timm:{name}" for name in rng.sample(NAMES, rng.randint(1, 5))), rng.choice(DEVICES)
    match rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]:
        case "profile":
            return ProfileSpec(models=models, device=rng.choice(("meta", device)), batch_size=rng.randint(1, 64))
        case "benchmark":
            return BenchmarkSpec(models=models, device=device, batch_size=rng.randint(1, 64))
        case "recurrent":
            return RecurrentSpec(device=device, hidden_size=rng.randint(8, 512))
        case "device":
            return DeviceSpec(device=device)
        case "train":
            return TrainSpec(device=device, seed=rng.randint(0, 99))
        case _:
            return EvaluateSpec(device=device, seed=rng.randint(0, 99))


def _templates() -> dict[str, list[str]]:
    """Return stored rows by kind of run, with PLACE instead of a model."""
    shared: dict[str, Any] = {"library": "timm", "model": PLACE, "device": "cpu"}
    rates = {"operation": "matmul", "size": 4096, "gflop_per_s": 900.0, "latency_ms": 150.0, "threads": 2, "samples": 9}
    made: list[Row] = [
        profile_row(PLACE),
        benchmark_row(PLACE),
        benchmark_row(PLACE, "compile"),
        recurrent_row("aten").model_copy(update={"model": PLACE}),
        DeviceRow(**shared, dtype="float32", **rates),
        DeviceRow(**shared, dtype="bfloat16", **rates),
        TrainRow(**shared, epoch=1, step=100, train_loss=1.5, zeroshot_top1=0.5),
        EvaluateRow(**shared, task="zeroshot", data="digits", acc1=0.9),
    ]
    found: dict[str, list[str]] = {}
    for row in made:
        found.setdefault(row.kind, []).append(row.model_dump_json())
    assert all(PLACE in json.loads(text)["model"] for texts in found.values() for text in texts)
    return found


def table_pages(path: Path, table: str) -> list[slice]:
    """Return the byte ranges of a table in a SQLite file: its root page, then its other pages, if it has several."""
    with closing(sqlite3.connect(path)) as connection:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    data = path.read_bytes()
    page = data[(root - 1) * size : root * size]
    numbers = [root]
    if page[0] == 5:  # an interior page: each cell begins with the number of a page below
        cells = int.from_bytes(page[3:5], "big")
        places = [int.from_bytes(page[12 + 2 * cell : 14 + 2 * cell], "big") for cell in range(cells)]
        numbers += [int.from_bytes(page[place : place + 4], "big") for place in places]
    return [slice((number - 1) * size, number * size) for number in numbers]


def overwrite(path: Path, *places: slice) -> None:
    """Fill these bytes of a file with 0xff, as a failing disk might."""
    with path.open("r+b") as file:
        for place in places:
            file.seek(place.start)
            file.write(b"\xff" * (place.stop - place.start))
