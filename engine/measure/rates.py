"""Measure what a device can do: matrix products per data type and copying memory, each at its fastest size."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import torch

from engine.measure import environment, gpu_watch, timing
from engine.measure.timing import Plan, Session, Stopwatch, Subject, Timed
from engine.models.built import out_of_memory
from engine.models.variants import has_tf32

SIZES = tuple(2**power for power in range(8, 16))
"""Sides of the square matrices, small ones first."""
LONGEST_MS = 100.0
"""Sizes grow while the next one's call should stay below."""
TRIES, TRIES_MS = 5, 100.0
"""Calls, and time, that a size is tried for before the next."""
SMALLEST_COPY = 256 * 2**20
CACHES_APART = 4
"""A copied tensor is so many times the last-level cache, as STREAM demands, so that memory is measured."""


@dataclass(frozen=True)
class Rate:
    """The best median rate of several sizes."""

    size: int
    """Of a matmul: the side of its matrices. Of a copy: bytes of its source."""
    per_s: float
    """FLOPs, or bytes read plus bytes written."""
    latency_ms: float
    """Median of one operation."""
    by_size: dict[int, float]
    """The median rate at every size, per s."""
    timed: Timed
    session: Session
    notes: tuple[str, ...] = ()


def matmul(device: str, dtype: str, plan: Plan) -> Rate:
    """FLOPs per second of square matrix products, 2 n^3 each. dtype: as specs name it; `tf32` is float32 with TF32.

    All sizes are timed interleaved. Errors: ValueError of tf32 where there is none; whatever torch raises of a data
    type that the device cannot multiply, or of matrices that it cannot hold.
    """
    if dtype == "tf32" and not has_tf32(device):
        raise ValueError("tf32 is a mode of NVIDIA's tensor cores, from Ampere on: this device has none")
    notes: list[str] = []
    with _tf32(dtype == "tf32"):
        products = _products(device, getattr(torch, "float32" if dtype == "tf32" else dtype), notes)
        return _best(products, lambda size: 2.0 * size**3, device, plan, notes)


def copy(device: str, plan: Plan) -> Rate:
    """Bytes read plus bytes written per second by copying a tensor much larger than the caches.

    Errors: MemoryError when so much is not free; torch's own out-of-memory on an accelerator.
    """
    size = max(SMALLEST_COPY, CACHES_APART * environment.last_level_cache(device))
    free = environment.available_bytes()
    if device == "cpu" and 3 * size > free:
        raise MemoryError(f"a copy beyond the caches takes {2 * size / 1e6:,.0f} MB and {free / 1e6:,.0f} MB are free")
    source = torch.ones(size // 4, device=device)  # ones: untouched pages of zeros would all be the same one
    target = torch.zeros_like(source).fill_(2)
    return _best({size: lambda: target.copy_(source)}, lambda size: 2.0 * size, device, plan, [])


def _best(
    calls: dict[int, Callable[[], object]],
    work: Callable[[int], float],
    device: str,
    plan: Plan,
    notes: list[str],
) -> Rate:
    """Time one call of every size, interleaved. work: FLOPs or bytes of a call."""
    subjects = [Subject(str(size), {"call": call}, queued=device != "cpu") for size, call in calls.items()]
    threads = torch.get_num_threads() if device == "cpu" else None
    session = timing.measure(subjects, timing.stopwatch(device), plan, threads=threads, gpu=gpu_watch.watch(device))
    for error in session.failed.values():
        raise error
    by_size = {size: work(size) / median(session.timed[str(size)].samples_ms) * 1e3 for size in calls}
    best = max(by_size, key=by_size.__getitem__)
    return Rate(
        size=best,
        per_s=by_size[best],
        latency_ms=work(best) / by_size[best] * 1e3,
        by_size=by_size,
        timed=session.timed[str(best)],
        session=session,
        notes=tuple(notes),
    )


def _products(device: str, dtype: torch.dtype, notes: list[str]) -> dict[int, Callable[[], object]]:
    """Return a product of every size that fits and is quick enough, called already. Errors: when not even the
    smallest is."""
    stopwatch = timing.stopwatch(device)
    products: dict[int, Callable[[], object]] = {}
    for size in SIZES:
        try:
            product = _product(size, device, dtype)
            timing.first_call(stopwatch, [product])
        except (RuntimeError, MemoryError) as error:
            if not products or not out_of_memory(error):
                raise
            notes.append(f"matrices of {size} do not fit in memory")
            break
        products[size] = product
        if 8 * _quickest(product, stopwatch) > LONGEST_MS:  # twice the side is eight times the work
            break
    return products


def _quickest(product: Callable[[], object], stopwatch: Stopwatch) -> float:
    """ms of the quickest of several calls: whoever else is at work can only make them slower."""
    took: list[float] = []
    while len(took) < TRIES or sum(took) < TRIES_MS:
        took += stopwatch.block([product], 1)
    return min(took)


def _product(size: int, device: str, dtype: torch.dtype) -> Callable[[], object]:
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=out)


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    """TF32 in matrix products of float32, or none; as it was, afterwards."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
