"""The command `benchmark`: usage, requests, output and exit codes."""

import csv
import re
from pathlib import Path

import pytest
from sqlalchemy import update

from engine.__main__ import main
from engine.cli.output import print_progress, two_decimals
from engine.results import Row
from engine.specs import BenchmarkSpec
from engine.store import State, Store
from engine.store.tables import rows as rows_table
from tests.support.page import benchmark_row, finish


@pytest.mark.parametrize("command", [["benchmark"], ["submit", "benchmark"]])
def test_help_lists_every_field(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([*command, "--help"])
    assert exit_.value.code == 0
    shown = capsys.readouterr().out
    for name in set(BenchmarkSpec.model_fields) - {"configs"}:
        assert f"--{name.replace('_', '-')}" in shown


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ([], "the following arguments are required: --models"),
        (["--models", "timm:resnet18", "--variants", "eager,fast"], "a variant begins with one of eager, compile"),
        (["--models", "timm:resnet18", "--output", "rows.xlsx"], "neither a .csv nor a .json nor a .parquet file"),
        (["--models", "timm:resnet18", "--format", "excel"], "format: must be"),
        (["--models", "suite", "--filter", "^nothing$"], "error: --filter: none of "),
        (
            ["--models", "suite", "--filter", "^no$", "--exclude-exact", "a"],
            "error: --filter, --exclude-exact: none of ",
        ),
        (["--models", "timm:resnet18", "--batch-size-file", "none.txt"], "no file of batch sizes at none.txt"),
        (["--models", "timm:resnet18", "--variants", "cudagraphs"], "cudagraphs needs CUDA graphs"),
        (["--models", "timm:resnet18", "--tower", "text"], "timm:resnet18 has no text tower"),
        (
            ["--models", "timm:resnet18,timm:resnet34", "--context-length", "16"],
            "error: --context-length: none of these models has a text tower, so leave it out",
        ),
        (
            ["--models", "suite", "--exclude-exact", "timm:resnet18,jx_nest_base,renset50"],
            "error: --exclude-exact: no model is called 'renset50'; closest: timm:resnet50",
        ),
    ],
)
def test_bad_usage_prints_the_reason_and_exits_with_2(
    store: Store, capsys: pytest.CaptureFixture[str], arguments: list[str], answer: str
) -> None:
    assert main(["benchmark", *arguments]) == 2
    assert answer in capsys.readouterr().err
    assert store.runs() == []


def test_accuracy_check_prints_the_deviation_of_gradients(capsys: pytest.CaptureFixture[str]) -> None:
    print_progress(benchmark_row("a", accuracy="pass", gradient_deviation=0.00123, latency_ms=None, samples_per_s=None))
    assert capsys.readouterr().err.endswith(": pass; gradients deviate by 0.00123\n")


def test_file_of_batch_sizes_becomes_part_of_the_request(
    store: Store, no_scheduler: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sizes.txt"
    file.write_text("resnet18 8\nresnet50,4\n")
    command = ["submit", "benchmark", "--batch-size-file", str(file), "--models"]
    assert main([*command, "timm:resnet18,timm:resnet34"]) == 2
    assert "the batch size list has no line for timm:resnet34" in capsys.readouterr().err
    assert main([*command, "timm:resnet18"]) == 0
    assert main([*command, "timm:resnet18", "--batch-size", "listed"]) == 0
    for run in store.runs():
        assert run.spec == BenchmarkSpec(models=("timm:resnet18",), batch_size_list="resnet18 8, resnet50 4")
    assert len(store.runs()) == 2
    file.write_text("resnet18 many\n")
    assert main([*command, "timm:resnet18"]) == 2
    assert "error: --batch-size-list: 'resnet18 many' is no list of batch sizes" in capsys.readouterr().err
    assert main([*command, "timm:resnet18", "--batch-size-list", "resnet18 8"]) == 2
    assert "--batch-size-file and --batch-size-list exclude each other" in capsys.readouterr().err


def test_queued_timing_says_how_long_similar_runs_took_if_they_can_be_read(
    store: Store, no_scheduler: None, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["submit", "benchmark", "--models", "timm:test_vit,timm:resnet18"]
    assert main(command) == 0
    assert re.match(r"expected duration: \d+ s to \d+ min", capsys.readouterr().err)
    rows: list[Row] = [benchmark_row("test_vit", seconds=20.0), benchmark_row("resnet18", seconds=40.0)]
    finish(store, store.runs()[0].id, rows)
    assert main(command) == 0
    assert capsys.readouterr().err.startswith("expected duration: 42 s to 1 min 30 s as in similar runs here")
    assert main([*command, "--replicates", "5"]) == 0
    assert "as in similar runs" not in capsys.readouterr().err
    with store.database.write() as connection:
        connection.execute(update(rows_table).values(payload="{"))
    run_id = len(store.runs())
    assert main(command) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(f"queued as run {run_id + 1}")
    assert "no expected duration: the store" in shown.err


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ("--format dynamo", "--format dynamo has one row per variant after the first, and eager is the only variant"),
        ("--format timm --purpose accuracy", "--format timm has speeds, which purpose accuracy does not measure"),
        ("--device cuda:77", "this machine has no device 'cuda:77'"),
    ],
)
def test_refused_timing_prints_only_the_reason(
    store: Store, capsys: pytest.CaptureFixture[str], arguments: str, answer: str
) -> None:
    assert main(["benchmark", "--models", "timm:test_vit", *arguments.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {answer}")


@pytest.mark.slow  # 30 s on a busy machine: the compiler is imported before the backend, whose package is missing
def test_failed_variants_give_rows_and_exit_code_1(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    out = tmp_path / "rows.csv"
    model = "python:tests.support.own_models:tiny"  # its process does not load timm
    command = f"benchmark --models {model} --image-size 8 --replicates 1 --min-seconds 0.1 --threads 1"
    command += f" --variants eager,compile:tvm,compile --batch-size-list {model},2"
    assert main([*command.split(), "--format", "dynamo", "--output", str(out)]) == 1
    shown = capsys.readouterr().err
    assert len(re.findall(r"^expected duration: \d", shown, re.M)) == 1
    assert re.search(rf"{model} \(eager, inference, batch 2, 8 px\): \S+ ms, \S+ samples/s; single process", shown)
    assert "compile:tvm, inference: 1 failed" in shown
    assert f"{model} (compile:tvm, inference, batch 2) failed (error)" in shown
    with out.open(newline="") as file:
        lines = list(csv.DictReader(file))
    names = [f"{model} [inference, {variant}]" for variant in ("compile:tvm", "compile")]
    assert [(line["name"], line["speedup"], line["abs_latency"]) for line in lines] == [
        (name, "", "") for name in names
    ]
    assert all(float(line["eager_peak_mem"]) > 0 for line in lines)
    (run,) = store.runs()
    assert run.state == State.FINISHED
    eager, without_backend, without_compiler = store.rows(run.id)
    assert [eager.status, without_backend.status, without_compiler.status] == ["ok", "error", "error"]
    assert "ompiler" in without_compiler.error
    assert len(without_compiler.error) < 2100
    assert main(["runs", "show", str(run.id)]) == 0
    assert model in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0.00"),
        (0.00334, "0.00334"),
        (-0.0038667, "-0.00387"),
        (0.1714, "0.171"),
        (0.5, "0.500"),
        (1234.567, "1,234.57"),
    ],
)
def test_two_decimals_keeps_three_digits_of_small_values(value: float, shown: str) -> None:
    assert two_decimals(value) == shown
