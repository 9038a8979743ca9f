"""Factories of modules as users write them, for `python:tests.support.own_models:NAME`."""

import threading
from contextlib import suppress

import torch
from torch import nn

NOT_A_FACTORY = 3


def tiny(width: int = 8, channels: int = 3) -> nn.Module:
    """Return a convolution, a mean over pixels, and a head with ten classes."""
    layers = nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(width, 10))


def never_ending() -> nn.Module:
    """Return a small module with a thread that keeps its process from ending."""
    threading.Thread(target=threading.Event().wait).start()
    return tiny()


def enlarging() -> nn.Module:
    """Return a mean over images enlarged 16 times. It needs 3 x 256 numbers per input pixel on any machine."""
    return nn.Sequential(nn.Upsample(scale_factor=16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 10))


def tied(device: str | None = None) -> nn.Module:
    """Return two convolutions that share their weights, on a device of their own if wanted, as a loaded model is."""
    first, second = (nn.Conv2d(3, 3, 3, padding=1, bias=False, device=device) for _ in range(2))
    second.weight = first.weight
    return nn.Sequential(first, second)


class Broken(nn.Linear):
    """A module that raises an error, of Python or of an operator."""

    def __init__(self, *, python: bool) -> None:
        super().__init__(1, 1)
        self.python = python

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.python:
            raise RuntimeError("broken")
        return super().forward(images)


class Catching(nn.Module):
    """A convolution without the module before it, whose error is caught."""

    def __init__(self, *, python: bool) -> None:
        super().__init__()
        self.broken, self.conv = Broken(python=python), nn.Conv2d(3, 4, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        with suppress(RuntimeError):
            images = self.broken(images)
        return self.conv(images).mean((2, 3))


def scripted() -> nn.Module:
    return torch.jit.script(tied())


class Parts:
    """A namespace of factories."""

    @staticmethod
    def linear() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 2))


def of_values() -> nn.Module:
    """Return a module whose size depends on values, which tensors on meta do not have."""
    return nn.Linear(int(torch.ones(3).sum().item()), 1)


def no_module() -> str:
    return "not a module"
