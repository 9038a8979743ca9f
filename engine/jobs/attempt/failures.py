"""Find out why a run failed, from the exception of its task or from the exit of its process.

A full disk and exhausted memory arrive as plain RuntimeError or OSError: errno and message text tell them apart.
"""

import errno
import signal
from collections.abc import Iterator

from engine.atomic import DISK_FULL
from engine.process import how_ended
from engine.results.base import tells_of_memory
from engine.specs import Refused, Spec, error_message
from engine.store import Busy, Cause, Exit, Unavailable

DISK_FULL_WORDS = ("no space left on device", "disk is full", "file write failed", "disk quota exceeded")
SHARED_MEMORY_WORDS = "unable to allocate shared memory"
SHARED_MEMORY_FULL = (
    "the shared memory in /dev/shm is full, through which the processes that load images pass on their batches. Give "
    "the container more, as in `--shm-size 8g`, or load without further processes: workers 0"
)

EXIT_CODES = {
    Cause.ERROR: 70,
    Cause.OUT_OF_MEMORY: 71,
    Cause.DISK_FULL: 72,
    Cause.TIMEOUT: 73,
    Cause.REFUSED: 74,
    Cause.STORE_UNAVAILABLE: 76,
}
"""Exit codes of a worker by cause, which record the cause even when the store cannot be reached."""
AFTER_OUTAGE = "what was stored before is kept, so try again once the store answers"
STALE = 75
"""Exit code of a worker whose attempt was closed in the meantime, so that it may store nothing more."""
HOST_LOST = 77
"""Exit code of a worker that has lost another node of its run."""
KILLED_BY_CONTAINER = 137
"""128 + SIGKILL, as container runtimes report it; in practice the kernel ran out of memory."""


def of_exception(error: BaseException) -> Cause:
    """Return the cause that an exception, or one in its chain of causes, names."""
    for link in _chain(error):
        words = str(link).lower()
        if isinstance(link, Refused):
            return Cause.REFUSED
        if SHARED_MEMORY_WORDS in words:  # the rest of the message says that no space is left on the device
            return Cause.OUT_OF_MEMORY
        if (isinstance(link, OSError) and link.errno in DISK_FULL) or any(word in words for word in DISK_FULL_WORDS):
            return Cause.DISK_FULL
        if isinstance(link, MemoryError) or (isinstance(link, OSError) and link.errno == errno.ENOMEM):
            return Cause.OUT_OF_MEMORY
        if isinstance(link, RuntimeError) and tells_of_memory(words):
            return Cause.OUT_OF_MEMORY
        if isinstance(link, Unavailable):
            return Cause.STORE_UNAVAILABLE
        if isinstance(link, TimeoutError):
            return Cause.TIMEOUT
    return Cause.ERROR


def message(error: BaseException, cause: Cause, spec: Spec | None) -> str:
    """Return the error text for the user; the traceback is in the log."""
    if isinstance(error, Busy):
        return f"the store did not answer for minutes; {AFTER_OUTAGE}. {error}"
    if cause == Cause.STORE_UNAVAILABLE:
        return str(error)
    if cause == Cause.OUT_OF_MEMORY and any(SHARED_MEMORY_WORDS in str(link) for link in _chain(error)):
        return SHARED_MEMORY_FULL
    return error_message(error) + _advice(cause, spec)


def of_exit(end: Exit, spec: Spec | None, *, shown: str = "its log has the reason") -> tuple[Cause, str]:
    """Return cause and error text for an attempt whose worker recorded no end. shown: where it printed the reason."""
    code = end.code
    if code == EXIT_CODES[Cause.STORE_UNAVAILABLE]:
        return Cause.STORE_UNAVAILABLE, f"the store did not answer for minutes; {AFTER_OUTAGE}"
    for cause, exit_code in EXIT_CODES.items():
        if code == exit_code:
            return cause, f"the worker ended with {cause}; {shown}" + _advice(cause, spec)
    if code == KILLED_BY_CONTAINER or (code == -signal.SIGKILL and end.out_of_memory):
        advice = _advice(Cause.OUT_OF_MEMORY, spec)
        return Cause.OUT_OF_MEMORY, "the system killed the worker when its memory ran out" + advice
    if code is None:
        return Cause.KILLED, end.note or "the worker ended, and its exit code is unknown"
    if code == HOST_LOST:
        return Cause.KILLED, "another node of the run was lost; its log says more"
    if code < 0:
        return Cause.KILLED, end.note or how_ended(code)
    return Cause.ERROR, f"the worker left with code {code} and recorded no reason; see its log"


def _advice(cause: Cause, spec: Spec | None) -> str:
    if spec is None or cause != Cause.OUT_OF_MEMORY or (half := spec.half_batch) is None:
        return ""
    batch = getattr(spec, spec.batch_field)
    return f"; try batch size {half} instead of {batch[0] if isinstance(batch, tuple) else batch}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__
