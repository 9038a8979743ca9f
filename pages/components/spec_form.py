"""A form drawn from a spec: its fields, bounds and descriptions are read from it, never stated again.

Widgets answer at once instead of through `st.form`, because the sentence and the command beside them follow what is
typed; nothing is sent before the button.
"""

import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

import annotated_types
import streamlit as st
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from engine.specs import Spec, format_image_size

BIND = "query-params"
IN_LINK = 40  # more models than this would make a link too long to reload
LABELS = {"image_size": "Image size (px)", "training": "Training peak", "detail": "Table of modules"}


def key(prefix: str, field: str) -> str:
    """The widget of a field, and its name in the page's address."""
    return f"{prefix}_{field}"


def address(prefix: str, spec: Spec) -> dict[str, str | list[str]]:
    """The query of a page's address that fills its form with a spec.

    What no address can hold is put aside for the form: a long list of models, and configurations of one's own.
    """
    st.session_state[key(prefix, "listed")] = []
    query: dict[str, str | list[str]] = {}
    for name, info in type(spec).model_fields.items():
        value = getattr(spec, name)
        if name == "configs" or (name == "models" and len(value) > IN_LINK):
            st.session_state[key(prefix, "listed" if name == "models" else name)] = value
        elif name == "models":
            query[key(prefix, name)] = [model for model in value if not model.startswith("config:")]
        elif value != info.default:
            text = format_image_size(value) if name == "image_size" else str(value)
            query[key(prefix, name)] = text.lower() if isinstance(value, bool) else text
    return query


def field(spec: type[Spec], name: str, prefix: str, choices: Sequence[str] | None = None) -> Any:
    """Draw the widget of one field and return what it holds. choices: offered for a free text; the first is the
    default."""
    info = spec.model_fields[name]
    annotation, optional = _without_none(info.annotation)
    label = LABELS.get(name, name.replace("_", " ").capitalize())
    shared: dict[str, Any] = {"key": key(prefix, name), "help": info.description, "bind": BIND}
    if get_origin(annotation) is Literal:
        return st.segmented_control(
            label, get_args(annotation), default=info.default, required=True, width="stretch", **shared
        )
    if annotation is bool:
        return st.toggle(label, value=info.default, **shared)
    if annotation is int:
        low, high = _bounds(info)
        hint = "the model's own" if optional else None
        return st.number_input(label, low, high, info.default, step=1, placeholder=hint, **shared)
    if choices is not None:
        if st.session_state.get(shared["key"]) not in choices:
            st.session_state.pop(shared["key"], None)
        return st.selectbox(label, choices, **shared)
    return st.text_input(label, placeholder="the model's own" if optional else None, **shared)


def build(spec: type[Spec], values: Mapping[str, Any]) -> tuple[Spec | None, list[str]]:
    """The spec, or what is wrong with the values, one sentence each. Empty values mean a field's default."""
    given = {name: value for name, value in values.items() if value not in (None, "")}
    try:
        return spec.model_validate(given), []
    except ValidationError as error:
        return None, [_sentence(problem) for problem in error.errors()]


def _sentence(problem: Any) -> str:
    where = ", ".join(LABELS.get(part, part.replace("_", " ")) for part in problem["loc"] if isinstance(part, str))
    message = problem["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """`int | None` is (int, True)."""
    if get_origin(annotation) is types.UnionType or str(get_origin(annotation)) == "typing.Union":
        return next(part for part in get_args(annotation) if part is not types.NoneType), True
    return annotation, False


def _bounds(info: FieldInfo) -> tuple[int | None, int | None]:
    low = next((item.ge for item in info.metadata if isinstance(item, annotated_types.Ge)), None)
    high = next((item.le for item in info.metadata if isinstance(item, annotated_types.Le)), None)
    return low, high
