"""Describe the host, its devices and the versions of libraries that affect counts and timings."""

import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import torch

from engine.measure import nvml
from engine.models.variants import has_tf32
from engine.process import CGROUPS, OWN_CGROUP, control_groups
from engine.results import Device, Environment, Machine
from engine.shipped import installed
from engine.specs import Refused
from engine.specs.base import numbered

PACKAGES = ("torch", "timm", "open_clip_torch", "torchvision", "transformers", "fvcore")
CPUINFO = Path("/proc/cpuinfo")
SYSCTL = "/usr/sbin/sysctl"
"""The command that prints facts about a Mac."""
LSCPU = "lscpu"
"""The command that prints facts about a processor on Linux."""
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
TUNING = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "DNNL_", "ONEDNN_", "TORCH_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "PYTORCH_"),
    *("TRITON_", "CUDA_", "CUBLAS_", "CUDNN_", "NCCL_", "NVIDIA_TF32_OVERRIDE"),
)
"""Beginnings of the names of environment variables that change how torch computes, or how fast."""
DESCRIBING = ("_HOME", "_PATH", "_DIR", "_VISIBLE_DEVICES", "_VERSION", "_ARCH_LIST", "_COMPONENT_LIST", "_NUMBER")
"""Ends of such names that only say where something is or, in NVIDIA's and PyTorch's containers, what was installed."""


def current(device: str, seed: int | None = None) -> Environment:
    """Return the environment of a run on this device. Errors: those of `find_device`."""
    selected = find_device(device)
    return Environment(
        **_host(),
        python=platform.python_version(),
        device=device,
        device_name=selected.model,
        driver=selected.driver,
        gpu=nvml.facts(selected.name),
        variables=variables(),
        tf32=torch.backends.cuda.matmul.allow_tf32 and has_tf32(selected.name),
        seed=seed,
    )


def variables() -> str:
    """Return the environment variables that change how torch computes, as `NAME=value`, sorted."""
    names = (name for name in sorted(os.environ) if name.startswith(TUNING) and not name.endswith(DESCRIBING))
    return " ".join(f"{name}={os.environ[name]}" for name in names if os.environ[name])


def probe() -> Machine:
    """Return this host with all its devices, for the code that must not import torch."""
    return Machine(
        **_host(),
        devices=devices(),
        cores=psutil.cpu_count(logical=False),
        caches={name: _binary(size) for name, size in caches().items()},
    )


def _host() -> dict[str, Any]:
    """Return the facts that an environment and a machine have in common."""
    return {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "threads": threads(),
        "memory_gb": round(total_bytes() / 1e9, 1),
        "versions": versions() | builds(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def devices() -> tuple[Device, ...]:
    """Return the CPU, followed by every device of torch's accelerator."""
    available = [Device(name="cpu", model=cpu_name(), memory_gb=round(total_bytes() / 1e9, 1))]
    if (accelerator := torch.accelerator.current_accelerator(check_available=True)) is not None:
        for index in range(torch.accelerator.device_count()):
            available.append(_accelerator(accelerator.type, index))
    return tuple(available)


def _accelerator(kind: str, index: int) -> Device:
    """Return one accelerator. Its name has a number, except for `mps`, which has only one device."""
    if kind == "cuda":
        name, properties = f"cuda:{index}", torch.cuda.get_device_properties(index)
        gpu = nvml.find(name)
        return Device(
            name=name,
            model=properties.name,
            memory_gb=round(properties.total_memory / 1e9, 1),
            driver=(gpu and gpu.read("nvmlSystemGetDriverVersion")) or "",
            bf16=computes_bf16(name),
        )
    if kind == "mps":  # the GPU is a part of the processor
        return Device(name=kind, model=cpu_name())
    return Device(name=f"{kind}:{index}", model=kind)


def computes_bf16(device: str) -> bool:
    """Return whether an accelerator computes bfloat16 natively. NVIDIA GPUs do from compute capability 8.0 on."""
    if torch.device(device).type != "cuda":
        return False
    if torch.version.hip:
        return bool(torch.cuda.is_bf16_supported())
    return bool(torch.cuda.get_device_capability(device) >= (8, 0))


def find_device(name: str) -> Device:
    """Return a device of this machine. Errors: Refused, which lists the available devices."""
    if name == "meta":
        return Device(name="meta", model="shapes only")
    by_name = {device.name: device for device in devices()}
    if (device := by_name.get(numbered(name))) is None:
        raise Refused(f"this machine has no device {name!r}; it has meta, {', '.join(by_name)}")
    return device


def threads(cgroups: Path = CGROUPS, own: Path = OWN_CGROUP) -> int:
    """Return how many CPUs this process may use: its affinity, limited by the quotas of its control groups (v2)."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *_quotas(cgroups, own)]))


def _quotas(cgroups: Path, own: Path) -> Iterator[int]:
    """Yield how many whole CPUs each group allows. cpu.max: quota and period in us: `150000 100000`, `max 100000`."""
    for folder in control_groups(cgroups, own):
        limit = folder / "cpu.max"
        if limit.is_file():
            quota, _, period = limit.read_text().strip().partition(" ")
            if quota != "max":
                yield int(quota) // int(period)


def total_bytes(cgroups: Path = CGROUPS, own: Path = OWN_CGROUP) -> int:
    """Return the memory in bytes that this process may use: the system's, limited by its control groups."""
    return min([int(psutil.virtual_memory().total), *(limit for limit, _, _ in _limits(cgroups, own))])


def available_bytes(cgroups: Path = CGROUPS, own: Path = OWN_CGROUP) -> int:
    """Return the free memory in bytes: the system's available memory, limited by this process's control groups.

    A group's usage includes the page cache, which the kernel gives back before it ends a process.
    """
    left = [int(psutil.virtual_memory().available)]
    for limit, usage, stat in _limits(cgroups, own):
        left.append(max(0, limit - int(usage.read_text()) + _page_cache(stat)))
    return min(left)


def _limits(cgroups: Path, own: Path) -> Iterator[tuple[int, Path, Path]]:
    """Yield the memory limit in bytes of each control group of this process, with its files of usage and statistics.

    A group without a limit has `max` in version 2, and almost 2^63 in version 1.
    """
    for group in control_groups(cgroups, own):
        for name, usage in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            file = group / name
            if file.is_file() and (limit := file.read_text().strip()) != "max":
                yield int(limit), group / usage, group / "memory.stat"


def _page_cache(file: Path) -> int:
    """Return the bytes of files that a control group keeps in memory. file: lines such as `inactive_file 4096`."""
    lines = file.read_text().splitlines() if file.is_file() else []
    sizes = dict(line.split() for line in lines)
    # in version 1, these lines do not include the groups below, and those with `total_` do
    return sum(int(sizes.get(f"total_{name}", sizes.get(name, 0))) for name in ("active_file", "inactive_file"))


def cpu_name() -> str:
    """Return the processor's model name."""
    if sys.platform == "darwin":  # where platform.processor() is `arm` for every Apple chip
        found = subprocess.run([SYSCTL, "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False)
        return found.stdout.strip() or platform.processor()
    if CPUINFO.is_file():
        for line in CPUINFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
        if found := _named_by_lscpu():
            return found
    return platform.processor() or platform.machine()


def _named_by_lscpu() -> str:
    """Return the processor's name by lscpu, which knows the numbers of ARM's cores; empty if it knows no name."""
    try:
        found = subprocess.run([LSCPU], capture_output=True, text=True, check=False, env=os.environ | {"LC_ALL": "C"})
    except OSError:  # not installed
        return ""
    lines = (line.partition(":") for line in found.stdout.splitlines())
    names = dict.fromkeys(value.strip() for key, _, value in lines if key.strip() == "Model name")
    return " and ".join(name for name in names if name not in ("", "-"))


def caches(folder: Path = CACHES) -> dict[str, int]:
    """Return the bytes of each cache that a core uses, by name, such as {"L1d": 49152, "L2": 1048576, "L3": 33554432}.

    Sorted by name, so the smallest level is first. Empty when the system does not report caches.
    """
    sizes = {}
    for index in (path.parent for path in folder.glob("index*/size")):
        level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        name = f"L{level}{kind[0].lower() if kind != 'Unified' else ''}"
        sizes[name] = int(size.removesuffix("K")) * 1024
    return dict(sorted(sizes.items()))


def last_level_cache(device: str) -> int:
    """Return the bytes of a processor's largest cache, or of a GPU's L2. 0 when the system does not report it."""
    if device.startswith("cuda"):
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    return max(caches().values(), default=0) if device == "cpu" else 0


def _binary(size: int) -> str:
    """Return a cache size as processor makers write it: `48 KiB`, `1 MiB`."""
    return f"{size / 2**20:.4g} MiB" if size >= 2**20 else f"{size / 2**10:.4g} KiB"


def versions() -> dict[str, str]:
    """Return the installed versions of the packages that affect counts and timings, from their package metadata."""
    return {package: version for package in PACKAGES if (version := installed(package))}


def builds() -> dict[str, str]:
    """Return torch's version with its build (`2.11.0+cu130`), and the versions of CUDA or HIP, cuDNN and Triton."""
    build = {"torch": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip, "cudnn": _cudnn()}
    build["triton"] = installed("triton")
    return {name: str(value) for name, value in build.items() if value}


def _cudnn() -> str | None:
    """Return the version of cuDNN, or of AMD's MIOpen.

    torch reports it as a number: 91900 is `9.19.0`, 8902 is `8.9.2`, and MIOpen's 3003001 is `3.3.1`.
    """
    try:
        number = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    except RuntimeError:  # torch refuses a cuDNN that is not the one it was built for
        return None
    if not number:
        return None
    minor = 1000 if torch.version.hip else 100
    major = 1_000_000 if torch.version.hip else 10_000 if number >= 90_000 else 1000
    return f"{number // major}.{number % major // minor}.{number % minor}"
