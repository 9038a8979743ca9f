"""Help processes: start, fork and end quickly, end with the parent, output without a reader, kills, join a cluster."""

import atexit
import ctypes
import errno
import gc
import io
import json
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, TextIO

PR_SET_PDEATHSIG = 1
CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
VMSTAT = Path("/proc/vmstat")
LIBRARIES = ("torch", "timm", "open_clip")
"""Libraries that take seconds to import."""
STOP_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
"""Signals to a process group that ask a run to stop: Ctrl+C in a terminal, a cancellation, and a closed terminal."""
NODES = "VITALS_NODES"
"""Environment variable of a worker on a cluster whose run has several nodes: JSON of `nodes_to_use`."""


class HostLost(RuntimeError):
    """Another host of this run is gone: the run may continue on others."""


@dataclass(frozen=True)
class Share:
    """Processes and resources of a run on one node of a cluster."""

    processes: int
    num_cpus: int
    num_gpus: int


def nodes_to_use() -> dict[str, Share]:
    """Return the nodes on which this worker starts processes through Ray, by Ray's id of the node.

    For a timing on several nodes, these are all its nodes. For a training, they are those besides the worker's own.
    """
    return {node: Share(**share) for node, share in json.loads(os.environ.get(NODES, "{}")).items()}


def collect_rarely() -> None:
    """Let Python collect garbage rarely. Call this before heavy imports.

    Loading torch, timm and open_clip creates objects by the hundred thousand and no garbage: the default of a
    collection per 700 objects takes 0.5 to 0.9 s more CPU time.
    """
    gc.set_threshold(100_000)


def interrupt_quietly() -> None:
    """Print `interrupted` in place of a traceback when Ctrl-C ends this process, such as during its imports."""

    def on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.stderr.write("interrupted\n")
        else:
            sys.__excepthook__(kind, error, trace)

    sys.excepthook = on_exception


def fork_context(module: str) -> ForkServerContext | SpawnContext:
    """Return the multiprocessing context for child processes that work with `module`. They call `exit_with_parent`.

    A process that has run operators in parallel hangs when it is forked, and a new one imports the libraries for 4 s of
    CPU time. So a server imports once what this process has imported of them, and is forked for each child. On other
    systems than Linux, each child is a new process.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*(library for library in LIBRARIES if library in sys.modules), module])
    resource_tracker.ensure_running()  # it changes the mask when it starts, and the server would start it
    # the server inherits the mask: a signal to this process's group asks this process to stop, which still needs it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    forkserver.ensure_running()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


def exit_with_parent(_index: int = 0) -> None:
    """End this child of multiprocessing when its parent ends for any reason, but not at signals to the parent's group.

    _index: that of a DataLoader's process, whose `worker_init_fn` this can be.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "called in a child process"
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # the parent may terminate it

    def exit_after() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=exit_after, daemon=True).start()


class DiscardingOutput(io.FileIO):
    """Output to a file descriptor that is discarded from the moment when the pipe's reader or the terminal is gone.

    The null device then replaces it, so that processes that are started later can write there too.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number, "w", closefd=False)
        self._gone = (errno.EPIPE, errno.EIO) if self.isatty() else (errno.EPIPE,)

    def write(self, data: Any) -> int:
        """Write data and return the number of bytes that were taken."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in self._gone:
                raise
            _discard(self.fileno())
            return super().write(data)


def _discard(number: int) -> None:
    """Make a file descriptor, open or closed, write to the null device. Child processes inherit it."""
    null = os.open(os.devnull, os.O_WRONLY)
    if null == number:
        os.set_inheritable(number, True)
    else:
        os.dup2(null, number)
        os.close(null)


def keep_output_open() -> None:
    """Let this process go on without a reader of its stdout and stderr.

    So `| head` ends no run, nor do `>&-`, `2>&-` and a terminal that was closed after `disown`.

    Without this, Python has no stream for a closed descriptor, prints errors to stdout instead, and gives the number of
    the descriptor to the next file that is opened.
    """
    for number, name in ((1, "stdout"), (2, "stderr")):
        if (stream := getattr(sys, name)) is None:
            _discard(number)
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))
            continue
        raw = io.BufferedWriter(DiscardingOutput(number))
        by_line = stream.line_buffering or stream.write_through
        # another encoding than UTF-8 lacks signs such as those of class names
        wrapped = io.TextIOWrapper(raw, stream.encoding, "backslashreplace", line_buffering=by_line)
        setattr(sys, name, wrapped)


def leave(code: int) -> NoReturn:
    """End this process with an exit code, as multiprocessing ends its children: without destroying all objects.

    With torch and timm loaded, destroying them takes 0.9 s of CPU time. Threads are joined and exit functions run.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # such as that of a full disk, which the command has reported
            stream.flush()
    os._exit(code)


def die_with_parent() -> None:
    """Ask the kernel to kill the calling process when its parent ends for any reason. Does nothing outside Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def signal_group(group: int, number: signal.Signals) -> None:
    """Signal a process group. Does nothing if it has ended."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass
    except PermissionError:  # macOS answers so when only zombies are left in the group
        if sys.platform != "darwin":
            raise


@contextmanager
def joined_cluster(*, log_to_driver: bool) -> Iterator[Any]:
    """Join the Ray cluster that this process is a job of, and yield the module `ray`.

    log_to_driver: also print the output of the processes that Ray starts for this one.
    """
    os.environ |= {"RAY_COLOR_PREFIX": "0", "RAY_DEDUP_LOGS": "0"}  # a log of plain text, with every line
    import ray

    handler = signal.getsignal(signal.SIGTERM)
    ray.init(address="auto", log_to_driver=log_to_driver, logging_level=logging.WARNING)
    signal.signal(signal.SIGTERM, handler)  # Ray sets one of its own, which exits
    try:
        yield ray
    finally:
        ray.shutdown()


def own_stdout() -> TextIO:
    """Return the process's stdout, for messages only. Later output of libraries to stdout goes to stderr."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return out


def how_ended(code: int) -> str:
    """Return how a process ended: `exit code 3` or `killed by SIGKILL`.

    code: its exit code; negative: the number of the signal that killed it.
    """
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # most real-time signals have no name
        return f"killed by signal {-code}"


def oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory so far; 0 if the system does not report it.

    Counts the kills in our own cgroup, so that other programs' kills do not count. Without a counter for the cgroup,
    counts those of the whole machine.
    """
    lines = _read(_counter_file()).splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _counter_file() -> Path:
    """Return the file with the kill counter of this process's cgroup (version 2 or 1), or else that of the machine."""
    paths = (group / name for group in control_groups() for name in ("memory.events", "memory.oom_control"))
    return next((path for path in paths if "oom_kill " in _read(path)), VMSTAT)


def control_groups(cgroups: Path = CGROUPS, own: Path = OWN_CGROUP) -> Iterator[Path]:
    """Yield the folders of this process's control groups and of all groups above them: version 2, and 1 for memory.

    own: a file with lines such as `0::/path/of/group` or `4:memory:/path/of/group`.
    In a container, its group is mounted at the root, but `own` may have the path outside, whose folders do not exist.
    """
    for line in _read(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            root = cgroups / "memory" if controllers else cgroups
            group = root / path.strip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(root))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
