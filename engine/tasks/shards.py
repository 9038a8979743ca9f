"""Spread independent pieces of work over processes or nodes. A process that dies loses only its current piece."""

import signal
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from engine.process import HostLost, Share, exit_with_parent, fork_context, joined_cluster, oom_kills
from engine.replicates.child import TICK_S, Ended, ended
from engine.specs import error_message

Piece = TypeVar("Piece")
Result = TypeVar("Result")

TRIES = 2
"""Number of processes that may die while they work on the same piece. Then the piece is given up."""
CLUSTER_TRIES = 5
"""TRIES on a cluster. Higher, because a process also dies with its node."""
END_S = 5.0
"""Kill a process this many seconds after it has closed its connection, if it has not exited by then."""
Shards = Generator[tuple[int, Result | Ended] | None]
"""Index of a piece and its result, or None about once a second while no result is ready."""


def spread(work: Callable[[Piece], Result], pieces: Sequence[Piece], processes: int) -> Shards[Result]:
    """Yield every piece's result as soon as it is known.

    work: a function defined at module level, which is called in fresh processes. A piece whose process dies is tried
    again after the others, and its result is Ended if that process dies too. Closing this generator kills
    the processes.
    """
    context = fork_context(__name__)
    waiting, deaths, kills = deque(range(len(pieces))), Counter[int](), oom_kills()
    started: list[BaseProcess] = []
    at_work: dict[Connection, tuple[BaseProcess, int]] = {}
    try:
        while waiting or at_work:
            while waiting and len(at_work) < processes:
                parent_end, child_end = context.Pipe()
                process: BaseProcess = context.Process(target=_serve, args=(child_end, work), daemon=True)
                process.start()
                child_end.close()  # otherwise the end of the process would not be noticed
                started.append(process)
                at_work[parent_end] = process, _send(parent_end, pieces, waiting)
            if not (ready := wait(list(at_work), TICK_S)):
                yield None
            for connection in ready:
                assert isinstance(connection, Connection)
                process, place = at_work.pop(connection)
                try:
                    result: Result | Ended = connection.recv()
                except (EOFError, OSError):
                    connection.close()
                    process.join(END_S)
                    process.kill()  # without a connection it is of no use
                    process.join()
                    deaths[place] += 1
                    if deaths[place] < TRIES:
                        waiting.append(place)
                        continue
                    assert process.exitcode is not None, "it was joined"
                    result = ended(process.exitcode, killed_for_memory=oom_kills() > kills)
                else:
                    if waiting:
                        at_work[connection] = process, _send(connection, pieces, waiting)
                    else:
                        connection.close()  # the process ends
                yield place, result
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.join()


def spread_on_cluster(work: Callable[[Piece], Result], pieces: Sequence[Piece]) -> Shards[Result]:
    """Yield results as `spread` does, computed on the cores of the Ray cluster. Ray repeats calls that are lost."""
    with joined_cluster(log_to_driver=False) as ray:
        call = ray.remote(num_cpus=1, max_retries=CLUSTER_TRIES - 1, scheduling_strategy="SPREAD")(_call)
        shared = ray.put(work)
        limit = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))  # so that each core has a next piece at once
        waiting = deque(range(len(pieces)))
        at_work: dict[Any, int] = {}
        while waiting or at_work:
            while waiting and len(at_work) < limit:
                place = waiting.popleft()
                at_work[call.remote(shared, pieces[place])] = place
            ready, _ = ray.wait(list(at_work), timeout=TICK_S)
            if not ready:
                yield None
            for reference in ready:
                try:
                    result: Result | Ended = ray.get(reference)
                except ray.exceptions.RayError as error:
                    result = _failure(ray, error)
                yield at_work.pop(reference), result


def spread_on_nodes(
    work: Callable[[Piece], Result], pieces: Sequence[Piece], shares: Mapping[str, Share]
) -> Shards[Result]:
    """Yield results as `spread` does, computed on these nodes. A node has one piece at a time and nothing else.

    shares: the resources of this run on each node, by Ray's id of the node. A lost node leaves its piece to the others.
    Errors: those of `work`; HostLost when no node is left.
    """
    with joined_cluster(log_to_driver=True) as ray:
        on_node = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy

        def start(node: str) -> Any:
            amounts = {"num_cpus": shares[node].num_cpus, "num_gpus": shares[node].num_gpus}
            return ray.remote(_Worker).options(**amounts, scheduling_strategy=on_node(node, soft=False)).remote(work)

        workers = {node: start(node) for node in shares}
        waiting, deaths = deque(range(len(pieces))), Counter[int]()
        at_work: dict[Any, tuple[str, int]] = {}
        while waiting or at_work:
            busy = {node for node, _ in at_work.values()}
            for node in [node for node in workers if node not in busy][: len(waiting)]:
                place = waiting.popleft()
                at_work[workers[node].call.remote(pieces[place])] = node, place
            if not at_work:
                raise HostLost("all nodes of the run left the cluster")
            ready, _ = ray.wait(list(at_work), timeout=TICK_S)
            if not ready:
                yield None
            for reference in ready:
                node, place = at_work.pop(reference)
                try:
                    result: Result | Ended = ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    raise error.cause from None
                except ray.exceptions.RayError as error:
                    ray.kill(workers.pop(node))
                    if any(known["NodeID"] == node and known["Alive"] for known in ray.nodes()):
                        workers[node] = start(node)
                    deaths[place] += 1
                    if deaths[place] < CLUSTER_TRIES:
                        waiting.appendleft(place)
                        continue
                    result = _failure(ray, error)
                yield place, result


class _Worker:
    """A process on a node."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self._work = work

    def call(self, piece: Any) -> Any:
        return self._work(piece)


def _failure(ray: Any, error: Exception) -> Ended:
    """Return the failure of a process that Ray started. ray: the module."""
    memory = isinstance(error, ray.exceptions.OutOfMemoryError)
    return Ended("out_of_memory" if memory else "error", error_message(error))


def _call(work: Callable[[Piece], Result], piece: Piece) -> Result:
    return work(piece)


def _send(connection: Connection, pieces: Sequence[Piece], waiting: deque[int]) -> int:
    """Send the next waiting piece, and return its place."""
    place = waiting.popleft()
    with suppress(OSError):  # the process has died already, which its connection shows
        connection.send(pieces[place])
    return place


def _serve(connection: Connection, work: Callable[[Piece], Result]) -> None:
    """Work on pieces in a child process until the connection is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent handles them and ends this process
    exit_with_parent()
    with suppress(EOFError):
        while True:
            connection.send(work(connection.recv()))
