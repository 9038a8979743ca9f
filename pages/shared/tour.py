"""First steps for a new user: three example runs, each one click away and ticked once it is done."""

import streamlit as st

from engine.specs import BenchmarkSpec, ProfileSpec, Spec
from engine.specs.train import TrainSpec
from engine.store import State
from pages.shared import backend
from pages.shared.form.link import form_link

STEPS: tuple[tuple[str, str, str, Spec], ...] = (
    (
        "Count ViT-B-32",
        ":material/calculate:",
        "What does a model cost? Count its MACs by module and by operator. The result lists what was not counted. This "
        "takes a few seconds.",
        ProfileSpec(models=("open_clip:ViT-B-32",)),
    ),
    (
        "Time ResNet-18",
        ":material/timer:",
        "How fast is it here? Time it on this machine's CPU. The result names the load of other programs. This takes "
        "under a minute.",
        BenchmarkSpec(models=("timm:resnet18",), replicates=1),
    ),
    (
        "Train a small CLIP",
        ":material/model_training:",
        "Is training worth it? Train on the included handwritten digits, with curves, accuracy and a checkpoint. This "
        "takes about a minute.",
        TrainSpec(),
    ),
)
"""Label, icon and help text of the link to the form of each example run, and its request."""


def open_steps() -> list[Spec]:
    """Return the steps that are not done yet: no run of their kind has finished."""
    store = backend.store()
    return [spec for *_, spec in STEPS if not store.runs(kind=spec.kind, states=(State.FINISHED,), limit=1)]


def draw() -> None:
    """Draw the link to the filled form of each step. Done steps are ticked."""
    remaining = open_steps()
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption("First steps", width="content")
        for label, open_icon, help, spec in STEPS:
            icon = open_icon if spec in remaining else ":material/check_circle:"
            form_link(spec, label, icon=icon, key=f"tour_{spec.kind}", help=help)
