"""Find the NVIDIA GPU that torch uses in NVML, by its UUID, and read facts about it."""

import os
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch


@dataclass(frozen=True)
class Gpu:
    """A GPU in NVML. For a MIG slice, clocks and energy belong to the board, processes to the slice."""

    nvml: Any
    """The module pynvml."""
    handle: Any
    board: Any
    """The handle of the whole board; equal to `handle` unless the GPU is a MIG slice."""
    is_slice: bool = False

    def read(self, function: str, *arguments: Any) -> Any:
        """Return the value of an NVML function. None when the driver, the GPU or a permission does not allow it."""
        try:
            return getattr(self.nvml, function)(*arguments)
        except (self.nvml.NVMLError, UnicodeDecodeError):
            return None


def find(device: str, nvml: Any = None) -> Gpu | None:
    """Return torch's device in NVML. None when it is no NVIDIA GPU, or when NVML fails.

    The GPU is found by its UUID, because CUDA_VISIBLE_DEVICES renumbers devices. nvml: replaces the module pynvml.
    """
    if not device.startswith("cuda") or torch.version.cuda is None:
        return None
    nvml = nvml or import_module("pynvml")  # loads a system library, so not before there is an NVIDIA device
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    for uuid in _uuids(device):
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        except nvml.NVMLError:
            continue
        gpu = Gpu(nvml, handle, handle)
        if not gpu.read("nvmlDeviceIsMigDeviceHandle", handle):
            return gpu
        board = gpu.read("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
        return Gpu(nvml, handle, handle if board is None else board, is_slice=True)
    return None


def _uuids(device: str) -> list[str]:
    """Return the names that a device may have in NVML. torch's UUID, without prefix, is the slice's or the board's."""
    index = int(device.partition(":")[2] or 0)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    chosen = [visible[index].strip()] if index < len(visible) else []
    uuid = str(torch.cuda.get_device_properties(torch.device(device)).uuid).removeprefix("GPU-").removeprefix("MIG-")
    return [*(name for name in chosen if name.startswith("MIG-")), f"MIG-{uuid}", f"GPU-{uuid}"]


def facts(device: str, nvml: Any = None) -> dict[str, str]:
    """Return the settings of a GPU that affect timings, by name. Settings that NVML does not report are left out."""
    gpu = find(device, nvml)
    if gpu is None:
        return {}
    nvml, board = gpu.nvml, gpu.board
    power = gpu.read("nvmlDeviceGetEnforcedPowerLimit", board)  # mW
    graphics, memory = nvml.NVML_CLOCK_GRAPHICS, nvml.NVML_CLOCK_MEM
    clocks = {
        "maximum SM clock": gpu.read("nvmlDeviceGetMaxClockInfo", board, nvml.NVML_CLOCK_SM),
        "maximum memory clock": gpu.read("nvmlDeviceGetMaxClockInfo", board, memory),
        "application SM clock": gpu.read("nvmlDeviceGetApplicationsClock", board, graphics),
        "application memory clock": gpu.read("nvmlDeviceGetApplicationsClock", board, memory),
    }
    modes = {
        "persistence mode": gpu.read("nvmlDeviceGetPersistenceMode", board),
        # both give the current and the pending mode
        "MIG mode": (gpu.read("nvmlDeviceGetMigMode", board) or [None])[0],
        "ECC": (gpu.read("nvmlDeviceGetEccMode", board) or [None])[0],
    }
    return {
        **({"power limit": f"{power / 1e3:g} W"} if power is not None else {}),
        **{name: f"{mhz} MHz" for name, mhz in clocks.items() if mhz is not None},
        **{name: "on" if mode else "off" for name, mode in modes.items() if mode is not None},
    }
