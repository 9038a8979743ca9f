"""The benchmark task and the worker processes that measure for it."""

import csv
import itertools
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.process import NODES, Share
from engine.replicates import child
from engine.replicates.benchmark.job import Job
from engine.replicates.child import Ended
from engine.replicates.messages import Report
from engine.replicates.processes import CACHES, Processes
from engine.results import Artifact, BenchmarkRow, Environment, Event, Progress
from engine.settings import ROOT
from engine.specs import BenchmarkSpec, ModelName, Refused
from engine.tasks import benchmark
from engine.tasks.benchmark import run

SHORT: dict[str, Any] = {"models": "timm:toy", "batch_size": 2, "min_samples": 3, "min_seconds": 0.01, "threads": 1}
USER_MODEL = "python:tests.support.own_models:tiny"
"""A user model of four layers, which compiles in seconds. Its process does not load timm."""
OTHER_MODEL = "python:tests.support.own_models:Parts.linear"
REAL: dict[str, Any] = SHORT | {"models": "timm:test_vit", "replicates": 1}


def job(**fields: Any) -> Job:
    return Job(
        spec=BenchmarkSpec(**REAL | fields), model="timm:test_vit", mode="inference", batch_size=2, parent=os.getpid()
    )


def replicates() -> list[psutil.Process]:
    """Return the worker processes of this process, without children that other tests have left."""
    below = psutil.Process().children(recursive=True)
    return [process for process in below if process.is_running() and "engine.replicates" in process.cmdline()]


def test_process_is_killed_after_its_time_limit() -> None:
    started = time.monotonic()
    (end,) = (item for item in child.reports(job(time_limit=0.2), {}, started + 0.2) if item)
    assert isinstance(end, Ended)
    assert (end.status, end.error) == ("timeout", "the time limit of 0.2 s is over")
    assert replicates() == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "name"), [(signal.SIGSEGV, "SIGSEGV"), (35, "signal 35")])
def test_dead_process_is_reported_with_its_signal(number: int, name: str) -> None:
    with closing(child.reports(job(), {}, time.monotonic() + 60)) as reports:
        next(reports)
        (process,) = replicates()
        process.send_signal(number)
        *_, end = reports
    assert isinstance(end, Ended)
    assert end.status == "error"
    assert f"(killed by {name}):" in end.error


@pytest.mark.slow
def test_process_that_hangs_after_its_work_can_be_cancelled_and_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "END_S", 2.5)
    hanging = job().model_copy(update={"model": ModelName("python:tests.support.own_models:never_ending")})
    with closing(child.reports(hanging, {}, time.monotonic() + 280)) as reports:
        assert any(isinstance(report, Report) and report.measured for report in reports)
        assert list(itertools.islice(reports, 2)) == [None, None]
        *_, end = reports
    assert isinstance(end, Ended)
    assert end.error.startswith("the process did not end within 2.5 s after its work")
    assert replicates() == []


@pytest.mark.slow
def test_child_of_a_dead_process_does_not_keep_its_output_open() -> None:
    command = ["sh", "-c", "echo first; sleep 600 & echo last"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0) as process:
        lines = list(itertools.islice(child._lines(process, time.monotonic() + 600), 100))
        os.killpg(process.pid, signal.SIGKILL)
    assert [line for line in lines if line] == [b"first", b"last"]
    assert len(lines) < 100


@pytest.mark.slow
def test_closing_the_reports_ends_the_process() -> None:
    reports = child.reports(job(), {}, time.monotonic() + 60)
    next(reports)
    (process,) = replicates()
    reports.close()
    assert not process.is_running()


@pytest.mark.slow
def test_time_limit_gives_every_variant_and_mode_a_timeout_row(tmp_path: Path) -> None:
    request = BenchmarkSpec(**REAL | {"mode": "both", "variants": "eager,compile", "time_limit": 0.3})
    found = [event for event in run(request, tmp_path) if isinstance(event, BenchmarkRow)]
    assert [(item.mode, item.variant) for item in found] == [
        (mode, variant) for mode in ("inference", "training") for variant in ("eager", "compile")
    ]
    assert {item.status for item in found} == {"timeout"}


def test_missing_recorded_batch_size_is_refused_before_the_first_event(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no batch size is recorded for timm:test_vit"):
        next(run(BenchmarkSpec(**REAL | {"batch_size": "recorded"}), tmp_path))


def events(tmp_path: Path, **fields: Any) -> list[Event]:
    return list(run(BenchmarkSpec(**REAL | fields), tmp_path))


@pytest.mark.slow
def test_benchmark_of_a_clip_model_gives_one_row_and_its_files(tmp_path: Path) -> None:
    """A process builds, times and traces a CLIP model: 7 s."""
    found = events(tmp_path, models="open_clip:ViT-S-32-alt", trace=True)
    assert isinstance(found[0], Environment)
    assert [type(item) for item in found if not isinstance(item, Progress)][1:] == [Artifact, Artifact, BenchmarkRow]
    (row,) = (item for item in found if isinstance(item, BenchmarkRow))
    assert (row.status, row.error, row.processes, row.image_size) == ("ok", "", 1, "224")
    assert (row.context_length, row.family) == (77, "clip_vit")
    assert (tmp_path / row.trace_file).stat().st_size > 1000
    assert sum(operator.share for operator in row.slowest) > 0.5


@pytest.mark.slow
def test_row_combines_processes_whose_threads_follow_the_cpu_affinity(tmp_path: Path) -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        found = events(tmp_path, models=OTHER_MODEL, image_size="4", threads=None, replicates=2)
    finally:
        os.sched_setaffinity(0, allowed)
    assert found[-1] == Progress(done=2, total=2)
    assert {item.done for item in found if isinstance(item, Progress)} == {0, 1, 2}, "progress counts processes"
    (row,) = (item for item in found if isinstance(item, BenchmarkRow))
    assert (row.status, row.processes, row.threads) == ("ok", 2, 1)
    with (tmp_path / row.samples_file).open(newline="") as file:
        samples = [(line["process"], float(line["forward_ms"])) for line in csv.DictReader(file)]
    medians = [statistics.median(ms for process, ms in samples if process == number) for number in "12"]
    assert statistics.median(medians) == row.latency_ms


@pytest.mark.slow
def test_nodes_share_models_and_finished_rows_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work runs in this process; tests/faults/test_ray.py has the test with one process per node."""
    request = BenchmarkSpec(**REAL | {"models": (USER_MODEL, OTHER_MODEL), "image_size": "4", "nodes": 2})
    begun, killed = list[str](), {USER_MODEL}

    def spread(work: Any, pieces: Any, shares: dict[str, Share]) -> Any:
        assert shares == {"a": Share(1, 4, 0), "b": Share(1, 4, 0)}
        for place, model in enumerate(pieces):
            begun.append(model)
            yield None
            yield place, Ended("error", "killed everywhere") if model in killed else work(model)

    monkeypatch.setattr(benchmark, "spread_on_nodes", spread)
    shares = {node: {"processes": 1, "num_cpus": 4, "num_gpus": 0} for node in "ab"}
    monkeypatch.setenv(NODES, json.dumps(shares))
    found = list(run(request, tmp_path))
    assert isinstance(found[0], Environment)
    lost, timed = (event for event in found if isinstance(event, BenchmarkRow))
    assert (lost.name, lost.status, lost.error) == (USER_MODEL, "error", "killed everywhere")
    host = socket.gethostname()
    assert (timed.name, timed.status, timed.host) == (OTHER_MODEL, "ok", host)
    assert timed.notes[0] == f"timed on {host}; the models of this run were shared out on 2 nodes"
    progress = [event for event in found if isinstance(event, Progress)]
    assert (progress[-1].done, progress[-1].total, progress[-1].note) == (2, 2, "on 2 nodes")

    begun.clear()
    with (tmp_path / benchmark.FINISHED).open("a") as file:
        file.write('{"versions": {}, "rows": []}\n')  # by an older version
        file.write('{"conditions": {"versions": {"torch": "1.0')  # the power was cut
    note = f"timed by an earlier attempt at this run, which began {found[0].date}"
    assert {event.name: event for event in run(request, tmp_path) if isinstance(event, BenchmarkRow)} == {
        USER_MODEL: lost,
        OTHER_MODEL: timed.model_copy(update={"date": found[0].date, "notes": (*timed.notes, note)}),
    }
    assert begun == [USER_MODEL], "only the missing model is timed"
    begun.clear()
    killed.add(OTHER_MODEL)
    (tmp_path / timed.samples_file).unlink()
    list(run(request, tmp_path))
    assert begun == [USER_MODEL, OTHER_MODEL], "the file of its samples is missing"


@pytest.mark.slow
def test_later_attempt_times_only_missing_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = BenchmarkSpec(**REAL | {"models": (OTHER_MODEL, USER_MODEL), "image_size": "4"})
    with closing(run(request, tmp_path)) as first:
        environment = next(first)
        assert isinstance(environment, Environment)
        timed = next(event for event in first if isinstance(event, BenchmarkRow))
        second_model = next(
            event for event in first if isinstance(event, Progress)
        )  # cancelled before this model starts
        assert (timed.name, second_model.done, second_model.note) == (OTHER_MODEL, 1, USER_MODEL)

    begun: list[str] = []
    monkeypatch.setattr(benchmark, "_time_model", lambda spec, model, *rest: begun.append(model) or iter(()))
    _, reused, *others = run(request, tmp_path)
    note = f"timed by an earlier attempt at this run, which began {environment.date}"
    assert reused == timed.model_copy(update={"date": environment.date, "notes": (*timed.notes, note)})
    assert others[0] == Progress(done=1, total=2, note=USER_MODEL)
    assert begun == [USER_MODEL]

    other_host = environment.model_copy(update={"host": "elsewhere"})
    monkeypatch.setattr(benchmark.environment, "current", lambda device, seed: other_host)
    assert not [event for event in run(request, tmp_path) if isinstance(event, BenchmarkRow)]
    assert begun[1:] == [OTHER_MODEL, USER_MODEL], "times of two hosts are not mixed"


@pytest.mark.slow
def test_compiled_variant_has_cold_and_warm_compile_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process loads PyTorch's compiler and compiles twice, first with an empty cache: 10 s."""
    caches = tmp_path / "caches"
    caches.mkdir()
    monkeypatch.setattr(benchmark, "Processes", lambda _, *others, **more: Processes(caches, *others, **more))
    found = events(tmp_path, models=USER_MODEL, variants="eager,compile", time_limit=900)
    eager, compiled = (item for item in found if isinstance(item, BenchmarkRow))
    assert (eager.status, compiled.status) == ("ok", "ok"), compiled.error
    assert eager.compile_cold_ms is None
    assert (compiled.compile_cold_ms or 0) > 10 * (compiled.latency_ms or 0)
    assert compiled.compile_warm_ms is not None
    assert compiled.unique_graphs == 1
    assert compiled.graph_breaks == 0
    assert compiled.calls_captured == 4, "one call for each layer"
    assert list(caches.rglob("*.so"))
    assert not list(caches.rglob("*.load_ok")), "torch marks its test programs of vector instructions with these"
    assert compiled.verdict == "needs 3 processes"
    assert compiled.speedup_low < compiled.speedup < compiled.speedup_high


@pytest.mark.slow
def test_smaller_batch_is_timed_when_the_cpu_runs_out_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An enlarged image of 314 px takes 606 MB in double precision: one fits into 1.2 GB beside torch, two do not.

    The task tries the smaller batch in a new process.
    """
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nulimit -d {1_200_000_000 // 1024}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    models = USER_MODEL.replace("tiny", "enlarging")
    (found,) = (
        item
        for item in events(tmp_path, models=models, batch_size=2, image_size="314")
        if isinstance(item, BenchmarkRow)
    )
    assert found.status == "ok", found.error
    assert found.batch_size == 1
    assert "instead of 2" in " ".join(found.notes)


STARTER = """
import os, sys, time
from engine.replicates import child
from engine.replicates.benchmark.job import Job
job = Job.model_validate_json(sys.argv[1]).model_copy(update={"parent": os.getpid()})
for report in child.reports(job, {}, time.monotonic() + 900):
    if report:
        print(report, flush=True)
"""


@pytest.mark.slow
def test_killed_benchmark_leaves_no_process() -> None:
    endless = job(models=USER_MODEL, min_seconds=600, time_limit=900).model_copy(update={"model": USER_MODEL})
    command = [sys.executable, "-c", STARTER, endless.model_dump_json()]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as benchmark:
        try:
            assert benchmark.stdout is not None
            assert any("timing" in line for line in benchmark.stdout), "it ended before its timing"
            children = psutil.Process(benchmark.pid).children()
            assert children
        finally:
            benchmark.kill()  # after a failure too, because it would go on for ten minutes
        _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []


COMPILE = """
import json, sys
import torch
from torch._dynamo.utils import counters
from engine.replicates import compiling

found = {}
for label in sys.argv[1:]:
    torch.compiler.reset()
    compiling.own_caches(label, "cpu")
    counters.clear()
    torch.compile(lambda values: (values.sin() * 3).cos())(torch.ones(8))
    found[label] = {name: counters["inductor"][f"fxgraph_cache_{name}"] for name in ("miss", "hit")}
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.soak
def test_variants_have_separate_compile_caches_that_later_runs_reuse(tmp_path: Path) -> None:
    env = os.environ | {name: str(tmp_path / folder) for name, folder in CACHES.items()}

    def compiled(*labels: str) -> dict[str, dict[str, int]]:
        command = [sys.executable, "-c", COMPILE, *labels]
        done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True)
        found: dict[str, dict[str, int]] = json.loads(done.stdout.splitlines()[-1])
        return found

    fresh, cached = {"miss": 1, "hit": 0}, {"miss": 0, "hit": 1}
    assert compiled("compile", "compile+channels_last") == {"compile": fresh, "compile+channels_last": fresh}
    assert compiled("compile+channels_last") == {"compile+channels_last": cached}
