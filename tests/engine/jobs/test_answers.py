"""Questions to the answering process: a real process is asked, killed, left idle and sent invalid lines.

Tests of the process itself use one that imports no torch, because torch takes 4 s of CPU time per start.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.jobs.answers import MOST_WAITING, Answers
from engine.models.clip import weights
from engine.results.answers import Hits
from engine.results.embeddings import pack_texts
from engine.settings import ROOT, Settings
from engine.specs import Refused
from engine.specs.evaluate import EvaluateSpec
from engine.specs.questions import Search
from tests.support.training import TINY

SPEC = EvaluateSpec.model_validate({"model": "config:tiny", "configs": {"tiny": TINY}})
LONG_S = 120
NOWHERE = Path("/nowhere")
WITHOUT_TORCH = Path(__file__).parent / "without_torch"

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an evaluation of three images, whose features are those of three texts."""
    clip = weights.create(SPEC, weights="")
    clip.model.eval()
    texts = ("one", "two", "three")
    features = clip.model.encode_text(clip.tokenizer(list(texts)), normalize=True).detach().numpy()  # type: ignore[operator]
    folder = tmp_path_factory.mktemp("evaluation")
    np.savez(
        folder / "embeddings.npz",
        images=features,
        texts=features,
        owner=np.arange(3),
        labels=np.array([0, 1, -1]),
        sources=pack_texts([f"{text}.png" for text in texts]),
        captions=pack_texts(texts),
        classes=pack_texts(["a", "b"]),
    )
    return folder


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    process = Answers(Settings(runs_dir=tmp_path_factory.mktemp("runs")))
    yield process
    process.close()


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let new answering processes answer searches without torch, from no folder."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(WITHOUT_TORCH)]))


def search(folder: Path, text: str, top: int = 2) -> Search:
    return Search(spec=SPEC, folder=folder, text=text, top=top)


def first_source(answer: "Future[dict[str, Any]]") -> str:
    """Wait for an answer and return the source of its first hit."""
    return Hits.model_validate(answer.result(LONG_S)).hits[0].source


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_repeated_question_is_sent_to_the_process_once(answers: Answers, folder: Path) -> None:
    question = answers.ask(search(folder, "two"))
    assert answers.ask(search(folder, "two")) is question
    other = answers.ask(search(folder, "three"))
    assert other is not question
    assert (first_source(question), first_source(other)) == ("two.png", "three.png")
    assert answers.ask(search(folder, "two")) is question
    hits = Hits.model_validate(question.result())
    assert (hits.hits[0].label, len(hits.hits), hits.images) == ("b", 2, 3)
    assert hits.hits[0].similarity == pytest.approx(1, abs=1e-5)
    # a time limit that outlives its answer would kill the process during a later question
    wait_until(lambda: not any(isinstance(thread, threading.Timer) for thread in threading.enumerate()))


def test_latest_answer_stays_while_a_question_is_asked_again(
    answers: Answers, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = search(folder, "a question of its own")
    assert answers.latest(question) is None
    first = answers.ask(question)
    assert answers.latest(question) is None, "there is no answer yet"
    first.result(LONG_S)
    assert answers.latest(question) is first
    monkeypatch.setattr("engine.jobs.answers.FRESH_S", 0.0)
    second = answers.ask(question)
    assert second is not first
    assert answers.latest(question) in (first, second)
    second.result(LONG_S)
    assert answers.latest(question) is second


def test_refused_question_does_not_affect_the_next_one(
    answers: Answers, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unanswerable = search(folder / "nowhere", "one")
    answer = answers.ask(unanswerable)
    with pytest.raises(Refused, match=r"embeddings.npz was not kept"):
        answer.result(LONG_S)
    assert answers.latest(unanswerable) is None, "a refusal is not kept as the latest answer"
    monkeypatch.setattr("engine.jobs.answers.REFUSED_S", 0.0)
    assert answers.ask(unanswerable) is not answer, "a refusal is reused for a shorter time than an answer"
    pid = answers.pid
    (tmp_path / "embeddings.npz").write_bytes(b"nothing")
    with pytest.raises(Refused, match=r"embeddings.npz cannot be read"):
        answers.ask(search(tmp_path, "one")).result(LONG_S)
    assert first_source(answers.ask(search(folder, "one"))) == "one.png"
    assert answers.pid == pid


@pytest.mark.usefixtures("without_torch")
def test_killed_process_is_replaced(settings: Settings) -> None:
    answers = Answers(settings)
    try:
        assert first_source(answers.ask(search(NOWHERE, "one"))) == "one.png"
        pid = answers.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)  # it receives the question and is killed before it answers
        question = answers.ask(search(NOWHERE, "two"))
        os.kill(pid, signal.SIGKILL)
        error = question.exception(LONG_S)  # no error if the process was dead before it got the question
        assert error is None or "(killed by SIGKILL): see " in str(error)
        assert first_source(answers.ask(search(NOWHERE, "three"))) == "three.png"
        assert answers.pid != pid
    finally:
        answers.close()


@pytest.mark.usefixtures("without_torch")
def test_question_after_one_without_an_answer_gets_a_new_process(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Answers(settings)
    try:
        assert first_source(answers.ask(search(NOWHERE, "one"))) == "one.png"
        os.kill(answers.pid or 0, signal.SIGSTOP)
        with monkeypatch.context() as short:
            short.setattr("engine.jobs.answers.LONGEST_S", 0.5)
            assert "no answer came within" in str(answers.ask(search(NOWHERE, "two")).exception(LONG_S))
            assert answers._process is None, "it may take a moment to die, and must not get the next question"
        assert first_source(answers.ask(search(NOWHERE, "three"))) == "three.png"
    finally:
        answers.close()


@pytest.mark.usefixtures("without_torch")
def test_idle_process_exits_and_starts_again(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.jobs.answers.MOST_KEPT", 2)
    answers = Answers(settings, idle_s=0.5)
    try:
        answers.start()
        wait_until(lambda: answers.pid is not None)
        pid = answers.pid
        wait_until(lambda: answers.pid is None)
        monkeypatch.setattr("engine.jobs.lifecycle.LOG_BYTES", 3)
        (settings.runs_dir / "answers.log").write_text("long")
        one, two, three = (search(NOWHERE, text) for text in ("one", "two", "three"))
        first = answers.ask(one)
        assert first_source(first) == "one.png"
        assert answers.pid != pid
        assert (settings.runs_dir / "answers.older.log").read_text() == "long"
        answers.ask(two).result(LONG_S)
        assert answers.ask(one) is first
        answers.ask(three).result(LONG_S)
        assert answers.latest(two) is None, "of two kept answers, the one asked for least recently is dropped"
        assert answers.latest(one) is first
    finally:
        answers.close()


def test_closed_answers_refuse_questions_and_end_their_process(settings: Settings, folder: Path) -> None:
    before = threading.enumerate()
    answers = Answers(settings)
    assert answers.pid is None, "no process starts before the first question"
    waiting = [answers.ask(search(folder, str(number))) for number in range(MOST_WAITING + 5)]
    with pytest.raises(Refused, match="questions are waiting, which is the limit"):
        waiting[-1].result(LONG_S)
    wait_until(lambda: answers.pid is not None)
    pid = answers.pid
    answers.close()
    assert all(isinstance(answer.exception(LONG_S), Refused) for answer in waiting)
    assert isinstance(answers.ask(search(folder, "one")).exception(LONG_S), Refused)
    with pytest.raises(ProcessLookupError):
        os.kill(pid or 0, 0)
    assert not [thread for thread in threading.enumerate() if thread not in before and thread.name == "answers"]


@pytest.mark.usefixtures("without_torch")
def test_invalid_lines_are_refused_and_only_answers_are_printed() -> None:
    valid_request = {"ask": "Search", "question": search(NOWHERE, "two").model_dump(mode="json")}
    lines = [
        "nonsense",
        "[1, 2]",
        json.dumps({}),
        json.dumps({"ask": "the way", "question": {}}),
        json.dumps({"ask": "Search", "question": {"text": ""}}),
        json.dumps(valid_request),
    ]
    process = subprocess.run(
        [sys.executable, "-m", "engine", "answer"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        cwd=ROOT,
        text=True,
        check=True,
        timeout=LONG_S,
    )
    messages = [json.loads(line) for line in process.stdout.splitlines()]
    assert all(answer["refused"] for answer in messages[:5])
    assert "no question is called 'the way'" in messages[3]["refused"]
    assert messages[4]["refused"] == "spec is required"
    assert messages[5]["hits"][0]["source"] == "two.png"
    assert "printed by Python" in process.stderr
    assert "printed past it" in process.stderr
