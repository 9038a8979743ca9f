"""Draw a form from a spec. Fields, bounds and help texts are read from the spec and not repeated here.

The widgets are not in an `st.form`, because the sentence and the command beside them follow each change. Nothing is
submitted before the button is pressed.
"""

import types
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import streamlit as st
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from streamlit.delta_generator import DeltaGenerator
from typing_extensions import TypeAliasType

from engine.specs import Spec, describe_error, format_image_size
from engine.specs.fields.clip import LINE_FIELDS
from pages.shared import rerun
from pages.shared.form.labels import default_hint, heading
from pages.shared.text import quoted

Request = TypeVar("Request", bound=Spec)
LONGEST_MESSAGE = 1000
"""Maximum number of characters of an error message. A message may repeat a value from a link of any length."""
LISTED = "listed"
"""Address parameter: the length of a list of models that is too long for the address."""
AREAS = (*LINE_FIELDS, "batch_size_list")
"""Fields with an area of several lines, so that a pasted file keeps its lines."""
MOST_SEGMENTS, MOST_LETTERS = 6, 26
"""Maximum number of words drawn side by side, and of their letters in a narrow place. More would be cut."""
STEPS = dict.fromkeys(("lr", "lr_image", "lr_text", "lr_cooldown_end"), 1e-5) | {"eps": 1e-7}
"""Step of the buttons + and - of small numbers. Streamlit's default is 0.01."""
UNIONS = (types.UnionType, Union)


def key(prefix: str, field: str) -> str:
    """Return the key of a field's widget, which is also its parameter in the page's address."""
    return f"{prefix}_{field}"


def field(
    spec: type[Spec],
    name: str,
    choices: Sequence[str] | None = None,
    *,
    pills: bool = False,
    hint: str | None = None,
    narrow: bool = False,
    place: DeltaGenerator | None = None,
) -> Any:
    """Draw the widget of one field and return its value.

    choices: values offered for a text, a list, or a number that may also be a word. The first is the default if the
    field has a default. Other values can be typed, except for a device. pills: show all words of a list as pills.
    hint: placeholder of the empty field; without it, the default that the description states. narrow: the field has a
    third of the width. place: the column to draw in.
    """
    with place or nullcontext():
        value = _widget(spec, name, choices, pills, hint, narrow)
    rerun.hold(key(spec.kind, name))
    return value


def row(
    spec: type[Spec], widths: Mapping[str, int], *, hints: Mapping[str, str] | None = None, **choices: Sequence[str]
) -> dict[str, Any]:
    """Draw fields side by side and return their values. widths: share of each field. hints, choices: as for `field`."""
    columns, hints = zip(st.columns(list(widths.values())), widths, strict=True), hints or {}
    return {name: field(spec, name, choices.get(name), hint=hints.get(name), place=column) for column, name in columns}


def _widget(
    spec: type[Spec], name: str, choices: Sequence[str] | None, pills: bool, hint: str | None, narrow: bool
) -> Any:
    info = spec.model_fields[name]
    annotation, optional = _without_none(info.annotation)
    label = heading(spec, name)
    shared: dict[str, Any] = {"key": key(spec.kind, name), "help": help_of(spec, name), "bind": "query-params"}
    if optional:
        hint = hint or default_hint(spec, name)
    if name == "image_size" and info.default:
        hint = f"default: {format_image_size(info.default)}"
    if name in AREAS:
        return st.text_area(label, placeholder=hint or "one per line", height=90, **shared)
    if get_origin(annotation) is Literal:
        words = get_args(annotation)
        if len(words) > MOST_SEGMENTS or (narrow and sum(map(len, words)) > MOST_LETTERS):
            return st.selectbox(label, words, words.index(info.default), **shared)
        return st.segmented_control(
            label, words, default=info.default, required=True, width="stretch", wrap=True, **shared
        )
    if is_number_list(spec, name):
        default_text = ",".join(str(item) for item in info.default)
        hint = default_hint(spec, name) or f"default: {default_text}"
        return st.text_input(label, default_text, placeholder=hint, **shared)
    if get_origin(annotation) is tuple and get_args(annotation)[1:] == (...,):
        return _words(label, info.default, get_args(annotation)[0], choices, shared, pills)
    if get_origin(annotation) in UNIONS:
        literals = [part for part in map(_plain, get_args(annotation)) if get_origin(part) is Literal]
        offered = [*(choices or ()), *(word for part in literals for word in get_args(part))]
        if info.default_factory:  # the default depends on other fields, so the field is empty at first
            return _open_choice(label, offered, None, f"default: {_computed_default(spec, info)}", shared)
        return _open_choice(label, [str(info.default), *offered], 0, hint or default_hint(spec, name), shared)
    if annotation is bool:
        return st.toggle(label, value=info.default, **shared)
    if annotation in (int, float):
        step = 1.0 if annotation is int else STEPS.get(name)
        return _number(label, info, annotation, step, hint, shared)
    if choices is not None and name != "device":
        index = None if info.default == "" else 0
        return _open_choice(label, choices, index, hint or default_hint(spec, name), shared)
    if choices is not None:
        if st.session_state.get(shared["key"], choices[0]) not in choices:
            st.session_state[shared["key"]] = choices[0]  # otherwise the browser keeps showing the old value
        return st.selectbox(label, choices, **shared)
    return st.text_input(label, placeholder=hint or info.default or default_hint(spec, name), **shared)


def _computed_default(spec: type[Spec], info: FieldInfo) -> Any:
    """Return the default of a field that follows from other fields, for their values in the form."""
    keys = {name: key(spec.kind, name) for name in spec.model_fields}
    values = {name: st.session_state.get(widget, st.query_params.get(widget)) for name, widget in keys.items()}
    words = {name: value for name, value in values.items() if isinstance(value, str)}
    return info.get_default(call_default_factory=True, validated_data=words)


def _words(
    label: str, default: Any, item: Any, choices: Sequence[str] | None, shared: dict[str, Any], pills: bool
) -> list[str]:
    """Draw a list of words. Other words can be typed unless the field's type fixes the choices."""
    allowed = get_args(item) if get_origin(item) is Literal else None
    if allowed and pills:
        return st.pills(label, allowed, default=list(default), selection_mode="multi", wrap=True, **shared)
    options = list(allowed or dict.fromkeys([*default, *(choices or ()), *st.session_state.get(shared["key"], [])]))
    typed: dict[str, Any] = {"accept_new_options": allowed is None, "select_all": False}
    return st.multiselect(label, options, default=list(default), **typed, **shared)


def _number(
    label: str, info: FieldInfo, kind: type, step: float | None, hint: str | None, shared: dict[str, Any]
) -> float | None:
    """Draw a number. Integers use a float field too, because a link with 1e400 makes Streamlit's integer field fail.

    The widget has no bounds: a browser does not send a number out of bounds, and the form would use the previous one.
    """
    default: Any = None if info.default is None else float(info.default)
    value = st.number_input(label, None, None, default, step=step, format="%g", placeholder=hint, **shared)
    return int(value) if kind is int and value is not None and value % 1 == 0 else value


def _open_choice(
    label: str, offered: Sequence[str], index: int | None, hint: str | None, shared: dict[str, Any]
) -> str | None:
    """Draw a choice that takes other values too. index: of the default; None if the field is empty at first."""
    # Keep a typed or linked value even if it is not offered (any more). The engine checks it.
    current = st.session_state.get(shared["key"], st.query_params.get(shared["key"]))
    options = list(dict.fromkeys([*offered, *([current] if current else [])]))
    return st.selectbox(label, options, index, accept_new_options=True, placeholder=hint, **shared)


def is_number_list(spec: type[Spec], name: str) -> bool:
    """Return whether a field holds several numbers or image sizes. They are typed as one text, such as `1,8,64`.

    A field of chips would lose a number that was typed without Enter.
    """
    annotation, _ = _without_none(spec.model_fields[name].annotation)
    if get_origin(annotation) is not tuple or get_args(annotation)[1:] != (...,):
        return False
    item = _plain(get_args(annotation)[0])
    return item in (int, float) or get_origin(item) is tuple


def help_of(spec: type[Spec], name: str) -> str:
    """Return the help text of a field, without the note on commas, which concerns only the command line."""
    return (spec.model_fields[name].description or "").replace("; comma-separated.", ".")


def build(spec: type[Request], values: Mapping[str, Any]) -> tuple[Request | None, list[str]]:
    """Return the spec, or None and one sentence per invalid value. An empty value means the field's default."""
    result, errors = _validate(spec, values)
    # Both sides of an invalid square image size give the same sentence.
    return result, list(dict.fromkeys(_sentence(spec, error) for error in errors))


def valid(spec: type[Spec], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the valid values. A preview uses them while other values of the form are still invalid."""
    _, errors = _validate(spec, values)
    invalid = {part for error in errors for part in error["loc"][:1]}
    return {name: value for name, value in values.items() if name not in invalid}


def problem(spec: type[Spec], name: str, value: Any) -> str:
    """Return the error message for the value of one field; empty if the value is valid."""
    _, errors = _validate(spec, {name: value})
    return next((_message(error) for error in errors if error["loc"][:1] == (name,)), "")


def _validate(spec: type[Request], values: Mapping[str, Any]) -> tuple[Request | None, list[Any]]:
    try:
        return spec.model_validate({name: value for name, value in values.items() if value not in (None, "", [])}), []
    except ValidationError as error:
        # a default that depends on an invalid value is no second problem
        return None, [problem for problem in error.errors() if problem["type"] != "default_factory_not_called"]


def _sentence(spec: type[Spec], error: Any) -> str:
    label = heading(spec, error["loc"][0]) if error["loc"] else ""
    message = _message(error)
    if isinstance(value := error["input"], str | int | float) and error["type"] != "value_error":
        message += f" (given: {quoted(value) if isinstance(value, str) else f'{value:,.12g}'})"
    return f"{label}: {message}" if label else message


def _message(error: Any) -> str:
    """Return the message of an error. Of a long message, keep the end, which states the allowed values."""
    message, half = describe_error(error), LONGEST_MESSAGE // 2
    return message if len(message) <= LONGEST_MESSAGE else f"{message[:half]} ... {message[-half:]}"


def _plain(annotation: Any) -> Any:
    """Return a type without its aliases and validators."""
    while isinstance(annotation, TypeAliasType) or get_origin(annotation) is Annotated:
        annotation = annotation.__value__ if isinstance(annotation, TypeAliasType) else get_args(annotation)[0]
    return annotation


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """Return a type without None, and True if it allowed None: (int, True) for `int | None`."""
    annotation = _plain(annotation)
    parts = get_args(annotation) if get_origin(annotation) in UNIONS else ()
    if types.NoneType in parts:
        return _plain(next(part for part in parts if part is not types.NoneType)), True
    return annotation, False
