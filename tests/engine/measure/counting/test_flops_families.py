"""Counts on meta against counts of a real CPU model, for the smallest model of every architecture family."""

import csv

import pytest
import torch

from engine.measure.counting.flops import Count, count
from engine.models import library
from engine.models.built import Wanted
from engine.settings import Settings

SMALLER_IMAGE_SIZES = {
    # families whose smallest model takes many seconds on a CPU at its own image size
    "timm:deepseek_vit": (168, 168),
    "timm:gemma4_vit": (192, 192),
    "timm:qwen3_vit": (224, 224),
    "timm:naflexvit": (192, 192),
    "timm:pnasnet": (160, 160),
    "timm:nasnet": (160, 160),
}


def smallest_of_each_family() -> dict[str, str]:
    """Return {library:family: library:model} with the model of fewest GMACs in the catalogue."""
    smallest: dict[str, tuple[float, str]] = {}
    for path in sorted(Settings().catalog_dir.glob("*.csv")):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                family = f"{row['library']}:{row['family']}"
                entry = (float(row["gmacs"]), f"{row['library']}:{row['model']}")
                smallest[family] = min(smallest.get(family, entry), entry)
    return {family: model for family, (_, model) in smallest.items()}


SMALLEST = smallest_of_each_family()
SAMPLED_EVERY = 4
"""`make test` counts one family in 4; `make faults` counts all."""
SLOW_FAMILIES = {"open_clip:clip_mt5"}
"""Families that only `make faults` counts, because their smallest model takes 10 s on a CPU."""


def count_model(
    model: str, device: str, image_size: tuple[int, int] | None
) -> tuple[Count, dict[str, tuple[int, int]]]:
    built = library.build(model, Wanted(device=device, image_size=image_size))
    with torch.no_grad():
        found = count(built.model, built.inputs)
    return found, {path: (tally.flops, tally.activations) for path, tally in found.modules.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=[pytest.mark.soak] if index % SAMPLED_EVERY or name in SLOW_FAMILIES else [])
        for index, name in enumerate(sorted(SMALLEST))
    ],
)
def test_counts_on_meta_equal_those_on_the_cpu(family: str) -> None:
    size = SMALLER_IMAGE_SIZES.get(family)
    on_meta, modules_on_meta = count_model(SMALLEST[family], "meta", size)
    on_cpu, modules_on_cpu = count_model(SMALLEST[family], "cpu", size)
    assert on_meta.flops == on_cpu.flops > 0
    assert on_meta.activations == on_cpu.activations
    assert modules_on_meta == modules_on_cpu
    assert on_meta.unknown == on_cpu.unknown == {}


def test_every_installed_family_is_covered() -> None:
    installed = {f"{name.partition(':')[0]}:{family}" for name, family in library.families().items()}
    assert installed == set(SMALLEST)
    assert set(SMALLER_IMAGE_SIZES) <= installed
