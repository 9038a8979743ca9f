"""The commands estimate and calibrate: speeds of models that nobody has timed."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, model_validator
from typing_extensions import TypeAliasType

from engine import atomic
from engine.cli.here import conclude, run_here, store_here
from engine.cli.output import TableFile, note, show_table
from engine.estimate import BUDGET_S
from engine.names import resolve
from engine.settings import Settings
from engine.specs import Refused
from engine.specs.base import PATTERNS, RealDevice, matching
from engine.specs.fields.timed import Threads
from engine.specs.fields.variant import RunPrecision
from engine.words import plural

if TYPE_CHECKING:
    import pandas as pd

    from engine.report.timings.estimates import Device

SHOWN = ["model", "image_size", "device", "batch_size", "samples_per_s", "latency_ms", "latency_ms_low"]
SHOWN += ["latency_ms_high", "source", "in_range"]
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def _seconds(text: Any) -> Any:
    """Return a duration such as `90`, `90s` or `5m` in seconds. Errors: ValueError."""
    if not isinstance(text, str):
        return text
    if not (match := re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())):
        raise ValueError(f"{text!r} is no duration: write seconds, minutes or hours, such as 90s, 5m or 1h")
    return float(match[1]) * UNITS[match[2]]


DURATION = TypeAliasType("DURATION", Annotated[float, BeforeValidator(_seconds), Field(ge=10, le=86_400)])


class Estimate(BaseModel):
    """Estimate the speed of models, measured values first, on this machine and on published devices.

    Without --device, all known devices are listed side by side. A device timed here is known once 19 models are timed
    in one setting; `calibrate` times them.
    """

    models: PATTERNS = Field(description="Names, wildcards, library:name, family:NAME or all.")
    device: str = Field("", description="Words of a known device's name, such as '4090 compiled'. Default: all.")
    batch_size: int | None = Field(None, ge=1, le=65_536, description="Images per call. Default: the device's usual.")
    rates: bool = Field(False, description="Print the error and the effective rates of the devices instead.")
    output: TableFile | None = Field(
        None, description="Write all columns to this .csv, .json or .parquet file; - prints CSV."
    )

    def cli_cmd(self) -> None:
        import pandas as pd

        from engine import shipped
        from engine.estimate import devices, work
        from engine.report.timings import estimates, reliability

        settings = Settings()
        names = resolve(self.models, shipped.families(settings.catalog_dir))
        counted = work.read(settings.catalog_dir)
        available = known_devices(counted)
        if self.device:
            chosen = [choose_device(available, self.device)]
        else:
            chosen = available
            for text in reliability.warnings(available):
                note(text)
        if self.rates:
            parts = [devices.rates(device.fitted).assign(device=device.fitted.label) for device in chosen]
            table = pd.concat(parts)[["device", "kind", "rate", "unit"]]
            show_table(table, table, self.output)
            return
        rows = counted[counted.index.get_level_values("name").isin(names)]
        if missing := sorted(set(names) - set(rows.index.get_level_values("name"))):
            note(f"no estimate, because the catalogue has no complete count: {', '.join(missing[:10])}")
        table = reliability.mark_unreliable(estimates.side_by_side(chosen, rows, self.batch_size), chosen)
        if outside := int((~table["in_range"].astype(bool)).sum()):
            note(f"{plural(outside, 'estimate')} outside the fitted range may be far off: see the column in_range")
        show_table(table, table[SHOWN], self.output)


def known_devices(work: "pd.DataFrame") -> "list[Device]":
    """Return the devices whose speed can be estimated. Print a note on each unreadable one. work: from work.read."""
    from engine.report.timings import estimates

    folder = Settings().device_dir
    for text in estimates.imported(folder)[1]:
        note(text)
    with store_here() as store:
        return estimates.available(estimates.timings(store), work, folder)


def choose_device(available: "Sequence[Device]", name: str) -> "Device":
    """Return the first device that matches `name`. Print how reliable it is, and the names of the others that match."""
    from engine.report.timings import estimates

    device, *others = estimates.find(available, name)
    note_reliability(device)
    if others:
        note(f"{name!r} also matches {'; '.join(other.fitted.label for other in others)}")
    return device


def note_reliability(device: "Device") -> None:
    """Print the error of a device and, if its estimates are unreliable, a warning."""
    from engine.report.timings import reliability

    for text in (reliability.error_sentence(device), *reliability.warnings([device])):
        note(text)


class Calibrate(BaseModel):
    """Time 24 to 48 quick models, so that the speed of all others can be estimated on this machine.

    The timings are a benchmark like any other, and all timings in the same setting count. Latency (batch size 1) and
    throughput (a large batch) are separate settings. With --from, no models are timed.
    It does not join the queue: it starts as soon as no other run is active on this host.
    """

    device: RealDevice = Field("cpu", description="Device to calibrate: cpu, cuda:0, mps, ...")
    precision: RunPrecision = Field("float32", description="Precision to time in.")
    batch_size: int = Field(1, ge=1, le=4096, description="Images per call.")
    threads: Threads = None
    budget: DURATION = Field(BUDGET_S, description="Sampled time in all: seconds, or with a unit such as 5m.")
    from_: Path | None = Field(
        None, alias="from", description="A CSV file of timm's benchmark.py with timings made elsewhere."
    )
    name: Annotated[str, matching(r"[\w .+-]*", "the name of a device: letters, digits, spaces and . + -")] = Field(
        "", max_length=80, description="Name of the device in that file."
    )

    @model_validator(mode="after")
    def _named(self) -> "Calibrate":
        if bool(self.from_) != bool(self.name.strip()):
            raise ValueError("--from and --name belong together: the name of the device that the file was timed on")
        ignored = [name for name in ("device", "batch_size", "threads", "budget") if name in self.model_fields_set]
        if self.from_ and ignored:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in ignored)
            raise ValueError(f"--from times no models, so leave out {flags}")
        return self

    def cli_cmd(self) -> None:
        from engine.estimate import calibrate, devices, work
        from engine.report.timings import estimates, needs, stored
        from engine.store import State

        settings = Settings()
        counted = work.read(settings.catalog_dir)
        published = devices.shipped()
        if self.from_:
            name, folder = self.name.strip(), settings.device_dir
            candidates = [fitted for fitted in published if fitted.mode == "inference"]
            timed = calibrate.read_timm(self.from_)
            fields = {"device": name, "name": name, "precision": self.precision, "timed": "imported"}
            device = calibrate.calibrate_device(timed, counted, candidates, **fields)
            settings.make_runs_dir()
            folder.mkdir(exist_ok=True)
            atomic.export(folder / f"{name}.csv", timed.to_csv(index=False))
            atomic.export(folder / f"{name}.json", device.model_dump_json(indent=1))
            note_reliability(estimates.Device(device, timed, "measured"))
            return
        spec = estimates.calibration(
            counted,
            self.device,
            precision=self.precision,
            batch_size=self.batch_size,
            threads=self.threads,
            budget_s=self.budget,
        )
        if load := needs.overload():
            note(f"{load}: the calibration takes longer than on an idle machine, and its estimates are less accurate")
        with store_here() as store:
            run, rows = run_here(store, spec, name=estimates.CALIBRATION)
            timed = estimates.timings(store)
        if setting := next(filter(None, (stored.setting_of(run, row) for row in rows)), None):
            found = estimates.device_of_setting(timed, setting, counted, published)
            if found:
                note_reliability(found)
            elif run.state == State.FINISHED:
                raise Refused(f"fewer than {devices.FEWEST} models could be timed: see `runs show {run.id}`")
        conclude(run, rows)
