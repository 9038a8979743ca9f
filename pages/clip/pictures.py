"""Show the images of an evaluation while its data exist."""

from collections.abc import Callable
from typing import Any

import pandas as pd
import streamlit as st

from engine.datasets import DataProblem
from engine.specs.evaluate import EvaluateSpec
from engine.store import Run
from pages.clip import data
from pages.shared.text import plain

WIDTH = 112
Line = dict[Any, Any]


@st.cache_resource(max_entries=4, show_spinner="Reading the data")
def _indices(arguments: dict[str, Any]) -> dict[str, int]:
    """Return the index of each pair by its source, which evaluations store because they may use only some pairs."""
    pairs = data.pairs(arguments)
    return {pairs.source(index): index for index in range(len(pairs))}


def grid(run: Run, lines: pd.DataFrame, caption: Callable[[Line], str], alt: Callable[[Line], str]) -> bool:
    """Draw one picture per row of `lines`, side by side. Return True if all could be shown.

    lines: frame with a column `source`. caption: makes the caption of a row, in Markdown. alt: makes the text
    alternative of a row.
    """
    assert isinstance(run.spec, EvaluateSpec)
    try:
        arguments = data.source(run.spec.model_dump())
        pairs = data.pairs(arguments)
        indices = _indices(arguments)
    except DataProblem as problem:
        st.caption(plain(f"The images are not available any more: {problem}"))
        return lines.empty
    thumbnails = [
        (data.thumbnail(pairs, indices[line["source"]]), line)
        for line in lines.to_dict("records")
        if line["source"] in indices
    ]
    readable = [(image, caption(line), alt(line)) for image, line in thumbnails if image]
    data.grid(readable, width=WIDTH)
    return len(readable) == len(lines)
