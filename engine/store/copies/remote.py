"""Reach the file system of VITALS_ARTIFACTS_URL, which holds the copies of files."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from engine import atomic
from engine.specs import Refused

MOST_AT_ONCE = 8
"""Files that are copied at the same time. Each may take 100 MB of memory."""
OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {"config_kwargs": {"retries": {"total_max_attempts": 2}}},  # callers try again by themselves
    "file": {"auto_mkdir": True},
}
"""Options of file systems, by protocol."""


class Unreachable(Refused):
    """The files below the URL cannot be read or written at present."""


@contextmanager
def reaching(url: str, name: str) -> Iterator[tuple[Any, str]]:
    """Yield the file system of a URL and the path of a folder there. Raise Unreachable for all of its many errors."""
    try:
        remote, root = _connect(url, os.getpid())
        yield remote, f"{root.rstrip('/')}/{name}"
    except Exception as error:
        where = f"{url.rstrip('/')}/{name}"
        raise Unreachable(f"the files in {where} cannot be reached: {type(error).__name__}: {error}") from error


@lru_cache(maxsize=4)
def _connect(url: str, pid: int) -> tuple[Any, str]:
    """Return the file system of a URL and the path there, once per process, because connecting takes 0.1 s."""
    from fsspec.core import url_to_fs

    protocol = url.partition("://")[0] if "://" in url else "file"
    remote, root = url_to_fs(url, **OPTIONS.get(protocol, {}))
    remote.batch_size = MOST_AT_ONCE
    return remote, root


def replace_file(remote: Any, path: str, content: str) -> None:
    """Write a text so that readers get the old one or the new one, never a part."""
    if "file" in remote.protocol:  # fsspec writes local files in place; object stores replace them
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        atomic.write(Path(path), content)
    else:
        remote.pipe_file(path, content.encode())
