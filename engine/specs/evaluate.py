"""The request of an evaluation of CLIP."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic_settings import CliSuppress, NoDecode
from typing_extensions import TypeAliasType

from engine.specs.base import RealDevice, Spec
from engine.specs.clip import (
    DIGITS_MODEL,
    SAME_PAIRS,
    CaptionColumn,
    ClassColumn,
    Classes,
    ClipImageSize,
    ClipModel,
    ClipPrecision,
    ContextLength,
    Data,
    ImageColumn,
    Kind,
    Pretrained,
    Samples,
    Separator,
    Split,
    Templates,
    Workers,
    registered,
)
from engine.specs.profile import Configs
from engine.specs.timed import Threads, split_words

EvaluationTask = Literal["retrieval", "zeroshot", "linear-probe"]
# A named alias, because its name is what `--help` shows.
TASKS = TypeAliasType("TASKS", Annotated[tuple[EvaluationTask, ...], split_words, Field(min_length=1, max_length=3)])


class EvaluateSpec(Spec):
    """Evaluate CLIP: retrieval, zero-shot classification, linear probe."""

    kind: ClassVar[str] = "evaluate"
    attempts: ClassVar[int] = 2
    meaning: ClassVar[tuple[str, ...]] = (*SAME_PAIRS, "held_out", "seed", "batch_size")
    needs: ClassVar[tuple[str, ...]] = (
        *("model", "configs", "checkpoint", "image_size", "context_length", "device", "precision"),
    )

    model: ClipModel = DIGITS_MODEL
    configs: CliSuppress[Configs] = Field(default_factory=dict)
    checkpoint: Pretrained = ""
    image_size: ClipImageSize = None
    context_length: ContextLength = None

    data: Data = "digits"
    data_kind: Kind = "auto"
    json_split: Split = "auto"
    csv_separator: Separator = ""
    csv_img_key: ImageColumn = "filepath"
    csv_caption_key: CaptionColumn = "title"
    csv_class_key: ClassColumn = ""
    samples: Samples = None
    held_out: bool = Field(True, description="Use only the pairs that a training with this seed holds out.")
    val_fraction: float = Field(0.2, gt=0, lt=1, description="Share of the data that is held out.")
    tasks: Annotated[TASKS, NoDecode] = Field(
        ("retrieval", "zeroshot"), description="Tasks: retrieval, zeroshot, linear-probe; comma-separated."
    )
    classes: Classes = ()
    templates: Templates = ()

    device: RealDevice = Field("cpu", description="Device to run on: cpu, cuda, cuda:0, mps, ...")
    precision: ClipPrecision = Field("fp32", description="fp32, mixed precision (amp), or half (bf16, fp16).")
    batch_size: int = Field(64, ge=1, le=65_536, description="Images or texts per forward pass.")
    workers: Workers = 0
    threads: Threads = None
    seed: int = Field(0, ge=0, lt=2**31, description="Random seed of the split and the linear probe.")

    @property
    def models(self) -> tuple[str, ...]:
        """Return the models that the catalogue must have."""
        return registered(self.model)

    @property
    def pace(self) -> tuple[object, ...]:
        return tuple(self.model_dump(exclude={"seed", "classes", "templates", "checkpoint"}).values())

    @property
    def summary(self) -> str:
        start = f" from {self.checkpoint}" if self.checkpoint else ""
        return f"{self.model}{start} on {self.data}: {', '.join(self.tasks)} ({self.device})"
