"""First steps for a new user: three example runs, each one click away and ticked once it is done."""

from dataclasses import dataclass

import streamlit as st

from engine.specs import BenchmarkSpec, ProfileSpec, Spec
from engine.specs.train import TrainSpec
from engine.store import State
from pages.shared import backend
from pages.shared.form.link import form_link


@dataclass(frozen=True)
class Step:
    """An example run: a question and the spec that answers it."""

    question: str
    icon: str
    description: str
    spec: Spec
    label: str


STEPS = (
    Step(
        "What does a model cost?",
        ":material/calculate:",
        "Count ViT-B-32 by module and by operator, with its MACs and everything not counted. Takes a few seconds.",
        ProfileSpec(models=("open_clip:ViT-B-32",)),
        "Count one",
    ),
    Step(
        "How fast is it here?",
        ":material/timer:",
        "Time ResNet-18 on this machine's CPU, with the load of other programs. Takes less than a minute.",
        BenchmarkSpec(models=("timm:resnet18",), replicates=1),
        "Time one",
    ),
    Step(
        "Is training worth it?",
        ":material/model_training:",
        "Train a small CLIP on the included handwritten digits, with curves, accuracy and a checkpoint. Takes about a "
        "minute.",
        TrainSpec(),
        "Train one",
    ),
)


def open_steps() -> list[Step]:
    """Return the steps that are not done yet: no run of their kind has finished."""
    store = backend.store()
    return [step for step in STEPS if not store.runs(kind=step.spec.kind, states=(State.FINISHED,), limit=1)]


def draw() -> None:
    """Draw all steps. Done steps are ticked."""
    open_ = open_steps()
    st.header("First steps", anchor=False)
    st.caption(
        "Start with one of these. Each opens a form that you can run as it is or change first. "
        "A run continues when you close this tab."
    )
    with st.grid(3, min_column_width=260):
        for step in STEPS:
            _step(step, done=step not in open_)


def _step(step: Step, *, done: bool) -> None:
    with st.container(border=True, height="stretch"):
        st.markdown(f"{':material/check_circle:' if done else step.icon} **{step.question}**{' Done.' if done else ''}")
        st.caption(step.description)
        form_link(step.spec, step.label, icon=step.icon, key=f"tour_{step.spec.kind}")
