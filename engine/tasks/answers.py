"""The process that answers questions. It reads JSON lines from standard input and writes one answer per line.

    {"ask": "Search", "question": {...}}  ->  the answer as JSON  or  {"refused": "why"}

The process keeps running, so that libraries are imported and a model is loaded only once. It ends when its input is
closed. What libraries print goes to standard error.
"""

import json
import logging
import os
import sys
import time
from importlib import import_module
from typing import Any

from pydantic import ValidationError

from engine.process import own_stdout
from engine.specs import Refused, error_message, questions

log = logging.getLogger(__name__)

ANSWERED_BY: dict[type[questions.Question], str] = {
    questions.Outlook: "engine.training.answers.outlook",
    questions.Search: "engine.training.evaluation.search",
    questions.Match: "engine.training.evaluation.match",
    questions.Augment: "engine.training.answers.augmented",
    questions.Export: "engine.training.answers.export",
}
"""Modules whose `answer(question)` answers the questions of each class."""


def serve() -> None:
    """Answer questions until standard input is closed."""
    with own_stdout() as answers:
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
        logging.getLogger("engine").setLevel(logging.INFO)  # libraries log warnings only
        started = time.monotonic()
        for module in ANSWERED_BY.values():
            import_module(module)
        log.info("answers process %d: ready in %.1f s", os.getpid(), time.monotonic() - started)
        for line in sys.stdin.buffer:
            answers.write(json.dumps(_answer(line)) + "\n")
            answers.flush()


def _answer(line: bytes) -> dict[str, Any]:
    """Return the answer to a line, or the reason why there is none."""
    try:
        request = json.loads(line)
        question = questions.load(request["ask"], request["question"])
        answer: dict[str, Any] = import_module(ANSWERED_BY[type(question)]).answer(question).model_dump(mode="json")
        return answer
    except Exception as error:
        if not isinstance(error, Refused | ValidationError):
            log.exception("a question could not be answered")
        return {"refused": error_message(error)}
