"""Build open_clip's models and users' own open_clip configurations, without weights and without a network."""

import json
import tempfile
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import open_clip
import timm
import torch

from engine.models.built import Built, Wanted, explained, images, tokens
from engine.models.timm_models import family as timm_family
from engine.specs import Refused

HF_CONFIGS = Path(__file__).parent / "hf_configs"
HF_TEXT_LENGTH = 77
"""Tokens per text for Hugging Face towers, as open_clip's tokenizers return them. The towers' own `context_length` is
the size of their position table (514, 1024), not the length on which CLIP models are trained."""
Config = dict[str, Any]


def families() -> dict[str, str]:
    """Return open_clip's models by name, with their family: how the two towers are built."""
    return {name: family(open_clip.get_model_config(name)) for name in open_clip.list_models()}


def own_config(name: str, cfg: Config) -> Config:
    """Return a copy of a user's configuration. Errors: Refused when a required part is missing or unknown."""
    for part, kind in (("embed_dim", int), ("vision_cfg", dict), ("text_cfg", dict)):
        if not isinstance(cfg.get(part), kind):
            raise Refused(f"configuration {name!r} has no {part} ({kind.__name__}), which every file of open_clip has")
    timm_name = cfg["vision_cfg"].get("timm_model_name")
    if timm_name is not None and not (isinstance(timm_name, str) and timm.is_model(timm_name)):
        raise Refused(f"configuration {name!r} names {timm_name!r}, which timm does not know")
    _check_decoder(name, cfg)
    return deepcopy(cfg)


def _check_decoder(name: str, cfg: Config) -> None:
    """Check that CoCa's decoder is as wide as the tokens that it gets. Errors: Refused.

    open_clip's towers are checked, and not those of timm and Hugging Face, whose widths are not in the configuration.
    """
    if not isinstance(decoder := cfg.get("multimodal_cfg"), dict):
        return
    vision, text = cfg["vision_cfg"], cfg["text_cfg"]
    widths = {"multimodal_cfg.width": decoder.get("width", open_clip.CLIPTextCfg.width)}
    if not text.get("hf_model_name"):
        widths["text_cfg.width"] = text.get("width", open_clip.CLIPTextCfg.width)
    if vision.get("attentional_pool"):
        widths["embed_dim"] = cfg["embed_dim"]
    elif not vision.get("timm_model_name"):
        widths["vision_cfg.width"] = vision.get("width", open_clip.CLIPVisionCfg.width)
    if len(set(widths.values())) > 1:
        given = ", ".join(f"{entry} {width}" for entry, width in widths.items())
        raise Refused(f"configuration {name!r} needs equal numbers for CoCa's decoder, and has {given}")


def family(cfg: Config) -> str:
    """Return `clip_vit`, `clip_resnet`, `clip_<timm family>`, `siglip`, `coca`, or `clip_<Hugging Face text model>`."""
    vision, text = cfg["vision_cfg"], cfg["text_cfg"]
    if "multimodal_cfg" in cfg:
        return "coca"
    if text.get("hf_model_name"):
        return f"clip_{hf_config(text['hf_model_name'])['model_type'].replace('-', '_')}"
    if timm_name := vision.get("timm_model_name"):
        return "siglip" if "siglip" in timm_name else f"clip_{timm_family(timm_name)}"
    return "clip_resnet" if isinstance(vision.get("layers"), list | tuple) else "clip_vit"


def hf_folder(name: str) -> Path:
    """Return the folder with the shipped configuration of a Hugging Face text model. Errors: Refused if unknown."""
    available = sorted(path.parent.name.replace("--", "/") for path in HF_CONFIGS.glob("*/config.json"))
    if name not in available:
        raise Refused(
            f"text tower {name!r} would need a look-up at Hugging Face, which is never made; known here: "
            + ", ".join(available)
        )
    return HF_CONFIGS / name.replace("/", "--")


def hf_config(name: str) -> Config:
    """Return the shipped configuration of a Hugging Face text model."""
    cfg: Config = json.loads((hf_folder(name) / "config.json").read_text())
    return cfg


def build(name: str, wanted: Wanted) -> Built:
    """Return open_clip's model of this name, or that of the user's configuration `wanted.config`. Errors: Refused."""
    cfg = open_clip.get_model_config(name) if wanted.config is None else own_config(name, wanted.config)
    with explained(name, own=wanted.config is not None):
        vision, text = open_clip.CLIPVisionCfg(**cfg["vision_cfg"]), open_clip.CLIPTextCfg(**cfg["text_cfg"])
        native_size = pair(vision.image_size)
        size = wanted.image_size or native_size
        length = set_context_length(name, cfg, wanted.context_length)
        family_name = family(cfg)
        forced_size: Any = None if size == native_size else size
        with explained(name, size, native_size):
            if forced_size and isinstance(cfg["vision_cfg"].get("layers"), list | tuple):
                if size[0] != size[1]:
                    raise ValueError("the attention pool of a CLIP ResNet is square")
                forced_size = size[0]
            # force_custom_text: makes the text tower a separate module, model.text
            model = create(cfg, wanted.device, force_custom_text=True, force_image_size=forced_size)
        whole = Built(
            model=model.to(wanted.dtype).eval(),
            inputs=(images(wanted, size), tokens(wanted, length, text.vocab_size)),
            towers={"image": "visual", "text": "text"},
            family=family_name,
            image_size=size,
            native_size=native_size,
            context_length=length,
            image_width=int(model.visual.trunk.num_features if vision.timm_model_name else vision.width),
            text_width=int(model.text.config.hidden_size if text.hf_model_name else text.width),
            embed_dim=int(cfg["embed_dim"]),
        )
    return whole if wanted.tower == "whole" else _tower(whole, wanted.tower)


def _tower(whole: Built, tower: str) -> Built:
    """Return one tower with its own input, without the rest of the model."""
    return replace(
        whole,
        model=whole.model.get_submodule(whole.towers[tower]),
        inputs=whole.inputs[:1] if tower == "image" else whole.inputs[1:],
        towers={tower: ""},
    )


def create(cfg: Config, device: str, preprocess: Config | None = None, **options: Any) -> Any:
    """Return the model of a configuration with random weights, on a device or on meta.

    preprocess: the configuration of its transforms. options: passed to open_clip.create_model.
    """
    cfg = deepcopy(cfg)
    if name := cfg["text_cfg"].get("hf_model_name"):
        cfg["text_cfg"]["hf_model_name"] = str(hf_folder(name))
    content = {"model_cfg": cfg} | ({} if preprocess is None else {"preprocess_cfg": preprocess})
    no_weights = {"load_weights": False, "pretrained_image": False, "pretrained_text": False}
    # open_clip loads a configuration from a folder without adding it to its registry.
    with tempfile.TemporaryDirectory() as folder, torch.device(device):
        (Path(folder) / "open_clip_config.json").write_text(json.dumps(content))
        return open_clip.create_model(f"local-dir:{folder}", device=device, **no_weights, **options)


def set_context_length(name: str, cfg: Config, wanted: int | None) -> int:
    """Set the context length in the configuration if `wanted` is given, and return it in tokens."""
    text = cfg["text_cfg"]
    decoder = cfg.get("multimodal_cfg")
    if hf_name := text.get("hf_model_name"):
        length = wanted or (decoder or {}).get("context_length", HF_TEXT_LENGTH)
        if (limit := _positions(hf_config(hf_name))) and length > limit:
            raise Refused(f"{name} cannot take texts of {length} tokens: {hf_name} has {limit} positions")
    else:
        length = wanted or text.get("context_length", open_clip.CLIPTextCfg.context_length)
        text["context_length"] = length
    if decoder is not None:
        if length < 2:
            raise Refused(f"{name} cannot take texts of {length} token: its decoder predicts the next one")
        decoder["context_length"] = length
    return int(length)


def _positions(cfg: Config) -> int | None:
    """Return the longest possible text in tokens.

    None if positions are computed. RoBERTa's table starts after its padding id.
    """
    if "roberta" not in cfg["model_type"]:
        return None
    return int(cfg["max_position_embeddings"] - cfg["pad_token_id"] - 1)


def pair(size: int | Iterable[int]) -> tuple[int, int]:
    """Return a configuration's image size as (height, width) in pixels."""
    if isinstance(size, int):
        return size, size
    height, width = size
    return int(height), int(width)
