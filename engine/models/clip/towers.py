"""Weights of single towers from Hugging Face: timm's for the image tower, and those of a language model for the text
tower, as open_clip's `pretrained_image` and `pretrained_text` load them."""

import pickle
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import timm
import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file

from engine.models.clip import hub
from engine.models.clip.hub import Remote
from engine.models.library import quiet
from engine.results import Progress
from engine.specs import Refused
from engine.specs.train import TrainSpec
from engine.words import plural, shortened

FILES = ("model.safetensors", "pytorch_model.bin")
"""Files with weights, the preferred one first."""
SHOWN = 4
"""Names of tensors that a message lists at most."""
Config = dict[str, Any]
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Tower:
    """A tower to initialise with pretrained weights."""

    part: Literal["image", "text"]
    source: str
    """Name of timm's model, or of the language model."""
    repo: str
    """Repository of its weights at Hugging Face."""

    @property
    def what(self) -> str:
        """Return a description, such as `the image tower's weights timm/convnext_base.fb_in22k_ft_in1k`."""
        return f"the {self.part} tower's weights {self.repo}"


def requested_towers(spec: TrainSpec, name: str, cfg: Config) -> list[Tower]:
    """Return the towers that start from pretrained weights. Errors: Refused if there are no such weights."""
    towers = []
    if spec.pretrained_image:
        source = cfg["vision_cfg"].get("timm_model_name")
        found = timm.get_pretrained_cfg(source, allow_unregistered=True) if source else None
        if found is None or not found.hf_hub_id:
            raise Refused(
                f"the image tower of {name} is not timm's, or timm has no weights for it: leave pretrained_image out, "
                "or take a model such as convnext_base"
            )
        towers.append(Tower("image", source, found.hf_hub_id))
    if spec.pretrained_text:
        source = cfg["text_cfg"].get("hf_model_name")
        if not source:
            raise Refused(
                f"the text tower of {name} is not a model of Hugging Face, so there are no weights for it alone: leave "
                "pretrained_text out, or take a model such as roberta-ViT-B-32"
            )
        towers.append(Tower("text", source, source))
    return towers


def find(tower: Tower) -> Path | Remote:
    """Return the file of a tower's weights in the cache, else at Hugging Face. Errors: Unreachable."""
    advice = (
        f". On a machine with internet, run `hf download {tower.repo} {FILES[0]}` and copy that cache folder here; or "
        f"leave pretrained_{tower.part} out"
    )
    return hub.find(tower.repo, FILES, f"{tower.what} are", advice)


def fetch(towers: Iterable[Tower]) -> Generator[Progress]:
    """Download the weights of towers into the cache and yield progress. Errors: Unreachable."""
    for tower in towers:
        place = find(tower)
        if isinstance(place, Remote):
            yield from hub.fetch(place)


def load(model: Any, towers: Iterable[Tower]) -> list[str]:
    """Load weights into the towers of a model that open_clip has built at its own image size. Return notes.

    The global random state does not change. Errors: Refused.
    """
    notes = []
    for tower in towers:
        for _ in fetch([tower]):
            pass
        path = find(tower)
        assert isinstance(path, Path), "fetch has downloaded it"
        part = model.visual.trunk if tower.part == "image" else model.text.transformer
        try:
            with torch.random.fork_rng(devices=[]), quiet():
                adapted = (_adapt_image if tower.part == "image" else _adapt_text)(model, tower, _read(path))
        except (RuntimeError, ValueError, KeyError, OSError, SafetensorError, pickle.UnpicklingError) as error:
            raise Refused(f"{tower.what} cannot be loaded from {path}: {error}") from error
        state = part.state_dict()
        loaded = {name: value for name, value in adapted.items() if name in state and state[name].shape == value.shape}
        part.load_state_dict(loaded, strict=False)
        random = sorted(state.keys() - loaded.keys())
        rest = f" except {shortened(random, SHOWN)}, which start from random values" if random else ""
        counts = f"{len(loaded)} of {len(state)} tensors"
        notes.append(f"the {tower.part} tower starts from {tower.repo} ({counts}){rest}")
    return notes


def _adapt_image(_model: Any, tower: Tower, tensors: Tensors) -> Tensors:
    """Return the state dict of timm's model after timm has adapted these weights to it."""
    whole = timm.create_model(tower.source, pretrained=True, pretrained_cfg_overlay={"state_dict": tensors})
    return dict(whole.state_dict())


def _adapt_text(model: Any, _tower: Tower, tensors: Tensors) -> Tensors:
    """Return the state dict of the language model with these weights, without its decoder."""
    config = model.text.config
    kind: Any = transformers.AutoModel._model_mapping[type(config)]
    whole, report = kind.from_pretrained(None, config=config, state_dict=tensors, output_loading_info=True)
    missing = {name for name in report["missing_keys"] if not name.startswith("pooler.")}
    if missing:
        raise ValueError(f"it lacks {plural(len(missing), 'tensor')}: {shortened(sorted(missing), SHOWN)}")
    return dict((whole.encoder if config.is_encoder_decoder else whole).state_dict())


def _read(path: Path) -> Tensors:
    if path.suffix == ".safetensors":
        return load_file(path)
    tensors: Tensors = torch.load(path, map_location="cpu", weights_only=True)
    return tensors
