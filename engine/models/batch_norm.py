"""Batch norm over all processes of a training."""

from typing import Any

import torch
from timm.layers import convert_sync_batchnorm  # type: ignore[attr-defined]
from torch import Tensor, distributed, nn
from torch.distributed._functional_collectives import all_reduce
from torch.nn.modules.batchnorm import _BatchNorm


class CpuSyncBatchNorm(_BatchNorm):
    """Batch norm over all processes on a CPU, where torch's SyncBatchNorm does not run.

    The variance is the mean of the squared deviations from the common mean. This needs a second exchange, but loses no
    digits, as the difference of two large sums would. timm's norms keep their dropout and activation.
    """

    running_mean: Any  # of torch's type Tensor | None, but models of open_clip and timm always have them
    running_var: Any
    num_batches_tracked: Any
    momentum: Any

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept inputs of any number of dimensions."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalised input (N, C, ...), in its data type. Update the running statistics in training mode."""
        shared = self.training and distributed.is_initialized()
        output = self._normalised(input) if shared else super().forward(input)
        for name in ("drop", "act"):  # as timm's SyncBatchNormAct does
            if hasattr(self, name):
                output = getattr(self, name)(output)
        return output

    def _normalised(self, input: Tensor) -> Tensor:
        values = input.to(torch.promote_types(input.dtype, torch.float32))
        summed_dims = [dim for dim in range(values.dim()) if dim != 1]
        shape = [1, -1, *[1] * (values.dim() - 2)]
        count = values.new_tensor([values.numel() / values.size(1)])
        sums = _summed(torch.cat([values.sum(summed_dims), count]))
        mean, total = sums[:-1] / sums[-1], sums[-1]
        deviations = values - mean.view(shape)
        variance = _summed(deviations.square().sum(summed_dims)) / total
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            self.running_var.lerp_((variance * total / (total - 1)).to(self.running_var.dtype), self.momentum)
        normalised = deviations * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            normalised = normalised * self.weight.view(shape) + self.bias.view(shape)
        return normalised.to(input.dtype)


def _summed(values: Tensor) -> Tensor:
    """Return the sum of all processes' values, through which gradients flow."""
    assert distributed.group.WORLD is not None
    return all_reduce(values, "sum", distributed.group.WORLD)  # type: ignore[no-any-return]


def synchronise(model: nn.Module, device: str) -> bool:
    """Let all batch norms of a model compute over all processes, in place. Return whether it has any."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if device == "cpu":
        for norm in norms:
            norm.__class__ = CpuSyncBatchNorm
    else:  # torch's own conversion drops the activations of timm's norms
        convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    return bool(norms)
