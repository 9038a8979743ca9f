"""`make gpu`'s benchmark: its every step on the CPU, the device swapped, and what its lines are compared with."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu, gpu_children
from engine.measure.stopwatch import Stopwatch
from engine.results import Artifact, BenchmarkRow, DeviceRow
from engine.settings import ROOT
from engine.specs import BenchmarkSpec

TIMEOUT_S = 1500
"""Limits a dozen processes that each load torch, on a machine that does other things as well."""


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize(
    "steps", [["rates", "recurrent"], pytest.param(list(gpu.STEPS), marks=pytest.mark.soak)], ids=["two", "all"]
)
def test_every_step_runs_with_the_device_swapped_and_a_cut_off_run_goes_on(tmp_path: Path, steps: list[str]) -> None:
    """Twenty seconds: each step is timed in fresh processes, and the second half is a process of its own."""
    output = tmp_path / "results" / "gpu.json"
    options = ["--device", "cpu", "--quick", "--output", str(output)]
    first = ["rates", "models"] if "models" in steps else ["rates"]
    gpu.main([*options, "--steps", ",".join(first), "--minutes", "0"])
    begun = json.loads(output.read_text())["steps"]
    assert begun["rates"]["complete"]
    if "models" in steps:
        assert (begun["models"]["lines"], begun["models"]["complete"]) == ([], False), "no time was left for them"
    command = [sys.executable, "-m", "benchmarks.gpu", *options, "--append", "--steps", ",".join(steps)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "rates" not in done.stdout, "what is complete is not measured again"
    report = json.loads(output.read_text())
    assert report["environment"]["device"] == "cpu"
    assert report["environment"]["versions"]["torch"]
    assert report["data_sheet"] is None
    assert set(report["steps"]) == set(steps)
    assert all(step["complete"] and step["seconds"] > 0 for step in report["steps"].values())
    lines = {name: step["lines"] for name, step in report["steps"].items()}

    assert [(line["operation"], line["unit"], line["share"]) for line in lines["rates"]] == [
        ("matmul", "TFLOP/s", None),
        ("matmul", "TFLOP/s", None),
        ("copy", "TB/s", None),
    ]
    assert all(line["rate"] > 0 for line in lines["rates"])

    by_runner = {line["model"]: line for line in lines["recurrent"]}
    assert "needs an NVIDIA GPU with cuDNN" in by_runner["cudnn"]["error"]
    assert by_runner["aten"]["forward_ms"] > 0
    assert by_runner["py"]["backward_ms"] > 0

    if "training" in steps:
        ours, reference, ratio = lines["training"]
        assert (ours["side"], reference["side"]) == ("ours", "reference")
        assert ratio["ratio"] == pytest.approx(ours["pairs_per_s"] / reference["pairs_per_s"])
        assert "Train Epoch: 1" in done.stderr, "a training cut off by its time limit shows how far it came"

    if "models" in steps:
        assert [line["mode"] for line in lines["models"]] == ["inference"] * 6  # a quick look times no training
        for line in lines["models"]:
            if line["variant"] in ("eager+bfloat16", "compile:aot_eager+bfloat16"):
                assert (line["status"], line["error"], line["timer_error"]) == ("ok", "", "")
                assert min(line["timer_ms"], line["beside_timer_ms"], line["ratio"]) > 0
            else:  # no TF32 and no CUDA graphs here, by the program's own word and the Timer's
                assert "GPU" in line["error"]
                assert line["error"] in line["timer_error"]


def test_a_process_of_the_training_step_has_the_packages_that_lie_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make gpu WHEELS=...` names their folder in PYTHONPATH, and a child works in a folder of its own."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import train_throughput

    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "only_beside.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    environment = train_throughput.environment(train_throughput.CASES["digits-clip"])
    command = [sys.executable, "-c", "import only_beside, engine.settings"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)


def test_a_report_that_is_cut_off_leaves_the_one_before_it(tmp_path: Path) -> None:
    """--append goes on with it. The limit of a file's size ends the writing, as a kill or a full disk would."""
    output = tmp_path / "gpu.json"
    gpu._write({"steps": {}}, output)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            gpu._write({"steps": {"rates": "x" * 100_000}}, output)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert json.loads(output.read_text()) == {"steps": {}}


def test_rates_stand_beside_the_data_sheet_of_a_known_gpu() -> None:
    rows = [
        DeviceRow(device="cuda:0", operation="matmul", dtype="bfloat16", gflop_per_s=791_200.0),
        DeviceRow(device="cuda:0", operation="copy", dtype="float32", gb_per_s=2_680.0),
        DeviceRow(device="cuda:0", operation="matmul", dtype="tf32", status="error", error="no"),
    ]
    for name, shares in (("NVIDIA H100 80GB HBM3", [0.8, 0.8, None]), ("NVIDIA A10", [None] * 3)):
        lines = [gpu.rated(row.model_dump(mode="json"), gpu.SHEETS.get(name, {})) for row in rows]
        assert [line["share"] for line in lines] == pytest.approx(shares)
    assert gpu.SHEETS["NVIDIA H200"]["copy"] == 4.8


def test_the_timer_times_each_variant_once_where_samples_fill_two_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, latency and back-to-back time have a file each."""
    known = {"library": "timm", "model": "test_vit", "device": "cuda:0", "mode": "inference", "variant": "eager"}
    row = BenchmarkRow.model_validate(known | {"batch_size_requested": "2", "batch_size": 2, "precision": "tf32"})
    files = [Artifact(name=f"samples/{name}.csv", kind="samples") for name in ("a", "a__back_to_back")]
    timed: list[str] = []

    def by_timer(spec: BenchmarkSpec, name: str, mode: str, options: gpu.Asked) -> dict[str, gpu.Line]:
        timed.append(name)
        return {"eager": {"timer_ms": 2.0}}

    monkeypatch.setattr(gpu, "events", lambda *_: iter([*files, row]))
    monkeypatch.setattr(gpu, "by_timer", by_timer)
    (line,) = gpu.models(gpu.Asked("cuda:0", quick=True), [])
    assert (line["timer_ms"], timed) == (2.0, ["timm:test_vit"])


def test_the_timer_and_our_stopwatch_take_turns_with_the_same_number_of_calls() -> None:
    """Calls become slower by 1 % each. Both sides are affected alike, so that their ratio stays close to 1."""
    now, calls = [0.0], [0]

    def call() -> None:
        calls[0] += 1
        now[0] += 0.01 * 1.01 ** calls[0]

    stopwatch = Stopwatch(lambda: None, lambda: now[0])
    found = gpu_children.side_by_side(call, stopwatch, 0.01, lambda: now[0])
    assert 10 < found["timer_ms"] < 20
    assert found["beside_timer_ms"] == pytest.approx(found["timer_ms"], rel=0.1)
    assert found["ratio"] == pytest.approx(1, abs=0.05)


def test_a_row_and_its_timers_values_become_a_line() -> None:
    known = {"library": "timm", "model": "m", "device": "cuda:0", "mode": "inference", "variant": "eager"}
    known |= {"batch_size_requested": "1", "batch_size": 1, "precision": "tf32"}
    row = BenchmarkRow.model_validate(known | {"latency_ms": 3.0, "compile_cold_ms": 1500.0})
    line = gpu.beside(row, "timm:m", {"timer_ms": 2.0, "beside_timer_ms": 2.2, "ratio": 1.1})
    assert (line["name"], line["queued_ms"], line["ratio"], line["compile_s"]) == ("timm:m", 3.0, 1.1, 1.5)
    failed = gpu.beside(row.model_copy(update={"latency_ms": None}), "timm:m", {"error": "no compiler"})
    assert (failed["ratio"], failed["timer_ms"], failed["timer_error"]) == (None, None, "no compiler")
