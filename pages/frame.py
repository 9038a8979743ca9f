"""Draw the frame around every page: title, width and navigation. Each page is a folder beside this file."""

from contextlib import suppress
from pathlib import Path

import streamlit as st

from engine.store import Role
from pages.shared import backend, history, links, rerun, sign_in
from pages.shared.form import link
from pages.shared.rerun import PageEnd
from pages.shared.text import plain

# This call comes before st.navigation. Otherwise the browser fetches the page's icon from a Google host.
st.set_page_config(page_icon=Path(__file__).parent / "static" / "icon.svg", layout="wide")
page = st.navigation(
    {
        "Costs": [
            st.Page(
                "catalog/page.py",
                title="Catalogue",
                icon=":material/table_view:",
                url_path="catalog",
                default=True,
                help="The cost of every open_clip, timm and torchvision model. Filter, plot, compare and download.",
            ),
            st.Page(
                "profile/page.py",
                title="Profile",
                icon=":material/calculate:",
                url_path="profile",
                help="Count parameters, MACs, activations and memory of the models and image size you choose.",
            ),
            st.Page("model/page.py", title="Model", icon=":material/category:", url_path="model", visibility="hidden"),
        ],
        "Speed": [
            st.Page(
                "vision/page.py",
                title="Vision speed",
                icon=":material/timer:",
                url_path="vision",
                help="Time inference or training of models on this machine, eager and compiled.",
            ),
            st.Page(
                "recurrent/page.py",
                title="Recurrent layers",
                icon=":material/repeat:",
                url_path="recurrent",
                help="Time an LSTM, GRU or RNN forward and backward: cuDNN, ATen, scripted, compiled, plain Python.",
            ),
            st.Page(
                "device/page.py",
                title="Device",
                icon=":material/memory:",
                url_path="device",
                help="This machine's hardware, its measured peak rates, and the share of them that models reach.",
            ),
        ],
        "CLIP": [
            st.Page(
                "train/page.py",
                title="Train",
                icon=":material/model_training:",
                url_path="train",
                help="Train or fine-tune CLIP briefly on your images and captions. Watch, stop and resume a training.",
            ),
            st.Page(
                "evaluate/page.py",
                title="Evaluate",
                icon=":material/fact_check:",
                url_path="evaluate",
                help="Evaluate a model or a training: retrieval, zero-shot classification, linear probe.",
            ),
        ],
        "Runs": [
            st.Page(
                "history/page.py",
                title="Runs",
                icon=":material/history:",
                url_path="runs",
                help="Running, queued and past runs.",
            ),
            st.Page("run/page.py", title="Run", icon=":material/receipt_long:", url_path="run", visibility="hidden"),
            st.Page(
                "compare/page.py",
                title="Compare",
                icon=":material/compare_arrows:",
                url_path="compare",
                help="Compare runs or models side by side: their settings and their results.",
            ),
        ],
    },
    position="sidebar" if backend.user().role > Role.NONE else "hidden",
)
st.set_page_config(page_title=f"{page.title} – Model Vitals")
# Streamlit writes white on the primary colour: 3.7:1 in the dark theme. Dark text has 5.1:1.
on_primary = ".stApp :is([data-testid=stBaseButton-primary]:enabled, [data-tag])"
st.html(f"<style>{on_primary} {{ color: light-dark(#ffffff, #0d1117) }}</style>")
sign_in.draw(backend.settings())
if (warning := backend.settings().public_warning) and not sign_in.configured():
    st.sidebar.warning(plain(warning), icon=":material/public:")
waits = link.fill_from_run(page.url_path)
parameters, top = links.parameters(), st.container()
with suppress(PageEnd):
    if not waits:
        page.run()
with top:
    links.report(parameters, page.url_path)
rerun.show_waiting()
history.merge_entries(report=waits)
