"""The commands that find a model's figures again."""

import pandas as pd
import streamlit as st

from engine.report.catalog import model
from pages.shared.chart.verbatim import verbatim
from pages.shared.command import command
from pages.shared.form_link import form_link


def draw(name: str, accuracies: pd.DataFrame) -> None:
    """One below the other, each with the form that asks for the same. accuracies: published of the model."""
    for what, spec in model.requests(name, accuracies).items():
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f"**{what}**", width="content")
            form_link(spec, "Open the form", icon=":material/edit_note:", key=f"model_form_{what}")
        verbatim(command(spec), key=f"model_command_{what}")
    st.caption("Run in the folder of this program. `submit` before the name of the command queues it instead.")
