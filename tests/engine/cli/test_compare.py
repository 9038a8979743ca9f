"""The command `runs compare`: ratios with verdicts of timings, values of other runs."""

from pathlib import Path

import pandas as pd
import pytest

from engine.__main__ import main
from engine.settings import Settings
from engine.specs import BenchmarkSpec
from engine.store import Filter, State, Store
from engine.store.files import RunFiles
from engine.words import numbered_runs
from tests.support.clip import queue_evaluate, queue_train, record, train_row
from tests.support.page import benchmark_row, finish, profile_row, queue, queue_benchmark, store_machine, write_samples

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_scheduler")]


def compare(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> tuple[str, str]:
    """Run the command in this process, and return its output to stdout and to stderr."""
    assert main(["runs", "compare", *map(str, arguments)]) == code
    printed = capsys.readouterr()
    return printed.out, printed.err


def timed(store: Store, settings: Settings, ms: float, **fields: object) -> int:
    """Store a benchmark of resnet18, eager and compiled (twice as fast), in three processes; return its run id."""
    run_id = queue_benchmark(store, "timm:resnet18", batch_size=8, variants=("eager", "compile"), **fields)
    finish_timing(store, settings, run_id, ms)
    return run_id


def finish_timing(store: Store, settings: Settings, run_id: int, ms: float) -> None:
    """Finish a queued benchmark as `timed` does."""
    times = {"eager": ms, "compile": ms / 2}
    rows = [benchmark_row("resnet18", name, latency_ms=times[name]) for name in times]
    samples = {name: [[time, time, time + 0.001] * 20] * 3 for name, time in times.items()}
    write_samples(RunFiles(settings.runs_dir, run_id).dir, rows[0], **samples)
    finish(store, run_id, rows)


def test_variants_of_one_run_have_a_verdict_and_runs_need_three_turns(
    store: Store, settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = timed(store, settings, 20.0, threads=2), timed(store, settings, 10.0, threads=1)
    out = tmp_path / "compared.csv"
    _, notes = compare(capsys, first, "--output", out)
    assert f"compared with run {first}: timm:resnet18 · inference · eager · batch 8" in notes
    (line,) = pd.read_csv(out).to_dict("records")
    assert (line["variant"], line["verdict"], line["metric"]) == ("compile", "faster", "Time per call")
    assert line["speedup"] == pytest.approx(2) == pytest.approx(line["baseline_ms"] / line["ms"])
    table, notes = compare(capsys, second, first)
    assert table.count("needs 3 runs") == 2, "eager with eager, compile with compile"
    assert table.count(" 0.500 ") == 2, "the second run is the baseline, because it is given first"
    assert f"Threads: 1 (run {second}), 2 (run {first})." in notes
    assert "--repeat queues the requests again, in turns" in notes
    _, error = compare(capsys, first, second, "--repeat", code=2)
    assert "the runs are of another host" in error
    store_machine(store)
    _, notes = compare(capsys, first, second, "--repeat")
    queued = store.find(Filter(states=(State.QUEUED,), order="oldest"), limit=10)
    assert f"queued as {numbered_runs([run.id for run in queued])}" in notes
    assert [run.spec.threads for run in queued if isinstance(run.spec, BenchmarkSpec)] == [2, 1, 2, 1]
    _, notes = compare(capsys, first, second, "--repeat")
    assert "the missing runs are queued or running already" in notes
    store.request_cancel(queued[-1].id)
    _, notes = compare(capsys, first, second, "--repeat")
    replaced = store.find(Filter(states=(State.QUEUED,), order="oldest"), limit=10)
    assert [run.id for run in replaced[:3]] == [run.id for run in queued[:3]]
    assert [run.spec for run in replaced[3:]] == [run.spec for run in queued[2:]], "one turn of both is missing"
    store.request_cancel(replaced[2].id)
    queued = [*replaced[:2], *replaced[3:]]
    for run, ms in zip(queued, (20.0, 10.0, 20.0, 10.0), strict=True):
        finish_timing(store, settings, run.id, ms)
    table, notes = compare(capsys, first, second)
    assert table.count("faster") == table.count("of 3 and 3 turns") == 2
    assert "--repeat" not in notes
    _, error = compare(capsys, first, second, "--repeat", code=2)
    assert "no verdict asks for more runs" in error


def test_rows_that_differ_in_their_size_are_told_apart_on_a_terminal(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = queue_benchmark(store, "timm:resnet18")
    finish(store, run_id, [benchmark_row("resnet18", batch_size=size) for size in (1, 4, 16)])
    table, _ = compare(capsys, run_id)
    names, *lines = table.splitlines()
    place = names.split().index("batch_size")
    assert [line.split()[place] for line in lines] == ["4", "16"]
    assert "image_size" not in names, "the same in both"


def test_values_of_counts_have_ratios_and_of_best_epochs_differences(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = [queue(store, "resnet18", batch_size=size) for size in (1, 2)]
    for run_id, gmacs in zip(counts, (2.0, 3.0), strict=True):
        finish(store, run_id, [profile_row("resnet18", gmacs=gmacs)])
    table, _ = compare(capsys, *counts)
    assert ["gmacs", "2.00", "3.00", "1.50"] in [line.split() for line in table.splitlines()]
    trainings = [queue_train(store, epochs=2, seed=seed) for seed in (0, 1, 1)]
    for run_id, losses in zip(trainings, ((2.0, 3.0), (1.5, 1.0)), strict=False):
        best = losses.index(min(losses))
        record(
            store,
            run_id,
            [train_row(1 + epoch, clip_val_loss=loss, best=epoch == best) for epoch, loss in enumerate(losses)],
        )
    table, notes = compare(capsys, *trainings)
    assert ["clip_val_loss", "2.00", "1.00", "-1.00"] in [line.split() for line in table.splitlines()]
    assert f"Seed: 0 (run {trainings[0]}), 1 (runs {trainings[1]}, {trainings[2]})" in notes
    assert f"run {trainings[2]} is queued: only its results so far are compared" in notes
    assert f"without results: run {trainings[2]}" in notes


def test_requests_that_cannot_be_compared_are_refused_with_the_remedy(
    store: Store, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    timing, other_models = timed(store, settings, 20.0), queue_benchmark(store, "timm:resnet*")
    finish(store, other_models, [benchmark_row("resnet50"), benchmark_row("resnet101")])
    finish(store, single := queue_benchmark(store, "timm:resnet18"), [benchmark_row("resnet18")])
    counted, evaluated = queue(store, "resnet18"), queue_evaluate(store)
    for arguments, message in (
        ((counted, evaluated), f"of different kinds: profile (run {counted}), evaluate (run {evaluated})"),
        ((counted,), "give a second profile"),
        ((evaluated, evaluated), "give a second evaluate"),
        ((counted, queue(store, "resnet50")), "no values to compare yet"),
        ((counted, queue(store, "resnet50"), "--metric", "ms"), "--metric and --repeat are for timings"),
        ((queue_benchmark(store, "timm:resnet18"),), "there are no timings to compare yet"),
        ((timing, "--metric", "backward_ms"), "'backward_ms' is not one of ms, per_sample"),
        ((single,), "there is only one timing: give a second run"),
        ((timing, queue_benchmark(store, "timm:resnet18")), "only one of the runs has results"),
        ((timing, other_models), "no two rows have the same model and settings"),
        ((timing, 999), "there is no run 999"),
    ):
        table, error = compare(capsys, *arguments, code=2)
        assert message in error
        assert not table
