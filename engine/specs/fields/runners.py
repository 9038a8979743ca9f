"""Runners, ways to run a recurrent layer, by name: those of PyTorch's fastrnns benchmark and some of our own."""

from dataclasses import dataclass
from typing import Literal

Family = Literal["vl_lstm", "lstm", "gru", "rnn_relu", "rnn_tanh", "milstm", "resnet"]
"""Families of runners that are compared with each other. fastrnns has vl_lstm, lstm and resnet as groups of results, in
this order; the others exist there only as cells."""
GATES: dict[Family, int] = {"lstm": 4, "vl_lstm": 4, "gru": 3, "rnn_relu": 1, "rnn_tanh": 1, "milstm": 4}
"""Gates of a cell, by family: each is a product with the input and one with the state. ResNets have no cells."""
KEPT_PER_STEP: dict[Family, int] = {"lstm": 6, "vl_lstm": 6, "milstm": 6, "gru": 4, "rnn_relu": 1, "rnn_tanh": 1}
"""Values per hidden unit and time step that every backward pass needs: gates, cell and state."""
Group = Literal["rnns", "cnns", "vl", "norms", "compiled", "cells"]


@dataclass(frozen=True)
class Runner:
    """One way to run one network."""

    name: str
    """A runner with `cudnn` in its name needs an NVIDIA GPU; `jit` means TorchScript, and `compile` torch.compile."""
    group: Group
    does: str
    """Description for users, beginning with a capital letter."""
    network: str = "lstm"
    """Name of the computation. Runners with the same network should give the same result."""
    family: Family = "lstm"
    cell: str = "lstm"
    """Key in engine/models/recurrent/cells.py, for a runner with our own loop around a cell."""

    @property
    def way(self) -> str:
        """Return the name without the family: how the runner runs its network, such as `jit_multilayer`."""
        return self.name.removeprefix(f"{self.family}_").removeprefix("vl_")

    @property
    def library(self) -> str:
        """Return the library that the network comes from."""
        return "torchvision" if self.family == "resnet" else "torch"

    @property
    def needs_cudnn(self) -> bool:
        """Return whether the runner needs an NVIDIA GPU."""
        return "cudnn" in self.name

    @property
    def one_by_one(self) -> bool:
        """Return whether the sequences of a batch run one after the other, which takes very long."""
        return self.name in ("vl_jit", "vl_py")

    @property
    def execution(self) -> Literal["eager", "script", "trace", "compile"]:
        """Return how the code runs: as plain Python, by TorchScript (script or trace), or by torch.compile."""
        words = self.name.split("_")
        if "compile" in words:
            return "compile"
        if "jit" in words:
            return "trace" if self.family == "resnet" else "script"
        return "eager"


def _cell(name: Family, layer: str | None) -> tuple[Runner, ...]:
    """Return all runners of one more cell. layer: its class in torch.nn; None if torch has none."""
    ways = {
        "cudnn": f"nn.{layer} on cuDNN",
        "aten": f"nn.{layer} with cuDNN switched off",
        "jit": "Its cell in a loop over time steps, scripted",
        "py": "Its cell in a loop over time steps, plain Python",
        "compile_cell": "Its cell compiled by torch.compile, in a Python loop over time steps",
    }
    offered = {way: does for way, does in ways.items() if layer or way not in ("cudnn", "aten")}
    return tuple(Runner(f"{name}_{way}", "cells", does, name, name, name) for way, does in offered.items())


_ALL = (
    Runner("cudnn", "rnns", "nn.LSTM on cuDNN"),
    Runner("aten", "rnns", "nn.LSTM with cuDNN switched off"),
    Runner("jit", "rnns", "An LSTM cell in a loop over time steps, scripted"),
    Runner("jit_premul", "rnns", "Scripted, the product with the input hoisted out of the loop", cell="lstm_premul"),
    Runner(
        "jit_premul_bias",
        "rnns",
        "Scripted, the product with the input and its bias hoisted out of the loop",
        cell="lstm_premul_bias",
    ),
    Runner("jit_simple", "rnns", "Scripted with flat arguments, giving the last state only"),
    Runner("jit_multilayer", "rnns", "Scripted, the loop over layers inside"),
    Runner("py", "rnns", "An LSTM cell in a loop over time steps, plain Python"),
    Runner("cudnn_dropout", "norms", "nn.LSTM on cuDNN with dropout 0.4 between layers", "lstm_dropout"),
    Runner("aten_dropout", "norms", "nn.LSTM without cuDNN with dropout 0.4 between layers", "lstm_dropout"),
    Runner("jit_dropout", "norms", "Scripted, with dropout 0.4 between layers", "lstm_dropout"),
    Runner(
        "cudnn_layernorm",
        "norms",
        "nn.LSTM on cuDNN and as many layer norms as a layer-norm LSTM has: a lower bound, forward only",
        "lstm_and_layernorms",
    ),
    Runner(
        "aten_layernorm",
        "norms",
        "nn.LSTM without cuDNN and as many layer norms as a layer-norm LSTM has: a lower bound, forward only",
        "lstm_and_layernorms",
    ),
    Runner("jit_layernorm", "norms", "A layer-norm LSTM cell, scripted", "lstm_layernorm", cell="lstm_layernorm"),
    Runner(
        "jit_layernorm_decom",
        "norms",
        "A layer-norm LSTM cell with its norms written as elementwise operations, scripted",
        "lstm_layernorm",
        cell="lstm_layernorm_decom",
    ),
    Runner("compile_cell", "compiled", "An LSTM cell compiled by torch.compile, in a Python loop over time steps"),
    Runner("compile_loop", "compiled", "The whole loop over time steps compiled by torch.compile, which unrolls it"),
    Runner("compile_lstm", "compiled", "nn.LSTM under torch.compile, unchanged"),
    Runner("vl_cudnn", "vl", "Sequences of different lengths, packed, nn.LSTM on cuDNN", "vl_lstm", "vl_lstm"),
    Runner("vl_aten", "vl", "Sequences of different lengths, packed, nn.LSTM without cuDNN", "vl_lstm", "vl_lstm"),
    Runner("vl_jit", "vl", "Sequences of different lengths, one after the other, scripted", "vl_lstm", "vl_lstm"),
    Runner("vl_py", "vl", "Sequences of different lengths, one after the other, plain Python", "vl_lstm", "vl_lstm"),
    *_cell("gru", "GRU"),
    *_cell("rnn_relu", "RNN"),
    *_cell("rnn_tanh", "RNN"),
    *_cell("milstm", None),
    Runner("resnet18", "cnns", "torchvision's ResNet-18", "resnet18", "resnet"),
    Runner("resnet18_jit", "cnns", "torchvision's ResNet-18, traced", "resnet18", "resnet"),
    Runner("resnet50", "cnns", "torchvision's ResNet-50", "resnet50", "resnet"),
    Runner("resnet50_jit", "cnns", "torchvision's ResNet-50, traced", "resnet50", "resnet"),
)
RUNNERS: dict[str, Runner] = {runner.name: runner for runner in _ALL}
"""All runners by name, in the order in which they are shown."""


def of_group(group: str) -> tuple[str, ...]:
    """Return the names of a group's runners."""
    return tuple(name for name, runner in RUNNERS.items() if runner.group == group)
