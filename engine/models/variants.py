"""Prepare a model to run as a variant: precision, memory format, changes to its modules, and execution.

A variant that a device or model does not support is refused by name. There is no fallback.
"""

import inspect
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from engine.models import library, steps
from engine.models.built import DTYPES, Built, Wanted
from engine.specs import Refused, Variant

Builder = Callable[[str, Wanted], Built]
GRAPH_WARMUP = 3
"""Calls before a CUDA graph is captured, as PyTorch's documentation recommends."""
MOST_RECOMPILATIONS = 128
"""Recompilations allowed for one code object when torch cannot count them per variant: 8 for each of 16 variants."""
RECORDING_CALLS = 2
"""Calls after the first for a model compiled into CUDA graphs: one records them, the next is the first to replay
them."""


@dataclass(frozen=True)
class Numbers:
    """The data types of a precision on a device."""

    weights: str
    autocast: str = ""
    tf32: bool = False


def numbers(precision: str, device: str) -> Numbers:
    """Return the types of a precision on a device; amp alone means the device's own type. Errors: Refused."""
    if precision == "tf32":
        if not has_tf32(device):
            raise Refused(
                "tf32 needs an NVIDIA GPU of compute capability 8.0 or more, and no NVIDIA_TF32_OVERRIDE=0: "
                f"{device} has no TF32"
            )
        return Numbers("float32", tf32=True)
    if precision.startswith("amp"):
        default = "float16" if device.startswith("cuda") else "bfloat16"
        return Numbers("float32", autocast=precision.removeprefix("amp").lstrip("_") or default)
    return Numbers(precision)


def has_tf32(device: str) -> bool:
    """Return whether a device has TF32, a mode of NVIDIA's tensor cores from Ampere on.

    NVIDIA's libraries do not use it if NVIDIA_TF32_OVERRIDE is 0, whatever torch's switches are.
    """
    if os.environ.get("NVIDIA_TF32_OVERRIDE") == "0":
        return False
    return device.startswith("cuda") and not torch.version.hip and torch.cuda.get_device_capability(device) >= (8, 0)


def settling_calls(variant: Variant, device: str) -> int:
    """Return how many calls after the first still belong to compiling.

    With CUDA graphs, torch.compile's first call warms up and the second records (torch._inductor.cudagraph_trees).
    Graphs are replayed from the third call on.
    """
    if variant.execution != "compile" or not device.startswith("cuda"):
        return 0
    from torch._inductor import list_mode_options

    graphs = variant.backend == "cudagraphs" or list_mode_options(variant.compile_mode).get("triton.cudagraphs")
    return RECORDING_CALLS if graphs else 0


@contextmanager
def switches(
    types: Numbers,
    *,
    training: bool,
    cudnn_benchmark: bool = False,
    deterministic: bool = False,
    strict: bool = True,
    freezing: bool = False,
) -> Iterator[None]:
    """Set the global switches that affect results, and restore them at the end.

    strict: raise an error when an operation has no deterministic form, instead of logging a warning.
    freezing: inductor folds weights into constants. Both dynamo and inductor read this switch when they compile, so
    an option of torch.compile would not be enough.
    """
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32, torch.get_deterministic_debug_mode()
    cudnn = torch.backends.cudnn.flags(
        enabled=True, benchmark=cudnn_benchmark, deterministic=deterministic, allow_tf32=types.tf32
    )
    try:
        matmul.allow_tf32 = types.tf32
        _set_determinism((1 + strict) if deterministic else 0)
        with cudnn, torch.set_grad_enabled(training), inductor(freezing=True) if freezing else nullcontext():
            yield
    finally:
        matmul.allow_tf32 = before[0]
        _set_determinism(before[1])


def _set_determinism(level: int) -> None:
    """Set which operations may run that have no deterministic form. 0: all; 1: all, with a warning; 2: none.

    Does nothing if the level is 0 already. torch's function imports inductor, which takes 1 s, and eager processes have
    no other use for it.
    """
    if level or torch.get_deterministic_debug_mode():
        torch.use_deterministic_algorithms(level > 0, warn_only=level == 1)


def inductor(**options: Any) -> AbstractContextManager[None]:
    """Return a context in which inductor has other options."""
    from torch._inductor import config

    patched: AbstractContextManager[None] = config.patch(**options)
    return patched


def build(name: str, wanted: Wanted, variant: Variant, *, training: bool, build: Builder = library.build) -> Built:
    """Return a model for a variant. All variants with the same seed have the same weights.

    Errors: Refused when the device cannot run the variant, or when it would change nothing in the model; those
    of library.build.
    """
    if refusal := variant.refusal(wanted.device):
        raise Refused(refusal)
    with _fast_norm() if variant.fast_norm else nullcontext():
        built = build(name, wanted)
    model: Any = built.model
    if variant.fast_norm and not any(getattr(module, "_fast_norm", False) for module in model.modules()):
        raise Refused(f"{name} has no norm layer with a fast form")
    if variant.checkpointing:
        if not hasattr(model, "set_grad_checkpointing"):
            raise Refused(f"{name} has no gradient checkpointing")
        model.set_grad_checkpointing(True)
    if variant.reparameterized:
        model = _reparameterize(name, model, training)
    model.train(training)
    if not variant.channels_last:
        return replace(built, model=model)
    inputs = tuple(value.to(memory_format=torch.channels_last) if value.dim() == 4 else value for value in built.inputs)
    return replace(built, model=model.to(memory_format=torch.channels_last), inputs=inputs)


@contextmanager
def _fast_norm() -> Iterator[None]:
    # layers read this switch when they are built
    from timm.layers import is_fast_norm, set_fast_norm  # type: ignore[attr-defined]

    before = is_fast_norm()  # type: ignore[no-untyped-call]
    set_fast_norm(True)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        set_fast_norm(before)  # type: ignore[no-untyped-call]


def _reparameterize(name: str, model: torch.nn.Module, training: bool) -> torch.nn.Module:
    if training:
        raise Refused("a reparameterised model is for inference only, because its branches are merged")
    from timm.utils import reparameterize_model  # type: ignore[attr-defined]

    with next(model.parameters()).device:  # timm creates the merged layers on this device
        merged: torch.nn.Module = reparameterize_model(model, inplace=False)
    if merged.state_dict().keys() == model.state_dict().keys():
        raise Refused(f"{name} has nothing to reparameterise")
    return merged


def runner(variant: Variant, built: Built, types: Numbers, device: str) -> Callable[[], Any]:
    """Return a function that runs one forward pass per call.

    trace, export and cudagraphs are captured here; torch.compile captures at the first call. Traces and CUDA graphs
    contain autocast's casts. An exported graph does not, so it runs under autocast, like eager and compiled models.
    """
    model, inputs = built.model, built.inputs
    autocast = partial(
        torch.autocast, device.partition(":")[0], dtype=DTYPES.get(types.autocast), enabled=bool(types.autocast)
    )
    uncached = partial(autocast, cache_enabled=False)  # a cached cast would be captured as a constant
    run: Callable[..., Any]
    match variant.execution:
        case "trace":
            with uncached():
                return partial(traced(model, inputs), *inputs)
        case "cudagraphs":
            with uncached():
                return _cuda_graph(model, inputs)
        case "eager":
            run = model
        case "compile":
            run = compiled(
                model,
                backend=variant.backend or "inductor",
                mode=variant.compile_mode or None,
                fullgraph=variant.fullgraph,
                dynamic=variant.dynamic or None,
            )
        case "export":
            run = torch.export.export(model, inputs).module()
    return _in_context(autocast, partial(run, *inputs)) if types.autocast else partial(run, *inputs)


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return a function compiled by torch.compile, with its own count of recompilations.

    Variants of one model share its code. Beyond torch's limit of 8 recompilations it would silently run in eager mode.
    """
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        options["isolate_recompiles"] = True
    else:  # torch 2.11 counts the recompilations of all variants together
        from torch._dynamo import config

        config.recompile_limit = MOST_RECOMPILATIONS
    compiled_function: Callable[..., Any] = torch.compile(function, **options)
    return compiled_function


@contextmanager
def torchscript_warnings_off() -> Iterator[None]:
    """Silence the warning that TorchScript is deprecated: it is measured anyway."""
    with warnings.catch_warnings():
        for kind in (FutureWarning, DeprecationWarning):
            warnings.filterwarnings("ignore", message=r"`torch\.jit\.(script|trace)", category=kind)
        warnings.filterwarnings("ignore", category=torch.jit.TracerWarning)  # type: ignore[attr-defined]
        yield


def traced(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Callable[..., Any]:
    """Return a model traced with these inputs. Tracing calls it once."""
    with torchscript_warnings_off():
        traced_model: Callable[..., Any] = torch.jit.trace(model, inputs, check_trace=False)  # type: ignore[no-untyped-call]
    return traced_model


def _in_context(context: Callable[[], AbstractContextManager[Any]], run: Callable[[], Any]) -> Callable[[], Any]:
    def call() -> Any:
        with context():
            return run()

    return call


def _cuda_graph(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Callable[[], Any]:
    """Return the forward pass as one CUDA graph; with gradients, one graph each for forward and backward."""
    if torch.is_grad_enabled():
        with steps.buffers_kept(model):  # the warm-up changes the buffers
            graphed: Callable[..., Any] = torch.cuda.make_graphed_callables(model, inputs, allow_unused_input=True)
        return partial(graphed, *inputs)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(GRAPH_WARMUP):
            model(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = model(*inputs)

    def replay() -> Any:
        graph.replay()
        return output

    return replay
