"""The request of a benchmark of recurrent layers: runners, shapes, samples and processes."""

from difflib import get_close_matches
from math import ceil
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import AfterValidator, FailFast, Field
from typing_extensions import TypeAliasType

from engine.specs.base import SIZE, RealDevice, Spec, device_on_node, format_image_size, unique
from engine.specs.fields.runners import GATES, RUNNERS, Family, Group, of_group
from engine.specs.fields.timed import Floors, MinSeconds, Publishable, Replicates, Threads, TimeLimit, split_words
from engine.words import plural, shortened

LONGEST, DEEPEST, WIDEST, LARGEST_BATCH = 10_000, 64, 16_384, 65_536
BOUNDS = {"seq_length": LONGEST, "hidden_size": WIDEST, "mini_batch": LARGEST_BATCH}
"""The sizes that a sweep can vary, with their largest values."""
MOST_POINTS = 12
KNOBS = ("cuda_pointwise_loop_level", "cuda_pointwise_block_count", "cuda_pointwise_block_size")
"""Options of the te fuser on CUDA."""
SHORTEST = 0.3
"""Shortest sequence as a share of seq_length, for runners with mixed lengths: 30 of 100, as in fastrnns."""


def _check_runner(name: str) -> str:
    if name not in RUNNERS:
        near = get_close_matches(name, RUNNERS, 3)
        closest = f"closest: {', '.join(near)}; " if near else ""
        raise ValueError(f"no runner is called {name[:100]!r}; {closest}there are {', '.join(RUNNERS)}")
    return name


RunnerName = Annotated[str, AfterValidator(_check_runner)]
RUNNER_NAMES = TypeAliasType(
    "RUNNER_NAMES", Annotated[tuple[RunnerName, ...], FailFast(), split_words, Field(max_length=len(RUNNERS)), unique]
)
GROUPS = TypeAliasType(
    "GROUPS", Annotated[tuple[Group, ...], split_words, Field(max_length=len(get_args(Group))), unique]
)
NUMBERS = TypeAliasType("NUMBERS", Annotated[tuple[int, ...], split_words, Field(max_length=MOST_POINTS)])


class RecurrentSpec(Floors, Spec):
    """Time recurrent layers forward and backward, with many runners side by side, and a few ResNets."""

    kind: ClassVar[str] = "recurrent"
    attempts: ClassVar[int] = 2
    meaning: ClassVar[tuple[str, ...]] = (
        *("device", "threads", "precision", "num_layers", "input_size", "image_size", "proj_size", "bidirectional"),
        *("batch_first", "fuser", "executor", *KNOBS),
    )
    PACED_ALIKE: ClassVar[set[str]] = {"baseline", "seed", "time_limit", "publishable", "replicates", "min_seconds"}
    """Fields that do not determine how long a unit of work takes. Processes and floor_seconds in `pace` do."""
    exclusive: ClassVar[bool] = True
    batch_field: ClassVar[str] = "mini_batch"

    groups: GROUPS = Field(
        (),
        description="Sets of runners. rnns: LSTM. cnns: ResNets. vl: sequences of mixed lengths (slow). norms: with "
        "dropout or layer norms. compiled: torch.compile. cells: GRU, RNN, multiplicative-integration LSTM. Runners "
        "on cuDNN are left out on a device without it. Default, if no runners are chosen either: rnns and cnns.",
    )
    runners: RUNNER_NAMES = Field(
        (),
        description="Runners in addition to those of the groups, such as cudnn, jit or gru_compile_cell. The error for "
        "an unknown name lists all of them.",
    )
    seq_length: int = Field(100, ge=1, le=LONGEST, description="Time steps of a sequence.")
    num_layers: int = Field(1, ge=1, le=DEEPEST, description="Number of stacked recurrent layers.")
    input_size: int = Field(512, ge=1, le=WIDEST, description="Input features per time step.")
    hidden_size: int = Field(512, ge=1, le=WIDEST, description="Features of the hidden state.")
    mini_batch: int = Field(64, ge=1, le=LARGEST_BATCH, description="Sequences, or images, per call.")
    image_size: SIZE = Field((224, 224), description="Image size of the ResNets: N or HxW in pixels.")
    proj_size: int = Field(
        0, ge=0, le=WIDEST, description="Size of the projection of an LSTM's hidden state; 0: no projection."
    )
    bidirectional: bool = Field(False, description="Run every layer over the sequence in both directions.")
    batch_first: bool = Field(False, description="Inputs as (batch, time, feature) instead of (time, batch, feature).")
    precision: Literal["float32", "tf32", "float16", "bfloat16"] = Field(
        "float32", description="Data type of weights and inputs. tf32: float32 with TF32 matrix products, on CUDA."
    )
    device: RealDevice = Field("cpu", description="Device to run on: cpu, cuda:0, mps, ...")
    warmup: int = Field(
        10,
        ge=0,
        le=10_000,
        description="Minimum number of calls before the timing. More follow until the times are stable.",
    )
    loops: int = Field(100, ge=1, le=100_000, description="Minimum number of samples per process.")
    baseline: str = Field(
        "", description="Runner that speed-ups refer to. Default: the first that runs; each network has its own."
    )
    sweep: Literal["off", "seq_length", "hidden_size", "mini_batch"] = Field(
        "off", description="Size to vary: every runner is timed at several values of it."
    )
    sweep_values: NUMBERS = Field((), description="Values of the sweep. Default: 1/4, 1/2, 1 and 2 times the size.")
    fuser: Literal["te", "old", "none"] = Field(
        "te", description="TorchScript's fuser: te (NNC), old (legacy) or none."
    )
    executor: Literal["default", "legacy", "simple", "profiling"] = Field(
        "default", description="TorchScript's executor. default: the one that matches the fuser."
    )
    cuda_pointwise_loop_level: int | None = Field(
        None, ge=1, le=8, description="Loop levels of the te fuser's elementwise CUDA kernels. Default: PyTorch's."
    )
    cuda_pointwise_block_count: int | None = Field(
        None, ge=1, le=1_000_000, description="Blocks of the te fuser's elementwise CUDA kernels. Default: PyTorch's."
    )
    cuda_pointwise_block_size: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Threads per block of the te fuser's elementwise CUDA kernels. Default: PyTorch's.",
    )
    publishable: Publishable = False
    replicates: Replicates = None
    min_seconds: MinSeconds = None
    time_limit: TimeLimit = 1800
    threads: Threads = None
    seed: int = Field(1337, ge=0, le=2**31, description="Random seed of weights, inputs and lengths.")

    def model_post_init(self, _context: Any) -> None:
        if self.baseline:
            _check_runner(self.baseline)
            if self.baseline not in self.chosen:
                raise ValueError(
                    f"the baseline {self.baseline} is not one of the runners to time: {', '.join(self.chosen)}"
                )
        size, advice = self.proj_size, "reduce it, or choose 0 for none"
        if size >= self.hidden_size:
            raise ValueError(f"projection size {size} is not smaller than hidden size {self.hidden_size}: {advice}")
        if self.sweep == "off" and self.sweep_values:
            raise ValueError(
                "there are sweep values, but no size to vary: choose the sweep seq_length, hidden_size or mini_batch"
            )
        for value in self.swept:
            if not 1 <= value <= BOUNDS[self.sweep]:
                raise ValueError(f"a sweep of {self.sweep} takes values from 1 to {BOUNDS[self.sweep]:,}, not {value}")
            if self.sweep == "hidden_size" and size >= value:
                raise ValueError(f"projection size {size} is not smaller than the swept hidden size {value}: {advice}")

    @property
    def chosen(self) -> tuple[str, ...]:
        """Return all chosen runners, without duplicates and without `left_out`."""
        left_out = self.left_out
        kept = (name for name in self._runners_of_groups if name not in left_out)
        return tuple(dict.fromkeys([*kept, *self.runners]))

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return the groups' runners that need cuDNN when the device is no GPU. Runners requested by name stay."""
        if device_on_node(self.device).startswith("cuda"):
            return ()
        return tuple(name for name in self._runners_of_groups if RUNNERS[name].needs_cudnn and name not in self.runners)

    @property
    def _runners_of_groups(self) -> list[str]:
        groups = self.groups or (() if self.runners else ("rnns", "cnns"))
        return [name for group in groups for name in of_group(group)]

    @property
    def swept(self) -> tuple[int, ...]:
        """Return the values of the sweep in ascending order, without duplicates; empty without a sweep."""
        if self.sweep == "off":
            return ()
        size: int = getattr(self, self.sweep)
        return tuple(sorted(set(self.sweep_values or (ceil(size / 4), ceil(size / 2), size, 2 * size))))

    @property
    def comparisons(self) -> tuple["RecurrentSpec", ...]:
        """Return one spec per comparison: each without a sweep and with runners of one family.

        ResNets have no time steps and no hidden state, so a sweep of seq_length or hidden_size times them only once.
        """
        sizes = [{self.sweep: value} for value in self.swept] or [{}]
        families: dict[Family, list[str]] = {}
        for name in self.chosen:
            families.setdefault(RUNNERS[name].family, []).append(name)
        specs = []
        for family, names in families.items():
            is_fixed = family == "resnet" and self.sweep != "mini_batch"
            for size in sizes[:1] if is_fixed else sizes:
                fields = {"groups": (), "runners": tuple(names), "sweep": "off", "sweep_values": ()}
                fields["baseline"] = self.baseline if self.baseline in names else ""
                specs.append(self.model_copy(update=fields | ({} if is_fixed else size)))
        return tuple(specs)

    @property
    def family(self) -> Family:
        """Return the family of the runners. Use it only on one of the `comparisons`."""
        return RUNNERS[self.chosen[0]].family

    @property
    def pace(self) -> tuple[object, ...]:
        return (*self.model_dump(exclude=self.PACED_ALIKE).values(), self.processes, self.floor_seconds)

    @property
    def resolved(self) -> dict[str, Any]:
        return {"replicates": self.processes, "min_seconds": self.floor_seconds}

    @property
    def unused(self) -> dict[str, str]:
        swept = {str(self.sweep): "the sweep has values of its own"} if self.sweep_values else {}
        if device_on_node(self.device).startswith("cuda"):
            return swept
        return swept | dict.fromkeys(KNOBS, f"{self.device} has no CUDA kernels")

    @property
    def floor_samples(self) -> int:
        return self.loops

    @property
    def half_batch(self) -> int | None:
        return None if self.sweep == "mini_batch" else super().half_batch

    @property
    def refusal(self) -> str:
        if device_on_node(self.device).startswith("cuda"):
            return ""
        if self.precision == "tf32":
            return f"tf32 needs an NVIDIA GPU: choose another precision, or another device than {self.device}"
        if all(RUNNERS[name].needs_cudnn for name in self.chosen):  # with others, only their rows fail
            instead = [name.replace("cudnn", "aten") for name in self.chosen]
            return (
                f"cuDNN needs an NVIDIA GPU, which {self.device} is not: choose {', '.join(instead)}, or another device"
            )
        return ""

    @property
    def summary(self) -> str:
        sizes = {name: str(getattr(self, name)) for name in BOUNDS}
        if self.swept:
            sizes[self.sweep] = " to ".join(dict.fromkeys((str(self.swept[0]), str(self.swept[-1]))))
        batch = f"batch {sizes['mini_batch']}"
        if all(RUNNERS[name].family == "resnet" for name in self.chosen):
            return f"{shortened(self.chosen)} ({batch}, {format_image_size(self.image_size)} px, {self.device})"
        layers = plural(self.num_layers, "layer")
        steps = plural(self.seq_length, "time step")
        if self.sweep == "seq_length":
            steps = f"{sizes['seq_length']} time steps"
        features = f"{self.input_size} in, {sizes['hidden_size']} hidden"
        return f"{shortened(self.chosen)} ({steps}, {batch}, {features}, {layers}, {self.device})"


def macs_per_step(spec: RecurrentSpec) -> int:
    """Return the multiply-adds of one time step of one sequence, all layers and directions.

    It is also the number of weights without biases, because each weight is used once per time step.
    """
    directions, hidden, out = 1 + spec.bidirectional, spec.hidden_size, spec.proj_size or spec.hidden_size
    gates, projection = GATES[spec.family] * hidden, out * hidden if spec.proj_size else 0
    inputs = [spec.input_size] + [out * directions] * (spec.num_layers - 1)
    return sum(directions * (gates * (size + out) + projection) for size in inputs)
