"""Build the CLIP model of a spec: choose its configuration, sizes and activations, with weights, random, or on meta."""

import json
import math
from pathlib import Path
from typing import Any

import open_clip
import torch
from torch import nn

from engine.models.built import explained, refuse_cut_images
from engine.models.clip import files, towers
from engine.models.clip.files import Stored
from engine.models.clip.open_clip_models import create, own_config, pair, set_context_length
from engine.models.library import quiet
from engine.specs import Refused
from engine.specs.evaluate import EvaluateSpec
from engine.specs.fields.clip import DIGITS_MODEL
from engine.specs.train import TrainSpec

OWN_CONFIGS = Path(__file__).parent / "own_configs"
SIGLIP_SCALE, SIGLIP_BIAS = math.log(10), -10.0
"""Initial scale and bias of SigLIP's logits: https://arxiv.org/abs/2303.15343, section 3.2."""
Config = dict[str, Any]


def named_config(spec: TrainSpec | EvaluateSpec) -> tuple[str, Config]:
    """Return the name of a spec's model and a copy of its configuration. Errors: Refused."""
    library, _, name = spec.model.rpartition(":")
    if library == "config":
        if name not in spec.configs:
            raise Refused(f"no configuration was given for {spec.model!r}")
        config = own_config(name, spec.configs[name])
        if "multimodal_cfg" in config and not (config.get("custom_text") or config["text_cfg"].get("hf_model_name")):
            raise Refused(f'configuration {name!r} has a multimodal_cfg, so it also needs "custom_text": true')
        return name, config
    if name == DIGITS_MODEL:
        config = json.loads((OWN_CONFIGS / f"{name}.json").read_text())
        return name, config
    name = name.replace("/", "-")  # as open_clip does
    if library not in ("", "open_clip") or name not in open_clip.list_models():
        raise Refused(f"{spec.model!r} is neither a model of open_clip, nor {DIGITS_MODEL}, nor config:NAME")
    return name, open_clip.get_model_config(name)


def build_model(
    spec: TrainSpec | EvaluateSpec,
    name: str,
    cfg: Config,
    published: Config,
    stored: Stored | None,
    notes: list[str],
    device: str = "cpu",
) -> Any:
    """Return the model with its weights. Writes its sizes to `cfg` and adds remarks to `notes`. Errors: Refused."""
    _set_activation(cfg, published, stored, notes)
    if isinstance(spec, TrainSpec) and spec.loss == "siglip":
        cfg |= {"init_logit_scale": SIGLIP_SCALE, "init_logit_bias": SIGLIP_BIAS}
    elif stored and "logit_bias" in stored.names:
        cfg.setdefault("init_logit_bias", SIGLIP_BIAS)
    if isinstance(spec, TrainSpec) and spec.patch_dropout:
        if isinstance(cfg["vision_cfg"].get("layers"), list | tuple):
            raise Refused(f"{name} has a ResNet for images, which has no patches to leave out")
        cfg["vision_cfg"]["patch_dropout"] = spec.patch_dropout
    length = set_context_length(name, cfg, spec.context_length or (stored.context_length if stored else None))
    is_timm = bool(cfg["vision_cfg"].get("timm_model_name"))
    native = pair(cfg["vision_cfg"].get("image_size", open_clip.CLIPVisionCfg.image_size))
    saved_size = stored.image_size if stored else None
    requested_size = spec.image_size and (max(spec.image_size) if len(set(spec.image_size)) == 1 else spec.image_size)
    if isinstance(requested_size, tuple) and isinstance(cfg["vision_cfg"].get("layers"), list | tuple):
        raise Refused(f"{name} has a ResNet image tower, whose attention pool takes square images only")
    preprocess = published  # random weights get open_clip's default
    if stored and not published:
        preprocess = stored.config.get("preprocess_cfg") or files.agreed_preprocessing(name)
    size = requested_size or saved_size
    customised = spec.model.startswith("config:") or (isinstance(spec, TrainSpec) and spec.patch_dropout > 0)
    with explained(name, pair(size) if size else None, native, own=customised), quiet():
        if size and not is_timm:
            cfg["vision_cfg"]["image_size"] = size
        model = _create(cfg, preprocess, spec, device)
        if is_timm and saved_size:
            model.visual.set_input_size(saved_size)
        if stored:
            files.load(model, name, stored)
        elif isinstance(spec, TrainSpec) and device != "meta":
            notes += towers.load(model, towers.requested_towers(spec, name, cfg))
        if is_timm and requested_size:
            model.visual.set_input_size(requested_size)  # adapts weights of another size
        if spec.image_size and spec.precision != "fp16":  # CPUs have no convolutions in fp16
            _run_image_tower(model, spec.image_size, spec.precision, device)
        if spec.image_size:
            refuse_cut_images(model.visual, pair(spec.image_size), native)
    cfg["text_cfg"]["context_length"] = length
    size = pair(model.visual.image_size)
    cfg["vision_cfg"]["image_size"] = size[0] if size[0] == size[1] else list(size)
    return model


def notes_on_random(spec: TrainSpec | EvaluateSpec, cfg: Config) -> list[str]:
    """Return notes on a model that is built without weights."""
    if isinstance(spec, EvaluateSpec):
        return ["no weights were requested, so the evaluated model is untrained"]
    if cfg["text_cfg"].get("hf_model_name") and not spec.pretrained_text:
        return [
            "the text tower starts from random weights; open_clip's own training would start from pretrained ones "
            "(set pretrained_text)"
        ]
    return []


def _set_activation(cfg: Config, published: Config, stored: Stored | None, notes: list[str]) -> None:
    """Use the activation with which the weights were trained. The other one gives worse results without any error.

    A checkpoint of ours always says which it is. open_clip's description of a tag only says if QuickGELU is added.
    """
    before = bool(cfg.get("quick_gelu"))
    saved = stored.model_cfg if stored else {}
    quick = bool(saved.get("quick_gelu")) if saved else before or bool(published.get("quick_gelu"))
    if quick != before:
        cfg["quick_gelu"] = quick
        how = "with" if quick else "without"
        notes.append(f"the weights were trained {how} QuickGELU, so the model is built {how} it")


def _create(cfg: Config, preprocess: Config, spec: TrainSpec | EvaluateSpec, device: str) -> Any:
    """Build the model with random weights that depend only on the seed. The global random state does not change."""
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(spec.seed)
        model = create(cfg, device, preprocess, precision=spec.precision, output_dict=True)
        if decoder := getattr(model, "text_decoder", None):
            # open_clip leaves this memory uninitialised: it is neither random nor always finite.
            nn.init.normal_(decoder.text_projection, std=decoder.width**-0.5)
    return model


def _run_image_tower(model: Any, size: tuple[int, int], precision: str, device: str) -> None:
    """Run the image tower once. Only then do some towers fail when their patch size does not divide the image size."""
    image = torch.zeros(1, 3, *size, dtype=open_clip.get_input_dtype(precision), device=device)
    with torch.no_grad():
        model.visual.eval()(image)
    model.visual.train()
