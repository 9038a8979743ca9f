"""The commands benchmark, suite-build, device and recurrent: how fast models, devices and recurrent layers are here."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, model_validator

from engine.cli.here import Flags, Queued, RunHere, conclude, main_columns, run_here, show_rows, store_here
from engine.cli.output import OutputFile, clear_progress, note, print_progress, show_table, show_text, table_format
from engine.names import read_text
from engine.results import Event, Progress, RecurrentRow
from engine.settings import Settings
from engine.specs import BenchmarkSpec, DeviceSpec, RecurrentSpec, Refused, Spec
from engine.specs.fields.runners import RUNNERS
from engine.words import plural


class BenchmarkFlags(Flags, BenchmarkSpec):
    """The spec as flags, with files that only the command line reads: @FILE, FILE.json and batch sizes."""

    batch_size_file: Path | None = Field(
        None, description="A file with the batch size list: a line per model, `name size` or `name,size`."
    )

    @model_validator(mode="before")
    @classmethod
    def _read_file(cls, data: Any) -> Any:
        """Return the flags, with the content of the file as the batch size list. Errors: Refused."""
        if file := data.get("batch_size_file"):
            if data.get("batch_size_list"):
                raise Refused("--batch-size-file and --batch-size-list exclude each other: leave one out")
            data["batch_size_list"] = read_text(Path(file), "file of batch sizes")
        return data


class Benchmark(RunHere, BenchmarkFlags):
    """Time models in this process: inference or training, with several variants side by side.

    It does not join the queue: it starts as soon as no other run is active on this host.

    @FILE reads names from a text or CSV file; FILE.json is an open_clip configuration of your own;
    python:package.module:factory is a module of your own, which is built by calling the factory and gets images of 224
    pixels unless --image-size says otherwise. It is imported from the current folder or PYTHONPATH.
    """

    format: Literal["full", "timm", "dynamo"] = Field(
        "full", description="timm, dynamo: the columns of timm's benchmark.py or of PyTorch's dynamo benchmark."
    )

    def cli_cmd(self) -> None:
        from engine.report.export import timm_dynamo
        from engine.report.timings import readable

        if self.format == "dynamo" and len(self.plan) == 1:
            raise Refused(
                f"--format dynamo has one row per variant after the first, and {self.plan[0].label} is the only "
                "variant. Give several, such as --variants eager,compile."
            )
        if self.format == "timm" and self.purpose != "performance":
            raise Refused(
                f"--format timm has speeds, which purpose {self.purpose} does not measure. Use --format dynamo or full."
            )
        with store_here() as store:
            run, rows = run_here(store, self.spec())
        if self.format == "full":
            show_rows(run, rows, self.output)
        else:
            frame = (timm_dynamo.timm if self.format == "timm" else timm_dynamo.dynamo)(rows)
            show_table(frame, frame, self.output)
        for line in readable.summary_lines(rows):
            note(line)
        conclude(run, rows)


class SubmitBenchmark(Queued, BenchmarkFlags):
    """Queue a benchmark."""


class SuiteBuild(BaseModel):
    """Update the suite's list of models from the installed timm."""

    def cli_cmd(self) -> None:
        entries = import_module("engine.tasks.suite").build()
        note(f"the suite now lists {plural(len(entries), 'model')}")


class Device(RunHere, DeviceSpec):
    """Measure a device in this process: matrix products per data type, and memory copies.

    It does not join the queue: it starts as soon as no other run is active on this host.
    """


class SubmitDevice(Queued, DeviceSpec):
    """Queue a measurement of a device."""


class RecurrentFlags(Flags, RecurrentSpec):
    """The spec as flags of a command."""

    def spec(self) -> Spec:
        """Return the spec without the other flags. Print warnings for runners that are left out or take very long."""
        if self.left_out:
            note(f"left out, because {self.device} has no cuDNN: {', '.join(self.left_out)}")
        if slow := [name for name in self.chosen if RUNNERS[name].one_by_one]:
            note(f"warning: {' and '.join(slow)} compute one sequence after the other, which takes very long")
        return super().spec()


class Blocks:
    """Print each family's block of the fastrnns table to stdout as soon as its rows are there."""

    def __init__(self, separator: str) -> None:
        self._separator = separator
        self._rows: list[RecurrentRow] = []
        self._printed = False

    def on_event(self, event: Event) -> None:
        """Print progress and, once the rows of a family are complete, their block."""
        if isinstance(event, Progress):  # the next family begins, or all are done
            self.flush()
        elif isinstance(event, RecurrentRow):
            self._rows.append(event)
        print_progress(event)

    def flush(self) -> None:
        """Print the rows that are not printed yet."""
        from engine.report.export import fastrnns

        if text := fastrnns.table(self._rows, self._separator):
            clear_progress()
            print("\n" + text if self._printed else text, end="", flush=True)
            self._printed = True
        self._rows = []


class Recurrent(RecurrentFlags):
    """Time recurrent layers in this process, forward and backward: cuDNN, ATen, scripted, compiled, plain Python.

    It does not join the queue: it starts as soon as no other run is active on this host.
    Prints the table of PyTorch's fastrnns benchmark, in milliseconds, each family as soon as it is timed. A sweep has a
    table with one row per size.
    """

    format: Literal["table", "oss", "pep", "csv", "json", "parquet"] | None = Field(
        None,
        description="table, oss and pep have the layouts of fastrnns with one size per runner; csv, json and parquet "
        "have every value (default: by the ending of --output, else table). Standard deviations are over timing "
        "samples; if a sample is the mean of K calls, info says blocks_of_K.",
    )
    separator: str = Field(" ", max_length=20, description="Separator of the table's columns. Default: a space.")
    output: OutputFile | None = Field(None, description="Write to this file.")

    @model_validator(mode="after")
    def _check_layout(self) -> "Recurrent":
        if self._layout == "parquet" and self.output is None:
            raise ValueError("parquet is not for a terminal: give --output FILE too")
        if self.swept and (self.output or self.format) and self._layout in ("table", "oss", "pep"):
            raise ValueError(
                f"--format {self._layout} has one size per runner, and {self.sweep} is swept. Use --format csv or json."
            )
        return self

    @property
    def _layout(self) -> str:
        return table_format(self.output, self.format) or "table"

    def cli_cmd(self) -> None:
        from engine.report.export import bulk, fastrnns
        from engine.report.export import tables as export
        from engine.store.files import RunFiles

        streamed = self._layout == "table" and not self.swept and self.output is None
        if "separator" in self.model_fields_set and (self._layout != "table" or self.swept):
            note(f"--separator has no effect: {'a sweep' if self.swept else self._layout} has columns of its own")
        blocks = Blocks(self.separator)
        with store_here() as store:
            run, rows = run_here(store, self.spec(), on_event=blocks.on_event if streamed else print_progress)
            blocks.flush()
            frame = bulk.of_run(store, run, rows)
        if self._layout == "table" and self.swept:
            show_table(frame, main_columns(run, frame), None)
        elif self.output and self._layout in export.FORMATS:
            export.save(frame, self.output, self._layout)
            note(f"{plural(len(frame), 'row')} written to {self.output}")
        elif not streamed:
            texts: dict[str, Callable[[], str]] = {
                "table": lambda: fastrnns.table(rows, self.separator),
                "oss": lambda: fastrnns.oss(rows),
                "pep": lambda: fastrnns.pep(rows, RunFiles(Settings().runs_dir, run.id).dir),
                "csv": lambda: export.to_csv(frame),
                "json": lambda: export.to_json(frame) + "\n",
            }
            show_text(texts[self._layout](), self.output)
        conclude(run, rows)


class SubmitRecurrent(Queued, RecurrentFlags):
    """Queue a timing of recurrent layers."""
