"""What can be asked for: frozen, closed, serialisable requests.

A bound is stated once, here; the form, the command line and validation all read it.
"""

import json
import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, field_validator, model_validator
from pydantic_settings import CliSuppress, NoDecode
from typing_extensions import TypeAliasType

MAX_PIXELS_PER_SIDE = 4096
MAX_CONTEXT = 8192
LONGEST_PATTERN = 200

# What a configuration of one's own may ask for: several times the largest published model.
MAX_CONFIG_BYTES = 65_536
MAX_LAYERS = 1024
MAX_WIDTH = 65_536
MAX_VOCABULARY = 10_000_000
DEVICE = re.compile(r"(meta|cpu|(cuda|mps|xpu|npu|hpu|mtia)(:\d+)?)")


class Refused(ValueError):
    """A request that cannot be served as asked. The message names what was given and what would be right."""


def split_patterns(text: str) -> list[str]:
    """Split at commas and line breaks, but not inside braces: `a,{b,c}-32` is `a` and `{b,c}-32`.

    An opening brace that is never closed is a letter like any other.
    """
    parts, begin, closing = [], 0, -1
    for sign in re.finditer(r"[{,\n]", text):
        place = sign.start()
        if place < closing:
            continue
        if sign[0] == "{":
            closing = text.find("}", place, place + LONGEST_PATTERN)
        else:
            parts.append(text[begin:place])
            begin = place + 1
    return [part.strip() for part in [*parts, text[begin:]] if part.strip()]


def parse_image_size(value: Any) -> Any:
    """`224`, `"224"` and `"224x320"` become (height, width) in pixels; anything else is left to validation."""
    if isinstance(value, int) and not isinstance(value, bool):
        return (value, value)
    if isinstance(value, str):
        if not (match := re.fullmatch(r"(\d{1,6})(?:[xX](\d{1,6}))?", value.strip())):
            raise ValueError(f"image size {value!r} is neither N nor HxW, such as 224 or 224x320")
        return (int(match[1]), int(match[2] or match[1]))
    return value


def format_image_size(size: tuple[int, int]) -> str:
    """(224, 224) is written `224`, (224, 320) is written `224x320`."""
    height, width = size
    return str(height) if height == width else f"{height}x{width}"


Side = Annotated[int, Field(ge=1, le=MAX_PIXELS_PER_SIDE)]
Pattern = Annotated[str, Field(min_length=1, max_length=LONGEST_PATTERN)]

# Named aliases, because their names are what `--help` shows.
SIZE = TypeAliasType(
    "SIZE", Annotated[tuple[Side, Side], BeforeValidator(parse_image_size), PlainSerializer(format_image_size)]
)
PATTERNS = TypeAliasType(
    "PATTERNS",
    Annotated[
        tuple[Pattern, ...],
        BeforeValidator(lambda value: split_patterns(value) if isinstance(value, str) else value),
        Field(min_length=1, max_length=2000),
    ],
)
Precision = Literal["float32", "float16", "bfloat16", "float64"]


def _check_tower(where: str, config: Any) -> None:
    """Refuse figures of a tower beyond what the same figures may be on the form. Errors: ValueError."""
    if not isinstance(config, dict):
        return
    limits = {
        "layers": (_listed(config.get("layers", 0)), MAX_LAYERS),  # a ResNet has a number per stage
        "image_size": (_listed(config.get("image_size", 0)), MAX_PIXELS_PER_SIDE),
        "context_length": ([config.get("context_length", 0)], MAX_CONTEXT),
        "width": ([config.get("width", 0)], MAX_WIDTH),
        "vocab_size": ([config.get("vocab_size", 0)], MAX_VOCABULARY),
    }
    for name, (values, most) in limits.items():
        whole = all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values)
        if not whole or sum(values) > (most * len(values) if name == "image_size" else most):
            raise ValueError(f"{where} has {name} {config[name]!r}, but whole numbers up to {most:,} can be built")


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


class Spec(BaseModel):
    """A request for one run. Subclasses name their `kind`, which is also the name of the task that serves them."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    kind: ClassVar[str]
    attempts: ClassVar[int] = 1
    """How often a run is tried when its worker is killed from outside."""
    exclusive: ClassVar[bool] = False
    """Whether nothing else of ours may run on the host meanwhile: true of timings."""

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices a run of this spec must hold, such as ("cuda:0",)."""
        return ("cpu",)

    @property
    def summary(self) -> str:
        """A few words for lists of runs."""
        return self.kind


class ProfileSpec(Spec):
    """Count parameters, FLOPs, activations and memory of models."""

    kind: ClassVar[str] = "profile"

    models: Annotated[PATTERNS, NoDecode] = Field(
        description="Names, wildcards (ViT-B-*), library:name, library:all, family:NAME or all; comma-separated."
    )
    counter: Literal["torch", "fvcore", "both"] = Field(
        "torch", description="torch: our dispatch counter. fvcore: an independent tracer. both: with differences."
    )
    device: str = Field(
        "meta",
        description="meta counts without allocating weights; cpu or cuda:0 run the real model. "
        "When left out with a counter that needs the real model: cpu.",
    )
    batch_size: int = Field(1, ge=1, le=4096, description="Images per forward pass.")
    image_size: Annotated[SIZE | None, NoDecode] = Field(
        None, description="N or HxW in pixels; the model's own when left out."
    )
    context_length: int | None = Field(
        None, ge=1, le=MAX_CONTEXT, description="Text tokens per sample; the model's own when left out."
    )
    precision: Precision = Field("float32", description="Data type of weights and inputs.")
    training: bool = Field(False, description="Also estimate the training peak: runs a backward pass.")
    detail: bool = Field(False, description="Also keep a table of every module.")
    configs: CliSuppress[dict[str, dict[str, Any]]] = Field(
        default_factory=dict, description="open_clip configurations of one's own, by name, as their JSON files hold."
    )

    @model_validator(mode="before")
    @classmethod
    def _default_device(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("counter") in ("fvcore", "both"):
            return {"device": "cpu", **data}
        return data

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str) -> str:
        if not DEVICE.fullmatch(device):
            raise ValueError(f"device {device!r} is not one of meta, cpu, cuda[:i], mps, xpu, npu")
        return device

    @field_validator("configs")
    @classmethod
    def _buildable(cls, configs: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name, config in configs.items():
            if (size := len(json.dumps(config))) > MAX_CONFIG_BYTES:
                raise ValueError(f"{name}: a configuration has at most {MAX_CONFIG_BYTES:,} bytes, this one {size:,}")
            for tower in ("vision_cfg", "text_cfg", "multimodal_cfg"):
                _check_tower(f"{name}: {tower}", config.get(tower))
        return configs

    def model_post_init(self, _context: Any) -> None:
        if self.device == "meta" and self.counter != "torch":
            raise ValueError(f"counter {self.counter} runs the real model: choose device cpu or cuda, not meta")

    @property
    def devices(self) -> tuple[str, ...]:
        numbered = ":" in self.device or self.device in ("meta", "cpu", "mps")
        return (self.device if numbered else f"{self.device}:0",)

    @property
    def summary(self) -> str:
        shown = ", ".join(self.models[:3]) + (f" and {len(self.models) - 3} more" if len(self.models) > 3 else "")
        return f"{shown} ({self.counter}, {self.device})"


def load(kind: str, payload: str) -> Spec:
    """The spec of `kind` from its JSON. Errors: LookupError of an unknown kind, ValidationError of a bad payload."""
    for spec in Spec.__subclasses__():
        if spec.kind == kind:
            return spec.model_validate_json(payload)
    raise LookupError(f"no kind of run is called {kind!r}")
