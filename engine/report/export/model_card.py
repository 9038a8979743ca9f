"""Write the model card of a trained model: data, settings, results, environment."""

from collections.abc import Sequence
from pathlib import Path, PurePath

from engine.report.quantities import CLIP_LABELS
from engine.report.style import digits
from engine.results import Row
from engine.results.clip import TrainRow
from engine.specs.fields.clip import EMBEDDED, split_sources
from engine.specs.questions import Export
from engine.specs.train import METRICS, TrainSpec
from engine.store import Run

HEADER = """---
library_name: open_clip
pipeline_tag: zero-shot-image-classification
tags:
- clip
---
"""
LOADING = """
```python
import open_clip

model, _, preprocess = open_clip.create_model_and_transforms("local-dir:PATH/OF/THIS/FOLDER")
tokenizer = open_clip.get_tokenizer("local-dir:PATH/OF/THIS/FOLDER")
```
"""
UNLISTED = ("data", "val_data", "zeroshot_data", "configs", "resume", "model", "pretrained")
"""Settings that are not listed: paths of this machine, and those with a sentence of their own."""


def export(run: Run, rows: Sequence[Row], checkpoint: Path, step: int, folder: Path) -> Export:
    """Return the request to write the checkpoint of this step of a training, with its model card, into a folder."""
    row = next((row for row in reversed(rows) if isinstance(row, TrainRow) and row.step == step), None)
    return Export(checkpoint=checkpoint, folder=folder.absolute(), card=markdown(run, row))


def markdown(run: Run, row: TrainRow | None) -> str:
    """Return the card. row: of the epoch that ends at the exported checkpoint; None if none ends there."""
    spec = run.spec
    assert isinstance(spec, TrainSpec)
    title = run.name or f"{spec.model} trained on {_names(spec.data)}"
    start = f"from the weights {_names(spec.begins_with)}" if spec.begins_with else "from random weights"
    held_out = _names(spec.val_data) if spec.val_data else f"{100 * spec.val_fraction:g} % of it"
    zeroshot = f" Zero-shot: {_names(spec.zeroshot_data)}." if spec.zeroshot_data else ""
    parts = [
        f"{HEADER}\n# {title}\n",
        f"{spec.model}, trained {start} with Model Vitals (run {run.id}).\n",
        f"## Use\n{LOADING}",
        f"## Data\n\nTrained on {_names(spec.data)}. Held out: {held_out}.{zeroshot}\n",
        f"## Results\n\n{_results(row)}\n",
        f"## Settings\n\n{_settings(spec)}\n",
    ]
    if run.environment:
        parts.append(f"## Environment\n\n{_environment(run)}\n")
    return "\n".join(parts)


def _names(data: str) -> str:
    """Return the names of sources without their folders."""
    return ", ".join(part if part in EMBEDDED else PurePath(part).name for part in split_sources(data))


def _results(row: TrainRow | None) -> str:
    if row is None:
        return "The checkpoint was saved within an epoch, so it was not validated."
    values = {name: getattr(row, name) for name in METRICS if getattr(row, name) is not None}
    lines = [("Metric", f"Epoch {row.epoch}, step {row.step:,}")]
    lines += [(CLIP_LABELS[name], digits(value)) for name, value in values.items()]
    return _table(lines)


def _settings(spec: TrainSpec) -> str:
    """Return a table of the settings that differ from their defaults, and of the learning rate."""
    spec = spec.model_copy(update={"distill_pretrained": _names(spec.distill_pretrained)})
    values = spec.model_dump(mode="json", exclude_defaults=True, exclude=set(UNLISTED)) | {"lr": spec.peak_lr}
    return _table([("Setting", "Value"), *((name, f"`{value}`") for name, value in values.items())])


def _environment(run: Run) -> str:
    environment = run.environment
    assert environment is not None
    versions = [(f"version of {name}", version) for name, version in environment.versions.items()]
    facts = [("device", environment.device_name or environment.cpu), ("date", environment.date), *versions]
    return _table([("Fact", "Value"), *facts])


def _table(lines: list[tuple[str, str]]) -> str:
    (left, right), *rest = lines
    cells = [f"| {left} | {right} |", "|---|---|", *(f"| {_cell(one)} | {_cell(other)} |" for one, other in rest)]
    return "\n".join(cells)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
