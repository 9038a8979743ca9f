"""Questions that need the heavy libraries, put to one process that stays: pages and commands never import them."""

import json
import logging
import queue
import subprocess
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from itertools import count
from typing import Any

from engine.jobs.lifecycle import start_engine, trim
from engine.settings import Settings
from engine.specs import Refused
from engine.specs.questions import Question

log = logging.getLogger(__name__)

Answer = Future[dict[str, Any]]

IDLE_S = 600.0
LONGEST_S = 300.0
"""An answer that takes longer is given up, or nobody else would ever get one."""
FRESH_S, REFUSED_S = 60.0, 3.0
"""So long the same question gets the same answer, or the same refusal; then what it is about may have changed."""
MOST_KEPT, MOST_WAITING = 64, 32
END_S = 10.0
"""So long a process that has said its last may take to be gone."""
TRIES = 2
"""It may leave, idle, in the very moment in which it is asked."""


class _Known:
    """An answer to come, when it came, and the last one before it that was no refusal."""

    def __init__(self, answer: Answer, before: Answer | None) -> None:
        self.answer, self.before, self._came = answer, before, 0.0
        answer.add_done_callback(self._note)

    def _note(self, _answer: Answer) -> None:
        self._came = time.monotonic()

    @property
    def old(self) -> bool:
        """Whether it is time to ask again."""
        if not self.answer.done():
            return False
        return time.monotonic() - self._came > (REFUSED_S if self.answer.exception() else FRESH_S)

    @property
    def given(self) -> Answer | None:
        """The newest answer that there is already; a refusal is none."""
        return self.answer if self.answer.done() and not self.answer.exception() else self.before


class Answers:
    """The asking end: starts the process at the first question, and again when it has died or left. Thread-safe."""

    def __init__(self, settings: Settings, *, idle_s: float = IDLE_S) -> None:
        self._settings, self._idle_s = settings, idle_s
        self._log = settings.runs_dir / "answers.log"
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._waiting: queue.SimpleQueue[tuple[Question | None, Answer]] = queue.SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = count(1)
        self._closed = False
        # daemon: a server that ends does not wait for an answer
        self._thread = threading.Thread(target=self._work, name="answers", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """The id of the process; None while there is none."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Have the process ready before there is a question."""
        if self.pid is None:
            self._waiting.put((None, Future()))

    def ask(self, question: Question) -> Answer:
        """Return the answer to come, as JSON; the same one where the question has just been asked.

        Its errors: Refused, of a question that has no answer and of a process that died.
        """
        key = _key(question)
        with self._lock:
            known = self._known.pop(key, None)
            if known is None or known.old:
                known = _Known(self._new(question), known.given if known else None)
            self._known[key] = known
            if len(self._known) > MOST_KEPT:
                self._known.popitem(last=False)
        return known.answer

    def given(self, question: Question) -> Answer | None:
        """Return the newest answer, no refusal, that anybody has had to a question; it stands while that is asked
        anew."""
        with self._lock:
            known = self._known.get(_key(question))
        return known.given if known else None

    def close(self) -> None:
        """End the process; what was asked and is not answered is refused, as is all that is asked from now on."""
        with self._lock:
            self._closed = True
            self._waiting.put((None, Future()))
            if self._process is not None:
                self._process.kill()
        self._thread.join()

    def _new(self, question: Question) -> Answer:
        answer: Answer = Future()
        if self._closed:
            answer.set_exception(Refused("nothing is answered any more"))
        elif self._waiting.qsize() >= MOST_WAITING:
            answer.set_exception(Refused(f"{MOST_WAITING} questions wait already: ask again in a minute"))
        else:
            self._waiting.put((question, answer))
        return answer

    def _work(self) -> None:
        """Answer one question after the other, in a thread of its own."""
        while not (self._closed and self._waiting.empty()):
            question, answer = self._waiting.get()
            try:
                answer.set_result(self._answer(question))
            except Refused as refused:
                answer.set_exception(refused)
            except Exception as error:
                log.exception("a question could not be put")
                answer.set_exception(Refused(f"the process that answers cannot be asked: {error}"))
        self._end()

    def _answer(self, question: Question | None) -> dict[str, Any]:
        """Errors: Refused; OSError where no process can be started."""
        for _ in range(TRIES):
            process = self._started()
            if question is None:
                return {}
            number = next(self._numbers)
            asked = {"id": number, "ask": question.name, "question": question.model_dump(mode="json")}
            limit = threading.Timer(LONGEST_S, process.kill)
            limit.start()
            line = _exchange(process, json.dumps(asked).encode() + b"\n")
            expired = not limit.is_alive()
            limit.cancel()
            if line:
                return self._read(line, number)
            if expired:
                raise Refused(f"no answer came within {LONGEST_S:.0f} s")
            if code := self._end(END_S):
                raise Refused(f"the process that answers has died ({code}); {self._log} may say why")
        raise Refused(f"the process that answers leaves before it has; {self._log} may say why")

    def _read(self, line: bytes, number: int) -> dict[str, Any]:
        """Return the answer in a line of the process. Errors: Refused."""
        try:
            reply = json.loads(line)
            refused = reply.get("refused")
            found: dict[str, Any] = {} if refused else reply["answer"]
            if reply["id"] != number:
                raise ValueError(f"answer {reply['id']} to question {number}")
        except (ValueError, KeyError, AttributeError) as error:
            self._end()  # what else it would say is not to be trusted
            raise Refused(f"the process that answers has said what is no answer: {error}") from error
        if refused:
            raise Refused(refused)
        return found

    def _started(self) -> "subprocess.Popen[bytes]":
        """Return the process, started if needed. Errors: Refused once this is closed, OSError."""
        if self.pid is None:
            self._end()
            self._settings.make_runs_dir()
            trim(self._log)
        with self._lock:
            if self._closed:
                raise Refused("nothing is answered any more")
            if self._process is None:
                own = ("answer", "--idle-s", str(self._idle_s))
                pipe = subprocess.PIPE
                self._process = start_engine(self._settings, *own, log=self._log, stdin=pipe, stdout=pipe)
            return self._process

    def _end(self, patience_s: float = 0) -> int:
        """Let the process go, by force after a while; answers its exit code, 0 without one."""
        process, self._process = self._process, None
        if process is None:
            return 0
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass  # something in it will never be read
        return process.wait()


def _key(question: Question) -> str:
    return f"{question.name} {question.model_dump_json()}"


def _exchange(process: "subprocess.Popen[bytes]", line: bytes) -> bytes:
    """Return the line that answers a line; empty where the process has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(line)
        process.stdin.flush()
    except BrokenPipeError:
        return b""
    return process.stdout.readline()
