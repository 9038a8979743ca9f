"""Put measured, published and estimated speeds side by side: measured first, each with its source."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from engine.estimate import BUDGET_S, calibrate, devices
from engine.estimate.devices import FittedDevice
from engine.estimate.work import KEY
from engine.published import speeds
from engine.report.style import digits
from engine.report.timings import stored
from engine.report.timings.stored import MOST_RUNS, Setting
from engine.specs import BenchmarkSpec
from engine.specs.base import device_on_node
from engine.specs.fields.variant import RunPrecision
from engine.store import Store

SPEEDS = ["samples_per_s", "latency_ms"]
COLUMNS = ["batch_size", *(f"{name}{end}" for name in SPEEDS for end in ("", "_low", "_high")), "source", "in_range"]
OUT_OF_RANGE = "estimate outside the fitted range"
CALIBRATION = "calibration"
"""Name of a run that calibrates a device."""


@dataclass(frozen=True)
class Device:
    """A device whose speed can be estimated, with the speeds that were measured on it."""

    fitted: FittedDevice
    measured: pd.DataFrame
    """KEY, batch_size, samples_per_s, latency_ms; of timings made here, which are all counted, also `measured` and
    `flags`, as in stored."""
    source: str
    """Source of `measured`: `measured` (here or in an imported file) or `published` (by others)."""

    def speeds(self, work: pd.DataFrame, batch_size: int | None = None) -> pd.DataFrame:
        """Return COLUMNS for each row of `work` (see work.read). A measured value has no interval.

        batch_size: None means the measured batch size, or the device's typical one for estimates.
        """
        table = devices.estimate(self.fitted, work, batch_size)
        found = self.measured if batch_size is None else self.measured[self.measured["batch_size"] == batch_size]
        found = found.drop_duplicates(KEY).set_index(KEY)
        known, found = work.index.isin(found.index), found.reindex(work.index)
        for name in COLUMNS[:-2]:  # batch size, speeds and their limits, which a timing lacks
            table[name] = np.where(known, found.get(name, np.nan), table[name])
        table["source"] = np.where(known, _sources(self.source, found), "estimated")
        table["in_range"] |= known
        return table.astype({"batch_size": int})[COLUMNS]


def _sources(source: str, timed: pd.DataFrame) -> "pd.Series[str]":
    """Return the source of each timing with its flags, such as `measured, contended`. timed: may lack `flags`."""
    flags = timed.get("flags", pd.Series("", index=timed.index))
    return source + (", " + flags).where(flags != "", "")


def timings(store: Store) -> pd.DataFrame:
    """Return the latest timing of every model, image size and timing setting: see stored.latest."""
    runs = store.runs(kind="benchmark", limit=MOST_RUNS)
    return stored.latest(stored.of_run(run, store.rows(run.id)) for run in runs)


def calibration(
    work: pd.DataFrame,
    device: str = "cpu",
    *,
    precision: RunPrecision = "float32",
    batch_size: int = 1,
    threads: int | None = None,
    budget_s: float = BUDGET_S,
    nodes: int = 1,
) -> BenchmarkSpec:
    """Return the benchmark that calibrates a device, or `nodes` of a cluster as one. Errors: Refused."""
    models = calibrate.choose(work, published_alike(devices.shipped(), device)[0], batch_size, budget_s)
    share_s = budget_s / len(models)
    return BenchmarkSpec(
        models=tuple(models),
        device=device,
        nodes=nodes,
        precision=(precision,),
        batch_size=batch_size,
        threads=threads,
        replicates=1,
        min_seconds=share_s,
        max_seconds=3 * share_s,
    )


def available(timed: pd.DataFrame, work: pd.DataFrame, folder: Path) -> list[Device]:
    """Return the devices timed here, those calibrated from files in `folder`, and the published ones.

    timed: from stored.latest. Settings with too few timed models of the catalogue are left out, and so are files that
    cannot be read: see `imported`.
    """
    published = devices.shipped()
    counts = timed.groupby("setting", sort=False)["name"].transform("size")
    often = timed[counts >= devices.FEWEST]  # a setting with fewer gives no device, and would take 20 ms
    timed_here = [device_of_setting(often, setting, work, published) for setting in stored.settings(often)]
    measured = speeds.read()
    return [
        *(device for device in timed_here if device),
        *imported(folder)[0],
        *(
            Device(fitted, _published(fitted, measured), "published")
            for fitted in published
            if fitted.mode == "inference"
        ),
    ]


def imported(folder: Path) -> tuple[list[Device], list[str]]:
    """Return the devices in the files of `calibrate --from`, and a text for each that cannot be read, with a remedy."""
    found, problems = list[Device](), list[str]()
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(_read_imported(path))
        except (OSError, ValueError):  # such as a device of another version
            problems.append(f"The device in {path} cannot be read. Repeat its `calibrate --from`, or delete the file.")
    return found, problems


def _read_imported(path: Path) -> Device:
    """Return the device in a file of `calibrate --from`. Its timings are in the CSV beside it, which old ones lack.

    Errors: OSError, ValueError.
    """
    table, columns = path.with_suffix(".csv"), {"image_size": str, "batch_size": int, "seconds": float}
    empty = pd.DataFrame(columns=["name", *columns])
    timed = pd.read_csv(table, usecols=["name", *columns], dtype=columns) if table.is_file() else empty
    timed = timed.assign(samples_per_s=1 / timed["seconds"], latency_ms=1000 * timed["batch_size"] * timed["seconds"])
    return Device(FittedDevice.model_validate_json(path.read_bytes()), timed[[*KEY, "batch_size", *SPEEDS]], "measured")


def nearest_device(available: Sequence[Device], setting: Setting) -> FittedDevice | None:
    """Return the device of a timing setting, else the first one of the same kind, CPU or accelerator."""
    fitted = [device.fitted for device in available]
    own = [device for device in fitted if device.label == setting.label]
    return next(iter(own or published_alike(fitted, setting.device)), None)


def device_of_setting(
    timed: pd.DataFrame, setting: Setting, work: pd.DataFrame, published: Sequence[FittedDevice]
) -> Device | None:
    """Return the device of a timing setting; None if too few models or one family of the catalogue are timed in it."""
    found = _as_counted(stored.within(timed, setting), work).drop(columns="context_length")
    found = found.assign(batch_size=setting.batch_size).drop_duplicates(KEY)
    # At batch 1, latency is used. For larger batches it is throughput, because an accelerator queues its calls.
    per_call = found["latency_ms"] / 1000 / setting.batch_size
    found["seconds"] = per_call if setting.batch_size == 1 else (1 / found["samples_per_s"]).fillna(per_call)
    found = found[pd.MultiIndex.from_frame(found[KEY]).isin(work.index)]
    counted = work.loc[pd.MultiIndex.from_frame(found[KEY])]
    if len(counted) < devices.FEWEST or counted["family"].nunique() < 2:
        return None
    labels = {"device": setting.device_name or setting.device, "precision": setting.dtype, "name": setting.label}
    fitted = calibrate.calibrate_device(found, work, published_alike(published, setting.device), **labels)
    return Device(fitted, found[[*KEY, "batch_size", *SPEEDS, "measured", "flags"]], "measured")


def _as_counted(timed: pd.DataFrame, work: pd.DataFrame) -> pd.DataFrame:
    """Return the timings without those of texts of another length than was counted. timed: from stored.latest."""
    tokens, counted = timed["context_length"], work["context_length"].reindex(pd.MultiIndex.from_frame(timed[KEY]))
    return timed[tokens.isna() | counted.isna().to_numpy() | (tokens == counted.to_numpy())]


def published_alike(published: Sequence[FittedDevice], device: str) -> list[FittedDevice]:
    """Return the published devices of the same kind, CPU or accelerator, as torch's `device`."""
    return [
        fitted
        for fitted in published
        if fitted.mode == "inference" and ("NVIDIA" in fitted.device) != (device_on_node(device) == "cpu")
    ]


def _published(fitted: FittedDevice, frame: pd.DataFrame) -> pd.DataFrame:
    keep = np.logical_and.reduce([frame[fact] == getattr(fitted, fact) for fact in speeds.SETTING])
    frame = frame[keep]
    latency = 1000 * frame["batch_size"] / frame["samples_per_s"]
    return frame.assign(name="timm:" + frame["model"], latency_ms=latency)[[*KEY, "batch_size", *SPEEDS]]


def find(available: Sequence[Device], name: str) -> list[Device]:
    """Return the devices whose label has all words of `name`, as devices.find does. Errors: Refused, with labels."""
    fitted = devices.find([device.fitted for device in available], name)
    return [next(device for device in available if device.fitted is one) for one in fitted]


def side_by_side(available: Sequence[Device], work: pd.DataFrame, batch_size: int | None = None) -> pd.DataFrame:
    """Return a row per model and device: model, image_size, device, precision, COLUMNS, error_percent.

    `error_percent` of an estimate is the device's median error on families that were not fitted.
    """
    parts = []
    for device in available:
        part = device.speeds(work, batch_size).rename_axis(["model", "image_size"]).reset_index()
        part.insert(2, "device", device.fitted.label)
        part.insert(3, "precision", device.fitted.precision)
        part["error_percent"] = np.where(part["source"] == "estimated", 100 * device.fitted.median_error, np.nan)
        parts.append(part)
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def of_model(
    available: Sequence[Device], timed: pd.DataFrame, work: pd.DataFrame, name: str, image_size: str
) -> pd.DataFrame:
    """Return a model's speeds: timings in settings without estimates, then all devices. timed: from stored.latest."""
    rows = _as_counted(timed[(timed["name"] == name) & (timed["image_size"] == image_size)], work)
    labels = {device.fitted.label for device in available}
    parts = [
        stored.within(rows, setting)
        .head(1)
        .assign(device=setting.label, batch_size=setting.batch_size, in_range=True)
        .assign(source=lambda measured: _sources("measured", measured))
        for setting in stored.settings(rows)
        if setting.label not in labels
    ]
    key = (name, image_size)
    parts += [side_by_side(available, work.loc[[key]])] if key in work.index else []
    columns = ["device", *COLUMNS, "error_percent"]
    found = [part.reindex(columns=columns) for part in parts]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=columns)


def for_readers(frame: pd.DataFrame) -> pd.DataFrame:
    """Return speeds as a reader sees them: `source` names estimates outside the fitted range.

    frame: COLUMNS. For estimates, the new column `interval` is that of the latency.
    """
    estimated = frame["source"] == "estimated"
    outside = estimated & ~frame["in_range"].astype(bool)
    return frame.assign(
        interval=_intervals(frame).where(estimated, None),
        source=frame["source"].mask(outside, "estimated, outside the fitted range"),
    )


def _intervals(frame: pd.DataFrame) -> "pd.Series[str]":
    """Return the intervals of estimated latencies, such as `3.1 to 4.7`."""
    low, high = (frame[f"latency_ms_{end}"].map(digits) for end in ("low", "high"))
    return low + " to " + high


def with_speeds(frame: pd.DataFrame, device: Device, work: pd.DataFrame, batch_size: int | None = None) -> pd.DataFrame:
    """Return rows of the catalogue with the speeds of a device: COLUMNS; empty where a model has no complete count.

    `flags` are those of a timing made here, or that an estimate is outside the fitted range. frame: has KEY. Its
    columns latency_ms, samples_per_s and flags are replaced. batch_size: the device's typical one if None; all rows
    have the same, so that their latencies compare.
    """
    frame = frame.drop(columns=[name for name in COLUMNS if name in frame])
    filled = frame.join(device.speeds(work, batch_size or device.fitted.typical_batch), on=KEY)
    flags = filled["source"].fillna("").str.partition(", ")[2]
    outside = (filled["source"] == "estimated") & ~filled["in_range"].fillna(False).astype(bool)
    return filled.assign(flags=flags.mask(outside, OUT_OF_RANGE))


def replace_timings(frame: pd.DataFrame, device: Device, work: pd.DataFrame) -> pd.DataFrame:
    """Return a table of `choose.table` with its timings replaced by the speeds of a device: see with_speeds.

    `measured` states the source: run, date and flags of a timing made here, the interval of an estimate.
    """
    filled = with_speeds(frame, device, work)
    estimated = filled["source"] == "estimated"
    timings = device.measured.reindex(columns=[*KEY, "batch_size", "measured"]).drop_duplicates(KEY)
    timings = timings[timings["batch_size"] == device.fitted.typical_batch].set_index(KEY).astype(object)
    timings = filled[KEY].join(timings, on=KEY).fillna("")
    interval = "estimated, 90 % interval " + _intervals(filled) + " ms"
    source = filled["source"].fillna("")
    measured = source.where(timings["measured"] == "", device.source + ", " + timings["measured"])
    measured = measured.mask(estimated, interval)
    sources = filled["provenance"] + "\nlatency of " + device.fitted.label + ": " + measured
    return filled.assign(measured=measured, provenance=sources.where(measured != "", filled["provenance"]))


def worth_measuring(frame: pd.DataFrame, quality: str) -> pd.DataFrame:
    """Return the estimated rows that may reach the Pareto front of latency and `quality`, most promising first.

    frame: from `with_speeds`. The column `gain` is the best latency among rows of at least this quality / the lower end
    of the row's interval. Estimates outside the fitted range do not count as best.
    """
    rows = frame.dropna(subset=[quality, "latency_ms"]).sort_values(quality, ascending=False, kind="stable")
    trusted = rows["latency_ms"].where(rows["in_range"].astype(bool))
    fastest = trusted.groupby(rows[quality], sort=False).min().cummin().ffill().fillna(np.inf)
    gain = rows[quality].map(fastest) / rows["latency_ms_low"]
    rows = rows.assign(gain=gain)[(rows["source"] == "estimated") & (gain > 1)]
    return rows.sort_values("gain", ascending=False, kind="stable")
