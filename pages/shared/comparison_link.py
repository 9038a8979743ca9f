"""What is compared: runs or models, which the page's address names."""

from collections.abc import Sequence

import streamlit as st

from engine.store import Run
from pages.shared import backend
from pages.shared.text import plain, quoted

MOST = 8
"""Side by side."""
RECENT = 200
"""Runs offered."""
RUNS, MODELS = "compare_runs", "compare_models"
WHAT = "compare_what"
BIND = "query-params"


def named(parameter: str) -> list[str]:
    """What a parameter of the address lists, each once: `12,15`, or given several times."""
    parts = ",".join(st.query_params.get_all(parameter)).split(",")
    return list(dict.fromkeys(part.strip() for part in parts if part.strip()))


def what() -> str:
    """`runs` or `models`; what the address names without saying so."""
    asked = st.query_params.get(WHAT) or ("models" if named(MODELS) and not named(RUNS) else "runs")
    if asked not in ("runs", "models"):
        st.warning(plain(f"{quoted(asked)} cannot be compared: runs or models can."), icon=":material/warning:")
        asked = "runs"
    st.session_state["compare_of"] = asked
    return st.segmented_control(
        "Side by side", ["runs", "models"], key="compare_of", required=True, on_change=_switch, format_func=str.title
    )


def _switch() -> None:
    st.query_params[WHAT] = st.session_state["compare_of"]


def _keep(parameter: str, widget: str) -> None:
    """The address follows the field."""
    st.query_params[parameter] = ",".join(st.session_state[widget])


def runs() -> list[Run]:
    """The chosen runs that there are, in the order chosen; says which are not."""
    store = backend.store()
    asked = list(dict.fromkeys(str(int(number)) if _is_number(number) else number for number in named(RUNS)))
    recent = {str(run.id): run for run in store.runs(limit=RECENT)}
    known = recent | {number: run for number in asked if number not in recent and (run := _run(number))}
    labels = {number: _described(run) for number, run in known.items()}  # a session keeps them, and would keep the runs
    st.session_state["compare_choose_runs"] = asked[:MOST]
    st.multiselect(
        "Runs",
        list(dict.fromkeys([*asked, *recent])),
        format_func=lambda number: labels.get(number, number),
        key="compare_choose_runs",
        accept_new_options=True,
        max_selections=MOST,
        placeholder="Choose runs, or type a run's number",
        on_change=_keep,
        args=(RUNS, "compare_choose_runs"),
        help=f"The {RECENT} newest are listed; the number of an older one can be typed. Up to {MOST} of one kind.",
    )
    if len(asked) > MOST:
        st.warning(plain(f"{MOST} runs fit side by side; left out: {', '.join(asked[MOST:])}."))
    if gone := [number for number in asked[:MOST] if number not in known]:
        there = "runs" if len(gone) > 1 else "run"
        said = f"There is no {there} {', '.join(number[:40] for number in gone)}; it may have been deleted."
        st.warning(plain(said), icon=":material/warning:")
    return [known[number] for number in asked[:MOST] if number in known]


def _run(number: str) -> Run | None:
    """None where there is none of that number."""
    if not _is_number(number):
        return None
    try:
        return backend.store().run(int(number))
    except LookupError:
        return None


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= backend.LONGEST_ID


def _described(run: Run) -> str:
    return f"{run.id} {run.kind}: {run.name or run.spec.summary}, {run.created_at:%Y-%m-%d}"


def models() -> list[str]:
    """The chosen models that the catalogue has, in the order chosen; says which it has not."""
    catalogue, asked = backend.catalogue(), named(MODELS)
    known = dict.fromkeys(catalogue["name"])
    st.session_state["compare_choose_models"] = asked[:MOST]
    st.multiselect(
        "Models",
        list(dict.fromkeys([*asked, *known])),
        key="compare_choose_models",
        max_selections=MOST,
        placeholder="Choose models",
        on_change=_keep,
        args=(MODELS, "compare_choose_models"),
    )
    if len(asked) > MOST:
        st.warning(plain(f"{MOST} models fit side by side; left out: {', '.join(asked[MOST:])}."))
    if unknown := [name for name in asked[:MOST] if name not in known]:
        said = f"The catalogue has no {', '.join(name[:100] for name in unknown)}: names are library:model."
        st.warning(plain(said), icon=":material/warning:")
    return [name for name in asked[:MOST] if name in known]


def baseline(names: Sequence[str], label: str = "Baseline") -> str:
    """Which of several all others are compared with; the first, unless the address names another."""
    return st.selectbox(label, list(names), key="compare_baseline", bind=BIND)
