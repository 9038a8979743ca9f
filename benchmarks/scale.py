"""Measure the load of workers, claims and users, and estimate from it the load of 1,000 users and 100 nodes.

    python -m benchmarks.scale [--parts sweep claims pages] [--rounds 3] [--output benchmarks/results/scale.json]

1. sweep: counting MODELS in one process, on 1, 2 and 4 workers, and on a Ray cluster of one node with 2 cores.
2. claims: 8 processes claim 2,000 runs, on SQLite and on PostgreSQL. Duplicates and errors must be 0.
3. pages: time to open pages and to search while 1, 10 and 50 sessions poll the server (benchmarks/polling.py).

Parts that are left out keep their results. The estimate uses all three and the assumptions in ASSUMED. Needs
requirements-cluster.txt and a PostgreSQL server, which it starts and removes. Everything is on the loopback address.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterable
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from engine import names
from engine.settings import ROOT, Settings
from engine.specs import ProfileSpec
from engine.store import open_store

RESULTS = ROOT / "benchmarks" / "results" / "scale.json"
MODELS = ("timm:resnet*", "timm:mobilenet*", "timm:vit_tiny*", "timm:vit_small*", "timm:vit_medium*")
WARM_UP = 3
"""Models to count before the first timing."""
WORKERS = (1, 2, 4)
RAY_CORES = 2
CLAIMERS, CLAIMS = 8, 2000
SESSIONS = (1, 10, 50)
ASSUMED = {
    "users": 1000,
    "nodes": 100,
    "cores_per_node": 32,
    "share_of_users_with_a_page_that_polls": 0.1,
    "runs_per_user_and_day": 20,
    "hours_per_day": 8,
    "events_per_second_of_a_run": 1,
    "heartbeat_s": 5,
    "models_of_a_sweep": 1500,
}

Report = dict[str, Any]


def sweep(rounds: int) -> Report:
    """Return the seconds of each way to count the models, and of each until its first model was counted."""
    import torch

    from engine.models import library
    from engine.tasks.profile import profile
    from engine.tasks.shards import spread, spread_on_cluster
    from tests.support.servers.ray import cluster

    torch.set_num_threads(1)
    spec = ProfileSpec(models=MODELS)
    models = names.select(spec, library.families(), allow_code=True)
    work = partial(profile, spec=spec)
    for model in models[:WARM_UP]:
        work(model)

    def timed(found: Iterable[Any]) -> list[float]:
        forkserver._forkserver._stop()  # type: ignore[attr-defined]  # a run starts its own, which imports the libraries
        begin, arrived = time.monotonic(), []
        for item in found:
            if item is not None:
                arrived.append(time.monotonic() - begin)
                result = item[1] if isinstance(item, tuple) else item
                assert result.row.status == "ok", result
        assert len(arrived) == len(models)
        return [arrived[0], arrived[-1]]

    with cluster({}, cpus=RAY_CORES) as running:
        os.environ.update(running.drivers)
        ways = {"one process": lambda: map(work, models)}
        ways |= {f"{count} workers": partial(spread, work, models, count) for count in WORKERS}
        ways[f"Ray, {RAY_CORES} cores"] = partial(spread_on_cluster, work, models)
        samples: dict[str, list[list[float]]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, begin in ways.items():
                samples[way].append(timed(begin()))
                print(f"{way:20} first {samples[way][-1][0]:6.1f} s, all {samples[way][-1][1]:6.1f} s", flush=True)
    return {
        "models": len(models),
        "first_s": {way: [first for first, _ in pairs] for way, pairs in samples.items()},
        "seconds": {way: [last for _, last in pairs] for way, pairs in samples.items()},
    }


def claims(rounds: int) -> Report:
    """Return the claims per second on each database, with the number of duplicates and errors."""
    from tests.support.claims import race
    from tests.support.servers.postgres import server

    found: dict[str, list[float]] = {"sqlite": [], "postgresql": []}
    wrong = {name: {"duplicates": 0, "errors": 0} for name in found}
    with server() as postgres:
        for _ in range(rounds):
            for name in found:
                with tempfile.TemporaryDirectory() as folder:
                    url = postgres.new_database() if name == "postgresql" else ""
                    settings = Settings(runs_dir=Path(folder) / "runs", database_url=url)
                    with closing(open_store(settings)) as store:
                        shared = {"VITALS_RUNS_DIR": str(settings.runs_dir), "VITALS_DATABASE_URL": url}
                        raced = race(store, CLAIMERS, CLAIMS // CLAIMERS, Path(folder), shared)
                found[name].append(len(raced.claims) / raced.seconds)
                wrong[name]["duplicates"] += raced.duplicates
                wrong[name]["errors"] += len(raced.problems)
                print(f"{name:20} {found[name][-1]:6.1f} claims/s {wrong[name]}", flush=True)
    return {"claimers": CLAIMERS, "claims": CLAIMS, "claims_per_s": found, "wrong": wrong}


def pages(rounds: int) -> Report:
    """Return what `polling.polled` measured, by number of sessions, one list per round."""
    from benchmarks.polling import polled

    measured = polled(SESSIONS, rounds)
    for entry in measured:
        for load in entry:
            times = {name: statistics.median(load[name]) for name in ("catalogue", "runs", "search", "tick")}
            print(f"{load['sessions']:3} sessions", *(f"{name} {value:.3f} s" for name, value in times.items()))
    return {"rounds": measured}


def estimate(report: Report) -> Report:
    """Return the load of each part under ASSUMED, as a share of its measured capacity, and the values used.

    A part with a load above 1 needs more than one server process, or another design.
    """
    assumed, medians = ASSUMED, {way: statistics.median(times) for way, times in report["sweep"]["seconds"].items()}
    rounds = [{load["sessions"]: load for load in entry} for entry in report["pages"]["rounds"]]
    few, many = SESSIONS[1], SESSIONS[-1]
    core_each = statistics.median(entry[few]["polling_cpu"] for entry in rounds) / few
    mb_each = statistics.median(entry[many]["server_mb"] - entry[1]["server_mb"] for entry in rounds) / (many - 1)
    open_pages = assumed["users"] * assumed["share_of_users_with_a_page_that_polls"]
    per_s = statistics.median(report["claims"]["claims_per_s"]["postgresql"])
    runs_per_s = assumed["users"] * assumed["runs_per_user_and_day"] / (3600 * assumed["hours_per_day"])
    writes = assumed["nodes"] * (assumed["events_per_second_of_a_run"] + 1 / assumed["heartbeat_s"]) + 4 * runs_per_s
    each_s = medians["one process"] / report["sweep"]["models"]
    start_s = medians["1 workers"] - medians["one process"]
    cores = assumed["nodes"] * assumed["cores_per_node"]
    loads = {
        "one server process (one core): open pages that poll": open_pages * core_each,
        "one scheduler: a claim per node and second while runs wait": assumed["nodes"] / per_s,
        "the database's only writer: events, heartbeats, states": writes / (2 * per_s),
        "the database: runs that start": runs_per_s / per_s,
    }
    return {
        "assumed": assumed,
        "load": dict(sorted(loads.items(), key=lambda item: -item[1])),
        "sessions_per_server_process": 1 / core_each,
        "mb_per_session": mb_each,
        "server_mb": open_pages * mb_each,
        "sweep_seconds_per_model": each_s,
        "sweep_start_s": start_s,
        "sweep_s": {
            "compute": start_s + assumed["models_of_a_sweep"] * each_s / min(cores, assumed["models_of_a_sweep"]),
            "storing its rows": assumed["models_of_a_sweep"] / (2 * per_s),
        },
    }


def main() -> None:
    from benchmarks.ui import this_machine, write

    parts = {"sweep": sweep, "claims": claims, "pages": pages}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    report: Report = json.loads(chosen.output.read_text()) if chosen.output.is_file() else {}
    for name in chosen.parts:
        about = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": this_machine()}
        begin = time.monotonic()
        report[name] = about | parts[name](chosen.rounds) | {"took_s": round(time.monotonic() - begin)}
        write(chosen.output, report)
    if all(name in report for name in parts):
        report["estimate"] = estimate(report)
        write(chosen.output, report)
        print(json.dumps(report["estimate"], indent=2))


if __name__ == "__main__":
    main()
