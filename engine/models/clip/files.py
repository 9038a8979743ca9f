"""Find and read files with weights of CLIP models: published ones by open_clip's tags, checkpoints by their paths."""

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
from safetensors import safe_open

from engine.models.built import first_line, out_of_memory
from engine.models.clip import hub
from engine.models.clip.hub import Remote
from engine.results import Progress
from engine.roots import Roots, expand_home, file_within, open_within
from engine.specs import Refused

Config = dict[str, Any]


@dataclass(frozen=True)
class Stored:
    """The description of weights in a file."""

    path: Path
    names: frozenset[str]
    """Names of the tensors."""
    config: Config
    """`model_cfg` and `preprocess_cfg` from our own checkpoints; empty for other files."""
    roots: Roots = None
    """Folders below which the file must lie when its tensors are read."""

    @property
    def model_cfg(self) -> Config:
        """Return the configuration saved with the weights. Empty if there is none."""
        return _section(self.config, "model_cfg")

    @property
    def image_size(self) -> Any:
        """Return the image size in pixels, as in the configuration. None if it is not saved."""
        return _section(self.model_cfg, "vision_cfg").get("image_size")

    @property
    def context_length(self) -> int | None:
        """Return the context length in tokens. None if it is not saved."""
        length: int | None = _section(self.model_cfg, "text_cfg").get("context_length")
        return length


def find(model: str, weights: str, roots: Roots = None) -> Path | Remote:
    """Return the file with the weights: of a path, or of a tag, whose file is in the cache or else at Hugging Face.

    roots: folders below which a path must lie. Errors: Refused.
    """
    if not (place := _hub_place(model, weights)):
        path = expand_home(weights)
        if file_within(path, roots):
            return path
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(model)) or "none"
        raise Refused(f"{weights!r} is neither a file nor published weights of {model}; its tags are: {tags}")
    repo, _, file = place.rpartition("/")
    return hub.find(repo, _alternatives(file or HF_WEIGHTS_NAME), f"weights {weights!r} of {model} are")


def published(model: str, weights: str) -> Config:
    """Return open_clip's description of a tag. Empty for anything else."""
    description: Config = open_clip.get_pretrained_cfg(model, weights)
    return description


def fetch(model: str, weights: str, roots: Roots = None) -> Generator[Progress]:
    """Download the file from `find` into the cache if necessary, and yield progress. Errors: as find."""
    location = find(model, weights, roots)
    if isinstance(location, Remote):
        yield from hub.fetch(location)


def stored(model: str, weights: str, roots: Roots = None) -> Stored:
    """Return the description of the weights from `find`, downloaded quietly if necessary. Errors: as find and peek."""
    for _ in fetch(model, weights, roots):
        pass
    path = find(model, weights, roots)
    assert isinstance(path, Path), "fetch has downloaded it"
    return peek(path, None if _hub_place(model, weights) else roots)  # roots do not apply to the cache


def peek(path: Path, roots: Roots = None) -> Stored:
    """Return the description of a file, without reading its tensors. Errors: Refused."""
    try:
        with open_within(path, roots) as file:
            if path.suffix == ".safetensors":
                with _path_of(file, path.suffix) as link, safe_open(link, "pt") as tensors_of:
                    content = {"state_dict": dict.fromkeys(tensors_of.keys(), torch.empty(0, device="meta"))}
            else:
                content = torch.load(file, map_location="meta", weights_only=True)
    except pickle.UnpicklingError as error:
        raise Refused(
            f"{path} is not made of tensors, numbers and texts alone, and loading anything else can run any code"
        ) from error
    except Exception as error:  # torch.load raises many types of errors for damaged files
        if out_of_memory(error):
            raise
        raise Refused(f"{path} holds no weights that can be read: {first_line(error)}") from error
    tensors = content.get("state_dict", content) if isinstance(content, dict) else None
    has_names = isinstance(tensors, dict) and all(isinstance(name, str) for name in tensors)
    if not has_names or not any(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
        raise Refused(f"{path} holds no weights: neither tensors by their names, nor a `state_dict` of them")
    config = _section(content.get("vitals"), "config")
    return Stored(path, frozenset(name.removeprefix("module.") for name in tensors), config, roots)


def _section(config: Any, name: str) -> Config:
    """Return a part of a configuration. Empty if it is missing or not a dictionary."""
    section = config.get(name) if isinstance(config, dict) else None
    return section if isinstance(section, dict) else {}


def load(model: torch.nn.Module, name: str, stored: Stored) -> None:
    """Load weights into a model with open_clip, which adapts position tables. On meta, only names and shapes are
    compared.

    Errors: Refused, which names the differences.
    """
    safe = stored.path.suffix == ".safetensors"  # safetensors cannot be read onto meta
    device = "cpu" if safe else next(model.parameters()).device.type
    try:
        with (
            open_within(stored.path, stored.roots) as file,
            _path_of(file, stored.path.suffix) as path,
            warnings.catch_warnings(),
        ):
            warnings.filterwarnings("ignore", "for .*: copying from a non-meta parameter")  # only shapes are compared
            open_clip.load_checkpoint(model, str(path), strict=True, weights_only=True, device=device)
    except FileNotFoundError as error:
        raise Refused(f"{stored.path} cannot be read: {error.strerror}") from error
    except (RuntimeError, AssertionError, AttributeError, KeyError, ValueError, TypeError) as error:
        if out_of_memory(error):
            raise
        raise Refused(f"{stored.path} does not fit {name}: {differences(error)}") from error


def agreed_preprocessing(model: str) -> Config:
    """Return the preprocessing that all published weights of a model share; empty if they differ or there are none."""
    configs = [open_clip.get_pretrained_cfg(model, tag) for tag in open_clip.list_pretrained_tags_by_model(model)]
    keys = ("mean", "std", "interpolation", "resize_mode")
    preprocessing = [{key: config.get(key) for key in keys} for config in configs]
    return preprocessing[0] if preprocessing and all(one == preprocessing[0] for one in preprocessing) else {}


def _hub_place(model: str, weights: str) -> str:
    """Return the location of a tag's weights at Hugging Face. Empty for anything else, such as a path."""
    place: str = published(model, weights).get("hf_hub", "")
    return place


@contextmanager
def _path_of(file: BufferedReader, suffix: str) -> Iterator[Path]:
    """Yield a path to an open file, for libraries that only accept paths.

    It leads to the opened file even if the file's own path now leads elsewhere.
    """
    with TemporaryDirectory() as folder:
        link = Path(folder) / f"weights{suffix}"
        link.symlink_to(f"/dev/fd/{file.fileno()}")
        yield link


def _alternatives(file: str) -> list[str]:
    """Return the file names of the same weights, safetensors first, because they cannot hold code."""
    stem, _, ending = file.rpartition(".")
    safe = [HF_SAFE_WEIGHTS_NAME] if file == HF_WEIGHTS_NAME else []
    return [*safe, *([f"{stem}.safetensors"] if ending in ("bin", "pth") and not safe else []), file]


def differences(error: Exception) -> str:
    """Return torch's lines on missing, unexpected and misshapen weights, shortened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    shown = [line if len(line) <= 200 else f"{line[:200]} …" for line in lines[1:5] or lines[:1]]
    return "; ".join(shown) + (f"; and {len(lines) - 5} more" if len(lines) > 5 else "")
