"""Where published accuracies come from, which of them find no model, and how newer ones get in."""

import streamlit as st

from engine.report import accuracy_import
from engine.report.fetch import fetch
from engine.report.publishers import TABLES
from engine.specs import Refused
from pages.components import backend, catalog_data
from pages.components.fold import fold
from pages.components.results_table import results_table
from pages.components.text import plain

FILE, URL, DONE = "catalog_table_file", "catalog_table_url", "catalog_imported"
LARGEST_MB = accuracy_import.LARGEST_FILE // 1_000_000


@st.fragment
def draw() -> None:
    """A folded part of the page, drawn once it is unfolded."""
    label, icon = "Published accuracies: whose they are, and newer ones", ":material/menu_book:"
    if not (part := fold(label, icon=icon, key="catalog_published", filled=_begun())):
        return
    with part:
        matched = catalog_data.published()
        counts = matched.counts.set_index("kind")
        for kind, table in TABLES.items():
            rows = counts.loc[kind]
            missing = f"{rows['unmatched']} find no counted model" if rows["unmatched"] else "all find their model"
            st.caption(
                plain(
                    f"{', '.join(table.files)}: {rows['rows']:,} rows of {table.source}, {missing}. As "
                    "shipped, unless a row's source says that it was imported."
                )
            )
        if len(matched.unmatched):
            results_table(matched.unmatched, key="catalog_unmatched", alt="Published rows without a model", height=220)
        _import()


def _begun() -> bool:
    """Whether a table is chosen that is not taken in yet: folding this away must not lose it."""
    return any(st.session_state.get(name) for name in (FILE, URL, DONE))


def _import() -> None:
    st.markdown("**Take in a newer version of a publisher's table**")
    st.caption(
        "timm's results-*.csv or open_clip's openclip_results.csv and openclip_retrieval_results.csv, under "
        "their own names. It is checked whole; where anything is wrong, nothing changes."
    )
    file = st.file_uploader("Table (.csv)", type="csv", key=FILE, max_upload_size=LARGEST_MB)
    url = st.text_input("or its address", key=URL, placeholder="https://...", max_chars=2000)
    if st.button("Import", key="catalog_import", icon=":material/upload:", disabled=not (file or url.strip())):
        try:
            with st.spinner("Fetching and checking"):
                content, name = (
                    (file.getvalue(), file.name) if file else fetch(url.strip(), accuracy_import.LARGEST_FILE)
                )
                to = accuracy_import.folder(backend.settings())
                done = accuracy_import.take(content, name, to, origin=name if file else url.strip())
        except Refused as refusal:
            st.error(plain(str(refusal)), icon=":material/error:")
            return
        st.session_state[DONE] = done.sentence
        st.rerun(scope="app")
    if DONE in st.session_state:
        st.success(plain(st.session_state.pop(DONE)), icon=":material/check:")
