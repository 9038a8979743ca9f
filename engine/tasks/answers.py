"""The process that answers questions. It reads JSON lines from standard input and writes one answer per line.

    {"id": 1, "ask": "search", "question": {...}}  ->  {"id": 1, "answer": {...}}  or  {"id": 1, "refused": "why"}

The process keeps running, so that libraries are imported and a model is loaded only once. It ends when its input is
closed or after some time without a question. Only answers are written to standard output; what libraries print goes to
standard error.
"""

import json
import logging
import os
import queue
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from pydantic import ValidationError

from engine.process import own_stdout
from engine.specs import Refused, questions

log = logging.getLogger(__name__)

ANSWERED_BY = {
    "outlook": "engine.training.outlook",
    "search": "engine.training.evaluation.search",
    "match": "engine.training.evaluation.match",
    "augment": "engine.training.augmented",
    "export": "engine.training.export",
}
"""Modules whose `answer(question)` answers the questions of each name."""
PIECE = 65_536


def serve(idle_s: float) -> None:
    """Answer questions until standard input is closed, or until none has come for `idle_s` seconds."""
    with own_stdout() as answers:
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
        logging.getLogger("engine").setLevel(logging.INFO)  # libraries log warnings only
        begun = time.monotonic()
        for module in dict.fromkeys(ANSWERED_BY.values()):
            import_module(module)
        log.info("answers process %d: ready in %.1f s", os.getpid(), time.monotonic() - begun)
        for line in _lines(idle_s):
            answers.write(json.dumps(answered(line)) + "\n")
            answers.flush()


def answered(line: bytes) -> dict[str, Any]:
    """Return the answer to a line, or the reason why there is none."""
    asked: Any = None
    try:
        asked = json.loads(line)
        question = questions.load(asked["ask"], asked["question"])
        found = import_module(ANSWERED_BY[question.name]).answer(question)
        return {"id": asked["id"], "answer": found.model_dump(mode="json")}
    except Refused as refused:
        why = str(refused)
    except ValidationError as error:
        why = f"{asked['ask']}: {error.errors()[0]['msg']}"
    except Exception as error:
        log.exception("a question could not be answered")
        reason = next(iter(str(error).strip().splitlines()), "")
        why = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
    return {"id": asked.get("id") if isinstance(asked, dict) else None, "refused": why}


def _lines(idle_s: float) -> Iterator[bytes]:
    """Yield lines from standard input, until it is closed or nothing has come for `idle_s` seconds."""
    pieces: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:  # not from sys.stdin, whose lock would be held at exit
        while piece := os.read(0, PIECE):
            pieces.put(piece)
        pieces.put(b"")

    threading.Thread(target=read, name="input", daemon=True).start()
    begun = b""
    while True:
        *whole, begun = begun.split(b"\n")
        yield from whole
        try:
            piece = pieces.get(timeout=idle_s)
        except queue.Empty:
            log.info("nothing was asked for %.0f s", idle_s)
            return
        if not piece:
            return
        begun += piece
