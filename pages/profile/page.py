"""The page Profile: the form, then the run below."""

import streamlit as st

from engine.names import select
from engine.specs import ProfileSpec, Refused
from engine.specs.base import device_on_node
from engine.specs.fields.building import OPTIONS
from engine.words import plural, shortened
from pages.shared.form import files, groups, spec_form
from pages.shared.runs import durations, launch

PREFIX = "profile"
FURTHER = {"Model": (*OPTIONS, "context_length"), "Extra results": ("training", "detail")}


CPU_NOTE = ". fvcore traces the real model: it runs on the CPU with its weights in memory, not on meta."


def devices(counter: str) -> list[str]:
    """Return the devices to count on. Only the counter torch can use meta, which allocates no weights."""
    weightless = ["meta", *(device for device in launch.cluster_devices() if device_on_node(device) == "meta")]
    return launch.devices() if counter != "torch" else [*weightless, *launch.devices()]


def describe(spec: ProfileSpec) -> str:
    """Return a sentence on what the button will do and how long it will take. Errors: ModelNotFound."""
    models = select(spec, launch.families())
    time = durations.promise(spec, len(models) * len(spec.points))
    swept = {"image size": spec.image_size, "batch size": spec.batch_size}
    at = " and ".join(plural(len(values), name) for name, values in swept.items() if len(values) > 1)
    return (
        f"Counts {plural(len(models), 'model')}{at and f' at {at}'} on {spec.device}{time}: {shortened(models, 3)}"
        + CPU_NOTE * (spec.counter != "torch" and spec.device == "cpu")
    )


@st.fragment
def form() -> None:
    """Draw the form. It is a fragment, so that a change does not redraw the results below."""
    models = launch.models_field(ProfileSpec)
    values = spec_form.row(ProfileSpec, {"image_size": 4, "batch_size": 2, "precision": 6})
    left, right = st.columns(2)
    values["counter"] = spec_form.field(ProfileSpec, "counter", place=left)
    values["device"] = spec_form.field(ProfileSpec, "device", devices(values["counter"]), place=right)
    values |= groups.draw(ProfileSpec, FURTHER)
    names, values["configs"] = files.draw_files(PREFIX)
    values["models"] = [*models, *names]
    spec, problems = spec_form.build(ProfileSpec, values) if values["models"] else (None, [])
    sentence = "Choose models: search for names, type a wildcard, or upload a list."
    if spec:
        try:
            sentence = describe(spec)
        except Refused as refusal:
            problems.append(str(refusal))
    launch.launch(PREFIX, spec, problems, "Count", ":material/calculate:", sentence=sentence)


st.title("Profile", anchor=False)
st.caption("Count parameters, MACs, activations and memory of any open_clip, timm or torchvision model.")
form()
launch.draw_linked_run("profile", "Results appear here. Earlier results are on the page Runs.")
