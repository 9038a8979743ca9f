"""Draw the upload of files with names of models and with open_clip configurations."""

from collections.abc import Mapping
from typing import Any

import streamlit as st

from engine.names import parse_config, parse_names
from engine.specs import Refused
from pages.shared.form import spec_form
from pages.shared.rerun import fold
from pages.shared.text import refusals_shown

NAMES_OR_CONFIGS: dict[str, Any] = {
    "label": "Names (.txt, .csv) or open_clip configurations (.json)",
    "type": ["txt", "csv", "json"],
    "help": "A text file has one name or pattern per line. A CSV has a column `model`. A JSON file is an open_clip "
    "configuration.",
}
CONFIGS: dict[str, Any] = {
    "label": "open_clip configurations (.json)",
    "type": "json",
    "help": "Each file appears in the list of models as config:NAME.",
}


def draw_files(
    prefix: str, title: str = "Models from files", uploader: Mapping[str, Any] = NAMES_OR_CONFIGS
) -> tuple[list[str], dict[str, Any]]:
    """Draw the file upload. Return the names and configurations of the files and of the copied run."""
    names: list[str] = []
    uploaded: dict[str, Any] = {}
    key = f"{prefix}_files"

    def read() -> None:
        for file in st.file_uploader(**uploader, accept_multiple_files=True, key=key):
            text = file.getvalue().decode("utf-8-sig", errors="replace")
            with refusals_shown():
                if file.name.lower().endswith(".json"):
                    name = file.name.rsplit(".", 1)[0]
                    config = parse_config(text, file.name)
                    if uploaded.setdefault(name, config) != config:
                        raise Refused(f"two uploaded configurations are named {name!r}: rename one of the files")
                else:
                    names.extend(parse_names(text, file.name))

    fold(title, read, key=f"{prefix}_fold_files", filled=bool(st.session_state.get(key)))
    configs = st.session_state.get(spec_form.key(prefix, "configs"), {}) | uploaded
    return [*names, *(f"config:{name}" for name in configs)], configs
