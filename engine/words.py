"""Format counts and lists for sentences."""

from collections.abc import Iterable, Sequence


def plural(count: int, noun: str, ending: str = "s") -> str:
    """Return a count with its noun: `1 run`, `1,200 runs`; with the ending `es`, `2 processes`."""
    return f"{count:,} {noun}{ending if count != 1 else ''}"


def sentence(text: str) -> str:
    """Return a text with a capital letter at its beginning and a full stop. A name such as timm:x stays as it is."""
    first = text.partition(" ")[0]
    return (text[0].upper() + text[1:] if first.isalpha() else text).rstrip(".") + "."


def shortened(names: Sequence[str], limit: int = 3) -> str:
    """Return the first `limit` names and the number of the others: `a, b and 3 more`."""
    rest = f" and {len(names) - limit:,} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest


def in_words(names: Iterable[str]) -> str:
    """Return names such as flags as text: `single process, unstable`."""
    return ", ".join(name.replace("_", " ") for name in names)


def numbered_runs(ids: Sequence[int | str]) -> str:
    """Return `run 7`, or `runs 7, 9`."""
    return ("run " if len(ids) == 1 else "runs ") + ", ".join(map(str, ids))


def count_captions(captions: int, distinct: int | None = None) -> str:
    """Return a text such as `40 captions, 3 distinct`. distinct: None if it is not known."""
    if distinct is None:
        return plural(captions, "caption")
    return f"{plural(captions, 'caption')}, {'all' if distinct == captions else f'{distinct:,}'} distinct"
