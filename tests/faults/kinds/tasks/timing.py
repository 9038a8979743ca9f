"""The task of a `timing` run, which needs the whole host: the same as `trial`."""

from collections.abc import Iterator
from pathlib import Path

import trial_kinds

from engine.results import Event
from engine.tasks import trial


def run(spec: trial_kinds.Steps, run_dir: Path) -> Iterator[Event]:
    return trial.run(spec, run_dir, trial_kinds.TimingRow)
