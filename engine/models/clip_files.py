"""Files that hold weights of CLIP models: published ones by open_clip's tags, and checkpoints by their paths."""

import pickle
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import open_clip
import torch
from open_clip.constants import HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME
from safetensors import SafetensorError, safe_open

from engine.models import clip_hub
from engine.models.built import out_of_memory
from engine.models.clip_hub import Remote, Unreachable
from engine.results import Progress
from engine.roots import Roots, expand_home, file_within, open_within
from engine.specs import Refused

Config = dict[str, Any]


class WeightsRefused(Refused):
    """Weights that are not there, or not weights, or not of this model."""


@dataclass(frozen=True)
class Stored:
    """The description of weights in a file."""

    path: Path
    names: frozenset[str]
    """Of the tensors."""
    config: Config
    """`model_cfg` and `preprocess_cfg`, in checkpoints of ours; else empty."""
    roots: Roots = None
    """Below which the file must lie when its tensors are read."""

    @property
    def model_cfg(self) -> Config:
        """The configuration it was saved with; empty where nothing is said."""
        return _section(self.config, "model_cfg")

    @property
    def image_size(self) -> Any:
        """In pixels, as configurations have it; None where nothing is said."""
        return _section(self.model_cfg, "vision_cfg").get("image_size")

    @property
    def context_length(self) -> int | None:
        """In tokens; None where nothing is said."""
        found: int | None = _section(self.model_cfg, "text_cfg").get("context_length")
        return found


def find(model: str, weights: str, roots: Roots = None) -> Path | Remote:
    """Return the file of a path; of a tag, the file in the cache or else at the hub.

    roots: below which a path must lead. Errors: Unreachable; WeightsRefused of what is neither.
    """
    if not (place := _hub_place(model, weights)):
        path = expand_home(weights)
        if file_within(path, roots):
            return path
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(model)) or "none"
        raise WeightsRefused(f"{weights!r} is neither a file nor published weights of {model}; its tags are: {tags}")
    repo, _, file = place.rpartition("/")
    files = _alternatives(file or HF_WEIGHTS_NAME)
    if cached := clip_hub.cached(repo, files):
        return cached
    try:
        return clip_hub.locate(repo, files)
    except Unreachable as error:
        raise _not_here(model, weights, error) from error


def published(model: str, weights: str) -> Config:
    """Return what open_clip says of a tag; empty of anything else."""
    found: Config = open_clip.get_pretrained_cfg(model, weights)
    return found


def fetch(model: str, weights: str, roots: Roots = None) -> Generator[Progress, None, Path]:
    """Return what `find` finds, brought into the cache where it is not. Errors: as those of find."""
    found = find(model, weights, roots)
    if isinstance(found, Path):
        return found
    try:
        return (yield from clip_hub.fetch(found))
    except Unreachable as error:
        raise _not_here(model, weights, error) from error


def stored(model: str, weights: str, roots: Roots = None) -> Stored:
    """Return what the file of `find` holds, fetched in silence where it is not here. Errors: as of find and peek."""
    fetching = fetch(model, weights, roots)
    while True:
        try:
            next(fetching)
        except StopIteration as fetched:
            # the cache of published weights may lie anywhere
            return peek(fetched.value, None if _hub_place(model, weights) else roots)


def peek(path: Path, roots: Roots = None) -> Stored:
    """Return what a file holds, without reading the tensors themselves. Errors: WeightsRefused."""
    try:
        with open_within(path, roots) as file:
            if path.suffix == ".safetensors":
                with _path_of(file, path.suffix) as link, safe_open(link, "pt") as tensors_of:
                    found = {"state_dict": dict.fromkeys(tensors_of.keys(), torch.empty(0, device="meta"))}
            else:
                found = torch.load(file, map_location="meta", weights_only=True)
    except pickle.UnpicklingError as error:
        raise WeightsRefused(
            f"{path} is not made of tensors, numbers and texts alone, and loading anything else can run any code"
        ) from error
    except (OSError, SafetensorError, RuntimeError, ValueError, KeyError, EOFError) as error:
        if out_of_memory(error):
            raise
        raise WeightsRefused(f"{path} holds no weights that can be read: {_first_line(error)}") from error
    tensors = found.get("state_dict", found) if isinstance(found, dict) else None
    named = isinstance(tensors, dict) and all(isinstance(name, str) for name in tensors)
    if not named or not any(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
        raise WeightsRefused(f"{path} holds no weights: neither tensors by their names, nor a `state_dict` of them")
    config = _section(found.get("vitals"), "config")
    return Stored(path, frozenset(name.removeprefix("module.") for name in tensors), config, roots)


def _section(config: Any, name: str) -> Config:
    """Return a part of a configuration; empty where there is none, or anything else in its place."""
    found = config.get(name) if isinstance(config, dict) else None
    return found if isinstance(found, dict) else {}


def load(model: torch.nn.Module, name: str, stored: Stored) -> None:
    """Fill a model as open_clip does, which adapts position tables; one on meta is only held against names and shapes.

    Errors: WeightsRefused says what differs.
    """
    safe = stored.path.suffix == ".safetensors"  # which cannot be read onto meta
    device = "cpu" if safe else next(model.parameters()).device.type
    try:
        with (
            open_within(stored.path, stored.roots) as file,
            _path_of(file, stored.path.suffix) as path,
            warnings.catch_warnings(),
        ):
            warnings.filterwarnings("ignore", "for .*: copying from a non-meta parameter")  # shapes are all there is
            open_clip.load_checkpoint(model, str(path), strict=True, weights_only=True, device=device)
    except FileNotFoundError as error:
        raise WeightsRefused(f"{stored.path} cannot be read: {error.strerror}") from error
    except (RuntimeError, AssertionError, AttributeError, KeyError, ValueError, TypeError) as error:
        if out_of_memory(error):
            raise
        raise WeightsRefused(f"{stored.path} does not fit {name}: {_differences(error)}") from error


def agreed_preprocessing(model: str) -> Config:
    """Return how images are prepared for all published weights of a model; empty where these differ, or there are
    none."""
    configs = [open_clip.get_pretrained_cfg(model, tag) for tag in open_clip.list_pretrained_tags_by_model(model)]
    keys = ("mean", "std", "interpolation", "resize_mode")
    found = [{key: config.get(key) for key in keys} for config in configs]
    return found[0] if found and all(one == found[0] for one in found) else {}


def _hub_place(model: str, weights: str) -> str:
    """Return where the weights of a tag lie at Hugging Face; empty of anything else, such as a path."""
    place: str = published(model, weights).get("hf_hub", "")
    return place


@contextmanager
def _path_of(file: BufferedReader, suffix: str) -> Iterator[Path]:
    """Yield a path to an open file, for libraries that take nothing else, whatever its own path leads to by now."""
    with TemporaryDirectory() as folder:
        link = Path(folder) / f"weights{suffix}"
        link.symlink_to(f"/dev/fd/{file.fileno()}")
        yield link


def _not_here(model: str, tag: str, why: Unreachable) -> Unreachable:
    return Unreachable(f"weights {tag!r} of {model} are not in {clip_hub.cache()}, and {why}")


def _alternatives(file: str) -> list[str]:
    """Return the file names of the same weights, safetensors first, because they cannot hold code."""
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
