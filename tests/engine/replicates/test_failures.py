"""What becomes of a benchmark's failures: the real work, in this process, on a model of three layers."""

import itertools
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.models import library, variants
from engine.models.built import Built, Wanted
from engine.replicates import side_by_side
from engine.replicates.benchmark import rows, work
from engine.replicates.benchmark.job import Job
from engine.replicates.benchmark.rows import Outcome
from engine.replicates.benchmark.sizes import Sizes, decayed
from engine.replicates.child import Ended
from engine.replicates.messages import Report
from engine.replicates.processes import Processes
from engine.results import BenchmarkRow, Progress
from engine.specs import BenchmarkSpec, Variant

COMMON = {"library": "timm", "model": "toy", "device": "cpu", "batch_size_requested": "2"}
SHORT: dict[str, Any] = {"models": "timm:toy", "batch_size": 2, "min_samples": 3, "min_seconds": 0.01, "threads": 1}


def spec(**fields: Any) -> BenchmarkSpec:
    return BenchmarkSpec(**SHORT | fields)


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


FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def small_device(
    limit: int, also: Callable[[Wanted], bool] = lambda wanted: True, error: Exception = FULL
) -> Callable[..., Built]:
    """A builder standing in for a device on which a batch above the limit does not fit."""

    def build(name: str, wanted: Wanted) -> Built:
        if wanted.device != "meta" and wanted.batch_size > limit and also(wanted):
            raise type(error)(*error.args)
        return toy(name, wanted)

    return build


def here(build: Callable[..., Built]) -> Callable[..., Generator[Report | Ended | None]]:
    """What a fresh process does, without one."""

    def reports(job: Job, environment: Mapping[str, str], deadline: float) -> Generator[Report | Ended | None]:
        yield from work.work(job, build)

    return reports


def outcome(
    request: BenchmarkSpec, size: int | None, build: Callable[..., Built], tmp_path: Path, mode: Any = None
) -> Outcome:
    processes = Processes(tmp_path, time.monotonic() + 60, here(build))
    return _returned(Sizes(request, "timm:toy", processes).outcome(mode or request.modes[0], size, Progress(done=0)))


def _returned(waiting: Generator[Progress, None, Outcome]) -> Outcome:
    while True:
        try:
            next(waiting)
        except StopIteration as end:
            found: Outcome = end.value
            return found


def rows_of(
    request: BenchmarkSpec, size: int | None, build: Callable[..., Built], tmp_path: Path
) -> list[BenchmarkRow]:
    return rows.rows(request, COMMON, outcome(request, size, build, tmp_path))


def test_batch_sizes_step_down_as_timms() -> None:
    sizes = [100]
    while sizes[-1]:
        sizes.append(decayed(sizes[-1]))
    assert sizes == [100, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1, 0]


@pytest.mark.slow
def test_a_batch_that_does_not_fit_is_made_smaller_and_the_row_says_so(tmp_path: Path) -> None:
    request = spec(batch_size=64, replicates=2)
    (found,) = rows_of(request, 64, small_device(limit=40), tmp_path)
    assert (found.status, found.batch_size, found.processes) == ("ok", 32, 2)
    assert any(note == "batch size 32 instead of 64, which ran out of memory" for note in found.notes)
    assert found.samples_per_s == pytest.approx(32 / (found.latency_ms or 0) * 1e3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "GET was unable to find an engine to execute this computation",
        "FIND was unable to find an engine to execute this computation",
        "Unable to find a valid cuDNN algorithm to run convolution",
    ],
)
def test_every_way_in_which_a_gpu_says_that_memory_has_run_out_makes_the_batch_smaller(
    message: str, tmp_path: Path
) -> None:
    build = small_device(limit=1, error=RuntimeError(message))
    (found,) = rows_of(spec(batch_size=2, replicates=1), 2, build, tmp_path)
    assert (found.status, found.batch_size) == ("ok", 1)
    assert "batch size 1 instead of 2, which ran out of memory" in found.notes


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
    request = spec(batch_size="max", max_batch_size=64, replicates=1)
    (found,) = rows_of(request, None, small_device(limit), tmp_path)
    most = min(limit, 64)
    assert most - most // 16 <= found.batch_size <= most
    assert found.notes[0].startswith("64 fit, and no more" if limit >= 64 else f"{found.batch_size} fit, ")


@pytest.mark.slow
def test_a_failing_variant_is_a_row_and_the_others_go_on(tmp_path: Path) -> None:
    request = spec(variants="eager,eager+checkpointing,eager+channels_last", replicates=2)
    eager, checkpointing, channels_last = rows_of(request, 2, toy, tmp_path)
    assert (eager.status, channels_last.status) == ("ok", "ok")
    assert checkpointing.status == "error"
    assert checkpointing.error == "timm:toy has no gradient checkpointing"
    assert channels_last.differs_in == ("memory_format",)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "accuracy"), [({}, "fail_accuracy"), ({"tolerance": 0.2}, "pass"), ({"cosine": True}, "pass")]
)
def test_tolerance_and_cosine_decide_what_passes(fields: dict[str, Any], accuracy: str, tmp_path: Path) -> None:
    """A model that is 5 % too large in all weights fails by values, and passes by direction."""
    builds = itertools.count(1)

    def scaled(name: str, wanted: Wanted) -> Built:
        built = toy(name, wanted)
        if next(builds) == 5:  # two runs of eager, one in float64 and the variant eager come before
            for parameter in built.model.parameters():
                parameter.data *= 1.05
        return built

    request = spec(purpose="accuracy", variants="eager,eager+channels_last", **fields)
    assert [row.accuracy for row in rows_of(request, 2, scaled, tmp_path)] == ["pass", accuracy]


@pytest.mark.slow
def test_sampling_ends_after_the_most_seconds_and_the_row_says_so(tmp_path: Path) -> None:
    request = spec(min_samples=100_000, min_seconds=3600, max_seconds=1e-6, replicates=1)
    (found,) = rows_of(request, 2, toy, tmp_path)
    assert (found.status, found.samples) == ("ok", 1)
    assert "sampling was cut off after 1 sample" in found.notes
    assert "below_floor" in found.flags


@pytest.mark.slow
def test_a_training_step_has_its_parts(tmp_path: Path) -> None:
    (found,) = rows_of(spec(mode="training", replicates=1), 2, toy, tmp_path)
    assert found.status == "ok", found.error
    for figure in (found.forward_ms, found.backward_ms, found.optimizer_ms):
        assert figure is not None
        assert 0 < figure < (found.latency_ms or 0)


@pytest.mark.slow
def test_an_error_that_breaks_the_device_is_told_and_the_others_get_a_process_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an illegal access, a GPU's process cannot even free memory: freeing ends it with the same error."""
    broken = RuntimeError("CUDA error: an illegal memory access was encountered")
    real = variants.runner

    def runner(variant: Variant, *rest: Any) -> Callable[[], Any]:
        if variant.execution == "trace":
            raise broken
        return real(variant, *rest)

    def release() -> None:
        raise broken

    def process(job: Job, environment: Mapping[str, str], deadline: float) -> Generator[Report | Ended | None]:
        try:
            yield from work.work(job, toy)
        except RuntimeError:
            yield Ended("error", "the process ended with exit code 1: the end of the log says more")

    monkeypatch.setattr(variants, "runner", runner)
    monkeypatch.setattr(side_by_side, "release", release)
    processes = Processes(tmp_path, time.monotonic() + 60, process)
    request = spec(variants="eager,trace,export", replicates=1)
    waiting = Sizes(request, "timm:toy", processes).outcome("inference", 2, Progress(done=0))
    eager, trace, export = rows.rows(request, COMMON, _returned(waiting))
    assert (eager.status, export.status) == ("ok", "ok")
    assert trace.error == f"RuntimeError: {broken}"


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
    request = spec(replicates=1)
    build = lambda name, wanted: toy(name, wanted, Sleepy)  # noqa: E731
    measured = outcome(request, 2, build, tmp_path).processes[0]["eager"]
    assert (measured.first_call_ms or 0) >= 500
    assert max(measured.samples_ms) < 500


@pytest.mark.slow
def test_counts_are_of_the_model_per_sample(tmp_path: Path) -> None:
    (found,) = rows_of(spec(replicates=1), 2, toy, tmp_path)
    macs = 6 * 6 * 4 * 3 * 3 * 3 + 4 * 5
    assert found.gmacs == pytest.approx(macs / 1e9)
    assert found.gflops == pytest.approx(2 * macs / 1e9)
    assert found.mparams == pytest.approx((3 * 4 * 9 + 4 + 4 * 5 + 5) / 1e6)


@pytest.mark.slow
def test_one_process_compiles_twice_to_tell_both_times(tmp_path: Path) -> None:
    request = spec(variants="eager,compile:aot_eager,compile:nonsense", replicates=1)
    eager, compiled, unknown = rows_of(request, 2, toy, tmp_path)
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

    counter = itertools.count(1)


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
    request = spec(purpose="accuracy", mode=mode, variants="eager,eager+channels_last")
    found = rows_of(request, 2, lambda name, wanted: toy(name, wanted, model), tmp_path)
    assert [item.accuracy for item in found] == [expected] * 2
    assert all(item.status == ("error" if "fail_to" in expected else "ok") for item in found)
    if model is NoDouble:
        assert any("float64" in note for note in found[1].notes)


def test_more_statuses_of_accuracy(tmp_path: Path) -> None:
    class Format(Toy):
        """Computes something else in channels_last."""

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(images) + (0.0 if images.is_contiguous() else 0.1)

    request = spec(purpose="accuracy", variants="eager,eager+channels_last,eager+checkpointing,eager+bfloat16")
    eager, other, failing, half = rows_of(request, 2, lambda name, wanted: toy(name, wanted, Format), tmp_path)
    assert (eager.accuracy, other.accuracy, failing.accuracy) == ("pass", "fail_accuracy", "fail_to_run")
    assert half.accuracy == "pass", "against eager in its own precision"
    (out,) = rows_of(spec(purpose="accuracy"), 1, small_device(limit=0), tmp_path)
    assert (out.accuracy, out.status) == ("OOM", "out_of_memory")
    skipped = Job(
        spec=spec(purpose="accuracy"), model="timm:xcit_large_24_p8_224", mode="inference", batch_size=1, parent=1
    )
    (report,) = (item.measured for item in work.work(skipped, toy) if item.measured)
    assert report.accuracy == "pass_due_to_skip"


def test_gradients_that_are_lost_are_told_though_the_rule_takes_small_ones_for_equal(tmp_path: Path) -> None:
    class Small(Toy):
        """Has small gradients, and none in channels_last."""

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            logits = 1e-3 * super().forward(images)
            return logits if images.is_contiguous() else logits.detach() + 0 * logits

    request = spec(purpose="accuracy", mode="training", variants="eager,eager+channels_last")
    eager, other = rows_of(request, 2, lambda name, wanted: toy(name, wanted, Small), tmp_path)
    assert (eager.accuracy, other.accuracy) == ("pass", "pass")
    assert (eager.gradient_deviation or 0) < 1e-5
    assert not eager.notes
    assert other.gradient_deviation == 1
    assert any(note.startswith("gradients differ from the reference by 1 of their norm") for note in other.notes)


@pytest.mark.slow
def test_a_model_with_merged_branches_costs_what_it_costs_merged(tmp_path: Path) -> None:
    def build(_name: str, wanted: Wanted) -> Built:
        return library.build("timm:repvgg_a0", wanted)

    request = spec(variants="eager,eager+reparameterized", image_size=64)
    plain, merged = rows_of(request, 2, build, tmp_path)
    # RepVGG-A0, table 4 of https://arxiv.org/abs/2101.03697: 8.30 M once merged
    assert merged.mparams == pytest.approx(8.30, rel=2e-3)
    assert (plain.mparams or 0) > 9
    assert (plain.gmacs or 0) > 1.05 * (merged.gmacs or 0) > 0


class Dropping(Toy):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(super().forward(images), 0.5, self.training)


@pytest.mark.slow
def test_a_compiled_model_drops_what_eager_drops(tmp_path: Path) -> None:
    request = spec(purpose="accuracy", mode="training", variants="eager,compile")
    found = rows_of(request, 2, lambda name, wanted: toy(name, wanted, Dropping), tmp_path)
    assert [item.accuracy for item in found] == ["pass", "pass"], found[1].error


def test_two_eager_runs_that_differ_say_where_to_look(tmp_path: Path) -> None:
    request = spec(purpose="accuracy")
    (found,) = rows_of(request, 2, lambda name, wanted: toy(name, wanted, Forgetful), tmp_path)
    assert "no deterministic form" in found.notes[0]


def test_tolerance_is_against_the_baseline(tmp_path: Path) -> None:
    eager, half = rows_of(spec(purpose="tolerance", variants="eager,eager+bfloat16"), 2, toy, tmp_path)
    assert (eager.max_deviation, eager.mean_deviation) == (0, 0)
    assert 0 < (half.mean_deviation or 0) <= (half.max_deviation or 0) < 0.02
    assert half.baseline == "eager"


def test_models_that_the_suite_runs_in_amp_say_so() -> None:
    request = spec(precision="bfloat16", purpose="accuracy")
    job = Job(spec=request, model="timm:convit_base", mode="inference", batch_size=2, parent=1)
    (found,) = (item.measured for item in work.work(job, toy) if item.measured)
    assert (found.row["dtype"], found.row["autocast_dtype"]) == ("float32", "bfloat16")
    assert "amp_bfloat16 instead of bfloat16" in found.notes[0]
