"""Sources of the published accuracies, rows without a model, and the import of newer tables."""

import streamlit as st

from engine.published import publishers, update
from engine.specs import Refused
from pages.catalog import data
from pages.shared import backend
from pages.shared.fold import fold
from pages.shared.table import results_table
from pages.shared.text import plain

FILE, DONE = "catalog_table_file", "catalog_imported"
LARGEST_MB = update.LARGEST_FILE // 1_000_000


@st.fragment
def draw() -> None:
    """Draw the collapsed section on published accuracies."""
    label, icon = "Published accuracies: sources and import", ":material/menu_book:"
    if not (section := fold(label, icon=icon, key="catalog_published", filled=_import_open())):
        return
    with section:
        matched = data.published()
        counts = matched.counts.set_index("kind")
        for kind, table in publishers.TABLES.items():
            rows = counts.loc[kind]
            missing = f"{rows['unmatched']} match no counted model" if rows["unmatched"] else "all match a model"
            source = f"{', '.join(table.files)}: {rows['rows']:,} rows of {table.source}; {missing}."
            st.caption(plain(f"{source} Rows are as shipped unless their source says imported."))
        if len(matched.unmatched):
            results_table(matched.unmatched, key="catalog_unmatched", alt="Published rows without a model", height=220)
        _import()


def _import_open() -> bool:
    """Return whether a file is chosen or just imported, so that closing the section must not lose it."""
    return any(st.session_state.get(name) for name in (FILE, DONE))


def _import() -> None:
    st.markdown("**Import a newer version of a publisher's table**")
    st.caption(
        f"Download timm's [results-*.csv]({publishers.TIMM.page}), or open_clip's openclip_results.csv or "
        f"openclip_retrieval_results.csv, from its [docs folder]({publishers.ZEROSHOT.page}). Keep the file's name. "
        "The whole table is checked first. If it has an error, nothing is imported."
    )
    file = st.file_uploader("Table (.csv)", type="csv", key=FILE, max_upload_size=LARGEST_MB)
    if st.button("Import", key="catalog_import", icon=":material/upload:", disabled=file is None) and file:
        try:
            with st.spinner("Checking"):
                folder = update.folder(backend.settings())
                result = update.take(file.getvalue(), file.name, folder)
        except Refused as refusal:
            st.error(plain(str(refusal)), icon=":material/error:")
            return
        st.session_state[DONE] = result.sentence
        st.rerun(scope="app")
    if DONE in st.session_state:
        st.success(plain(st.session_state.pop(DONE)), icon=":material/check:")
