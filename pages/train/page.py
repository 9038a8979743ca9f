"""Train or fine-tune CLIP: the data first, then the model and the few settings that matter; then the run as it goes."""

from typing import Any

import streamlit as st

from engine.datasets import DataProblem
from engine.names import parse_config
from engine.report.checks import training
from engine.report.checks.training import Data
from engine.specs import Refused
from engine.specs.clip import DIGITS_MODEL
from engine.specs.train import EPOCHS, FINE_TUNE_LR, SCRATCH_LR, TrainSpec, schedule
from pages.clip import data, outlook
from pages.clip import form as clip_form
from pages.shared import backend, launch
from pages.shared.fold import fold
from pages.shared.form import groups, presets, spec_form
from pages.shared.text import duration, plain

PREFIX = "train"
BY_DEFAULT = {"pretrained": "", "epochs": None, "steps": None, "batch_size": None, "lr": None, "warmup": ""}
TRAINED_WHOLE = {"lock_image": False, "overfit": False, "val_frequency": 1, "zeroshot_frequency": 1}
PRESETS: presets.Presets = {
    "Digits in a minute": presets.Preset(
        "A small CLIP learns scikit-learn's handwritten digits from nothing: no download, about a minute on two cores.",
        {"data": "digits", "data_kind": "auto", "model": DIGITS_MODEL, **BY_DEFAULT, **TRAINED_WHOLE},
    ),
    "Fine-tune gently": presets.Preset(
        "A few epochs at a low learning rate with the image tower locked: for a model that has learned much already.",
        {"lr": FINE_TUNE_LR, "epochs": 5, "steps": None, "warmup": "10%", **TRAINED_WHOLE, "lock_image": True},
    ),
    "One batch, to check": presets.Preset(
        "Trains on one batch over and over: within 50 steps the loss must fall far, or something is wrong.",
        {"overfit": True, "steps": 50, "epochs": None, "val_frequency": 0, "zeroshot_frequency": 0},
    ),
}
DATA = {
    "What they are": ("data_kind", "samples"),
    "CSV": ("csv_separator", "csv_img_key", "csv_caption_key"),
    "Held-out data": ("val_data", "val_fraction"),
}
FURTHER = {
    "Model": ("image_size", "context_length", "patch_dropout"),
    "Locked image tower": ("lock_image", "lock_image_unlocked_groups", "lock_image_freeze_bn_stats"),
    "Locked text tower": ("lock_text", "lock_text_unlocked_layers", "lock_text_freeze_layer_norm"),
    "Loss": ("loss", "local_loss", "gather_with_grad"),
    "CoCa and distillation": ("coca_contrastive_weight", "coca_caption_weight", "distill_model", "distill_pretrained"),
    "Optimizer": ("opt", "wd", "eps", "beta1", "beta2", "momentum"),
    "Gradients": ("grad_clip_norm", "accum_freq", "grad_checkpointing"),
    "Schedule": ("steps", "lr_scheduler", "epochs_cooldown", "lr_cooldown_power", "lr_cooldown_end"),
    "Sampling": ("data_weights", "resampled", "overfit"),
    "Validation": ("val_frequency", "zeroshot_frequency", "best_metric", "classes", "templates"),
    "Checkpoints": ("save_frequency", "save_every_steps", "keep_last", "resume"),
    "Logs": ("log_every_n_steps", "tensorboard", "wandb"),
    "Execution": ("nproc", "workers", "threads", "channels_last", "compile", "seed"),
}
ALIKE = (
    *("model", "data", "samples", "batch_size", "accum_freq", "nproc", "precision", "device", "image_size", "loss"),
    *("grad_checkpointing", "compile", "val_frequency", "workers", "threads"),
)


def alike(one: TrainSpec, other: TrainSpec) -> bool:
    """Whether a step of both takes about as long."""
    return all(getattr(one, name) == getattr(other, name) for name in ALIKE)


def own_configurations() -> dict[str, Any]:
    """open_clip configurations from files, beside those of the run that this was cloned from."""
    configs: dict[str, Any] = dict(st.session_state.get(spec_form.key(PREFIX, "configs"), {}))
    files = f"{PREFIX}_files"
    if not (part := fold("A model of your own", key=f"{PREFIX}_own", filled=bool(st.session_state.get(files)))):
        return configs
    look = {"type": "json", "accept_multiple_files": True, "key": files}
    help = "Each is offered among the models as config:NAME."
    with part:
        for file in st.file_uploader("open_clip configurations of your own (.json)", help=help, **look):
            text = file.getvalue().decode("utf-8-sig", errors="replace")
            try:
                configs[file.name.rsplit(".", 1)[0]] = parse_config(text, file.name)
            except Refused as refusal:
                st.error(plain(str(refusal)), icon=":material/error:")
    return configs


def settings(configs: dict[str, Any], pairs: int) -> dict[str, Any]:
    """The model and what matters most. pairs: to train on, which decides about what is left empty."""
    st.header("Model", anchor=False)
    left, right = st.columns(2)
    with left:
        values = {
            "model": spec_form.field(
                TrainSpec, "model", PREFIX, clip_form.models(f"config:{name}" for name in configs), free=True
            )
        }
    with right:
        values["pretrained"] = spec_form.field(TrainSpec, "pretrained", PREFIX, hint="none: from scratch")
    usual = schedule(TrainSpec(), max(pairs, 1))
    rate = FINE_TUNE_LR if values["pretrained"] else SCRATCH_LR
    hints = {"epochs": str(EPOCHS), "batch_size": f"{usual.batch_size}, by the data", "lr": f"{rate:g}"}
    for column, name in zip(st.columns(4), ("epochs", "batch_size", "lr", "warmup"), strict=True):
        with column:
            values[name] = spec_form.field(TrainSpec, name, PREFIX, hint=hints.get(name))
    left, right = st.columns([1, 2])
    with left:
        values["device"] = spec_form.field(TrainSpec, "device", PREFIX, launch.devices())
    with right:
        values["precision"] = spec_form.field(TrainSpec, "precision", PREFIX)
    return values


def look_over(spec: TrainSpec, found: Data) -> bool:
    """The checks as a list with marks; answers whether nothing stands against a start."""
    checks, plan = training.checks(spec, found), schedule(spec, found.train)
    if plan.steps_per_epoch:
        needs, of_memory = outlook.checks(spec, plan.batch_size)
        checks += needs
        floor = training.memory(spec, backend.catalogue(), launch.device_memory_gb(spec.device))
        checks += [floor] if floor and not of_memory else []
    return clip_form.marked(checks)


def promise(spec: TrainSpec, found: Data) -> str:
    """What pressing the button will do, and for about how long."""
    plan = schedule(spec, found.train)
    last = launch.last_similar_run(spec, alike)
    took = {"seconds": last.seconds(), "steps": last.done} if last else {"seconds": None, "steps": 0}
    seconds = training.expected_s(spec, found.train, **took)
    time = f", about {duration(seconds)} going by the last run like it" if seconds else ""
    start = f" from {spec.pretrained}" if spec.pretrained else ""
    return f"Trains {spec.model}{start} for {plan.steps:,} steps on {spec.device}{time}"


def counted(values: dict[str, Any], seen: data.Seen) -> tuple[Data | None, str]:
    """How many pairs there are to train on and held out, or why that cannot be told."""
    if seen.look is None:
        return None, ""  # said beside the data
    known = spec_form.valid(TrainSpec, values)
    held = known.get("val_fraction")
    held = TrainSpec().val_fraction if held is None else held
    try:
        given, val_data = data.source(known), known.get("val_data") or ""
        return data.counted(given, seen.look, val_data=val_data, val_fraction=held), ""
    except DataProblem as problem:
        return None, f"Held-out data: {problem}"


@st.fragment
def form() -> None:
    """The form. It answers on its own, without redrawing the results below."""
    place = st.container()
    values, seen = clip_form.data(TrainSpec, PREFIX, DATA)
    found, problem = counted(values, seen)
    model = st.container()
    values |= groups.draw(TrainSpec, PREFIX, FURTHER)
    values["configs"] = own_configurations()
    with model:  # where those are offered too
        values |= settings(values["configs"], found.train if found else 0)
    presets.draw(place, PREFIX, PRESETS, values)
    spec, problems = spec_form.build(TrainSpec, values)
    problems += [problem] if problem else []
    sentence, ready = "What stands above must be put right first", False
    if isinstance(spec, TrainSpec) and found:
        ready = look_over(spec, found)
        sentence = promise(spec, found) if ready else sentence
    options = {"key": "train_go", "label": "Train", "icon": ":material/model_training:"}
    launch.launch(spec if ready else None, problems, sentence=sentence, **options)


st.title("Train CLIP", anchor=False)
st.caption("Short trainings and fine-tunes on your own images and captions; without any, on handwritten digits.")
form()
launch.linked_run("train", "Curves appear here. Earlier trainings are under Runs.")
