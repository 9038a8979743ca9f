"""Commands that reproduce a model's results."""

import pandas as pd
import streamlit as st

from engine.report.catalog import model
from pages.shared.chart.verbatim import verbatim
from pages.shared.form.command import command
from pages.shared.form.link import form_link


def draw(name: str, accuracies: pd.DataFrame) -> None:
    """Draw each command with a link to its form. accuracies: published accuracies of the model."""
    for heading, spec in model.requests(name, accuracies).items():
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f"**{heading}**", width="content")
            form_link(spec, "Open the form", icon=":material/edit_note:", key=f"model_form_{heading}")
        verbatim(command(spec), key=f"model_command_{heading}")
    st.caption("Run a command in the folder of this program. Put `submit` before the command's name to queue it.")
