"""Fields that every timing has: values over all processes together."""

import re
from collections.abc import Iterable
from typing import ClassVar

from pydantic import Field

from engine.results.base import DeviceName, Row
from engine.results.flags import Flag, Verdict
from engine.specs.base import Frozen

TRACES = "traces"
"""The folder of traces below a run's folder."""


class Contention(Frozen):
    """Use of the CPUs by others while samples were taken; the worst value of all processes."""

    cpu_share: float | None
    """CPU time / (wall time x threads). Below 0.9 the threads waited, for others or for each other.

    None with an accelerator, because the CPU waits for it.
    """
    neighbour_share: float | None
    """Share of our CPUs that other processes used; None if the system does not report it."""
    switches_per_s: float | None
    """Involuntary context switches per second."""


class Parts(Frozen):
    """The seconds of a timing by activity, over all variants timed side by side and all processes."""

    starts_s: float
    """Time to start and end processes and to load libraries."""
    compilation_s: float
    """Time to compile, script or capture, including loading the compiler."""
    warmup_s: float
    sampled_s: float
    rest_s: float
    """All other activities: building and checking models, first calls, memory, untimed calls between samples."""


class SlowOperator(Frozen):
    """A kernel of an accelerator or an operator of a CPU in a trace."""

    name: str
    calls: float
    """Per call of the model."""
    ms: float
    """Own time per call of the model, without operators inside it, with the profiler's overhead."""
    share: float
    """Part of the own times of all kernels, or of all operators."""


class TimedRow(Row):
    """The speed of one variant among those timed side by side."""

    baseline: str = ""
    """The variant that `speedup` and `verdict` refer to; empty for the baseline itself."""
    device: DeviceName
    device_name: str = ""
    host: str = ""
    """The node that timed it, if several shared the models of its run; empty: the run's host."""
    threads: int | None = None
    tf32: bool = False
    """True if float32 matrix products and convolutions were computed in TF32.

    torch's own default is TF32 on in convolutions and recurrent layers, off in matrix products.
    """
    cudnn_benchmark: bool = False
    """True if cuDNN tried all algorithms and used the fastest."""

    latency_ms: float | None = None
    """Time per call with all its phases: the median of the processes' medians."""
    p90_ms: float | None = None
    """Percentile, given from 64 samples on; p95 from 130, p99 from 662."""
    p95_ms: float | None = None
    p99_ms: float | None = None
    mean_ms: float | None = None
    std_ms: float | None = None
    forward_ms: float | None = None
    """Medians of the phases, if there are several."""
    backward_ms: float | None = None
    back_to_back_ms: float | None = None
    """On an accelerator: time per call when calls queue up without a wait, as the median of the processes' medians.

    None on a CPU, where each call ends before the next begins.
    """
    first_call_ms: float | None = None
    """Time of the first call, after libraries are loaded."""
    first_call_after: tuple[str, ...] = ()
    """Variants whose first call came earlier in the same process; they may have loaded kernels that this one shares."""
    compile_cold_ms: float | None = None
    """Compilation (or scripting, or capture) and first call, with an empty cache folder and the compiler loaded."""
    compile_warm_ms: float | None = None
    """Compilation and first call with the caches that the first process has filled."""
    samples: int = 0
    """Number of samples of all processes together."""
    calls_per_sample: int | None = None
    """Calls timed together as one sample; more than 1 if calls are short."""
    loop_ms: float | None = None
    """Time that the timing loop itself takes per call; it is not subtracted."""
    processes: int = 0
    process_medians_ms: tuple[float, ...] = ()
    spread: float | None = None
    """(largest - smallest) / median of the processes' medians; None for one process."""
    flags: tuple[Flag, ...] = ()
    contention: Contention | None = None
    neighbours: dict[str, float] = Field(default_factory=dict)
    """Share of the CPUs that the busiest other processes used during samples, by name; maximum over our processes."""

    speedup: float | None = None
    """Geometric mean of the processes' ratios of medians, baseline / this one. low and high are its 99 % interval."""
    speedup_low: float | None = None
    speedup_high: float | None = None
    verdict: Verdict | None = None
    differs_in: tuple[str, ...] = ()
    """Settings in which this row differs from its baseline, so that the two are not comparable."""

    device_peak_mb: float | None = None
    """Peak memory allocated on the accelerator, without what other variants hold. Measured in a separate loop; for CUDA
    graphs, also while they are recorded. None on a CPU."""
    process_peak_mb: float | None = None
    """Peak resident memory of the process, measured in the same way."""

    calls_captured: int | None = None
    unique_graphs: int | None = None
    graph_breaks: int | None = None
    unique_graph_breaks: int | None = None
    graph_break_reasons: tuple[str, ...] = ()
    """Where and why torch.compile split the model: `FILE:LINE in FUNCTION: REASON`."""
    recompilations: int | None = None
    """Graphs that were compiled again because a guard of an earlier one failed."""
    recompile_reasons: tuple[str, ...] = ()

    trace_file: str = ""
    """The artifact with a Chrome trace of a few calls."""
    slowest: tuple[SlowOperator, ...] = ()
    """The slowest kernels of an accelerator, or operators of a CPU, in the traced calls."""

    samples_file: str = ""
    """The artifact with every sample: variant and process, round, calls, and ms per call of each phase."""
    notes: tuple[str, ...] = ()
    seconds: float | None = None
    """Seconds of the whole timing, over all variants timed side by side and all processes."""
    parts: Parts | None = None
    """The same seconds, divided by activity."""

    @property
    def compared_in(self) -> str:
        """Return ` in latency` if speed-up and verdict could refer to two times; empty on a CPU."""
        return "" if self.back_to_back_ms is None else " in latency"

    comparable: ClassVar[tuple[str, ...]] = ()
    """Fields that must be equal in two rows before one may be called faster."""

    def differences(self, other: "TimedRow") -> tuple[str, ...]:
        """Return the settings that make this row and another one not comparable."""
        return tuple(name for name in self.comparable if getattr(self, name) != getattr(other, name))


def samples_name(*what: object) -> str:
    """Return the path of the samples file of one comparison below its run's folder."""
    return f"samples/{_file_name(what)}.csv"


def trace_name(*what: object) -> str:
    """Return the path of the trace of one variant below its run's folder."""
    return f"{TRACES}/{_file_name(what)}.json.gz"


def _file_name(parts: Iterable[object]) -> str:
    return "__".join(re.sub(r"[^A-Za-z0-9._+-]", "_", str(part)) for part in parts)
