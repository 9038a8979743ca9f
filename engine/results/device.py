"""Rows of measurements of a device."""

from typing import ClassVar, Literal

from pydantic import Field

from engine.results.base import DeviceName, Row
from engine.results.timed import Contention, Flag


class DeviceRow(Row):
    """One rate of a device: the fastest of several sizes, and the size it was reached at."""

    kind: ClassVar[str] = "device"

    library: str = "torch"
    model: str = ""
    """What is done: `matmul bfloat16`, `copy`."""
    device: DeviceName
    device_name: str = ""
    threads: int | None = None
    operation: Literal["matmul", "copy"]
    dtype: str
    """`tf32` is float32 with TF32 allowed."""
    size: int | None = None
    """Of a matmul: the side of its square matrices. Of a copy: bytes of its source."""
    gflop_per_s: float | None = None
    gb_per_s: float | None = None
    """Bytes read plus bytes written, 1e9 per s."""
    latency_ms: float | None = None
    """Median of one operation at that size."""
    samples: int = 0
    flags: tuple[Flag, ...] = ()
    contention: Contention | None = None
    rates: dict[str, float] = Field(default_factory=dict)
    """The median rate at every size tried, by size."""
    notes: tuple[str, ...] = ()
    seconds: float | None = None
