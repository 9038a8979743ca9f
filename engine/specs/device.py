"""The request of a measurement of a device."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from typing_extensions import TypeAliasType

from engine.specs.base import RealDevice, Spec
from engine.specs.fields.timed import Threads, split_words

RateType = Literal["float64", "float32", "tf32", "float16", "bfloat16"]
# A named alias, because its name is what `--help` shows.
RATE_TYPES = TypeAliasType(
    "RATE_TYPES", Annotated[tuple[RateType, ...], split_words, Field(min_length=1, max_length=5)]
)


class DeviceSpec(Spec):
    """Measure the speed of a device: matrix products per data type, and memory copies."""

    kind: ClassVar[str] = "device"
    attempts: ClassVar[int] = 2
    paced_by: ClassVar[tuple[str, ...]] = ("device", "dtypes", "seconds", "threads")
    meaning: ClassVar[tuple[str, ...]] = ("threads",)
    exclusive: ClassVar[bool] = True

    device: RealDevice = Field("cpu", description="Device to measure: cpu, cuda:0, mps, ...")
    dtypes: RATE_TYPES = Field(
        ("float32", "bfloat16", "float16"), description="Data types of the matrix products; tf32 is for CUDA."
    )
    seconds: float = Field(2, gt=0, le=600, description="Minimum sampled time per measurement, in seconds.")
    threads: Threads = None

    @property
    def summary(self) -> str:
        return f"{self.device}: {', '.join(self.dtypes)}, copy"
