"""Loss functions of trainings: open_clip's own, each with the model outputs that it needs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import open_clip
import torch
from open_clip import ClipLoss, CoCa, CoCaLoss, DistillClipLoss
from open_clip.loss import SigLipLoss
from torch import Tensor, nn
from torch.nn import functional

from engine.models.clip.build import named_config
from engine.specs import Refused
from engine.specs.train import TrainSpec

Outputs = dict[str, Tensor]
"""Outputs of an open_clip model by name: `image_features` and `text_features` (N, D), normalised; `logit_scale`, the
factor that multiplies cosines; `logit_bias` if the model has one; CoCa's `logits` (N, L, V) and `labels` (N, L)."""
TEACHER_PREFIX = "dist_"
"""Prefix of the names of a teacher's outputs, as in open_clip."""
SHOWN = 3
"""Models that an error message names at most."""


@dataclass(frozen=True)
class Objective:
    """A loss function of a model's outputs."""

    loss: Callable[..., dict[str, Tensor]]
    needs: tuple[str, ...]
    """Names of the outputs that the loss takes."""
    teacher: nn.Module | None = None

    def beside(self, images: Tensor, tokens: Tensor) -> Outputs:
        """Return the outputs needed besides the model's own: the teacher's, named dist_...; empty without a teacher."""
        if self.teacher is None:
            return {}
        with torch.no_grad():
            return {f"{TEACHER_PREFIX}{name}": value.detach() for name, value in self.teacher(images, tokens).items()}

    def __call__(self, outputs: Outputs) -> Outputs:
        """Return the losses by name, and their sum, which is minimised, as `loss`. All are scalars."""
        losses = self.loss(**{name: outputs[name] for name in self.needs}, output_dict=True)
        return {**losses, "loss": reduce(torch.add, losses.values())}


def create(
    spec: TrainSpec, model: nn.Module, *, rank: int = 0, world_size: int = 1, teacher: nn.Module | None = None
) -> Objective:
    """Return the objective of a training of `model`, in process `rank` of `world_size`.

    teacher: the model to distil, in evaluation mode on the same device. Errors: Refused if loss and model do not fit.
    """
    _check(spec, model)
    gathering = {"local_loss": spec.local_loss, "gather_with_grad": spec.gather_with_grad, "cache_labels": True}
    place = {"rank": rank, "world_size": world_size}
    needs: tuple[str, ...] = ("image_features", "text_features", "logit_scale")
    if _biased(model):
        needs += ("logit_bias",)
    match spec.loss:
        case "siglip":
            return Objective(SigLipLoss(**place), needs)
        case "coca":
            weights = {
                "caption_loss_weight": spec.coca_caption_weight,
                "clip_loss_weight": spec.coca_contrastive_weight,
            }
            loss = CoCaLoss(**weights, pad_id=model.pad_id, **gathering, **place)
            return Objective(loss, (*needs, "logits", "labels"))
        case "distill":
            assert teacher is not None, "distillation needs a teacher"
            teacher_needs = tuple(f"{TEACHER_PREFIX}{name}" for name in needs)
            return Objective(DistillClipLoss(**gathering, **place), needs + teacher_needs, teacher)
        case "clip":
            return Objective(ClipLoss(**gathering, **place), needs)


def caption_loss(logits: Tensor, labels: Tensor, pad_id: int = 0) -> tuple[float, int]:
    """Return the summed cross-entropy of logits (N, L, V) for labels (N, L), and the tokens, without padding."""
    total = functional.cross_entropy(logits.float().transpose(1, 2), labels, ignore_index=pad_id, reduction="sum")
    return float(total), int((labels != pad_id).sum())


def _biased(model: nn.Module) -> bool:
    return getattr(model, "logit_bias", None) is not None


def _check(spec: TrainSpec, model: nn.Module) -> None:
    """Refuse a model that does not fit the loss: with several processes, DDP waits for every gradient."""
    if isinstance(model, CoCa) != (spec.loss == "coca"):
        raise Refused(
            f"{spec.model} {'is' if isinstance(model, CoCa) else 'is not'} a CoCa model and the loss is {spec.loss}: "
            "CoCa's loss and models (coca_ViT-B-32, ...) need each other; coca_caption_weight 0 leaves captions out"
        )
    if spec.loss == "siglip" and not _biased(model):
        names = [name for name in open_clip.list_models() if "init_logit_bias" in open_clip.get_model_config(name)]
        raise Refused(
            f"SigLIP's loss needs a logit bias, which {spec.model} does not have: take {', '.join(names[:SHOWN])} or "
            f"one of {len(names) - SHOWN} more, or a configuration with init_logit_bias, such as -10"
        )
    if spec.loss == "distill":
        own, of_teacher = (
            named_config(one)[1]["text_cfg"].get("hf_tokenizer_name") or "open_clip's" for one in (spec, spec.teacher)
        )
        if own != of_teacher:
            raise Refused(
                f"the teacher {spec.distill_model} has the tokenizer {of_teacher}, and {spec.model} has {own}: the "
                "teacher gets the same tokens, so take one with the same tokenizer"
            )
    if spec.loss in ("coca", "distill") and _biased(model):
        raise Refused(f"{spec.model} has a logit bias, which the loss {spec.loss} does not take: take clip or siglip")
