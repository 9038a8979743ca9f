"""First steps for someone whose store is still empty: what to ask first, each a click away, ticked once it was done."""

from dataclasses import dataclass

import streamlit as st

from engine.specs import BenchmarkSpec, ProfileSpec, Spec
from engine.specs.train import TrainSpec
from engine.store import State
from pages.shared import backend
from pages.shared.form_link import form_link


@dataclass(frozen=True)
class Step:
    """A question, and the request that answers it."""

    asks: str
    icon: str
    told: str
    spec: Spec
    label: str


STEPS = (
    Step(
        "What does a model cost?",
        ":material/calculate:",
        "Counts ViT-B-32 by module and by operator: where its MACs are, and what was not counted. A few seconds.",
        ProfileSpec(models=("open_clip:ViT-B-32",)),
        "Count one",
    ),
    Step(
        "How fast is it here?",
        ":material/timer:",
        "Times ResNet-18 on this machine's CPU, with its spread and whatever disturbed it. Under a minute.",
        BenchmarkSpec(models=("timm:resnet18",), replicates=1),
        "Time one",
    ),
    Step(
        "Is training worth it?",
        ":material/model_training:",
        "Trains a small CLIP on handwritten digits that come along: curves, accuracy, a checkpoint. About a minute.",
        TrainSpec(),
        "Train one",
    ),
)


def left() -> list[Step]:
    """The steps that were not done yet: no run of their kind has finished."""
    store = backend.store()
    return [step for step in STEPS if not store.runs(kind=step.spec.kind, states=(State.FINISHED,), limit=1)]


def draw() -> None:
    """All steps, those that were done ticked."""
    undone = left()
    st.header("First steps", anchor=False)
    st.caption(
        "The catalogue has the costs of all models already. Three questions show what else is here: each opens a form "
        "that is filled, to be sent off or changed. What is asked becomes a run, which goes on when this tab is closed."
    )
    with st.grid(3, min_column_width=260):
        for step in STEPS:
            _step(step, done=step not in undone)


def _step(step: Step, *, done: bool) -> None:
    with st.container(border=True, height="stretch"):
        st.markdown(f"{':material/check_circle:' if done else step.icon} **{step.asks}**{' Done.' if done else ''}")
        st.caption(step.told)
        form_link(step.spec, step.label, icon=step.icon, key=f"tour_{step.spec.kind}")
