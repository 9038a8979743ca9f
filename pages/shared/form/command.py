"""Write the command line that does the same as a form."""

import shlex

from engine.specs import Spec, format_image_size
from pages.shared.form.spec_form import LISTS


def command(spec: Spec) -> str:
    """Return the command of a spec, `python -m engine profile --models ...`, with all flags that are not at default.

    An uploaded configuration is written as its file name. Class names and templates are written one per line.
    """
    words = ["python", "-m", "engine", spec.kind]
    for name, info in type(spec).model_fields.items():
        value = getattr(spec, name)
        if name == "configs" or value == info.get_default(call_default_factory=True):
            continue
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag.removeprefix('--')}")
        elif name == "models":
            words += [flag, ",".join(_model(model) for model in value)]
        elif name == "model":
            words += [flag, _model(value)]
        elif name == "image_size" and isinstance(value, tuple):
            words += [flag, format_image_size(value)]
        elif isinstance(value, tuple):
            words += [flag, ("\n" if name in LISTS else ",").join(map(str, value))]
        elif isinstance(value, str) and value.startswith("-"):
            words.append(f"{flag}={value}")  # with "=", because a value that starts with "-" would be read as a flag
        else:
            words += [flag, str(value)]
    return shlex.join(words)


def _model(name: str) -> str:
    return f"{name.removeprefix('config:')}.json" if name.startswith("config:") else name
