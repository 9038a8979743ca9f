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
    """An example run and the link to its form."""

    label: str
    icon: str
    help: str
    spec: Spec


STEPS = (
    Step(
        "Count ViT-B-32",
        ":material/calculate:",
        "What does a model cost? Count it by module and by operator, with its MACs and everything not counted. Takes a "
        "few seconds.",
        ProfileSpec(models=("open_clip:ViT-B-32",)),
    ),
    Step(
        "Time ResNet-18",
        ":material/timer:",
        "How fast is it here? Time it on this machine's CPU, with the load of other programs. Takes under a minute.",
        BenchmarkSpec(models=("timm:resnet18",), replicates=1),
    ),
    Step(
        "Train a small CLIP",
        ":material/model_training:",
        "Is training worth it? Train on the included handwritten digits, with curves, accuracy and a checkpoint. Takes "
        "about a minute.",
        TrainSpec(),
    ),
)


def open_steps() -> list[Step]:
    """Return the steps that are not done yet: no run of their kind has finished."""
    store = backend.store()
    return [step for step in STEPS if not store.runs(kind=step.spec.kind, states=(State.FINISHED,), limit=1)]


def draw() -> None:
    """Draw the link to the filled form of each step. Done steps are ticked."""
    remaining = open_steps()
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption("First steps", width="content")
        for step in STEPS:
            icon = step.icon if step in remaining else ":material/check_circle:"
            form_link(step.spec, step.label, icon=icon, key=f"tour_{step.spec.kind}", help=step.help)
