"""Pictures of images that an evaluation has judged, as long as its data are still there."""

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
def _places(given: tuple[tuple[str, Any], ...], stamp: int) -> dict[str, int]:
    """Where each source is among the pairs: an evaluation counts only those that it has judged."""
    pairs = data.pairs(dict(given))
    return {pairs.source(place): place for place in range(len(pairs))}


def grid(run: Run, lines: pd.DataFrame, caption: Callable[[Line], str], shows: Callable[[Line], str]) -> bool:
    """Pictures side by side, a line each; whether all could be shown.

    lines: with the column `source`. caption: in Markdown. shows: what a picture shows, for who cannot see it.
    """
    assert isinstance(run.spec, EvaluateSpec)
    try:
        given = data.source(run.spec.model_dump())
        pairs = data.pairs(given)
        places = _places(tuple(sorted(given.items())), data.stamp(given["data"]))
    except DataProblem as problem:
        st.caption(plain(f"The pictures are not here any more: {problem}"))
        return lines.empty
    found = [
        (data.thumbnail(pairs, places[line["source"]]), line)
        for line in lines.to_dict("records")
        if line["source"] in places
    ]
    there = [(picture, caption(line), shows(line)) for picture, line in found if picture]
    data.grid(there, width=WIDTH)
    return len(there) == len(lines)
