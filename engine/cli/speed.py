"""The commands benchmark, suite-build and device: how fast models and devices are here."""

from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from engine.cli.here import Flags, Queued, RunHere, run_here, store_here, tell_failures
from engine.cli.output import SHOWN, brief, note, show_table
from engine.names import read_text
from engine.specs import BenchmarkSpec, DeviceSpec


class BenchmarkFlags(Flags, BenchmarkSpec):
    """The spec as flags, with files that only the command line reads: @FILE, FILE.json and batch sizes."""

    batch_size_file: Path | None = Field(
        None, description="A file with the batch size list: a line per model, `name size` or `name,size`."
    )

    def given(self) -> dict[str, Any]:
        if not self.batch_size_file:
            return super().given()
        return super().given() | {"batch_size_list": read_text(self.batch_size_file, "file of batch sizes")}


class Benchmark(RunHere, BenchmarkFlags):
    """Time models here and now: inference or training, with several variants side by side.

    @FILE reads names from a text or CSV file; FILE.json is an open_clip configuration of your own;
    python:package.module:factory is a module of your own, which is built by calling the factory and gets images of 224
    pixels unless --image-size says otherwise. It is imported from the current folder or PYTHONPATH.
    """

    format: Literal["full", "timm", "dynamo"] = Field(
        "full", description="timm, dynamo: the columns of timm's benchmark.py or of PyTorch's dynamo benchmark."
    )

    def cli_cmd(self) -> None:
        from engine.report import frames
        from engine.report.export import timm_dynamo
        from engine.report.timings import rates, readable

        with store_here() as store:
            run, rows = run_here(store, self.spec())
            utilisation = rates.utilisation(rows, rates.rates(store), run.host)
        frame = timm_dynamo.export(rows, self.format, utilisation)
        if self.format == "full":
            frame = frames.with_environment(frame, run)
        show_table(frame, brief(frame, SHOWN[run.kind]) if self.format == "full" else frame, self.output)
        for line in readable.summary_lines(rows):
            note(line)
        tell_failures(run, rows)


class SubmitBenchmark(Queued, BenchmarkFlags):
    """Queue a benchmark; it has the same flags as `benchmark`."""


class SuiteBuild(BaseModel):
    """Update the suite's list of models from the installed timm."""

    def cli_cmd(self) -> None:
        entries = import_module("engine.tasks.suite").build()
        note(f"{len(entries)} models")


class DeviceFlags(Flags, DeviceSpec):
    """The spec as flags of a command."""


class Device(RunHere, DeviceFlags):
    """Measure a device here and now: matrix products per data type, and memory copies."""


class SubmitDevice(Queued, DeviceFlags):
    """Queue a measurement of a device; it has the same flags as `device`."""
