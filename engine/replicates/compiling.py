"""Make compilation times comparable: a model must not profit from what an earlier one has left in memory or caches.

Each label compiles into its own cache folders, and finds them again in the next process. The compiler takes seconds to
load, so it compiles something else first.
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
"""Label of the cache folders for the compilation that loads the compiler."""
_FOLDERS = {name: Path(os.environ[name]) for name in CACHES if name in os.environ}
"""Cache folders of this process, by environment variable. Compilers read the variables each time."""


def own_caches(label: str, device: str, backend: str = "") -> float:
    """Load the compiler with this backend, and compile into the cache folders of this label from now on.

    Returns the seconds that loading took; about 0 if it was loaded before.
    """
    started = time.perf_counter()
    _load_compiler(device, backend or "inductor")
    seconds = time.perf_counter() - started
    _use_caches(label)
    return seconds


@cache
def _load_compiler(device: str, backend: str) -> None:
    """Load the compiler once per process and backend."""
    if device == "cpu" and backend == "inductor":
        _find_vector_instructions()
    _use_caches(LOADING)
    with suppress(Exception):  # an error that every compilation has is reported for each model
        torch.compile(lambda values: values + 1, backend=backend)(torch.ones(8, device=device))


def _find_vector_instructions() -> None:
    """Let torch find out which vector instructions it may generate, with its default cache folder.

    It builds six programs for that, in 8 s of CPU time, and keeps the answer in this process. It depends only on the
    machine and the C++ compiler, so it is no part of a model's compilation.
    """
    from torch._inductor.cpu_vec_isa import valid_vec_isa_list
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = default_cache_dir()
    with suppress(Exception):  # such as a folder of another user: torch tries again in the next folder
        valid_vec_isa_list()


def _use_caches(label: str) -> None:
    from torch._inductor.utils import clear_caches  # the public reset would also forget compiled models

    for name, folder in _FOLDERS.items():
        os.environ[name] = str(folder / quote(label, safe=""))
    clear_caches()
