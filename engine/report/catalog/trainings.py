"""What was trained from one model here and evaluated of it: a line per run, with its best figures."""

from collections.abc import Iterable, Sequence

import pandas as pd

from engine.results import Row
from engine.results.clip import EvaluateRow, TrainRow
from engine.specs import ModelName
from engine.specs.evaluate import EvaluateSpec
from engine.specs.train import TrainSpec
from engine.store import Run

SHARES = ("zeroshot_top1", "linear_probe_top1", "image_to_text_r1", "text_to_image_r1")
"""Between 0 and 1."""
COLUMNS = ["run", "date", "what", "state", "data", "begins_with", "epochs", *SHARES, "clip_val_loss", "seconds"]


def of_runs(runs: Iterable[tuple[Run, Sequence[Row]]], name: ModelName) -> pd.DataFrame:
    """Return a line per run: COLUMNS, newest first. runs: with their rows.

    Of a training the figures are those of its best epoch, else of its last; of an evaluation those of its tasks.
    """
    lines = [line for run, rows in runs if (line := _line(run, rows, name.model))]
    frame = pd.DataFrame(lines, columns=COLUMNS)
    numbers = [*SHARES, "clip_val_loss", "seconds", "epochs"]
    frame = frame.astype(dict.fromkeys(numbers, float)).assign(date=pd.to_datetime(frame["date"], utc=True))
    return frame.sort_values("run", ascending=False, ignore_index=True)


def _line(run: Run, rows: Sequence[Row], model: str) -> dict[str, object]:
    spec = run.spec
    shared = {"run": run.id, "date": run.created_at, "state": run.state.value}
    if isinstance(spec, TrainSpec) and model in (spec.model, spec.distill_model):
        what = "fine-tune" if spec.pretrained or spec.resume else "from scratch"
        begins = spec.pretrained or spec.resume
        if spec.model != model:
            what, begins = f"taught {spec.model}", spec.distill_pretrained
        return shared | {"what": what, "data": spec.data, "begins_with": begins} | _trained(rows)
    if isinstance(spec, EvaluateSpec) and spec.model == model:
        return shared | {"what": "evaluation", "data": spec.data, "begins_with": spec.checkpoint} | _evaluated(rows)
    return {}


def _trained(rows: Sequence[Row]) -> dict[str, object]:
    epochs = [row for row in rows if isinstance(row, TrainRow)]
    if not epochs:
        return {}
    best = next((row for row in reversed(epochs) if row.best), epochs[-1])
    names = [name for name in (*SHARES, "clip_val_loss") if name in TrainRow.model_fields]
    ended = {"epochs": epochs[-1].epoch, "seconds": epochs[-1].seconds}
    return {name: getattr(best, name) for name in names} | ended


def _evaluated(rows: Sequence[Row]) -> dict[str, object]:
    found: dict[str, object] = {}
    for row in rows:
        if not isinstance(row, EvaluateRow) or row.status != "ok":
            continue
        if row.task == "retrieval":
            found |= {name: getattr(row, name) for name in (*SHARES[2:], "clip_val_loss")}
        else:
            found[{"zeroshot": SHARES[0], "linear-probe": SHARES[1]}[row.task]] = row.acc1
    took = [row.seconds for row in rows if isinstance(row, EvaluateRow) and row.seconds is not None]
    return found | ({"seconds": sum(took)} if took else {})
