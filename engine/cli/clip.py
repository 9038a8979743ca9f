"""The commands train, evaluate and search: CLIP on your own images and captions."""

import argparse
import logging
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator
from pydantic_settings import CliPositionalArg

from engine.cli.here import Flags, OneRun, Queued, RunHere, RunName, conclude, run_here, show_rows, store_here, submit
from engine.cli.output import TableFile, brief, note, print_progress, show_table
from engine.names import expand_files
from engine.results import Event, Progress
from engine.roots import file_within, open_within
from engine.settings import Settings
from engine.specs import Refused
from engine.specs.evaluate import EvaluateSpec
from engine.specs.fields.clip import LINE_FIELDS, LONGEST_PROMPTS, split_lines
from engine.specs.questions import LONGEST_TEXT, MOST_HITS
from engine.specs.train import TrainSpec

FILE_FLAGS = ("classes", "templates", "more_models", "class_prompts")
"""Flags whose value may be a file."""


class AddLines(argparse.Action):
    """Make one text of all values of a flag that is given several times, with a line for each."""

    def __call__(self, _parser: Any, namespace: argparse.Namespace, value: Any, _option: str | None = None) -> None:
        """Add a value to the earlier ones."""
        earlier = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, ["\n".join([*earlier, value] if isinstance(earlier, list) else [value])])


def add_flag(parser: Any, *names: str, **options: Any) -> argparse.Action:
    """Add a flag to a parser or a group. pydantic-settings would join repeated values with commas."""
    if {name.removeprefix("--").replace("-", "_") for name in names} & set(LINE_FIELDS):
        options["action"] = AddLines
    action: argparse.Action = parser.add_argument(*names, **options)
    return action


class FileFlags(Flags):
    """A command with flags whose value may be a file."""

    @model_validator(mode="before")
    @classmethod
    def _read_files(cls, data: Any) -> Any:
        """Return the flags. Files of FILE_FLAGS and of models are replaced by their content. Errors: Refused."""
        given = {name: data[name] for name in FILE_FLAGS if data.get(name)}
        data |= {name: read_lines(value, json=name == "class_prompts") for name, value in given.items()}
        if fields := [name for name in ("model", "distill_model") if str(data.get(name)).endswith(".json")]:
            models, data["configs"] = expand_files([data[name] for name in fields])
            data |= dict(zip(fields, models, strict=True))
        return data


def read_lines(given: Any, *, json: bool = False) -> Any:
    """Return the lines of a file if the value names one, else the value itself. Each line of a value may name a file.

    json: return the whole text of a .json file. Errors: Refused when the file is too large, empty or not text, for a
    .json file without `json`, and when a value that ends like a file is none.
    """
    path = Path(str(given[0] if isinstance(given, list | tuple) else given))
    if "\n" in str(path):
        if json:
            return given
        parts = map(read_lines, split_lines(str(path)))
        return tuple(name for part in parts for name in ((part,) if isinstance(part, str) else part))
    if not file_within(path, None):
        if path.suffix in (".txt", ".csv", ".json"):
            raise Refused(f"no file at {path}")
        return given
    is_json = path.suffix.lower() == ".json"
    if is_json and not json:
        raise Refused(
            f"{path} is a JSON file. Use a text file with one entry per line; only --class-prompts takes JSON"
        )
    with open_within(path, None) as file:
        content = file.read(LONGEST_PROMPTS + 1)
    if len(content) > LONGEST_PROMPTS:
        raise Refused(f"{path} has more than {LONGEST_PROMPTS:,} bytes: too large for a list of names")
    form = "JSON" if is_json else "one entry per line"
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refused(f"{path} is not a text file. Use UTF-8 with {form}") from error
    if not text.strip():  # otherwise the default would be used
        raise Refused(f"{path} is empty. Use {form}")
    return text if is_json else tuple(split_lines(text))


class Train(RunHere, FileFlags, TrainSpec):
    """Train or fine-tune CLIP in this process. --classes and --templates take files with one entry per line.

    It does not join the queue: it starts as soon as no timing runs on this host and no other run uses its device.
    """

    name: RunName = ""

    def cli_cmd(self) -> None:
        log_format = "%(asctime)s %(levelname)s %(message)s"
        logging.basicConfig(format=log_format, level=logging.WARNING)
        logging.getLogger("engine.training").setLevel(logging.INFO)  # the lines of a queued run's log
        with store_here() as store:
            run, rows = run_here(store, self.spec(), name=self.name, on_event=_print_training)
        show_rows(run, rows, self.output)
        conclude(run, rows)


def _print_training(event: Event) -> None:
    """Print an event. The progress of steps is not printed, because the log has lines for it."""
    if not (isinstance(event, Progress) and event.done):
        print_progress(event)


class SubmitTrain(FileFlags, TrainSpec):
    """Queue a training, or one for each combination of values of a sweep."""

    name: RunName = ""
    sweep: str = Field(
        "",
        max_length=1000,
        description="Values of lr, wd and seed to queue a run for each combination, such as 'lr=1e-3,1e-4 seed=0,1'.",
    )

    def cli_cmd(self) -> None:
        from engine.specs import sweep

        spec = self.spec()
        assert isinstance(spec, TrainSpec)
        values = sweep.parse(self.sweep)
        for name in values.keys() & self.model_fields_set:
            note(f"--{name} has no effect: the sweep has values of its own")
        if not (specs := sweep.specs(spec, values)):
            submit(spec, self.name)
            return
        from engine import jobs

        with store_here() as store:
            ids = jobs.submit_sweep(store, Settings(), specs, name=self.name)
        for run_id, label in zip(ids, specs, strict=True):
            print(f"queued as run {run_id}: {label}")


class Evaluate(RunHere, FileFlags, EvaluateSpec):
    """Evaluate models, or trainings by run number, in this process: retrieval, zero-shot, linear probe.

    It does not join the queue: it starts as soon as no timing runs on this host and no other run uses its device.
    --classes, --templates, --more-models and --class-prompts also accept files.
    """


class SubmitEvaluate(Queued, FileFlags, EvaluateSpec):
    """Queue an evaluation."""


class Search(OneRun):
    """Search the images of an evaluation by text, and print the nearest ones with their cosine similarities."""

    text: CliPositionalArg[str] = Field(
        min_length=1,
        max_length=LONGEST_TEXT,
        description="The text to search for, used as typed, such as 'a photo of a red car'.",
    )
    top: int = Field(12, ge=1, le=MOST_HITS, description="Number of images to print.")
    output: TableFile | None = Field(
        None, description="Write the hits to this .csv, .json or .parquet file; - prints CSV."
    )

    def cli_cmd(self) -> None:
        from engine.jobs.references import search_question
        from engine.report.frames import hits

        with store_here() as store:
            question = search_question(store, Settings(), store.run(self.run_id), self.text, self.top)
        frame = hits(import_module("engine.training.evaluation.search").answer(question).hits)
        show_table(frame, brief(frame, ["index", "source", "label", "similarity"]), self.output)
