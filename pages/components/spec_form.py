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
from pages.components import redraw

BIND = "query-params"
LISTED = "listed"  # in the address: of how many models a list is that was put aside
IN_LINK = 40  # more models than this would make a link too long to reload
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
    """What a field is called in a sentence."""
    return LABELS.get(f"{spec.kind}.{name}", LABELS.get(name, name.replace("_", " ")))


def address(prefix: str, spec: Spec) -> dict[str, str | list[str]]:
    """The query of a page's address that fills its form with a spec, but for what `put_aside` puts aside."""
    query: dict[str, str | list[str]] = {}
    for name, info in type(spec).model_fields.items():
        value = getattr(spec, name)
        if name == "configs":
            continue
        if name == "models" and len(value) > IN_LINK:
            query[key(prefix, LISTED)] = str(len(value))
        elif name == "models":
            query[key(prefix, name)] = [model for model in value if not model.startswith("config:")]
        elif value != info.default and name in LISTS:
            query[key(prefix, name)] = "\n".join(value)
        elif value != info.default and name != "image_size" and isinstance(value, tuple):
            query[key(prefix, name)] = [str(item) for item in value]
        elif value != info.default:
            text = format_image_size(value) if name == "image_size" and isinstance(value, tuple) else str(value)
            query[key(prefix, name)] = text.lower() if isinstance(value, bool) else text
    return query


def in_link(spec: Spec) -> bool:
    """Whether an address can hold all of a spec: no long list of models, and no configurations of one's own."""
    return len(getattr(spec, "models", ())) <= IN_LINK and not getattr(spec, "configs", {})


def put_aside(prefix: str, spec: Spec) -> None:
    """Keep for the form, until this tab is closed, what no address can hold."""
    if configs := getattr(spec, "configs", {}):
        st.session_state[key(prefix, "configs")] = configs
    if len(models := getattr(spec, "models", ())) > IN_LINK:
        st.session_state[key(prefix, LISTED)] = models


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
    label = LABELS.get(f"{spec.kind}.{name}", LABELS.get(name, name.replace("_", " ").capitalize()))
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
        low, high = (None if bound is None else annotation(bound) for bound in _bounds(info))
        default = None if info.default is None else annotation(info.default)
        options = {"step": 1} if annotation is int else {"format": "%g"}
        return st.number_input(label, low, high, default, placeholder=hint, **options, **shared)
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
    given = {name: value for name, value in values.items() if value not in (None, "", [])}
    try:
        return spec.model_validate(given), []
    except ValidationError as error:
        return None, [_sentence(spec, problem) for problem in error.errors()]


def _sentence(spec: type[Spec], problem: Any) -> str:
    where = ", ".join(called(spec, part) for part in problem["loc"] if isinstance(part, str))
    message = problem["msg"].removeprefix("Value error, ")
    if any(isinstance(part, int) for part in problem["loc"]):  # one of several: say which
        message += f" (given: {problem['input']!r})"
    return f"{where}: {message}" if where else message


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
