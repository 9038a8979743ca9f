"""Peak memory of a process against what a run allocates on purpose."""

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


def hold(megabytes: int) -> Callable[[], None]:
    return lambda: torch.ones(megabytes * MB // 4).sum().item()  # type: ignore[return-value]


MEASURED = """
from engine.measure.peak import peak
from engine.measure.stopwatch import Stopwatch
from tests.engine.measure.test_peak import hold
print(*(peak(run, "cpu") for run in (lambda: None, hold(300), lambda: None)), sep="\\n")
"""


@pytest.mark.slow
def test_the_peak_holds_what_a_call_held_for_a_moment() -> None:
    """In a process of its own: the peak is that of a whole process, and this one other tests have used."""
    done = subprocess.run([sys.executable, "-c", MEASURED], cwd=ROOT, capture_output=True, text=True, check=True)
    (_, bare), (device, found), (_, later) = (ast.literal_eval(line) for line in done.stdout.splitlines())
    assert device is None
    assert found - bare == pytest.approx(300, abs=30)
    assert later - bare < 100, "an earlier peak must not be taken for this one's"


def test_calls_are_as_many_as_asked_for() -> None:
    calls: list[int] = []
    peak(lambda: calls.append(1), "cpu", calls=3)
    assert len(calls) == 3


def test_memory_that_was_freed_but_is_still_held_is_given_back_first() -> None:
    """Small pieces are freed into malloc's own store, and VmHWM would begin with them."""
    _, bare = peak(lambda: None, "cpu")
    pieces = [torch.ones(10_000) for _ in range(4000)]  # 160 MB, each below malloc's limit for mapping
    fence = torch.ones(10_000)
    del pieces
    _, found = peak(lambda: None, "cpu")
    assert bare is not None
    assert found is not None
    assert found - bare < 60
    assert fence.numel()


def test_none_where_the_mark_cannot_be_set_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "CLEAR_REFS", tmp_path / "none" / "clear_refs")
    assert peak(lambda: None, "cpu") == (None, None)


def test_the_accelerators_own_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake device's: it is set back before the calls and read after them, once the device is done."""
    seen: list[str] = []
    fake = SimpleNamespace(
        reset_peak_memory_stats=lambda _: seen.append("reset"),
        synchronize=lambda _: seen.append("synchronize"),
        max_memory_allocated=lambda _: seen.append("read") or 123 * MB,
    )
    monkeypatch.setattr(torch, "accelerator", fake)
    assert peak(lambda: seen.append("call"), "cuda:0", calls=2)[0] == 123
    assert seen == ["reset", "call", "call", "synchronize", "read"]


@pytest.mark.parametrize(("records_graphs", "found"), [(True, 400), (False, 100)])
def test_the_peak_of_a_compiled_graph_is_that_of_its_recording(
    monkeypatch: pytest.MonkeyPatch, records_graphs: bool, found: int
) -> None:
    """Calls like torch.compile's: the first compiles with 900 MB for a while, the second records, the others replay."""
    peaks, costs = [0], iter([900, 400, 100, 100, 100, 100])

    def call() -> None:
        peaks.append(next(costs) * MB)

    fake = SimpleNamespace(
        reset_peak_memory_stats=lambda _: peaks.clear(),
        synchronize=lambda _: None,
        max_memory_allocated=lambda _: max(peaks, default=0),
    )
    monkeypatch.setattr(torch, "accelerator", fake)
    _, measured = ready.first_call(
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


def test_none_where_the_accelerator_keeps_no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    def reset(_: object) -> None:
        raise RuntimeError("Allocator for mps is not a DeviceAllocator.")

    fake = SimpleNamespace(reset_peak_memory_stats=reset, synchronize=lambda _: None)
    monkeypatch.setattr(torch, "accelerator", fake)
    assert peak(lambda: None, "mps")[0] is None


def test_timing_goes_on_where_the_accelerator_keeps_no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[str] = []

    def no_account(*_: object) -> None:
        raise RuntimeError("Allocator for mps is not a DeviceAllocator.")

    fake = SimpleNamespace(memory_allocated=no_account, empty_cache=no_account, is_available=lambda: True)
    monkeypatch.setattr(torch, "accelerator", fake)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "empty_cache", lambda: emptied.append("mps"))
    assert ready._allocated("mps") == 0
    ready.release()
    assert emptied == ["mps"]
