"""The request of a profile run, which counts what models cost."""

from itertools import product
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import CliSuppress

from engine.specs.base import BATCHES, MAX_CONTEXT, PATTERNS, SIZES, Precision, Spec, device_on_node, known_device
from engine.specs.fields.building import OPTIONS, InChans, ModelKwargs, NumClasses
from engine.specs.fields.configs import Configs
from engine.words import shortened

DETAILED = 100
"""Most counts of a run that always keeps the table of modules. A table has 90 kB on average, so 100 have 9 MB."""


class ProfileSpec(Spec):
    """Count parameters, FLOPs, activations and memory of models."""

    kind: ClassVar[str] = "profile"
    paced_by: ClassVar[tuple[str, ...]] = (
        *("counter", "device", "batch_size", "image_size", "precision", "training", *OPTIONS),
    )
    meaning: ClassVar[tuple[str, ...]] = ("counter", "precision", "context_length", *OPTIONS)

    models: PATTERNS = Field(
        description="Names, wildcards (ViT-B-*), library:name, library:all, family:NAME or all; comma-separated."
    )
    counter: Literal["torch", "fvcore", "both"] = Field(
        "torch",
        description="torch: the counter of this program. fvcore: an independent counter. both: show their differences.",
    )
    device: Annotated[str, AfterValidator(known_device)] = Field(
        "meta",
        description="meta counts without allocating weights; cpu and cuda:0 run the real model. "
        "Default: meta; with the counters fvcore and both: cpu.",
    )
    batch_size: BATCHES = Field(
        (1,), description="Images per forward pass. Several, such as 1,8,64, are counted one by one."
    )
    image_size: SIZES = Field(
        (),
        description="Pixels: N for a square, or HxW (height x width). Several, such as 224,160x224,384, are counted "
        "one by one. Default: the model's own.",
    )
    context_length: int | None = Field(
        None, ge=1, le=MAX_CONTEXT, description="Tokens per text. Default: the model's own."
    )
    precision: Precision = Field("float32", description="Data type of weights and inputs.")
    training: bool = Field(False, description="Also estimate the peak memory of a training step.")
    detail: bool = Field(
        False, description=f"Keep the table of modules of each model. Runs of up to {DETAILED} counts always keep it."
    )
    num_classes: NumClasses = None
    in_chans: InChans = None
    model_kwargs: ModelKwargs = ""
    configs: CliSuppress[Configs] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _default_device(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("counter") in ("fvcore", "both"):
            return {"device": "cpu", **data}
        return data

    def model_post_init(self, _context: Any) -> None:
        if device_on_node(self.device) == "meta" and self.counter != "torch":
            raise ValueError(f"counter {self.counter} runs the real model: choose device cpu or cuda, not meta")

    @property
    def points(self) -> tuple["ProfileSpec", ...]:
        """Return one spec per image size and batch size."""
        combinations = product(self.image_size or (None,), self.batch_size)
        return tuple(
            self.model_copy(update={"image_size": (size,) if size else (), "batch_size": (batch,)})
            for size, batch in combinations
        )

    @property
    def half_batch(self) -> int | None:
        return self.batch_size[0] // 2 or None if len(self.batch_size) == 1 else None

    @property
    def summary(self) -> str:
        return f"{shortened(self.models)} ({self.counter}, {self.device})"
