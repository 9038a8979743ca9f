"""Build recurrent layers in every timed implementation, and a few ResNets, by a runner's name; check their results."""

from engine.models.recurrent.build import build
from engine.models.recurrent.control import Control, Errors
from engine.models.recurrent.network import Network, Run
from engine.models.recurrent.torchscript import set_torchscript
from engine.models.recurrent.weights import gflops, steps

__all__ = ["Control", "Errors", "Network", "Run", "build", "gflops", "set_torchscript", "steps"]
