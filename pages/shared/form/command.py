"""Write the command line that does the same as a form."""

import shlex
from collections.abc import Collection

from engine.specs import Spec
from engine.specs.fields.clip import LINE_FIELDS


def command(spec: Spec, sweep: Collection[str] = ()) -> str:
    """Return the command of a spec, `python -m engine profile --models ...`.

    It has a flag for each field that differs from its default and that no sweep sets. An uploaded configuration is
    written as its file name. A field in LINE_FIELDS has one item per line. sweep: labels of the runs of a sweep,
    as `engine.specs.sweep.specs` makes them.
    """
    fields, swept = spec.model_dump(), _values(sweep)
    words = ["python", "-m", "engine", *(["submit"] if sweep else []), spec.kind]
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        if name == "configs" or name in swept or value == spec.default(name):
            continue
        flag = "--pretrained" if name == "checkpoint" else f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag.removeprefix('--')}")
            continue
        items = fields[name] if isinstance(fields[name], tuple) else (fields[name],)
        text = ("\n" if name in LINE_FIELDS else ",").join(map(_model if name in ("model", "models") else str, items))
        # with "=", because a value that starts with "-" would be read as a flag
        words += [f"{flag}={text}"] if text.startswith("-") else [flag, text]
    if swept:
        words += ["--sweep", " ".join(f"{name}={','.join(values)}" for name, values in swept.items())]
    return shlex.join(words)


def _values(labels: Collection[str]) -> dict[str, dict[str, None]]:
    """Return the values of each field in the labels of a sweep's runs, such as `lr=0.1 seed=0`, in their order."""
    values: dict[str, dict[str, None]] = {}
    for word in " ".join(labels).split():
        name, _, value = word.partition("=")
        values.setdefault(name, {})[value] = None
    return values


def _model(name: str) -> str:
    return f"{name.removeprefix('config:')}.json" if name.startswith("config:") else name
