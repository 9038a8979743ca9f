"""The page Train: data, model, settings and checks, then the run below."""

from base64 import b64decode
from collections.abc import Sequence
from typing import Any

import streamlit as st

from engine.datasets import DataProblem
from engine.jobs import named_files, references
from engine.report import checks as report_checks
from engine.report.checks import Data
from engine.results.answers import Augmented
from engine.specs import Refused, sweep
from engine.specs.base import split_numbers
from engine.specs.fields import images
from engine.specs.fields.clip import DIGITS_MODEL, short_name
from engine.specs.questions import Augment
from engine.specs.schedule import schedule
from engine.specs.train import FINE_TUNE_LR, METRICS, SCRATCH_LR, TrainSpec
from engine.store import Damaged
from engine.words import plural
from pages.clip import data
from pages.clip import form as clip_form
from pages.shared import backend, rerun
from pages.shared.form import files, groups, presets, spec_form
from pages.shared.form import link as form_link
from pages.shared.question import draw_answer
from pages.shared.rerun import fold
from pages.shared.runs import durations, launch
from pages.shared.text import plain, quoted, refusals_shown

PREFIX = "train"
# Fields that a preset resets to their defaults.
DEFAULTS = {"pretrained": None, "epochs": None, "steps": None, "batch_size": None, "lr": None, "warmup": ""}
# Fields that the other presets change, with the values of an ordinary training.
TRAINED_WHOLE = {"lock_image": False, "overfit": False, "val_frequency": 1, "zeroshot_frequency": 1}

PRESETS: presets.Presets = {
    "Digits in a minute": presets.Preset(
        "Train a small CLIP from scratch on scikit-learn's digits. No download, about a minute on two cores.",
        {"data": "digits", "data_kind": "auto", "model": DIGITS_MODEL, **DEFAULTS, **TRAINED_WHOLE},
    ),
    "Fine-tune gently": presets.Preset(
        "Train for a few epochs at a low learning rate with the image tower locked. Choose initial weights as well.",
        {"lr": FINE_TUNE_LR, "epochs": 5, "steps": None, "warmup": "10%", **TRAINED_WHOLE, "lock_image": True},
    ),
    "One batch, to check": presets.Preset(
        "Train on one batch for 50 steps. If the loss does not fall strongly, something is wrong.",
        {"overfit": True, "steps": 50, "epochs": None, "val_frequency": 0, "zeroshot_frequency": 0},
    ),
}
DATA = {
    data.COLUMNS: data.COLUMN_FIELDS,
    "Data format": ("data_kind", "csv_separator", "json_split", "samples"),
    "Held-out data": ("val_data", "val_fraction"),
    "Zero-shot": ("zeroshot_data", "classes", "templates"),
}
SCRATCH = "none: train from scratch; choose or type a tag"
SWEEP_LABELS = {"lr": "Learning rates", "wd": "Weight decays", "seed": "Seeds"}
FURTHER = {
    "Model": ("image_size", "context_length", "patch_dropout"),
    "Pretrained towers": ("pretrained_image", "pretrained_text"),
    "Locked image tower": ("lock_image", "lock_image_unlocked_groups", "lock_image_freeze_bn_stats"),
    "Locked text tower": ("lock_text", "lock_text_unlocked_layers", "lock_text_freeze_layer_norm"),
    "Loss": ("loss", "local_loss", "gather_with_grad"),
    "Optimizer": ("opt", "wd", "eps", "beta1", "beta2", "momentum"),
    "Learning rates of the towers": ("lr_image", "lr_text"),
    "Gradients": ("grad_clip_norm", "accum_freq", "grad_checkpointing"),
    "Schedule": ("steps", "lr_scheduler", "epochs_cooldown", "lr_cooldown_power", "lr_cooldown_end"),
    "Sampling": ("data_weights", "resampled", "overfit"),
    "Validation": ("val_frequency", "zeroshot_frequency", "val_every_steps", "val_at_start"),
    "Best and early stopping": ("best_metric", "patience"),
    "Checkpoints": ("save_frequency", "save_every_steps", "keep_last", "resume"),
    "Images": tuple(name for name in images.ImageFields.model_fields if name.startswith("image_")),
    "Augmentation": tuple(name for name in images.ImageFields.model_fields if name.startswith("aug_")),
    "CoCa and distillation": ("coca_contrastive_weight", "coca_caption_weight", "distill_model", "distill_pretrained"),
    "Logs": ("log_every_n_steps", "tensorboard"),
    "Weights & Biases": ("wandb", "wandb_project_name", "wandb_name", "wandb_notes"),
    "Execution": ("nproc", "use_bn_sync", "workers", "threads", "channels_last", "compile", "seed"),
}


def settings(configs: dict[str, Any], pairs: int) -> dict[str, Any]:
    """Draw the model and the main settings. Return their values. pairs: training pairs, which set the default batch."""
    st.header("Model", anchor=False)
    left, right = st.columns(2)
    models = clip_form.models(f"config:{name}" for name in configs)
    values = {"model": spec_form.field(TrainSpec, "model", models, place=left)}
    weights = clip_form.weights(values["model"] or "")
    values["pretrained"] = spec_form.field(TrainSpec, "pretrained", weights, hint=SCRATCH, place=right)
    clip_form.draw_refusal(TrainSpec, values["model"], configs)
    default = schedule(TrainSpec(), max(pairs, 1))
    rate = FINE_TUNE_LR if values["pretrained"] else SCRATCH_LR
    hints = {"batch_size": f"default: {default.batch_size}", "lr": f"default: {rate:g}"}
    values |= spec_form.row(TrainSpec, dict.fromkeys(("epochs", "batch_size", "lr", "warmup"), 1), hints=hints)
    return values | spec_form.row(TrainSpec, {"device": 1, "precision": 2}, device=launch.devices())


def sweep_fields() -> dict[str, list[str]]:
    """Draw the values to sweep. Return them by field; a field without values is not swept."""
    keys = {name: f"{PREFIX}_sweep_{name}" for name in sweep.FIELDS}
    filled = any(st.session_state.get(key) or key in st.query_params for key in keys.values())

    def draw() -> dict[str, list[str]]:
        st.caption(f"Several values queue a run for each combination, at most {sweep.MOST_RUNS}, and compare them.")
        columns = zip(st.columns(len(keys)), keys.items(), strict=True)
        return {name: _sweep_values(column, name, key) for column, (name, key) in columns}

    return fold("Sweep", draw, key=f"{PREFIX}_sweep", filled=filled) or {}


def _sweep_values(place: Any, name: str, key: str) -> list[str]:
    """Draw the values to sweep of one field and the problems with them. Return the values."""
    values = split_numbers(place.text_input(SWEEP_LABELS[name], key=key, bind="query-params"))
    for value in values:
        if problem := spec_form.problem(TrainSpec, name, value):
            place.error(plain(f"{quoted(value)}: {problem}"), icon=":material/error:")
    return values


def draw_checks(specs: Sequence[TrainSpec], counts: Data) -> bool:
    """Draw the list of checks and return True if no check is an error. specs: of all runs that the button starts."""
    spec, plan = specs[0], schedule(specs[0], counts.train)
    checks = list(dict.fromkeys(check for member in specs for check in report_checks.checks(member, counts)))
    checks += [report_checks.Check("ok", text)] if (text := other_rate(spec)) else []
    if plan.steps_per_epoch:
        checks += clip_form.checks(spec, plan.batch_size)
    checks += [report_checks.Check("ok", text)] if (text := bf16_advice(spec)) else []
    return clip_form.draw_checks(checks)


def bf16_advice(spec: TrainSpec) -> str:
    """Return a sentence that recommends amp_bf16 if the training is in fp32 and bfloat16 is clearly faster."""
    if spec.precision != "fp32" and (spec.precision != "auto" or launch.computes_bf16(spec.device)):
        return ""
    base = "tf32" if spec.device.startswith("cuda") else "float32"  # trainings in fp32 use TF32 on CUDA
    return launch.bf16_advice(spec.device, "Precision amp_bf16", base)


def other_rate(spec: TrainSpec) -> str:
    """Return a sentence if the default learning rate differs from that of the run whose weights are trained on."""
    if spec.lr is not None or not spec.pretrained.isdecimal():
        return ""
    try:
        source = backend.store().run(int(spec.pretrained)).spec
    except (LookupError, Damaged):  # the form refuses to start
        return ""
    if not isinstance(source, TrainSpec) or source.peak_lr == spec.peak_lr:
        return ""
    return (
        f"The learning rate of run {spec.pretrained} was {source.peak_lr:g}. The default for trained weights is "
        f"{spec.peak_lr:g}."
    )


@refusals_shown()
def draw_augmented(spec: TrainSpec) -> None:
    """Draw some images of the data as the training would augment them."""
    question = Augment.of(spec)
    named_files.check_paths(backend.settings(), question.spec)

    def draw(answer: dict[str, Any]) -> None:
        images = Augmented.model_validate(answer).images
        data.grid([(b64decode(image), "", "An augmented image") for image in images], width=data.SHOWN_WIDTH)

    st.caption("Images as they are augmented in four epochs")
    draw_answer(question, f"{PREFIX}_augmented", draw, waiting="Augmenting some images.")


def describe(spec: TrainSpec, counts: Data) -> str:
    """Return a sentence on what the button will do and how long it will take."""
    plan = schedule(spec, counts.train)
    time = durations.promise(references.resolve(backend.store(), backend.settings(), spec), plan.steps)
    start = f" from {short_name(spec.pretrained)}" if spec.pretrained else ""
    steps = plural(plan.steps, "step")
    return f"Trains {spec.model}{start} on {short_name(spec.data)} for {steps} on {spec.device}{time}"


def count_pairs(values: dict[str, Any], preview: data.Preview) -> tuple[Data | None, str]:
    """Return the numbers of training and held-out pairs, or None and an error message."""
    if preview.summary is None:
        return None, ""  # the data section shows the problem
    valid = spec_form.valid(TrainSpec, values)
    fraction = valid.get("val_fraction")
    fraction = TrainSpec().val_fraction if fraction is None else fraction
    zeroshot = None
    if valid.get("zeroshot_data"):
        try:
            zeroshot = data.zeroshot_source(valid)
            data.pairs(zeroshot)
        except DataProblem as problem:
            return None, f"Zero-shot data: {problem}, or leave Zero-shot data empty"
    try:
        arguments, val_data = data.source(valid), valid.get("val_data") or ""
        counts = data.count_pairs(
            arguments, preview.summary, val_data=val_data, val_fraction=fraction, zeroshot=zeroshot
        )
    except DataProblem as problem:
        return None, f"Held-out data: {problem}"
    return counts, ""


@st.fragment
def form() -> None:
    """Draw the form. It is a fragment, so that a change does not redraw the results below."""
    presets_place = st.container()
    values, preview = clip_form.data(TrainSpec, DATA)
    counts, problem = count_pairs(values, preview)
    model_place = st.container()
    values |= groups.draw(TrainSpec, FURTHER, best_metric=METRICS)
    images_place = st.container()
    _, values["configs"] = files.draw_files(PREFIX, "Your own model", files.CONFIGS)
    with model_place:  # drawn after the uploads, whose configurations are in its list of models
        values |= settings(values["configs"], counts.train if counts else 0)
    presets.draw(presets_place, PREFIX, PRESETS, values)
    with model_place:
        swept = sweep_fields()
    spec, problems = spec_form.build(TrainSpec, values)
    problems += [problem] if problem else []
    if spec and preview.summary and images.augmentation(spec) != images.augmentation(TrainSpec()):
        with images_place:
            draw_augmented(spec)
    specs: dict[str, TrainSpec] = {}
    if spec:
        try:
            specs = sweep.specs(spec, swept)
        except Refused as refused:
            problems.append(str(refused))
    sentence, ready = "Fix the errors above to continue.", False
    if spec and counts:
        ready = draw_checks(list(specs.values()) or [spec], counts)
        sentence = describe(spec, counts) if ready else sentence
        if ready and len(specs) == 1:
            sentence += f", with {next(iter(specs))}. Compare then shows this run"
        elif ready and specs:
            sentence += f", once for each of {'; '.join(specs)}. Compare then shows these runs"
    label = f"Train {plural(len(specs), 'run')}" if specs else "Train"
    spec, icon = spec if ready else None, ":material/model_training:"
    launch.launch(PREFIX, spec, problems, label, icon, sentence=sentence, sweep=specs)


st.title("Train CLIP", anchor=False)
st.caption("Train or fine-tune CLIP briefly on your own images and captions, or on the included handwritten digits.")
if message := form_link.fill_message(TrainSpec):
    rerun.show(message, ":material/edit_note:")
form()
launch.draw_linked_run("train", "Curves appear here. Earlier trainings are on the page Runs.")
