"""Create CLIP models for training and evaluation, with weights, transforms and tokenizer, as open_clip loads them."""

import json
import warnings
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import open_clip
import torch
from open_clip.modified_resnet import ModifiedResNet
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from timm.data.transforms_factory import create_transform
from torch import Tensor, nn

from engine.models import batch_norm
from engine.models.clip import files, tokenizers, towers
from engine.models.clip.build import build_model, named_config, notes_on_random
from engine.models.clip.open_clip_models import pair
from engine.models.clip.tokenizers import Tokenizer, tokenizer
from engine.results import Progress
from engine.roots import Roots
from engine.specs import Refused
from engine.specs.evaluate import EvaluateSpec
from engine.specs.fields import images
from engine.specs.train import TrainSpec
from engine.words import plural

TEMPLATES: tuple[str, ...] = tuple(fill("{}") for fill in open_clip.SIMPLE_IMAGENET_TEMPLATES)
"""open_clip's seven prompts, which are nearly as accurate as its eighty."""
Config = dict[str, Any]

Transform = Callable[[Image.Image], torch.Tensor]


@dataclass(frozen=True)
class Made:
    """A model on the CPU in the requested precision, with the transforms and the tokenizer for its inputs."""

    model: nn.Module
    preprocess_train: Transform
    """Converts an RGB image to (3, height, width), float32: cropped and augmented at random, never flipped."""
    preprocess_val: Transform
    tokenizer: Tokenizer
    name: str
    config: Config
    """`model_cfg` and `preprocess_cfg`, laid out as in an `open_clip_config.json`. A checkpoint with this under
    `vitals.config` is loaded with the same sizes and the same preprocessing."""
    notes: list[str] = field(default_factory=list)

    @property
    def image_size(self) -> tuple[int, int]:
        """Return (height, width) in pixels."""
        return pair(self.config["preprocess_cfg"]["size"])

    @property
    def context_length(self) -> int:
        """Return the tokens per text."""
        return int(self.config["model_cfg"]["text_cfg"]["context_length"])


def fetch(spec: TrainSpec | EvaluateSpec, weights: str, roots: Roots = None) -> Generator[Progress]:
    """Download the weights of a tag into the cache and yield progress. Paths and random weights need no download.

    roots: folders below which a path must lie. Errors: those that `create` raises before it builds a model.
    """
    name, cfg = named_config(spec)
    tokenizers.find(name, cfg)
    if weights:
        yield from files.fetch(name, weights, roots)
    elif isinstance(spec, TrainSpec):
        yield from towers.fetch(towers.requested_towers(spec, name, cfg))


def create(spec: TrainSpec | EvaluateSpec, *, weights: str, roots: Roots = None) -> Made:
    """Build the model of a spec.

    weights: a tag of open_clip's, downloaded here without progress unless `fetch` has done so; the path of a
    checkpoint; or empty for random weights, which depend only on the seed. Sizes saved in a checkpoint of ours are used
    unless the spec sets others. roots: folders below which a checkpoint must lie. Errors: Refused.
    """
    name, cfg = named_config(spec)
    tokenizers.find(name, cfg)
    stored = files.stored(name, weights, roots) if weights else None
    published = files.published(name, weights)
    notes = [] if stored else notes_on_random(spec, cfg)
    model = build_model(spec, name, cfg, published, stored, notes)
    preprocess = preprocessing(model, spec)
    return Made(
        model=model,
        preprocess_train=train_transform(preprocess, spec),
        preprocess_val=image_transform_v2(PreprocessCfg(**preprocess), is_train=False),
        tokenizer=tokenizer(name, cfg, cfg["text_cfg"]["context_length"]),
        name=name,
        config={"model_cfg": cfg, "preprocess_cfg": json.loads(json.dumps(preprocess))},  # tuples become lists
        notes=notes,
    )


def preprocessing(model: Any, spec: TrainSpec | EvaluateSpec) -> Config:
    """Return the preprocessing of images: the values of the request, else those of the model's weights."""
    requested_values = images.preprocessing(spec) if isinstance(spec, TrainSpec) else {}
    return {**model.visual.preprocess_cfg, "size": pair(model.visual.image_size), **requested_values}


def train_transform(preprocess: Config, spec: TrainSpec | EvaluateSpec) -> Transform:
    """Return the transform of training images, which is open_clip's, or timm's with auto_augment.

    Errors: Refused if timm does not know the kind of auto_augment.
    """
    cfg = PreprocessCfg(**preprocess)
    if not isinstance(spec, TrainSpec) or not spec.aug_auto_augment:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # open_clip calls its own colour jitter unused
            augmentation = images.augmentation(spec) if isinstance(spec, TrainSpec) else None
            return image_transform_v2(cfg, is_train=True, aug_cfg=augmentation)  # type: ignore[no-any-return]
    options = {name: value for name, value in images.augmentation(spec).items() if name != "use_timm"}
    try:
        return create_transform(  # type: ignore[no-any-return]
            (3, *pair(cfg.size)),
            is_training=True,
            hflip=0.0,
            mean=cfg.mean,
            std=cfg.std,
            interpolation=cfg.interpolation,
            re_mode="pixel",
            color_jitter=None,  # type: ignore[arg-type]
            auto_augment=spec.aug_auto_augment,
            **options,
        )
    except (AssertionError, KeyError, ValueError) as error:
        raise Refused(
            f"timm has no auto_augment {spec.aug_auto_augment!r} ({error}): try rand-m9-mstd0.5-inc1"
        ) from error


def sketch(
    spec: TrainSpec | EvaluateSpec, *, weights: str, batch_size: int, roots: Roots = None
) -> tuple[Any, tuple[Tensor, Tensor]]:
    """Build the same model on meta, and a batch of images (B, 3, height, width) and tokens (B, length) for it.

    Nothing is downloaded and no values are loaded: a checkpoint's names and shapes are compared with the model's.
    roots: folders below which a checkpoint must lie. Errors: Refused.
    """
    name, cfg = named_config(spec)
    published = files.published(name, weights)
    stored = files.stored(name, weights, roots) if weights and not published else None
    model = build_model(spec, name, cfg, published, stored, [], device="meta")
    with torch.device("meta"):
        images = torch.zeros(
            batch_size, 3, *pair(model.visual.image_size), dtype=open_clip.get_input_dtype(spec.precision)
        )
        return model, (images, torch.zeros(batch_size, cfg["text_cfg"]["context_length"], dtype=torch.long))


def arrange(model: Any, spec: TrainSpec) -> list[str]:
    """Lock towers, checkpoint activations and set the memory format for a training. Return notes. Errors: Refused."""
    notes = []
    trained = _count_trained(model)
    if spec.lock_image:
        lock_image(model, spec.lock_image_unlocked_groups, freeze_bn_stats=spec.lock_image_freeze_bn_stats)
        if _count_trained(model) == trained:
            raise Refused(f"{spec.lock_image_unlocked_groups} unlocked groups are the whole image tower: give fewer")
        trained = _count_trained(model)
    if spec.lock_text:
        lock_text(model, spec.lock_text_unlocked_layers, freeze_norms=spec.lock_text_freeze_layer_norm)
        if _count_trained(model) == trained:
            raise Refused(f"{spec.lock_text_unlocked_layers} unlocked layers are the whole text tower: give fewer")
        trained = _count_trained(model)
    if spec.lock_image or spec.lock_text:
        total = sum(weight.numel() for weight in model.parameters())
        notes.append(f"{trained:,} of {total:,} parameters are trained, the others are locked")
    if spec.grad_checkpointing:
        model.set_grad_checkpointing(True)
        if isinstance(model.visual, ModifiedResNet):
            notes.append("a CLIP ResNet cannot checkpoint its activations, so the image tower keeps all of them")
    if spec.use_bn_sync and not batch_norm.synchronise(model, spec.device):
        raise Refused(f"{spec.model} has no trainable batch norm: leave use_bn_sync out")
    if spec.channels_last:
        model.to(memory_format=torch.channels_last)
    return notes


def _count_trained(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def lock_image(model: Any, unlocked_groups: int, *, freeze_bn_stats: bool) -> None:
    """Lock the image tower except its last `unlocked_groups` groups of layers.

    Errors: Refused when the tower can only be locked as a whole.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # open_clip imports timm's functions from old paths
            model.visual.lock(unlocked_groups=unlocked_groups, freeze_bn_stats=freeze_bn_stats)
    except (AssertionError, AttributeError, KeyError, RuntimeError) as error:
        raise Refused(
            f"this image tower cannot be locked except its last {plural(unlocked_groups, 'group')} ({error}): "
            "lock it as a whole"
        ) from error


def lock_text(model: Any, unlocked_layers: int, *, freeze_norms: bool) -> None:
    """Lock the text tower except its last `unlocked_layers` layers; without `freeze_norms`, norms stay unlocked."""
    if (tower := getattr(model, "text", None)) is not None:
        tower.lock(unlocked_layers, freeze_layer_norm=True)
    else:
        model.lock_text_tower(unlocked_layers, freeze_layer_norm=True)
    if not freeze_norms:
        for norm in _text_norms(model):
            norm.requires_grad_(requires_grad=True)


def _text_norms(model: Any) -> Iterator[nn.Module]:
    """Yield the text tower's norm layers, whatever their class: LayerNorm, LayerNormFp32, T5LayerNorm, RMSNorm."""
    tower = getattr(model, "text", None)
    for part in [model.transformer, model.ln_final] if tower is None else [tower]:
        yield from (module for module in part.modules() if "Norm" in type(module).__name__)
