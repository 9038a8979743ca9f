"""Read the measured speeds of models on this machine, setting by setting."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pandas as pd

from engine.report.timings.rates import computes_in, undisturbed_first, unusual_conditions
from engine.results import BenchmarkRow, Row
from engine.specs import BenchmarkSpec
from engine.specs.benchmark import CONDITIONS
from engine.specs.fields.building import changes
from engine.store import UNFINISHED, Run, Store
from engine.words import in_words, plural

NODES = "nodes of a cluster"
MOST_RUNS = 500
"""Read at most this many benchmarks, newest first. Models timed only in older ones count as not timed."""


@dataclass(frozen=True)
class Setting:
    """The conditions that timings on one axis share."""

    device: str = "cpu"
    device_name: str = ""
    host: str = ""
    """Empty if not recorded; NODES if several nodes shared the models of a run."""
    threads: int | None = None
    """Threads of a CPU."""
    variant: str = "eager"
    batch_size: int = 1
    dtype: str = "float32"
    """Data type of matrix products."""
    cache: str = "hot"
    cudnn_benchmark: bool = False
    deterministic: bool = False

    @property
    def label(self) -> str:
        """Return a label such as `eager, batch 1, float32 on AMD EPYC, 2 threads (vm)`."""
        where = self.device if self.device == "cpu" and not self.device_name else self.device_name or self.device
        where += f", {plural(self.threads, 'thread')}" if self.threads else ""
        how = ", ".join([self.variant, f"batch {self.batch_size}", self.dtype, *unusual_conditions(vars(self))])
        return f"{how} on {where}" + (f" ({self.host})" if self.host else "")

    def spec(self, models: Iterable[str], image_size: str) -> BenchmarkSpec:
        """Return the benchmark that times models (qualified) in this setting at this image size."""
        return BenchmarkSpec.model_validate(
            {
                **{"models": tuple(models), "image_size": image_size or None, "device": self.device},
                **{"batch_size": self.batch_size, "variants": (self.variant,), "threads": self.threads},
                **{name: getattr(self, name) for name in CONDITIONS},
            }
        )


WHAT = ["name", "image_size", "context_length"]
"""Columns that identify what was timed, named as in the catalogue."""
COLUMNS = [*WHAT, "setting", "latency_ms", "samples_per_s", "measured", "flags"]
NUMBERS = ("context_length", "latency_ms", "samples_per_s")

Line = tuple[Any, ...]
"""COLUMNS of one timing. `setting` is a Setting. `measured` names run, date and flags, `flags` the flags as text."""


def of_run(run: Run, rows: Iterable[Row]) -> list[Line]:
    """Return a run's inference latencies of whole models, built as their library defines them."""
    lines: list[Line] = []
    for row in rows:
        if isinstance(row, BenchmarkRow) and (setting := setting_of(run, row)):
            what = (row.name, row.image_size, row.context_length, setting)
            lines.append((*what, row.latency_ms, row.samples_per_s, _source(run, row), in_words(row.flags)))
    return lines


def table(lines: Iterable[Line]) -> pd.DataFrame:
    """Return timings as a table with COLUMNS."""
    return pd.DataFrame(list(lines), columns=COLUMNS).astype(dict.fromkeys(NUMBERS, float))


def setting_of(run: Run, row: BenchmarkRow) -> Setting | None:
    """Return the setting of a row that `of_run` accepts; None for all other rows."""
    is_latency = row.status == "ok" and row.latency_ms is not None and row.mode == "inference"
    if not is_latency or row.tower != "whole" or changes(row):
        return None
    return Setting(
        device=row.device,
        device_name=row.device_name,
        host=NODES if row.host else run.host,
        threads=row.threads if row.device == "cpu" else None,
        variant=row.variant,
        batch_size=row.batch_size,
        dtype=computes_in(row),
        **{name: getattr(row, name) for name in CONDITIONS},
    )


def _source(run: Run, row: BenchmarkRow) -> str:
    """Return the source of a timing, such as `run 12, 2026-11-20, torch 2.11.0, on node7, single process`."""
    parts = [f"run {run.id}"]
    if run.environment:
        parts += [(row.date or run.environment.date)[:10], f"torch {run.environment.versions.get('torch', 'unknown')}"]
    parts += [f"on {row.host}"] if row.host else []
    return ", ".join([*parts, *([in_words(row.flags)] if row.flags else [])])


def latest(newest_first: Iterable[list[Line]]) -> pd.DataFrame:
    """Return the latest timing of every model, size and setting, with a flag of SPOILING only if there is no other."""
    frame = table(chain.from_iterable(newest_first))
    return undisturbed_first(frame).drop_duplicates(COLUMNS[:-4]).sort_index(ignore_index=True)


def settings(frame: pd.DataFrame) -> list[Setting]:
    """Return the settings that have timings, most timings first. frame: from `latest`."""
    return list(frame.groupby("setting", sort=False).size().sort_values(ascending=False, kind="stable").index)


def within(frame: pd.DataFrame, setting: Setting) -> pd.DataFrame:
    """Return the timings in a setting: WHAT, latency_ms, samples_per_s, measured, flags. frame: from `latest`."""
    return frame.loc[frame["setting"] == setting, [*WHAT, *COLUMNS[-4:]]]


def waiting(store: Store, setting: Setting) -> set[tuple[str, str]]:
    """Return name and image size of the models that queued or active runs will time in a setting."""
    models = set()
    for run in store.runs(kind="benchmark", states=UNFINISHED):
        spec = run.spec
        if isinstance(spec, BenchmarkSpec) and spec.image_size:
            size = spec.model_dump()["image_size"]
            if spec == setting.spec(spec.models, size):
                models |= {(name, size) for name in spec.models}
    return models
