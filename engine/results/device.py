"""Rows of measurements of a device."""

from typing import ClassVar, Literal

from pydantic import Field

from engine.results.base import DeviceName, Row
from engine.results.flags import Flag
from engine.results.timed import Contention


class DeviceRow(Row):
    """One rate of a device: the fastest of several sizes, with the size that reached it."""

    kind: ClassVar[str] = "device"

    library: str = "torch"
    model: str = ""
    """The operation, such as `matmul bfloat16` or `copy`."""
    device: DeviceName
    device_name: str = ""
    threads: int | None = None
    operation: Literal["matmul", "copy"]
    dtype: str
    """Data type; `tf32` means float32 with TF32 allowed."""
    size: int | None = None
    """Size of the operation. matmul: side of the square matrices. copy: bytes of the source."""
    gflop_per_s: float | None = None
    gb_per_s: float | None = None
    """Bytes read plus bytes written, in 1e9 bytes per second."""
    latency_ms: float | None = None
    """Median time of one operation of that size."""
    samples: int = 0
    flags: tuple[Flag, ...] = ()
    contention: Contention | None = None
    rates: dict[str, float] = Field(default_factory=dict)
    """Median rate of every size that was tried, by size."""
    notes: tuple[str, ...] = ()
    seconds: float | None = None
