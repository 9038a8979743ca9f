"""Benchmark rows of failing variants and models. The real work runs in this process, on a tiny model."""

import itertools
import tempfile
import time
import weakref
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.exc import InvalidCxxCompiler

from engine.models import library, variants
from engine.models.built import Built, Wanted
from engine.replicates import side_by_side
from engine.replicates.benchmark import rows, work
from engine.replicates.benchmark.job import Job
from engine.replicates.benchmark.rows import Outcome
from engine.replicates.benchmark.sizes import Sizes, decayed
from engine.replicates.child import Ended
from engine.replicates.messages import Report, error_text
from engine.replicates.processes import Processes
from engine.results import BenchmarkRow, Progress, Status
from engine.specs import BenchmarkSpec, Variant

COMMON = {"library": "timm", "model": "toy", "device": "cpu", "batch_size_requested": "2"}
SHORT_TIMING: dict[str, Any] = {
    "models": "timm:toy",
    "batch_size": 2,
    "min_samples": 3,
    "min_seconds": 0.01,
    "threads": 1,
}


def spec(**fields: Any) -> BenchmarkSpec:
    return BenchmarkSpec(**SHORT_TIMING | fields)


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
        module = model().to(wanted.dtype).eval()
    images = torch.ones(wanted.batch_size, 3, 8, 8, device=wanted.device, dtype=wanted.dtype)
    return Built(module, (images,), {"image": ""}, "toy", (8, 8), (8, 8))


CUDA_OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def small_device(
    limit: int, applies_to: Callable[[Wanted], bool] = lambda wanted: True, error: Exception = CUDA_OUT_OF_MEMORY
) -> Callable[..., Built]:
    """Return a model builder that runs out of memory above a batch size of `limit`. applies_to: which models fail."""

    def build(name: str, wanted: Wanted) -> Built:
        if wanted.device != "meta" and wanted.batch_size > limit and applies_to(wanted):
            raise type(error)(*error.args)
        return toy(name, wanted)

    return build


def work_in_this_process(build: Callable[..., Built]) -> Callable[..., Generator[Report | Ended | None]]:
    """Return a function that does the work of a fresh process in this process."""

    def reports(job: Job, environment: Mapping[str, str], deadline: float) -> Generator[Report | Ended | None]:
        yield from work.work(job, build)

    return reports


def outcome(
    request: BenchmarkSpec, size: int | None, build: Callable[..., Built], tmp_path: Path, mode: Any = None
) -> Outcome:
    processes = Processes(tmp_path, time.monotonic() + 60, work_in_this_process(build))
    return _return_value(
        Sizes(request, "timm:toy", processes).outcome(mode or request.modes[0], size, Progress(done=0))
    )


def _return_value(waiting: Generator[Progress, None, Outcome]) -> Outcome:
    """Run a generator to its end and return its value."""
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


def test_batch_sizes_decay_as_in_timm() -> None:
    sizes = [100]
    while sizes[-1]:
        sizes.append(decayed(sizes[-1]))
    assert sizes == [100, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1, 0]


@pytest.mark.slow
def test_batch_that_does_not_fit_is_reduced_and_noted_in_the_row(tmp_path: Path) -> None:
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
def test_every_out_of_memory_message_of_a_gpu_reduces_the_batch(message: str, tmp_path: Path) -> None:
    build = small_device(limit=1, error=RuntimeError(message))
    (found,) = rows_of(spec(batch_size=2, replicates=1), 2, build, tmp_path)
    assert (found.status, found.batch_size) == ("ok", 1)
    assert "batch size 1 instead of 2, which ran out of memory" in found.notes


def test_row_is_out_of_memory_if_batch_one_does_not_fit(tmp_path: Path) -> None:
    eager, half = rows_of(spec(variants="eager,eager+bfloat16"), 2, small_device(limit=0), tmp_path)
    assert (eager.status, eager.batch_size) == ("out_of_memory", 1)
    assert eager.error.startswith("OutOfMemoryError: CUDA out of memory")
    assert half.status == "out_of_memory"


@pytest.mark.slow
def test_out_of_memory_of_one_variant_leaves_the_others(tmp_path: Path) -> None:
    build = small_device(limit=40, applies_to=lambda wanted: wanted.precision == "bfloat16")
    eager, half = rows_of(spec(variants="eager,eager+bfloat16", replicates=2), 64, build, tmp_path)
    assert (eager.status, eager.batch_size, eager.processes) == ("ok", 64, 2)
    assert (half.status, half.batch_size) == ("out_of_memory", 64)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 5, 40, 100])
def test_largest_batch_is_found_to_within_a_sixteenth(limit: int, tmp_path: Path) -> None:
    request = spec(batch_size="max", max_batch_size=64, replicates=1)
    (found,) = rows_of(request, None, small_device(limit), tmp_path)
    largest = min(limit, 64)
    assert largest - largest // 16 <= found.batch_size <= largest
    assert found.notes[0].startswith("64 fit, and no more" if limit >= 64 else f"{found.batch_size} fit, ")


@pytest.mark.parametrize("status", ["error", "timeout"])
def test_largest_batch_is_found_if_a_larger_one_ends_the_process(status: Status, tmp_path: Path) -> None:
    class Death(BaseException):
        pass

    def process(job: Job, environment: Mapping[str, str], deadline: float) -> Generator[Report | Ended | None]:
        try:
            yield from work.work(job, small_device(5, applies_to=lambda wanted: bool(job.bounds), error=Death()))
        except Death:
            yield Ended(status, "how it ended")

    request = spec(batch_size="max", max_batch_size=64, replicates=1)
    sizes = Sizes(request, "timm:toy", Processes(tmp_path, time.monotonic() + 60, process))
    found = _return_value(sizes.outcome("inference", None, Progress(done=0)))
    expected = {
        "error": (5, ("5 fit, 6 did not: how it ended",)),
        "timeout": (4, ("4 fit, and no larger one was finished: how it ended",)),
    }
    assert (found.batch_size, found.notes) == expected[status]


@pytest.mark.slow
def test_failed_variant_has_a_row_and_the_others_go_on(tmp_path: Path) -> None:
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
def test_tolerance_and_cosine_decide_whether_a_result_passes(
    fields: dict[str, Any], accuracy: str, tmp_path: Path
) -> None:
    """A model with 5 % larger weights fails by values and passes by cosine similarity."""
    builds = itertools.count(1)

    def scaled(name: str, wanted: Wanted) -> Built:
        built = toy(name, wanted)
        if next(builds) == 5:  # builds 1 to 4: two runs of eager, one in float64, and the variant eager
            for parameter in built.model.parameters():
                parameter.data *= 1.05
        return built

    request = spec(purpose="accuracy", variants="eager,eager+channels_last", **fields)
    assert [row.accuracy for row in rows_of(request, 2, scaled, tmp_path)] == ["pass", accuracy]


@pytest.mark.slow
def test_sampling_ends_after_max_seconds_with_a_note(tmp_path: Path) -> None:
    request = spec(min_samples=100_000, min_seconds=3600, max_seconds=1e-6, replicates=1)
    (found,) = rows_of(request, 2, toy, tmp_path)
    assert (found.status, found.samples) == ("ok", 1)
    assert "sampling was cut off after 1 sample" in found.notes
    assert "below_floor" in found.flags


@pytest.mark.slow
def test_training_row_has_times_of_its_phases(tmp_path: Path) -> None:
    (found,) = rows_of(spec(mode="training", replicates=1), 2, toy, tmp_path)
    assert found.status == "ok", found.error
    for phase_ms in (found.forward_ms, found.backward_ms, found.optimizer_ms):
        assert phase_ms is not None
        assert 0 < phase_ms < (found.latency_ms or 0)


@pytest.mark.slow
def test_error_that_breaks_the_device_does_not_affect_other_variants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an illegal access, a process on a GPU cannot free memory: it ends with the same error."""
    broken = RuntimeError("CUDA error: an illegal memory access was encountered")
    real = variants.runner

    def runner(variant: Variant, *arguments: Any) -> Callable[[], Any]:
        if variant.execution == "trace":
            raise broken
        return real(variant, *arguments)

    def release() -> None:
        raise broken

    def process(job: Job, environment: Mapping[str, str], deadline: float) -> Generator[Report | Ended | None]:
        try:
            yield from work.work(job, toy)
        except RuntimeError:
            yield Ended("error", "the process ended (exit code 1): the end of the log says more")

    monkeypatch.setattr(variants, "runner", runner)
    monkeypatch.setattr(side_by_side, "release", release)
    processes = Processes(tmp_path, time.monotonic() + 60, process)
    request = spec(variants="eager,trace,export", replicates=1)
    waiting = Sizes(request, "timm:toy", processes).outcome("inference", 2, Progress(done=0))
    eager, trace, export = rows.rows(request, COMMON, _return_value(waiting))
    assert (eager.status, export.status) == ("ok", "ok")
    assert trace.error == f"RuntimeError: {broken}"


@pytest.mark.slow
def test_out_of_memory_that_breaks_the_device_reduces_the_batch_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[int, tuple[str, ...]]] = []

    def release() -> None:
        raise CUDA_OUT_OF_MEMORY

    def process(job: Job, environment: Mapping[str, str], deadline: float) -> Generator[Report | Ended | None]:
        started.append((job.batch_size, job.skip))
        try:
            yield from work.work(job, small_device(limit=1))
        except torch.OutOfMemoryError:
            yield Ended("error", "how it ended")

    monkeypatch.setattr(side_by_side, "release", release)
    sizes = Sizes(
        spec(variants="eager,eager+channels_last", replicates=1),
        "timm:toy",
        Processes(tmp_path, time.monotonic() + 60, process),
    )
    assert _return_value(sizes.outcome("inference", 2, Progress(done=0))).batch_size == 1
    assert started == [(2, ()), (1, ())]


def test_results_of_a_process_that_dies_after_its_work_are_kept(tmp_path: Path) -> None:
    def process(job: Job, environment: Mapping[str, str], deadline: float) -> Generator[Report | Ended | None]:
        yield from work.work(job, toy)
        yield Ended("error", "how it ended")

    request = spec(purpose="accuracy", variants="eager,eager+channels_last")
    waiting = Sizes(request, "timm:toy", Processes(tmp_path, time.monotonic() + 60, process)).outcome(
        "inference", 2, Progress(done=0)
    )
    found = rows.rows(request, COMMON, _return_value(waiting))
    assert [(row.status, row.accuracy) for row in found] == [("ok", "pass"), ("ok", "pass")]


class SlowFirstCall(Toy):
    """The first call takes half a second longer."""

    awake = False

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if not self.awake:
            time.sleep(0.5)
            self.awake = True
        return super().forward(images)


@pytest.mark.slow
def test_first_call_is_reported_separately_and_is_not_a_sample(tmp_path: Path) -> None:
    request = spec(replicates=1)
    build = lambda name, wanted: toy(name, wanted, SlowFirstCall)  # noqa: E731
    measured = outcome(request, 2, build, tmp_path).processes[0]["eager"]
    assert (measured.first_call_ms or 0) >= 500
    assert max(measured.timed.samples_ms) < 500


@pytest.mark.slow
def test_row_has_counts_per_sample(tmp_path: Path) -> None:
    (found,) = rows_of(spec(replicates=1), 2, toy, tmp_path)
    macs = 6 * 6 * 4 * 3 * 3 * 3 + 4 * 5
    assert found.gmacs == pytest.approx(macs / 1e9)
    assert found.gflops == pytest.approx(2 * macs / 1e9)
    assert found.mparams == pytest.approx((3 * 4 * 9 + 4 + 4 * 5 + 5) / 1e6)


@pytest.mark.slow
def test_single_process_compiles_twice_for_cold_and_warm_times(tmp_path: Path) -> None:
    request = spec(variants="eager,compile:aot_eager,compile:nonsense", replicates=1)
    eager, compiled, unknown = rows_of(request, 2, toy, tmp_path)
    assert (eager.status, eager.compile_cold_ms, eager.unique_graphs) == ("ok", None, None)
    assert compiled.status == "ok", compiled.error
    assert (compiled.compile_cold_ms or 0) > 0
    assert (compiled.compile_warm_ms or 0) > 0
    assert (compiled.unique_graphs, compiled.graph_breaks) == (1, 0)
    assert unknown.status == "error"
    assert "nonsense" in unknown.error


class Nondeterministic(Toy):
    """A model with another result in each call."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.calls = getattr(self, "calls", 0) + next(Nondeterministic.counter)
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
        (Nondeterministic, "eager_two_runs_differ"),
        (Broken, "eager_fail_to_run"),
        (Unbuildable, "model_fail_to_load"),
    ],
)
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_accuracy_status_of_broken_models(
    model: type[torch.nn.Module], expected: str, mode: str, tmp_path: Path
) -> None:
    request = spec(purpose="accuracy", mode=mode, variants="eager,eager+channels_last")
    found = rows_of(request, 2, lambda name, wanted: toy(name, wanted, model), tmp_path)
    assert [item.accuracy for item in found] == [expected] * 2
    assert all(item.status == ("error" if "fail_to" in expected else "ok") for item in found)
    if model is NoDouble:
        assert any("float64" in note for note in found[1].notes)


def test_accuracy_status_of_variants_and_skipped_models(tmp_path: Path) -> None:
    class FormatDependent(Toy):
        """A model with another result in channels_last."""

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(images) + (0.0 if images.is_contiguous() else 0.1)

    request = spec(purpose="accuracy", variants="eager,eager+channels_last,eager+checkpointing,eager+bfloat16")
    eager, other, failing, half = rows_of(request, 2, lambda name, wanted: toy(name, wanted, FormatDependent), tmp_path)
    assert (eager.accuracy, other.accuracy, failing.accuracy) == ("pass", "fail_accuracy", "fail_to_run")
    assert half.accuracy == "pass", "compared with eager in the same precision"
    (too_large,) = rows_of(spec(purpose="accuracy"), 1, small_device(limit=0), tmp_path)
    assert (too_large.accuracy, too_large.status) == ("OOM", "out_of_memory")
    skipped = Job(
        spec=spec(purpose="accuracy"), model="timm:xcit_large_24_p8_224", mode="inference", batch_size=1, parent=1
    )
    (report,) = (item.measured for item in work.work(skipped, toy) if item.measured)
    assert report.accuracy == "pass_due_to_skip"


@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_accuracy_check_that_cannot_fail_is_noted(scale: float, tmp_path: Path) -> None:
    """Outputs of many models with random weights are smaller than the tolerance, or constant but for a small part."""

    class Blank(Toy):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            logits = 1 + scale * super().forward(images)
            return logits if images.is_contiguous() else torch.ones_like(logits)

    request = spec(purpose="accuracy", variants="eager,eager+channels_last")
    eager, blank = rows_of(request, 2, lambda name, wanted: toy(name, wanted, Blank), tmp_path)
    assert (eager.accuracy, blank.accuracy) == ("pass", "pass" if scale < 1 else "fail_accuracy")
    expected = [scale < 1] * 2
    assert [any(note.startswith("this pass says little") for note in row.notes) for row in (eager, blank)] == expected


def test_lost_gradients_are_noted_although_accuracy_passes(tmp_path: Path) -> None:
    class LosesGradients(Toy):
        """A model with small gradients, and without gradients in channels_last."""

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            logits = 1e-3 * super().forward(images)
            return logits if images.is_contiguous() else logits.detach() + 0 * logits

    request = spec(purpose="accuracy", mode="training", variants="eager,eager+channels_last")
    eager, other = rows_of(request, 2, lambda name, wanted: toy(name, wanted, LosesGradients), tmp_path)
    assert (eager.accuracy, other.accuracy) == ("pass", "pass")
    assert (eager.gradient_deviation or 0) < 1e-5
    assert not eager.notes
    assert other.gradient_deviation == 1
    assert any(note.startswith("gradients differ from the reference by 1 of their norm") for note in other.notes)


def test_reference_frees_each_model_before_it_builds_the_next(tmp_path: Path) -> None:
    alive: list[int] = []
    models: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    def build(name: str, wanted: Wanted) -> Built:
        if wanted.device != "meta":
            alive.append(len(models))
        built = toy(name, wanted)
        models.add(built.model)
        return built

    (found,) = rows_of(spec(purpose="accuracy", mode="training"), 2, build, tmp_path)
    assert found.accuracy == "pass"
    assert alive == [0] * 4, "two runs of eager, one in float64, and the variant"


@pytest.mark.slow
def test_reparameterized_model_has_counts_of_its_merged_branches(tmp_path: Path) -> None:
    def build(_name: str, wanted: Wanted) -> Built:
        return library.build("timm:repvgg_a0", wanted)

    request = spec(variants="eager,eager+reparameterized", image_size=64)
    plain, merged = rows_of(request, 2, build, tmp_path)
    # RepVGG-A0, table 4 of https://arxiv.org/abs/2101.03697: 8.30 M parameters after merging
    assert merged.mparams == pytest.approx(8.30, rel=2e-3)
    assert (plain.mparams or 0) > 9
    assert (plain.gmacs or 0) > 1.05 * (merged.gmacs or 0) > 0


class WithDropout(Toy):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(super().forward(images), 0.5, self.training)


@pytest.mark.slow
def test_compiled_model_has_the_same_dropout_as_eager(tmp_path: Path) -> None:
    request = spec(purpose="accuracy", mode="training", variants="eager,compile")
    found = rows_of(request, 2, lambda name, wanted: toy(name, wanted, WithDropout), tmp_path)
    assert [item.accuracy for item in found] == ["pass", "pass"], found[1].error


@pytest.mark.parametrize(("folder", "begin"), [("/my files", "torch.compile needs a"), ("/tmp", "RuntimeError: ")])
def test_failed_compilation_in_a_folder_with_blanks_has_the_remedy(
    monkeypatch: pytest.MonkeyPatch, folder: str, begin: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", folder)
    text = error_text(RuntimeError("CppCompileError: C++ compile error"))
    assert text.startswith(begin)
    assert ("set TMPDIR" in text) == (" " in folder)


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("main.cpp:65:10: fatal error: Python.h: No such file or directory", "install python3-dev"),
        (str(InvalidCxxCompiler()), "install g++"),
        ("Failed to find C compiler. Please specify via CC", "install gcc"),
    ],
)
def test_failed_compilation_without_a_compiler_or_headers_has_the_remedy(message: str, remedy: str) -> None:
    text = error_text(RuntimeError(message))
    assert text.startswith("torch.compile needs ")
    assert remedy in text
    assert message in text


def test_note_of_differing_eager_runs_names_nondeterminism(tmp_path: Path) -> None:
    request = spec(purpose="accuracy")
    (found,) = rows_of(request, 2, lambda name, wanted: toy(name, wanted, Nondeterministic), tmp_path)
    assert "no deterministic form" in found.notes[0]


def test_deviations_are_relative_to_the_baseline(tmp_path: Path) -> None:
    eager, half = rows_of(spec(purpose="tolerance", variants="eager,eager+bfloat16"), 2, toy, tmp_path)
    assert (eager.max_deviation, eager.mean_deviation) == (0, 0)
    assert 0 < (half.mean_deviation or 0) <= (half.max_deviation or 0) < 0.02
    assert half.baseline == "eager"


def test_failed_measurement_of_deviations_is_no_failed_accuracy_check(tmp_path: Path) -> None:
    request = spec(purpose="tolerance", variants="eager,eager+reparameterized", mode="training")
    _, failed = rows_of(request, 2, toy, tmp_path)
    assert (failed.status, failed.accuracy) == ("error", None)


def test_model_that_the_suite_runs_in_amp_has_a_note() -> None:
    request = spec(precision="bfloat16", purpose="accuracy")
    job = Job(spec=request, model="timm:convit_base", mode="inference", batch_size=2, parent=1)
    (found,) = (item.measured for item in work.work(job, toy) if item.measured)
    assert (found.row["dtype"], found.row["autocast_dtype"]) == ("float32", "bfloat16")
    assert "amp_bfloat16 instead of bfloat16" in found.notes[0]
