"""What NVML says of a GPU, from a fake NVML: throttling, other processes, energy; and nothing on a machine without."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

from engine.measure import gpu_watch
from engine.measure.gpu_watch import Watch, Watched, joules, watch
from engine.measure.timing import HostStopwatch, Plan, Subject, measure

POWER_CAP, IDLE, APPLICATION_CLOCKS, HOT = 0x4, 0x1, 0x2, 0x40


class NVMLError(Exception):
    """As NVML's own."""


@dataclass
class Nvml:
    """One GPU, as the module pynvml would tell of it."""

    clocks: list[int] = field(default_factory=lambda: [1980])
    reasons: list[int] = field(default_factory=lambda: [0])
    compute: tuple[int, ...] = (os.getpid(),)
    graphics: tuple[int, ...] = ()
    energy_mj: Callable[[], int] | None = None
    missing: tuple[str, ...] = ()
    NVMLError = NVMLError
    NVML_CLOCK_SM = 1
    asked_uuid: str = ""

    def nvmlInit(self) -> None:
        self._tell("init")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.asked_uuid = uuid
        return "handle"

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        self._tell("clock")
        assert (handle, kind) == ("handle", self.NVML_CLOCK_SM)
        return self.clocks.pop(0) if len(self.clocks) > 1 else self.clocks[0]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        self._tell("reasons")
        return self.reasons.pop(0) if len(self.reasons) > 1 else self.reasons[0]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:
        self._tell("processes")
        return [SimpleNamespace(pid=pid) for pid in self.compute]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: str) -> list[SimpleNamespace]:
        self._tell("processes")
        return [SimpleNamespace(pid=pid) for pid in self.graphics]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        if self.energy_mj is None:
            raise NVMLError("not supported")
        return self.energy_mj()

    def _tell(self, what: str) -> None:
        if what in self.missing:
            raise NVMLError("not supported")


def watched(nvml: Nvml, looks: int = 3) -> Watched | None:
    found = Watch(nvml, "handle", every_s=0)
    for _ in range(looks):
        found.look()
    return found.watched()


def test_a_gpu_at_its_clocks_and_alone_is_not_flagged() -> None:
    found = watched(Nvml(reasons=[APPLICATION_CLOCKS]))
    assert found == Watched(clocks_mhz=(1980, 1980), reasons=(), others=0)
    assert not found.throttled


@pytest.mark.parametrize(("bits", "reason"), [(POWER_CAP, "software power cap"), (HOT, "hardware thermal slowdown")])
def test_a_reason_at_any_look_is_throttling(bits: int, reason: str) -> None:
    found = watched(Nvml(reasons=[0, bits, 0]))
    assert found is not None
    assert found.throttled
    assert found.reasons == (reason,)


@pytest.mark.parametrize(("lowest", "throttled"), [(1486, False), (1484, True)])  # three quarters of 1980 are 1485
def test_clocks_far_below_their_highest_are_throttling_without_a_reason(lowest: int, throttled: bool) -> None:
    found = watched(Nvml(clocks=[1980, lowest, 1980]))
    assert found is not None
    assert found.clocks_mhz == (lowest, 1980)
    assert found.throttled is throttled


def test_the_clocks_of_an_idle_moment_say_nothing() -> None:
    found = watched(Nvml(reasons=[0, IDLE, 0], clocks=[1980, 1980, 345]), looks=2)
    assert found is not None
    assert not found.throttled
    idle = watched(Nvml(reasons=[IDLE]))
    assert idle == Watched(clocks_mhz=None, reasons=(), others=0), "who else was there is known all the same"
    assert not idle.throttled


@pytest.mark.parametrize(
    ("compute", "graphics", "others"),
    [
        ((os.getpid(),), (os.getpid(),), 0),
        ((os.getpid(), 4_000_001), (4_000_002,), 2),
        ((4_000_001,), (), 0),  # inside a container, where this process has another number
        ((4_000_001, 4_000_002), (), 1),
        ((), (), None),
    ],
)
def test_other_processes_are_counted(compute: tuple[int, ...], graphics: tuple[int, ...], others: int | None) -> None:
    found = watched(Nvml(compute=compute, graphics=graphics))
    assert found is not None
    assert found.others == others


def test_what_a_gpu_does_not_tell_stays_unknown() -> None:
    assert watched(Nvml(missing=("processes", "reasons"))) == Watched((1980, 1980), (), None)
    assert watched(Nvml(missing=("processes", "reasons", "clock"))) is None


def test_looks_are_half_a_second_apart_and_between_rounds() -> None:
    now = 0.0
    looks: list[float] = []

    def work() -> None:
        nonlocal now
        now += 1 / 8

    class Counted(Nvml):
        def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
            looks.append(now)
            return POWER_CAP

    gpu = Watch(Counted(), "handle", clock=lambda: now)
    subject = Subject("model", {"forward": work})
    session = measure([subject], HostStopwatch(lambda: None, lambda: now), Plan(), clock=lambda: now, gpu=gpu)
    assert session.gpu is not None
    assert session.gpu.throttled
    # 16 samples of 1/8 s; a look after the first, and then after every fourth
    assert [look - looks[0] for look in looks] == [0, 0.5, 1.0, 1.5]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """torch's side of a CUDA device that is not there."""
    waited: list[str] = []
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="12ab"))
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    return waited


@pytest.mark.usefixtures("cuda")
def test_the_gpu_is_found_by_its_id() -> None:
    nvml = Nvml()
    assert isinstance(watch("cuda:1", nvml), Watch)
    assert nvml.asked_uuid == "GPU-12ab"
    assert watch("cuda:1", Nvml(missing=("init",))) is None


def test_joules_per_call_from_the_counter_of_all_energy(cuda: list[str]) -> None:
    """A board of 300 W, and calls of 1/8 s: 37.5 J each."""
    now = 0.0

    def work() -> None:
        nonlocal now
        now += 1 / 8

    nvml = Nvml(energy_mj=lambda: 5000 + int(now * 300_000))
    assert joules(work, "cuda:0", 2.0, nvml=nvml, clock=lambda: now) == pytest.approx(37.5)
    assert now == 2.0
    assert cuda == ["cuda:0", "cuda:0"], "the device must be done before each reading"


@pytest.mark.usefixtures("cuda")
def test_no_energy_where_the_gpu_does_not_count_it() -> None:
    assert joules(lambda: None, "cuda:0", 1.0, nvml=Nvml()) is None


def test_nothing_is_watched_without_nvml() -> None:
    assert watch("cpu") is None
    assert watch("mps") is None
    assert joules(lambda: None, "cpu", 1.0) is None


def test_nothing_is_watched_on_an_amd_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert watch("cuda:0", Nvml()) is None


def test_reasons_are_those_of_nvml() -> None:
    import pynvml

    names = ["SwPowerCap", "HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown"]
    assert set(gpu_watch.REASONS) == {getattr(pynvml, f"nvmlClocksEventReason{name}") for name in names}
    assert pynvml.nvmlClocksEventReasonGpuIdle == gpu_watch.IDLE
