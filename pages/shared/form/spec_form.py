"""A form drawn from a spec: its fields, bounds and descriptions are read from it, never stated again.

Widgets answer at once instead of through `st.form`, because the sentence and the command beside them follow what is
typed; nothing is sent before the button.
"""

import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
import streamlit as st
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from typing_extensions import TypeAliasType

from engine.specs import Spec, format_image_size
from pages.shared import redraw
from pages.shared.text import quoted

BIND = "query-params"
LONGEST_MESSAGE = 500  # characters: a message may repeat what was given, such as a path of a link of 100,000
LISTED = "listed"  # in the address: of how many models a list is that was put aside
LABELS = {
    "image_size": "Image size (px)",
    "training": "Training peak",
    "detail": "Table of modules",
    "replicates": "Processes",
    "min_seconds": "Sampled time (s)",
    "min_samples": "Samples",
    "time_limit": "Time limit (s)",
    "max_batch_size": "Largest batch size",
    "filter": "Only names with",
    "exclude": "Not names with",
    "exclude_exact": "Not these",
    "partition": "Part (I/N)",
    "cudnn_benchmark": "cuDNN benchmark",
    "context_length": "Text length (tokens)",
    "dtypes": "Data types",
    "seconds": "Sampled time (s)",
    "runners": "Single runners",
    "seq_length": "Steps",
    "num_layers": "Layers",
    "proj_size": "Projected to",
    "loops": "Samples",
    "warmup": "Warm-up calls",
    "sweep_values": "At these values",
    "data_kind": "What they are",
    "csv_separator": "CSV: separator",
    "csv_img_key": "CSV: column of images",
    "csv_caption_key": "CSV: column of captions",
    "train.samples": "Pairs at most",
    "evaluate.samples": "Pairs at most",
    "data_weights": "Weights of sources (::)",
    "resampled": "Draw with replacement",
    "val_data": "Held-out data",
    "val_fraction": "Held-out share",
    "held_out": "Only the held-out share",
    "pretrained": "Weights to begin with",
    "lr": "Learning rate",
    "train.warmup": "Warm-up",
    "wd": "Weight decay",
    "eps": "Epsilon",
    "opt": "Optimizer",
    "grad_clip_norm": "Largest gradient norm",
    "accum_freq": "Batches per step",
    "lr_scheduler": "Schedule",
    "epochs_cooldown": "Epochs of cooldown",
    "lr_cooldown_power": "Power of cooldown",
    "lr_cooldown_end": "Rate after cooldown",
    "overfit": "Overfit one batch",
    "patch_dropout": "Patches left out",
    "lock_image_unlocked_groups": "Its last groups, unlocked",
    "lock_image_freeze_bn_stats": "Freeze its batch norms",
    "lock_text_unlocked_layers": "Its last layers, unlocked",
    "lock_text_freeze_layer_norm": "Freeze its layer norms",
    "grad_checkpointing": "Checkpoint activations",
    "compile": "torch.compile",
    "coca_contrastive_weight": "CoCa: weight of contrast",
    "coca_caption_weight": "CoCa: weight of captions",
    "distill_model": "Teacher",
    "distill_pretrained": "Teacher's weights",
    "gather_with_grad": "Gather with gradients",
    "nproc": "Processes",
    "workers": "Processes that load",
    "val_frequency": "Validate every (epochs)",
    "zeroshot_frequency": "Zero-shot every (epochs)",
    "log_every_n_steps": "Log every (steps)",
    "save_frequency": "Save every (epochs)",
    "save_every_steps": "Save every (steps)",
    "keep_last": "Checkpoints kept",
    "best_metric": "Best by",
    "tensorboard": "TensorBoard files",
    "wandb": "Weights & Biases",
    "resume": "Continue from",
    "cuda_pointwise_loop_level": "CUDA pointwise: loops",
    "cuda_pointwise_block_count": "CUDA pointwise: blocks",
    "cuda_pointwise_block_size": "CUDA pointwise: threads per block",
}
OF_MODEL = ("image_size", "context_length")
"""What is the model's own when left out."""
LISTS = ("classes", "templates")
"""A text with an item per line."""
UNIONS = (types.UnionType, Union)


def key(prefix: str, field: str) -> str:
    """The widget of a field, and its name in the page's address."""
    return f"{prefix}_{field}"


def called(spec: type[Spec], name: str) -> str:
    """Return what a field is called in a sentence."""
    return LABELS.get(f"{spec.kind}.{name}", LABELS.get(name, name.replace("_", " ")))


def heading(spec: type[Spec], name: str) -> str:
    """Return what stands above a field, and at the beginning of a sentence."""
    return LABELS.get(f"{spec.kind}.{name}", LABELS.get(name, name.replace("_", " ").capitalize()))


def field(
    spec: type[Spec],
    name: str,
    prefix: str,
    choices: Sequence[str] | None = None,
    *,
    pills: bool = False,
    free: bool = False,
    hint: str | None = None,
) -> Any:
    """Draw the widget of one field and return what it holds.

    choices: offered for a free text, the first being the default where the field has one of its own, and beside what
    may be typed for lists and for numbers that have words as well. pills: for a list of given words, all in sight.
    free: what is not among the choices may be typed too. hint: what an empty field means.
    """
    value = _widget(spec, name, prefix, choices, pills, free, hint)
    redraw.hold(key(prefix, name))
    return value


def _widget(
    spec: type[Spec],
    name: str,
    prefix: str,
    choices: Sequence[str] | None,
    pills: bool,
    free: bool,
    hint: str | None,
) -> Any:
    info = spec.model_fields[name]
    annotation, optional = _without_none(info.annotation)
    label = heading(spec, name)
    shared: dict[str, Any] = {"key": key(prefix, name), "help": info.description, "bind": BIND}
    if optional:
        hint = hint or ("the model's own" if name in OF_MODEL else "by default")
    if name == "image_size" and info.default:
        hint = format_image_size(info.default)
    if name in LISTS:
        return st.text_area(label, placeholder=hint or "one a line", height=90, **shared)
    if get_origin(annotation) is Literal:
        return st.segmented_control(
            label, get_args(annotation), default=info.default, required=True, width="stretch", **shared
        )
    if get_origin(annotation) is tuple and get_args(annotation)[1:] == (...,):
        item = get_args(annotation)[0]
        return (
            _numbers(label, shared)
            if item in (int, float)
            else _several(label, info.default, item, choices, shared, pills)
        )
    if get_origin(annotation) in UNIONS:
        return _number_or_word(label, str(info.default), annotation, choices or (), shared)
    if annotation is bool:
        return st.toggle(label, value=info.default, **shared)
    if annotation in (int, float):
        return _number(label, info, annotation, hint, shared)
    if choices is not None and (free or info.default == ""):
        # what is no longer on offer, or comes by a link, stays, and the engine says so
        typed = st.session_state.get(shared["key"], st.query_params.get(shared["key"]))
        options = list(dict.fromkeys([*choices, *([typed] if typed else [])]))
        index = None if info.default == "" else 0
        look = {"index": index, "placeholder": hint or "by default"}
        return st.selectbox(label, options, accept_new_options=True, **look, **shared)
    if choices is not None:
        if st.session_state.get(shared["key"]) not in choices:
            st.session_state.pop(shared["key"], None)
        return st.selectbox(label, choices, **shared)
    return st.text_input(label, placeholder=hint or info.default or None, **shared)


def _several(
    label: str, default: Any, item: Any, choices: Sequence[str] | None, shared: dict[str, Any], pills: bool
) -> list[str]:
    """A list: of given words, or of words that can be typed too."""
    given = get_args(item) if get_origin(item) is Literal else None
    if given and pills:
        return st.pills(label, given, default=list(default), selection_mode="multi", wrap=True, **shared)
    options = list(given or dict.fromkeys([*default, *(choices or ()), *st.session_state.get(shared["key"], [])]))
    return st.multiselect(label, options, default=list(default), accept_new_options=given is None, **shared)


def _number(label: str, info: FieldInfo, kind: type, hint: str | None, shared: dict[str, Any]) -> float | None:
    """A number. Whole ones are drawn as floats too: a link with 1e400 makes Streamlit's field of integers fail."""
    low, high = (None if bound is None else float(bound) for bound in _bounds(info))
    default = None if info.default is None else float(info.default)
    step = 1.0 if kind is int else None
    value = st.number_input(label, low, high, default, step=step, format="%g", placeholder=hint, **shared)
    return int(value) if kind is int and value is not None and value % 1 == 0 else value


def _numbers(label: str, shared: dict[str, Any]) -> str:
    """Numbers that are typed one by one or with commas between them, as one text."""
    typed = list(st.session_state.get(shared["key"], []))
    hint = "by default; type numbers"
    return ",".join(st.multiselect(label, typed, accept_new_options=True, placeholder=hint, **shared))


def _number_or_word(
    label: str, default: str, annotation: Any, choices: Sequence[str], shared: dict[str, Any]
) -> str | None:
    """A number that can be typed, or one of the words that stand for one."""
    words = [
        word for part in map(_plain, get_args(annotation)) if get_origin(part) is Literal for word in get_args(part)
    ]
    typed = st.session_state.get(shared["key"])
    options = list(dict.fromkeys([default, *choices, *words, *([typed] if typed else [])]))
    return st.selectbox(label, options, accept_new_options=True, **shared)


def build(spec: type[Spec], values: Mapping[str, Any]) -> tuple[Spec | None, list[str]]:
    """The spec, or what is wrong with the values, one sentence each. Empty values mean a field's default."""
    found, errors = _validated(spec, values)
    return found, [_sentence(spec, error) for error in errors]


def valid(spec: type[Spec], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that the spec takes, for what looks at them before there is a spec."""
    _, errors = _validated(spec, values)
    wrong = {part for error in errors for part in error["loc"][:1]}
    return {name: value for name, value in values.items() if name not in wrong}


def problem(spec: type[Spec], name: str, value: Any) -> str:
    """Return what is wrong with the value of one field; empty where the spec takes it."""
    _, errors = _validated(spec, {name: value})
    return next((_message(error) for error in errors if error["loc"][:1] == (name,)), "")


def _validated(spec: type[Spec], values: Mapping[str, Any]) -> tuple[Spec | None, list[Any]]:
    try:
        return spec.model_validate({name: value for name, value in values.items() if value not in (None, "", [])}), []
    except ValidationError as error:
        return None, error.errors()


def _sentence(spec: type[Spec], error: Any) -> str:
    where = ", ".join(called(spec, part) for part in error["loc"] if isinstance(part, str))
    message = _message(error)
    if any(isinstance(part, int) for part in error["loc"]):  # one of several: say which
        given = error["input"]
        message += f" (given: {quoted(given) if isinstance(given, str) else repr(given)})"
    return f"{where}: {message}" if where else message


def _message(error: Any) -> str:
    message: str = error["msg"].removeprefix("Value error, ")
    if len(message) <= LONGEST_MESSAGE:
        return message
    return f"{message[: LONGEST_MESSAGE // 2]} ... {message[-LONGEST_MESSAGE // 2 :]}"  # its end says what is allowed


def _plain(annotation: Any) -> Any:
    """Without the names and validators around a type."""
    while isinstance(annotation, TypeAliasType) or get_origin(annotation) is Annotated:
        annotation = annotation.__value__ if isinstance(annotation, TypeAliasType) else get_args(annotation)[0]
    return annotation


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """`int | None` is (int, True)."""
    annotation = _plain(annotation)
    parts = get_args(annotation) if get_origin(annotation) in UNIONS else ()
    if types.NoneType in parts:
        return _plain(next(part for part in parts if part is not types.NoneType)), True
    return annotation, False


def _bounds(info: FieldInfo) -> tuple[int | None, int | None]:
    low = next((item.ge for item in info.metadata if isinstance(item, annotated_types.Ge)), None)
    if low is None:  # a widget has no open bounds; the engine refuses what lies on one
        low = next((item.gt for item in info.metadata if isinstance(item, annotated_types.Gt)), None)
    high = next((item.le for item in info.metadata if isinstance(item, annotated_types.Le)), None)
    return low, high
