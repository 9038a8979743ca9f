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
    """Check the sizes of a tower against the limits that the form has too. Errors: ValueError."""
    if not isinstance(config, dict):
        return
    limits = {
        "layers": (_listed(config.get("layers", 0)), MAX_LAYERS),  # a ResNet lists one number per stage
        "image_size": (_listed(config.get("image_size", 0)), MAX_PIXELS_PER_SIDE),
        "context_length": ([config.get("context_length", 0)], MAX_CONTEXT),
        "width": ([config.get("width", 0)], MAX_WIDTH),
        "vocab_size": ([config.get("vocab_size", 0)], MAX_VOCABULARY),
    }
    for name, (values, most) in limits.items():
        whole = all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values)
        if not whole or sum(values) > (most * len(values) if name == "image_size" else most):
            raise ValueError(f"{where} has {name} {config[name]!r}, but whole numbers up to {most:,} can be built")


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _check_configs(configs: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the configurations if their length and sizes are within the limits. Errors: ValueError."""
    for name, config in configs.items():
        if (size := len(json.dumps(config))) > MAX_CONFIG_BYTES:
            raise ValueError(f"{name}: a configuration has at most {MAX_CONFIG_BYTES:,} bytes, this one {size:,}")
        for tower in ("vision_cfg", "text_cfg", "multimodal_cfg"):
            _check_tower(f"{name}: {tower}", config.get(tower))
    return configs


Configs = Annotated[
    dict[str, dict[str, Any]],
    AfterValidator(_check_configs),
    Field(description="Your own open_clip configurations, by name, with the content of their JSON files."),
]
