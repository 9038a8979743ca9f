"""Parts of the forms of Train and Evaluate: names of models, the data section, the list of checks."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from typing import Any

import streamlit as st

from engine import shipped
from engine.jobs import check_models, named_files, references
from engine.report import checks as report_checks
from engine.report.checks import Check
from engine.results.answers import Prospect
from engine.results.checkpoints import BEST
from engine.specs import Refused, Spec
from engine.specs.evaluate import EvaluateSpec
from engine.specs.fields.clip import DIGITS_MODEL
from engine.specs.questions import Outlook
from engine.specs.train import TrainSpec
from engine.store import Filter, Run
from pages.clip import data as clip_data
from pages.shared import backend, rerun
from pages.shared.form import groups as form_groups
from pages.shared.form import spec_form
from pages.shared.runs import launch
from pages.shared.text import plain, refusals_shown

ICONS = {
    "ok": ":green[:material/check_circle:]",
    "warning": ":orange[:material/warning:]",
    "error": ":red[:material/error:]",
    "waiting": ":gray[:material/hourglass_top:]",
}
MOST_RUNS = 50
"""Maximum number of trainings offered, newest first, and of checkpoints offered besides the best of each training."""
WORDED_MARKS = ("warning", "error")
"""Marks that are also written as words, for readers who cannot see colours or icons."""


def models(user_models: Iterable[str] = ()) -> list[str]:
    """Return the names of models: the small digits model, the user's own (configurations, runs), then open_clip's."""
    names = [name.partition(":")[2] for name in launch.families() if name.startswith("open_clip:")]
    return [DIGITS_MODEL, *user_models, *names]


def trainings(model: str = "") -> list[tuple[Run, Mapping[Path, int]]]:
    """Return the trainings of a model, or of any, that have complete checkpoints, and these, newest first."""
    runs = backend.store().find(Filter(kinds=(TrainSpec.kind,), only_model=model), limit=MOST_RUNS)
    runs = [run for run in runs if not model or getattr(run.spec, "model", "") == model]
    return [(run, paths) for run in runs if (paths := backend.checkpoints(run))]


def draw_refusal(spec_type: type[Spec], model: str | None, configs: Mapping[str, Any]) -> None:
    """Draw an error below the field of a model if it is no CLIP model. configs: the user's own, by name."""
    spec, _ = spec_form.build(spec_type, {"model": model, "configs": configs})
    if spec:
        with refusals_shown():
            check_models(backend.settings(), spec)


def weights(model: str) -> list[str]:
    """Return the weights of a model to offer: the best of each training, published tags, paths of other checkpoints."""
    if not model or spec_form.problem(TrainSpec, "model", model):
        return []
    found = trainings(model)
    best = [f"best of run {run.id}" for run, _ in found]
    others = (str(path) for _, paths in found for path in paths if path.name != BEST)
    tags = shipped.weights(backend.settings().catalog_dir).get(model, [])
    return [*best, *tags, *islice(others, MOST_RUNS)]


def data(spec: type[Spec], groups: Mapping[str, Sequence[str]]) -> tuple[dict[str, Any], clip_data.Preview]:
    """Draw the data section. Return its values and the preview. groups: groups of fields that are seldom changed."""
    st.header("Data", anchor=False)
    values: dict[str, Any] = {"data": clip_data.field(spec)}
    columns, hints = clip_data.columns(spec.kind, values["data"])
    offered: dict[str, Any] = dict.fromkeys(clip_data.COLUMN_FIELDS, columns) if columns else {}
    options: dict[str, Any] = {"always_shown": [clip_data.COLUMNS] if columns else [], "hints": hints}
    values |= form_groups.draw(spec, groups, "Further settings of data", **options, **offered)
    preview = clip_data.preview(clip_data.source(spec_form.valid(spec, values)))
    clip_data.draw(preview)
    return values, preview


def draw_checks(checks: Sequence[Check]) -> bool:
    """Draw the list of checks and return True if no check is an error."""
    st.markdown("  \n".join(_line(check) for check in checks))
    return all(check.mark != "error" for check in checks)


def _line(check: Check) -> str:
    word = f"**{check.mark}**: " if check.mark in WORDED_MARKS else ""
    return f"{ICONS[check.mark]} {word}{plain(check.text)}"


TICK_S = 0.5
"""Seconds between checks for the answer."""
WAITING = Check("waiting", "Checking weights, tokenizer and memory.")


def checks(spec: TrainSpec | EvaluateSpec, batch_size: int) -> list[Check]:
    """Return checks of files, tokenizer and memory.

    Until an answer arrives, end the list with a waiting check; the page is redrawn when it arrives. batch_size: pairs
    per forward pass, after defaults from the data are applied.
    """
    try:
        check_models(backend.settings(), spec)
        resolved = references.resolve(backend.store(), backend.settings(), spec)
        assert isinstance(resolved, TrainSpec | EvaluateSpec)
        parts = resolved.subject_parts if isinstance(resolved, EvaluateSpec) else (resolved,)
        questions = [Outlook.of(part, batch_size) for part in parts]
        named_files.check_paths(backend.settings(), resolved)
    except (Refused, LookupError) as error:
        return [Check("error", str(error))]
    answers = backend.answers()
    results: list[Check] = []
    for question in questions:
        answer = answers.ask(question)
        if not answer.done():
            _redraw_when_answered(answer)
            answer = answers.latest(question) or answer
        if not answer.done():
            return [*results, WAITING]
        try:
            prospect = Prospect.model_validate(answer.result())
        except Refused as refused:  # only a warning, because the run may still work
            text = f"The files and memory for {question.spec.model} could not be determined: {refused}."
            results.append(Check("warning", text))
            continue
        results += report_checks.of_prospect(prospect, question.spec, launch.device_memory_gb(spec.device))
    return list(dict.fromkeys(results))


@st.fragment(run_every=TICK_S)
def _redraw_when_answered(answer: "Future[dict[str, Any]]") -> None:
    if answer.done():
        rerun.page()
