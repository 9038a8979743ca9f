"""What every timing gives, whatever was timed: figures of all processes together, and what is to be known of them."""

import re
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from engine.results.base import DeviceName, Row

Flag = Literal["single_process", "unstable", "contended", "drifting", "throttled", "below_floor"]
"""What is to be known before quoting a timing."""

FLAGS: dict[Flag, str] = {
    "single_process": "One process says nothing of how much processes differ: a quick look, not to be quoted.",
    "unstable": "The medians of the processes differ by more than 5 %: the figure depends on which process is asked.",
    "contended": "Something else used the processors while this was timed, or its threads had to wait.",
    "drifting": "The first and the last third of the samples differ by 2 % or more, and by more than noise explains: "
    "it was still warming up, or slows down.",
    "throttled": "The GPU held its clocks back for heat, power supply or hardware, or to below 75 % of their maximum.",
    "below_floor": "Fewer samples, seconds or processes were asked for than such a result needs.",
}
"""What each means, for people."""

Verdict = Literal[
    "faster", "slower", "no difference", "undecided", "not comparable", "needs 3 processes", "needs 3 runs"
]
"""Against the baseline."""

VERDICTS: dict[Verdict, str] = {
    "faster": "The whole interval lies above the margin of 2 %.",
    "slower": "The whole interval lies below the margin of 2 %.",
    "no difference": "The whole interval lies within the margin of 2 %.",
    "undecided": "The interval is too wide to tell: time in more processes, or publishable to show no difference.",
    "not comparable": "They compute in different ways, such as another precision: the ratio stands without a verdict.",
    "needs 3 processes": "Fewer than 3 processes say too little about how much processes differ: time it in 3 or more.",
    "needs 3 runs": "Different runs differ by more than their processes do. Run both requests until each has 3 runs.",
}
"""Likewise; the interval is that of the ratio, the margin is where a difference begins to matter."""


class Contention(BaseModel):
    """Who else used the CPUs while samples were taken, the worst of all processes."""

    model_config = ConfigDict(frozen=True)

    cpu_share: float | None
    """CPU time / (wall time x threads): below 0.9 the threads waited, for others or for each other. None with an
    accelerator, for which the CPU waits."""
    neighbour_share: float | None
    """What others used of the CPUs we may use; None where the system does not tell."""
    switches_per_s: float | None
    """Involuntary context switches."""


class Parts(BaseModel):
    """Where the time of a timing went, in seconds: everything timed side by side, all processes together."""

    model_config = ConfigDict(frozen=True)

    starts_s: float
    """Starting and ending processes, and loading libraries."""
    compilation_s: float
    """Compiling, scripting or capturing, loading the compiler included."""
    warmup_s: float
    sampled_s: float
    rest_s: float
    """Building and checking models, first calls, measuring memory, untimed calls between samples."""


class TimedRow(Row):
    """How fast one thing is, in one of the ways that are timed side by side."""

    baseline: str = ""
    """What `speedup` and `verdict` refer to; empty for the baseline itself."""
    device: DeviceName
    device_name: str = ""
    threads: int | None = None
    tf32: bool = False
    """Whether float32 matrix products and convolutions were computed in TF32; torch's own default is on in convolutions
    and recurrent layers, off in matrix products."""
    cudnn_benchmark: bool = False
    """Whether cuDNN tried its algorithms and kept the fastest."""

    latency_ms: float | None = None
    """Median of the processes' medians: time per call, all its phases together."""
    p90_ms: float | None = None
    """From 64 samples on; p95 from 130, p99 from 662."""
    p95_ms: float | None = None
    p99_ms: float | None = None
    mean_ms: float | None = None
    std_ms: float | None = None
    forward_ms: float | None = None
    """Medians of the phases, where there are several."""
    backward_ms: float | None = None
    back_to_back_ms: float | None = None
    """On an accelerator: time per call of calls that queue up behind each other, the median of the processes' medians.
    None on a CPU, where each call ends before the next begins."""
    first_call_ms: float | None = None
    """Time of the first call, libraries loaded."""
    first_call_after: tuple[str, ...] = ()
    """What made its first call earlier in the same process, and may have loaded kernels that this one shares."""
    compile_cold_ms: float | None = None
    """Compilation (or scripting, or capture) and first call, into an empty cache folder once the compiler is loaded."""
    compile_warm_ms: float | None = None
    """The same with the caches that the first process has left."""
    samples: int = 0
    """Of all processes together."""
    calls_per_sample: int | None = None
    """Short calls are timed in blocks."""
    loop_ms: float | None = None
    """What the timing loop itself costs per call; it is not subtracted."""
    processes: int = 0
    process_medians_ms: tuple[float, ...] = ()
    spread: float | None = None
    """(largest - smallest) / median of the processes' medians; None of one process."""
    flags: tuple[Flag, ...] = ()
    contention: Contention | None = None
    neighbours: dict[str, float] = Field(default_factory=dict)
    """The busiest other processes while samples were taken, by name: their share of the CPUs, the most in any process
    of the timing."""

    speedup: float | None = None
    """Geometric mean of the processes' ratios of medians, baseline / this one, with its interval (99 %)."""
    speedup_low: float | None = None
    speedup_high: float | None = None
    verdict: Verdict | None = None
    differs_in: tuple[str, ...] = ()
    """Settings in which this differs from its baseline, for which the two are not comparable."""

    device_peak_mb: float | None = None
    """Most memory allocated on the accelerator, in a loop of its own; None on a CPU."""
    process_peak_mb: float | None = None
    """Most resident memory of the process, likewise."""

    calls_captured: int | None = None
    unique_graphs: int | None = None
    graph_breaks: int | None = None
    unique_graph_breaks: int | None = None

    samples_file: str = ""
    """The artifact with every sample: what and where it is, round, calls, and per phase the ms per call."""
    notes: tuple[str, ...] = ()
    seconds: float | None = None
    """What the timing took, all that was timed side by side and all processes together."""
    parts: Parts | None = None
    """Where these seconds went."""

    @property
    def compared_in(self) -> str:
        """` in latency` where speed-up and verdict could be of either figure; empty on a CPU, which has one."""
        return "" if self.back_to_back_ms is None else " in latency"

    comparable: ClassVar[tuple[str, ...]] = ()
    """Fields that two rows must have in common for one to be called faster than the other."""

    def differences(self, other: "TimedRow") -> tuple[str, ...]:
        """Return the settings for which this row and another are not comparable."""
        return tuple(name for name in self.comparable if getattr(self, name) != getattr(other, name))


def samples_name(*what: object) -> str:
    """Return where the samples of what was timed side by side lie, below its run's folder."""
    return f"samples/{'__'.join(re.sub(r'[^A-Za-z0-9._-]', '_', str(part)) for part in what)}.csv"
