"""The page Evaluate: model or run, data, classes and prompts, then the run below."""

from contextlib import suppress
from typing import Any

import streamlit as st

from engine import datasets
from engine.datasets import DataProblem
from engine.jobs import references
from engine.report.figures.evaluation import prompts
from engine.specs.base import json_object
from engine.specs.evaluate import EvaluateSpec
from engine.specs.fields.clip import TEMPLATE_SETS, short_name
from engine.words import plural, shortened
from pages.clip import data
from pages.clip import form as clip_form
from pages.shared import backend
from pages.shared.form import groups, spec_form
from pages.shared.runs import durations, launch
from pages.shared.text import plain

PREFIX = "evaluate"
# Tasks that need a class per image, with their names for messages.
TASK_NAMES = {"zeroshot": "zero-shot", "linear-probe": "linear probe"}
DATA = {
    data.COLUMNS: data.COLUMN_FIELDS,
    "Data format": ("data_kind", "csv_separator", "csv_class_separator", "json_split", "samples"),
    "Held-out data": ("held_out", "held_out_data", "val_fraction"),
    "More data sets": ("more_data",),
}
FURTHER = {
    "More models": ("more_models",),
    "Model": ("image_size", "context_length"),
    "Linear probe": ("probe_data", "shots", "probe_c"),
    "Retrieval": ("recall_k",),
    "Execution": ("device", "precision", "batch_size", "workers", "threads", "seed", "reuse_features"),
}
# Maximum number of prompts in the preview.
MOST_PROMPTS = 6


def draw_model() -> dict[str, Any]:
    """Draw the model or training and its weights. Return the values of the fields."""
    runs = {str(run.id): run for run, _ in clip_form.trainings()}
    left, right = st.columns(2)
    models = clip_form.models(runs)
    values = {"model": spec_form.field(EvaluateSpec, "model", models, place=left)}
    run = runs.get(values["model"] or "")
    weights = clip_form.weights(getattr(run.spec, "model", "") if run else values["model"] or "")
    hint = "default: the best of the run" if run else "none: random weights; choose or type a tag"
    values["checkpoint"] = spec_form.field(EvaluateSpec, "checkpoint", weights, hint=hint, place=right)
    if run:
        st.caption(plain(f"Run {run.id}: {run.name or run.spec.summary}"))
    elif runs:
        st.caption("A number in the list of models is a training run; its best model is evaluated.")
    values["configs"] = dict(st.session_state.get(spec_form.key(PREFIX, "configs"), {}))
    clip_form.draw_refusal(EvaluateSpec, values["model"], values["configs"])
    return values


def draw_classes(preview: data.Preview) -> dict[str, Any]:
    """Draw class names and templates with a preview of the prompts. Return the values of the fields."""
    st.header("Classes and prompts", anchor=False)
    data_classes = preview.summary.classes if preview.summary else ()
    left, middle, right = st.columns(3)
    hint = f"one per line; default: {shortened(data_classes)}" if data_classes else "one per line"
    values = {"classes": spec_form.field(EvaluateSpec, "classes", hint=hint, place=left)}
    hint = "one per line, with {} for the name; default: those of the data or of open_clip"
    values["templates"] = spec_form.field(EvaluateSpec, "templates", hint=hint, place=middle)
    hint = "or JSON with prompts for each class"
    values["class_prompts"] = spec_form.field(EvaluateSpec, "class_prompts", hint=hint, place=middle)
    with right:
        st.caption("Prompts")
        spec, _ = spec_form.build(EvaluateSpec, values)
        if spec:
            names = spec.classes
            with suppress(DataProblem):  # names that do not fit the data are reported by `find_problems`
                names = datasets.class_names(spec.classes, data_classes)
            if by_class := json_object(spec.class_prompts):
                texts = [prompt for name in names for prompt in by_class.get(name, ())]
                shown, total = texts[:MOST_PROMPTS], len(texts)
            else:
                default = preview.templates or datasets.prompts(TEMPLATE_SETS[1:], ())
                templates = datasets.prompts(spec.templates, default, spec.classes)
                shown, total = prompts(names, templates, MOST_PROMPTS)
            if doubt := datasets.note_on_ids(names):
                st.caption(f":material/warning: {plain(doubt)}")
            st.text("\n".join(shown) if shown else "No prompts: the data have no classes.")
            if total > len(shown):
                st.caption(f"{total:,} prompts in total, averaged for each class")
    return values


def find_problems(spec: EvaluateSpec, preview: data.Preview) -> list[str]:
    """Return one sentence per problem that prevents the evaluation."""
    if preview.summary is None:
        return []  # the data section shows the problem
    summary, problems = preview.summary, []
    data_classes = summary.classes
    if summary.none_readable:
        problems.append(f"{plural(summary.opened, 'image')} opened, none can be read.")
    try:
        names = datasets.class_names(spec.classes, data_classes)
        by_class = json_object(spec.class_prompts)
        if by_class and (missing := [name for name in names if name not in by_class]):
            problems.append(f"No prompts for {len(missing)} of {len(names)} classes: {shortened(missing)}.")
    except DataProblem as problem:
        problems.append(f"Classes: {problem}.")
    if "linear-probe" in spec.tasks and not spec.more_data and data.pairs(data.source(dict(spec))).several:
        problems.append("A linear probe needs one class per image, and these images have several: leave it out.")
    if (tasks := tasks_with_classes(spec)) and not data_classes:
        remedy = "choose a class column, or upload class folders"
        problems.append(f"The data need a class per image for {' and '.join(tasks)}: {remedy}.")
    return problems


def tasks_with_classes(spec: EvaluateSpec) -> list[str]:
    """Return the names of the requested tasks that need a class per image."""
    return [TASK_NAMES[task] for task in spec.tasks if task in TASK_NAMES]


def describe(spec: EvaluateSpec) -> str:
    """Return a sentence on what the button will do and how long it will take."""
    time = durations.promise(spec)
    subject = f"run {spec.model}" if spec.model.isdecimal() else spec.model
    subject = subject if len(spec.subjects) == 1 else plural(len(spec.subjects), "model")
    resolved = references.resolve(backend.store(), backend.settings(), spec)
    assert isinstance(resolved, EvaluateSpec)
    part = "the held-out share of " if resolved.part("", "", resolved.data).held_out else ""
    more = f" and {plural(len(spec.sources) - 1, 'other data set')}" if len(spec.sources) > 1 else ""
    return f"Evaluates {subject} on {part}{short_name(spec.data)}{more}: {', '.join(spec.tasks)} on {spec.device}{time}"


@st.fragment
def form() -> None:
    """Draw the form. It is a fragment, so that a change does not redraw the results below."""
    values = draw_model()
    values["tasks"] = spec_form.field(EvaluateSpec, "tasks", pills=True)
    data_values, preview = clip_form.data(EvaluateSpec, DATA)
    values |= data_values | draw_classes(preview)
    values |= groups.draw(EvaluateSpec, FURTHER, device=launch.devices())
    spec, problems = spec_form.build(EvaluateSpec, values)
    sentence, ready = "Fix the errors above to continue.", False
    if spec and preview.summary:
        problems += find_problems(spec, preview)
        if (tasks := tasks_with_classes(spec)) and not preview.summary.classes:
            st.button(
                f"Turn off {' and '.join(tasks)}",
                icon=":material/toggle_off:",
                on_click=st.session_state.update,
                args=({spec_form.key(PREFIX, "tasks"): ["retrieval"]},),
                key="evaluate_turn_off",
            )
        ready = clip_form.draw_checks(clip_form.checks(spec, spec.batch_size))
        sentence = describe(spec) if ready else sentence
    launch.launch(PREFIX, spec if ready else None, problems, "Evaluate", ":material/fact_check:", sentence=sentence)


st.title("Evaluate CLIP", anchor=False)
st.caption("Measure how well a model or a training finds captions for images and classifies images.")
form()
launch.draw_linked_run("evaluate", "Results appear here. Earlier evaluations are on the page Runs.")
