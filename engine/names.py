"""Patterns of model names: exact, qualified, wildcards, families.

`ViT-B-32`, `timm:resnet50`, `ViT-B-*`, `timm:convnext*`, `{ViT-B,RN}*`, `family:swin_transformer`, `timm:all`, `all`.
Light: it gets the known names as a mapping and never imports the libraries.
"""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from fnmatch import translate
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from engine import suite
from engine.model_name import OWN, PYTHON
from engine.roots import open_within
from engine.specs import EvaluateSpec, ModelName, Refused, Spec, TrainSpec, find_expression, split_patterns
from engine.specs.base import LONGEST_PATTERN
from engine.specs.fields.building import option_refusal
from engine.specs.fields.clip import DIGITS_MODEL, OPEN_CLIP
from engine.words import plural

LIBRARIES = ("open_clip", "timm", "torchvision")
IMAGES_ALONE = ("timm", "torchvision", PYTHON)
"""Libraries whose models have no text tower."""
FILTERS = ("filter", "exclude", "exclude_exact", "partition")
"""Fields of a spec that leave out some of the models that it names."""
MOST_PATTERNS = 3000
"""Most patterns after braces are expanded: a spec has at most 2,000, and `suite` stands for about a hundred."""
LARGEST_FILE = 1_000_000
WILDCARD = re.compile(r"[*?\[]")
FACTORY = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
"""The part of a name after `python:`: a dotted module, and a factory in it."""


class ModelNotFound(Refused):
    """Raised when no model has this name, or several have it."""


def expand(patterns: Iterable[str]) -> list[str]:
    """Return patterns with their braces expanded: `{a,b}-32` becomes `a-32` and `b-32`.

    Errors: Refused when a pattern is too long, or when the result has more than MOST_PATTERNS.
    """
    expanded = list(islice(chain.from_iterable(map(_expand, patterns)), MOST_PATTERNS + 1))
    if len(expanded) > MOST_PATTERNS:
        raise Refused(f"these are more than {MOST_PATTERNS:,} patterns: use a wildcard, or fewer choices in braces")
    return expanded


def _expand(pattern: str) -> Iterator[str]:
    if len(pattern) > LONGEST_PATTERN:
        raise Refused(f"a pattern has at most {LONGEST_PATTERN} characters, {pattern[:20]!r}... has {len(pattern):,}")
    if not (match := re.search(r"\{([^{}]*)\}", pattern)):
        yield pattern
        return
    for choice in match[1].split(","):
        yield from _expand(pattern[: match.start()] + choice + pattern[match.end() :])


def resolve(patterns: Iterable[str], families: Mapping[ModelName, str]) -> list[ModelName]:
    """Return the models that match the patterns, in the order of the patterns, without duplicates.

    families: the family of every known model.
    Errors: ModelNotFound, with the closest matches or the qualified names to choose from.
    """
    by_model: dict[str, list[ModelName]] = {}
    for name in families:
        by_model.setdefault(name.model, []).append(name)
    models: dict[ModelName, None] = {}
    for pattern in expand(patterns):
        models |= dict.fromkeys(_match(pattern, families, by_model))
    return list(models)


def own_modules(spec: Spec) -> list[ModelName]:
    """Return the modules of the user's own that a spec names, `python:package.module:factory`, before its filters.

    Errors: Refused when such a name has another form.
    """
    patterns = expand(suite.expand(getattr(spec, "models", ())))
    modules = [name for name in map(ModelName, patterns) if name.runs_code]
    for name in modules:
        if not FACTORY.fullmatch(name.model):
            raise Refused(f"{name!r} names no factory in a module: write {PYTHON}:package.module:factory")
    return modules


def refuse_code(spec: Spec) -> None:
    """Check that a spec names no module of the user's own. Errors: Refused.

    Building such a module runs its code. Requests that are queued, opened from an address or imported may come from
    somebody else, so only the commands that run in the foreground accept one.
    """
    if modules := own_modules(spec):
        raise Refused(
            f"{modules[0]} is refused here, because building it runs the Python code that it names: only "
            f"`python -m engine {spec.kind} --models {modules[0]}` in a terminal takes it"
        )


def libraries(spec: Spec) -> set[str]:
    """Return the installed libraries that may have the models of a spec: those that all its patterns name, or all.

    Importing a library to list its models takes a second. Errors: as in `expand`.
    """
    patterns = expand(suite.expand(getattr(spec, "models", ())))
    named = {pattern.partition(":")[0] if ":" in pattern else "" for pattern in patterns}
    return named & {*LIBRARIES} if named <= {*LIBRARIES, OWN, PYTHON} else {*LIBRARIES}


def select(spec: Spec, families: Mapping[ModelName, str], *, allow_code: bool = False) -> list[ModelName]:
    """Return the models that a spec requests, after its filters. The spec's own configurations count as known models.

    families: as in resolve. allow_code: accept modules of the user's own, in the foreground.
    Errors: ModelNotFound; Refused when no model passes the filters, when one has no text tower or does not take an
    option that is asked for, when a text length is given and no model takes texts, and as in refuse_code.
    """
    own_models = {ModelName.of(OWN, name): OWN for name in getattr(spec, "configs", {})}
    if allow_code:
        own_models |= dict.fromkeys(own_modules(spec), PYTHON)
    else:
        refuse_code(spec)
    if isinstance(spec, TrainSpec | EvaluateSpec) and f"{OPEN_CLIP}:all" in spec.models:
        raise ModelNotFound("'all' names several models, where one is expected")
    matching = resolve(suite.expand(getattr(spec, "models", ())), {**families, **own_models})
    selected = matching
    for field, keep in (("filter", True), ("exclude", False)):
        if expression := getattr(spec, field, ""):
            matches = find_expression(expression)
            selected = [name for name in selected if any(map(matches, {name.model, *suite.names(name)})) is keep]
    exact = set(split_patterns(getattr(spec, "exclude_exact", "")))
    selected = [name for name in selected if exact.isdisjoint((name, name.model, *suite.names(name)))]
    if partition := getattr(spec, "partition", ""):
        part, parts = (int(number) for number in partition.split("/"))
        selected = selected[part - 1 :: parts]
    if matching and not selected:
        limits = [name for name in FILTERS if getattr(spec, name, "")]
        raise Refused(f"{', '.join(limits)}: none of {plural(len(matching), 'model')} is left, so allow more")
    # before the filters, because a part of the models may have none with texts
    if getattr(spec, "context_length", None) and matching and all(name.library in IMAGES_ALONE for name in matching):
        raise Refused("context_length: none of these models has a text tower, so leave it out")
    for name in selected:
        if getattr(spec, "tower", "") == "text" and name.library in IMAGES_ALONE:
            raise Refused(f"{name} has no text tower: choose another tower, or leave the model out")
        if refusal := option_refusal(name, spec):
            raise Refused(refusal)
    return selected


def check_excluded(spec: Spec, families: Mapping[ModelName, str]) -> None:
    """Check that `exclude_exact` names known models, of any library. families: as in resolve. Errors: ModelNotFound."""
    own = [ModelName.of(OWN, name) for name in getattr(spec, "configs", {})]
    models = [*families, *own, *own_modules(spec)]
    known = {*models, *(name.model for name in models), *(entry.name for entry in suite.entries())}
    for name in split_patterns(getattr(spec, "exclude_exact", "")):
        if name not in known:
            raise ModelNotFound(f"exclude_exact: no model is called {name!r}; {_suggestion('', name, families)}")


def fits(pattern: str) -> Callable[[str], bool]:
    """Return a function that tells whether a name matches a pattern with wildcards, ignoring case.

    `translate` makes each `*` an atomic group, so that matching never backtracks into one. `fnmatchcase` would keep up
    to 32,768 compiled patterns in memory; `re` keeps 512.
    """
    whole = re.compile(translate(pattern.lower())).match
    return lambda name: whole(name.lower()) is not None


def _match(pattern: str, families: Mapping[ModelName, str], by_model: Mapping[str, list[ModelName]]) -> list[ModelName]:
    spellings = dict.fromkeys((pattern, pattern.replace("/", "-")))  # open_clip takes ViT-B/32 for ViT-B-32, too
    if exact := [ModelName(spelling) for spelling in spellings if spelling in families]:
        return exact[:1]
    if pattern == "all":
        return list(families)
    prefix, _, rest = pattern.rpartition(":")
    if prefix == "family":
        wanted = fits(rest)
        hits = [name for name, family in families.items() if wanted(family)]
    elif prefix and rest == "all":
        hits = [name for name in families if name.library == prefix]
    elif WILDCARD.search(rest):
        wanted = fits(rest)
        hits = [name for name in families if prefix in ("", name.library) and wanted(name.model)]
    else:
        hits = [name for spelling in spellings for name in by_model.get(spelling, ()) if not prefix]
        if len(hits) > 1:
            raise ModelNotFound(f"{pattern!r} is in several libraries: write {' or '.join(sorted(hits))}")
    if not hits:
        raise ModelNotFound(f"no model matches {pattern!r}; {_suggestion(prefix, rest, families)}")
    return hits


def _suggestion(prefix: str, rest: str, families: Mapping[ModelName, str]) -> str:
    if prefix not in ("", "family", *LIBRARIES):
        return f"libraries are {', '.join(LIBRARIES)}; a module of your own is {PYTHON}:package.module:factory"
    if not families:
        return "the folder VITALS_CATALOG_DIR has no catalogue: `python -m engine catalog-build` makes one"
    if prefix == "family":
        near = get_close_matches(rest, sorted(set(families.values())), n=3, cutoff=0.5)
        return f"closest families: {', '.join(near)}" if near else "the catalogue lists the families"
    short: dict[str, str] = {}
    for name in families:
        short.setdefault(name.model.lower(), name)
    near = get_close_matches(WILDCARD.sub("", rest).lower(), short, n=3, cutoff=0.5)
    return f"closest: {', '.join(short[name] for name in near)}" if near else "nothing is close to it"


def unknown_clip_model(spec: TrainSpec | EvaluateSpec, families: Mapping[ModelName, str]) -> str:
    """Return why the first unknown model of a spec cannot be trained or evaluated. families: as in `resolve`."""
    known = {*families, *(ModelName.of(OWN, name) for name in spec.configs)}
    unknown = next(name for name in spec.models if known.isdisjoint((name, name.replace("/", "-"))))
    models = [name.model for name in families if name.library == OPEN_CLIP]
    near = get_close_matches(unknown.rpartition(":")[2], models, n=3, cutoff=0.5)
    models_of = f"a model of open_clip (closest: {', '.join(near)})" if near else "a model of open_clip"
    own = ", ".join(ModelName.of(OWN, name) for name in spec.configs) or "FILE.json; in the form, an added file"
    allowed = [models_of, DIGITS_MODEL, f"a configuration of your own ({own})"]
    allowed += ["the number of a training run"] if isinstance(spec, EvaluateSpec) else []
    given = unknown.removeprefix(f"{OPEN_CLIP}:")
    return f"{given!r} is no CLIP model. Give {', '.join(allowed[:-1])} or {allowed[-1]}"


def read_text(path: Path, what: str) -> str:
    """Return the first LARGEST_FILE + 1 characters of a file. what: names it in errors. Errors: Refused if missing."""
    try:
        with TextIOWrapper(open_within(path, None), encoding="utf-8-sig", errors="replace") as file:
            return file.read(LARGEST_FILE + 1)
    except FileNotFoundError as error:
        raise Refused(f"no {what} at {path}") from error


def parse_names(text: str, source: str) -> list[str]:
    """Return names or patterns from a text: one per line, # comments; or a CSV table with a `model` column.

    An optional `library` column qualifies the names. source: names the text in errors. Errors: Refused when the text is
    too large or has no names.
    """
    if len(text) > LARGEST_FILE:
        raise Refused(f"{source} is larger than {LARGEST_FILE:,} characters: too large for a list of names")
    lines = text.splitlines()
    try:
        header = [cell.strip() for cell in next(csv.reader(lines[:1], skipinitialspace=True), [])]
        table = list(csv.DictReader(lines[1:], header, skipinitialspace=True)) if "model" in header else []
    except csv.Error as error:
        raise Refused(f"{source} is no table that can be read: {error}") from error
    if "model" in header:
        rows = [((row.get("library") or "").strip(), (row["model"] or "").strip()) for row in table]
        names = [ModelName.of(library, model) if library else model for library, model in rows if model]
    else:
        names = [name for line in lines for name in split_patterns(line.partition("#")[0])]
    if not names:
        raise Refused(f"{source} holds no model names: one a line, or a CSV with a column `model`")
    return list(dict.fromkeys(names))


def expand_files(patterns: Iterable[str]) -> tuple[list[str], dict[str, Any]]:
    """Read the files that patterns name: `@FILE` contains names, `FILE.json` is an open_clip configuration.

    Returns the patterns with each file replaced by its names (`config:NAME` for a configuration), and the
    configurations by name. Errors: Refused when a file is missing or has other content.
    """
    replaced: list[str] = []
    configs: dict[str, Any] = {}
    for pattern in patterns:
        if pattern.startswith("@"):
            path = Path(pattern[1:])
            replaced += parse_names(read_text(path, "file of names"), path.name)
        elif pattern.endswith(".json"):
            path = Path(pattern)
            config = parse_config(read_text(path, "model configuration"), pattern)
            if configs.setdefault(path.stem, config) != config:
                raise Refused(f"two configurations are named {path.stem!r}: rename {pattern}")
            replaced.append(ModelName.of(OWN, path.stem))
        else:
            replaced.append(pattern)
    return replaced, configs


def parse_config(text: str, source: str) -> Any:
    """Return the open_clip model configuration in a text. source: names the text in errors. Errors: Refused."""
    try:
        config = from_json(text)  # raises ValueError for deep nesting, too
    except ValueError as error:
        raise Refused(f"{source} is not JSON: {error}") from error
    needed = ("embed_dim", "vision_cfg", "text_cfg")
    if not isinstance(config, dict) or not all(key in config for key in needed):
        raise Refused(f"{source} is not an open_clip configuration: it needs {', '.join(needed)}")
    return config
