"""As `trial`, of a kind that wants the host for itself."""

from collections.abc import Iterator
from pathlib import Path

import trial_kinds

from engine.results import Event
from engine.tasks import trial


def run(spec: trial_kinds.Steps, run_dir: Path) -> Iterator[Event]:
    return trial.run(spec, run_dir, trial_kinds.TimingRow)
