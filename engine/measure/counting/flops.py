"""Count the cost of a forward pass, operator by operator, on meta or on a real device.

This is a dispatch mode of our own that uses the formulas of torch.utils.flop_counter. That library's FlopCounterMode
follows modules through autograd and fails without gradients on some models; this one uses forward hooks.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from engine.measure.counting.fused import fused_on_meta
from engine.measure.counting.live import LiveBytes, state
from engine.measure.counting.operators import Operator, describe, kind_of
from engine.measure.counting.traffic import moved_bytes
from engine.results import OperatorCount, Work

aten = torch.ops.aten
READ_AS_FALSE = "a tensor without data was read as a boolean (in code for attention masks), which gives False here"


@dataclass
class Tally:
    """Sums over the operator calls of one kind, or of one module including its submodules."""

    calls: int = 0
    flops: int = 0
    activations: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    work: Work = "counted"
    output: tuple[int, ...] = ()
    """Shape of the first tensor that the module's last call returned."""

    def add(self, flops: int, activations: int) -> None:
        self.flops += flops
        self.activations += activations


@dataclass(frozen=True)
class Count:
    """The cost of one forward pass of one batch."""

    operators: tuple[OperatorCount, ...]
    """Sorted by FLOPs, largest first."""
    modules: dict[str, Tally]
    """Sums by dotted path; "" is the whole model. Each module includes all its submodules."""
    peak_bytes: int
    """Peak of the bytes alive at the same time, without weights and inputs."""
    kept_bytes: int
    """Bytes alive at the end: the outputs and, if gradients are on, what is kept for a backward pass."""
    notes: tuple[str, ...]

    @property
    def flops(self) -> int:
        return sum(operator.flops for operator in self.operators)

    @property
    def activations(self) -> int:
        return sum(operator.activations for operator in self.operators)

    @property
    def traffic_bytes(self) -> int:
        return sum(operator.read_bytes + operator.written_bytes for operator in self.operators)

    @property
    def intensity(self) -> float | None:
        """Return the FLOPs per byte of traffic; None without traffic."""
        return self.flops / self.traffic_bytes if self.traffic_bytes else None

    @property
    def uncounted(self) -> dict[str, int]:
        """Return the calls of each operator that has no formula and is neither a view nor elementwise."""
        return {tally.operator: tally.calls for tally in self.operators if tally.work in ("minor", "unknown")}

    @property
    def unknown(self) -> dict[str, int]:
        """Return the calls of each uncounted operator whose work could be of any size."""
        return {tally.operator: tally.calls for tally in self.operators if tally.work == "unknown"}


def count(model: torch.nn.Module, inputs: tuple[Any, ...], run: Callable[[], object] | None = None) -> Count:
    """Count one forward pass. The caller decides whether gradients are on.

    run: called instead of model(*inputs). Errors: TypeError for a tensor in place of a tuple, which would be unpacked
    into its rows; RuntimeError in inference mode, which hides every operator; any error that the model raises.
    """
    if not isinstance(inputs, tuple | list):
        raise TypeError("inputs must be a tuple of the model's arguments: write (images,) for one tensor")
    if torch.is_inference_mode_enabled():
        raise RuntimeError("counting needs no_grad or gradients: inference mode hides operators from the counter")
    held = [*state(model), *(tensor for tensor in inputs if isinstance(tensor, torch.Tensor))]
    counter = _Counter(LiveBytes(held))
    with unfused(), _modules_followed(model, counter), fused_on_meta(), counter:
        outputs = run() if run else model(*inputs)
        counter.kept = counter.live.now
        del outputs
    return counter.result()


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count every operator below autograd."""

    def __init__(self, live: LiveBytes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live, self.kept = live, 0
        self.kinds: dict[str, Tally] = {}
        self.modules: dict[str, Tally] = {}
        self.frames = [Tally()]
        self.notes: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is aten._local_scalar_dense.default and _has_no_data(args[0]) and args[0].dtype == torch.bool:
            self.notes.add(READ_AS_FALSE)
            return False
        if func.namespace == "prim":  # the device of a fake tensor
            return func(*args, **kwargs)
        if func is aten.index.Tensor:
            args = (args[0], [_positions(index) for index in args[1]])
        operator = describe(func)
        if operator.decomposes:
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        if not operator.moves_nothing:
            self._add(operator, args, kwargs, out)
        return out

    def _add(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        kind = kind_of(operator, args)
        if (tally := self.kinds.get(kind)) is None:
            tally = self.kinds[kind] = Tally(work=operator.work)
        tally.calls += 1
        read, written = moved_bytes(operator, args, kwargs, out)
        tally.read_bytes += read
        tally.written_bytes += written
        if operator.flops:
            flops = operator.flops(args, kwargs, out)
            activations = operator.activations(args, kwargs, out) if operator.activations else 0
            tally.add(flops, activations)
            self.frames[-1].add(flops, activations)
        if operator.allocates:
            self.live.see(out)

    def result(self) -> Count:
        self.modules[""] = self.frames[0]
        operators = [OperatorCount(operator=kind, **vars(tally)) for kind, tally in self.kinds.items()]
        operators.sort(key=lambda one: (-one.flops, -one.read_bytes - one.written_bytes, one.operator))
        return Count(tuple(operators), self.modules, self.live.peak, self.kept, tuple(sorted(self.notes)))


def _positions(index: torch.Tensor | None) -> torch.Tensor | None:
    """Return an index, or as many positions if it is a fake mask, which counts as if all of it were true."""
    if isinstance(index, FakeTensor) and index.dtype == torch.bool and index.dim() == 1:
        return torch.empty(len(index), dtype=torch.long, device=index.device)
    return index


def _has_no_data(tensor: torch.Tensor) -> bool:
    return tensor.is_meta or isinstance(tensor, FakeTensor)


def _shape(value: Any) -> tuple[int, ...]:
    """Return the shape of a tensor, or of the first one in a list, tuple or dictionary; empty if there is none."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    items = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return next((shape for item in items if (shape := _shape(item))), ())


@contextmanager
def _modules_followed(model: torch.nn.Module, counter: _Counter) -> Iterator[None]:
    """Add every operator to the innermost module being called, and a module's sums to its caller's."""
    paths = {id(module): path for path, module in model.named_modules()}

    def enter(module: torch.nn.Module, _args: Any) -> None:
        if paths.get(id(module)):
            counter.frames.append(Tally())

    def leave(module: torch.nn.Module, _args: Any, out: Any) -> None:
        path = paths.get(id(module))
        if path == "":
            counter.frames[0].output = _shape(out)
        elif path:
            frame = counter.frames.pop()
            counter.frames[-1].add(frame.flops, frame.activations)
            total = counter.modules.setdefault(path, Tally())
            total.add(frame.flops, frame.activations)
            total.calls += 1
            total.output = _shape(out)

    with register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True):
        yield


@contextmanager
def unfused() -> Iterator[None]:
    """Turn off the fast path of attention and encoder layers, so that they run as operators that have formulas."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
