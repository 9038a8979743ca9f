"""Export a checkpoint of a training as a folder for open_clip."""

import zipfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import streamlit as st

from engine.jobs import checkpoints
from engine.report.export import model_card
from engine.results.clip import TrainRow
from engine.store import Run
from pages.shared import backend
from pages.shared.chart.chart import verbatim
from pages.shared.question import draw_answer
from pages.shared.table import download
from pages.shared.text import refusals_shown

LARGEST_ZIP = 500_000_000
"""Maximum size in bytes of a folder that is offered as a zip, because the server holds the zip in memory."""


@refusals_shown()
def draw(run: Run, rows: Sequence[TrainRow], name: str) -> None:
    """Draw the button that exports a checkpoint, or the exported folder. name: of the checkpoint's file."""
    path, step = checkpoints.named(backend.settings(), run, name)
    folder = backend.folder(run) / "export" / f"{path.stem}_step_{step}"
    key = f"export_{run.id}_{folder.name}"
    if folder.is_dir():
        _draw_folder(folder, key)
        return
    help = "Write the weights as safetensors with an open_clip configuration and a model card."
    pressed = st.button("Export for open_clip", icon=":material/deployed_code:", key=key, help=help)
    if pressed:
        checkpoints.fetch(backend.settings(), run, name)
    if pressed or f"{key}_asked_answer" in st.session_state:
        question = model_card.export(run, rows, path, step, folder)
        draw_answer(question, f"{key}_asked", lambda _: _draw_folder(folder, key), waiting="Exporting.")


def _draw_folder(folder: Path, key: str) -> None:
    """Draw the code that loads the folder, and the download of the folder."""
    st.caption("Exported as a folder that open_clip loads:")
    verbatim(f'open_clip.create_model_and_transforms("local-dir:{folder}")', key=f"{key}_code")
    size = sum(file.stat().st_size for file in folder.iterdir())
    if size > LARGEST_ZIP:
        st.caption(f"{size / 1e9:.1f} GB, too large to download here. Copy the folder.")
        return
    download(f"Folder as zip ({size / 1e6:,.1f} MB)", lambda: _zip(folder), f"{folder.name}.zip", key=f"{key}_zip")


def _zip(folder: Path) -> bytes:
    content = BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:  # weights do not compress
        for file in sorted(folder.iterdir()):
            archive.write(file, f"{folder.name}/{file.name}")
    return content.getvalue()
