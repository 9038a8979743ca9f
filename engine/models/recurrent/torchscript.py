"""Set up TorchScript for the whole process (fuser, executor, options), and script functions."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from engine.models.variants import torchscript_warnings_off
from engine.specs import RecurrentSpec

Function = TypeVar("Function", bound=Callable[..., Any])

EXECUTORS = {"legacy": (False, False), "simple": (True, False), "profiling": (True, True)}
"""Two switches by executor: whether TorchScript uses its profiling executor, and whether this one profiles."""
DEFAULT_EXECUTORS = {"te": "profiling", "old": "legacy", "none": "legacy"}
"""Default executor of each fuser."""


def set_torchscript(spec: RecurrentSpec) -> None:
    """Set how TorchScript runs, for the whole process. Call it before anything is scripted."""
    executor = DEFAULT_EXECUTORS[spec.fuser] if spec.executor == "default" else spec.executor
    profiling, profiles = EXECUTORS[executor]
    torch._C._jit_set_profiling_executor(profiling)
    torch._C._jit_set_profiling_mode(profiles)
    torch._C._jit_set_texpr_fuser_enabled(spec.fuser == "te")
    torch._C._jit_override_can_fuse_on_gpu(spec.fuser != "none")
    torch._C._jit_override_can_fuse_on_cpu(False)
    # -1 means TorchScript's default
    knobs: Any = torch._C
    knobs._jit_set_te_cuda_pointwise_loop_levels(_knob(spec.cuda_pointwise_loop_level))
    knobs._jit_set_te_cuda_pointwise_block_count(_knob(spec.cuda_pointwise_block_count))
    knobs._jit_set_te_cuda_pointwise_block_size(_knob(spec.cuda_pointwise_block_size))


def _knob(value: int | None) -> int:
    return -1 if value is None else value


def notes(spec: RecurrentSpec) -> tuple[str, ...]:
    """Return notes on what TorchScript fuses on a device. Call it after `set_torchscript`."""
    if spec.fuser == "none" or (spec.device.startswith("cuda") and torch._C._jit_can_fuse_on_gpu()):
        return ()
    return (f"TorchScript fuses nothing on {spec.device} with the fuser {spec.fuser}",)


def scripted(function: Function) -> Function:
    """Return the scripted function. All functions that it calls are scripted too."""
    with torchscript_warnings_off():
        scripted_function: Function = torch.jit.script(function)
    return scripted_function
