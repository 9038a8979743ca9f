"""The request of a benchmark: models, variants, batch sizes, samples and processes."""

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, FailFast, Field, field_validator
from pydantic_settings import CliSuppress
from typing_extensions import TypeAliasType

from engine import suite
from engine.model_name import PYTHON, ModelName
from engine.specs.base import (
    CLUSTER,
    MAX_CONTEXT,
    PATTERNS,
    SIZE,
    Pattern,
    RealDevice,
    Refused,
    Spec,
    device_on_node,
    find_expression,
    matching,
    unique,
)
from engine.specs.fields.batch import BATCH, CHECKED_BATCH, MAX_BATCH, SEARCH_END, SWEEP_END, BatchList, default_batch
from engine.specs.fields.building import OPTIONS, InChans, ModelKwargs, NumClasses, changes
from engine.specs.fields.configs import Configs
from engine.specs.fields.timed import (
    OF_TIMING,
    Floors,
    MinSeconds,
    Publishable,
    Replicates,
    Threads,
    TimeLimit,
    split_words,
)
from engine.specs.fields.variant import RunPrecision, Variant
from engine.words import shortened

MOST_VARIANTS = 16
LONGEST_EXPRESSION = 200
CONDITIONS = ("cache", "cudnn_benchmark", "deterministic")
"""Settings of the machine for a timing, which its rows have too. Timings compare only if these are equal."""
Mode = Literal["inference", "training"]


def _expression(text: str) -> str:
    """Return a regular expression. Errors: Refused."""
    find_expression(text)
    return text


Expression = Annotated[str, Field(max_length=LONGEST_EXPRESSION), AfterValidator(_expression)]
Notation = Annotated[Pattern, AfterValidator(lambda text: Variant.parse(text).notation)]
# Named aliases, because their names are what `--help` shows.
VARIANTS = TypeAliasType(
    "VARIANTS",
    Annotated[tuple[Notation, ...], FailFast(), split_words, Field(min_length=1, max_length=MOST_VARIANTS), unique],
)
Optimizer = Annotated[
    str,
    matching(r"sgd|adamw|timm/[a-z0-9_]{1,40}", "sgd, adamw, or an optimizer of timm such as timm/lion"),
    Field(description="Optimizer of a training step: sgd or adamw of torch, or timm/NAME."),
]
PRECISIONS = TypeAliasType(
    "PRECISIONS", Annotated[tuple[RunPrecision, ...], split_words, Field(min_length=1, max_length=7)]
)


class BenchmarkSpec(Floors, Spec):
    """Time models on this machine: inference or training, with several variants side by side."""

    kind: ClassVar[str] = "benchmark"
    attempts: ClassVar[int] = 2
    continues: ClassVar[bool] = True
    paced_by: ClassVar[tuple[str, ...]] = (
        *("mode", "purpose", "device", "nodes", "variants", "precision", "processes", "floor_seconds", "floor_samples"),
        *("batch_size", "batch_size_list", "max_batch_size", "image_size", "context_length", "tower", "optimizer"),
        *("channels_last", *CONDITIONS, "threads", "trace", "max_seconds", *OPTIONS),
    )
    meaning: ClassVar[tuple[str, ...]] = (
        *("device", "threads", "purpose", "optimizer", *CONDITIONS, "tower", "cosine", "tolerance", *OPTIONS),
    )
    exclusive: ClassVar[bool] = True

    models: PATTERNS = Field(
        description="Names, wildcards, library:name, family:NAME or all; suite: the models of PyTorch's own benchmark."
    )
    mode: Literal["inference", "training", "both"] = Field(
        "inference", description="inference: forward. training: forward, backward and optimizer, each also on its own."
    )
    purpose: Literal["performance", "accuracy", "tolerance"] = Field(
        "performance",
        description="performance: time the models. accuracy: check that all variants compute the same result. "
        "tolerance: measure how much their results differ.",
    )
    device: RealDevice = Field("cpu", description="Device to run on: cpu, cuda:0, mps, ...")
    nodes: int = Field(
        1, ge=1, le=64, description="Number of cluster nodes that share the models and time at the same time."
    )
    batch_size_list: BatchList = Field(
        "",
        max_length=100_000,
        description="Batch size of each model, such as 'resnet18 8, vit_base_patch16_224 4'. Use names of timm or of "
        "the suite. Models without a batch size are refused.",
    )
    batch_size: BATCH = Field(
        default_factory=default_batch,
        description="Images per call, or several numbers such as 1,16. recorded: as recorded in the suite; "
        "sweep: 1, 2, 4, ...; max: the largest that fits; listed: from the batch size list. "
        f"Default: 1, or {CHECKED_BATCH} to compare results of training.",
    )
    max_batch_size: int | None = Field(
        None,
        ge=1,
        le=MAX_BATCH,
        description="Largest batch size to try with batch size sweep or max. "
        f"Default: {SWEEP_END} for sweep, {SEARCH_END} for max.",
    )
    variants: VARIANTS = Field(
        ("eager",),
        description="Ways to run a model; the first is the baseline. Values: eager, compile[:BACKEND][:MODE], trace, "
        "export and cudagraphs, with +channels_last, +reparameterized, +fast_norm, +checkpointing, +PRECISION; compile "
        "also with +fullgraph, +dynamic or +freezing.",
    )
    precision: PRECISIONS = Field(
        ("float32",),
        description="float32, tf32, float16, bfloat16, amp, amp_float16 or amp_bfloat16. Each variant is timed in each "
        "of them. float32 turns TF32 off; PyTorch's default uses TF32 in convolutions.",
    )
    channels_last: bool = Field(False, description="Run every variant in channels_last memory format.")
    image_size: SIZE | None = Field(
        None, description="N or HxW in pixels. Default: the model's own; for inference its test size."
    )
    context_length: int | None = Field(
        None, ge=1, le=MAX_CONTEXT, description="Tokens per text. Default: the model's own."
    )
    tower: Literal["whole", "image", "text"] = Field(
        "whole", description="Part of an open_clip model to time: the whole model, its image tower or its text tower."
    )
    optimizer: Optimizer = "sgd"
    cosine: bool = Field(
        False,
        description="Accuracy checks compare the direction of results (cosine similarity of at least 0.99) instead of "
        "each value.",
    )
    tolerance: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Relative and absolute tolerance of accuracy checks. Default: that of PyTorch's benchmark; 0.001 "
        "in inference and 0.01 or more in training.",
    )
    trace: bool = Field(
        False,
        description="After the timing, record a profiler trace of each variant and list its slowest kernels or "
        "operators.",
    )
    publishable: Publishable = False
    replicates: Replicates = None
    min_samples: int | None = Field(
        None, ge=1, le=100_000, description="Minimum number of samples per process. Default: 10."
    )
    min_seconds: MinSeconds = None
    max_seconds: float | None = Field(
        None,
        gt=0,
        le=3600,
        description="Maximum seconds of warm-up and sampling per process, for all variants together. Sampling may "
        "then end early, and the row says so. Default: no limit.",
    )
    time_limit: TimeLimit = 1800
    threads: Threads = None
    cache: Literal["hot", "cold"] = Field(
        "hot",
        description="hot: leave the caches as they are. cold: empty them before every sample (of a GPU, its L2 cache).",
    )
    cudnn_benchmark: bool = Field(
        False, description="Let cuDNN try all algorithms and use the fastest, as timm's published speeds do."
    )
    deterministic: bool = Field(False, description="Use only deterministic algorithms.")
    filter: Expression = Field(
        "",
        description="Regular expression. Keep only models whose name, without its library, contains a match. The "
        "model's name in the suite is searched too. Case is ignored.",
    )
    exclude: Expression = Field(
        "",
        description="Regular expression. Leave out models whose name, without its library, contains a match. The "
        "model's name in the suite is searched too. Case is ignored.",
    )
    exclude_exact: str = Field(
        "",
        max_length=10_000,
        description="Names of models to leave out, comma-separated. Names of the suite work too.",
    )
    partition: str = Field(
        "", description="Time only one of N equal parts of the models: I/N, such as 1/4 for the first of four."
    )
    seed: int = Field(1337, ge=0, le=2**31, description="Random seed of weights and inputs.")
    num_classes: NumClasses = None
    in_chans: InChans = None
    model_kwargs: ModelKwargs = ""
    configs: CliSuppress[Configs] = Field(default_factory=dict)

    @field_validator("partition")
    @classmethod
    def _check_partition(cls, partition: str) -> str:
        numbers = re.fullmatch(r"(\d{1,4})/(\d{1,4})", partition)
        if partition and not (numbers and 1 <= int(numbers[1]) <= int(numbers[2])):
            raise ValueError(f"{partition[:20]!r} is no part of a whole: write I/N, such as 1/4 for the first of four")
        return partition

    def model_post_init(self, _context: Any) -> None:
        if len(self.plan) > MOST_VARIANTS:
            raise ValueError(f"{len(self.plan)} variants are asked for, at most {MOST_VARIANTS} run side by side")
        if (self.batch_size == "listed") != bool(self.batch_size_list):
            raise ValueError(
                f"batch size {self.batch_size} and a batch size list exclude each other: leave one out"
                if self.batch_size_list
                else "batch size listed needs a batch size list: give one, or another batch size"
            )
        if self.mode != "inference" and any(v.execution in ("export", "trace") for v in self.plan):
            raise ValueError("trace and export give inference graphs: choose mode inference for them")
        if self.mode != "inference" and any(v.freezing for v in self.plan):
            raise ValueError("freezing makes constants of the weights: choose mode inference for it")
        if self.purpose != "accuracy" and (self.cosine or self.tolerance is not None):
            raise ValueError(f"cosine and tolerance are settings of purpose accuracy, not of {self.purpose}")
        if self.purpose != "performance" and self.trace:
            raise ValueError(f"a trace is recorded after timing: choose purpose performance, not {self.purpose}")
        if self.batch_size == "recorded" and changes(self):
            raise ValueError(
                f"recorded batch sizes are those of models as timm defines them, not with {changes(self)}: choose a "
                "number, sweep or max"
            )

    @property
    def unused(self) -> dict[str, str]:
        reasons = {} if self.purpose == "performance" else dict.fromkeys(OF_TIMING, "results are compared, not timed")
        reasons |= {"optimizer": "inference takes no step"} if self.mode == "inference" else {}
        reasons |= {"cudnn_benchmark": "a CPU does not use cuDNN"} if device_on_node(self.device) == "cpu" else {}
        reasons |= {"context_length": "the image tower takes no texts"} if self.tower == "image" else {}
        reasons |= {"image_size": "the text tower takes no images"} if self.tower == "text" else {}
        if self.batch_size not in ("sweep", "max"):
            reasons["max_batch_size"] = "the batch size is neither sweep nor max"
        return reasons

    @property
    def plan(self) -> tuple[Variant, ...]:
        """Return every variant at its own precision or else at every precision, without duplicates, baseline first."""
        variants: dict[Variant, None] = {}
        for text in self.variants:
            variant = Variant.parse(text)
            for precision in (variant.precision,) if variant.precision else self.precision:
                more = {"precision": precision, "channels_last": variant.channels_last or self.channels_last}
                variants[variant.model_copy(update=more)] = None
        return tuple(variants)

    def baseline(self, variant: Variant) -> Variant | None:
        """Return the baseline of a variant: the first one with its precision and memory format.

        The first one itself is compared with the first variant of the plan, which has no baseline (None).
        """
        kind = variant.precision, variant.channels_last
        first = next(v for v in self.plan if (v.precision, v.channels_last) == kind)
        return next((v for v in (first, self.plan[0]) if v != variant), None)

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Return the modes to time, in order."""
        return ("inference", "training") if self.mode == "both" else (self.mode,)

    def batch_sizes(self, model: ModelName) -> tuple[int, ...]:
        """Return the batch sizes at which to time a model, in order; empty when the run finds the largest that fits.

        Errors: Refused when batch size `recorded` or `listed` is requested and there is none for this model.
        """
        if self.batch_size == "max":
            return ()
        if self.batch_size == "sweep":
            return tuple(2**power for power in range((self.max_batch_size or SWEEP_END).bit_length()))
        if self.batch_size == "recorded":
            if recorded := suite.recorded_batch_size(model):
                return (recorded,)
            raise Refused(f"no batch size is recorded for {model}: give a number, sweep or max instead")
        if self.batch_size == "listed":
            if listed := suite.listed_batch_size(model, suite.parse_batch_sizes(self.batch_size_list, MAX_BATCH)):
                return (listed,)
            raise Refused(f"the batch size list has no line for {model}: add one, or leave the model out")
        return tuple(map(int, str(self.batch_size).split(",")))

    @property
    def sweeps(self) -> bool:
        """Return whether each model is timed at several batch sizes."""
        return self.batch_size == "sweep" or "," in str(self.batch_size)

    @property
    def processes(self) -> int:
        """Return the number of fresh processes per model and batch size. Comparing results needs only one."""
        return 1 if self.purpose != "performance" else super().processes

    @property
    def reproducible(self) -> bool:
        """Return whether to use deterministic algorithms: on request, and for accuracy checks where torch has them."""
        return self.deterministic or self.purpose == "accuracy"

    @property
    def resolved(self) -> dict[str, Any]:
        floors = {"min_seconds": self.floor_seconds, "min_samples": self.floor_samples}
        return {"replicates": self.processes, **floors}

    @property
    def floor_samples(self) -> int:
        return self.min_samples or 10

    @property
    def devices(self) -> tuple[str, ...]:
        return (self.device,) * self.nodes

    @property
    def refusal(self) -> str:
        if self.nodes > 1 and not self.device.startswith(CLUSTER):
            return (
                f"{self.nodes} nodes share models on a cluster only, not on {self.device}: choose cluster:cpu or 1 node"
            )
        refusals = [variant.refusal(self.device) for variant in self.plan]
        if not any(pattern.startswith(f"{PYTHON}:") for pattern in self.models):  # such a module may add backends
            refusals += [variant.backend_refusal for variant in self.plan]
        return next(filter(None, refusals), "")

    @property
    def summary(self) -> str:
        parts = [f"{' and '.join(self.modes)} {self.purpose}", *self.variants, self.device]
        return f"{shortened(self.models)} ({', '.join(parts)})"
