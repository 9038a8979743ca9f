"""Comparison of runs: which rows are matched, ratios against hand computation, and differences in settings."""

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import permutations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from engine.report import frames
from engine.report.compare import rows as compare_rows
from engine.report.compare import settings, timings
from engine.report.compare import values as compare_values
from engine.report.compare.timed import Timed, by_setting, runs_of_models, timed_rows
from engine.report.figures import compare
from engine.report.quantities import title
from engine.report.timings import stored
from engine.results import BenchmarkRow, DeviceRow, Environment, Row
from engine.settings import Settings
from engine.specs import BenchmarkSpec, ProfileSpec, Spec
from engine.specs.evaluate import EvaluateSpec
from engine.specs.train import TrainSpec
from engine.store import Run, State, Store
from engine.store.bundles.bundle import export_bundle, import_bundle
from tests.support.clip import evaluate_row, record, train_row
from tests.support.page import (
    ENVIRONMENT,
    benchmark_row,
    finish,
    profile_row,
    queue_benchmark,
    recurrent_row,
    store_machine,
    write_recurrent_samples,
    write_samples,
)
from tests.support.ratios import by_hand

GENERATOR = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def fresh_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the same samples in every test, independent of the tests that ran before."""
    monkeypatch.setitem(globals(), "GENERATOR", np.random.default_rng(5))


def normal_samples(median_ms: float, processes: int = 3, samples: int = 40, noise: float = 0.01) -> list[list[float]]:
    """Return samples in ms per process, normal around `median_ms` with a relative standard deviation of `noise`."""
    return [[float(x) for x in median_ms * GENERATOR.normal(1, noise, samples)] for _ in range(processes)]


def write_row(folder: Path, run: int, row: BenchmarkRow, samples: list[list[float]]) -> Timed:
    """Write `samples` of `row` to the folder of `run`, and return the row with their median as its latency."""
    row = row.model_copy(update={"latency_ms": float(np.median(np.concatenate(samples)))})
    write_samples(folder / str(run), row, **{row.variant: samples})
    return Timed(run, folder / str(run), row)


def only_row(frame: pd.DataFrame) -> dict[str, object]:
    assert len(frame) == 1
    return frame.iloc[0].to_dict()


def test_two_runs_have_a_ratio_with_an_interval_and_no_verdict(tmp_path: Path) -> None:
    """A verdict from two runs would be wrong too often.

    Equal runs differ by 3 % by chance, so processes that agree would call one of them faster in a third of the cases.
    """
    base_samples, other_samples = normal_samples(10.0, noise=0.004), normal_samples(8.0, noise=0.004)
    row = benchmark_row("resnet18")
    pair = (write_row(tmp_path, 1, row, base_samples), write_row(tmp_path, 2, row, other_samples))
    line = only_row(timings.ratios([pair], "ms", seed=1337))
    value, low, high = by_hand(base_samples, other_samples)
    assert line["speedup"] == pytest.approx(value, rel=1e-12)
    assert line["speedup_low"] < 1.25 < line["speedup_high"]
    assert (line["verdict"], line["run"], line["differs_in"]) == ("needs 3 runs", 2, "")
    assert line["note"] == "the interval does not include changes of the machine", "files have no caption"
    assert (line["speedup_low"], line["speedup_high"]) == pytest.approx((low, high), rel=1e-3)
    inverse = only_row(timings.ratios([pair[::-1]], "ms", seed=1337))
    assert inverse["speedup"] == pytest.approx(1 / value)


def test_interval_of_two_runs_omits_the_prior_only_if_both_are_publishable(tmp_path: Path) -> None:
    samples = [[ms * factor for ms in normal_samples(10.0, 1)[0]] for factor in (0.98, 1.0, 1.02)]
    others = normal_samples(8.0)
    base, other = (
        replace(write_row(tmp_path, run, benchmark_row("resnet18"), times), publishable=True)
        for run, times in ((1, samples), (2, others))
    )
    pairs = [(base, other), (replace(base, publishable=False), other)]
    (_, both), (_, mixed) = timings.ratios(pairs, "ms", seed=1).iterrows()
    logs = np.log(np.median(samples, axis=1) / np.median(others, axis=1))
    interval = np.exp(stats.t.interval(0.99, 2, logs.mean(), stats.sem(logs)))
    assert [both["speedup_low"], both["speedup_high"]] == pytest.approx(list(interval))
    assert [mixed["speedup_low"], mixed["speedup_high"]] == pytest.approx(by_hand(samples, others)[1:], rel=1e-2)


@pytest.mark.parametrize(("times", "verdict"), [(1.25, "faster"), (0.8, "slower"), (1.0, "no difference")])
def test_rows_of_one_run_have_a_verdict(tmp_path: Path, times: float, verdict: str) -> None:
    eager, compiled = benchmark_row("resnet18"), benchmark_row("resnet18", "compile")
    streams = {"eager": normal_samples(10.0, 5, noise=0.004), "compile": normal_samples(10.0 / times, 5, noise=0.004)}
    write_samples(tmp_path, eager, **streams)
    pair = tuple(Timed(1, tmp_path, row, publishable=True) for row in (eager, compiled))
    line = only_row(timings.ratios([pair], "ms", seed=1337))  # type: ignore[list-item]
    assert (line["verdict"], line["note"]) == (verdict, "")


def test_rows_of_two_attempts_are_compared_like_two_runs(tmp_path: Path) -> None:
    rows = benchmark_row("a"), benchmark_row("a", "compile")
    write_samples(tmp_path / "1", rows[0], eager=normal_samples(20.0, 5), compile=normal_samples(10.0, 5))
    slow, fast = (Timed(1, tmp_path / "1", row) for row in rows)
    assert only_row(timings.ratios([(slow, fast)], "ms", seed=1))["verdict"] == "faster"
    earlier = replace(slow, row=slow.row.model_copy(update={"date": "2026-01-01T00:00:00+00:00"}))
    assert only_row(timings.ratios([(earlier, fast)], "ms", seed=1))["verdict"] == "needs 3 runs"


def test_models_of_one_run_get_a_verdict_after_three_runs(store: Store, tmp_path: Path) -> None:
    """They are timed one after the other, so a change of the machine in between could be the verdict of one run."""
    rows = [benchmark_row("a", latency_ms=20.0), benchmark_row("b", latency_ms=10.0)]
    found = []
    for _ in range(3):
        run_id = queue_benchmark(store, "timm:a", "timm:b")
        finish(store, run_id, list(rows))
        slow, fast = timed_rows(store, store.run(run_id), tmp_path)
        line = only_row(timings.ratios([(slow, fast)], "ms", seed=1))
        assert line["speedup"] == pytest.approx(2)
        found.append((line["verdict"], timings.turns(slow, fast, "ms")))
    assert found == [("needs 3 runs", 1), ("needs 3 runs", 2), ("faster", 3)]


def in_order(folder: Path, order: str, **latencies_ms: Sequence[float]) -> tuple[Timed, ...]:
    """Return the first row of each request, with the rows of all its runs as repeats.

    order: letters of the requests, in the order in which their runs were timed. latencies_ms: of each request's runs.
    """
    starts = {number: datetime(2026, 1, 1, number, tzinfo=UTC) for number in range(1, len(order) + 1)}
    repeats = {
        letter: {
            number: (starts[number], benchmark_row("resnet18", latency_ms=ms))
            for number, ms in zip([n for n in starts if order[n - 1] == letter], found, strict=True)
        }
        for letter, found in latencies_ms.items()
    }
    return tuple(
        Timed(next(iter(runs)), folder, next(iter(runs.values()))[1], repeats=runs) for runs in repeats.values()
    )


def test_requests_that_took_turns_are_compared_by_the_means_of_their_runs(tmp_path: Path) -> None:
    base, other = in_order(tmp_path, "abbaab", a=(10.0, 10.1, 9.9), b=(8.0, 8.1, 7.9))
    assert timings.turns(base, other, "ms") == 2
    base, other = in_order(tmp_path, "abbabab", a=(10.0, 10.1, 9.9), b=(8.0, 8.1, 7.9, 8.0))
    assert timings.turns(base, other, "ms") == 3
    assert timings.turns(base, other, "optimizer_ms") == 0, "no run has this time"
    base, other = in_order(tmp_path, "ababab", a=(10.0, 10.1, 9.9), b=(8.0, 8.1, 7.9))
    line = only_row(timings.ratios([(base, other)], "ms", seed=1))
    log_times = np.log([10.0, 10.1, 9.9]), np.log([8.0, 8.1, 7.9])
    interval = np.exp(stats.ttest_ind(*log_times).confidence_interval(0.99))
    assert line["speedup"] == pytest.approx(np.exp(log_times[0].mean() - log_times[1].mean()))
    assert [line["speedup_low"], line["speedup_high"]] == pytest.approx(list(interval))
    assert (line["verdict"], line["note"]) == ("faster", "of 3 and 3 turns")


def test_runs_in_a_row_count_as_one_turn(tmp_path: Path) -> None:
    """They share the state of the machine: as independent runs, these would make a verdict of equal requests."""
    slow, fast = [10.0 * 1.001**n for n in range(8)], [9.4 * 1.001**n for n in range(8)]
    order = "a" * 8 + "b" * 8 + "abab"
    line = only_row(
        timings.ratios([in_order(tmp_path, order, a=(*slow, 9.4, 10.0), b=(*fast, 10.0, 9.4))], "ms", seed=1)
    )  # type: ignore[list-item]
    of_turns = [[np.log(first).mean(), *np.log(rest)] for first, rest in ((slow, (9.4, 10.0)), (fast, (10.0, 9.4)))]
    interval = np.exp(stats.ttest_ind(*of_turns).confidence_interval(0.99))
    assert [line["speedup_low"], line["speedup_high"]] == pytest.approx(list(interval))
    assert (line["verdict"], line["note"]) == ("undecided", "of 3 and 3 turns")


@pytest.mark.parametrize("order", ["aaabbb", "bbbaaa", "aabbab", "aaaaabab"])
def test_runs_that_did_not_take_turns_have_no_verdict(tmp_path: Path, order: str) -> None:
    """Otherwise a machine that became slower in between would make the later request the slower one."""
    latencies = {letter: [ms] * order.count(letter) for letter, ms in (("a", 10.0), ("b", 8.0))}
    line = only_row(timings.ratios([in_order(tmp_path, order, **latencies)], "ms", seed=1))  # type: ignore[list-item]
    assert line["verdict"] == "needs 3 runs"


def test_variants_of_one_run_are_compared_by_its_processes_even_if_it_was_repeated(tmp_path: Path) -> None:
    pair = []
    for variant, ms in (("eager", 10.0), ("compile", 8.0)):
        row = benchmark_row("resnet18", variant, latency_ms=ms)
        repeats = {number: (datetime(2026, 1, 1, number, tzinfo=UTC), row) for number in (1, 2, 3)}
        pair.append(Timed(1, tmp_path, row, repeats=repeats))
    line = only_row(timings.ratios([(pair[0], pair[1])], "ms", seed=1))
    assert line["speedup"] == 10 / 8
    assert "runs" not in line["note"]
    assert line["verdict"] == "undecided", "without samples there is no interval"


def test_repeats_are_runs_of_the_same_request_on_the_same_host(store: Store, tmp_path: Path) -> None:
    def finished_run(ms: float, versions: dict[str, str] | None = None, **fields: object) -> int:
        run_id = queue_benchmark(store, "timm:resnet18", **fields)
        environment = ENVIRONMENT if versions is None else ENVIRONMENT.model_copy(update={"versions": versions})
        finish(store, run_id, [benchmark_row("resnet18", latency_ms=ms)], environment)
        return run_id

    first = finished_run(10.0)
    finished_run(11.0)
    finished_run(12.0, threads=1)
    finished_run(13.0, versions={"torch": "of another time"})
    (timed,) = timed_rows(store, store.run(first), tmp_path)
    assert timed.row.latency_ms == 10.0
    assert {number: row.latency_ms for number, (_, row) in timed.repeats.items()} == {first: 10.0, first + 1: 11.0}
    assert [start for start, _ in timed.repeats.values()] == [store.run(first + n).started_at for n in (0, 1)]


def test_imported_copy_of_a_run_is_no_repeat(settings: Settings, store: Store, tmp_path: Path) -> None:
    """Otherwise three numbers of one measurement would make a verdict."""
    first, second = (queue_benchmark(store, "timm:resnet18") for _ in range(2))
    for run_id in (first, second):
        finish(store, run_id, [benchmark_row("resnet18", latency_ms=10.0)])
    copies = []
    for run_id in (first, second):
        (tmp_path / "run.zip").write_bytes(export_bundle(store, settings, run_id))
        copies.append(import_bundle(store, settings, tmp_path / "run.zip"))
    repeats = [timed_rows(store, store.run(run_id), tmp_path)[0].repeats for run_id in (first, *copies)]
    assert [len(numbers) for numbers in repeats] == [2, 2, 2], "itself, and the other run under one of its numbers"


def test_run_under_other_conditions_is_no_repeat(store: Store, tmp_path: Path) -> None:
    """A request without a number of threads has as many as the affinity allows, which `taskset` changes."""
    conditions = [{"threads": 8}, {"threads": 8}, {"threads": 1}, {"threads": 8, "device_name": "another processor"}]
    ids = []
    for values in conditions:
        ids.append(queue_benchmark(store, "timm:resnet18"))
        finish(store, ids[-1], [benchmark_row("resnet18", latency_ms=10.0, **values)])
    repeats = [timed_rows(store, store.run(run_id), tmp_path)[0].repeats for run_id in ids]
    assert [list(numbers) for numbers in repeats] == [ids[:2], ids[1::-1], ids[2:3], ids[3:]]
    finish(
        store,
        tuned := queue_benchmark(store, "timm:resnet18"),
        [benchmark_row("resnet18", latency_ms=10.0, threads=8)],
        ENVIRONMENT.model_copy(update={"variables": "OMP_WAIT_POLICY=passive"}),
    )
    default, passive = (timed_rows(store, store.run(run_id), tmp_path)[0] for run_id in (ids[0], tuned))
    assert list(passive.repeats) == [tuned]
    assert only_row(timings.ratios([(default, passive)], "ms", seed=1))["verdict"] == "needs 3 runs"
    (unknown,) = timed_rows(store, replace(store.run(ids[0]), environment=None), tmp_path)
    assert list(unknown.repeats) == ids[:1]


def test_runs_of_the_same_request_are_compared_without_repeats(store: Store, tmp_path: Path) -> None:
    """Each is a repeat of the other, so means over all repeats would be the same for both, whatever the times."""
    runs = {}
    for ms in (10.0, 10.1, 12.0, 12.1):
        run_id = queue_benchmark(store, "timm:resnet18")
        finish(store, run_id, [benchmark_row("resnet18", latency_ms=ms)])
        runs[run_id] = timed_rows(store, store.run(run_id), tmp_path)
    runs |= {number: timed_rows(store, store.run(number), tmp_path) for number in runs}
    lines = timings.ratios(timings.matching_pairs(runs, min(runs)), "ms", seed=1)
    assert list(lines["speedup"]) == pytest.approx([10 / 10.1, 10 / 12, 10 / 12.1])
    assert set(lines["verdict"]) == {"same request"}


def test_copy_or_unfinished_run_of_a_request_is_the_same_request(
    settings: Settings, store: Store, tmp_path: Path
) -> None:
    """Otherwise the turns of the same runs count on both sides of the ratio."""
    ids = []
    for state in (State.FINISHED, State.FINISHED, State.FINISHED, State.CANCELLED):
        ids.append(queue_benchmark(store, "timm:resnet18"))
        finish(store, ids[-1], [benchmark_row("resnet18", latency_ms=10.0)], state=state)
    (tmp_path / "run.zip").write_bytes(export_bundle(store, settings, ids[0]))
    ids.append(import_bundle(store, settings, tmp_path / "run.zip"))
    rows = [timed_rows(store, store.run(run_id), tmp_path)[0] for run_id in ids]
    lines = timings.ratios(list(permutations(rows, 2)), "ms", seed=1)
    assert set(lines["verdict"]) == {"same request"}


def test_running_run_whose_rows_are_a_turn_is_repeated_twice(store: Store, tmp_path: Path) -> None:
    store_machine(store)
    running = queue_benchmark(store, "timm:resnet18", "timm:resnet34")
    record(store, running, [benchmark_row("resnet18"), benchmark_row("resnet34")], state=None)
    pair = tuple(timed_rows(store, store.run(running), tmp_path))
    for queued, times in enumerate((2, 1, 0, 0)):
        runs, missing = timings.to_repeat(store, [pair], "ms")
        assert ([run.id for run in runs], missing) == ([running], times), f"{queued} more are queued"
        queue_benchmark(store, "timm:resnet18", "timm:resnet34")


def test_rows_keep_the_node_that_timed_them(store: Store, tmp_path: Path) -> None:
    ids = []
    for host in ("node 1", "node 2", "node 1"):
        ids.append(queue_benchmark(store, "timm:resnet18"))
        finish(store, ids[-1], [benchmark_row("resnet18", latency_ms=10.0, host=host)])
    first, second, third = (timed_rows(store, store.run(run_id), tmp_path)[0] for run_id in ids)
    assert [len(row.repeats) for row in (first, second, third)] == [2, 1, 2], "a run on another node is not a repeat"
    lines = timings.ratios([(first, second), (first, third)], "ms", seed=1)
    assert list(lines["verdict"]) == ["not comparable", "same request"]
    assert list(lines["differs_in"]) == ["host", ""]
    run = store.run(ids[1])
    table = frames.with_environment(frames.benchmark([second.row, benchmark_row("resnet18")]), run)
    assert list(table["host"]) == ["node 2", ENVIRONMENT.host]
    (line,) = stored.of_run(run, [second.row])
    setting = stored.settings(stored.table([line]))[0]
    assert setting.label.endswith("(nodes of a cluster)")
    assert ", on node 2" in stored.within(stored.table([line]), setting)["measured"].item()


@pytest.mark.parametrize(
    ("other", "verdict", "differs"),
    [("another", "not comparable", "host"), (ENVIRONMENT.host, "same request", ""), ("", "needs 3 runs", "")],
)
def test_runs_of_two_hosts_are_not_comparable(
    store: Store, tmp_path: Path, other: str, verdict: str, differs: str
) -> None:
    """Such as an imported run: three turns of each would otherwise make a verdict. An empty host is not known."""
    for host in (ENVIRONMENT.host, other):
        run_id = queue_benchmark(store, "timm:resnet18")
        finish(store, run_id, [benchmark_row("resnet18")], ENVIRONMENT.model_copy(update={"host": host}))
    runs = {number: timed_rows(store, store.run(number), tmp_path) for number in (1, 2)}
    line = only_row(timings.ratios(timings.matching_pairs(runs, 1), "ms", seed=1))
    assert (line["verdict"], line["differs_in"], line["speedup"]) == (verdict, differs, 1.0)


@pytest.mark.slow
def test_cuda_and_cuda_0_are_the_same_device(store: Store, tmp_path: Path) -> None:
    runs = {}
    for number, (device, ms) in enumerate({"cuda": 10.0, "cuda:0": 8.0}.items(), start=1):
        stored = benchmark_row("resnet18").model_dump_json().replace('"device":"cpu"', f'"device":"{device}"')
        runs[number] = [
            write_row(tmp_path, number, BenchmarkRow.model_validate_json(stored), normal_samples(ms, noise=0.004))
        ]
        finish(store, queue_benchmark(store, "timm:resnet18", device=device), [runs[number][0].row])
    line = only_row(timings.ratios(timings.matching_pairs(runs, 1), "ms", seed=1337))
    assert (line["run"], line["differs_in"], line["verdict"]) == (2, "", "needs 3 runs")
    assert settings.warnings([store.run(number) for number in runs]) == []


def test_wide_interval_has_the_verdict_undecided(tmp_path: Path) -> None:
    eager, compiled = benchmark_row("resnet18"), benchmark_row("resnet18", "compile")
    write_samples(tmp_path, eager, eager=normal_samples(10, noise=0.3), compile=normal_samples(9.8, noise=0.3))
    line = only_row(timings.ratios([(Timed(1, tmp_path, eager), Timed(1, tmp_path, compiled))], "ms", seed=1))
    assert line["verdict"] == "undecided"


def test_different_settings_have_a_ratio_but_are_not_comparable(tmp_path: Path) -> None:
    row = benchmark_row("resnet18")
    other = benchmark_row("resnet18", precision="bfloat16", threads=4)
    pair = (write_row(tmp_path, 1, row, normal_samples(10)), write_row(tmp_path, 2, other, normal_samples(5)))
    line = only_row(timings.ratios([pair], "ms", seed=1))
    assert (line["verdict"], line["differs_in"]) == ("not comparable", "threads, precision")
    assert line["speedup"] == pytest.approx(2, rel=0.02)
    assert line["speedup_low"] > 1.8


def test_times_per_image_compare_different_batch_sizes(tmp_path: Path) -> None:
    small, large = benchmark_row("resnet18", batch_size=8), benchmark_row("resnet18", batch_size=32)
    pair = (write_row(tmp_path, 1, small, normal_samples(10)), write_row(tmp_path, 2, large, normal_samples(20)))
    per_call = only_row(timings.ratios([pair], "ms", seed=1))
    assert (per_call["verdict"], per_call["differs_in"]) == ("not comparable", "batch size")
    assert (per_call["baseline_ms"], per_call["ms"]) == tuple(timed.row.latency_ms for timed in pair)
    per_image = only_row(timings.ratios([pair], timings.PER_SAMPLE, seed=1))
    assert per_image["verdict"] == "needs 3 runs"
    assert per_image["speedup"] == pytest.approx(per_call["speedup"] * 32 / 8)
    assert per_image["ms"] == pytest.approx(20 / 32, rel=0.01)
    assert (per_call["metric"], per_image["metric"]) == ("Time per call", "Time per image or sequence")


def test_unequal_numbers_of_processes_are_cut_to_the_smaller(tmp_path: Path) -> None:
    row, three, five = benchmark_row("resnet18"), normal_samples(10, 3), normal_samples(9, 5)
    pair = (write_row(tmp_path, 1, row, three), write_row(tmp_path, 2, row, five))
    line = only_row(timings.ratios([pair], "ms", seed=1))
    assert line["note"] == "3 and 5 processes: the first 3 of each are compared"
    assert line["speedup"] == pytest.approx(by_hand(three, five[:3])[0], rel=1e-12)


def test_rows_without_samples_have_a_ratio_but_no_interval(tmp_path: Path) -> None:
    with_samples = write_row(tmp_path, 1, benchmark_row("resnet18"), normal_samples(10))
    without_samples = Timed(2, tmp_path / "2", benchmark_row("resnet18", latency_ms=5.0))
    line = only_row(timings.ratios([(with_samples, without_samples)], "ms", seed=1))
    assert line["speedup"] == pytest.approx(with_samples.row.latency_ms / 5.0)  # type: ignore[operator]
    assert math.isnan(float(line["speedup_low"]))  # type: ignore[arg-type]
    assert (line["verdict"], line["note"]) == ("needs 3 runs", "no interval: run 2 kept no samples of this time")
    few_samples = write_row(tmp_path, 3, benchmark_row("resnet18"), normal_samples(5, 1, 4))
    line = only_row(
        timings.ratios([(write_row(tmp_path, 4, few_samples.row, normal_samples(5, 1, 4)), few_samples)], "ms", seed=1)
    )
    assert (line["verdict"], line["note"]) == ("needs 3 runs", "too few samples: the interval has no upper limit")
    assert line["speedup_low"] == 0.0
    assert line["speedup_high"] is None or math.isnan(float(line["speedup_high"]))  # type: ignore[arg-type]


def test_note_explains_damaged_samples_and_failed_rows(tmp_path: Path) -> None:
    intact, other = (write_row(tmp_path, run, benchmark_row("resnet18"), normal_samples(10)) for run in (1, 2))
    (other.folder / other.row.samples_file).write_text("a,b\n1,2\n")
    line = only_row(timings.ratios([(intact, other)], "ms", seed=1))
    assert "lacks the columns" in str(line["note"])
    (other.folder / other.row.samples_file).unlink()
    (other.folder / other.row.samples_file).mkdir()
    line = only_row(timings.ratios([(intact, other)], "ms", seed=1))
    assert "no interval: " in str(line["note"])
    absent = dict.fromkeys(("latency_ms", "mean_ms", "samples_per_s")) | {"dtype": "", "image_size": ""}
    failed = Timed(3, tmp_path, benchmark_row("resnet18", status="error", error="RuntimeError: no", **absent))
    line = only_row(timings.ratios([(intact, failed)], "ms", seed=1))
    assert line["note"] == "run 3: RuntimeError: no"
    assert line["differs_in"] == "", "a row without a time differs in nothing that anybody chose"
    assert pd.isna(line["speedup"])


def test_recurrent_layers_are_compared_per_pass(tmp_path: Path) -> None:
    slow, fast = normal_samples(20, 3, 20), normal_samples(10, 3, 20)
    rows = {run: recurrent_row("aten", forward_ms=10.0, backward_ms=20.0, latency_ms=30.0) for run in (1, 2)}
    for run, (forward, backward) in {1: (slow, fast), 2: (fast, fast)}.items():
        write_recurrent_samples(tmp_path / str(run), rows[run], aten=(forward, backward))
    pair = tuple(Timed(run, tmp_path / str(run), rows[run]) for run in (1, 2))
    by_pass = {
        name: only_row(timings.ratios([pair], name, seed=1))  # type: ignore[list-item]
        for name in ("forward_ms", "backward_ms", "ms")
    }
    assert by_pass["forward_ms"]["speedup"] == pytest.approx(2, rel=0.02)
    assert by_pass["backward_ms"]["speedup"] == pytest.approx(1)
    assert by_pass["ms"]["speedup"] == pytest.approx(1.5, rel=0.02)
    forward_only = Timed(2, tmp_path / "2", rows[2].model_copy(update={"backward_ms": None}))
    for name in ("ms", timings.PER_SAMPLE):
        assert "no backward pass" in str(only_row(timings.ratios([(pair[0], forward_only)], name, seed=1))["note"])
    larger = Timed(2, tmp_path / "2", rows[2].model_copy(update={"mini_batch": 2 * rows[2].mini_batch}))
    assert not only_row(timings.ratios([(pair[0], larger)], timings.PER_SAMPLE, seed=1))["differs_in"]
    assert timings.metrics(rows.values()) == ["ms", "per_sample", "forward_ms", "backward_ms"]


def timed_by_run(runs: dict[int, list[BenchmarkRow]]) -> dict[int, list[Timed]]:
    return {run: [Timed(run, Path(), row) for row in rows] for run, rows in runs.items()}


def matching_names(runs: dict[int, list[BenchmarkRow]], baseline: int) -> list[tuple[str, str]]:
    return [(base.name, other.name) for base, other in timings.matching_pairs(timed_by_run(runs), baseline)]


def test_rows_match_by_model_and_variant_and_others_are_omitted() -> None:
    runs = {
        1: [benchmark_row("resnet18"), benchmark_row("resnet18", "compile"), benchmark_row("resnet50")],
        2: [benchmark_row("resnet18", "compile"), benchmark_row("resnet18"), benchmark_row("resnet34")],
    }
    pairs = timings.matching_pairs(timed_by_run(runs), 1)
    assert [(a.row.model, a.row.variant, a.run, b.run) for a, b in pairs] == [  # type: ignore[attr-defined]
        ("resnet18", "compile", 1, 2),
        ("resnet18", "eager", 1, 2),
    ]
    assert [(a.run, b.run) for a, b in timings.matching_pairs(timed_by_run(runs), 2)] == [(2, 1), (2, 1)]


@pytest.mark.parametrize(
    ("row", "name", "value"),
    [
        (recurrent_row("aten"), "mini_batch", 3),
        (benchmark_row("resnet18"), "context_length", 5),
        (benchmark_row("resnet18"), "tower", "image"),
        (evaluate_row("zeroshot"), "checkpoint", "b.pt"),
        (evaluate_row("zeroshot"), "data", "b.csv"),
        (DeviceRow(device="cpu", operation="matmul", dtype="float32"), "dtype", "bfloat16"),
    ],
)
def test_rows_of_two_settings_do_not_match(row: Row, name: str, value: object) -> None:
    assert compare_rows.key_of(row) != compare_rows.key_of(row.model_copy(update={name: value}))


def test_runs_that_differ_in_one_setting_are_matched_across_it() -> None:
    assert matching_names({1: [benchmark_row("resnet18")], 2: [benchmark_row("resnet18", "compile")]}, 1) == [
        (
            "run 1: timm:resnet18 · inference · eager · batch 8 · 224 px",
            "run 2: timm:resnet18 · inference · compile · batch 8 · 224 px",
        )
    ]
    rows = [benchmark_row("resnet18"), benchmark_row("resnet18", "compile")]
    assert not matching_names({1: rows, 2: [benchmark_row("resnet18", "trace")]}, 1), "run 1 has several variants"
    runs = {1: rows, 2: [benchmark_row("resnet50"), benchmark_row("resnet50", "compile")]}
    assert len(matching_names(runs, 1)) == 2
    assert compare_rows.axes(runs) == ("model",)
    assert compare_rows.axes({1: [], 2: []}) == ()
    assert compare_rows.axes(runs | {3: []}) == ("model",)
    assert not matching_names({1: [], 2: [benchmark_row("resnet18")]}, 1)


def test_counts_have_a_column_per_run_and_exact_ratios() -> None:
    runs: dict[int, list[Row]] = {
        3: [profile_row("a", gmacs=2.0, macts=0.0), profile_row("b", gmacs=3.0)],
        5: [profile_row("a", gmacs=5.0, macts=4.0), profile_row("b", status="error", error="no", gmacs=None)],
    }
    frame = compare_values.beside(compare_values.of_runs(runs), ["run 3", "run 5"], "run 3")
    assert list(frame["metric"])[:2] == ["mparams", "image_mparams"], "in the order of the fields"
    lines = frame.set_index(["what", "metric"])
    assert lines.loc[("a", "gmacs"), ["run 3", "run 5", "run 5 / run 3"]].tolist() == [2.0, 5.0, 2.5]
    assert math.isnan(lines.loc[("a", "macts"), "run 5 / run 3"]), "no ratio over zero"
    assert math.isnan(lines.loc[("b", "gmacs"), "run 5"])
    assert math.isnan(lines.loc[("b", "mparams"), "run 5"]), "a failed row has no values"
    assert "seconds" not in set(frame["metric"])
    assert "training_peak_mb" not in set(frame["metric"]), "no run has it"
    assert [name for name in frame if name.startswith("run")] == ["run 3", "run 5", "run 5 / run 3"]


def test_runs_of_one_model_each_compare_their_models() -> None:
    runs: dict[int, list[Row]] = {1: [profile_row("a", gmacs=2.0)], 2: [profile_row("b", gmacs=1.0)]}
    frame = compare_values.beside(compare_values.of_runs(runs), ["run 1", "run 2"], "run 2").set_index("metric")
    assert set(frame["what"]) == {""}
    assert frame.loc["gmacs", "run 1 / run 2"] == 2.0


def test_accuracies_are_compared_by_their_difference() -> None:
    runs: dict[int, list[Row]] = {
        1: [
            evaluate_row("retrieval", recalls={"text_to_image_r20": 0.5}),
            evaluate_row("zeroshot", acc1=0.9, mean_average_precision=0.43),
        ],
        2: [
            evaluate_row("retrieval", recalls={"text_to_image_r20": 0.75}),
            evaluate_row("zeroshot", acc1=0.75, mean_average_precision=0.45),
        ],
    }
    frame = compare_values.beside(compare_values.of_runs(runs), ["run 1", "run 2"], "run 1", "difference")
    lines = frame.set_index(["what", "metric"])
    assert lines.loc[("zeroshot", "acc1_percent"), "run 2 − run 1"] == pytest.approx(-15)
    assert lines.loc[("zeroshot", "mean_average_precision_percent"), "run 2 − run 1"] == pytest.approx(2)
    assert lines.loc[("retrieval", "image_to_text_r1_percent"), "run 2 − run 1"] == 0
    assert lines.loc[("retrieval", "text_to_image_r20_percent"), "run 2 − run 1"] == 25, "recall at a requested rank"
    assert title("text_to_image_r20") == "Text → image R@20"
    best = compare_values.of_runs({1: [train_row(2)], 2: [train_row(1)]})
    assert best[best["metric"] == "epoch"]["value"].tolist() == [2, 1]
    assert best[best["metric"] == "zeroshot_top1_percent"]["value"].tolist() == pytest.approx([93.4, 50])
    assert best[best["metric"] == "data_share_percent"]["value"].tolist() == pytest.approx([5, 5])


def test_bars_are_labelled_with_values_and_ratios() -> None:
    values = compare_values.of_runs({1: [profile_row("a", gmacs=2.0)], 2: [profile_row("b", gmacs=1.0)]})
    frame = compare_values.beside(values, ["run 1", "run 2"], "run 1")
    figure = compare.bars(frame[frame["metric"] == "gmacs"], ["run 1", "run 2"], "run 1", "MACs (G)")
    assert [(bar.name, list(bar.x), list(bar.y)) for bar in figure.data] == [
        ("run 1", [2.0], ["run 1"]),
        ("run 2", [1.0], ["run 2"]),
    ]
    assert [note.text for note in figure.layout.annotations] == ["2", "1  <i>0.50×</i>"]
    several = pd.concat([frame.assign(what="<b>x</b>"), frame.assign(what="y")])
    figure = compare.bars(several[several["metric"] == "gmacs"], ["run 1", "run 2"], "run 1", "MACs (G)")
    assert list(figure.data[0].y) == ["&lt;b&gt;x&lt;/b&gt; · run 1", "y · run 1"]


def test_values_of_only_one_run_are_bars_without_a_ratio() -> None:
    values = compare_values.of_runs({1: [profile_row("a"), profile_row("b")], 2: [profile_row("b"), profile_row("c")]})
    frame = compare_values.beside(values, ["run 1", "run 2"], "run 1")
    figure = compare.bars(frame[frame["metric"] == "gmacs"], ["run 1", "run 2"], "run 1", "MACs (G)")
    assert len(figure.layout.yaxis.categoryarray) == 4, "a and b of run 1, b and c of run 2"
    assert ["×" in note.text for note in figure.layout.annotations] == [False, False, True, False]


def test_models_have_the_costs_of_their_first_catalogue_row() -> None:
    catalogue = pd.DataFrame(
        {"name": ["t:a", "t:b", "t:a"], "gmacs": [2.0, 4.0, 9.0], "mparams": [1.0, None, 1.0], "status": "ok"}
    ).assign(weights_mb=math.nan)
    values = compare_values.of_catalogue(
        catalogue, ["t:b", "t:a", "t:gone"], ("gmacs", "mparams", "macts", "weights_mb")
    )
    frame = compare_values.beside(values, ["t:b", "t:a"], "t:b").set_index("metric")
    assert frame.loc["gmacs", ["t:b", "t:a", "t:a / t:b"]].tolist() == [4.0, 2.0, 0.5]
    assert math.isnan(frame.loc["mparams", "t:b"])
    assert "weights_mb" not in frame.index, "no model has a value"


def run(number: int, spec: Spec, **environment: object) -> Run:
    """Return a finished run. environment: fields to change; `none=True` leaves the environment out."""
    from datetime import UTC, datetime

    changed = ENVIRONMENT.model_copy(update=environment)
    recorded: Environment | None = None if environment.get("none") else changed
    now = datetime.now(UTC)
    texts = {"name": "", "cause": None, "error": "", "note": "", "created_at": now, "started_at": now, "ended_at": now}
    counts = {"cancel_requested": False, "attempt": 1, "done": 1, "total": 1, "revision": 1}
    return Run(id=number, kind=spec.kind, spec=spec, state=State.FINISHED, environment=recorded, **texts, **counts)  # type: ignore[arg-type]


def test_unset_settings_are_compared_by_the_values_used() -> None:
    scratch, tuned = TrainSpec(), TrainSpec(pretrained="some/weights.pt")
    first, second = (
        run(1, scratch),
        run(2, tuned, settings={"batch_size": 64, "lr": 2e-5, "precision": "amp", "SHA-256 of pretrained": "ab"}),
    )
    frame = settings.table([first, second])
    differences = {
        what: (before, after) for what, before, after in frame[~frame["same"]][["what", "run 1", "run 2"]].to_numpy()
    }
    assert differences == {
        "pretrained": ("not set", "some/weights.pt"),
        "lr": ("0.001", "2e-05"),
        "precision": ("auto", "amp"),
        "batch size": ("not set", "64"),
        "SHA-256 of pretrained": ("not recorded", "ab"),
    }
    same_settings = settings.table([first, run(3, TrainSpec(lr=1e-3, epochs=15))])
    assert same_settings["same"].all()
    seeds = settings.table([first, run(4, TrainSpec(seed=4), seed=4)])
    assert list(seeds[~seeds["same"]]["what"]) == ["seed"], "listed once"


def test_table_of_settings_marks_only_differences() -> None:
    first = run(1, BenchmarkSpec(models=("a", "b"), variants=("eager", "compile")))
    second = run(2, BenchmarkSpec(models=("a",), variants=("eager", "compile")), host="there")
    frame = settings.table([first, second])
    differing = frame[~frame["same"]]
    assert differing[["where", "what", "run 1", "run 2"]].to_numpy().tolist() == [
        ["setting", "models", "a, b", "a"],
        ["run", "host", "here", "there"],
    ]
    assert list(frame["what"]).count("threads") == 1
    assert settings.facts(run(3, BenchmarkSpec(models=("a",), threads=3), none=True))["setting", "threads"] == "3"
    common = frame[frame["same"]].set_index("what")["run 1"]
    assert common["variants"] == "eager, compile"
    assert (common["version of torch"], common["image size"], common["deterministic"]) == ("2.15.0", "not set", "no")
    frame = settings.table([run(number, EvaluateSpec(), threads=number) for number in (1, 2)])
    differing = frame[~frame["same"]]
    assert differing[["where", "what", "run 1", "run 2"]].to_numpy().tolist() == [["run", "threads", "1", "2"]]


def test_warnings_name_relevant_settings_but_not_compared_ones() -> None:
    spec = BenchmarkSpec(models=("a",))
    compared = {"models": ("b",), "variants": ("compile",), "batch_size": 4, "image_size": (192, 192), "seed": 1}
    assert settings.warnings([run(1, spec), run(2, spec.model_copy(update=compared), date="later")]) == []
    assert settings.warnings([run(1, spec), run(2, spec.model_copy(update={"threads": 2}))]) == [], (
        "both runs used 2 threads"
    )
    trainings = [run(1, TrainSpec(), settings={"threads": 3}), run(2, TrainSpec(threads=4), settings={"threads": 4})]
    assert settings.warnings(trainings) == ["Threads: 3 (run 1), 4 (run 2)."]
    versions = {"versions": {"torch": "2.16.0"}}
    messages = settings.warnings(
        [run(1, spec), run(2, spec.model_copy(update={"cache": "cold"}), threads=4, **versions), run(3, spec)]
    )
    assert messages == [
        "Threads: 2 (runs 1, 3), 4 (run 2).",
        "Cache: hot (runs 1, 3), cold (run 2).",
        "Version of torch: 2.15.0 (runs 1, 3), 2.16.0 (run 2).",
    ]
    assert settings.warnings([run(1, spec), run(2, spec, none=True)]) == ["The environment of run 2 is not recorded."]


def test_torch_build_and_gpu_settings_matter_for_times_not_for_counts() -> None:
    def with_build(number: int, spec: Spec) -> Run:
        versions = {"torch": f"2.15.0+cu13{number}", "cudnn": f"9.{number}.0"}
        gpu, variables = {"power limit": f"{number}00 W", "ECC": "on"}, "OMP_WAIT_POLICY=passive" if number == 2 else ""
        return run(number, spec, versions=versions, gpu=gpu, variables=variables)

    warnings = settings.warnings([with_build(number, BenchmarkSpec(models=("a",))) for number in (1, 2)])
    assert warnings == [
        "Variables: not set (run 1), OMP_WAIT_POLICY=passive (run 2).",
        "Version of torch: 2.15.0+cu131 (run 1), 2.15.0+cu132 (run 2).",
        "Version of cudnn: 9.1.0 (run 1), 9.2.0 (run 2).",
        "GPU power limit: 100 W (run 1), 200 W (run 2).",
    ]
    assert settings.warnings([with_build(number, ProfileSpec(models=("a",))) for number in (1, 2)]) == []


def test_host_does_not_matter_for_counts_but_batch_does_for_losses() -> None:
    counts = [run(number, ProfileSpec(models=("a",)), host=str(number), threads=number) for number in (1, 2)]
    assert settings.warnings(counts) == []
    trainings = [run(1, TrainSpec(batch_size=32, lr=1e-3)), run(2, TrainSpec(batch_size=64, lr=1e-4))]
    (message,) = settings.warnings(trainings)
    assert message == "Batch size: 32 (run 1), 64 (run 2); a contrastive loss depends on the number of pairs in a step."
    seeds = [run(number, TrainSpec(seed=number)) for number in (1, 2)]
    assert settings.warnings(seeds) == ["Seed: 1 (run 1), 2 (run 2); the seed decides which pairs are held out."]
    assert settings.warnings([run(number, TrainSpec(seed=number, val_data="synthetic")) for number in (1, 2)]) == []
    columns = [run(1, TrainSpec(csv_caption_key="title")), run(2, TrainSpec(csv_caption_key="alt"))]
    (message,) = settings.warnings(columns)
    assert message == "Csv caption key: title (run 1), alt (run 2); values come from different pairs."
    tuned = run(2, TrainSpec(batch_size=32, pretrained="/runs/1/checkpoints/best.pt"))
    assert settings.warnings([trainings[0], tuned]) == ["Run 2 starts from a checkpoint of run 1."]
    (message,) = settings.warnings([run(1, EvaluateSpec(model="ViT-B-32")), run(2, EvaluateSpec(held_out=False))])
    assert message == "Held out: yes (run 1), no (run 2); values come from different pairs."


def test_by_setting_finds_the_latest_timing_of_each_model(store: Store, tmp_path: Path) -> None:
    old, new = queue_benchmark(store, "resnet18", "resnet50"), queue_benchmark(store, "resnet18")
    newest = queue_benchmark(store, "resnet50")
    compiled = [benchmark_row(model, "compile") for model in ("resnet18", "resnet50")]
    finish(store, old, [*compiled, benchmark_row("resnet18", flags=["contended"]), benchmark_row("resnet50")])
    finish(store, new, [benchmark_row("resnet18", flags=["contended"]), benchmark_row("resnet18", mode="training")])
    finish(
        store,
        newest,
        [benchmark_row("resnet50", flags=["contended"]), benchmark_row("resnet26"), benchmark_row("resnet26", "trace")],
    )
    names = ["timm:resnet50", "timm:resnet34", "timm:resnet18", "timm:resnet26"]
    runs = runs_of_models(store, names)
    assert [item.id for item in runs] == [newest, new, old]
    groups = by_setting(store, [(item, tmp_path, store.rows(item.id)) for item in runs], names)
    assert [(setting.variant, [(item.row.model, item.run) for item in group]) for setting, group in groups] == [
        ("eager", [("resnet50", old), ("resnet18", new), ("resnet26", newest)]),
        ("compile", [("resnet50", old), ("resnet18", old)]),
    ], "only one model is timed with trace, and none is resnet34"


def test_models_timed_in_separate_runs_are_compared_like_runs(store: Store, tmp_path: Path) -> None:
    ids = {}
    for factor in (1, 1.01, 1.02):
        for model, ms in {"resnet18": 10.0 * factor, "resnet50": 20.0 * factor}.items():
            ids[model] = queue_benchmark(store, f"timm:{model}", publishable=True)
            finish(store, ids[model], [benchmark_row(model, latency_ms=ms)])
    names = ["timm:resnet18", "timm:resnet50"]
    runs = [(entry, tmp_path, store.rows(entry.id)) for entry in runs_of_models(store, names)]
    ((_, rows),) = by_setting(store, runs, names)
    assert rows == [timed_rows(store, store.run(ids[model]), tmp_path)[0] for model in ids]
    assert [row.publishable for row in rows] == [True, True]
    line = only_row(timings.ratios([(rows[0], rows[1])], "ms", seed=1))
    assert (line["verdict"], line["note"]) == ("slower", "of 3 and 3 turns")


@pytest.mark.parametrize("changed", [{"num_classes": 10}, {"in_chans": 4}, {"model_kwargs": '{"depth": 2}'}])
def test_changed_model_does_not_match_the_plain_model(changed: dict[str, object], tmp_path: Path) -> None:
    plain, changed_row = benchmark_row("resnet18"), benchmark_row("resnet18", latency_ms=10.0, **changed)
    two_models = [benchmark_row("resnet50"), plain]
    assert not matching_names({1: two_models, 2: [benchmark_row("resnet50"), benchmark_row("resnet18", **changed)]}, 1)[
        1:
    ]
    ((plain_timed, changed_timed),) = timings.matching_pairs(timed_by_run({1: [plain], 2: [changed_row]}), 1)
    line = only_row(timings.ratios([(plain_timed, changed_timed)], "ms", seed=1337))  # type: ignore[list-item]
    assert (line["verdict"], line["differs_in"]) == ("not comparable", next(iter(changed)).replace("_", " "))
    assert compare_rows.full_label(changed_row) != compare_rows.full_label(plain)
    assert compare_rows.full_label(profile_row("resnet18", **changed)) != compare_rows.full_label(
        profile_row("resnet18")
    )


def test_labels_include_changes_to_the_model() -> None:
    row = benchmark_row("resnet18", num_classes=10, in_chans=4, model_kwargs='{"depth": 2}')
    assert compare_rows.full_label(row).endswith('224 px · 10 classes · 4 channels · {"depth": 2}')


@pytest.mark.parametrize("changed", [{"num_classes": 10}, {"in_chans": 4}, {"model_kwargs": "depth=2"}])
def test_warnings_name_changes_to_the_model(changed: dict[str, object], store: Store) -> None:
    first, second = (store.run(queue_benchmark(store, "resnet18", **fields)) for fields in ({}, changed))
    warnings = settings.warnings([first, second])
    (name,) = changed
    assert any(
        warning.startswith(f"{name[0].upper()}{name[1:].replace('_', ' ')}: not set (run") for warning in warnings
    )
