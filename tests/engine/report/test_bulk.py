"""Export of many runs: the list of runs, and their rows, as CSV, JSON and Parquet files."""

import csv
import io
import time
import zipfile

import pandas as pd
import pytest
import sqlalchemy

from engine.report.export import bulk, tables
from engine.results import DeviceRow
from engine.specs import DeviceSpec, ProfileSpec, TrainSpec
from engine.store import Exit, Filter, Role, Store, User, attempts
from engine.store import queue as queueing
from tests.support.clip import train_row
from tests.support.page import ENVIRONMENT, benchmark_row, finish, profile_row, queue, queue_benchmark


@pytest.mark.slow
def test_list_of_runs_has_a_line_per_run(store: Store) -> None:
    first = store.acting_as(User("ann@x.org", Role.RUNNER)).enqueue(ProfileSpec(models=("resnet18",)))
    second = queue(store, "resnet50", device="cpu")
    finish(store, first, [profile_row("resnet18")])
    store.change_tags([first], add=["b", "a"])
    store.set_notes(first, '=cmd|" /C calc"!A0\nsecond line, "quoted"')
    text = tables.to_csv(bulk.runs(store, Filter(order="oldest")))
    finished, queued = csv.DictReader(io.StringIO(text))
    assert (finished["run"], finished["what"], finished["state"]) == (str(first), "resnet18 (torch, meta)", "finished")
    assert (finished["tags"], finished["devices"], finished["done"], finished["total"]) == ("a; b", "meta", "1", "1")
    assert (finished["owner"], queued["owner"]) == ("ann@x.org", "")
    assert finished["notes"] == '\'=cmd|" /C calc"!A0\nsecond line, "quoted"', (
        "the quote keeps spreadsheets from reading a formula"
    )
    assert float(finished["duration_s"]) == pytest.approx(store.run(first).seconds(), abs=1e-5)
    assert pd.Timestamp(finished["created"]).timestamp() == pytest.approx(
        store.run(first).created_at.timestamp(), abs=1
    )
    assert (queued["run"], queued["state"], queued["started"], queued["duration_s"]) == (
        str(second),
        "queued",
        "",
        "",
    )
    assert tables.to_csv(bulk.runs(store, Filter(text="no such"))).splitlines() == [",".join(bulk.COLUMNS)]


def test_damaged_numbers_are_missing_in_the_list_of_runs(store: Store) -> None:
    run_id = queue(store, "resnet18")
    finish(store, run_id, [profile_row("resnet18")])
    with store.database.write() as connection:
        connection.execute(sqlalchemy.text("UPDATE runs SET done = 'many', ended_at = 'soon'"))
        connection.execute(sqlalchemy.text("UPDATE run_results SET loss = 'low', rows = '?'"))
    (line,) = bulk.runs(store, Filter()).to_dict("records")
    assert (line["run"], line["total"], line["failed_rows"]) == (run_id, 1, 0)
    assert all(pd.isna(line[name]) for name in ("done", "ended", "duration_s", "train_loss", "rows"))


@pytest.mark.slow
def test_list_of_runs_has_their_main_results(store: Store) -> None:
    trained, one_model, two_models = (
        store.enqueue(TrainSpec()),
        queue_benchmark(store, "a"),
        queue_benchmark(store, "a", "b"),
    )
    finish(store, trained, [train_row(1), train_row(2)])
    finish(store, one_model, [benchmark_row("a", latency_ms=3.0)])
    finish(store, two_models, [benchmark_row("a", latency_ms=3.0), benchmark_row("b", latency_ms=1.0)])
    lines = {line["run"]: line for line in csv.DictReader(io.StringIO(tables.to_csv(bulk.runs(store, Filter()))))}
    assert [lines[str(trained)][name] for name in ("train_loss", "clip_val_loss", "latency_ms")] == ["1.5", "1.75", ""]
    assert [lines[str(run_id)]["latency_ms"] for run_id in (one_model, two_models)] == ["3.0", ""], (
        "no single latency for two models"
    )


@pytest.mark.slow
def test_duration_includes_earlier_attempts_of_resumable_runs(store: Store) -> None:
    run_ids = [queue_benchmark(store, "a"), store.enqueue(TrainSpec()), queue(store, "resnet18")]
    for run_id in run_ids:
        attempt = queueing.claim(store.database, ENVIRONMENT.host, run_id)
        assert attempt
        attempts.begin(store.database, attempt)
        time.sleep(0.02)
        attempts.close(store.database, attempt, Exit(code=-9), "error", "")
        store.retry(run_id)
        finish(store, run_id, [])
    lines = {line["run"]: line for line in csv.DictReader(io.StringIO(tables.to_csv(bulk.runs(store, Filter()))))}
    for run_id in run_ids:
        assert float(lines[str(run_id)]["duration_s"]) == pytest.approx(store.run(run_id).seconds(), abs=1e-3)


@pytest.mark.slow
def test_rows_of_several_runs_are_one_table_starting_with_the_run(store: Store) -> None:
    ids = [queue(store, "resnet18"), queue(store, "resnet50")]
    finish(store, ids[0], [profile_row("resnet18"), profile_row("broken", status="error", error="a,\nb", gmacs=None)])
    finish(store, ids[1], [profile_row("resnet50")])
    text = bulk.written(bulk.rows(store, ids), "csv").decode()
    environments = [(line["host"], line["versions"], line["date"][:10]) for line in csv.DictReader(io.StringIO(text))]
    assert environments == [("here", '{"torch": "2.15.0"}', "2026-11-20")] * 3, "each row has its environment"
    lines = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [(line["run"], line["model"]) for line in lines] == [("1", "resnet18"), ("1", "broken"), ("2", "resnet50")]
    assert lines[1]["error"] == "a,\nb"
    columns = ("library", "model", "status", "counter", "device", "image_size", "mparams", "gmacs", "macts", "seconds")
    assert [lines[2][name] for name in columns] == "timm resnet50 ok torch meta 224 10.0 2.0 3.0 0.5".split()
    assert (lines[2]["text_gmacs"], lines[2]["error"]) == ("", "")


READERS = {"csv": pd.read_csv, "json": pd.read_json, "parquet": pd.read_parquet}


@pytest.mark.slow
@pytest.mark.parametrize("format", READERS)
def test_rows_of_several_kinds_are_one_table_per_kind(store: Store, format: str) -> None:
    ids = [queue(store, "resnet18"), queue_benchmark(store, "resnet18"), queue(store, "resnet50")]
    for run_id, row in zip(ids, (profile_row("a"), benchmark_row("b"), profile_row("c")), strict=True):
        finish(store, run_id, [row])
    with zipfile.ZipFile(io.BytesIO(bulk.written(bulk.rows(store, ids), format))) as archive:
        tables_by_file = {name: READERS[format](io.BytesIO(archive.read(name))) for name in archive.namelist()}
    assert {name: list(frame["model"]) for name, frame in tables_by_file.items()} == {
        f"profile.{format}": ["a", "c"],
        f"benchmark.{format}": ["b"],
    }


def test_rows_of_timings_have_their_share_of_the_measured_rate(store: Store) -> None:
    measured, timed = store.enqueue(DeviceSpec(dtypes=("float32",))), queue_benchmark(store, "a")
    operation = {"operation": "matmul", "dtype": "float32", "gflop_per_s": 14_560.0}
    finish(store, measured, [DeviceRow(device="cpu", device_name="a cpu", threads=2, **operation)])
    finish(store, timed, [benchmark_row("a"), benchmark_row("b", status="error", latency_ms=None)])
    table = bulk.rows(store, [queue_benchmark(store, "c"), timed])["benchmark"]
    assert table["tf32"].dtype == bool, "a run without rows does not change types"
    shares = table["utilisation"]
    assert shares[0] == pytest.approx(0.1), "8 images of 3.64 GFLOPs in 20 ms are 1,456 GFLOP/s"
    assert pd.isna(shares[1])


def test_runs_without_rows_give_an_empty_table(store: Store) -> None:
    (table,) = bulk.rows(store, [queue(store, "resnet18"), queue(store, "resnet50")]).values()
    assert table.empty
    assert table.columns[0] == "run"
