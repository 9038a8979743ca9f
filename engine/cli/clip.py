"""The commands train, evaluate and search: CLIP on your own images and captions."""

import logging
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, model_validator
from pydantic_settings import CliPositionalArg

from engine.cli.here import OneRun, Queued, RunName, run_here, store_here, submit, tell_failures
from engine.cli.output import TableFile, brief, print_progress, show_table
from engine.names import expand_files
from engine.results import Event, Progress
from engine.results.clip import EvaluateRow, TrainRow
from engine.roots import file_within, open_within
from engine.settings import Settings
from engine.specs import Refused, Spec
from engine.specs.clip import LONGEST_PROMPTS, split_lines
from engine.specs.evaluate import EvaluateSpec
from engine.specs.questions import LONGEST_TEXT, MOST_HITS
from engine.specs.train import TrainSpec

if TYPE_CHECKING:
    from engine.store import Run

TRAINED = ["epoch", "step", "train_loss", "clip_val_loss", "zeroshot_top1", "image_to_text_r1", "text_to_image_r1"]
TRAINED += ["samples_per_s", "seconds", "checkpoint", "best", "status"]
EVALUATED = ["model", "checkpoint", "data", "task", "acc1", "acc5", "mean_per_class_recall", "mean_average_precision"]
EVALUATED += ["image_to_text_r1", "image_to_text_r5"]
EVALUATED += ["text_to_image_r1", "text_to_image_r5", "clip_val_loss", "images", "classes", "status"]
FOUND = ["index", "source", "label", "similarity"]
"""The columns printed on a terminal; a file has all columns."""
FILE_FLAGS = ("classes", "templates", "more_models", "class_prompts")
"""Flags whose value may be a file."""
LONGEST_FILE = LONGEST_PROMPTS


def with_files(flags: Spec, kind: type[Spec]) -> dict[str, Any]:
    """Return the given flags as fields, with a model's FILE.json read in. Errors: Refused when the file cannot be
    read.
    """
    fields = flags.model_dump(include=set(kind.model_fields), exclude_unset=True)
    if fields.get("model", "").endswith(".json"):
        (model,), configs = expand_files([fields["model"]])
        fields |= {"model": model, "configs": configs}
    return fields


def lines_read(data: Any) -> Any:
    """Return the flags with the content of files in place of their paths, for FILE_FLAGS. Errors: Refused."""
    if isinstance(data, dict):
        return data | {name: read_lines(data[name]) for name in FILE_FLAGS if data.get(name)}
    return data


def read_lines(given: Any) -> Any:
    """Return the lines of a file if the value names one, else the value itself.

    Errors: Refused when the file is too large or not text.
    """
    path = Path(str(given[0] if isinstance(given, list | tuple) else given))
    if "\n" in str(path) or not file_within(path, None):
        return given
    with open_within(path, None) as file:
        content = file.read(LONGEST_FILE + 1)
    if len(content) > LONGEST_FILE:
        raise Refused(f"{path} has more than {LONGEST_FILE:,} bytes: too large for a list of names")
    try:
        text = content.decode("utf-8-sig")
        return text if path.suffix == ".json" else tuple(split_lines(text))
    except UnicodeDecodeError as error:
        raise Refused(f"{path} is not a text file. Use UTF-8 with one entry per line, or JSON") from error


class TrainFlags(TrainSpec):
    """The spec as flags of a command."""

    _files = model_validator(mode="before")(lines_read)

    def spec(self) -> TrainSpec:
        """Return the spec without the other flags. Errors: Refused when a file cannot be read."""
        return TrainSpec.model_validate(with_files(self, TrainSpec))


class Train(TrainFlags):
    """Train or fine-tune CLIP here and now. --classes and --templates take files with one entry per line."""

    name: RunName = ""
    output: TableFile | None = Field(None, description="Write a row per epoch to this .csv, .json or .parquet file.")

    def cli_cmd(self) -> None:
        log_format = "%(asctime)s %(levelname)s %(message)s"
        logging.basicConfig(format=log_format, level=logging.WARNING)
        logging.getLogger("engine.training").setLevel(logging.INFO)  # the lines of a queued run's log
        with store_here() as store:
            found = run_here(store, self.spec(), TrainRow, name=self.name, on_event=_print_training)
            show_training(*found, self.output)


def _print_training(event: Event) -> None:
    """Print an event. The progress of steps is not printed, because the log has lines for it."""
    if not (isinstance(event, Progress) and event.done):
        print_progress(event)


def show_training(run: "Run", rows: list[TrainRow], output: Path | None) -> None:
    """Print the epochs as a table or write them to a file. Errors: EndedBadly or Refused when the run failed."""
    from engine.report import frames

    frame = frames.with_environment(frames.train(rows), run)
    show_table(frame, brief(frame, TRAINED), output)
    tell_failures(run, rows, lambda row: f"epoch {row.epoch}")


class SubmitTrain(TrainFlags):
    """Queue a training, or one for each combination of values of a sweep; it has the flags of `train` too."""

    name: RunName = ""
    sweep: str = Field(
        "",
        max_length=1000,
        description="Values of lr, wd and seed to queue a run for each combination, such as 'lr=1e-3,1e-4 seed=0,1'.",
    )

    def cli_cmd(self) -> None:
        from engine.specs import sweep

        if not (specs := sweep.specs(self.spec(), sweep.parse(self.sweep))):
            submit(self.spec(), self.name)
            return
        from engine import jobs

        with store_here() as store:
            ids = jobs.submit_sweep(store, Settings(), specs, name=self.name)
        for run_id, label in zip(ids, specs, strict=True):
            print(f"queued as run {run_id}: {label}")


class EvaluateFlags(EvaluateSpec):
    """The spec as flags of a command."""

    _files = model_validator(mode="before")(lines_read)

    def spec(self) -> EvaluateSpec:
        """Return the spec without the other flags. Errors: Refused when a file cannot be read."""
        return EvaluateSpec.model_validate(with_files(self, EvaluateSpec))


class Evaluate(EvaluateFlags):
    """Evaluate models, or trainings by run number, here and now: retrieval, zero-shot, linear probe.

    --classes, --templates, --more-models and --class-prompts also accept files.
    """

    output: TableFile | None = Field(
        None, description="Write a row per model, data set and task to this .csv, .json or .parquet file."
    )

    def cli_cmd(self) -> None:
        from engine.report import frames

        with store_here() as store:
            run, rows = run_here(store, self.spec(), EvaluateRow)
        frame = frames.with_environment(frames.evaluate(rows), run)
        show_table(frame, brief(frame, EVALUATED), self.output)
        tell_failures(run, rows, lambda row: f"{row.model} on {row.data} ({row.task})")


class SubmitEvaluate(Queued, EvaluateFlags):
    """Queue an evaluation; it has the same flags as `evaluate`."""


class Search(OneRun):
    """Search the images of an evaluation by text, and print the nearest ones with their cosine similarities."""

    text: CliPositionalArg[str] = Field(
        min_length=1,
        max_length=LONGEST_TEXT,
        description="The text to search for, used as typed, such as 'a photo of a red car'.",
    )
    top: int = Field(12, ge=1, le=MOST_HITS, description="Number of images to print.")
    output: TableFile | None = Field(None, description="Write the hits to this .csv, .json or .parquet file.")

    def cli_cmd(self) -> None:
        from engine.jobs.references import search_question
        from engine.report.frames import hits

        with store_here() as store:
            question = search_question(store, Settings(), store.run(self.run_id), self.text, self.top)
        frame = hits(import_module("engine.training.evaluation.search").answer(question).hits)
        show_table(frame, brief(frame, FOUND), self.output)
