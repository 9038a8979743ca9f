"""Files that hold weights of CLIP models: published ones by open_clip's tags, and checkpoints by their paths."""

import logging
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.constants import HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME
from safetensors import SafetensorError, safe_open

from engine.models import clip_hub
from engine.models.built import out_of_memory
from engine.models.clip_hub import Progress, Unreachable
from engine.specs import Refused

log = logging.getLogger(__name__)
Config = dict[str, Any]


class WeightsRefused(Refused):
    """Weights that are not there, or not weights, or not of this model."""


@dataclass(frozen=True)
class Stored:
    """What a file says of its weights."""

    path: Path
    names: frozenset[str]
    """Of the tensors."""
    config: Config
    """`model_cfg` and `preprocess_cfg`, in checkpoints of ours; else empty."""

    @property
    def model_cfg(self) -> Config:
        """The configuration it was saved with; empty where nothing is said."""
        found: Config = self.config.get("model_cfg", {})
        return found

    @property
    def image_size(self) -> Any:
        """In pixels, as configurations have it; None where nothing is said."""
        return self.model_cfg.get("vision_cfg", {}).get("image_size")

    @property
    def context_length(self) -> int | None:
        """In tokens; None where nothing is said."""
        found: int | None = self.model_cfg.get("text_cfg", {}).get("context_length")
        return found


def find(model: str, weights: str, progress: Progress | None = None) -> tuple[Path, Config]:
    """The file of a tag, fetched unless it is in the cache, with what open_clip says of it; or of a path, with nothing.

    Errors: Unreachable; WeightsRefused of what is neither.
    """
    if published := open_clip.get_pretrained_cfg(model, weights):
        return _published(model, weights, published["hf_hub"], progress), published
    path = Path(weights).expanduser()
    if path.is_file():
        return path, {}
    tags = ", ".join(open_clip.list_pretrained_tags_by_model(model)) or "none"
    raise WeightsRefused(f"{weights!r} is neither a file nor published weights of {model}; its tags are: {tags}")


def peek(path: Path) -> Stored:
    """What a file holds, without reading the tensors themselves. Errors: WeightsRefused."""
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                return Stored(path, frozenset(file.keys()), {})
        found = torch.load(path, map_location="meta", weights_only=True)
    except pickle.UnpicklingError as error:
        raise WeightsRefused(
            f"{path} is not made of tensors, numbers and texts alone, and loading anything else can run any code"
        ) from error
    except (OSError, SafetensorError, RuntimeError, ValueError, KeyError, EOFError) as error:
        if out_of_memory(error):
            raise
        raise WeightsRefused(f"{path} holds no weights that can be read: {_first_line(error)}") from error
    tensors = found.get("state_dict", found) if isinstance(found, dict) else None
    if not isinstance(tensors, dict) or not any(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
        raise WeightsRefused(f"{path} holds no weights: neither tensors by their names, nor a `state_dict` of them")
    ours = found.get("vitals")
    config = ours.get("config", {}) if isinstance(ours, dict) else {}
    return Stored(path, frozenset(name.removeprefix("module.") for name in tensors), config)


def load(model: torch.nn.Module, name: str, stored: Stored) -> None:
    """Fill a model as open_clip does, which adapts position tables. Errors: WeightsRefused says what differs."""
    try:
        open_clip.load_checkpoint(model, str(stored.path), strict=True, weights_only=True)
    except (RuntimeError, AssertionError, AttributeError, KeyError, ValueError, TypeError) as error:
        if out_of_memory(error):
            raise
        raise WeightsRefused(f"{stored.path} does not fit {name}: {_differences(error)}") from error


def agreed_preprocessing(model: str) -> Config:
    """How images are prepared for all published weights of a model; empty where these differ, or there are none."""
    configs = [open_clip.get_pretrained_cfg(model, tag) for tag in open_clip.list_pretrained_tags_by_model(model)]
    keys = ("mean", "std", "interpolation", "resize_mode")
    found = [{key: config.get(key) for key in keys} for config in configs]
    return found[0] if found and all(one == found[0] for one in found) else {}


def _published(model: str, tag: str, place: str, progress: Progress | None) -> Path:
    """place: `org/name/`, or with a file's name at its end. Errors: Unreachable."""
    repo, _, file = place.rpartition("/")
    files = _alternatives(file or HF_WEIGHTS_NAME)
    if path := clip_hub.cached(repo, files):
        return path
    try:
        remote = clip_hub.locate(repo, files)
        log.info("fetching %s into %s", remote.label, clip_hub.cache())
        return clip_hub.fetch(remote, progress)
    except Unreachable as error:
        raise Unreachable(f"weights {tag!r} of {model} are not in {clip_hub.cache()}, and {error}") from error


def _alternatives(file: str) -> list[str]:
    """The same weights as safetensors come first: they cannot hold code."""
    stem, _, ending = file.rpartition(".")
    safe = [HF_SAFE_WEIGHTS_NAME] if file == HF_WEIGHTS_NAME else []
    return [*safe, *([f"{stem}.safetensors"] if ending in ("bin", "pth") and not safe else []), file]


def _differences(error: Exception) -> str:
    """torch's lines on missing, unexpected and misshapen weights, shortened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line if len(line) <= 200 else f"{line[:200]} …" for line in lines[1:5] or lines[:1]]
    return "; ".join(told) + (f"; and {len(lines) - 5} more" if len(lines) > 5 else "")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
