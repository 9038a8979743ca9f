"""Class names and prompts for zero-shot classification: from the request, the data, or open_clip's ImageNet lists."""

import re
import runpy
from collections.abc import Sequence
from functools import cache
from typing import Any

from engine.datasets.base import DataProblem, file_of_package
from engine.specs.fields.clip import IMAGENET, TEMPLATE_SETS
from engine.words import plural, shortened

ID = re.compile(r"n?\d+|[0-9a-f]{8,}")
"""Pattern of class ids such as `n01440764` or `17`, which mean nothing to a text tower."""


def class_names(given: tuple[str, ...], own: tuple[str, ...]) -> tuple[str, ...]:
    """Return the class names of data for a request.

    given: names in the request, one per class and in the order of `own`, or the word `imagenet` for open_clip's names,
    which are found by synset, number from 0 to 999 or name. own: class names of the data, returned if `given` is empty.
    Errors: DataProblem when the numbers of names differ, or a class is given the name of another one.
    """
    if given == (IMAGENET,):
        return _imagenet(own)
    if given and own and len(given) != len(own):
        raise DataProblem(
            f"the data have {plural(len(own), 'class', 'es')}, but {plural(len(given), 'name')} "
            f"{'was' if len(given) == 1 else 'were'} given: give one name per class, one per line or in a file"
        )
    known = {class_.casefold() for class_ in own}
    for name, class_ in zip(given, own, strict=False):
        if name.casefold() != class_.casefold() and name.casefold() in known:
            order = f"give the names in the order of the data's classes: {shortened(own, 8)}"
            raise DataProblem(f"{name!r} was given for the class {class_!r}; {order}")
    return given or own


def prompts(given: tuple[str, ...], own: tuple[str, ...], classes: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return a request's templates, with the names of open_clip's lists replaced by their templates.

    own: templates of the data, the default. With the class names `imagenet`, the default is OpenAI's 80 templates.
    """
    if not given and classes == (IMAGENET,):
        given = TEMPLATE_SETS[:1]
    lists = dict(zip(TEMPLATE_SETS, ("OPENAI_IMAGENET_TEMPLATES", "SIMPLE_IMAGENET_TEMPLATES"), strict=True))
    templates: list[str] = []
    for line in given:
        templates += [fill("{}") for fill in _metadata()[lists[line]]] if line in lists else [line]
    return tuple(templates) or own


def note_on_ids(classes: Sequence[str]) -> str:
    """Return a warning if most class names are ids, which no text tower understands; empty if not."""
    ids = [name for name in classes if ID.fullmatch(name)]
    if 2 * len(ids) <= len(classes):
        return ""
    return (
        f"class names look like ids, so a prompt is 'a photo of a {ids[0]}': give class names, "
        f"or the word {IMAGENET} for ImageNet's class names"
    )


def names_of_synsets(synsets: Sequence[str]) -> tuple[str, ...]:
    """Return ImageNet's names of synsets such as n01440764; empty if one of them is not a synset of ImageNet."""
    known = _labels_of_synsets() if all(re.fullmatch(r"n\d{8}", synset) for synset in synsets) else {}
    return tuple(imagenet_names()[known[s]] for s in synsets) if all(s in known for s in synsets) else ()


def imagenet_names() -> tuple[str, ...]:
    """Return open_clip's 1,000 names of ImageNet's classes, in the order of the labels."""
    return tuple(_metadata()["IMAGENET_CLASSNAMES"])


def _imagenet(own: tuple[str, ...]) -> tuple[str, ...]:
    names = imagenet_names()
    if not own:
        return names
    places = {str(place): place for place in range(len(names))} | _labels_of_synsets()
    places |= {name: place for place, name in enumerate(names)}
    if unknown := [name for name in own if name not in places]:
        raise DataProblem(
            f"ImageNet lacks {len(unknown)} of the data's {len(own)} classes: {shortened(tuple(unknown))}. "
            "Expected synsets such as n01440764, numbers from 0 to 999 or ImageNet's class names"
        )
    return tuple(names[places[name]] for name in own)


@cache
def _labels_of_synsets() -> dict[str, int]:
    """Return the label of each synset. timm's file has one per line, in the order of the labels."""
    lines = file_of_package("timm", "data/_info/imagenet_synsets.txt").read_text().split()
    return {synset: place for place, synset in enumerate(lines)}


@cache
def _metadata() -> dict[str, Any]:
    return runpy.run_path(str(file_of_package("open_clip", "zero_shot_metadata.py")))
