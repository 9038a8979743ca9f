"""Make each link one entry of the browser's history, so that Back returns to the page as it was.

The script also lets a link wait until the text that was just typed has been sent. It redraws a page that has connected
again, and keeps a text that was being typed when the connection ended. After a sign-in, it opens the address from
before.
"""

from functools import partial
from pathlib import Path

import streamlit as st

_draw = st.components.v2.component("history", js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8"))
MERGING = "history_merging"
"""Key that the session has once the browser has reported that it merges entries."""


def merge_entries(*, report: bool = False) -> None:
    """Install the script that merges the history entries of one click. report: the browser reports it in a rerun."""
    _draw(key="history", data={"report": report}, on_merging_change=partial(st.session_state.update, {MERGING: True}))


def keep_address() -> None:
    """Keep the address of the sign-in page. The next page on which `merge_entries` is called opens it."""
    _draw(key="signed_out", data={"signedOut": True})
