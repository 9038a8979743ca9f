"""Retrieval between images and captions: the rank of the first match among all candidates.

Names and definitions are those of open_clip's training, extended to several captions per image. Memory grows with the
number of images or of captions, not with their product.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from open_clip import ClipLoss
from torch import Tensor

from engine.specs.evaluate import RECALLS

MOST_AT_ONCE = 2**22
"""Compute at most this many similarities at once. In float32, they take 17 MB."""
LEAST_ROWS, MOST_ROWS = 64, 1024
"""Compute at least and at most this many rows of similarities at once, whatever their length. In parts of 16 rows, each
row takes twice as long."""


def metrics(
    image_features: Tensor, text_features: Tensor, owner: Tensor, *, recalls: Sequence[int] = RECALLS
) -> dict[str, float]:
    """Return mean and median rank, from 1, and recall at the ranks `recalls` (a share), from images to captions and
    back.

    image_features: (N, D), text_features: (M, D), both normalised. owner: (M,) int64, the image of each caption; every
    image has at least one. For an image with several captions, the best-ranked one counts.
    """
    images = torch.arange(len(image_features), device=image_features.device)
    owner = owner.to(image_features.device)
    ranks = {
        "image_to_text": _ranks(image_features, images, text_features, owner),
        "text_to_image": _ranks(text_features, owner, image_features, images),
    }
    return {f"{way}_{name}": value for way, found in ranks.items() for name, value in _summary(found, recalls).items()}


def clip_loss(image_features: Tensor, text_features: Tensor, scale: float, batch_size: int) -> float:
    """Return CLIP's loss of pairs (N, D) and (N, D), computed batch by batch in their order; the last may be smaller.

    The loss grows with the batch size, because each pair is compared with more others. The mean is weighted by batch
    size, as in open_clip's validation. scale: factor that multiplies cosines.
    """
    loss = ClipLoss()
    batches = (torch.split(features.float(), batch_size) for features in (image_features, text_features))
    return sum(float(loss(*pair, scale)) * len(pair[0]) for pair in zip(*batches, strict=True)) / len(image_features)


def _summary(ranks: NDArray[np.int64], at: Sequence[int]) -> dict[str, float]:
    """Return R@k, mean rank and median rank. ranks: counted from 0."""
    recalls = {f"R@{k}": float(np.mean(ranks < k)) for k in at}
    return {"mean_rank": float(ranks.mean() + 1), "median_rank": float(np.floor(np.median(ranks)) + 1), **recalls}


def _ranks(queries: Tensor, query_images: Tensor, gallery: Tensor, gallery_images: Tensor) -> NDArray[np.int64]:
    """Return, for each query, the number of gallery items ranked before its first match, an item of the same image.

    An item ranks before the match if it is more similar, or equally similar with a lower index. So a model gains
    nothing from equal similarities. Items that cannot be compared (NaN) count as ranked before.
    """
    indices = torch.arange(len(gallery), device=gallery.device)
    # equal columns of a matrix product may be rounded differently, and equal captions must be equally similar
    distinct, row_of = torch.unique(gallery.float(), dim=0, return_inverse=True)
    repeated = len(distinct) < len(gallery)  # else copying their columns takes a quarter of the time
    candidates = distinct.T if repeated else gallery.float().T
    size = min(max(LEAST_ROWS, MOST_AT_ONCE // len(indices)), MOST_ROWS)
    ranks = torch.empty(len(queries), dtype=torch.int64, device=gallery.device)

    def rank(features: Tensor, image_of: Tensor) -> Tensor:
        similarities = features @ candidates
        similarities = similarities[:, row_of] if repeated else similarities
        matches = similarities.masked_fill(image_of[:, None] != gallery_images, -torch.inf)
        best, first = matches.max(dim=1, keepdim=True)  # first: the first of equal values
        behind = (similarities < best) | ((similarities == best) & (indices >= first))
        return len(indices) - behind.sum(dim=1, dtype=torch.int32)  # twice as fast as in int64

    # The results are copied into one tensor: if the tensors of all parts were kept, the process would grow by 1 GB.
    for start in range(0, len(queries), size):
        part = slice(start, start + size)
        ranks[part] = rank(queries[part].float(), query_images[part])
    return ranks.cpu().numpy()
