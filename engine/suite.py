"""The models of PyTorch's dynamo benchmark for timm: which they are, their recorded batch sizes, and its named lists.

The lists tell models that need a smaller batch, a looser comparison or another loss. They go by the names of that
benchmark, which `data/suite/timm.csv` maps to those of the installed timm.
"""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from engine.settings import ROOT
from engine.specs.model_name import ModelName

FILE = ROOT / "data" / "suite" / "timm.csv"

HALVED = frozenset(
    "beit_base_patch16_224 convit_base convmixer_768_32 convnext_base cspdarknet53 deit_base_distilled_patch16_224 "
    "gluon_xception65 mobilevit_s pnasnet5large poolformer_m36 resnest101e swin_base_patch4_window7_224 "
    "swsl_resnext101_32x16d vit_base_patch16_224 volo_d1_224".split()
)
QUARTERED = frozenset({"jx_nest_base"})
HIGHER_TOLERANCE = frozenset(
    "fbnetv3_b gmixer_24_224 hrnet_w18 inception_v3 mixer_b16_224 mobilenetv3_large_100 sebotnet33ts_256 selecsls42b "
    "cspdarknet53".split()
)
HIGHER_WHEN_FROZEN = frozenset(
    "adv_inception_v3 botnet26t_256 gluon_inception_v3 selecsls42b swsl_resnext101_32x16d".split()
)
SCALED_LOSS = frozenset("ese_vovnet19b_dw fbnetc_100 mnasnet_100 mobilevit_s sebotnet33ts_256".split())
FORCED_AMP = frozenset({"convit_base", "xcit_large_24_p8_224"})
ACCURACY_SKIPPED = frozenset({"xcit_large_24_p8_224"})
LEVIT = "levit_128"
"""Compared with a tolerance of its own in training."""


@dataclass(frozen=True)
class Entry:
    """One model of the suite."""

    name: str
    """As the benchmark calls it."""
    model: str
    """As timm calls it."""
    batch_size: int
    """As recorded there, before it is divided for models that need less."""

    @property
    def qualified(self) -> ModelName:
        """The model's name among all libraries' models."""
        return ModelName.of("timm", self.model)


@cache
def entries() -> tuple[Entry, ...]:
    """Return the whole suite, as shipped."""
    return read(FILE)


def read(file: Path) -> tuple[Entry, ...]:
    """Return a list of such models; what has no model in timm is left out."""
    with file.open(newline="", encoding="utf-8") as lines:
        return tuple(
            Entry(line["name"], line["model"], int(line["batch_size"]))
            for line in csv.DictReader(lines)
            if line["model"]
        )


def names(name: ModelName) -> frozenset[str]:
    """Return what the benchmark calls a model, `timm:nest_base_jx`; its own name is always among them."""
    if name.library != "timm":
        return frozenset()
    return frozenset({name.model, *(entry.name for entry in entries() if entry.model == name.model)})


def is_in(name: ModelName, listed: Iterable[str]) -> bool:
    """Return whether one of the named lists holds a model."""
    return not names(name).isdisjoint(listed)


def recorded_batch_size(name: ModelName) -> int | None:
    """Return the benchmark's own batch size for a model, divided where it divides; None for a model it does not
    have."""
    known = [entry.batch_size for entry in entries() if entry.qualified == name]
    if not known:
        return None
    divisor = 4 if is_in(name, QUARTERED) else 2 if is_in(name, HALVED) else 1
    return max(1, known[0] // divisor)


def expand(patterns: Iterable[str]) -> list[str]:
    """Patterns with `suite` replaced by the models it stands for."""
    models = list(dict.fromkeys(entry.qualified for entry in entries()))
    return [name for pattern in patterns for name in (models if pattern == "suite" else [pattern])]
