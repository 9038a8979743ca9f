"""The benchmark task: what rows are made of, what becomes of failures, and the fresh processes themselves."""

import csv
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from engine.models.built import Built, Wanted
from engine.replicates import __main__ as replicate
from engine.replicates import child, combine
from engine.replicates.child import Ended
from engine.replicates.combine import Outcome
from engine.replicates.messages import Job, Measured, Report
from engine.replicates.processes import Processes, decayed
from engine.results import Artifact, BenchmarkRow, Contention, Environment, Event, Progress
from engine.settings import ROOT
from engine.specs import BenchmarkSpec, Refused
from engine.tasks.benchmark import run

COMMON = {"library": "timm", "model": "toy", "device": "cpu", "batch_size_requested": "2"}
SHORT: dict[str, Any] = {"models": "timm:toy", "batch_size": 2, "min_samples": 3, "min_seconds": 0.01, "threads": 1}
REAL: dict[str, Any] = SHORT | {"models": "timm:test_vit", "replicates": 1}


def spec(**fields: Any) -> BenchmarkSpec:
    return BenchmarkSpec(**SHORT | fields)


def measured(variant: str, *samples: float, **fields: Any) -> Measured:
    row = {"dtype": "float32", "threads": 1, **fields.pop("row", {})}
    found = {"rounds": tuple(range(len(samples))), "phases": {"forward": samples}, "calls": 1, "row": row}
    return Measured(variant=variant, **found | fields)


def row(*processes: Measured, **fields: Any) -> BenchmarkRow:
    (only,) = combine.rows(spec(**fields), COMMON, Outcome("inference", 2, tuple({m.variant: m} for m in processes)))
    return only


# what rows are made of


def test_figures_by_hand() -> None:
    found = row(
        measured("eager", 1.0, 2.0, 3.0, first_call_ms=9.0), measured("eager", 2.0, 2.0, 8.0, first_call_ms=7.0)
    )
    assert (found.latency_ms, found.mean_ms, found.samples, found.processes) == (2.0, 3.0, 6, 2)
    assert found.std_ms == pytest.approx(statistics.stdev([1, 2, 3, 2, 2, 8]))
    assert found.samples_per_s == 1000.0
    assert found.process_medians_ms == (2.0, 2.0)
    assert found.spread == 0
    assert found.first_call_ms == 9.0
    assert (found.p90_ms, found.compile_cold_ms) == (None, None)


def test_a_process_twenty_times_slower_is_always_caught() -> None:
    """However tight each process is in itself, and whichever of them it is."""
    for slow in range(3):
        processes = [measured("eager", *[20.0 if number == slow else 1.0] * 70) for number in range(3)]
        found = row(*processes)
        assert "unstable" in found.flags
        assert found.spread == 19
        assert "drifting" not in found.flags
    assert row(*[measured("eager", *[1.0] * 70)] * 3).flags == ("below_floor",)


def test_the_limit_of_unstable_is_five_percent() -> None:
    steady = [measured("eager", *[value] * 10) for value in (0.975, 1.0, 1.025)]
    assert "unstable" not in row(*steady).flags
    assert "unstable" in row(*steady[:2], measured("eager", *[1.026] * 10)).flags


def test_one_process_says_so_and_has_no_spread() -> None:
    found = row(measured("eager", *[1.0] * 10), replicates=1)
    assert "single_process" in found.flags
    assert found.spread is None


def test_flags_of_any_process_are_the_rows() -> None:
    calm = Contention(cpu_share=0.99, neighbour_share=0.01, switches_per_s=3)
    busy = Contention(cpu_share=0.8, neighbour_share=0.2, switches_per_s=1)
    found = row(
        measured("eager", 1.0, contention=calm),
        measured("eager", 1.0, contention=busy, foreign=("2 other processes were on the GPU",), throttled="the GPU"),
        measured("eager", *[1.0] * 6, *[1.1] * 3),
    )
    assert found.flags == ("contended", "drifting", "throttled", "below_floor")
    assert found.contention == Contention(cpu_share=0.8, neighbour_share=0.2, switches_per_s=3)
    *words, foreign, throttled = found.notes
    assert [word for word in ("80.0%", "20.0%") if any(word in note for note in words)] == ["80.0%", "20.0%"]
    assert (foreign, throttled) == ("2 other processes were on the GPU", "the GPU")


def test_collections_within_samples_are_told() -> None:
    found = row(measured("eager", 1.0, gc_runs=2), measured("eager", 1.0, gc_runs=1))
    assert found.notes == ("the model itself ran Python's garbage collector 3 times within samples",)
    assert row(measured("eager", 1.0)).notes == ()


def test_compile_times_cold_and_warm() -> None:
    cold, *warm = (measured("eager", 1.0, compile_ms=ms) for ms in (900.0, 100.0, 140.0))
    found = row(cold, *warm)
    assert (found.compile_cold_ms, found.compile_warm_ms) == (900.0, 120.0)
    alone = row(cold.model_copy(update={"compile_again_ms": 80.0}), replicates=1)
    assert (alone.compile_cold_ms, alone.compile_warm_ms) == (900.0, 80.0)


def two(one: Measured, other: Measured, processes: int = 3, **fields: Any) -> BenchmarkRow:
    """The second row of a run of two variants."""
    asked = spec(variants=f"{one.variant.partition('+')[0]},{other.variant}", **fields)
    outcome = Outcome("inference", 2, ({one.variant: one, other.variant: other},) * processes)
    return combine.rows(asked, COMMON, outcome)[1]


def test_a_speedup_has_its_interval_and_verdict() -> None:
    noise = 1 + 0.01 * np.random.default_rng(7).standard_normal(200)
    found = two(measured("eager", *(2 * noise)), measured("compile", *noise))
    assert found.baseline == "eager"
    assert found.speedup == pytest.approx(2)
    assert found.speedup_low is not None
    assert found.speedup_high is not None
    assert found.speedup_low <= found.speedup <= found.speedup_high
    assert found.verdict == "faster"
    same = two(measured("eager", *noise), measured("compile", *noise))
    assert (same.verdict, same.speedup) == ("no difference", 1)


@pytest.mark.parametrize(
    ("variant", "differs", "field"),
    [
        ("eager+bfloat16", {"dtype": "bfloat16"}, "dtype"),
        ("eager+amp", {"autocast_dtype": "bfloat16"}, "autocast_dtype"),
        ("eager+tf32", {"tf32": True}, "tf32"),
        ("eager+channels_last", {}, "memory_format"),
        ("compile", {"threads": 2}, "threads"),
    ],
)
def test_what_differs_in_its_settings_is_not_comparable(variant: str, differs: dict[str, Any], field: str) -> None:
    found = two(measured("eager", *[2.0] * 30), measured(variant, *[1.0] * 30, row=differs))
    assert found.verdict == "not comparable"
    assert field in found.differs_in
    assert found.speedup == 2, "the ratio stands"


def test_the_speedup_is_that_of_the_latencies_however_many_samples_each_has() -> None:
    one = measured("eager", 2.0, 2.2, 2.4, 2.2, rounds=(0, 1, 2, 3))
    other = measured("compile", 1.0, 1.2, rounds=(0, 2))
    assert two(one, other).speedup == pytest.approx(2.2 / 1.1)


def test_a_variant_that_fails_in_a_later_process_has_no_figures() -> None:
    failed = Measured(variant="eager", status="error", error="RuntimeError: no")
    found = row(measured("eager", 1.0, 1.0), failed)
    assert (found.status, found.error, found.latency_ms) == ("error", "RuntimeError: no (in process 2 of 3)", None)


def test_every_sample_is_kept_and_the_figures_can_be_computed_again(tmp_path: Path) -> None:
    random = np.random.default_rng(3)

    def training() -> Measured:
        phases = {part: tuple(random.lognormal(size=80).tolist()) for part in ("forward", "backward", "optimizer")}
        return measured("eager", *phases["forward"], phases=phases)

    outcome = Outcome("training", 2, ({"eager": training()}, {"eager": training()}))
    (found,) = combine.rows(spec(mode="training"), COMMON, outcome)
    path = tmp_path / "samples" / "toy.csv"
    combine.write_samples(path, Outcome("inference", 2, ({"eager": measured("eager", 1.0)},)), begin=True)
    combine.write_samples(path, outcome, begin=False)
    with path.open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["mode"] == "training"]
    parts = [[float(line[f"{part}_ms"]) for line in lines] for part in ("forward", "backward", "optimizer")]
    samples = np.sum(parts, axis=0)
    assert len(lines) == found.samples == 160
    assert float(np.median(samples)) == pytest.approx(found.latency_ms, rel=1e-15)
    assert float(np.mean(samples)) == pytest.approx(found.mean_ms, rel=1e-14)
    assert float(np.std(samples, ddof=1)) == pytest.approx(found.std_ms, rel=1e-14)
    assert [float(np.median(part)) for part in parts] == [found.forward_ms, found.backward_ms, found.optimizer_ms]
    of = [samples[[line["process"] == number for line in lines]] for number in "12"]
    assert [float(np.median(each)) for each in of] == pytest.approx(list(found.process_medians_ms), rel=1e-15)


# what becomes of failures: the real work, in this process, on a model of three layers


class Toy(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.head = torch.nn.Linear(4, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(images).mean((2, 3)))


def toy(name: str, wanted: Wanted, model: type[torch.nn.Module] = Toy) -> Built:
    torch.manual_seed(wanted.seed or 0)
    with torch.device(wanted.device):
        made = model().to(wanted.dtype).eval()
    images = torch.ones(wanted.batch_size, 3, 8, 8, device=wanted.device, dtype=wanted.dtype)
    return Built(made, (images,), {"image": ""}, "toy", (8, 8), (8, 8))


def small_device(limit: int, also: Callable[[Wanted], bool] = lambda wanted: True) -> Callable[..., Built]:
    """A builder standing in for a device on which a batch above the limit does not fit."""

    def build(name: str, wanted: Wanted) -> Built:
        if wanted.device != "meta" and wanted.batch_size > limit and also(wanted):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return toy(name, wanted)

    return build


def here(build: Callable[..., Built]) -> Callable[..., Generator[Report | Ended | None]]:
    """What a fresh process does, without one."""

    def reports(job: Job, environment: Mapping[str, str], deadline: float) -> Generator[Report | Ended | None]:
        yield from replicate.work(job, build)

    return reports


def outcome(asked: BenchmarkSpec, size: int, build: Callable[..., Built], tmp_path: Path, mode: Any = None) -> Outcome:
    processes = Processes(asked, "timm:toy", tmp_path, time.monotonic() + 60, here(build))
    waiting = processes.outcome(mode or asked.modes[0], size, Progress(done=0))
    while True:
        try:
            next(waiting)
        except StopIteration as end:
            found: Outcome = end.value
            return found


def rows_of(asked: BenchmarkSpec, size: int, build: Callable[..., Built], tmp_path: Path) -> list[BenchmarkRow]:
    return combine.rows(asked, COMMON, outcome(asked, size, build, tmp_path))


def test_batch_sizes_step_down_as_timms() -> None:
    sizes = [100]
    while sizes[-1]:
        sizes.append(decayed(sizes[-1]))
    assert sizes == [100, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1, 0]


@pytest.mark.slow
def test_a_batch_that_does_not_fit_is_made_smaller_and_the_row_says_so(tmp_path: Path) -> None:
    asked = spec(batch_size=64, replicates=2)
    (found,) = rows_of(asked, 64, small_device(limit=40), tmp_path)
    assert (found.status, found.batch_size, found.processes) == ("ok", 32, 2)
    assert any(note == "batch size 32 instead of 64, which ran out of memory" for note in found.notes)
    assert found.samples_per_s == pytest.approx(32 / (found.latency_ms or 0) * 1e3)


def test_nothing_fits(tmp_path: Path) -> None:
    eager, half = rows_of(spec(variants="eager,eager+bfloat16"), 2, small_device(limit=0), tmp_path)
    assert (eager.status, eager.batch_size) == ("out_of_memory", 1)
    assert eager.error.startswith("OutOfMemoryError: CUDA out of memory")
    assert half.status == "out_of_memory"


@pytest.mark.slow
def test_another_variants_want_of_memory_is_its_own_row(tmp_path: Path) -> None:
    build = small_device(limit=40, also=lambda wanted: wanted.precision == "bfloat16")
    eager, half = rows_of(spec(variants="eager,eager+bfloat16", replicates=2), 64, build, tmp_path)
    assert (eager.status, eager.batch_size, eager.processes) == ("ok", 64, 2)
    assert (half.status, half.batch_size) == ("out_of_memory", 64)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 5, 40, 100])
def test_the_largest_batch_is_found_to_within_a_sixteenth(limit: int, tmp_path: Path) -> None:
    asked = spec(batch_size="max", max_batch_size=64, replicates=1)
    (found,) = rows_of(asked, 0, small_device(limit), tmp_path)
    most = min(limit, 64)
    assert most - most // 16 <= found.batch_size <= most
    assert found.notes[0].startswith("64 fit, and no more" if limit >= 64 else f"{found.batch_size} fit, ")


@pytest.mark.slow
def test_a_failing_variant_is_a_row_and_the_others_go_on(tmp_path: Path) -> None:
    asked = spec(variants="eager,eager+checkpointing,eager+channels_last", replicates=2)
    eager, checkpointing, channels_last = rows_of(asked, 2, toy, tmp_path)
    assert (eager.status, channels_last.status) == ("ok", "ok")
    assert checkpointing.status == "error"
    assert checkpointing.error == "VariantRefused: timm:toy has no gradient checkpointing"
    assert channels_last.differs_in == ("memory_format",)


@pytest.mark.slow
def test_a_training_step_has_its_parts(tmp_path: Path) -> None:
    (found,) = rows_of(spec(mode="training", replicates=1), 2, toy, tmp_path)
    assert found.status == "ok", found.error
    for figure in (found.forward_ms, found.backward_ms, found.optimizer_ms):
        assert figure is not None
        assert 0 < figure < (found.latency_ms or 0)


class Sleepy(Toy):
    """Takes half a second the first time."""

    awake = False

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if not self.awake:
            time.sleep(0.5)
            self.awake = True
        return super().forward(images)


@pytest.mark.slow
def test_the_first_call_is_told_on_its_own_and_is_in_no_sample(tmp_path: Path) -> None:
    asked = spec(replicates=1)
    build = lambda name, wanted: toy(name, wanted, Sleepy)  # noqa: E731
    measured = outcome(asked, 2, build, tmp_path).processes[0]["eager"]
    assert (measured.first_call_ms or 0) >= 500
    assert max(measured.samples_ms) < 500


def test_counts_are_of_the_model_per_sample(tmp_path: Path) -> None:
    (found,) = rows_of(spec(replicates=1), 2, toy, tmp_path)
    macs = 6 * 6 * 4 * 3 * 3 * 3 + 4 * 5
    assert found.gmacs == pytest.approx(macs / 1e9)
    assert found.gflops == pytest.approx(2 * macs / 1e9)
    assert found.mparams == pytest.approx((3 * 4 * 9 + 4 + 4 * 5 + 5) / 1e6)


@pytest.mark.slow
def test_one_process_compiles_twice_to_tell_both_times(tmp_path: Path) -> None:
    asked = spec(variants="eager,compile:aot_eager,compile:nonsense", replicates=1)
    eager, compiled, unknown = rows_of(asked, 2, toy, tmp_path)
    assert (eager.status, eager.compile_cold_ms, eager.unique_graphs) == ("ok", None, None)
    assert compiled.status == "ok", compiled.error
    assert (compiled.compile_cold_ms or 0) > 0
    assert (compiled.compile_warm_ms or 0) > 0
    assert (compiled.unique_graphs, compiled.graph_breaks) == (1, 0)
    assert unknown.status == "error"
    assert "nonsense" in unknown.error


class Forgetful(Toy):
    """Computes something else each time."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.calls = getattr(self, "calls", 0) + next(Forgetful.counter)
        return super().forward(images) + self.calls

    counter = iter(range(1000))


class NoDouble(Toy):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if images.dtype == torch.float64:
            raise RuntimeError("no float64 here")
        return super().forward(images)


class Broken(Toy):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("broken")


class Unbuildable(Toy):
    def __init__(self) -> None:
        raise RuntimeError("cannot be built")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Toy, "pass"),
        (NoDouble, "pass"),
        (Forgetful, "eager_two_runs_differ"),
        (Broken, "eager_fail_to_run"),
        (Unbuildable, "model_fail_to_load"),
    ],
)
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_statuses_of_accuracy(model: type[torch.nn.Module], expected: str, mode: str, tmp_path: Path) -> None:
    asked = spec(purpose="accuracy", mode=mode, variants="eager,eager+channels_last")
    found = rows_of(asked, 2, lambda name, wanted: toy(name, wanted, model), tmp_path)
    assert [each.accuracy for each in found] == [expected] * 2
    assert all(each.status == ("error" if "fail_to" in expected else "ok") for each in found)
    if model is NoDouble:
        assert any("float64" in note for note in found[1].notes)


def test_more_statuses_of_accuracy(tmp_path: Path) -> None:
    class Format(Toy):
        """Computes something else in channels_last."""

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(images) + (0.0 if images.is_contiguous() else 0.1)

    asked = spec(purpose="accuracy", variants="eager,eager+channels_last,eager+checkpointing,eager+bfloat16")
    eager, other, failing, half = rows_of(asked, 2, lambda name, wanted: toy(name, wanted, Format), tmp_path)
    assert (eager.accuracy, other.accuracy, failing.accuracy) == ("pass", "fail_accuracy", "fail_to_run")
    assert half.accuracy == "pass", "against eager in its own precision"
    (out,) = rows_of(spec(purpose="accuracy"), 1, small_device(limit=0), tmp_path)
    assert (out.accuracy, out.status) == ("OOM", "out_of_memory")
    skipped = Job(
        spec=spec(purpose="accuracy"), model="timm:xcit_large_24_p8_224", mode="inference", batch_size=1, parent=1
    )
    (report,) = (each.measured for each in replicate.work(skipped, toy) if each.measured)
    assert report.accuracy == "pass_due_to_skip"


class Dropping(Toy):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(super().forward(images), 0.5, self.training)


@pytest.mark.slow
def test_a_compiled_model_drops_what_eager_drops(tmp_path: Path) -> None:
    asked = spec(purpose="accuracy", mode="training", variants="eager,compile")
    found = rows_of(asked, 2, lambda name, wanted: toy(name, wanted, Dropping), tmp_path)
    assert [each.accuracy for each in found] == ["pass", "pass"], found[1].error


def test_two_eager_runs_that_differ_say_where_to_look(tmp_path: Path) -> None:
    asked = spec(purpose="accuracy")
    (found,) = rows_of(asked, 2, lambda name, wanted: toy(name, wanted, Forgetful), tmp_path)
    assert "no deterministic form" in found.notes[0]


def test_tolerance_is_against_the_baseline(tmp_path: Path) -> None:
    eager, half = rows_of(spec(purpose="tolerance", variants="eager,eager+bfloat16"), 2, toy, tmp_path)
    assert (eager.max_deviation, eager.mean_deviation) == (0, 0)
    assert 0 < (half.mean_deviation or 0) <= (half.max_deviation or 0) < 0.02
    assert half.baseline == "eager"


def test_models_that_the_suite_runs_in_amp_say_so() -> None:
    asked = spec(precision="bfloat16", purpose="accuracy")
    job = Job(spec=asked, model="timm:convit_base", mode="inference", batch_size=2, parent=1)
    (found,) = (each.measured for each in replicate.work(job, toy) if each.measured)
    assert (found.row["dtype"], found.row["autocast_dtype"]) == ("float32", "bfloat16")
    assert "amp_bfloat16 instead of bfloat16" in found.notes[0]


# fresh processes


def job(**fields: Any) -> Job:
    return Job(
        spec=BenchmarkSpec(**REAL | fields), model="timm:test_vit", mode="inference", batch_size=2, parent=os.getpid()
    )


def replicates() -> list[psutil.Process]:
    """The processes that measure for this one. Other tests may have left it other children."""
    below = psutil.Process().children(recursive=True)
    return [process for process in below if process.is_running() and "engine.replicates" in process.cmdline()]


def test_a_process_is_killed_when_its_time_is_over() -> None:
    started = time.monotonic()
    (end,) = (each for each in child.reports(job(time_limit=0.2), {}, started + 0.2) if each)
    assert isinstance(end, Ended)
    assert (end.status, end.error) == ("timeout", "the time limit of 0.2 s is over")
    assert replicates() == []


def test_a_process_that_dies_says_how() -> None:
    with closing(child.reports(job(), {}, time.monotonic() + 60)) as heard:
        next(heard)
        (process,) = replicates()
        process.send_signal(signal.SIGSEGV)
        *_, end = heard
    assert isinstance(end, Ended)
    assert end.status == "error"
    assert "signal SIGSEGV" in end.error


def test_stopping_in_the_middle_leaves_no_process() -> None:
    heard = child.reports(job(), {}, time.monotonic() + 60)
    next(heard)
    (process,) = replicates()
    heard.close()
    assert not process.is_running()


def test_a_time_limit_gives_every_variant_of_every_mode_a_row(tmp_path: Path) -> None:
    asked = BenchmarkSpec(**REAL | {"mode": "both", "variants": "eager,compile", "time_limit": 0.3})
    found = [event for event in run(asked, tmp_path) if isinstance(event, BenchmarkRow)]
    assert [(each.mode, each.variant) for each in found] == [
        (mode, variant) for mode in ("inference", "training") for variant in ("eager", "compile")
    ]
    assert {each.status for each in found} == {"timeout"}


def test_nothing_starts_when_no_batch_size_is_recorded(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no batch size is recorded for timm:test_vit"):
        next(run(BenchmarkSpec(**REAL | {"batch_size": "recorded"}), tmp_path))


def events(tmp_path: Path, **fields: Any) -> list[Event]:
    return list(run(BenchmarkSpec(**REAL | fields), tmp_path))


@pytest.mark.slow
def test_the_whole_way(tmp_path: Path) -> None:
    found = events(tmp_path, models="timm:test_vit,open_clip:ViT-S-32-alt", replicates=2, image_size=None)
    assert isinstance(found[0], Environment)
    assert [type(each) for each in found if not isinstance(each, Progress)][1:] == [Artifact, BenchmarkRow] * 2
    assert found[-1] == Progress(done=2, total=2)
    vit, clip = (each for each in found if isinstance(each, BenchmarkRow))
    assert (vit.status, vit.error, vit.processes, vit.image_size, vit.threads) == ("ok", "", 2, "160", 1)
    assert (clip.status, clip.context_length, clip.family) == ("ok", 77, "clip_vit")
    with (tmp_path / vit.samples_file).open(newline="") as file:
        samples = [float(line["forward_ms"]) for line in csv.DictReader(file)]
    assert statistics.median(samples) == vit.latency_ms


@pytest.mark.slow
def test_compiled_beside_eager_with_cold_and_warm_compilation(tmp_path: Path) -> None:
    found = events(tmp_path, variants="eager,compile", replicates=2, time_limit=900)
    eager, compiled = (each for each in found if isinstance(each, BenchmarkRow))
    assert (eager.status, compiled.status) == ("ok", "ok"), compiled.error
    assert eager.compile_cold_ms is None
    assert (compiled.compile_cold_ms or 0) > 10 * (compiled.latency_ms or 0)
    assert compiled.compile_warm_ms is not None
    assert compiled.unique_graphs == 1
    assert compiled.graph_breaks == 0
    assert (compiled.calls_captured or 0) > 10
    assert compiled.verdict in ("faster", "slower", "no difference", "undecided")


@pytest.mark.slow
def test_a_missing_compiler_is_the_compiled_variants_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    eager, compiled = (each for each in events(tmp_path, variants="eager,compile") if isinstance(each, BenchmarkRow))
    assert eager.status == "ok"
    assert compiled.status == "error"
    assert "ompiler" in compiled.error
    assert len(compiled.error) < 2100


LIMITED = """
import resource, sys
from pathlib import Path
from engine.specs import BenchmarkSpec
from engine.tasks.benchmark import run
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
for event in run(BenchmarkSpec.model_validate_json(sys.argv[2]), Path(sys.argv[3])):
    if event.__class__.__name__ == "BenchmarkRow":
        print(event.model_dump_json(), flush=True)
"""


@pytest.mark.slow
def test_a_real_want_of_memory_on_the_cpu_is_a_row(tmp_path: Path) -> None:
    """Thousands of images of 160 pixels do not fit into 2 GB."""
    asked = BenchmarkSpec(**REAL | {"batch_size": 8192})
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(2 * 10**9), asked.model_dump_json(), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = BenchmarkRow.model_validate_json(done.stdout.strip())
    assert found.status == "ok", found.error
    assert 1 <= found.batch_size < 8192
    assert "instead of 8192" in " ".join(found.notes)


@pytest.mark.slow
def test_threads_follow_affinity(tmp_path: Path) -> None:
    asked = BenchmarkSpec(**REAL | {"threads": None})
    command = [sys.executable, "-c", LIMITED, str(10**11), asked.model_dump_json(), str(tmp_path)]
    done = subprocess.run(["taskset", "-c", "0", *command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert BenchmarkRow.model_validate_json(done.stdout.strip()).threads == 1


@pytest.mark.slow
def test_a_killed_benchmark_leaves_no_process(tmp_path: Path) -> None:
    asked = BenchmarkSpec(**REAL | {"min_seconds": 600, "time_limit": 900})
    command = [sys.executable, "-c", LIMITED, str(10**11), asked.model_dump_json(), str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT) as benchmark:
        deadline = time.monotonic() + 120
        while not (children := psutil.Process(benchmark.pid).children()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert children
        time.sleep(3)  # it has begun by now, or will see that nobody waits for it
        benchmark.kill()
        _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []
