"""The table of modules that a run leaves beside its rows."""

import json
from pathlib import Path

import pandas as pd

from engine.report import frames
from engine.results import ModuleCount


def modules(run_dir: Path, name: str) -> pd.DataFrame | None:
    """Return the modules in the detail artifact `name`, as frames.modules gives them; None where there is none.

    Errors: ValueError of a name that leads out of the run's folder.
    """
    path = (run_dir / name).resolve()
    if not path.is_relative_to(run_dir.resolve()):
        raise ValueError(f"{name!r} lies outside the run's folder")
    if not path.is_file():
        return None
    return frames.modules(ModuleCount.model_validate(item) for item in json.loads(path.read_text(encoding="utf-8")))
