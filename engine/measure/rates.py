"""Measure the rates of a device: matrix products per data type and copying memory, each at its fastest size."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from engine.measure import environment, gpu_watch, timing
from engine.measure.plan import Plan, Session, Subject, Timed
from engine.measure.stopwatch import Stopwatch, first_call_ms, stopwatch_for
from engine.models import variants
from engine.models.built import DTYPES, out_of_memory

SIZES = tuple(2**power for power in range(8, 16))
"""Sides of the square matrices, ascending."""
LONGEST_MS = 100.0
"""Larger matrices are not tried if one product of them is expected to take more than 100 ms."""
TRIES, TRIES_MS = 5, 100.0
"""Least calls, and least ms of all calls together, from which the time of the next size is first predicted."""
GROWTH = 8
"""Twice the side of a matrix is eight times the work."""
SMALLEST_COPY = 256 * 2**20
"""Least bytes of a copied tensor, for processors with small caches or unknown ones."""
CACHES_APART = 4
"""Copied tensors are 4 times as large as the last-level cache, as STREAM requires, so that memory is measured."""


@dataclass(frozen=True)
class Rate:
    """The best median rate of several sizes."""

    size: int
    """Side of the matrices for a matmul; bytes of the source for a copy."""
    by_size: dict[int, float]
    """The median rate at every size: FLOPs per second, or bytes read plus written per second."""
    timed: Timed
    session: Session
    notes: tuple[str, ...] = ()


def matmul(device: str, dtype: str, plan: Plan) -> Rate:
    """Return the FLOPs per second of square matrix products, 2 n^3 each. All sizes are timed interleaved.

    Few calls predict that the next size is too slow. If the median of the largest timed size contradicts this, because
    other processes had disturbed those calls, larger sizes are added and all are timed again.

    dtype: a name as in specs; `tf32` is float32 with TF32. Errors: Refused for tf32 on a device without it; torch's
    own errors for a data type that the device cannot multiply, or matrices that do not fit in memory.
    """
    products: dict[int, Callable[[], object]] = {}
    numbers = variants.numbers(dtype, device)
    with variants.switches(numbers, training=False):
        while True:
            notes: list[str] = []
            is_slow = _add_products(products, device, DTYPES[numbers.weights], notes)
            rate = _best(products, lambda size: 2.0 * size**3, device, plan, notes)
            largest = max(products)
            next_s = GROWTH * 2 * largest**3 / rate.by_size[largest]
            if not is_slow or 1e3 * next_s > LONGEST_MS:
                return rate


def copy(device: str, plan: Plan) -> Rate:
    """Return the bytes read plus written per second when copying a tensor much larger than the caches.

    Errors: MemoryError when there is not enough free memory; torch's own out-of-memory error on an accelerator.
    """
    size = max(SMALLEST_COPY, CACHES_APART * environment.last_level_cache(device))
    free = environment.available_bytes()
    if device == "cpu" and 3 * size > free:
        raise MemoryError(f"the copy needs {3 * size / 1e6:,.0f} MB of free memory, but {free / 1e6:,.0f} MB are free")
    source = torch.ones(size // 4, device=device)  # ones: untouched pages of zeros would all be the same one
    target = torch.zeros_like(source).fill_(2)
    return _best({size: lambda: target.copy_(source)}, lambda size: 2.0 * size, device, plan, [])


def _best(
    calls: dict[int, Callable[[], object]], work: Callable[[int], float], device: str, plan: Plan, notes: list[str]
) -> Rate:
    """Time one call of every size, interleaved, and return the best rate. work: FLOPs or bytes of a call by size."""
    subjects = [Subject(str(size), {"call": call}, queued=device != "cpu") for size, call in calls.items()]
    threads = torch.get_num_threads() if device == "cpu" else None
    session = timing.measure(subjects, stopwatch_for(device), plan, threads=threads, gpu=gpu_watch.watch(device))
    for error in session.failed.values():
        raise error
    by_size = {size: work(size) / median(session.timed[str(size)].samples_ms) * 1e3 for size in calls}
    best = max(by_size, key=by_size.__getitem__)
    return Rate(size=best, by_size=by_size, timed=session.timed[str(best)], session=session, notes=tuple(notes))


def _add_products(products: dict[int, Callable[[], object]], device: str, dtype: torch.dtype, notes: list[str]) -> bool:
    """Add a product for every larger size that fits in memory and is quick enough. Each was called once.

    The next size is added without a prediction. Return True if a size was left out because it would take too long.

    notes: gets a note when a size does not fit or would take too long. Errors: torch's own when even the smallest size
    fails.
    """
    stopwatch = stopwatch_for(device)
    for size in SIZES[len(products) :]:
        try:
            product = _product(size, device, dtype)
            first_call_ms(stopwatch, [product])
        except (RuntimeError, MemoryError) as error:
            if not products or not out_of_memory(error):
                raise
            notes.append(f"matrices of {size} do not fit in memory")
            return False
        products[size] = product
        next_ms = GROWTH * _quickest(product, stopwatch)
        if next_ms > LONGEST_MS and size < SIZES[-1]:
            notes.append(f"matrices above {size} were not tried: one product would take about {next_ms:.0f} ms")
            return True
    return False


def _quickest(product: Callable[[], object], stopwatch: Stopwatch) -> float:
    """Return the ms of the quickest of several calls. Other processes can only make a call slower."""
    times_ms: list[float] = []
    while len(times_ms) < TRIES or sum(times_ms) < TRIES_MS:
        times_ms += stopwatch.block([product], 1)
    return min(times_ms)


def _product(size: int, device: str, dtype: torch.dtype) -> Callable[[], object]:
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=out)
