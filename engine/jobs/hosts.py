"""Which host this is, and what becomes of attempts whose host is out of reach.

A scheduler sees only the processes of its own host. It knows of another host's attempts by their heartbeats alone.
"""

import socket
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from engine.jobs.processes import LINUX, Identity
from engine.settings import Settings
from engine.specs import Refused
from engine.store import Attempt, Cause, Exit, Store, attempts

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PID_NAMESPACE = Path("/proc/self/ns/pid")
GIVE_UP_LEASES = 4
"""Leases without a heartbeat after which a worker is ended, and its host may be declared gone."""


@cache
def this_host() -> str:
    """Return `name#id` of the place whose processes we can see: a host since it started, or a container.

    The id is of the kernel's boot, the PID namespace and the start of its first process, so that no other host and no
    other container has it, even with the same name. A host that restarts gets another id: its processes are gone.
    Outside Linux the name alone has to do; processes are told apart there by their absolute start times.
    """
    name = socket.gethostname()
    if not LINUX:
        return name
    try:
        first_started = Identity.of(1).started
    except ProcessLookupError:  # hidden from us, as hidepid does
        first_started = 0.0
    seen = (BOOT_ID.read_text(), PID_NAMESPACE.readlink(), first_started)
    return f"{name}#{sha256(str(seen).encode()).hexdigest()[:12]}"


def host_name(host: str) -> str:
    """Return the name in what `this_host` returns: what people call the host."""
    return host.partition("#")[0]


@dataclass(frozen=True)
class OpenHost:
    """A host with attempts that are not known to have ended."""

    id: str
    """As `this_host` returns it there."""
    run_ids: tuple[int, ...]
    silent_s: float
    """Seconds since the latest heartbeat of any of its attempts, by the clocks of both hosts."""

    @property
    def name(self) -> str:
        """The name that people call this host by."""
        return host_name(self.id)

    @property
    def is_this(self) -> bool:
        """Whether its processes are visible from here, so that a scheduler here looks after them."""
        return self.id == this_host()


def open_hosts(store: Store) -> list[OpenHost]:
    """Return the hosts that have open attempts, by name."""
    now, found = time.time(), defaultdict(list)
    for attempt in attempts.open_attempts(store.database):
        found[attempt.host].append(attempt)
    return [
        OpenHost(host, tuple(attempt.run_id for attempt in mine), now - max(attempt.heartbeat_at for attempt in mine))
        for host, mine in sorted(found.items())
    ]


def lost_host(store: Store, settings: Settings, run_id: int) -> OpenHost | None:
    """Return the host of a run's attempt if it may be declared gone: another one, silent for several leases."""
    for host in open_hosts(store):
        if run_id in host.run_ids and not host.is_this and _is_silent(host, settings):
            return host
    return None


def declare_gone(store: Store, settings: Settings, host: str) -> OpenHost:
    """Close all attempts of a host that will not come back: its runs are queued again, cancelled or failed.

    Should the host come back after all, its workers can write nothing more: their attempts are over.
    host: its name, or its id where several have that name. Errors: Refused of a host without attempts, of this very
    host, of one that was heard of within several leases, of a name that several hosts have.
    """
    known = open_hosts(store)
    matches = [one for one in known if host in (one.id, one.name)]
    if not matches:
        names = ", ".join(one.id for one in known) or "none has"
        raise Refused(f"no host {host!r} has open attempts; these have: {names}")
    if len(matches) > 1:
        raise Refused(f"{len(matches)} hosts are called {host!r}: give one of {', '.join(one.id for one in matches)}")
    lost = matches[0]
    if lost.is_this:
        raise Refused(f"{lost.name} is this host: its scheduler looks after its runs. Cancel them instead")
    if not _is_silent(lost, settings):
        needed = GIVE_UP_LEASES * settings.lease_s
        raise Refused(
            f"{lost.name} reported {abs(lost.silent_s):.0f} s ago, so it is there; a host can be declared gone after "
            f"{needed:.0f} s of silence. Cancel its runs instead"
        )
    for attempt in attempts.open_attempts(store.database):
        if attempt.host == lost.id:
            close_lost(store, attempt, f"its host {lost.name} was declared gone")
    return lost


def close_lost(store: Store, attempt: Attempt, note: str) -> None:
    """Close an attempt whose processes nobody here can see, as one that was killed. note: why."""
    attempts.close(store.database, attempt, Exit(note=note), Cause.KILLED, note)


def _is_silent(host: OpenHost, settings: Settings) -> bool:
    # a heartbeat from the future is of a clock that goes wrong, and counts by its distance
    return abs(host.silent_s) > GIVE_UP_LEASES * settings.lease_s
