"""Check files, tokenizer and memory for a training or an evaluation while the form stays usable."""

from concurrent.futures import Future
from typing import Any

import streamlit as st

from engine.jobs import references
from engine.report.checks import prospects
from engine.report.checks.training import Check
from engine.results.answers import Prospect
from engine.specs import Refused
from engine.specs.evaluate import EvaluateSpec
from engine.specs.questions import Outlook
from engine.specs.train import TrainSpec
from pages.shared import backend, launch, redraw

TICK_S = 0.5
WAITING = Check("waiting", "Checking weights, tokenizer and memory.")


def checks(spec: TrainSpec | EvaluateSpec, batch_size: int) -> tuple[list[Check], bool]:
    """Return checks of files, tokenizer and memory, and whether they include memory.

    Until the answer arrives, return one waiting check; the page is redrawn when it arrives. batch_size: pairs per
    forward pass, after defaults from the data are applied.
    """
    try:
        definite = references.resolve(backend.store(), backend.settings(), spec)
        assert isinstance(definite, TrainSpec | EvaluateSpec)
        question = Outlook.of(definite, batch_size)
        references.check_paths(backend.settings(), question.spec)
    except (Refused, LookupError) as error:
        return [Check("error", str(error))], False
    answers = backend.answers()
    answer = answers.ask(question)
    if not answer.done():
        _wait(answer)
        answer = answers.given(question) or answer
    if not answer.done():
        return [WAITING], False
    try:
        prospect = Prospect.model_validate(answer.result())
    except Refused as refused:
        return [prospects.unknown(question.spec, str(refused))], False
    return prospects.checks(prospect, question.spec, launch.device_memory_gb(spec.device)), prospect.peak_mb is not None


@st.fragment(run_every=TICK_S)
def _wait(answer: "Future[dict[str, Any]]") -> None:
    if answer.done():
        redraw.page()
