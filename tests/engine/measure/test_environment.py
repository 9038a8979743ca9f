"""Description of the machine: devices, versions, caches, threads and available memory."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from engine.measure import environment
from engine.specs import Refused
from tests.engine.measure.test_gpu_watch import Nvml


def test_current_environment_has_device_and_versions() -> None:
    current = environment.current("cpu", seed=7)
    assert (current.device, current.seed, current.tf32) == ("cpu", 7, False)
    assert current.device_name == current.cpu != ""
    assert current.versions["torch"] == torch.__version__, "the version includes the build, such as +cu130"
    assert current.versions.get("cuda") == torch.version.cuda
    assert current.gpu == {}
    assert current.memory_gb == round(psutil.virtual_memory().total / 1e9, 1)
    assert abs((datetime.now(UTC) - datetime.fromisoformat(current.date)).total_seconds()) < 60
    assert environment.current("meta").device_name == "shapes only"


def test_environment_has_the_variables_that_change_how_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ.keys() - {"PATH"}:
        monkeypatch.delenv(name)
    given = {"OMP_WAIT_POLICY": "passive", "MKL_NUM_THREADS": "2", "OMP_NUM_THREADS": "", "HF_TOKEN": "secret"}
    given |= {"TORCH_HOME": "/models", "CUDA_VISIBLE_DEVICES": "3", "TORCHDYNAMO_DISABLE": "1"}
    # set by NVIDIA's containers
    given |= {"CUDA_VERSION": "13.0.1", "NCCL_VERSION": "2.27.7-1", "TORCH_CUDA_ARCH_LIST": "8.0 9.0 10.0+PTX"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert environment.current("cpu").variables == "MKL_NUM_THREADS=2 OMP_WAIT_POLICY=passive TORCHDYNAMO_DISABLE=1"


def test_gpu_environment_has_driver_settings_and_torch_builds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    properties = SimpleNamespace(
        name="NVIDIA H100 80GB HBM3", total_memory=85_000_000_000, uuid="12ab", major=9, minor=0
    )
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu130")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91904)
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(missing=("application clocks",)))
    current = environment.current("cuda")
    assert (current.device, current.device_name, current.driver) == ("cuda:0", "NVIDIA H100 80GB HBM3", "580.159.04")
    expected = {"torch": "2.11.0+cu130", "cuda": "13.0", "cudnn": "9.19.4"}
    expected |= {one.name: one.version for one in distributions(name="triton")}  # missing beside torch's CPU build
    assert {name: version for name, version in current.versions.items() if name in (*expected, "triton")} == expected
    assert current.gpu["power limit"] == "700 W"
    assert (current.gpu["maximum SM clock"], current.gpu["ECC"], current.gpu["MIG mode"]) == ("1980 MHz", "on", "off")
    assert "application SM clock" not in current.gpu
    assert "cuda" not in environment.versions(), "the versions of a catalogue do not depend on the build"


@pytest.mark.parametrize(
    ("capability", "device", "tf32"), [((7, 5), "cuda", False), ((9, 0), "cuda", True), ((9, 0), "cpu", False)]
)
def test_environment_has_tf32_only_on_a_gpu_that_computes_in_it(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], device: str, tf32: bool
) -> None:
    """A training allows TF32 on every GPU, and the variable TORCH_ALLOW_TF32_CUBLAS_OVERRIDE everywhere."""
    properties = SimpleNamespace(name="GPU", total_memory=8e9, uuid="12ab", major=capability[0], minor=capability[1])
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(allow_tf32=True))
    assert environment.current(device).tf32 == tf32


@pytest.mark.parametrize(
    ("number", "hip", "version"), [(8902, None, "8.9.2"), (90100, None, "9.1.0"), (3003001, "6.4", "3.3.1")]
)
def test_older_cudnn_and_miopen_versions_are_read(
    monkeypatch: pytest.MonkeyPatch, number: int, hip: str | None, version: str
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: number)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert environment.builds()["cudnn"] == version


def test_cudnn_version_is_missing_if_torch_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise RuntimeError("cuDNN version incompatibility")

    monkeypatch.setattr(torch.backends.cudnn, "version", refuse)
    assert "cudnn" not in environment.builds()


@pytest.mark.parametrize("device", ["cuda:63", "xpu:9", "hpu"])
def test_absent_device_is_refused_with_a_list_of_devices(device: str) -> None:
    with pytest.raises(Refused, match=rf"no device '{device}'; it has meta, cpu") as caught:
        environment.current(device)
    assert isinstance(caught.value, Refused)


def test_probe_lists_the_cpu_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "threads", lambda: 3)
    machine = environment.probe()
    assert machine.devices[0].name == "cpu"
    expected = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    assert len(machine.devices) == 1 + expected
    assert machine.threads == 3


def test_probe_has_cores_and_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "caches", lambda: {"L1d": 48 * 1024, "L3": 32 * 2**20})
    machine = environment.probe()
    assert machine.cores == psutil.cpu_count(logical=False)
    assert machine.caches == {"L1d": "48 KiB", "L3": "32 MiB"}


def test_mac_is_named_by_its_chip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chip's GPU, mps, has the same name. platform.processor() would be `arm` on every Mac with Apple silicon."""
    sysctl = tmp_path / "sysctl"
    sysctl.write_text('#!/bin/sh\n[ "$*" = "-n machdep.cpu.brand_string" ] && echo "Apple M3 Pro"\n')
    sysctl.chmod(0o700)
    monkeypatch.setattr(environment, "SYSCTL", sysctl)
    monkeypatch.setattr(environment, "sys", SimpleNamespace(platform="darwin"))
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("mps"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    assert [(device.name, device.model) for device in environment.devices()] == [
        ("cpu", "Apple M3 Pro"),
        ("mps", "Apple M3 Pro"),
    ]
    sysctl.write_text("#!/bin/sh\nexit 1\n")
    assert environment.cpu_name() == environment.platform.processor()


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        (["Architecture: aarch64", "Vendor ID: ARM", "  Model name:    Neoverse-N1"], "Neoverse-N1"),
        (["  Model name: Cortex-A72", "  Model: 3", "  Model name: Cortex-A53"], "Cortex-A72 and Cortex-A53"),
        (["Architecture: aarch64", "Model name: -"], ""),
    ],
)
def test_arm_processor_is_named_by_lscpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], name: str
) -> None:
    cpuinfo, lscpu = tmp_path / "cpuinfo", tmp_path / "lscpu"
    cpuinfo.write_text("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n")
    lscpu.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    lscpu.chmod(0o700)
    monkeypatch.setattr(environment, "CPUINFO", cpuinfo)
    monkeypatch.setattr(environment, "LSCPU", str(lscpu))
    unknown = environment.platform.processor() or environment.platform.machine()
    assert environment.cpu_name() == (name or unknown)
    monkeypatch.setattr(environment, "LSCPU", str(tmp_path / "absent"))
    assert environment.cpu_name() == unknown


def test_caches_are_read_from_files_of_the_kernel(tmp_path: Path) -> None:
    cache_files = [
        ("1", "Data", "48K"),
        ("1", "Instruction", "32K"),
        ("2", "Unified", "1536K"),
        ("3", "Unified", "32768K"),
    ]
    for number, values in enumerate(cache_files):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        for name, value in zip(("level", "type", "size"), values, strict=True):
            (folder / name).write_text(value + "\n")
    assert environment.caches(tmp_path) == {"L1d": 48 * 1024, "L1i": 32 * 1024, "L2": 1536 * 1024, "L3": 32 * 2**20}
    assert environment.caches(tmp_path / "none") == {}


@pytest.mark.parametrize(("quota", "limit"), [("max 100000", None), ("150000 100000", 1), ("50000 100000", 1)])
@pytest.mark.parametrize("quota_group", ["", "user.slice", "user.slice/app.scope"])
def test_threads_respect_the_quota_of_every_parent_control_group(
    tmp_path: Path, quota: str, limit: int | None, quota_group: str
) -> None:
    own_cgroup = tmp_path / "own"
    own_cgroup.write_text("0::/user.slice/app.scope\n")
    (tmp_path / "cgroup/user.slice/app.scope").mkdir(parents=True)
    (tmp_path / "cgroup" / quota_group / "cpu.max").write_text(quota + "\n")
    assert environment.threads(tmp_path / "cgroup", own_cgroup) == (limit or len(os.sched_getaffinity(0)))


def test_page_cache_of_a_control_group_counts_as_available_memory(tmp_path: Path) -> None:
    own_cgroup, group = tmp_path / "own", tmp_path / "cgroup" / "job"
    own_cgroup.write_text("0::/job\n")
    group.mkdir(parents=True)
    (group / "memory.max").write_text(f"{10_000_000}\n")
    (group / "memory.current").write_text(f"{9_000_000}\n")
    assert environment.available_bytes(tmp_path / "cgroup", own_cgroup) == 1_000_000
    (group / "memory.stat").write_text("anon 3000000\nshmem 1000000\ninactive_file 4000000\nactive_file 500000\n")
    assert environment.available_bytes(tmp_path / "cgroup", own_cgroup) == 5_500_000


def test_memory_is_the_smallest_limit_of_the_groups_of_a_process(tmp_path: Path) -> None:
    own_cgroup, container = tmp_path / "own", tmp_path / "cgroup" / "container"
    own_cgroup.write_text("0::/container/job\n")
    (container / "job").mkdir(parents=True)
    (container / "job" / "memory.max").write_text("max\n")
    system = psutil.virtual_memory().total
    assert environment.total_bytes(tmp_path / "cgroup", own_cgroup) == system
    (container / "memory.max").write_text("10000000\n")
    assert environment.total_bytes(tmp_path / "cgroup", own_cgroup) == 10_000_000
    (container / "memory.max").write_text(f"{2 * system}\n")
    assert environment.total_bytes(tmp_path / "cgroup", own_cgroup) == system


@pytest.mark.parametrize("path", ["/", "/path/outside/the/container"])
def test_memory_limits_of_control_groups_of_version_1_are_read(tmp_path: Path, path: str) -> None:
    own_cgroup, group = tmp_path / "own", tmp_path / "cgroup" / "memory"
    own_cgroup.write_text(f"5:cpu:{path}\n4:hugetlb,memory:{path}\n0::{path}\n")
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (group / "memory.usage_in_bytes").write_text("9000000\n")
    assert environment.total_bytes(tmp_path / "cgroup", own_cgroup) == psutil.virtual_memory().total
    (group / "memory.limit_in_bytes").write_text("10000000\n")
    assert environment.total_bytes(tmp_path / "cgroup", own_cgroup) == 10_000_000
    assert environment.available_bytes(tmp_path / "cgroup", own_cgroup) == 1_000_000
    (group / "memory.stat").write_text("active_file 1\ninactive_file 2\ntotal_active_file 3\ntotal_inactive_file 4\n")
    assert environment.available_bytes(tmp_path / "cgroup", own_cgroup) == 1_000_007


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot pin a process to a CPU")
def test_threads_respect_the_cpu_affinity() -> None:
    cpu = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{cpu}}}); from engine.measure import environment; "
    code += "print(environment.threads())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "1"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA device")
def test_nvidia_device_has_name_memory_and_driver() -> None:
    device = environment.probe().devices[1]
    assert device.name == "cuda:0"
    assert device.memory_gb
    assert device.driver
    current = environment.current("cuda")
    assert (current.device, current.device_name) == ("cuda:0", device.model)
    assert {"cuda", "cudnn"} <= set(current.versions)
    assert current.gpu, "NVML reports at least the maximum clocks"
