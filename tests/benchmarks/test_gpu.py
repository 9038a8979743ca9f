"""The benchmark of `make gpu`: all steps on a CPU, and the comparison of its lines with references."""

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
"""Seconds for a dozen processes that each load torch, on a busy machine."""


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize(
    "steps", [["rates", "recurrent"], pytest.param(list(gpu.STEPS), marks=pytest.mark.soak)], ids=["two", "all"]
)
def test_every_step_runs_on_a_cpu_and_continues_after_a_time_limit(tmp_path: Path, steps: list[str]) -> None:
    """Takes 20 s: each step is timed in new processes, and the second call is a separate process."""
    output = tmp_path / "results" / "gpu.json"
    options = ["--device", "cpu", "--quick", "--output", str(output)]
    first = ["rates", "models"] if "models" in steps else ["rates"]
    gpu.main([*options, "--steps", ",".join(first), "--minutes", "0"])
    first_steps = json.loads(output.read_text())["steps"]
    assert first_steps["rates"]["complete"]
    if "models" in steps:
        assert (first_steps["models"]["lines"], first_steps["models"]["complete"]) == ([], False), (
            "no time was left for the models"
        )
    command = [sys.executable, "-m", "benchmarks.gpu", *options, "--append", "--steps", ",".join(steps)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert process.returncode == 0, process.stderr[-3000:]
    assert "rates" not in process.stdout, "a complete step is not measured again"
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
        our_line, reference, ratio = lines["training"]
        assert (our_line["side"], reference["side"]) == ("ours", "reference")
        assert ratio["ratio"] == pytest.approx(our_line["pairs_per_s"] / reference["pairs_per_s"])
        assert "Train Epoch: 1" in process.stderr, "a training that reaches its time limit prints its progress"

    if "models" in steps:
        assert [line["mode"] for line in lines["models"]] == ["inference"] * 6  # --quick times no training
        for line in lines["models"]:
            if line["variant"] in ("eager+bfloat16", "compile:aot_eager+bfloat16"):
                assert (line["status"], line["error"], line["timer_error"]) == ("ok", "", "")
                assert min(line["timer_ms"], line["beside_timer_ms"], line["ratio"]) > 0
            else:  # a CPU has no TF32 and no CUDA graphs, as the program and the Timer report
                assert "GPU" in line["error"]
                assert line["error"] in line["timer_error"]


def test_processes_of_the_training_step_inherit_pythonpath(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make gpu WHEELS=...` installs packages into a folder on PYTHONPATH, and children have another working folder."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import train_throughput

    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "only_beside.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    environment = train_throughput.environment(train_throughput.CASES["digits-clip"])
    command = [sys.executable, "-c", "import only_beside, engine.settings"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)


def test_interrupted_write_keeps_the_previous_report(tmp_path: Path) -> None:
    """--append needs the previous report. A file size limit interrupts the write, as a kill or a full disk would."""
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


def test_rates_have_a_share_of_the_data_sheet_of_a_known_gpu() -> None:
    rows = [
        DeviceRow(device="cuda:0", operation="matmul", dtype="bfloat16", gflop_per_s=791_200.0),
        DeviceRow(device="cuda:0", operation="copy", dtype="float32", gb_per_s=2_680.0),
        DeviceRow(device="cuda:0", operation="matmul", dtype="tf32", status="error", error="no"),
    ]
    for name, shares in (("NVIDIA H100 80GB HBM3", [0.8, 0.8, None]), ("NVIDIA A10", [None] * 3)):
        lines = [gpu.rated(row.model_dump(mode="json"), gpu.SHEETS.get(name, {})) for row in rows]
        assert [line["share"] for line in lines] == pytest.approx(shares)
    assert gpu.SHEETS["NVIDIA H200"]["copy"] == 4.8


def test_timer_times_a_variant_with_two_sample_files_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, latency and back-to-back time have separate files of samples."""
    row_fields = {"library": "timm", "model": "test_vit", "device": "cuda:0", "mode": "inference", "variant": "eager"}
    row = BenchmarkRow.model_validate(row_fields | {"batch_size_requested": "2", "batch_size": 2, "precision": "tf32"})
    files = [Artifact(name=f"samples/{name}.csv", kind="samples") for name in ("a", "a__back_to_back")]
    timed: list[str] = []

    def by_timer(spec: BenchmarkSpec, name: str, mode: str, options: gpu.Asked) -> dict[str, gpu.Line]:
        timed.append(name)
        return {"eager": {"timer_ms": 2.0}}

    monkeypatch.setattr(gpu, "events", lambda *_: iter([*files, row]))
    monkeypatch.setattr(gpu, "by_timer", by_timer)
    (line,) = gpu.models(gpu.Asked("cuda:0", quick=True), [])
    assert (line["timer_ms"], timed) == (2.0, ["timm:test_vit"])


def test_timer_and_stopwatch_alternate_in_side_by_side() -> None:
    """Each call is 1 % slower than the last. The ratio stays close to 1 only if both sides alternate."""
    now, calls = [0.0], [0]

    def call() -> None:
        calls[0] += 1
        now[0] += 0.01 * 1.01 ** calls[0]

    stopwatch = Stopwatch(lambda: None, lambda: now[0])
    found = gpu_children.side_by_side(call, stopwatch, 0.01, lambda: now[0])
    assert 10 < found["timer_ms"] < 20
    assert found["beside_timer_ms"] == pytest.approx(found["timer_ms"], rel=0.1)
    assert found["ratio"] == pytest.approx(1, abs=0.05)


def test_line_has_values_of_the_row_and_of_the_timer() -> None:
    row_fields = {"library": "timm", "model": "m", "device": "cuda:0", "mode": "inference", "variant": "eager"}
    row_fields |= {"batch_size_requested": "1", "batch_size": 1, "precision": "tf32"}
    row = BenchmarkRow.model_validate(row_fields | {"latency_ms": 3.0, "compile_cold_ms": 1500.0})
    line = gpu.beside(row, "timm:m", {"timer_ms": 2.0, "beside_timer_ms": 2.2, "ratio": 1.1})
    assert (line["name"], line["queued_ms"], line["ratio"], line["compile_s"]) == ("timm:m", 3.0, 1.1, 1.5)
    failed = gpu.beside(row.model_copy(update={"latency_ms": None}), "timm:m", {"error": "no compiler"})
    assert (failed["ratio"], failed["timer_ms"], failed["timer_error"]) == (None, None, "no compiler")
