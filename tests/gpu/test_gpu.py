"""Counting, timing and memory on a real accelerator: `pytest -m gpu`. Other tests use fakes of the accelerator."""

import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

from engine.measure import environment, gpu_watch
from engine.measure.peak import peak
from engine.measure.plan import Plan, Subject
from engine.measure.stopwatch import Stopwatch, flusher, stopwatch_for
from engine.measure.timing import measure
from engine.models import library, variants
from engine.models.built import Wanted, out_of_memory
from engine.models.variants import Numbers
from engine.replicates import messages
from engine.replicates.benchmark import rows as benchmark_rows
from engine.replicates.benchmark import work
from engine.replicates.benchmark.job import Job
from engine.replicates.benchmark.sizes import Sizes
from engine.replicates.child import Ended
from engine.replicates.messages import Measured, Report
from engine.replicates.processes import Processes
from engine.results import BenchmarkRow, Progress
from engine.settings import ROOT
from engine.specs import BenchmarkSpec, ModelName, ProfileSpec, Variant
from engine.tasks.benchmark import run
from engine.tasks.profile import profile

pytestmark = pytest.mark.gpu


@pytest.fixture
def device() -> str:
    found = torch.accelerator.current_accelerator(check_available=True)
    assert found is not None, "these tests need an accelerator that torch can use"
    return f"{found.type}:0"


@pytest.mark.parametrize("model", ["timm:resnet18", "timm:vit_tiny_patch16_224", "open_clip:ViT-B-32"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_counts_on_the_accelerator_equal_those_on_meta(device: str, model: str, precision: str) -> None:
    request = {"models": (model,), "precision": precision, "batch_size": 2}
    real = profile(model, ProfileSpec.model_validate(request | {"device": device})).row
    meta = profile(model, ProfileSpec.model_validate(request)).row
    assert (real.status, real.device_used, real.complete) == ("ok", device, True), real.error
    assert (real.gflops, real.macts, real.mparams) == (meta.gflops, meta.macts, meta.mparams)


def test_counters_agree_on_the_accelerator_or_explain_differences(device: str) -> None:
    row = profile("timm:resnet18", ProfileSpec(models=("timm:resnet18",), device=device, counter="both")).row
    assert row.status == "ok", row.error
    assert row.fvcore_macts == row.macts
    assert all(difference.explanation != "not explained" for difference in row.differences)


def test_out_of_memory_error_of_the_accelerator_is_recognized(device: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50, dtype=torch.uint8, device=device)
    assert out_of_memory(caught.value)


# timing, on CUDA

MB = 1_000_000
SHORT_TIMING: dict[str, Any] = {"models": "torchvision:resnet18", "image_size": 64, "batch_size": 8, "device": "cuda"}
SHORT_TIMING |= {"replicates": 1, "min_seconds": 0.2}


@pytest.fixture
def cuda(device: str) -> str:
    if not device.startswith("cuda"):
        pytest.skip("no CUDA device")
    return device


@pytest.fixture
def matrix_product(cuda: str) -> Callable[[], torch.Tensor]:
    """Return a call of a few milliseconds, far longer than its launch."""
    left, right = (torch.randn(8192, 8192, device=cuda) for _ in range(2))
    return lambda: left @ right


def measure_in_process(request: BenchmarkSpec, **fields: Any) -> dict[str, Measured]:
    """Return what one process measures, by variant."""
    job = Job(spec=request, model=request.models[0], mode="inference", batch_size=8, parent=1, **fields)
    return {item.measured.label: item.measured for item in work.work(job) if item.measured}


def run_rows(tmp_path: Path, **fields: Any) -> list[BenchmarkRow]:
    return [item for item in run(BenchmarkSpec(**SHORT_TIMING | fields), tmp_path) if isinstance(item, BenchmarkRow)]


def test_cuda_events_agree_with_the_clock_of_the_host(cuda: str, matrix_product: Callable[[], torch.Tensor]) -> None:
    events, host = stopwatch_for(cuda), Stopwatch(lambda: torch.cuda.synchronize(cuda))
    events.queued(matrix_product, 10)
    pairs = [(events.queued(matrix_product, 10), host.queued(matrix_product, 10)) for _ in range(7)]
    assert median(by_events for by_events, _ in pairs) == pytest.approx(
        median(by_host for _, by_host in pairs), rel=0.03
    )


def test_environment_creates_no_cuda_context(cuda: str) -> None:
    """A process with a context would count as another process on the GPU, and timings would be flagged."""
    code = f"import torch; from engine.measure import environment; environment.current({cuda!r}, 1)\n"
    code += "print(torch._C._cuda_hasPrimaryContext(0))"
    child = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "False"


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_every_variant_is_timed_beside_eager(cuda: str, mode: str, tmp_path: Path) -> None:
    variant_labels = "eager,eager+amp,eager+bfloat16,eager+channels_last,cudagraphs,cudagraphs+amp"
    variant_labels += ",eager+tf32" * variants.has_tf32(cuda)
    for row in run_rows(tmp_path, mode=mode, variants=f"{variant_labels},compile,compile:reduce-overhead"):
        assert row.status == "ok", f"{row.variant}: {row.error}"
        assert row.latency_ms
        assert row.back_to_back_ms
        assert row.back_to_back_ms < 1.1 * row.latency_ms, "a queue hides the time of launches and adds none"
        assert row.device_peak_mb
        assert row.contention
        assert row.contention.cpu_share is None
        assert row.contention.switches_per_s is not None


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_every_variant_computes_the_same_as_eager(cuda: str, mode: str, tmp_path: Path) -> None:
    variant_labels = "eager,cudagraphs,compile,compile:reduce-overhead"
    found = run_rows(tmp_path, purpose="accuracy", mode=mode, variants=variant_labels, deterministic=True)
    assert {row.variant: row.accuracy for row in found} == dict.fromkeys(variant_labels.split(","), "pass")


def test_flush_empties_the_l2_cache(cuda: str) -> None:
    """Time a copy with a full and a flushed cache. Both of its buffers together take at most half of the L2.

    The device waits while the calls are queued, so that the events enclose only the copy: its launch takes longer.
    """
    size = min(8 * MB, environment.last_level_cache(cuda) // 4)
    source, target = (torch.zeros(size // 4, device=cuda) for _ in range(2))

    def copy() -> torch.Tensor:
        return target.copy_(source)

    def milliseconds(before: Callable[[], object]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before()
        torch.cuda._sleep(1_000_000)  # cycles: about half a millisecond
        begin.record()
        copy()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    flush = flusher(cuda)
    pairs = [(milliseconds(copy), milliseconds(flush)) for _ in range(200)]
    hot, cold = zip(*pairs, strict=True)
    assert median(cold) > median(hot)


def test_tf32_switch_affects_matrices_and_convolutions(cuda: str) -> None:
    if not variants.has_tf32(cuda):
        pytest.skip("this GPU has no TF32")
    matrix, image = torch.randn(512, 512, device=cuda), torch.randn(4, 64, 32, 32, device=cuda)
    kernel = torch.randn(64, 64, 3, 3, device=cuda)
    calls = [lambda x, _: x @ x, lambda x, y: torch.nn.functional.conv2d(x, y)]
    for call, arguments in zip(calls, [(matrix, matrix), (image, kernel)], strict=True):
        exact = call(*(item.double() for item in arguments))
        errors = []
        for tf32 in (False, True, False):
            found = Numbers("float32", tf32=tf32)
            with variants.switches(found, training=False):
                errors.append(float((call(*arguments) - exact).abs().mean()))
        assert errors[1] > 20 * max(errors[0], errors[2])


def test_peak_is_that_of_the_allocator(cuda: str) -> None:
    held_tensor = torch.ones(50 * MB // 4, device=cuda)
    found, _ = peak(lambda: torch.ones(300 * MB // 4, device=cuda).sum(), cuda)
    before = torch.accelerator.memory_allocated(cuda) / 1e6
    assert found is not None
    assert found - before == pytest.approx(300, rel=0.05)
    assert held_tensor.numel()


def test_peaks_do_not_depend_on_order_and_include_graph_memory(cuda: str) -> None:
    request = BenchmarkSpec(
        **SHORT_TIMING | {"image_size": 224, "variants": "eager,eager+channels_last,cudagraphs,trace"}
    )
    peaks = {label: item.device_peak_mb for label, item in measure_in_process(request).items()}
    alone_mb = measure_in_process(BenchmarkSpec(**SHORT_TIMING | {"image_size": 224, "variants": "trace"}))[
        "trace"
    ].device_peak_mb
    assert peaks["trace"] == pytest.approx(alone_mb, rel=0.1)
    assert (peaks["cudagraphs"] or 0) > 0.8 * (peaks["eager"] or 0)


def test_clocks_of_a_busy_gpu_are_read(cuda: str, matrix_product: Callable[[], torch.Tensor]) -> None:
    watch = gpu_watch.watch(cuda)
    if watch is None:
        pytest.skip("NVML does not know this device")
    session = measure([Subject("product", {"call": matrix_product})], stopwatch_for(cuda), Plan(), gpu=watch)
    assert session.gpu is not None
    if session.gpu.clocks_mhz is None:
        pytest.skip("the GPU was idle at every reading, or NVML reports no clocks")
    low, high = session.gpu.clocks_mhz
    assert 0 < low <= high <= (session.gpu.maximum_mhz or high)


def test_energy_is_proportional_to_the_work(cuda: str, matrix_product: Callable[[], torch.Tensor]) -> None:
    joules_of_one = gpu_watch.joules(matrix_product, cuda, 2)
    if joules_of_one is None:
        pytest.skip("this GPU does not count its energy")
    joules_of_three = gpu_watch.joules(lambda: [matrix_product() for _ in range(3)], cuda, 2)
    assert joules_of_three is not None
    assert joules_of_three / joules_of_one == pytest.approx(3, rel=0.3)


def test_batch_that_does_not_fit_is_reduced(cuda: str, tmp_path: Path) -> None:
    request = BenchmarkSpec(**SHORT_TIMING | {"image_size": 224, "batch_size": 256})

    def work_in_this_process(
        job: messages.Job, environment: Mapping[str, str], deadline: float
    ) -> Generator[Report | Ended | None]:
        assert isinstance(job, Job)
        yield from work.work(job)

    torch.cuda.empty_cache()
    limit_bytes = torch.cuda.memory_reserved(cuda) + 10**9
    torch.cuda.set_per_process_memory_fraction(limit_bytes / torch.cuda.get_device_properties(cuda).total_memory, cuda)
    try:
        processes = Processes(tmp_path, time.monotonic() + 300, work_in_this_process)
        waiting = Sizes(request, ModelName(request.models[0]), processes).outcome("inference", 256, Progress(done=0))
        while True:
            try:
                next(waiting)
            except StopIteration as end:
                outcome = end.value
                break
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, cuda)
    common = {"library": "torchvision", "model": "resnet18", "device": cuda, "batch_size_requested": "256"}
    (row,) = benchmark_rows.rows(request, common, outcome)
    assert row.status == "ok", row.error
    assert row.batch_size < 256
    assert f"batch size {row.batch_size} instead of 256, which ran out of memory" in row.notes


def test_cuda_graph_is_replayed_on_the_last_device(cuda: str) -> None:
    last = f"cuda:{torch.cuda.device_count() - 1}"
    built = library.build("torchvision:resnet18", Wanted(device=last, batch_size=2, image_size=(64, 64), seed=1))
    torch.accelerator.set_device_index(last)
    try:
        with torch.no_grad():
            replay = variants.runner(Variant.parse("cudagraphs"), built, Numbers("float32"), last)
            torch.testing.assert_close(replay(), built.model(*built.inputs), rtol=1e-3, atol=1e-3)
    finally:
        torch.accelerator.set_device_index(0)
