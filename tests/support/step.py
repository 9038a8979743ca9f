"""Make CLIP models small enough to be trained in a test, and batches for them."""

from typing import Any

import open_clip
import torch
from torch import Tensor, nn

VISION = {"image_size": 16, "patch_size": 4, "layers": 2, "width": 16, "head_width": 8}
TEXT = {"context_length": 8, "vocab_size": 32, "width": 16, "heads": 2, "layers": 1}
Batch = tuple[Tensor, Tensor]


def clip(seed: int = 0, vision: dict[str, Any] | None = None, **more: Any) -> Any:
    """Return a CLIP model with the image tower `vision`, by default a ViT. The same seed gives the same weights."""
    torch.manual_seed(seed)
    return open_clip.CLIP(embed_dim=16, vision_cfg=vision or VISION, text_cfg=TEXT, output_dict=True, **more)


def coca() -> Any:
    """Return a CoCa model, which also generates captions."""
    torch.manual_seed(0)
    pooled = {"attentional_pool": True, "attn_pooler_queries": 4, "attn_pooler_heads": 2, "output_tokens": True}
    text = TEXT | {"embed_cls": True, "output_tokens": True}
    model = open_clip.CoCa(16, {**TEXT, "attn_pooler_heads": 2}, text, VISION | pooled)
    # open_clip leaves this weight uninitialised
    nn.init.normal_(model.text_decoder.text_projection, std=0.25)
    return model


def batches(count: int, size: int = 6, image_size: int = 16) -> list[Batch]:
    """Return `count` batches of images and texts, the same at every call."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(count, size, 3, image_size, image_size, generator=generator)
    return list(zip(images, torch.randint(1, 32, (count, size, 8), generator=generator), strict=True))
