"""The request of an evaluation of CLIP."""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, AliasChoices, BeforeValidator, FailFast, Field
from typing_extensions import TypeAliasType

from engine.specs.base import RealDevice, Spec, unique
from engine.specs.fields.clip import (
    DIGITS_MODEL,
    MODEL,
    MODEL_LENGTH,
    SAME_PAIRS,
    ClassPrompts,
    ClipFields,
    ClipModel,
    ClipPrecision,
    Line,
    Pretrained,
    Sources,
    registered,
    same_sources,
    short_name,
    split_lines,
    unused_of_data,
)
from engine.specs.fields.timed import Threads, split_words

EvaluationTask = Literal["retrieval", "zeroshot", "linear-probe"]
# A named alias, because its name is what `--help` shows.
TASKS = TypeAliasType(
    "TASKS",
    Annotated[tuple[EvaluationTask, ...], split_words, Field(min_length=1, max_length=3), unique],
)
MOST_MORE = 200
"""Maximum number of further models, and of further data sets, in one evaluation."""
STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1000.0)
"""Values tried for C, the inverse strength of regularisation. They are large because normalised features are small."""
RECALLS = (1, 5, 10)


def split_subject(line: str) -> tuple[str, str]:
    """Return the model and the checkpoint of a line `MODEL` or `MODEL,CHECKPOINT`."""
    model, _, checkpoint = line.partition(",")
    return model.strip(), checkpoint.strip()


def _check_subject(line: str) -> str:
    model, _ = split_subject(line)
    if not re.fullmatch(MODEL, model) or len(model) > MODEL_LENGTH:
        raise ValueError(f"{line!r} names no model: write MODEL or MODEL,CHECKPOINT on each line")
    return line


Subject = Annotated[Line, AfterValidator(_check_subject)]
Rank = Annotated[int, Field(ge=1, le=10_000)]
Strength = Annotated[float, Field(gt=0, le=1e9)]
by_line = BeforeValidator(split_lines)
Source = Annotated[Sources, Field(min_length=1)]
distinct = AfterValidator(lambda values: tuple(sorted(set(values))))

MODELS = TypeAliasType("MODELS", Annotated[tuple[Subject, ...], FailFast(), by_line, Field(max_length=MOST_MORE)])
SOURCES = TypeAliasType("SOURCES", Annotated[tuple[Source, ...], by_line, Field(max_length=MOST_MORE)])
RANKS = TypeAliasType("RANKS", Annotated[tuple[Rank, ...], split_words, distinct, Field(min_length=1, max_length=20)])
C_VALUES = TypeAliasType(
    "C_VALUES", Annotated[tuple[Strength, ...], split_words, distinct, Field(min_length=1, max_length=100)]
)


class EvaluateSpec(ClipFields, Spec):
    """Evaluate CLIP: retrieval, zero-shot classification, linear probe. Each model is evaluated on each data set."""

    kind: ClassVar[str] = "evaluate"
    attempts: ClassVar[int] = 2
    meaning: ClassVar[tuple[str, ...]] = (
        *(*SAME_PAIRS, "more_data", "held_out", "held_out_data", "csv_class_separator", "class_prompts", "seed"),
        *("batch_size", "probe_data", "shots", "probe_c"),
    )
    needs: ClassVar[tuple[str, ...]] = (
        *("model", "configs", "checkpoint", "image_size", "context_length", "device", "precision"),
    )

    model: ClipModel = Field(
        DIGITS_MODEL,
        max_length=MODEL_LENGTH,
        description="An open_clip model, digits-clip, the number of a training run, or a configuration of your own: "
        "FILE.json on the command line, an added file in the form.",
    )
    checkpoint: Annotated[Pretrained, Field(validation_alias=AliasChoices("pretrained", "checkpoint"))] = ""
    more_models: MODELS = Field(
        (),
        description="Further models, one per line: MODEL, MODEL,CHECKPOINT, or the number of a training run. The "
        "settings apply to all models.",
    )

    more_data: SOURCES = Field(
        (),
        description="Further data sets, one per line or, on the command line, one per flag. All settings, such as "
        "column names, apply to every data set.",
    )
    csv_class_separator: str = Field(
        "",
        max_length=4,
        description="Separator between classes in a cell of the class column, such as ; or |. Data with such cells get "
        "the mean average precision of zero-shot. Default: one class per image.",
    )
    held_out: bool = Field(
        True, description="If one of the models was trained on the data, use only the pairs that its training held out."
    )
    held_out_data: SOURCES = Field(
        (),
        description="Data sets of which only the held-out share is used, one per line. Data that one of the models was "
        "trained on are added when the run is queued.",
    )
    val_fraction: float = Field(
        0.2, gt=0, lt=1, description="Held-out share of data that a model or a linear probe was trained on."
    )
    tasks: TASKS = Field(
        ("retrieval", "zeroshot"), description="Tasks: retrieval, zeroshot, linear-probe; comma-separated."
    )
    recall_k: RANKS = Field(RECALLS, description="Ranks k of recall at k, comma-separated.")
    class_prompts: ClassPrompts = ""
    probe_data: Sources = Field(
        "", description="Training data of the linear probe. Default: the evaluated data without the held-out share."
    )
    shots: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="Training images per class of the linear probe, drawn with the seed. Default: all.",
    )
    probe_c: C_VALUES = Field(
        STRENGTHS,
        description="Values of C, the inverse of the probe's regularisation strength. The value with the best accuracy "
        "on a fifth of the probe's data is used.",
    )

    device: RealDevice = Field("cpu", description="Device to run on: cpu, cuda, cuda:0, mps, ...")
    precision: ClipPrecision = Field("fp32", description="fp32, mixed precision (amp), or half (bf16, fp16).")
    batch_size: int = Field(64, ge=1, le=65_536, description="Images or texts per forward pass.")
    workers: int = Field(0, ge=0, le=64, description="Processes that load images. 0: the main process loads them.")
    threads: Threads = None
    reuse_features: bool = Field(
        True, description="Store features, and reuse them for the same weights, files and settings."
    )
    seed: int = Field(0, ge=0, lt=2**31, description="Random seed of splits, samples and the linear probe.")

    @property
    def subjects(self) -> tuple[tuple[str, str], ...]:
        """Return each model with its checkpoint."""
        return tuple(dict.fromkeys([(self.model, self.checkpoint), *map(split_subject, self.more_models)]))

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the data sets."""
        return tuple(dict.fromkeys([self.data, *self.more_data]))

    @property
    def parts(self) -> tuple["EvaluateSpec", ...]:
        """Return a spec for each model and data set, grouped by model."""
        return tuple(self.part(*subject, data) for subject in self.subjects for data in self.sources)

    @property
    def subject_parts(self) -> tuple["EvaluateSpec", ...]:
        """Return a spec for each model, on the first data set."""
        return tuple(self.part(*subject, self.data) for subject in self.subjects)

    def part(self, model: str, checkpoint: str, data: str) -> "EvaluateSpec":
        """Return the spec of one model and one data set. `held_out` is true if only the held-out share is used."""
        held_out = self.held_out and any(same_sources(data, other) for other in self.held_out_data)
        fields = {"model": model, "checkpoint": checkpoint, "data": data, "held_out": held_out}
        return self.model_copy(update={**fields, "more_models": (), "more_data": ()})

    @property
    def models(self) -> tuple[str, ...]:
        """Return the models that the catalogue must have."""
        return registered(*(model for model, _ in self.subjects))

    @property
    def unused(self) -> dict[str, str]:
        fields = {"retrieval": "recall_k", "zeroshot": "class_prompts", "linear-probe": "probe_data shots probe_c"}
        absent = {task: names.split() for task, names in fields.items() if task not in self.tasks}
        reasons = {name: f"the tasks do not include {task}" for task, names in absent.items() for name in names}
        if self.class_prompts:
            reasons["templates"] = "class_prompts has the prompts of each class"
        for data in self.held_out_data:
            if not any(same_sources(data, source) for source in self.sources):
                reasons[f"held_out_data {data}"] = f"it is none of the evaluated data, {', '.join(self.sources)}"
        return reasons | unused_of_data(*self.sources, self.probe_data)

    @property
    def pace(self) -> tuple[object, ...]:
        return tuple(self.model_dump(exclude={"seed", "classes", "templates", "class_prompts", "checkpoint"}).values())

    @property
    def summary(self) -> str:
        start = f" from {short_name(self.checkpoint)}" if self.checkpoint else ""
        models = f"{self.model}{start}" if len(self.subjects) == 1 else f"{len(self.subjects)} models"
        data = short_name(self.data) if len(self.sources) == 1 else f"{len(self.sources)} data sets"
        return f"{models} on {data}: {', '.join(self.tasks)} ({self.device})"
