"""The language of model names: exact, qualified, wildcards, families.

`ViT-B-32`, `timm:resnet50`, `ViT-B-*`, `timm:convnext*`, `{ViT-B,RN}*`, `family:swin_transformer`, `timm:all`, `all`.
Light: knows names from a mapping it is given, never from the libraries themselves.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from io import TextIOWrapper
from math import prod
from pathlib import Path
from typing import Any

from engine import suite
from engine.roots import open_within
from engine.specs import Refused, Spec, split_patterns

LIBRARIES = ("open_clip", "timm", "torchvision")
MOST_EXPANSIONS = 1000
MOST_BRACES = 20
DEEPEST_CONFIG = 10
LARGEST_FILE = 1_000_000
SEARCH_S = 0.1
WILDCARD = re.compile(r"[*?\[]")


class ModelNotFound(Refused):
    """No model has this name, or several have."""


def expand_braces(pattern: str) -> list[str]:
    """`{a,b}-32` is `a-32` and `b-32`. Errors: Refused when there would be more than MOST_EXPANSIONS."""
    if pattern.count("{") > MOST_BRACES:
        raise Refused(f"a pattern has at most {MOST_BRACES} pairs of braces")
    choices = prod(1 + group.count(",") for group in re.findall(r"\{([^{}]*)\}", pattern))
    if choices > MOST_EXPANSIONS:
        raise Refused(f"the braces of {pattern!r} mean {choices:,} patterns, at most {MOST_EXPANSIONS:,} are taken")
    return list(_expand(pattern))


def _expand(pattern: str) -> Iterator[str]:
    if not (match := re.search(r"\{([^{}]*)\}", pattern)):
        yield pattern
        return
    for choice in match[1].split(","):
        yield from _expand(pattern[: match.start()] + choice + pattern[match.end() :])


def resolve(patterns: Iterable[str], families: Mapping[str, str]) -> list[str]:
    """The models that patterns mean, qualified (`library:model`), in the order asked, each once.

    families: every known qualified name, with the family it belongs to.
    Errors: ModelNotFound, naming the closest matches or the qualified names to choose from.
    """
    found: dict[str, None] = {}
    for written in patterns:
        for pattern in expand_braces(written):
            found |= dict.fromkeys(_match(pattern, families))
    return list(found)


def select(spec: Spec, families: Mapping[str, str]) -> list[str]:
    """The models a spec asks for, after its filters, where its kind has some. families: as for resolve.

    Errors: ModelNotFound; Refused when the filters leave nothing.
    """
    found = resolve(suite.expand(getattr(spec, "models", ())), families)
    kept = found
    if expression := getattr(spec, "filter", ""):
        kept = [name for name in kept if _search(expression, name)]
    if expression := getattr(spec, "exclude", ""):
        kept = [name for name in kept if not _search(expression, name)]
    exact = set(split_patterns(getattr(spec, "exclude_exact", "")))
    kept = [name for name in kept if exact.isdisjoint((name, name.partition(":")[2]))]
    if partition := getattr(spec, "partition", ""):
        part, parts = (int(number) for number in partition.split("/"))
        kept = kept[part - 1 :: parts]
    if found and not kept:
        raise Refused(f"filter, exclude and partition leave none of {len(found)} models")
    return kept


def _search(expression: str, name: str) -> bool:
    """Errors: Refused of an expression that takes for ever, which Python's own engine could not be stopped at."""
    import regex  # a tenth of the commands need it

    try:
        return bool(regex.search(expression, name, timeout=SEARCH_S))
    except TimeoutError as error:
        raise Refused(f"the regular expression {expression!r} takes too long on {name!r}: simplify it") from error
    except regex.error as error:
        raise Refused(f"{expression!r} is no regular expression: {error}") from error


def _match(pattern: str, families: Mapping[str, str]) -> list[str]:
    if pattern in families:
        return [pattern]
    if pattern == "all":
        return list(families)
    prefix, _, rest = pattern.rpartition(":")
    if prefix == "family":
        hits = [name for name, family in families.items() if fnmatchcase(family.lower(), rest.lower())]
    elif prefix and rest == "all":
        hits = [name for name in families if name.startswith(f"{prefix}:")]
    elif WILDCARD.search(rest):
        wanted = rest.lower()
        hits = [
            name
            for name in families
            if fnmatchcase(name.partition(":")[2].lower(), wanted) and name.startswith(f"{prefix}:" if prefix else "")
        ]
    else:
        hits = [name for name in families if not prefix and name.partition(":")[2] == pattern]
        if len(hits) > 1:
            raise ModelNotFound(f"{pattern!r} is in several libraries: write {' or '.join(sorted(hits))}")
    if not hits:
        raise ModelNotFound(f"no model matches {pattern!r}; {_suggestion(prefix, rest, families)}")
    return hits


def _suggestion(prefix: str, rest: str, families: Mapping[str, str]) -> str:
    if prefix == "family":
        near = get_close_matches(rest, sorted(set(families.values())), n=3, cutoff=0.5)
        return f"closest families: {', '.join(near)}" if near else "the catalogue lists the families"
    if prefix and prefix not in LIBRARIES:
        return f"libraries are {', '.join(LIBRARIES)}"
    short: dict[str, str] = {}
    for name in families:
        short.setdefault(name.partition(":")[2].lower(), name)
    near = get_close_matches(WILDCARD.sub("", rest).lower(), short, n=3, cutoff=0.5)
    return f"closest: {', '.join(short[name] for name in near)}" if near else "nothing is close to it"


def read_names(path: Path) -> list[str]:
    """Names or patterns from a text file (one a line, # comments) or a CSV file with a `model` column.

    A `library` column, where there is one, qualifies the names. Errors: Refused when the file is absent or empty.
    """
    try:
        with TextIOWrapper(open_within(path, None), encoding="utf-8-sig", errors="replace") as file:
            return parse_names(file.read(LARGEST_FILE + 1), path.name)
    except FileNotFoundError as error:
        raise Refused(f"no file of names at {path}") from error


def parse_names(text: str, source: str) -> list[str]:
    """As `read_names`, from text already read; `source` is what an error calls it."""
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
        names = [f"{library}:{model}" if library else model for library, model in rows if model]
    else:
        names = [name for line in lines for name in split_patterns(line.partition("#")[0])]
    if not names:
        raise Refused(f"{source} holds no model names: one a line, or a CSV with a column `model`")
    return list(dict.fromkeys(names))


def _depth(value: Any) -> int:
    """How many lists and dictionaries lie inside each other."""
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
            found.append(f"config:{Path(pattern).stem}")
        else:
            found.append(pattern)
    return found, configs


def read_config(path: Path) -> Any:
    """An open_clip model configuration. Errors: Refused when the file is absent or lacks what every one has."""
    try:
        with open_within(path, None) as file:
            return parse_config(file.read().decode("utf-8-sig", errors="replace"), str(path))
    except FileNotFoundError as error:
        raise Refused(f"no model configuration at {path}") from error


def parse_config(text: str, source: str) -> Any:
    """As `read_config`, from text already read; `source` is what an error calls it."""
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
