"""Read speeds published by others and put them beside our own, always with their publisher."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from engine.results import BenchmarkRow
from engine.settings import ROOT
from engine.specs.fields.building import changes

SPEEDS = ROOT / "data" / "published" / "timm_speed.csv"
PUBLISHER = "timm's authors (huggingface/pytorch-image-models, results/benchmark-*.csv, Apache-2.0)"

SETTINGS = (
    "Timings here have TF32 and cuDNN's autotuning off unless they are asked for (precision tf32, cuDNN benchmark). "
    "PyTorch's default has TF32 on in convolutions, and timm's benchmark has autotuning on as well."
)
"""Reasons why a published speed of an NVIDIA GPU may differ from one measured here on the same GPU."""

SETTING = ["device", "precision", "memory_format", "compiled", "torch", "mode"]
"""Columns of the conditions that published speeds share."""


def read(path: Path = SPEEDS) -> pd.DataFrame:
    """Return every published speed: model, image_size, batch_size, SETTING, samples_per_s and step_time_ms."""
    frame = pd.read_csv(path, dtype={"image_size": str, "torch": str})
    return frame.assign(memory_format=frame["memory_format"].str.removesuffix("_format"))


def speeds(path: Path = SPEEDS) -> pd.DataFrame:
    """Return published images per second in contiguous memory format, for each device those of its newest torch.

    `setup` names device, precision, compilation and torch version.
    """
    frame = read(path)
    frame = frame[frame["memory_format"] == "contiguous"]
    numbers = frame["torch"].map(lambda version: [int(number) for number in version.split(".")])  # 2.10 is after 2.9
    frame = frame.loc[numbers.sort_values(kind="stable").index]
    frame = frame.drop_duplicates(["model", "mode", "image_size", "device", "precision", "compiled"], keep="last")
    execution = frame["compiled"].map({True: "compiled", False: "eager"})
    frame["setup"] = frame["device"] + ", " + frame["precision"] + ", " + execution + ", torch " + frame["torch"]
    return frame


def setups(published: pd.DataFrame, rows: Sequence[BenchmarkRow]) -> list[str]:
    """Return the setups that have speeds for some of the rows.

    CPUs come first if a row was timed on a CPU, otherwise GPUs. Within both, setups with the most speeds come first.
    """
    counts = beside(rows, published)["setup"].value_counts()
    on_cpu = any(row.device == "cpu" for row in rows)
    return sorted(counts.index, key=lambda setup: (("NVIDIA" in setup) == on_cpu, -counts[setup]))


def beside(rows: Iterable[BenchmarkRow], published: pd.DataFrame) -> pd.DataFrame:
    """Return each timed row of a timm model, built as timm defines it, with every published speed of the same model,
    image size and mode.

    Columns: name, model, family, mode, variant, image_size, batch_size, here (samples/s), and from the publisher:
    setup, theirs (samples/s), their_batch_size; `times` is theirs / here.
    """
    names = ["name", "model", "family", "mode", "variant", "batch_size", "image_size", "samples_per_s"]
    timed = [row for row in rows if row.library == "timm" and row.samples_per_s and not changes(row)]
    ours = pd.DataFrame([[getattr(row, name) for name in names] for row in timed], columns=[*names[:-1], "here"])
    theirs = published[["model", "mode", "image_size", "setup", "samples_per_s", "batch_size"]].rename(
        columns={"samples_per_s": "theirs", "batch_size": "their_batch_size"}
    )
    joined = ours.merge(theirs, on=["model", "mode", "image_size"])
    return joined.assign(times=joined["theirs"] / joined["here"])
