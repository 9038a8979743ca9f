"""Fields that change how a model is built: its classes, its input channels and keywords of its constructor."""

import json
import shlex
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import from_json

from engine.model_name import PYTHON, ModelName
from engine.words import plural

MOST_CLASSES = 1_000_000
MOST_CHANNELS = 1024
LONGEST_KEYWORDS = 4000
"""Characters of all keywords together as JSON."""
DEEPEST_LIST = 3
LARGEST_NUMBER = 10_000_000
"""Largest number of a keyword, several times the width or depth of any model."""


def parse_keywords(given: Any) -> str:
    """Return keywords as the text of a JSON object with sorted names; empty for none.

    given: a JSON object, its text, or words such as `depth=2 global_pool=max`, whose values are JSON or else texts. The
    result is a text, so that specs and rows that hold it compare and hash as a whole.
    Errors: ValueError for another form, or for values that are not numbers, texts, booleans or lists of these.
    """
    keywords = _read(given) if isinstance(given, str) else given
    if not isinstance(keywords, Mapping):
        raise ValueError(f"keywords are a JSON object or words such as depth=2, not {str(given)[:100]!r}")
    for name, value in keywords.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"{str(name)[:100]!r} is not the name of a keyword: write name=value")
        _check(name, value, DEEPEST_LIST)
    if not keywords:
        return ""
    text = json.dumps(dict(sorted(keywords.items())), ensure_ascii=False)
    if len(text) > LONGEST_KEYWORDS:
        raise ValueError(f"keywords have at most {LONGEST_KEYWORDS:,} characters together, these have {len(text):,}")
    return text


def _read(text: str) -> Any:
    if len(text) > 2 * LONGEST_KEYWORDS:
        raise ValueError(f"keywords have at most {LONGEST_KEYWORDS:,} characters together, these have {len(text):,}")
    if text.lstrip().startswith("{"):
        try:
            return from_json(text.encode())  # raises ValueError for deep nesting and lone surrogates, too
        except ValueError as error:
            raise ValueError(f"{text[:100]!r} is not JSON: {error}") from error
    keywords: dict[str, Any] = {}
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{text[:100]!r} cannot be split into words: {str(error).lower()}") from error
    for word in words:
        name, sign, value = word.partition("=")
        if not sign:
            raise ValueError(f"{word[:100]!r} is not a keyword with its value: write name=value, such as depth=2")
        if name in keywords:
            raise ValueError(f"the keyword {name[:100]!r} is given twice")
        keywords[name] = _value(value)
    return keywords


def _value(text: str) -> Any:
    """Return the value of a word: JSON such as `2`, `0.1`, `[3,4]`, `true` (or Python's `True`), else the text."""
    if text in ("True", "False"):
        return text == "True"
    content = text.encode()  # raises ValueError for lone surrogates
    try:
        return from_json(content)
    except ValueError:
        return text


def _check(name: str, value: Any, depth: int) -> None:
    """Check the value of a keyword. Errors: ValueError."""
    if isinstance(value, list | tuple) and depth:
        for item in value:
            _check(name, item, depth - 1)
    elif isinstance(value, int | float):
        if not abs(value) <= LARGEST_NUMBER:  # also for NaN
            raise ValueError(f"{name}: numbers lie between -{LARGEST_NUMBER:,} and {LARGEST_NUMBER:,}")
    elif not isinstance(value, str):
        raise ValueError(
            f"{name} is {str(json.dumps(value, default=str))[:100]}, but a keyword is a number, a text, true, false or "
            "a list of these"
        )


NumClasses = Annotated[
    int | None,
    Field(ge=0, le=MOST_CLASSES, description="Classes of a timm model's head; 0: no head. Default: the model's own."),
]
InChans = Annotated[
    int | None,
    Field(
        ge=1,
        le=MOST_CHANNELS,
        description="Channels of the images that a timm model, or a module of your own, takes. Default: the model's "
        "own; mostly 3.",
    ),
]
ModelKwargs = Annotated[
    str,
    BeforeValidator(parse_keywords),
    Field(
        description="Keywords for building a timm model, or for the factory of a module of your own: a JSON object, or "
        "words such as 'drop_path_rate=0.1 global_pool=max'."
    ),
]
OPTIONS = ("num_classes", "in_chans", "model_kwargs")
"""The names of these fields, in specs and in rows."""
ACCEPTED = {"timm": OPTIONS, PYTHON: ("in_chans", "model_kwargs")}
"""The options that models accept, by library. Models of other libraries accept none."""


def option_refusal(name: ModelName, fields: object) -> str:
    """Return why a model cannot be built with the options of a spec; empty if its library accepts them."""
    for option in OPTIONS:
        if getattr(fields, option, None) in (None, "", {}) or option in ACCEPTED.get(name.library, ()):
            continue
        instead = "give it in model_kwargs, if the factory takes it" if name.runs_code else "only timm's models do"
        return f"{name} does not take {option}: {instead}"
    return ""


def changes(fields: object) -> str:
    """Return in words what a spec or a row changes of its models: `10 classes, 4 channels, {"depth": 2}`.

    Empty if they are built as their library defines them, so that published values apply to them.
    """
    classes, channels, keywords = (getattr(fields, name, None) for name in OPTIONS)
    parts = [plural(classes, "class", "es")] if classes is not None else []
    parts += [plural(channels, "channel")] if channels is not None else []
    return ", ".join([*parts, *([keywords] if keywords else [])])
