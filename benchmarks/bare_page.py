"""A Streamlit page of ten lines with the catalogue's rows and a scatter plot, as the baseline of page timings."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.settings import ROOT, Settings
from tests.support.browser import free_port, wait_for

BARE = """
import pathlib
import pandas as pd
import plotly.express as px
import streamlit as st

st.set_page_config(layout="wide")
st.title("Bare")
@st.cache_data
def read():
    return pd.concat([pd.read_csv(path) for path in sorted(pathlib.Path({folder!r}).rglob("*.csv"))])

search = st.text_input("Search", live=True)
frame = read()
frame = frame[frame["model"].str.contains(search or "", regex=False)]
st.plotly_chart(px.scatter(frame, x="gmacs", y="mparams", color="library", log_x=True, log_y=True))
st.dataframe(frame)
st.download_button(f"CSV of {{len(frame):,}} rows", "")
"""


@contextmanager
def serve_bare(folder: Path) -> Iterator[tuple[str, int]]:
    """Serve the page, and yield its address and the pid of its server."""
    script, log, port = folder / "bare.py", folder / "bare.log", free_port()
    script.write_text(BARE.format(folder=str(Settings().catalog_dir)))
    command = [sys.executable, "-m", "streamlit", "run", str(script), "--server.headless", "true"]
    with log.open("wb") as out:
        server = subprocess.Popen([*command, "--server.port", str(port)], cwd=ROOT, stdout=out, stderr=out)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(f"{url}/_stcore/health", server, log)
        yield url, server.pid
    finally:
        server.terminate()
        server.wait(30)
