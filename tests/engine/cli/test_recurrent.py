"""The command `recurrent`: usage, progress, output formats and exit codes."""

import json
from pathlib import Path

import pandas as pd
import pytest

from engine.__main__ import main
from engine.cli import speed
from engine.cli.output import print_progress
from engine.cli.speed import Blocks
from engine.report.export import fastrnns
from engine.results import Progress
from engine.specs import RecurrentSpec
from engine.store import State, Store
from tests.support.page import recurrent_row

TINY = "--seq-length 5 --input-size 8 --hidden-size 8 --mini-batch 2 --warmup 1 --loops 12 --min-seconds 0.05"
TINY += " --replicates 1"


@pytest.mark.parametrize("command", [["recurrent"], ["submit", "recurrent"]])
def test_help_lists_every_field(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([*command, "--help"])
    assert exit_.value.code == 0
    shown = capsys.readouterr().out
    for name in RecurrentSpec.model_fields:
        assert f"--{name.replace('_', '-')}" in shown
    assert "--format" in shown or command[0] == "submit"


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--groups", "rnn"], "groups: must be 'rnns', 'cnns'"),
        (["--runners", "py,jitt,jot"], "no runner is called 'jitt'; closest: jit, vl_jit; there are cudnn, "),
        (["--runners", "cudnn,vl_cudnn"], "an NVIDIA GPU, which cpu is not: choose aten, vl_aten, or another device"),
        (["--sweep", "hidden_size", "--sweep-values", "8,x"], "--sweep-values: must be a whole number"),
        (["--sweep", "hidden_size", "--format", "oss"], "oss has one size per runner, and hidden_size is swept"),
        (["--sweep", "mini_batch", "--output", "table.txt"], "table has one size per runner"),
        (["--format", "excel"], "format: must be"),
        (["--format", "json", "--output", "rows.csv"], "--output ends in .csv, but --format is json"),
        (["--format", "parquet"], "parquet is not for a terminal: give --output FILE too"),
        (["--output", "/nowhere/rows.csv"], "there is no folder"),
    ],
)
def test_bad_usage_prints_the_reason_and_exits_with_2(
    store: Store, capsys: pytest.CaptureFixture[str], arguments: list[str], answer: str
) -> None:
    assert main(["recurrent", *arguments]) == 2
    assert answer in capsys.readouterr().err
    assert store.runs() == []


def test_progress_has_a_line_per_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_progress(recurrent_row("py", flags=("single_process",)))
    print_progress(recurrent_row("aten_layernorm", backward_ms=None, speedup=None))
    print_progress(recurrent_row("resnet18", baseline="", speedup=None))
    print_progress(recurrent_row("cudnn", status="error", error="needs cuDNN"))
    assert capsys.readouterr().err.splitlines() == [
        "        py, 20 time steps, hidden 64, batch 8: forward 10 ms, backward 20 ms; "
        "1.25 times as fast as aten (faster); single process",
        "        aten_layernorm, 20 time steps, hidden 64, batch 8: forward 10 ms",
        "        resnet18, batch 8: forward 10 ms, backward 20 ms",
        "        cudnn, 20 time steps, hidden 64, batch 8: error: needs cuDNN",
    ]


@pytest.mark.slow
def test_failed_runner_is_named_and_others_are_printed_in_the_layouts_of_fastrnns(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["recurrent", "--runners", "cudnn,aten,py", *TINY.split()]
    assert main([*command, "--separator", "|"]) == 1
    shown = capsys.readouterr()
    header, *lines = (line.split("|") for line in shown.out.splitlines())
    assert [name.strip() for name in header] == "name avg_fwd std_fwd info_fwd avg_bwd std_bwd info_bwd".split()
    assert [line[0].strip() for line in lines] == ["aten", "py"]
    (run,) = store.runs()
    rows = {row.model: row for row in store.rows(run.id)}
    for line in lines:
        assert all(len(cell) == 16 for cell in line)
        row = rows[line[0].strip()]
        assert line[1].strip() == f"{row.forward_mean_ms:.4g}"
        assert line[4].strip() == f"{row.backward_mean_ms:.4g}"
    assert "cudnn, 5 time steps, hidden 8, batch 2 failed (error)" in shown.err
    assert "cuDNN" in rows["cudnn"].error
    assert run.state == State.FINISHED
    # the other layout has every stored sample; the same run is printed, because another one would take seconds
    monkeypatch.setattr(speed, "run_here", lambda store, *_, **__: (run, store.rows(run.id)))
    assert main([*command, "--format", "pep", "--output", str(tmp_path / "samples.txt")]) == 1
    assert capsys.readouterr().out == ""
    text = (tmp_path / "samples.txt").read_text()
    printed = [json.loads(line.removeprefix("Caffe2Observer ")) for line in text.splitlines()]
    for name in ("aten", "py"):
        row = rows[name]
        for metric, mean in ((f"lstm-{name}", row.forward_mean_ms), (f"lstm-backward-{name}", row.backward_mean_ms)):
            values = [float(line["value"]) for line in printed if line["metric"] == metric]
            assert len(values) == row.samples
            assert sum(values) / len(values) == pytest.approx(mean, rel=1e-6)


@pytest.mark.slow
def test_sweep_is_exported_to_parquet_with_every_value(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.parquet"
    sweep = "--sweep seq_length --sweep-values 2,4 --separator ;"
    assert main(["recurrent", "--runners", "py", *TINY.split(), *sweep.split(), "--output", str(file)]) == 0
    rows = store.rows(store.runs()[0].id)
    frame = pd.read_parquet(file)
    assert list(frame["seq_length"]) == [2, 4]
    assert "--separator has no effect: a sweep has columns of its own\n" in capsys.readouterr().err
    assert list(frame["forward_ms"]) == [row.forward_ms for row in rows]


def test_submit_warns_of_slow_runners_of_variable_length(
    store: Store, no_scheduler: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "recurrent", "--groups", "vl", "--name", "mine"]) == 0
    assert "vl_jit and vl_py compute one sequence after the other, which takes very long" in capsys.readouterr().err
    (run,) = store.runs()
    assert (run.name, run.spec) == ("mine", RecurrentSpec(groups=("vl",)))


def test_table_of_a_family_is_printed_when_the_next_begins(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = Blocks("|")
    blocks.on_event(Progress(done=0, total=2, note="lstm"))
    blocks.on_event(recurrent_row("aten"))
    blocks.on_event(recurrent_row("cudnn", status="error", error="no", forward_mean_ms=None))
    assert capsys.readouterr().out == ""
    blocks.on_event(Progress(done=1, total=2, note="resnet"))
    first = capsys.readouterr().out
    assert [line.split("|")[0].strip() for line in first.splitlines()] == ["name", "aten"]
    blocks.on_event(Progress(done=1, total=2, note="resnet; timing"))
    blocks.on_event(recurrent_row("resnet18"))
    blocks.flush()  # as when the run is cancelled
    second = capsys.readouterr().out
    assert [line.split("|")[0].strip() for line in second.splitlines()] == ["", "name", "resnet18"]
    assert first + second == fastrnns.table([recurrent_row("aten"), recurrent_row("resnet18")], "|")
