"""open_clip configurations of the user's own, which are part of a request."""

import json
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from engine.specs.base import MAX_CONTEXT, MAX_PIXELS_PER_SIDE

# Limits of a user's own configuration: several times the largest published model.
MAX_CONFIG_BYTES = 65_536
MAX_LAYERS = 1024
MAX_WIDTH = 65_536
MAX_VOCABULARY = 10_000_000


def _check_tower(where: str, config: Any) -> None:
    """Check the parts of a tower, and its sizes against the limits that the form has too. Errors: ValueError."""
    if not isinstance(config, dict):
        raise ValueError(f"{where} is {json.dumps(config)}, but must be an object")
    if not isinstance(options := config.get("tokenizer_kwargs") or {}, dict):
        raise ValueError(f"{where} has tokenizer_kwargs {json.dumps(options)}, but they must be an object")
    limits = {
        "layers": (_listed(config.get("layers", 0)), MAX_LAYERS),  # a ResNet lists one number per stage
        "image_size": (_listed(config.get("image_size", 0)), MAX_PIXELS_PER_SIDE),
        "context_length": ([config.get("context_length", 0)], MAX_CONTEXT),
        "width": ([config.get("width", 0)], MAX_WIDTH),
        "vocab_size": ([config.get("vocab_size", 0)], MAX_VOCABULARY),
    }
    for name, (values, most) in limits.items():
        whole = all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values)
        sides = name == "image_size"
        if not whole or not values or (sides and len(values) > 2) or sum(values) > most * (len(values) if sides else 1):
            known = f"whole numbers up to {most:,} can be built" + ", one or two" * sides
            raise ValueError(f"{where} has {name} {config[name]!r}, but {known}")


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _check_configs(configs: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the configurations if their length and sizes are within the limits. Errors: ValueError."""
    for name, config in configs.items():
        if (size := len(json.dumps(config))) > MAX_CONFIG_BYTES:
            raise ValueError(f"{name}: a configuration has at most {MAX_CONFIG_BYTES:,} bytes, this one {size:,}")
        for tower in ("vision_cfg", "text_cfg", "multimodal_cfg"):
            if tower in config:
                _check_tower(f"{name}: {tower}", config[tower])
    return configs


Configs = Annotated[
    dict[str, dict[str, Any]],
    AfterValidator(_check_configs),
    Field(description="Your own open_clip configurations, by name, with the content of their JSON files."),
]
