"""What makes compilations comparable: whoever is compiled second must find nothing that the first has left.

Each compiles into cache folders of its own, which it finds again in the next process; and the compiler itself, which
takes seconds to load, has compiled something else before.
"""

import os
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from urllib.parse import quote

import torch

from engine.replicates.processes import CACHES

LOADING = "loading"
_GIVEN = {name: Path(os.environ[name]) for name in CACHES if name in os.environ}
"""What this process was given. Compilers look at the variables each time."""


def own_caches(label: str, device: str) -> float:
    """Have the compiler loaded, and from now on compile into folders of this label's.

    Returns the seconds that loading took: next to none once it is loaded.
    """
    started = time.perf_counter()
    _load(device)
    seconds = time.perf_counter() - started
    _use(label)
    return seconds


@cache
def _load(device: str) -> None:
    """Once in a process."""
    _use(LOADING)
    with suppress(Exception):  # what cannot be compiled at all is told of each model
        torch.compile(lambda values: values + 1)(torch.ones(8, device=device))


def _use(label: str) -> None:
    from torch._inductor.utils import clear_caches  # the public reset would forget compiled models as well

    for name, folder in _GIVEN.items():
        os.environ[name] = str(folder / quote(label, safe=""))
    clear_caches()
