"""Files that a training writes beside its checkpoints: log lines as open_clip's, results and curves."""

import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
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


def line(
    *, epoch: int, samples: int, of: int, data_s: float, step_s: float, per_step: int, processes: int, lr: float,
    logit_scale: float, losses: Mapping[str, tuple[float, float]],
) -> str:  # fmt: skip
    """Return a line as open_clip_train prints it, so that scripts that read its logs read ours. losses: value and
    mean."""
    width, rate = len(str(of)), per_step / step_s
    shown = " ".join(f"{name.capitalize()}: {value:#.5g} ({mean:#.5g})" for name, (value, mean) in losses.items())
    return (
        f"Train Epoch: {epoch} [{samples:>{width}}/{of} ({100 * samples / of:.0f}%)] Data (t): {data_s:.3f} "
        f"Batch (t): {step_s:.3f}, {rate:#g}/s, {rate / processes:#g}/s/gpu LR: {lr:5f} "
        f"Logit Scale: {logit_scale:.3f} {shown}"
    )


class Files:
    """The files of one training, in its run's folder."""

    def __init__(self, folder: Path, spec: TrainSpec) -> None:
        self._folder = folder
        given = spec.model_dump(mode="json", exclude={"configs"})
        (folder / PARAMS).write_text("".join(f"{name}: {given[name]}\n" for name in sorted(given)))
        self._board = _tensorboard(folder / TENSORBOARD) if spec.tensorboard else None
        self._wandb = _wandb(folder, spec) if spec.wandb else None

    def metrics(self, found: Iterable[Metric]) -> None:
        """Add points of curves."""
        found = list(found)
        with (self._folder / HISTORY).open("a") as file:
            file.writelines(f"{each.model_dump_json()}\n" for each in found)
        for each in found:
            if self._board:
                self._board.add_scalar(each.name, each.value, each.step)
        if self._wandb and found:
            self._wandb.log({each.name: each.value for each in found}, step=found[0].step)

    def results(self, found: Mapping[str, Any]) -> None:
        """Add a line to results.jsonl, under the reference's names."""
        with (self._folder / RESULTS).open("a") as file:
            file.write(json.dumps(found) + "\n")

    def close(self) -> None:
        """Have all written that is held back."""
        if self._board:
            self._board.close()
        if self._wandb:
            self._wandb.finish()


def history(folder: Path, step: float = math.inf, roots: Roots = None) -> Iterator[Metric]:
    """Yield the points of a training's curves up to a step. A line cut off when its writer died is left out."""
    for text in _lines(folder / HISTORY, roots):
        try:
            metric = Metric.model_validate_json(text)
        except ValueError:
            continue
        if metric.step <= step:
            yield metric


def results(folder: Path, epoch: int, roots: Roots = None) -> list[dict[str, Any]]:
    """Return the lines of results.jsonl up to an epoch."""
    found = []
    for text in _lines(folder / RESULTS, roots):
        try:
            found.append(json.loads(text))
        except ValueError:
            continue
    return [each for each in found if each.get("epoch", 0) <= epoch]


def _lines(path: Path, roots: Roots) -> list[str]:
    """Return the lines of a text; none where there is no such file."""
    try:
        with open_within(path, roots) as file:
            return file.read().decode().splitlines()
    except FileNotFoundError:
        return []


def clear(folder: Path) -> None:
    """Begin without any points or results."""
    for name in (HISTORY, RESULTS):
        (folder / name).unlink(missing_ok=True)


def carry(before: Path, folder: Path, step: int, epoch: int, *, validated: bool, roots: Roots = None) -> list[Metric]:
    """Begin the files of a resumed training with what the one before has written up to there; return its points.

    validated: whether the epoch that has ended at that step, if one has, was validated before the checkpoint.
    roots: below which the files of the one before must lie.
    """
    told, lines = list(history(before, step, roots)), results(before, epoch, roots)
    told = [each for each in told if validated or each.step < step or not each.name.startswith("val/")]
    atomic.write(folder / HISTORY, "".join(f"{each.model_dump_json()}\n" for each in told))
    atomic.write(folder / RESULTS, "".join(json.dumps(each) + "\n" for each in lines))
    return told


def _tensorboard(folder: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder))


def _wandb(folder: Path, spec: TrainSpec) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise Refused("wandb is not installed: pip install wandb, or leave --wandb away") from error
    return wandb.init(dir=str(folder), project="model-vitals", config=spec.model_dump(mode="json"))
