"""GPU readings from a fake NVML: throttling, other processes, energy and settings."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

from engine.measure import gpu_watch, nvml
from engine.measure.gpu_watch import Watch, Watched, foreign, joules, notes, throttling, watch
from engine.measure.nvml import Gpu
from engine.measure.plan import Plan, Subject
from engine.measure.rates import Rate
from engine.measure.stopwatch import Stopwatch
from engine.measure.timing import measure
from engine.replicates import side_by_side
from engine.replicates.benchmark.job import Job
from engine.replicates.messages import Measured
from engine.replicates.ready import Ready
from engine.report.quantities import QUANTITIES
from engine.specs import BenchmarkSpec, DeviceSpec
from engine.tasks import device as device_task

POWER_CAP, IDLE, APPLICATION_CLOCKS, HOT, HARDWARE, POWER_BRAKE = 0x4, 0x1, 0x2, 0x40, 0x8, 0x80


class NVMLError(Exception):
    """Stand-in for `pynvml.NVMLError`."""


@dataclass
class Nvml:
    """Fake of the module pynvml with one GPU. Lists of readings are consumed one by one; the last one repeats."""

    clocks: list[int] = field(default_factory=lambda: [1980])
    maximum: int = 1980
    reasons: list[int] = field(default_factory=lambda: [0])
    compute: tuple[int, ...] = (os.getpid(),)
    graphics: tuple[int, ...] = ()
    names: dict[int, str] = field(default_factory=dict)
    uuids: tuple[str, ...] = ("GPU-12ab",)
    slices: bool = False
    energy_mj: Callable[[], int] | None = None
    missing: tuple[str, ...] = ()
    NVMLError = NVMLError
    NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 1, 2
    requested_uuid: str = ""
    energy_of: str = ""

    def nvmlInit(self) -> None:
        self._raise_if_missing("init")

    def nvmlShutdown(self) -> None:
        pass

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.04"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in self.uuids:
            raise NVMLError("not found")
        self.requested_uuid = uuid
        return "slice" if self.slices else "board"

    def nvmlDeviceIsMigDeviceHandle(self, handle: str) -> int:
        return int(handle == "slice")

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: str) -> str:
        assert handle == "slice"
        return "board"

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        self._raise_if_missing("clock")
        self._raise_for_slice(handle)
        assert kind == self.NVML_CLOCK_SM
        return self.clocks.pop(0) if len(self.clocks) > 1 else self.clocks[0]

    def nvmlDeviceGetMaxClockInfo(self, handle: str, kind: int) -> int:
        self._raise_if_missing("maximum")
        self._raise_for_slice(handle)
        return {self.NVML_CLOCK_SM: self.maximum, self.NVML_CLOCK_MEM: 2619}[kind]

    def nvmlDeviceGetApplicationsClock(self, handle: str, kind: int) -> int:
        self._raise_if_missing("application clocks")
        return {self.NVML_CLOCK_GRAPHICS: 1755, self.NVML_CLOCK_MEM: 2619}[kind]

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: str) -> int:
        self._raise_if_missing("power limit")
        return 700_000

    def nvmlDeviceGetPersistenceMode(self, handle: str) -> int:
        self._raise_if_missing("persistence")
        return 1

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        self._raise_if_missing("MIG")
        return [int(self.slices), 0]

    def nvmlDeviceGetEccMode(self, handle: str) -> list[int]:
        self._raise_if_missing("ECC")
        return [1, 1]

    def nvmlSystemGetProcessName(self, pid: int) -> str:
        if pid not in self.names:
            raise NVMLError("not found")
        return self.names[pid]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        self._raise_if_missing("reasons")
        self._raise_for_slice(handle)
        return self.reasons.pop(0) if len(self.reasons) > 1 else self.reasons[0]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:
        self._raise_if_missing("processes")
        assert handle == ("slice" if self.slices else "board")
        return [SimpleNamespace(pid=pid) for pid in self.compute]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: str) -> list[SimpleNamespace]:
        self._raise_if_missing("processes")
        return [SimpleNamespace(pid=pid) for pid in self.graphics]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        if self.energy_mj is None:
            raise NVMLError("not supported")
        self._raise_for_slice(handle)
        return self.energy_mj()

    def _raise_for_slice(self, handle: str) -> None:
        """Raise for a MIG slice: NVML has clocks and energy only for the whole board."""
        if handle != "board":
            raise NVMLError("not supported")

    def _raise_if_missing(self, reading: str) -> None:
        if reading in self.missing:
            raise NVMLError("not supported")


def read_fake_gpu(nvml: Nvml, looks: int = 3) -> Watched | None:
    found = Watch(Gpu(nvml, "board", "board"), every_s=0)
    for _ in range(looks):
        found.look()
    return found.watched()


def test_undisturbed_gpu_at_full_clocks_has_no_flags() -> None:
    found = read_fake_gpu(Nvml(reasons=[APPLICATION_CLOCKS]))
    assert found == Watched(clocks_mhz=(1980, 1980), reasons=(), others=0, maximum_mhz=1980)
    assert not found.throttled
    assert (throttling(found), foreign(found), notes("cuda:0", found)) == ("", (), ())


@pytest.mark.parametrize(
    ("bits", "reason"),
    [(HOT, "hardware thermal slowdown"), (HARDWARE, "hardware slowdown"), (POWER_BRAKE, "hardware power brake")],
)
def test_thermal_hardware_and_power_brake_slowdowns_are_throttling(bits: int, reason: str) -> None:
    found = read_fake_gpu(Nvml(reasons=[0, bits | POWER_CAP, 0]))
    assert found is not None
    assert found.throttled
    clocks = "SM clocks from 1980 to 1980 MHz of at most 1980 MHz"
    assert throttling(found) == f"the GPU reduced its clocks: {clocks} ({reason}, software power cap)"


def test_power_limit_is_a_note_and_not_throttling() -> None:
    found = read_fake_gpu(Nvml(reasons=[0, POWER_CAP, 0], clocks=[1980, 1500]))
    assert found is not None
    assert not found.throttled
    assert throttling(found) == ""
    assert notes("cuda:0", found) == (
        "the GPU reached its power limit, which is normal at full load: "
        "SM clocks from 1500 to 1980 MHz of at most 1980 MHz (software power cap)",
    )


@pytest.mark.parametrize("reasons", [0, POWER_CAP])
@pytest.mark.parametrize(("clock", "throttled"), [(1486, False), (1484, True)])  # three quarters of 1980 are 1485
def test_clocks_below_three_quarters_of_the_maximum_are_throttling(clock: int, reasons: int, throttled: bool) -> None:
    """The limit is relative to the maximum clock: a GPU that is always held at half never shows a higher clock."""
    found = read_fake_gpu(Nvml(clocks=[clock], reasons=[reasons]))
    assert found is not None
    assert found.throttled is throttled
    unknown = read_fake_gpu(Nvml(clocks=[1980, clock, 1980], missing=("maximum",)))
    assert unknown is not None
    assert unknown.maximum_mhz is None
    assert unknown.throttled is throttled


def test_clocks_of_idle_readings_are_ignored() -> None:
    found = read_fake_gpu(Nvml(reasons=[0, IDLE, 0], clocks=[1980, 1980, 345]), looks=2)
    assert found is not None
    assert not found.throttled
    idle = read_fake_gpu(Nvml(reasons=[IDLE]))
    assert idle == Watched(None, (), others=0, maximum_mhz=1980), "other processes are known even if the GPU was idle"
    assert not idle.throttled
    assert notes("cuda:0", idle) == (
        "not watched: the GPU's clocks, because it was idle at every reading or NVML reports none",
    )


@pytest.mark.parametrize(
    ("compute", "graphics", "others"),
    [
        ((os.getpid(),), (os.getpid(),), 0),
        ((os.getpid(), 4_000_001), (4_000_002,), 1),  # graphics processes belong to a desktop
        ((os.getpid(), 4_000_010, 4_000_011), (4_000_010, 4_000_011), 0),
        ((os.getpid(), 4_000_010, 4_000_001), (4_000_010,), 1),
        ((4_000_001,), (), 0),  # inside a container, where this process has another pid
        ((4_000_001, 4_000_002), (), 1),
        ((), (), None),
    ],
)
def test_other_processes_are_counted(compute: tuple[int, ...], graphics: tuple[int, ...], others: int | None) -> None:
    names = {
        4_000_001: "/usr/bin/python3",
        4_000_010: "/usr/bin/gnome-shell",
        4_000_011: "/usr/lib/xorg/Xorg :0 -auth x",
    }
    found = read_fake_gpu(Nvml(compute=compute, graphics=graphics, names=names))
    assert found is not None
    assert found.others == others
    assert foreign(found) == (("1 other process computed on the GPU",) if others else ())


def test_several_other_processes_are_in_the_plural() -> None:
    assert foreign(Watched(None, (), 2)) == ("2 other processes computed on the GPU",)


def test_missing_readings_stay_unknown() -> None:
    clocks_only = read_fake_gpu(Nvml(missing=("processes", "reasons")))
    assert clocks_only == Watched((1980, 1980), (), None, 1980)
    assert notes("cuda:0", clocks_only) == ("not watched: other processes on the GPU, because NVML does not list any",)
    assert read_fake_gpu(Nvml(missing=("processes", "reasons", "clock"))) is None


def test_device_without_nvml_readings_has_a_note() -> None:
    note = "not watched: clocks, throttling and other processes on {}, because NVML has no readings of it"
    assert notes("cuda:0", None) == (note.format("cuda:0"),)
    assert notes("mps", None) == (note.format("mps"),)
    assert notes("cpu", None) == (), "the CPU is watched by its own counters"


def test_readings_are_half_a_second_apart_and_between_rounds() -> None:
    now = 0.0
    looks: list[float] = []

    def work() -> None:
        nonlocal now
        now += 1 / 8

    class CountingNvml(Nvml):
        def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
            looks.append(now)
            return HOT

    gpu = Watch(Gpu(CountingNvml(), "board", "board"), clock=lambda: now)
    subject = Subject("model", {"forward": work})
    session = measure([subject], Stopwatch(lambda: None, lambda: now), Plan(), clock=lambda: now, gpu=gpu)
    assert session.gpu is not None
    assert session.gpu.throttled
    # 16 samples of 1/8 s: one reading after the first sample, then one after every fourth
    assert [look - looks[0] for look in looks] == [0, 0.5, 1.0, 1.5]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fake the CUDA device of torch, and return the devices that it synchronized."""
    synchronized: list[str] = []
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="12ab"))
    monkeypatch.setattr(torch.cuda, "synchronize", synchronized.append)
    return synchronized


@pytest.mark.usefixtures("cuda")
def test_gpu_is_found_by_its_uuid() -> None:
    nvml = Nvml()
    assert isinstance(watch("cuda:1", nvml), Watch)
    assert nvml.requested_uuid == "GPU-12ab"
    assert watch("cuda:1", Nvml(missing=("init",))) is None
    assert watch("cuda:1", Nvml(uuids=("GPU-34cd",))) is None


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("visible", [None, "0", "MIG-12ab", "MIG-GPU-9/1/0"])
def test_mig_slice_is_watched_with_the_clocks_of_its_board(
    monkeypatch: pytest.MonkeyPatch, visible: str | None
) -> None:
    """Torch gives the UUID of the slice. Older drivers: that of the board, and the variable names the slice."""
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    uuid = visible if visible and visible.startswith("MIG-") else "MIG-12ab"
    nvml = Nvml(uuids=(uuid, "GPU-99"), slices=True, clocks=[1200], energy_mj=lambda: 5)
    watching = watch("cuda:0", nvml)
    assert watching is not None
    assert nvml.requested_uuid == uuid
    watching.look()
    assert watching.watched() == Watched((1200, 1200), (), 0, 1980)
    assert joules(lambda: None, "cuda:0", 0.01, library=nvml) is None, "the energy counter covers all slices together"


@pytest.mark.usefixtures("cuda")
def test_facts_have_the_gpu_settings_that_nvml_reports() -> None:
    all_facts = {
        "power limit": "700 W",
        "maximum SM clock": "1980 MHz",
        "maximum memory clock": "2619 MHz",
        "application SM clock": "1755 MHz",
        "application memory clock": "2619 MHz",
        "persistence mode": "on",
        "MIG mode": "off",
        "ECC": "on",
    }
    assert nvml.facts("cuda:0", Nvml()) == all_facts
    some_facts = nvml.facts("cuda:0", Nvml(missing=("power limit", "application clocks", "ECC", "MIG")))
    assert list(some_facts) == ["maximum SM clock", "maximum memory clock", "persistence mode"]
    assert nvml.facts("cuda:0", Nvml(missing=("init",))) == {}
    assert nvml.facts("cpu", Nvml()) == {}


def test_joules_per_call_use_the_total_energy_counter(cuda: list[str]) -> None:
    """A board at 300 W and calls of 1/8 s: 37.5 J per call."""
    now = 0.0

    def work() -> None:
        nonlocal now
        now += 1 / 8

    nvml = Nvml(energy_mj=lambda: 5000 + int(now * 300_000))
    assert joules(work, "cuda:0", 2.0, library=nvml, clock=lambda: now) == pytest.approx(37.5)
    assert now == 2.0
    assert set(cuda) == {"cuda:0"}


def test_queue_of_asynchronous_calls_stays_short(cuda: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph of 20 ms is launched in 10 us, so launching for 1 s without waiting would queue half an hour of work."""
    now, queued, longest_queue = 0.0, 0.0, 0.0

    def launch() -> None:
        nonlocal now, queued
        now += 1e-5
        queued += 0.02

    def synchronize(_: str) -> None:
        nonlocal now, queued, longest_queue
        longest_queue = max(longest_queue, queued)
        now, queued = now + queued, 0.0

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    nvml = Nvml(energy_mj=lambda: int(now * 300_000))
    assert joules(launch, "cuda:0", 1.0, library=nvml, clock=lambda: now) == pytest.approx(6.0, rel=0.01)
    assert longest_queue <= 0.1
    assert now < 1.2
    assert cuda == []


def test_help_text_has_the_seconds_of_the_energy_measurement() -> None:
    assert f"of {side_by_side.ENERGY_S:g} s per process" in QUANTITIES["joules_per_sample"].help


@pytest.mark.usefixtures("cuda")
def test_gpu_without_an_energy_counter_has_no_joules() -> None:
    assert joules(lambda: None, "cuda:0", 1.0, library=Nvml()) is None


def test_nothing_is_watched_without_nvml() -> None:
    assert watch("cpu") is None
    assert watch("mps") is None
    assert joules(lambda: None, "cpu", 1.0) is None


def test_nothing_is_watched_on_an_amd_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert watch("cuda:0", Nvml()) is None


@pytest.mark.parametrize("kind", ["benchmark", "device"])
def test_timing_on_an_unwatched_gpu_watches_the_host_and_has_a_note(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake an AMD GPU: the settings are those of an AMD build, and the CPU does the work."""
    monkeypatch.setattr(torch.version, "cuda", None)
    note = "not watched: clocks, throttling and other processes on cuda:0, because NVML has no readings of it"
    plan = Plan(min_samples=2, min_seconds=0.01, warmup_calls=1, warmup_seconds=0)
    if kind == "benchmark":
        spec = BenchmarkSpec(models=("timm:toy",), device="cuda")
        job = Job(spec=spec, model="timm:toy", mode="inference", batch_size=1, parent=0)
        ready = Ready(
            "eager", {"forward": lambda: sum(range(9))}, nullcontext, Measured(label="eager", notes=("kept",))
        )
        reports = list(side_by_side.measure(job, Stopwatch(lambda: None), plan, lambda _: ready))
        found = reports[-1].measured
        assert found is not None
        assert (found.status, found.notes, found.throttled) == ("ok", ("kept", note), "")
        contention = found.contention
    else:
        session = measure([Subject("x", {"call": lambda: sum(range(9))})], Stopwatch(lambda: None), plan)
        best = Rate(1, {1: 1.0}, session.timed["x"], session, notes=("kept",))
        values = device_task._values(best, "copy", DeviceSpec(device="cuda"))
        assert values["notes"][0] == "kept"
        assert values["notes"][-1] == note
        contention = session.contention
    assert contention is not None
    assert contention.cpu_share is None
    assert contention.switches_per_s is not None


def test_reason_bits_equal_those_of_nvml() -> None:
    import pynvml

    names = ["SwPowerCap", "HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown"]
    assert set(gpu_watch.REASONS) == {getattr(pynvml, f"nvmlClocksEventReason{name}") for name in names}
    assert pynvml.nvmlClocksEventReasonGpuIdle == gpu_watch.IDLE
