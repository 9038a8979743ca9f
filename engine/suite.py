"""The models of PyTorch's dynamo benchmark for timm, with their recorded batch sizes and the benchmark's named lists.

The lists name models that need a smaller batch, a looser comparison or another loss. They use that benchmark's names,
which `data/suite/timm.csv` maps to the names of the installed timm.
"""

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from engine.model_name import ModelName

# without ROOT of engine.settings, which imports the specs, which import this module
FILE = Path(__file__).resolve().parent.parent / "data" / "suite" / "timm.csv"

HALVED = frozenset(
    "beit_base_patch16_224 convit_base convmixer_768_32 convnext_base cspdarknet53 deit_base_distilled_patch16_224 "
    "gluon_xception65 mobilevit_s pnasnet5large poolformer_m36 resnest101e swin_base_patch4_window7_224 "
    "swsl_resnext101_32x16d vit_base_patch16_224 volo_d1_224".split()
)
"""Models whose recorded batch size is divided by 2."""
QUARTERED = frozenset({"jx_nest_base"})
"""Models whose recorded batch size is divided by 4."""
HIGHER_TOLERANCE = frozenset(
    "fbnetv3_b gmixer_24_224 hrnet_w18 inception_v3 mixer_b16_224 mobilenetv3_large_100 sebotnet33ts_256 selecsls42b "
    "cspdarknet53".split()
)
"""Models with a higher tolerance in comparisons of training."""
HIGHER_WHEN_FROZEN = frozenset(
    "adv_inception_v3 botnet26t_256 gluon_inception_v3 selecsls42b swsl_resnext101_32x16d".split()
)
"""Models with a higher tolerance in comparisons of inference with frozen weights."""
SCALED_LOSS = frozenset("ese_vovnet19b_dw fbnetc_100 mnasnet_100 mobilevit_s sebotnet33ts_256".split())
"""Models whose loss is divided by 1,000."""
FORCED_AMP = frozenset({"convit_base", "xcit_large_24_p8_224"})
"""Models that run in amp when half precision is requested."""
ACCURACY_SKIPPED = frozenset({"xcit_large_24_p8_224"})
LEVIT = "levit_128"
"""A model with its own tolerance in comparisons of training."""


@dataclass(frozen=True)
class Entry:
    """One model of the suite."""

    name: str
    """The benchmark's name."""
    model: str
    """timm's name."""
    batch_size: int
    """The recorded batch size, not yet divided for models that need a smaller one."""

    @property
    def qualified(self) -> ModelName:
        """Return the model's qualified name."""
        return ModelName.of("timm", self.model)


@cache
def entries() -> tuple[Entry, ...]:
    """Return the entries of the shipped list."""
    return read(FILE)


def read(file: Path) -> tuple[Entry, ...]:
    """Return the entries of a list, without those that have no model in timm."""
    with file.open(newline="", encoding="utf-8") as lines:
        return tuple(
            Entry(line["name"], line["model"], int(line["batch_size"]))
            for line in csv.DictReader(lines)
            if line["model"]
        )


def names(name: ModelName) -> frozenset[str]:
    """Return all names that the benchmark may use for a model, always with timm's own; empty for other libraries."""
    if name.library != "timm":
        return frozenset()
    return frozenset({name.model, *(entry.name for entry in entries() if entry.model == name.model)})


def is_in(name: ModelName, listed: Iterable[str]) -> bool:
    """Return whether a named list contains a model."""
    return not names(name).isdisjoint(listed)


def recorded_batch_size(name: ModelName) -> int | None:
    """Return the benchmark's batch size for a model, divided if it is in HALVED or QUARTERED; None without an entry."""
    recorded = [entry.batch_size for entry in entries() if entry.qualified == name]
    if not recorded:
        return None
    divisor = 4 if is_in(name, QUARTERED) else 2 if is_in(name, HALVED) else 1
    return max(1, recorded[0] // divisor)


@lru_cache(maxsize=8)
def parse_batch_sizes(text: str, largest: int) -> Mapping[str, int]:
    """Return batch sizes by model from lines such as `resnet18 8` or `resnet18,8`; one line may hold several pairs.

    # begins a comment. The result is shared: do not change it.
    Errors: ValueError for another form, a size above `largest`, and a model with two sizes.
    """
    sizes: dict[str, int] = {}
    for line in text.splitlines():
        words = re.findall(r"[^\s,]+", line.partition("#")[0])
        for name, size in zip(words[::2], [*words[1::2], ""], strict=False):
            if not re.fullmatch(r"\d{1,9}", size) or not 1 <= int(size) <= largest:
                raise ValueError(
                    f"{line[:100]!r} is no list of batch sizes: write a name and a number from 1 to {largest:,}, "
                    "such as resnet18 8"
                )
            if sizes.setdefault(name, int(size)) != int(size):
                raise ValueError(f"{name[:100]} has two batch sizes, {sizes[name]} and {int(size)}")
    return sizes


def listed_batch_size(name: ModelName, sizes: Mapping[str, int]) -> int | None:
    """Return a model's size by its qualified name, its own name or its names in the benchmark; None without one."""
    known = [name, name.model, *sorted(names(name))]
    return next((sizes[known_name] for known_name in known if known_name in sizes), None)


def expand(patterns: Iterable[str]) -> list[str]:
    """Return patterns with `suite` replaced by its models."""
    models = list(dict.fromkeys(entry.qualified for entry in entries()))
    return [name for pattern in patterns for name in (models if pattern == "suite" else [pattern])]
