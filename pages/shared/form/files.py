"""Draw the upload of files with names of models and with open_clip configurations."""

from typing import Any

import streamlit as st

from engine.names import parse_config, parse_names
from engine.specs import Refused
from pages.shared.form import spec_form
from pages.shared.rerun import fold
from pages.shared.text import show_error


def draw_files(prefix: str) -> tuple[list[str], dict[str, Any]]:
    """Draw the file upload. Return the names and configurations of the files and of the copied run."""
    names: list[str] = []
    configs: dict[str, Any] = dict(st.session_state.get(spec_form.key(prefix, "configs"), {}))
    files = f"{prefix}_files"
    if section := fold("Models from files", key=f"{prefix}_fold_files", filled=bool(st.session_state.get(files))):
        with section:
            names, own_configs = read_files(files)
        configs |= own_configs
    return [*names, *(f"config:{name}" for name in configs)], configs


def read_files(key: str) -> tuple[list[str], dict[str, Any]]:
    """Draw the upload field and return the names and configurations in its files."""
    names: list[str] = []
    configs: dict[str, Any] = {}
    for file in st.file_uploader(
        "Names (.txt, .csv) or open_clip configurations (.json)",
        type=["txt", "csv", "json"],
        accept_multiple_files=True,
        key=key,
        help="A text file has one name or pattern per line. A CSV has a column `model`. A JSON file is an open_clip "
        "configuration.",
    ):
        text = file.getvalue().decode("utf-8-sig", errors="replace")
        try:
            if file.name.endswith(".json"):
                configs[file.name.rsplit(".", 1)[0]] = parse_config(text, file.name)
            else:
                names += parse_names(text, file.name)
        except Refused as refusal:
            show_error(refusal)
    return names, configs
