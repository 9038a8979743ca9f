"""Draw the frame around every page: title, width and navigation. Each page is a folder beside this file."""

from pathlib import Path
from typing import Any

import streamlit as st
from streamlit.navigation.page import StreamlitPage

from engine.specs import Refused
from engine.store import Role
from pages.shared import backend, browser_history, links, rerun, sign_in
from pages.shared.form import link
from pages.shared.kinds import KINDS
from pages.shared.rerun import PageEnd
from pages.shared.text import plain, show_error

HELP = {
    "catalog": "The cost of every open_clip, timm and torchvision model. Filter, plot, compare and download.",
    "profile": "Count parameters, MACs, activations and memory of the models and image size you choose.",
    "vision": "Time inference or training of models on this machine, eager and compiled.",
    "recurrent": "Time an LSTM, GRU or RNN forward and backward: cuDNN, ATen, scripted, compiled, plain Python.",
    "device": "This machine's hardware, its measured peak rates, and the share of them that models reach.",
    "train": "Train or fine-tune CLIP briefly on your images and captions. Watch, stop and resume a training.",
    "evaluate": "Evaluate a model or a training: retrieval, zero-shot classification, linear probe.",
    "history": "Running, queued and past runs.",
    "compare": "Compare runs or models side by side: their settings and their results.",
}


def entry(folder: str, title: str, icon: str, **more: Any) -> StreamlitPage:
    """Return the page in a folder, hidden from the navigation if it has no help text. more: arguments of st.Page."""
    options: dict[str, Any] = {"url_path": folder, "visibility": "visible" if folder in HELP else "hidden"} | more
    return st.Page(f"{folder}/page.py", title=title, icon=f":material/{icon}:", help=HELP.get(folder), **options)


PAGES = {
    "Costs": [
        entry("catalog", "Catalogue", "table_view", default=True),
        entry("profile", KINDS["profile"].title, "calculate"),
        entry("model", "Model", "category"),
    ],
    "Speed": [
        entry("vision", KINDS["benchmark"].title, "timer"),
        entry("recurrent", KINDS["recurrent"].title, "repeat"),
        entry("device", KINDS["device"].title, "memory"),
    ],
    "CLIP": [
        entry("train", KINDS["train"].title, "model_training"),
        entry("evaluate", KINDS["evaluate"].title, "fact_check"),
    ],
    "Runs": [
        entry("history", "Runs", "history", url_path="runs"),
        entry("run", "Run", "receipt_long"),
        entry("compare", "Compare", "compare_arrows"),
    ],
}
# This call comes before st.navigation. Otherwise the browser fetches the page's icon from a Google host.
st.set_page_config(page_icon=Path(__file__).parent / "static" / "icon.svg", layout="wide")
page = st.navigation(PAGES, position="sidebar" if backend.user().role > Role.NONE else "hidden")
st.set_page_config(page_title=f"{page.title} – Model Vitals")
st.html(Path(__file__).with_suffix(".css"))
# The navigation hides these pages, so the page that leads to them is marked in their place.
if (parent := {"run": "runs", "model": ""}.get(page.url_path)) is not None:
    mark = "{ background: color-mix(in srgb, currentColor 12%, transparent); & * { color: inherit; font-weight: 600 } }"
    st.html(f"<style>[data-testid=stSidebarNavLink][href$='/{parent}'] {mark}</style>")
sign_in.draw(backend.settings())
if (warning := backend.settings().public_warning) and not sign_in.configured():
    st.sidebar.warning(plain(warning), icon=":material/public:")
must_wait = link.fill_from_run(page.url_path)
parameters, top = links.parameters(), st.container()
try:
    if not must_wait:
        page.run()
except PageEnd:
    pass
except Refused as refusal:  # a page shows most refusals where they occur
    show_error(refusal)
with top:
    links.report(parameters, page.url_path)
rerun.show_waiting()
browser_history.merge_entries(report=must_wait)
