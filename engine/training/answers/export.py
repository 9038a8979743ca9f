"""Export a trained model as a folder that `open_clip.create_model("local-dir:FOLDER")` loads."""

import json
import tempfile
from pathlib import Path

from open_clip.constants import HF_CONFIG_NAME, HF_SAFE_WEIGHTS_NAME
from safetensors.torch import save_file
from torch import Tensor

from engine.results.answers import Exported
from engine.settings import Settings
from engine.specs import Refused
from engine.specs.questions import Export
from engine.training import checkpoints

CARD = "README.md"


def answer(question: Export) -> Exported:
    """Write weights, configuration and model card of a checkpoint of ours. The folder appears only when it is complete.

    Errors: Refused when the folder holds something, or when the checkpoint has no configuration; checkpoints.Corrupt.
    """
    folder = question.folder
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise Refused(f"{folder} exists and is not an empty folder: give a new one")
    state = checkpoints.load(question.checkpoint, Settings().roots)
    config = state.get("vitals", {}).get("config")
    if not config:
        raise Refused(
            f"{question.checkpoint.name} has no configuration of its model: it was not written by this program"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".export-", dir=folder.parent) as temporary:
        export_folder = Path(temporary) / "new"
        export_folder.mkdir()
        save_file(_separate(state["state_dict"]), export_folder / HF_SAFE_WEIGHTS_NAME, {"format": "pt"})
        (export_folder / HF_CONFIG_NAME).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        (export_folder / CARD).write_text(question.card, encoding="utf-8")
        files = {path.name: path.stat().st_size for path in sorted(export_folder.iterdir())}
        export_folder.rename(folder)
    return Exported(folder=str(folder), files=files)


def _separate(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights under the model's own names. Copy tied ones, because safetensors refuses shared memory."""
    separate: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in weights.items():
        storage = tensor.untyped_storage().data_ptr()
        separate[name.removeprefix("module.")] = tensor.clone() if storage in storages else tensor.contiguous()
        storages.add(storage)
    return separate
