"""Files that a training writes beside its checkpoints: parameters, curves and results."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from engine import atomic
from engine.results import Metric
from engine.roots import Roots, open_within
from engine.specs import Refused
from engine.specs.train import TrainSpec

log = logging.getLogger("engine.training")
HISTORY = "metrics.jsonl"
RESULTS = "results.jsonl"
PARAMS = "params.txt"
TENSORBOARD = "tensorboard"


class Files:
    """The files of one training, in its run's folder."""

    def __init__(self, folder: Path, spec: TrainSpec, params: Mapping[str, Any], step: int) -> None:
        """step: number of completed steps. TensorBoard hides later points of an earlier attempt."""
        self._folder = folder
        lines = (f"{name}: {params[name]}\n" for name in sorted(params))
        (folder / PARAMS).write_text("".join(lines), encoding="utf-8")
        self._board: Any = None
        if spec.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / TENSORBOARD), purge_step=step + 1 if step else 0)
        self._wandb = _wandb(folder, spec, params) if spec.wandb else None

    def metrics(self, points: Sequence[Metric]) -> None:
        """Append points to the curves."""
        with (self._folder / HISTORY).open("a", encoding="utf-8") as file:
            file.writelines(f"{point.model_dump_json()}\n" for point in points)
        for point in points:
            if self._board:
                self._board.add_scalar(point.name, point.value, point.step)
        if self._wandb and points:
            self._wandb.log({point.name: point.value for point in points}, step=points[0].step)

    def results(self, found: Mapping[str, Any]) -> None:
        """Append a line to results.jsonl, with open_clip's names of metrics."""
        with (self._folder / RESULTS).open("a") as file:
            file.write(json.dumps(found) + "\n")

    def close(self) -> None:
        """Flush and close TensorBoard and Weights & Biases."""
        if self._board:
            self._board.close()
        if self._wandb:
            self._wandb.finish()


def history(folder: Path, roots: Roots = None) -> Iterator[Metric]:
    """Yield the points of a training's curves."""
    yield from _parsed(folder / HISTORY, Metric.model_validate_json, roots)


def _parsed(path: Path, parse: Callable[[str], Any], roots: Roots) -> Iterator[Any]:
    """Yield the parsed lines of a file, if there is one, without incomplete ones, which a crash may leave."""
    try:
        with open_within(path, roots) as file:
            lines = file.read().decode().splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        with suppress(ValueError):
            yield parse(line)


def clear(folder: Path) -> None:
    """Delete the points and results of an earlier attempt."""
    for name in (HISTORY, RESULTS):
        (folder / name).unlink(missing_ok=True)


def carry(before: Path, folder: Path, step: int, epoch: int, *, validated: bool, roots: Roots = None) -> list[Metric]:
    """Write the curves and results of an earlier run into a resumed one, up to this step and epoch. Return the points.

    validated: whether this step was validated before the checkpoint. If not, its validation is left out.
    roots: the folders that must contain the files of the earlier run.
    """
    last = step if validated else step - 1
    points = [
        entry for entry in history(before, roots) if entry.step <= (last if entry.name.startswith("val/") else step)
    ]
    rows = _parsed(before / RESULTS, json.loads, roots)
    lines = [row for row in rows if row.get("epoch", 0) <= epoch and row.get("step", 0) <= last]
    atomic.write(folder / HISTORY, "".join(f"{entry.model_dump_json()}\n" for entry in points))
    atomic.write(folder / RESULTS, "".join(json.dumps(entry) + "\n" for entry in lines))
    return points


def _wandb(folder: Path, spec: TrainSpec, params: Mapping[str, Any]) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise Refused("wandb is not installed: pip install wandb, or leave --wandb out") from error
    return wandb.init(
        dir=str(folder),
        project=spec.wandb_project_name,
        name=spec.wandb_name or None,
        notes=spec.wandb_notes or None,
        config=dict(params),
    )
