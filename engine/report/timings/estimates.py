"""Put measured, published and estimated speeds side by side: measured first, each with its source."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from engine.estimate import calibrate, devices
from engine.estimate.devices import Known
from engine.estimate.work import KEY
from engine.published import speeds
from engine.report.timings import stored
from engine.report.timings.stored import MOST_RUNS, Setting
from engine.store import Store

SPEEDS = ["samples_per_s", "latency_ms"]
COLUMNS = ["batch_size", *(f"{name}{end}" for name in SPEEDS for end in ("", "_low", "_high")), "source", "in_range"]
OUT_OF_RANGE = "estimate outside the fitted range"
FACTS = ["device", "precision", "memory_format", "compiled", "torch", "mode"]


@dataclass(frozen=True)
class Device:
    """A device whose speed can be estimated, with the speeds that were measured on it."""

    known: Known
    measured: pd.DataFrame
    """KEY, batch_size, samples_per_s, latency_ms."""
    source: str
    """`measured` here, or `published` by others."""

    def speeds(self, work: pd.DataFrame, batch_size: int | None = None) -> pd.DataFrame:
        """Return COLUMNS for each row of `work` (see work.read). A measured value has no interval.

        batch_size: None means the measured batch size, or the device's typical one for estimates.
        """
        table = devices.estimate(self.known, work, batch_size).assign(source="estimated")
        found = self.measured if batch_size is None else self.measured[self.measured["batch_size"] == batch_size]
        found = found.drop_duplicates(KEY).set_index(KEY)
        found = found[found.index.isin(work.index)]
        table.loc[found.index, ["batch_size", *SPEEDS]] = found[["batch_size", *SPEEDS]].to_numpy(dtype=float)
        table.loc[found.index, [name for name in COLUMNS if name.endswith(("_low", "_high"))]] = np.nan
        table.loc[found.index, "source"], table.loc[found.index, "in_range"] = self.source, True
        return table.astype({"batch_size": int})[COLUMNS]


def timings(store: Store) -> pd.DataFrame:
    """Return the latest timing of every model, image size and timing setting: see stored.latest."""
    runs = store.runs(kind="benchmark", limit=MOST_RUNS)
    return stored.latest(stored.of_run(run, store.rows(run.id)) for run in runs)


def available(timed: pd.DataFrame, work: pd.DataFrame, folder: Path) -> list[Device]:
    """Return the devices timed here, those calibrated from files in `folder`, and the published ones.

    timed: from stored.latest. A setting needs devices.FEWEST timed models of the catalogue.
    """
    published = devices.shipped()
    here = [own(timed, setting, work, published) for setting in stored.settings(timed)]
    imported = [Known.model_validate_json(path.read_bytes()) for path in sorted(folder.glob("*.json"))]
    measured = speeds.read()
    nothing = pd.DataFrame(columns=[*KEY, "batch_size", *SPEEDS])
    return [
        *(device for device in here if device),
        *(Device(known, nothing, "measured") for known in imported),
        *(Device(known, _published(known, measured), "published") for known in published if known.mode == "inference"),
    ]


def own(timed: pd.DataFrame, setting: Setting, work: pd.DataFrame, published: Sequence[Known]) -> Device | None:
    """Return the device of a timing setting; None if too few models of the catalogue are timed in it."""
    found = stored.within(timed, setting).assign(batch_size=setting.batch_size).drop_duplicates(KEY)
    # One call at a time is a latency. Larger batches are for throughput, where an accelerator's calls queue up.
    per_call = found["latency_ms"] / 1000 / setting.batch_size
    found["seconds"] = per_call if setting.batch_size == 1 else (1 / found["samples_per_s"]).fillna(per_call)
    counted = pd.MultiIndex.from_frame(found[KEY]).isin(work.index)
    if counted.sum() < devices.FEWEST:
        return None
    what = {"device": setting.device_name or setting.device, "precision": setting.dtype, "name": setting.label}
    known = calibrate.calibrated(found, work, near(published, setting.device), **what)
    return Device(known, found[[*KEY, "batch_size", *SPEEDS]], "measured")


def near(published: Sequence[Known], device: str) -> list[Known]:
    """Return the published devices of the same kind, CPU or accelerator, as a device of torch."""
    return [
        known for known in published if known.mode == "inference" and ("NVIDIA" in known.device) != (device == "cpu")
    ]


def _published(known: Known, frame: pd.DataFrame) -> pd.DataFrame:
    keep = np.logical_and.reduce([frame[fact] == getattr(known, fact) for fact in FACTS])
    frame = frame[keep]
    latency = 1000 * frame["batch_size"] / frame["samples_per_s"]
    return frame.assign(name="timm:" + frame["model"], latency_ms=latency)[[*KEY, "batch_size", *SPEEDS]]


def find(available: Sequence[Device], name: str) -> Device:
    """Return the first device whose label has all these words. Errors: Refused, with the labels."""
    known = devices.find([device.known for device in available], name)
    return next(device for device in available if device.known is known)


def side_by_side(available: Sequence[Device], work: pd.DataFrame, batch_size: int | None = None) -> pd.DataFrame:
    """Return the speed of each model on each device, one row per pair.

    Columns: model, image_size, device, precision, COLUMNS.
    """
    parts = []
    for device in available:
        part = device.speeds(work, batch_size).rename_axis(["model", "image_size"]).reset_index()
        part.insert(2, "device", device.known.label)
        part.insert(3, "precision", device.known.precision)
        parts.append(part)
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def fill(frame: pd.DataFrame, device: Device, work: pd.DataFrame, batch_size: int | None = None) -> pd.DataFrame:
    """Return rows of the catalogue with the speeds of a device: COLUMNS; empty where a model has no complete count.

    frame: has KEY. Its own latency_ms and samples_per_s are replaced. batch_size: the device's typical one if None; all
    rows have the same, so that their latencies compare.
    """
    frame = frame.drop(columns=[name for name in COLUMNS if name in frame])
    return frame.join(device.speeds(work, batch_size or device.known.typical_batch), on=KEY)


def instead_of_timings(frame: pd.DataFrame, device: Device, work: pd.DataFrame) -> pd.DataFrame:
    """Return a table of `choose.table` with the speeds of a device in place of those timed here.

    `measured` states the source and the interval of an estimate. Estimates outside the fitted range have a flag.
    """
    filled = fill(frame, device, work)
    estimated = filled["source"] == "estimated"
    interval = "estimated, 90 % interval " + filled["latency_ms_low"].map("{:.3g} to ".format)
    interval += filled["latency_ms_high"].map("{:.3g} ms".format)
    measured = filled["source"].fillna("").mask(estimated, interval)
    flags = pd.Series("", index=filled.index).mask(
        estimated & ~filled["in_range"].fillna(False).astype(bool), OUT_OF_RANGE
    )
    sources = filled["provenance"] + "\nlatency of " + device.known.label + ": " + measured
    return filled.assign(measured=measured, flags=flags, provenance=sources.where(measured != "", filled["provenance"]))


def worth_measuring(frame: pd.DataFrame, quality: str) -> pd.DataFrame:
    """Return the estimated rows that could enter the Pareto front of latency and `quality`, the largest gain first.

    frame: from `fill`. The column `gain` says how many times faster than all rows of at least this quality the row is
    at the low end of its interval.
    """
    rows = frame.dropna(subset=[quality, "latency_ms"]).sort_values(quality, ascending=False, kind="stable")
    fastest = rows.groupby(quality, sort=False)["latency_ms"].min().cummin()
    gain = rows[quality].map(fastest) / rows["latency_ms_low"]
    rows = rows.assign(gain=gain)[(rows["source"] == "estimated") & (gain > 1)]
    return rows.sort_values("gain", ascending=False, kind="stable")
