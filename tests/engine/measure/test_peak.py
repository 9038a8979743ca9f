"""Peak memory of calls against known allocations."""

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engine.measure import peak as memory
from engine.measure.peak import peak
from engine.measure.stopwatch import Stopwatch
from engine.replicates import ready
from engine.settings import ROOT

MB = 1_000_000


def allocate(megabytes: int) -> Callable[[], None]:
    """Return a call that allocates so many megabytes and frees them."""
    return lambda: torch.ones(megabytes * MB // 4).sum().item()  # type: ignore[return-value]


MEASURE_PEAKS = """
from engine.measure.peak import peak
from engine.measure.stopwatch import Stopwatch
from tests.engine.measure.test_peak import allocate
print(*(peak(run, "cpu") for run in (lambda: None, allocate(300), lambda: None)), sep="\\n")
"""


@pytest.mark.slow
def test_peak_includes_memory_that_a_call_held_briefly() -> None:
    """Measured in a new process: the peak is that of a process, and earlier tests have raised it in this one."""
    child = subprocess.run([sys.executable, "-c", MEASURE_PEAKS], cwd=ROOT, capture_output=True, text=True, check=True)
    (_, base_mb), (device, found), (_, later_mb) = (ast.literal_eval(line) for line in child.stdout.splitlines())
    assert device is None
    assert found - base_mb == pytest.approx(300, abs=30)
    assert later_mb - base_mb < 100, "the peak of an earlier call must not count"


def test_peak_makes_the_requested_number_of_calls() -> None:
    calls: list[int] = []
    peak(lambda: calls.append(1), "cpu", calls=3)
    assert len(calls) == 3


def test_freed_memory_is_returned_to_the_system_before_measuring() -> None:
    """malloc keeps freed small blocks, and VmHWM would start with them."""
    _, base_mb = peak(lambda: None, "cpu")
    small_tensors = [torch.ones(10_000) for _ in range(4000)]  # 160 MB in blocks below the mmap threshold of malloc
    last_tensor = torch.ones(10_000)
    del small_tensors
    _, found = peak(lambda: None, "cpu")
    assert base_mb is not None
    assert found is not None
    assert found - base_mb < 60
    assert last_tensor.numel()


def test_peak_is_none_if_the_counter_cannot_be_reset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "CLEAR_REFS", tmp_path / "none" / "clear_refs")
    assert peak(lambda: None, "cpu") == (None, None)


def test_accelerator_peak_is_reset_before_and_read_after_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a fake device. The peak is read only after the device has finished its work."""
    events: list[str] = []
    fake = SimpleNamespace(
        reset_peak_memory_stats=lambda _: events.append("reset"),
        synchronize=lambda _: events.append("synchronize"),
        max_memory_allocated=lambda _: events.append("read") or 123 * MB,
    )
    monkeypatch.setattr(torch, "accelerator", fake)
    assert peak(lambda: events.append("call"), "cuda:0", calls=2)[0] == 123
    assert events == ["reset", "call", "call", "synchronize", "read"]


@pytest.mark.parametrize(("records_graphs", "found"), [(True, 400), (False, 100)])
def test_peak_of_a_compiled_graph_is_that_of_its_recording(
    monkeypatch: pytest.MonkeyPatch, records_graphs: bool, found: int
) -> None:
    """Imitate torch.compile: the first call compiles and needs 900 MB, the second records, the others replay."""
    peaks, costs = [0], iter([900, 400, 100, 100, 100, 100])

    def call() -> None:
        peaks.append(next(costs) * MB)

    fake = SimpleNamespace(
        reset_peak_memory_stats=lambda _: peaks.clear(),
        synchronize=lambda _: None,
        max_memory_allocated=lambda _: max(peaks, default=0),
    )
    monkeypatch.setattr(torch, "accelerator", fake)
    *_, measured = ready.first_call(
        "toy",
        lambda: call,
        lambda run: {"forward": run},
        Stopwatch(lambda: None),
        ready.Held("cuda:0", 0.0, 0.0),
        compiles=True,
        settling=2,
        records_graphs=records_graphs,
    )
    assert measured.device_peak_mb == found


def test_peak_is_none_if_the_accelerator_has_no_memory_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("Allocator for mps is not a DeviceAllocator.")

    fake = SimpleNamespace(reset_peak_memory_stats=fail, synchronize=lambda _: None, max_memory_allocated=fail)
    monkeypatch.setattr(torch, "accelerator", fake)
    assert peak(lambda: None, "mps")[0] is None


def test_release_works_if_the_accelerator_has_no_memory_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied_caches: list[str] = []

    def no_statistics(*_: object) -> None:
        raise RuntimeError("Allocator for mps is not a DeviceAllocator.")

    fake = SimpleNamespace(memory_allocated=no_statistics, empty_cache=no_statistics, is_available=lambda: True)
    monkeypatch.setattr(torch, "accelerator", fake)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "empty_cache", lambda: emptied_caches.append("mps"))
    assert ready.Held.now("mps", 0.0).allocated_mb == 0
    ready.release()
    assert emptied_caches == ["mps"]
