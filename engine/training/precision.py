"""The meaning of a training's precision: the types of weights and operators, and whether losses are scaled.

fp32       everything in float32
bf16 fp16  weights of matrix products and convolutions, and images, in half precision; norms and logit scale in float32
amp_bf16   float32 weights, bfloat16 operators (autocast)
amp        float32 weights, float16 operators and scaled losses on CUDA; the same as amp_bf16 elsewhere

On CUDA, float32 matrix products and convolutions run in TF32, as in open_clip's own training (see `set_tf32`).
"""

from contextlib import AbstractContextManager, nullcontext

import torch

from engine.measure import environment
from engine.models.variants import has_tf32
from engine.specs import Refused
from engine.specs.fields.clip import TrainPrecision, default_precision
from engine.specs.train import TrainSpec


def resolved(spec: TrainSpec) -> TrainSpec:
    """Return the request with `auto` replaced by the default precision of its device.

    Accelerators are not looked at for a CPU, because that would start CUDA in this process. Errors: Refused if this
    machine does not have the device.
    """
    if spec.precision != "auto":
        return spec
    bf16 = spec.device != "cpu" and environment.find_device(spec.device).bf16
    return spec.model_copy(update={"precision": default_precision(spec.device, bf16=bf16)})


def set_tf32(device: str) -> None:
    """Compute float32 products in TF32 on CUDA, and let cuDNN choose its fastest algorithms, as open_clip_train.main
    does.

    The settings hold for the whole process. They change nothing on other devices.
    """
    if device.startswith("cuda"):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.deterministic = False


def tf32(device: str) -> bool:
    """Return whether float32 matrix products on this device are computed in TF32."""
    return device.startswith("cuda") and torch.backends.cuda.matmul.allow_tf32 and has_tf32(device)


def check(precision: TrainPrecision, device: str) -> None:
    """Refuse a precision that the device has no kernels for. Errors: Refused."""
    if precision == "fp16" and torch.device(device).type == "cpu":
        raise Refused(f"fp16 needs an accelerator, which {device} is not: take fp32, bf16 or amp_bf16")


def autocast(precision: TrainPrecision, device: str) -> AbstractContextManager[object]:
    """Return the context for a forward pass and its loss. Each pass needs a new one."""
    dtype = _autocast_dtype(precision, device)
    return nullcontext() if dtype is None else torch.autocast(torch.device(device).type, dtype)


def scaler(precision: TrainPrecision, device: str) -> torch.amp.GradScaler | None:
    """Return a scaler of losses for float16, in which most gradients are too small; None for other types."""
    kind = torch.device(device).type
    return torch.amp.GradScaler(kind) if _autocast_dtype(precision, device) == torch.float16 else None


def _autocast_dtype(precision: TrainPrecision, device: str) -> torch.dtype | None:
    if precision == "amp":
        return torch.float16 if torch.device(device).type == "cuda" else torch.bfloat16
    return torch.bfloat16 if precision == "amp_bf16" else None
