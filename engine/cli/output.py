"""Output of commands: progress to stderr, tables to stdout or to a file."""

import argparse
import ast
import fnmatch
import inspect
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator

from engine import atomic
from engine.results import (
    BenchmarkRow,
    DeviceRow,
    EvaluateRow,
    Event,
    ProfileRow,
    Progress,
    RecurrentRow,
    Row,
    TimedRow,
    TrainRow,
)
from engine.specs import Refused, format_image_size
from engine.specs.fields.building import OPTIONS
from engine.words import in_words, plural

if TYPE_CHECKING:
    import pandas as pd

SHOWN = {
    "profile": [
        *("library", "model", *OPTIONS, "image_size", "batch_size", "mparams", "gflops", "gmacs", "macts"),
        *("fvcore_gmacs", "traffic_mb", "weights_mb", "inference_peak_mb", "training_peak_mb", "complete", "status"),
    ],
    "benchmark": [
        *("library", "model", *OPTIONS, "image_size", "mode", "variant", "batch_size", "latency_ms", "p90_ms"),
        *("back_to_back_ms", "samples_per_s", "spread", "speedup", "speedup_low", "speedup_high", "verdict"),
        *("accuracy", "max_deviation", "gradient_deviation", "flags", "status"),
    ],
    "recurrent": [
        *("model", "seq_length", "hidden_size", "mini_batch", "forward_ms", "backward_ms", "back_to_back_ms"),
        *("spread", "speedup", "speedup_low", "speedup_high", "verdict", "flags", "status"),
    ],
    "device": [
        *("device", "model", "threads", "size", "gflop_per_s", "gb_per_s", "latency_ms", "samples", "flags", "status"),
    ],
    "train": [
        *("epoch", "step", "train_loss", "clip_val_loss", "val_generative_loss", "zeroshot_top1", "image_to_text_r1"),
        *("text_to_image_r1", "samples_per_s", "seconds", "checkpoint", "best", "status"),
    ],
    "evaluate": [
        *("model", "checkpoint", "data", "task", "acc1", "acc5", "mean_per_class_recall", "mean_average_precision"),
        *("image_to_text_r[0-9]*", "text_to_image_r[0-9]*", "clip_val_loss"),
        *("images", "classes", "status"),
    ],
}
"""Columns printed on a terminal, by kind of run; a file has all columns. A pattern stands for all ranks of recall."""


TABLES = ("csv", "json", "parquet")
"""Formats of tables, which are also the endings of their files."""


def table_format(output: Path | None, given: str | None) -> str | None:
    """Return the format of a file: the given one, else that of its ending; None without both.

    Errors: Refused when both are formats of tables and differ.
    """
    ending = output.suffix.removeprefix(".") if output else ""
    if ending not in TABLES:
        return given
    if given in TABLES and given != ending:
        raise Refused(f"--output ends in .{ending}, but --format is {given}. Use the same format for both.")
    return given or ending


STDOUT = Path("-")
"""In place of a file, prints a table as CSV."""


def writable_table(path: Path) -> Path:
    """Return STDOUT or the path of a table to write, checked before anything is measured.

    Errors: ValueError for another file type or a path that cannot be written.
    """
    if path == STDOUT:
        return path
    if path.suffix.removeprefix(".") not in TABLES:
        raise ValueError(f"{path} is neither a .csv nor a .json nor a .parquet file, nor - for CSV on the terminal")
    return writable(path)


def writable(path: Path) -> Path:
    """Return the path if it can be written. Errors: ValueError."""
    if path == STDOUT:
        raise ValueError("this command writes only to a file: give its name instead of -")
    folder = path.resolve().parent
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder} to write to")
    directly = path.exists() and (path.is_symlink() or not path.is_file())  # see atomic.export
    if not directly and not os.access(folder, os.W_OK):
        raise ValueError(f"the folder {folder} may not be written to")
    if path.is_dir():
        raise ValueError(f"{path} is a folder, not a file")
    if path.exists() and not os.access(path, os.W_OK):
        raise ValueError(f"{path} may not be written to")
    return path


def printable(text: str) -> str:
    """Return text as one line without control characters, safe on a terminal. Line breaks become spaces; tabs stay."""
    text = re.sub(r"[\r\n]+", " ", text.strip("\r\n"))
    return "".join(sign if sign.isprintable() or sign == "\t" else "\N{REPLACEMENT CHARACTER}" for sign in text)


OutputFile = Annotated[Path, AfterValidator(writable)]
TableFile = Annotated[Path, AfterValidator(writable_table)]


SPARSE_S = 10
"""Seconds between lines of progress when stderr is not a terminal, such as in a log file."""


class _Progress:
    """The state of the progress line: whether a terminal shows one, and when the next line of a log is due."""

    shown = False
    due = 0.0


def note(text: str) -> None:
    """Print a line to stderr, which keeps stdout free for tables."""
    clear_progress()
    print(text, file=sys.stderr, flush=True)


def clear_progress() -> None:
    """Remove the progress line from the terminal."""
    if _Progress.shown:
        print("\r\033[2K", end="", file=sys.stderr, flush=True)
        _Progress.shown = False


def show_progress(text: str) -> None:
    """Show progress. A terminal gets one line that is overwritten; a file gets a line every SPARSE_S seconds."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1  # a line that wraps cannot be cleared
        print(f"\r\033[2K{text.expandtabs(1)[:width]}", end="", file=sys.stderr, flush=True)
        _Progress.shown = True
    elif time.monotonic() >= _Progress.due:
        note(text)
        _Progress.due = time.monotonic() + SPARSE_S


def print_progress(event: Event) -> None:
    """Show the progress, and print one line with the values or the error of each row."""
    match event:
        case Progress(done=done, total=total, note=model, seconds_left=left) if model:
            rest = f", {left:.0f} s left" if left is not None else ""
            show_progress((f"[{done}/{total}] {printable(model)}" if total else printable(model)) + rest)
        case Row() as row:
            result = _values(row) if row.status == "ok" else f"{row.status}: {printable(row.error)}"
            note(f"        {describe_row(row)}: {result}")


def describe_row(row: Row) -> str:
    """Return what a row is about, such as `timm:resnet18 (eager, inference, batch 8, 288 px)`."""
    match row:
        case ProfileRow():
            size = f" at {row.image_size} px" if row.image_size else ""
            return f"{row.name}{size}" + (f", batch {row.batch_size}" if row.batch_size > 1 else "")
        case BenchmarkRow():
            size = f", {row.image_size} px" if row.image_size else ""
            return f"{row.name} ({row.variant}, {row.mode}, batch {row.batch_size}{size})"
        case RecurrentRow():
            sizes = [plural(row.seq_length, "time step"), f"hidden {row.hidden_size}"] if row.seq_length else []
            return ", ".join([row.model, *sizes, f"batch {row.mini_batch}"])
        case TrainRow():
            return f"epoch {row.epoch}, step {row.step:,}"
        case EvaluateRow():
            return f"{row.model} on {printable(row.data)} ({row.task})"
    return row.model


def _values(row: Row) -> str:
    """Return the main values of a row, such as `12.3 ms; 651 samples/s; 1.52 times as fast as eager (faster)`."""
    match row:
        case ProfileRow():
            counts = [(row.gflops, "GFLOPs"), (row.mparams, "M parameters"), (row.fvcore_gmacs, "GMACs by fvcore")]
            parts = [", ".join(f"{value:,.2f} {unit}" for value, unit in counts if value is not None)]
            parts += [f"{row.seconds:.1f} s"] if row.seconds is not None else []
        case BenchmarkRow():
            speeds = [_latency(row)] if row.latency_ms is not None else []
            speeds += [f"{row.samples_per_s:.4g} samples/s"] if row.samples_per_s else []
            parts = [", ".join(speeds)] if speeds else []
            parts += [f"deviates by {row.max_deviation:.3g} at most"] if row.max_deviation is not None else []
            parts += [row.accuracy] if row.accuracy else []
            deviation = row.gradient_deviation
            parts += [f"gradients deviate by {deviation:.3g}"] if deviation is not None else []
        case RecurrentRow():
            parts = [_list_values({"forward": row.forward_ms, "backward": row.backward_ms}, " ms")]
            parts += [_latency(row)] if row.back_to_back_ms is not None else []
        case DeviceRow():
            in_bytes = row.gflop_per_s is None
            parts = [f"{row.gb_per_s:,.4g} GB/s" if in_bytes else f"{row.gflop_per_s:,.4g} GFLOP/s"]
        case TrainRow():
            values = {"loss": row.train_loss, "zero-shot": row.zeroshot_top1}
            parts = [_list_values(values | {"image to text R@1": row.image_to_text_r1})]
            parts += [f"{row.samples_per_s:.4g} pairs/s"] if row.samples_per_s else []
            parts += ["the best so far"] if row.best else []
        case EvaluateRow():
            values = {"top-1": row.acc1, "top-5": row.acc5, "mean recall per class": row.mean_per_class_recall}
            values |= {"mAP": row.mean_average_precision}
            recalls = {name: value for name, value in {**dict(row), **row.recalls}.items() if re.search(r"_r\d", name)}
            named = {name.replace("_r", " R@").replace("_", " "): value for name, value in recalls.items()}
            parts = [_list_values(values | named)]
        case _:
            parts = []
    if isinstance(row, TimedRow) and row.speedup is not None:
        parts.append(f"{row.speedup:.3g} times as fast as {row.baseline}{row.compared_in} ({row.verdict})")
    flags = [in_words([flag]) for flag in row.flags] if isinstance(row, TimedRow | DeviceRow) else []
    return "; ".join([*parts, *flags])


def _list_values(values: Mapping[str, float | None], unit: str = "") -> str:
    return ", ".join(f"{name} {value:.4g}{unit}" for name, value in values.items() if value is not None)


def _latency(row: TimedRow) -> str:
    """Return `12.3 ms`, and on an accelerator `latency 12.3 ms, back to back 9.8 ms`."""
    if row.back_to_back_ms is None:
        return f"{row.latency_ms:.4g} ms"
    return _list_values({"latency": row.latency_ms, "back to back": row.back_to_back_ms}, " ms")


def two_decimals(value: float) -> str:
    """Return a number with two decimals; below 1, with three significant digits."""
    return f"{value:,.2f}" if value == 0 or abs(value) >= 1 else f"{value:#.3g}"


def _ratio(value: float | str) -> str:
    """Return a ratio with three decimals: limits of 1.005 and 1.014 would both be 1.01. An empty cell stays empty."""
    return value if isinstance(value, str) else f"{value:,.3f}" if value >= 1 else two_decimals(value)


def brief(frame: "pd.DataFrame", columns: Sequence[str]) -> "pd.DataFrame":
    """Return the columns with these names or patterns, without those that are empty."""
    names = [name for pattern in columns for name in fnmatch.filter(frame.columns, pattern)]
    return frame[[name for name in names if frame[name].replace("", None).notna().any()]]


def show_table(full: "pd.DataFrame", short: "pd.DataFrame", output: Path | None) -> None:
    """Print `short`, or write `full` to a file if `output` is given."""
    if output is None and full.empty:
        note("no rows")
        return
    if output is None:
        text = short.astype(object).where(short.notna(), "")  # a missing value is blank, whatever its type
        text = text.map(lambda cell: printable(cell).expandtabs(1) if isinstance(cell, str) else cell)
        ratios = {str(name): _ratio for name in text if str(name).startswith("speedup")}
        print(text.to_string(index=False, float_format=two_decimals, formatters=ratios))
        return
    save_table(full, output, "row")


def save_table(frame: "pd.DataFrame", output: Path, name: str) -> None:
    """Write a table to a file, or print it as CSV to STDOUT. name: what a line of it is, for the message."""
    from engine.report.export import tables

    if output == STDOUT:
        print(tables.to_csv(frame), end="")
        return
    tables.save(frame, output)
    note(f"{plural(len(frame), name)} written to {output}")


def show_text(text: str, output: Path | None) -> None:
    """Print a text that ends with a line break, or write it to a file if `output` is given."""
    if output is None:
        print(text, end="")
        return
    atomic.export(output, text)
    note(f"written to {output}")


def print_detail(rows: Sequence[ProfileRow]) -> None:
    """Print every operator of each counted model with its calls, FLOPs and bytes, and mark those not counted."""
    for row in (row for row in rows if row.operators):
        print(f"\n{row.name} at {row.image_size} px by operator, for the whole batch of {row.batch_size}")
        print(f"{'operator':44} {'calls':>7} {'GFLOPs':>12} {'MB moved':>12}")
        for count in sorted(row.operators, key=lambda count: (-count.flops, -count.read_bytes, count.operator)):
            moved = (count.read_bytes + count.written_bytes) / 1e6
            mark = {"minor": "  not counted", "unknown": "  NOT COUNTED, of unknown size"}.get(count.work, "")
            print(f"{count.operator:44} {count.calls:>7} {count.flops / 1e9:>12,.4f} {moved:>12,.2f}{mark}")


INTERNAL = ("warm", "work", "probe", "answer")
"""Commands that only the program itself starts."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Format the help of all commands: without internal ones, and a default once, in the form that the flag takes."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return super()._fill_text(inspect.cleandoc(text), width, indent)

    def _metavar_formatter(self, action: argparse.Action, default_metavar: str) -> Callable[[int], tuple[str, ...]]:
        if isinstance(action, argparse._SubParsersAction):
            return lambda count: ("COMMAND",) * count
        return super()._metavar_formatter(action, default_metavar)

    def _iter_indented_subactions(self, action: argparse.Action) -> Generator[argparse.Action]:
        yield from (command for command in super()._iter_indented_subactions(action) if command.dest not in INTERNAL)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        """Return the help of a flag. pydantic-settings ends it with the default as Python shows it."""
        text, mark, default = (action.help or "").rpartition("(default")
        if not mark:
            return action.help
        value = default.removeprefix(":").strip().removesuffix(")")
        if value.startswith("("):
            items = ast.literal_eval(value)
            value = format_image_size(items) if action.metavar == "SIZE" else ",".join(map(str, items))
        stated = "Default:" in text or default.startswith(" factory") or value in ("", "None")
        return text.strip() if stated else f"{text}(default: {value})"
