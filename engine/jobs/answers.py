"""Send questions that need the heavy libraries to one long-lived process, so that nothing else imports these."""

import json
import logging
import math
import queue
import subprocess
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from contextlib import suppress
from hashlib import sha256
from typing import Any

from engine.jobs.lifecycle import rotate, start_engine
from engine.process import how_ended
from engine.settings import Settings
from engine.specs import Refused
from engine.specs.questions import Question

log = logging.getLogger(__name__)

Answer = Future[dict[str, Any]]

IDLE_S = 600.0
"""End the process after this many seconds without a question."""
LONGEST_S = 300.0
"""Kill the process when one answer takes longer than this many seconds: later questions would wait forever."""
FRESH_S, REFUSED_S = 60.0, 3.0
"""Seconds for which an answer or a refusal is reused for the same question. Later, what it describes may differ."""
MOST_KEPT, MOST_WAITING = 64, 32
"""Keep at most this many answers, and refuse a question while this many wait."""
END_S = 10.0
"""Wait at most this many seconds for a process to exit after it has closed its output."""
CLOSED = "the server is shutting down: ask again after its restart"


class _CachedAnswer:
    """A pending or completed answer, the time of its completion, and the last successful answer before it."""

    def __init__(self, answer: Answer, before: Answer | None) -> None:
        self.answer, self.before, self._done_at = answer, before, math.inf
        answer.add_done_callback(self._note)

    def _note(self, _answer: Answer) -> None:
        self._done_at = time.monotonic()

    @property
    def old(self) -> bool:
        """Return whether the answer is too old to be reused."""
        if not self.answer.done():
            return False
        return time.monotonic() - self._done_at > (REFUSED_S if self.answer.exception() else FRESH_S)

    @property
    def latest(self) -> Answer | None:
        """Return the newest successful answer; None while there is none."""
        return self.answer if self.answer.done() and not self.answer.exception() else self.before


class Answers:
    """The client end: starts the process at the first question, and again after it died or exited. Thread-safe."""

    def __init__(self, settings: Settings, *, idle_s: float = IDLE_S) -> None:
        self._settings, self._idle_s = settings, idle_s
        self._log = settings.runs_dir / "answers.log"
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _CachedAnswer] = OrderedDict()
        self._waiting: queue.SimpleQueue[tuple[Question | None, Answer]] = queue.SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        # daemon: a server that shuts down does not wait for an answer
        self._thread = threading.Thread(target=self._work, name="answers", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """Return the pid of the process; None while none runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start the process before the first question, so that this question is answered sooner."""
        if self.pid is None:
            self._waiting.put((None, Future()))

    def ask(self, question: Question) -> Answer:
        """Return a future of the answer as JSON. A question that was asked a short time ago gets the same future.

        The future raises Refused when the question has no answer, when the queue is full and when the process died.
        """
        key = _key(question)
        with self._lock:
            entry = self._known.pop(key, None)
            if entry is None or entry.old:
                entry = _CachedAnswer(self._new(question), entry.latest if entry else None)
            self._known[key] = entry
            if len(self._known) > MOST_KEPT:
                self._known.popitem(last=False)
        return entry.answer

    def latest(self, question: Question) -> Answer | None:
        """Return the newest successful answer to a question, also while a newer one is computed; None without one."""
        with self._lock:
            known = self._known.get(_key(question))
        return known.latest if known else None

    def close(self) -> None:
        """End the process. Open questions and all later ones are refused."""
        with self._lock:
            self._closed = True
            self._waiting.put((None, Future()))
            process = self._process  # read once: the thread may end and forget it at any time
            if process is not None:
                process.kill()
        self._thread.join()

    def _new(self, question: Question) -> Answer:
        answer: Answer = Future()
        if self._closed:
            answer.set_exception(Refused(CLOSED))
        elif self._waiting.qsize() >= MOST_WAITING:
            answer.set_exception(
                Refused(f"{MOST_WAITING} questions are waiting, which is the limit: ask again in a minute")
            )
        else:
            self._waiting.put((question, answer))
        return answer

    def _work(self) -> None:
        """Answer one question after the other. Runs in a thread of its own."""
        while not (self._closed and self._waiting.empty()):
            try:
                question, answer = self._waiting.get(timeout=self._idle_s)
            except queue.Empty:
                self._end()
                continue
            try:
                answer.set_result(self._answer(question))
            except Refused as refused:
                answer.set_exception(refused)
            except Exception as error:
                log.exception("a question could not be sent")
                answer.set_exception(Refused(f"the answer process could not be started or read: {error}"))
        self._end()

    def _answer(self, question: Question | None) -> dict[str, Any]:
        """Return the answer to a question; {} for None, which only starts the process.

        Errors: Refused when no answer came; OSError when the process cannot be started.
        """
        process = self._running_process()
        if question is None:
            return {}
        request = {"ask": type(question).__name__, "question": question.model_dump(mode="json")}
        limit, began = threading.Timer(LONGEST_S, process.kill), time.monotonic()
        limit.start()
        line = _exchange(process, json.dumps(request).encode() + b"\n")
        limit.cancel()
        if line.endswith(b"\n"):
            reply: dict[str, Any] = json.loads(line)
            if "refused" in reply:
                raise Refused(reply["refused"])
            return reply
        code = self._end(END_S)
        if time.monotonic() - began >= LONGEST_S:
            raise Refused(f"no answer came within {LONGEST_S:.0f} s")
        raise Refused(f"the answer process ended ({how_ended(code)}): see {self._log}")

    def _running_process(self) -> "subprocess.Popen[bytes]":
        """Return the process, started if needed. Errors: Refused after `close`; OSError when it cannot be started."""
        if self.pid is None:
            self._end()
            self._settings.make_runs_dir()
            rotate(self._log)
        with self._lock:
            if self._closed:
                raise Refused(CLOSED)
            if self._process is None:
                pipe = subprocess.PIPE
                self._process = start_engine(self._settings, "answer", log=self._log.name, stdin=pipe, stdout=pipe)
            return self._process

    def _end(self, patience_s: float = 0) -> int:
        """Wait for the process to exit, kill it after `patience_s` seconds; return its exit code, 0 when none ran."""
        process, self._process = self._process, None
        if process is None:
            return 0
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # nobody will read the bytes left in it
                pipe.close()
        return process.wait()


def _key(question: Question) -> str:
    """Return a short key, because questions with an image are long."""
    return sha256(f"{type(question).__name__} {question.model_dump_json()}".encode()).hexdigest()


def _exchange(process: "subprocess.Popen[bytes]", line: bytes) -> bytes:
    """Send one line and return the line that the process replies; empty when the process has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(line)
        process.stdin.flush()
    except BrokenPipeError:
        return b""
    return process.stdout.readline()
