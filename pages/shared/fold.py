"""Parts of a page that are folded away: drawn once they are unfolded, since every widget in them costs a page time."""

import streamlit as st
from streamlit.delta_generator import DeltaGenerator


def fold(label: str, *, key: str, icon: str | None = None, filled: bool = False) -> DeltaGenerator | None:
    """A folded part, to draw in; None as long as nobody has unfolded it.

    key: of whether it is open. filled: whether something in it is set, so that it must be drawn in any case.
    """
    part = st.expander(label, icon=icon, key=key, on_change="rerun")
    return part if part.open or filled else None
