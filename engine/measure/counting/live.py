"""Count the bytes of tensors that are alive at the same time."""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_iter


class LiveBytes:
    """Count the bytes of all live storages, without those that are held throughout, and their peak.

    A tensor counts from the moment an operator returns it until Python frees it. This works on meta, where nothing is
    allocated, as well as on a real device. An allocator's rounding and caching are not included.
    """

    def __init__(self, held: Iterable[torch.Tensor]) -> None:
        self._held = {tensor.untyped_storage()._cdata for tensor in held}
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.now = 0
        self.peak = 0

    def see(self, out: Any) -> None:
        """Register the tensors that an operator returned, also those in tuples and lists."""
        for tensor in tree_iter(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._alive and storage._cdata not in self._held:
                    self._add(storage)

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()

        def forget(_: object) -> None:
            del self._alive[key]
            self.now -= size

        self._alive[key] = weakref.ref(storage, forget)
        self.now += size
        self.peak = max(self.peak, self.now)


def tensor_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the tensors' storages. A storage that several tensors share counts once."""
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def state(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return the model's parameters and buffers."""
    return [*model.parameters(), *model.buffers()]
