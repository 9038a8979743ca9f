"""The commands catalog, catalog-build, published, published-import and profile: what models cost."""

import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import AliasChoices, BaseModel, Field, model_validator
from pydantic_settings import CliPositionalArg

from engine import shipped
from engine.cli.here import Queued, RunHere, conclude, run_here, show_rows, store_here
from engine.cli.output import STDOUT, TableFile, note, print_detail, show_table
from engine.names import resolve
from engine.results import Progress
from engine.settings import Settings
from engine.specs import ProfileSpec, Refused, split_patterns
from engine.words import plural

if TYPE_CHECKING:
    import pandas as pd

    from engine.published.match import Matched


class Catalog(BaseModel):
    """Browse the shipped catalogue: what every model costs."""

    library: Literal["open_clip", "timm", "torchvision"] | None = Field(
        None, validation_alias=AliasChoices("library", "source"), description="Only this library."
    )
    match: str = Field("", description="Only names that contain this text or match this wildcard.")
    family: str = Field("", description="Only these families, comma-separated; wildcards are allowed.")
    image_size: int | None = Field(None, ge=1, description="Only models counted at this image height, in pixels.")
    min_mparams: float | None = Field(None, ge=0, description="At least this many million parameters.")
    max_mparams: float | None = Field(None, ge=0, description="At most this many million parameters.")
    min_gmacs: float | None = Field(None, ge=0, description="At least this many GMACs.")
    max_gmacs: float | None = Field(None, ge=0, description="At most this many GMACs.")
    max_macts: float | None = Field(None, ge=0, description="At most this many million activations.")
    max_peak_mb: float | None = Field(None, ge=0, description="At most this estimated inference peak, in MB.")
    accuracy: str = Field("", description="A published accuracy, such as imagenet_top1: a row per pretrained tag.")
    min_accuracy: float | None = Field(None, ge=0, le=100, description="At least this accuracy, in per cent.")
    device: str = Field(
        "", description="Words of a known device's name: adds its speeds, measured or estimated. See `estimate`."
    )
    batch_size: int | None = Field(None, ge=1, le=65_536, description="Images per call. Default: the device's usual.")
    max_latency_ms: float | None = Field(None, ge=0, description="At most this latency on --device, in ms.")
    front: bool = Field(
        False, description="Only the Pareto front of --accuracy and latency on --device, or GMACs without a device."
    )
    sort: str = Field("gmacs", description="Column to sort by, named as here or as in the file of --output.")
    descending: bool = Field(False, description="Sort in descending order.")
    output: TableFile | None = Field(
        None, description="Write all columns to this .csv, .json or .parquet file; - prints CSV."
    )

    @model_validator(mode="after")
    def _complete(self) -> "Catalog":
        if not self.accuracy and (self.front or self.min_accuracy is not None):
            raise ValueError("--front and --min-accuracy need an --accuracy, such as imagenet_top1")
        if not self.device and (self.max_latency_ms is not None or self.batch_size):
            raise ValueError("--max-latency-ms and --batch-size need a --device; `estimate --models ...` lists them")
        return self

    def cli_cmd(self) -> None:
        from engine.report.catalog import catalog, choose
        from engine.report.export import tables

        columns = {"max_peak_mb": "max_inference_peak_mb", "min_accuracy": f"min_{self.accuracy}"}
        given = self.model_dump(exclude_none=True).items()
        limits: dict[str, Any] = {
            columns.get(name, name): limit for name, limit in given if name.startswith(("min_", "max_"))
        }
        known = shipped.families(Settings().catalog_dir)
        named = resolve([f"family:{pattern}" for pattern in split_patterns(self.family)], known)
        table = self._table()
        unlimited = catalog.select(
            table,
            library=self.library,
            search=self.match,
            families={known[name] for name in named},
            image_size=self.image_size,
        )
        frame = catalog.select(unlimited, **limits)
        if left_out := choose.left_out(unlimited, limits):
            note(left_out)
        if frame.empty and (near := catalog.closest(table, self.match)):
            note(f"no model matches {self.match!r}; closest: {', '.join(near)}")
        if frame.empty and len(unlimited) and len(limits) > 1:
            note("\n".join(choose.alone(unlimited, limits)))
        if self.front:
            frame = self._front(frame)
        sort = {tables.exported_name(column): column for column in frame.columns}.get(self.sort, self.sort)
        if sort not in frame.columns:
            raise Refused(f"no column {self.sort!r} to sort by; there are {', '.join(frame.columns)}")
        frame = choose.ordered(frame, [f"{'-' if self.descending else ''}{sort}"])
        shown = ["library", "model", *(["pretrained", self.accuracy] if self.accuracy else []), "image_size"]
        shown += ["mparams", "gmacs", "macts", "inference_peak_mb"]
        latency = ["batch_size", "latency_ms", "latency_ms_low", "latency_ms_high", "source", "in_range"]
        show_table(frame, frame[[*shown, *(latency if self.device else ["remark"])]], self.output)

    def _front(self, frame: "pd.DataFrame") -> "pd.DataFrame":
        """Return the rows on the Pareto front. Like the page, leave off spoiled timings, and say how many."""
        from engine.report.catalog import choose

        if not self.device:
            return frame[choose.front(frame, "gmacs", self.accuracy)]
        if left_off := choose.left_off(frame, "latency_ms", self.accuracy):
            reason = "unreliable timings, or estimates outside the fitted range"
            note(f"{plural(left_off, 'row')} left off the front: {reason}")
        ranked = choose.ranked(frame, "latency_ms", self.accuracy, with_spoiled=False)
        return ranked[ranked["front"]].drop(columns="front")

    def _table(self) -> "pd.DataFrame":
        """Return the catalogue, with a row per pretrained tag if an accuracy is asked for, and a device's speeds."""
        from engine.cli.estimates import choose_device, known_devices
        from engine.estimate import work
        from engine.published.publishers import ACCURACIES
        from engine.report.catalog import catalog
        from engine.report.timings import estimates, reliability

        settings = Settings()
        frame = catalog.read(settings.catalog_dir)
        if frame.empty:
            raise Refused(f"no catalogue in {settings.catalog_dir}: `python -m engine catalog-build` makes one")
        if self.accuracy:
            if self.accuracy not in ACCURACIES:
                raise Refused(f"no published accuracy {self.accuracy!r}; there are {', '.join(ACCURACIES)}")
            frame = _match_accuracies(settings, frame).beside(frame, [self.accuracy])
        if self.device:
            counted = work.read(settings.catalog_dir)
            device = choose_device(known_devices(counted), self.device)
            frame = estimates.with_speeds(frame, device, counted, self.batch_size)
            frame = reliability.mark_unreliable(frame, [device])
        return frame


class CatalogBuild(BaseModel):
    """Count every installed model again and write the catalogue.

    Each model is counted at its own image size first. The sizes of published accuracies that are still missing follow.
    """

    workers: int = Field(2, ge=1, le=64, description="Processes to count with.")
    models: str = Field("all", description="Names, wildcards or families; rows of other models are kept.")
    sizes_only: bool = Field(False, description="Count only the missing sizes of published accuracies.")

    def cli_cmd(self) -> None:
        from engine.published import match as accuracies
        from engine.published import update as accuracy_import

        settings = Settings()
        wanted = accuracies.sizes(accuracies.read(accuracy_import.folder(settings)))
        catalogue = import_module("engine.tasks.catalogue")
        if not self.sizes_only:
            _print_steps(catalogue.build(split_patterns(self.models), settings.catalog_dir, self.workers))
        _print_steps(catalogue.build_sizes(wanted, settings.catalog_dir, self.workers))


def _print_steps(steps: Iterable[Progress]) -> None:
    for progress in steps:
        note(f"[{progress.done}/{progress.total}] {progress.note}")


def _match_accuracies(settings: Settings, catalogue: "pd.DataFrame") -> "Matched":
    from engine.published import match, update

    published = match.read(update.folder(settings))
    return match.match(published, catalogue, shipped.versions(settings.catalog_dir))


class Published(BaseModel):
    """Show the published accuracies by publisher, and which of them match no model of the catalogue."""

    unmatched: bool = Field(False, description="List the rows that match no model, each with the reason.")
    output: TableFile | None = Field(
        None, description="Write the table to this .csv, .json or .parquet file; - prints CSV."
    )

    def cli_cmd(self) -> None:
        from engine.report.catalog import catalog

        settings = Settings()
        matched = _match_accuracies(settings, catalog.read(settings.catalog_dir))
        table = matched.unmatched if self.unmatched else matched.counts
        show_table(table, table, self.output)


class PublishedImport(BaseModel):
    """Import a newer version of a publisher's own table of accuracies from a file.

    Imported values replace the shipped ones and are credited to the publisher, so do not add your own. They are stored
    in the folder `published` beside the runs: to undo an import, delete its file there.
    """

    source: CliPositionalArg[str] = Field(
        description="Path of results-imagenet.csv, openclip_results.csv, ..., downloaded from the publisher's page."
    )
    kind: Literal["timm", "openclip_zeroshot", "openclip_retrieval"] | None = Field(
        None, description="Layout of the file. Default: recognized by its headings."
    )

    def cli_cmd(self) -> None:
        from engine.published import update as accuracy_import

        with accuracy_import.open_table(self.source) as file:
            content = file.read(accuracy_import.LARGEST_FILE + 1)
        settings = Settings()
        settings.make_runs_dir()
        folder = accuracy_import.folder(settings)
        note(accuracy_import.take(content, Path(self.source).name, folder, kind=self.kind))
        Published(unmatched=False, output=None).cli_cmd()


class Profile(RunHere, ProfileSpec):
    """Count parameters, FLOPs, activations and memory of models in this process.

    It does not join the queue: it starts as soon as no timing runs on this host and no other run uses its device.

    @FILE reads names from a text or CSV file; FILE.json is an open_clip configuration of your own;
    python:package.module:factory is a module of your own, which is built by calling the factory and gets images of 224
    pixels unless --image-size says otherwise. It is imported from the current folder or PYTHONPATH. --detail also
    prints the operators of each model.
    """

    columns: Literal["full", "reference"] = Field(
        "full", description="reference: the columns, order and rounding of open_clip's profiler."
    )

    def cli_cmd(self) -> None:
        from engine.report import frames

        with store_here() as store:
            run, rows = run_here(store, self.spec())
        if self.columns == "reference":
            frame = frames.reference(rows, "fvcore" if self.counter == "fvcore" else "torch")
            show_table(frame, frame, self.output)
        else:
            show_rows(run, rows, self.output)
        if self.detail:
            with redirect_stdout(sys.stderr if self.output == STDOUT else sys.stdout):  # stdout is a table
                print_detail(rows)
        conclude(run, rows)


class SubmitProfile(Queued, ProfileSpec):
    """Queue a profile run."""
