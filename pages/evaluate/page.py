"""Evaluate CLIP: a model or a run, on which data, with which classes and prompts; then what was found."""

from typing import Any

import streamlit as st

from engine.report.figures.evaluation import prompts
from engine.specs.evaluate import EvaluateSpec
from engine.store import Run
from pages.clip import data, outlook
from pages.clip import form as clip_form
from pages.shared import backend, launch
from pages.shared.form import groups, spec_form
from pages.shared.text import duration, plain

PREFIX = "evaluate"
DATA = {
    "What they are": ("data_kind", "samples"),
    "CSV": ("csv_separator", "csv_img_key", "csv_caption_key"),
    "Held-out data": ("held_out", "val_fraction"),
}
FURTHER = {
    "Model": ("image_size", "context_length"),
    "Execution": ("device", "precision", "batch_size", "workers", "threads", "seed"),
}
RUNS = 50  # trainings on offer
NOT_ALIKE = ("seed", "classes", "templates")


def alike(one: EvaluateSpec, other: EvaluateSpec) -> bool:
    """Whether both take about as long."""
    names = [name for name in EvaluateSpec.model_fields if name not in (*NOT_ALIKE, "checkpoint")]
    return all(getattr(one, name) == getattr(other, name) for name in names)


def trained() -> dict[str, Run]:
    """Trainings whose model can be evaluated, by number."""
    return {str(run.id): run for run in backend.store().runs(kind="train", limit=RUNS) if run.done}


def what() -> dict[str, Any]:
    """The model or the run, and its weights."""
    runs = trained()
    left, right = st.columns(2)
    with left:
        values = {"model": spec_form.field(EvaluateSpec, "model", PREFIX, clip_form.models(runs), free=True)}
    run = runs.get(values["model"] or "")
    with right:
        hint = "the run's best" if run else "none: as it is made"
        values["checkpoint"] = spec_form.field(EvaluateSpec, "checkpoint", PREFIX, hint=hint)
    if run:
        st.caption(plain(f"Run {run.id}: {run.name or run.spec.summary}"))
    elif runs:
        st.caption("A number among the models is a training, whose best model is taken.")
    values["configs"] = dict(st.session_state.get(spec_form.key(PREFIX, "configs"), {}))
    return values


def classes(seen: data.Seen) -> dict[str, Any]:
    """Names and prompts, with a preview of what the model will be shown."""
    st.header("Classes and prompts", anchor=False)
    own = seen.look.classes if seen.look else ()
    left, middle, right = st.columns(3)
    with left:
        hint = f"one a line; the data's own: {', '.join(own[:3])}, …" if own else "one a line"
        values = {"classes": spec_form.field(EvaluateSpec, "classes", PREFIX, hint=hint)}
    with middle:
        hint = "one a line, with {} for the name; the data's own, or open_clip's"
        values["templates"] = spec_form.field(EvaluateSpec, "templates", PREFIX, hint=hint)
    with right:
        st.caption("Prompts")
        spec, _ = spec_form.build(EvaluateSpec, values)
        if isinstance(spec, EvaluateSpec):
            shown, all_of_them = prompts(spec.classes or own, spec.templates or seen.templates)
            st.text("\n".join(shown) if shown else "None: the data have no classes, and none are given.")
            if all_of_them > len(shown):
                st.caption(f"and so on: {all_of_them:,} in all, averaged for each class")
    return values


def problems_of(spec: EvaluateSpec, seen: data.Seen) -> list[str]:
    """What cannot work."""
    if seen.look is None:
        return []  # said beside the data
    own, found = seen.look.classes, []
    if spec.classes and own and len(spec.classes) != len(own):
        found.append(f"The data have {len(own)} classes and {len(spec.classes)} names were given: give one each.")
    labelled = [task for task in spec.tasks if task != "retrieval"]
    if labelled and not own:
        needing = " and ".join(labelled)
        found.append(f"{needing} need labels, which these data have not: give class folders, or take retrieval alone.")
    return found


def promise(spec: EvaluateSpec) -> str:
    """What pressing the button will do, and for about how long."""
    last = launch.last_similar_run(spec, alike)
    took = last.seconds() if last else None
    time = f", about {duration(took)} going by the last run like it" if took else ""
    subject = f"run {spec.model}" if spec.model.isdecimal() else spec.model
    part = "the held-out share of " if spec.held_out else ""
    return f"Evaluates {subject} on {part}{spec.data}: {', '.join(spec.tasks)} on {spec.device}{time}"


@st.fragment
def form() -> None:
    """The form. It answers on its own, without redrawing the results below."""
    values = what()
    values["tasks"] = spec_form.field(EvaluateSpec, "tasks", PREFIX, pills=True)
    of_data, seen = clip_form.data(EvaluateSpec, PREFIX, DATA)
    values |= of_data | classes(seen)
    values |= groups.draw(EvaluateSpec, PREFIX, FURTHER, device=launch.devices())
    spec, problems = spec_form.build(EvaluateSpec, values)
    sentence, ready = "What stands above must be put right first", False
    if isinstance(spec, EvaluateSpec) and seen.look:
        problems += problems_of(spec, seen)
        needs, _ = outlook.checks(spec, spec.batch_size)
        ready = clip_form.marked(needs)
        sentence = promise(spec) if ready else sentence
    options = {"key": "evaluate_go", "label": "Evaluate", "icon": ":material/fact_check:"}
    launch.launch(spec if ready else None, problems, sentence=sentence, **options)


st.title("Evaluate CLIP", anchor=False)
st.caption("How well a model, or a training's best, finds captions for images and tells your own classes apart.")
form()
launch.linked_run("evaluate", "Figures appear here. Earlier evaluations are under Runs.")
