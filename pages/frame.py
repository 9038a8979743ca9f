"""The frame around every page: its title, its width and the navigation. Each page is a folder beside this file."""

from contextlib import suppress
from pathlib import Path

import streamlit as st

from pages.shared import announce, backend, links
from pages.shared.page_end import PageEnd
from pages.shared.text import plain

# before the navigation, whose icon of the page the browser would fetch from a host of Google's
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
                help="What every open_clip and timm model costs: filter, plot, pick models, take a CSV away.",
            ),
            st.Page(
                "profile/page.py",
                title="Profile",
                icon=":material/calculate:",
                url_path="profile",
                help="Count parameters, MACs, activations and memory of models of your choice, at your image size.",
            ),
            st.Page("model/page.py", title="Model", icon=":material/category:", url_path="model", visibility="hidden"),
        ],
        "Speed": [
            st.Page(
                "vision/page.py",
                title="Vision speed",
                icon=":material/timer:",
                url_path="vision",
                help="Time models here: inference or training, eager against compiled, in figures that can be quoted.",
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
                help="What this machine is, what it was measured to do, and how much of that models get.",
            ),
        ],
        "CLIP": [
            st.Page(
                "train/page.py",
                title="Train",
                icon=":material/model_training:",
                url_path="train",
                help="Train or fine-tune CLIP for a short while on your images and captions; watch, stop, resume it.",
            ),
            st.Page(
                "evaluate/page.py",
                title="Evaluate",
                icon=":material/fact_check:",
                url_path="evaluate",
                help="Evaluate a model or a training: retrieval, zero-shot on your classes, linear probe.",
            ),
        ],
        "Runs": [
            st.Page(
                "history/page.py",
                title="Runs",
                icon=":material/history:",
                url_path="runs",
                help="What runs now, what waits, and what came before.",
            ),
            st.Page("run/page.py", title="Run", icon=":material/receipt_long:", url_path="run", visibility="hidden"),
            st.Page(
                "compare/page.py",
                title="Compare",
                icon=":material/compare_arrows:",
                url_path="compare",
                help="Runs or models side by side: what differs in how they were made, and in what they found.",
            ),
        ],
    }
)
st.set_page_config(page_title=f"{page.title} – Model Vitals")
if warning := backend.settings().public_warning:
    st.sidebar.warning(plain(warning), icon=":material/public:")
given, top = links.asked(), st.container()
with suppress(PageEnd):
    page.run()
with top:
    links.report(given, page.url_path)
announce.now()
