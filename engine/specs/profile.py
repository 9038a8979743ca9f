"""The request of a profile run, which counts what models cost."""

import json
from itertools import product
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import CliSuppress

from engine.specs.base import (
    BATCHES,
    MAX_CONTEXT,
    MAX_PIXELS_PER_SIDE,
    PATTERNS,
    SIZES,
    Precision,
    Spec,
    device_on_node,
    known_device,
)
from engine.specs.building import OPTIONS, InChans, ModelKwargs, NumClasses
from engine.words import shortened

# Limits of a user's own configuration: several times the largest published model.
MAX_CONFIG_BYTES = 65_536
MAX_LAYERS = 1024
MAX_WIDTH = 65_536
MAX_VOCABULARY = 10_000_000
DETAILED = 100
"""Most counts of a run that always keeps the table of modules. A table has 90 kB on average, so 100 have 9 MB."""


def _check_tower(where: str, config: Any) -> None:
    """Check the sizes of a tower against the limits that the form has too. Errors: ValueError."""
    if not isinstance(config, dict):
        return
    limits = {
        "layers": (_listed(config.get("layers", 0)), MAX_LAYERS),  # a ResNet lists one number per stage
        "image_size": (_listed(config.get("image_size", 0)), MAX_PIXELS_PER_SIDE),
        "context_length": ([config.get("context_length", 0)], MAX_CONTEXT),
        "width": ([config.get("width", 0)], MAX_WIDTH),
        "vocab_size": ([config.get("vocab_size", 0)], MAX_VOCABULARY),
    }
    for name, (values, most) in limits.items():
        whole = all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values)
        if not whole or sum(values) > (most * len(values) if name == "image_size" else most):
            raise ValueError(f"{where} has {name} {config[name]!r}, but whole numbers up to {most:,} can be built")


def check_configs(configs: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the configurations if their length and sizes are within the limits. Errors: ValueError."""
    for name, config in configs.items():
        if (size := len(json.dumps(config))) > MAX_CONFIG_BYTES:
            raise ValueError(f"{name}: a configuration has at most {MAX_CONFIG_BYTES:,} bytes, this one {size:,}")
        for tower in ("vision_cfg", "text_cfg", "multimodal_cfg"):
            _check_tower(f"{name}: {tower}", config.get(tower))
    return configs


Configs = Annotated[
    dict[str, dict[str, Any]],
    AfterValidator(check_configs),
    Field(description="Your own open_clip configurations, by name, with the content of their JSON files."),
]


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


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
