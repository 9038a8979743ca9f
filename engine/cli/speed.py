"""The commands benchmark, suite-build and device: how fast models and devices are here."""

from importlib import import_module
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from engine.cli.here import Queued, run_here, store_here, tell_failures
from engine.cli.output import TableFile, brief, note, show_table
from engine.names import expand_files, read_text
from engine.results import BenchmarkRow, DeviceRow
from engine.specs import BenchmarkSpec, DeviceSpec
from engine.specs.building import OPTIONS

SHOWN = ["library", "model", *OPTIONS, "mode", "variant", "batch_size", "latency_ms", "p90_ms", "back_to_back_ms"]
SHOWN += ["samples_per_s", "spread"]
SHOWN += ["speedup", "speedup_low", "speedup_high", "verdict", "accuracy", "max_deviation", "flags", "status"]
"""The columns printed on a terminal; a file has all columns."""


class BenchmarkFlags(BenchmarkSpec):
    """The spec as flags, with files that only the command line reads: @FILE, FILE.json and batch sizes."""

    batch_size_file: Path | None = Field(
        None, description="A file with the batch size list: a line per model, `name size` or `name,size`."
    )

    def spec(self) -> BenchmarkSpec:
        """Return the spec without the other flags, with the files it names read in. Errors: Refused."""
        fields = self.model_dump(include=set(BenchmarkSpec.model_fields), exclude_unset=True)
        if self.batch_size_file:
            fields["batch_size_list"] = read_text(self.batch_size_file, "file of batch sizes")
        models, configs = expand_files(self.models)
        return BenchmarkSpec.model_validate(fields | {"models": models, "configs": self.configs | configs})


class Benchmark(BenchmarkFlags):
    """Time models here and now: inference or training, with several variants side by side.

    @FILE reads names from a text or CSV file; FILE.json is an open_clip configuration of your own;
    python:package.module:factory is a module of your own, which is built by calling the factory and gets images of 224
    pixels unless --image-size says otherwise. It is imported from the current folder or PYTHONPATH.
    """

    format: Literal["full", "timm", "dynamo"] = Field(
        "full", description="timm, dynamo: the columns of timm's benchmark.py or of PyTorch's dynamo benchmark."
    )
    output: TableFile | None = Field(None, description="Write the rows to this .csv, .json or .parquet file.")

    def cli_cmd(self) -> None:
        from engine.report import frames
        from engine.report.export import timm_dynamo
        from engine.report.timings import rates, readable

        with store_here() as store:
            run, rows = run_here(store, self.spec(), BenchmarkRow)
            utilisation = rates.utilisation(rows, rates.rates(store), run.host)
        frame = timm_dynamo.export(rows, self.format, utilisation)
        if self.format == "full":
            frame = frames.with_environment(frame, run)
        show_table(frame, brief(frame, SHOWN) if self.format == "full" else frame, self.output)
        for line in readable.summary_lines(rows):
            note(line)
        tell_failures(run, rows, lambda row: f"{row.name} ({row.variant}, {row.mode}, batch {row.batch_size})")


class SubmitBenchmark(Queued, BenchmarkFlags):
    """Queue a benchmark; it has the same flags as `benchmark`."""


class SuiteBuild(BaseModel):
    """Update the suite's list of models from the installed timm."""

    def cli_cmd(self) -> None:
        entries = import_module("engine.tasks.suite").build()
        note(f"{len(entries)} models")


RATES_SHOWN = [
    "device",
    "model",
    "threads",
    "size",
    "gflop_per_s",
    "gb_per_s",
    "latency_ms",
    "samples",
    "flags",
    "status",
]
"""The columns printed on a terminal; a file has all columns."""


class DeviceFlags(DeviceSpec):
    """The spec as flags of a command."""

    def spec(self) -> DeviceSpec:
        """Return the spec without the other flags."""
        return DeviceSpec.model_validate(self.model_dump(include=set(DeviceSpec.model_fields), exclude_unset=True))


class Device(DeviceFlags):
    """Measure a device here and now: matrix products per data type, and memory copies."""

    output: TableFile | None = Field(None, description="Write the rows to this .csv, .json or .parquet file.")

    def cli_cmd(self) -> None:
        from engine.report import frames

        with store_here() as store:
            run, rows = run_here(store, self.spec(), DeviceRow)
        frame = frames.with_environment(frames.device(rows), run)
        show_table(frame, brief(frame, RATES_SHOWN), self.output)
        tell_failures(run, rows, lambda row: row.model)


class SubmitDevice(Queued, DeviceFlags):
    """Queue a measurement of a device; it has the same flags as `device`."""
