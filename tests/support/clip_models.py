"""Helpers for tests of CLIP models: small configurations, and functions that make, save and compare models."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from engine.models.clip.weights import Made, create
from engine.specs.train import TrainSpec
from engine.training import checkpoints

TEXT = {"context_length": 8, "width": 16, "heads": 2, "layers": 3}
VIT = {"image_size": 16, "patch_size": 4, "width": 16, "head_width": 8, "layers": 3}
CONFIGS: dict[str, dict[str, Any]] = {
    "vit": {"embed_dim": 8, "vision_cfg": VIT, "text_cfg": TEXT},
    "own-text": {"embed_dim": 8, "vision_cfg": VIT, "text_cfg": TEXT, "custom_text": True},
    "resnet": {
        "embed_dim": 8,
        "vision_cfg": {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8, "head_width": 8},
        "text_cfg": TEXT,
    },
    "timm": {
        "embed_dim": 8,
        "vision_cfg": {"timm_model_name": "test_vit", "timm_pool": "", "timm_proj": "linear", "image_size": 160},
        "text_cfg": TEXT,
    },
    "convnet": {
        "embed_dim": 8,
        "vision_cfg": {"timm_model_name": "test_convnext", "timm_pool": "avg", "timm_proj": "linear", "image_size": 64},
        "text_cfg": TEXT,
    },
    "coca": {
        "embed_dim": 8,
        "vision_cfg": {**VIT, "attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True},
        "text_cfg": {**TEXT, "width": 8, "embed_cls": True, "output_tokens": True},
        "multimodal_cfg": {**TEXT, "width": 8, "attn_pooler_heads": 2},
        "custom_text": True,
    },
}
PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8))


def train_spec(name: str = "vit", **fields: Any) -> TrainSpec:
    return TrainSpec(model=f"config:{name}", configs={name: CONFIGS[name]}, **fields)


def make(name: str = "vit", weights: str | Path = "", **fields: Any) -> Made:
    return create(train_spec(name, **fields), weights=str(weights))


def saved(made: Made, folder: Path, *, ours: bool = True) -> Path:
    """Save a checkpoint as our training loop does, or without `vitals` as open_clip does, and return its path."""
    state: dict[str, Any] = {"epoch": 1, "name": made.name, "state_dict": made.model.state_dict(), "optimizer": {}}
    if ours:
        state["vitals"] = {"config": made.config, "step": 1}
    return checkpoints.save(folder, "epoch_1.pt", state, about={"epoch": 1, "step": 1})


def features(model: nn.Module, image: torch.Tensor, length: int) -> torch.Tensor:
    """Return the output of both towers for one image and one text, concatenated."""
    texts = torch.arange(1, length + 1)[None]
    with torch.no_grad():
        out = model.eval()(image[None], texts)
    return torch.cat([out["image_features"], out["text_features"]])


def same(one: nn.Module, other: nn.Module) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def trained(module: nn.Module) -> set[str]:
    return {name for name, weight in module.named_parameters() if weight.requires_grad}


def cached(cache: Path, repo: str) -> Path:
    """Make the folder of a repository's files in the hub's cache, and return it."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    (folder / "snapshots" / ("0" * 40)).mkdir(parents=True)
    return folder / "snapshots" / ("0" * 40)
