"""Identify this host, and decide about attempts whose host cannot be reached.

A scheduler sees only the processes of its own host. It knows another host's attempts by their heartbeats alone.
"""

import socket
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
NODE = "#ray:"
"""Separates address and id in the name of a cluster node."""
GIVE_UP_LEASES = 4
"""Leases without a heartbeat after which a worker is killed and its host may be declared gone."""


@cache
def this_host() -> str:
    """Return `name#id` of the host or container whose processes we can see.

    The id is a hash of the kernel's boot id, the PID namespace and the start of its first process. No other host or
    container has it, even under the same name. A restarted host gets another id, because its processes have ended.
    Outside Linux only the name is returned; processes are told apart there by their absolute start times.
    """
    name = socket.gethostname()
    if not LINUX:
        return name
    try:
        first_started = Identity.of(1).started
    except ProcessLookupError:  # hidden from us, for example by the mount option hidepid
        first_started = 0.0
    identifiers = (BOOT_ID.read_text(), PID_NAMESPACE.readlink(), first_started)
    return f"{name}#{sha256(str(identifiers).encode()).hexdigest()[:12]}"


def host_name(host: str) -> str:
    """Return the name part of a host as `this_host` returns it."""
    return host.partition("#")[0]


@dataclass(frozen=True)
class OpenHost:
    """A host with attempts that are not known to have ended."""

    id: str
    """The value of `this_host` on that host."""
    run_ids: tuple[int, ...]
    silent_s: float
    """Seconds since the latest heartbeat of any attempt, by the database's clock. Negative if that was set back."""

    @property
    def name(self) -> str:
        """Return the host's name without the id."""
        return host_name(self.id)

    @property
    def is_this(self) -> bool:
        """Return whether this is our own host, whose processes we can see."""
        return self.id == this_host()


def open_hosts(store: Store) -> list[OpenHost]:
    """Return the hosts that have open attempts, sorted by name."""
    now, by_host = store.database.now(), defaultdict(list)
    for attempt in attempts.open_attempts(store.database):
        by_host[attempt.host].append(attempt)
    return [
        OpenHost(
            host,
            tuple(attempt.run_id for attempt in host_attempts),
            now - max(attempt.heartbeat_at for attempt in host_attempts),
        )
        for host, host_attempts in sorted(by_host.items())
    ]


def lost_host(store: Store, settings: Settings, run_id: int) -> OpenHost | None:
    """Return the host of a run's attempt if it may be declared gone: not this host, and silent for several leases."""
    hosts = (host for host in open_hosts(store) if run_id in host.run_ids)
    return next((host for host in hosts if not host.is_this and _is_silent(host, settings)), None)


def declare_gone(store: Store, settings: Settings, host: str) -> OpenHost:
    """Close all attempts of a host that will not come back. Its runs are queued again, cancelled or failed.

    If the host does come back, its workers cannot write to these attempts any more. host: its name, or its id when
    several hosts have that name.
    Errors: Refused when no open attempt is on such a host, when several hosts have this name, when it is this host,
    when it reported recently, or when the user may not change one of its runs.
    """
    hosts = open_hosts(store)
    matches = [known for known in hosts if host in (known.id, known.name)]
    if not matches:
        names = ", ".join(known.id for known in hosts) or "none"
        raise Refused(f"no host {host!r} has open attempts. Hosts with open attempts: {names}")
    if len(matches) > 1:
        raise Refused(
            f"{len(matches)} hosts are called {host!r}: give one of {', '.join(known.id for known in matches)}"
        )
    (match,) = matches
    if match.is_this:
        raise Refused(f"{match.name} is this host: its scheduler looks after its runs. Cancel them instead")
    if not _is_silent(match, settings):
        needed = GIVE_UP_LEASES * settings.lease_s
        raise Refused(
            f"{match.name} reported {abs(match.silent_s):.0f} s ago. Wait for {needed:.0f} s without a "
            "report, or cancel its runs"
        )
    store.check_owner(*match.run_ids)
    for attempt in attempts.open_attempts(store.database):
        if attempt.host == match.id:
            close_lost(store, attempt, f"its host {match.name} was declared gone")
    return match


def close_lost(store: Store, attempt: Attempt, note: str) -> None:
    """Close an attempt with cause KILLED, because its processes cannot be checked from here. note: the reason."""
    attempts.close(store.database, attempt, Exit(note=note), Cause.KILLED, note)


def _is_silent(host: OpenHost, settings: Settings) -> bool:
    # abs: a heartbeat from the future is older than a change of the clock, and counts by its distance from now
    return abs(host.silent_s) > GIVE_UP_LEASES * settings.lease_s
