"""Variants: ways to run a model that can be timed side by side, and their notation.

`eager`, `compile`, `compile:max-autotune`, `compile:aot_eager`, `compile:inductor:reduce-overhead`, `trace`, `export`,
`cudagraphs`, each with modifiers after a plus sign: `eager+channels_last+bfloat16`, `compile+reparameterized`,
`compile+fullgraph`, `compile+dynamic`, `compile+freezing`.
"""

import re
from importlib.metadata import entry_points
from typing import Literal, get_args

from engine.specs.base import Closed, device_on_node

Execution = Literal["eager", "compile", "trace", "export", "cudagraphs"]
RunPrecision = Literal["float32", "tf32", "float16", "bfloat16", "amp", "amp_float16", "amp_bfloat16"]
"""Precisions of a run. amp: autocast in the device's own type (float16 on CUDA, bfloat16 on a CPU); see the row."""
EXECUTIONS: tuple[str, ...] = get_args(Execution)
PRECISIONS: tuple[str, ...] = get_args(RunPrecision)
COMPILE_MODIFIERS = ("fullgraph", "dynamic", "freezing")
"""Modifiers of torch.compile alone."""
MODIFIERS = ("channels_last", "reparameterized", "fast_norm", "checkpointing", *COMPILE_MODIFIERS)
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
BACKEND = re.compile(r"[A-Za-z_][\w.-]{0,60}")
BACKENDS = (
    *("inductor", "cudagraphs", "eager", "aot_eager", "aot_eager_decomp_partition", "aot_eager_default_partitioner"),
    *("aot_eager_decomp_partition_with_mode", "aot_eager_decomp_partition_crossref", "pre_dispatch_eager"),
    *("eager_noexcept", "eager_debug", "invoke_subgraph", "ts", "aot_ts", "openxla", "openxla_eval", "tvm", "onnxrt"),
    *("dynamo_minifier_backend", "dynamo_accuracy_minifier_backend"),
)
"""Backends of torch.compile that come with torch. Other packages announce theirs as entry points."""


class Variant(Closed):
    """One way to run a model."""

    execution: Execution = "eager"
    backend: str = ""
    """Backend of torch.compile; empty: inductor."""
    compile_mode: str = ""
    precision: RunPrecision | None = None
    """None until a spec combines its variants with its precisions."""
    channels_last: bool = False
    reparameterized: bool = False
    fast_norm: bool = False
    checkpointing: bool = False
    fullgraph: bool = False
    """A graph break is an error."""
    dynamic: bool = False
    """Graphs are compiled for any batch and image size, not for one."""
    freezing: bool = False
    """inductor folds the weights into the graph as constants; for inference."""

    @classmethod
    def parse(cls, text: str) -> "Variant":
        """Return the variant for a notation. Errors: ValueError that names the unknown word and the known ones."""
        execution, *words = text.strip().split("+")
        name, *options = execution.strip().split(":")
        if name not in EXECUTIONS:
            raise ValueError(f"{text!r}: a variant begins with one of {', '.join(EXECUTIONS)}, not with {name!r}")
        fields: dict[str, object] = {"execution": name, **_compile_options(text, name, options)}
        for word in (word.strip() for word in words):
            if word in PRECISIONS:
                if "precision" in fields:
                    raise ValueError(f"{text!r} names two precisions")
                fields["precision"] = word
            elif word in MODIFIERS:
                fields[word] = True
            else:
                raise ValueError(f"{text!r}: {word!r} is none of {', '.join((*MODIFIERS, *PRECISIONS))}")
        if (compile_words := [word for word in COMPILE_MODIFIERS if word in fields]) and name != "compile":
            raise ValueError(f"{text!r}: only compile takes {' and '.join(compile_words)}")
        if "freezing" in fields and fields.get("backend", "inductor") != "inductor":
            raise ValueError(f"{text!r}: only the backend inductor takes freezing")
        return cls.model_validate(fields)

    def refusal(self, device: str) -> str:
        """Return why a device cannot run this variant; empty if no reason is known."""
        graphs = "cudagraphs" in (self.execution, self.backend) or self.compile_mode == "reduce-overhead"
        if device_on_node(device).startswith("cuda") or not (graphs or self.precision == "tf32"):
            return ""
        needed = "CUDA graphs, which only NVIDIA's and AMD's GPUs have" if graphs else "an NVIDIA GPU"
        return f"{self.label} needs {needed}: leave it out, or choose another device than {device}"

    @property
    def backend_refusal(self) -> str:
        """Return why no installed package has the backend of this variant, or why it takes no mode; empty if none."""
        if self.backend in BACKENDS and self.backend != "inductor" and self.compile_mode not in ("", "default"):
            return f"{self.label}: of torch's backends, only inductor takes a mode: leave {self.compile_mode} out"
        if not self.backend or self.backend in BACKENDS:
            return ""
        others = entry_points(group="torch_dynamo_backends").names
        if self.backend in others:
            return ""
        return (
            f"{self.label}: {self.backend!r} is neither a mode of compile ({', '.join(COMPILE_MODES)}) "
            f"nor a backend ({', '.join((*BACKENDS, *sorted(others)))})"
        )

    @property
    def notation(self) -> str:
        """Return the text that `parse` reads as this variant."""
        parts = [":".join(part for part in (self.execution, self.backend, self.compile_mode) if part)]
        parts += [name for name in MODIFIERS if getattr(self, name)]
        return "+".join([*parts, *([self.precision] if self.precision else [])])

    @property
    def label(self) -> str:
        """Return the notation of this variant, without float32."""
        return self.notation.removesuffix("+float32")


def _compile_options(text: str, name: str, options: list[str]) -> dict[str, str]:
    if options and name != "compile":
        raise ValueError(f"{text!r}: only compile takes a backend or a mode")
    if not options:
        return {}
    if len(options) > 2:
        raise ValueError(f"{text!r}: compile takes a backend and a mode, compile:BACKEND:MODE")
    if len(options) == 1 and options[0] in COMPILE_MODES:
        return {"compile_mode": options[0]}
    if not BACKEND.fullmatch(options[0]):
        raise ValueError(f"{text!r}: {options[0]!r} is no backend's name")
    if len(options) == 2 and options[1] not in COMPILE_MODES:
        raise ValueError(f"{text!r}: {options[1]!r} is none of the modes {', '.join(COMPILE_MODES)}")
    return dict(zip(("backend", "compile_mode"), options, strict=False))
