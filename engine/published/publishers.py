"""Describe the publishers of accuracies, their data sets, and the layout of their tables and ours."""

import re
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Accuracy:
    """One accuracy: our name for it, the publisher's heading, a label, and the data on which it was measured."""

    name: str
    heading: str
    label: str
    about: str


@dataclass(frozen=True)
class Table:
    """A table of accuracies in one publisher's layout."""

    kind: str
    library: str
    repository: str
    licence: str
    commit: str
    """The repository's commit from which the shipped values come."""
    shipped: str
    """File name in data/published/."""
    files: tuple[str, ...]
    """The publisher's own file names."""
    files_in: str
    """Folder of these files in the repository."""
    scale: float
    """Factor from the publisher's unit to per cent."""
    accuracies: tuple[Accuracy, ...] = field(repr=False)

    @property
    def source(self) -> str:
        """Return the source, as shown beside every shipped value."""
        return f"{self.repository} at {self.commit[:7]} ({self.licence})"

    @property
    def page(self) -> str:
        """Return the address of the publisher's page, where the newest files can be downloaded."""
        return f"https://github.com/{self.repository}/tree/main/{self.files_in}"


TIMM_TESTS = {
    "results-imagenet.csv": ("imagenet", "ImageNet", "ImageNet-1k's validation set"),
    "results-imagenet-real.csv": ("imagenet_real", "ReaL", "ImageNet-1k's validation set with reassessed labels"),
    "results-imagenetv2-matched-frequency.csv": ("imagenet_v2", "ImageNet-V2", "ImageNet-V2, matched frequency"),
    "results-imagenet-a.csv": ("imagenet_a", "ImageNet-A", "ImageNet-A: natural adversarial images, 200 classes"),
    "results-imagenet-r.csv": ("imagenet_r", "ImageNet-R", "ImageNet-R: renditions, 200 classes"),
    "results-sketch.csv": ("imagenet_sketch", "Sketch", "ImageNet-Sketch"),
}
"""timm's files, one per test set: our name of the set, its label and its description."""

ZEROSHOT_HEADINGS = (
    "ImageNet 1k, Caltech-101, CIFAR-10, CIFAR-100, CLEVR Counts, CLEVR Distance, Country211, Describable "
    "Textures, EuroSAT, FGVC Aircraft, Food-101, GTSRB, ImageNet Sketch, ImageNet v2, ImageNet-A, ImageNet-O, "
    "ImageNet-R, KITTI Vehicle Distance, MNIST, ObjectNet, Oxford Flowers-102, Oxford-IIIT Pet, Pascal VOC 2007, "
    "PatchCamelyon, Rendered SST2, RESISC45, Stanford Cars, STL-10, SUN397, SVHN, Flickr, MSCOCO, WinoGAViL, "
    "iWildCam, Camelyon17, FMoW, Dollar Street, GeoDE"
).split(", ")
"""open_clip's headings of single data sets."""


def _zeroshot() -> tuple[Accuracy, ...]:
    heading, about = "Average perf. on 38 datasets", "the publisher's own average over 38 data sets, zero-shot"
    average = Accuracy("zeroshot_average_38", heading, "Zero-shot average of 38", about)
    names = {heading: re.sub(r"\W+", "_", heading.lower()) for heading in ZEROSHOT_HEADINGS}
    return average, *(
        Accuracy(f"zeroshot_{name}", heading, f"Zero-shot {heading}", f"{heading}, zero-shot")
        for heading, name in names.items()
    )


TIMM = Table(
    kind="timm",
    library="timm",
    repository="huggingface/pytorch-image-models",
    licence="Apache-2.0",
    commit="aa4b5850c1543fa488abf260f18390eda46cf85d",
    shipped="timm_accuracy.csv",
    files=tuple(TIMM_TESTS),
    files_in="results",
    scale=1,
    accuracies=tuple(
        Accuracy(f"{test}_top{k}", f"top{k}", f"{label} top-{k}", f"{about}; among the first {k}" if k > 1 else about)
        for test, label, about in TIMM_TESTS.values()
        for k in (1, 5)
    ),
)
ZEROSHOT = Table(
    kind="openclip_zeroshot",
    library="open_clip",
    repository="mlfoundations/open_clip",
    licence="MIT",
    commit="89fb801f1e6087880e951fc8354b8a2077b79c6d",
    shipped="clip_zeroshot.csv",
    files=("openclip_results.csv",),
    files_in="docs",
    scale=100,
    accuracies=_zeroshot(),
)
RETRIEVAL = replace(
    ZEROSHOT,
    kind="openclip_retrieval",
    shipped="clip_retrieval.csv",
    files=("openclip_retrieval_results.csv",),
    accuracies=tuple(
        Accuracy(
            f"retrieval_{data}_{query}_to_{target}_r{k}",
            f"{heading} {'image' if target == 'image' else 'text'} retr. R@{k}",
            f"{heading} {query} to {target} R@{k}",
            f"{heading}: the right {target} is among the first {k}",
        )
        for data, heading in (("flickr", "Flickr"), ("mscoco", "MSCOCO"))
        for query, target in (("text", "image"), ("image", "text"))
        for k in (1, 5, 10)
    ),
)
TABLES = {table.kind: table for table in (TIMM, ZEROSHOT, RETRIEVAL)}
ACCURACIES = {accuracy.name: accuracy for table in TABLES.values() for accuracy in table.accuracies}
"""Every accuracy by its name, in the order in which they are offered."""
TABLE_OF = {accuracy.name: table for table in TABLES.values() for accuracy in table.accuracies}
"""The table that contains an accuracy, by the accuracy's name."""
