"""The language of model names: exact, qualified, wildcards, families.

`ViT-B-32`, `timm:resnet50`, `ViT-B-*`, `timm:convnext*`, `{ViT-B,RN}*`, `family:swin_transformer`, `timm:all`, `all`.
Light: knows names from a mapping it is given, never from the libraries themselves.
"""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from fnmatch import translate
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import Any

from engine import suite
from engine.roots import open_within
from engine.specs import ModelName, Refused, Spec, find_expression, split_patterns
from engine.specs.base import LONGEST_PATTERN
from engine.specs.model_name import OWN

LIBRARIES = ("open_clip", "timm", "torchvision")
MOST_EXPANSIONS = 1000
MOST_PATTERNS = 3000
"""Patterns after their braces are expanded: a spec holds 2,000, and `suite` stands for about a hundred."""
MOST_BRACES = 20
DEEPEST_CONFIG = 10
LARGEST_FILE = 1_000_000
WILDCARD = re.compile(r"[*?\[]")


class ModelNotFound(Refused):
    """No model has this name, or several have."""


def expand(patterns: Iterable[str]) -> list[str]:
    """Return patterns with their braces expanded: `{a,b}-32` becomes `a-32` and `b-32`.

    Errors: Refused when a pattern is too long, or when there would be more than MOST_PATTERNS in all.
    """
    found = list(islice(chain.from_iterable(map(_expand_one, patterns)), MOST_PATTERNS + 1))
    if len(found) > MOST_PATTERNS:
        raise Refused(f"these are more than {MOST_PATTERNS:,} patterns: use a wildcard instead of a long list")
    return found


def _expand_one(pattern: str) -> list[str]:
    if len(pattern) > LONGEST_PATTERN:
        raise Refused(f"a pattern has at most {LONGEST_PATTERN} characters, {pattern[:20]!r}... has {len(pattern):,}")
    if pattern.count("{") > MOST_BRACES:
        raise Refused(f"a pattern has at most {MOST_BRACES} pairs of braces")
    found = list(islice(_expand(pattern), MOST_EXPANSIONS + 1))  # braces inside braces multiply too
    if len(found) > MOST_EXPANSIONS:
        raise Refused(f"the braces of {pattern!r} mean more than {MOST_EXPANSIONS:,} patterns: write fewer choices")
    return found


def _expand(pattern: str) -> Iterator[str]:
    if not (match := re.search(r"\{([^{}]*)\}", pattern)):
        yield pattern
        return
    for choice in match[1].split(","):
        yield from _expand(pattern[: match.start()] + choice + pattern[match.end() :])


def resolve(patterns: Iterable[str], families: Mapping[ModelName, str]) -> list[ModelName]:
    """Return the models that patterns mean, in the order asked, each once.

    families: every known name, with the family it belongs to.
    Errors: ModelNotFound, naming the closest matches or the qualified names to choose from.
    """
    found: dict[ModelName, None] = {}
    for pattern in expand(patterns):
        found |= dict.fromkeys(_match(pattern, families))
    return list(found)


def select(spec: Spec, families: Mapping[ModelName, str]) -> list[ModelName]:
    """Return the models a spec asks for, after its filters; its own configurations are known as well.

    families: as for resolve.
    Errors: ModelNotFound; Refused when the filters leave nothing.
    """
    own = {ModelName.of(OWN, name): OWN for name in getattr(spec, "configs", {})}
    found = resolve(suite.expand(getattr(spec, "models", ())), {**families, **own})
    kept = found
    if expression := getattr(spec, "filter", ""):
        matches = find_expression(expression)
        kept = [name for name in kept if matches(name.model)]
    if expression := getattr(spec, "exclude", ""):
        matches = find_expression(expression)
        kept = [name for name in kept if not matches(name.model)]
    exact = set(split_patterns(getattr(spec, "exclude_exact", "")))
    kept = [name for name in kept if exact.isdisjoint((name, name.model))]
    if partition := getattr(spec, "partition", ""):
        part, parts = (int(number) for number in partition.split("/"))
        kept = kept[part - 1 :: parts]
    if found and not kept:
        raise Refused(f"filter, exclude and partition leave none of {len(found)} models")
    return kept


def fits(pattern: str) -> Callable[[str], bool]:
    """Return a test that tells whether a name fits a pattern with wildcards; case does not matter.

    `translate` makes each `*` an atomic group, so a test never backtracks into one. `fnmatchcase` would keep up to
    32,768 compiled patterns in memory; `re` keeps 512.
    """
    whole = re.compile(translate(pattern.lower())).match
    return lambda name: whole(name.lower()) is not None


def _match(pattern: str, families: Mapping[ModelName, str]) -> list[ModelName]:
    if (exact := ModelName(pattern)) in families:
        return [exact]
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
        hits = [name for name in families if not prefix and name.model == pattern]
        if len(hits) > 1:
            raise ModelNotFound(f"{pattern!r} is in several libraries: write {' or '.join(sorted(hits))}")
    if not hits:
        raise ModelNotFound(f"no model matches {pattern!r}; {_suggestion(prefix, rest, families)}")
    return hits


def _suggestion(prefix: str, rest: str, families: Mapping[ModelName, str]) -> str:
    if prefix == "family":
        near = get_close_matches(rest, sorted(set(families.values())), n=3, cutoff=0.5)
        return f"closest families: {', '.join(near)}" if near else "the catalogue lists the families"
    if prefix and prefix not in LIBRARIES:
        return f"libraries are {', '.join(LIBRARIES)}"
    short: dict[str, str] = {}
    for name in families:
        short.setdefault(name.model.lower(), name)
    near = get_close_matches(WILDCARD.sub("", rest).lower(), short, n=3, cutoff=0.5)
    return f"closest: {', '.join(short[name] for name in near)}" if near else "nothing is close to it"


def read_names(path: Path) -> list[str]:
    """Return names or patterns from a text file (one a line, # comments) or a CSV file with a `model` column.

    A `library` column, where there is one, qualifies the names. Errors: Refused when the file is absent or empty.
    """
    try:
        with TextIOWrapper(open_within(path, None), encoding="utf-8-sig", errors="replace") as file:
            return parse_names(file.read(LARGEST_FILE + 1), path.name)
    except FileNotFoundError as error:
        raise Refused(f"no file of names at {path}") from error


def parse_names(text: str, source: str) -> list[str]:
    """Return the names in a text, as `read_names` does; `source` names the text in errors."""
    if len(text) > LARGEST_FILE:
        raise Refused(f"{source} is larger than {LARGEST_FILE:,} characters: too large for a list of names")
    lines = text.splitlines()
    header = [cell.strip() for cell in lines[0].split(",")] if lines else []
    if "model" in header:
        table = csv.DictReader(lines, skipinitialspace=True)
        try:
            rows = [(row.get("library") or "", (row.get("model") or "").strip()) for row in table]
        except csv.Error as error:
            raise Refused(f"{source} is no table that can be read: {error}") from error
        names = [ModelName.of(library, model) if library else model for library, model in rows if model]
    else:
        names = [name for line in lines for name in split_patterns(line.partition("#")[0])]
    if not names:
        raise Refused(f"{source} holds no model names: one a line, or a CSV with a column `model`")
    return list(dict.fromkeys(names))


def _depth(value: Any) -> int:
    """Return how many lists and dictionaries lie inside each other."""
    depth, level = 0, [value]
    while level := [inner for outer in level for inner in _inside(outer)]:
        depth += 1
    return depth


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def expand_files(patterns: Iterable[str]) -> tuple[list[str], dict[str, Any]]:
    """Read the files that patterns name: `@FILE` holds names, `FILE.json` is an open_clip configuration.

    Returns the patterns with files replaced by what they hold (`config:NAME` for a configuration), and the
    configurations by name. Errors: Refused when a file is absent or is not what it should be.
    """
    found: list[str] = []
    configs: dict[str, Any] = {}
    for pattern in patterns:
        if pattern.startswith("@"):
            found += read_names(Path(pattern[1:]))
        elif pattern.endswith(".json"):
            configs[Path(pattern).stem] = read_config(Path(pattern))
            found.append(ModelName.of(OWN, Path(pattern).stem))
        else:
            found.append(pattern)
    return found, configs


def read_config(path: Path) -> Any:
    """Return an open_clip model configuration. Errors: Refused when the file is absent or lacks what every one has."""
    try:
        with open_within(path, None) as file:
            return parse_config(file.read().decode("utf-8-sig", errors="replace"), str(path))
    except FileNotFoundError as error:
        raise Refused(f"no model configuration at {path}") from error


def parse_config(text: str, source: str) -> Any:
    """Return the configuration in a text, as `read_config` does; `source` names the text in errors."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{source} is not JSON: {error}") from error
    if _depth(config) > DEEPEST_CONFIG:
        raise Refused(f"{source} is nested more than {DEEPEST_CONFIG} levels deep: no configuration is")
    needed = ("embed_dim", "vision_cfg", "text_cfg")
    if not isinstance(config, dict) or not all(key in config for key in needed):
        raise Refused(f"{source} is not an open_clip configuration: it needs {', '.join(needed)}")
    return config
