"""Read the compared runs or models from the page's address, and keep the address in step with the fields."""

from collections.abc import Sequence
from typing import Final

import streamlit as st

from engine.store import Run
from pages.shared import backend
from pages.shared.text import plain, quoted

MOST = 8
"""Maximum number of runs or models in one comparison. More columns do not fit on a screen."""
RECENT = 200
"""The field offers this many newest runs. An older run can be typed by its number."""
RUNS, MODELS = "compare_runs", "compare_models"
WHAT = "compare_what"
BIND: Final = "query-params"


def named(parameter: str) -> list[str]:
    """Return the values of an address parameter, without duplicates.

    The parameter is a list such as `12,15`, or occurs several times.
    """
    parts = ",".join(st.query_params.get_all(parameter)).split(",")
    return list(dict.fromkeys(part.strip() for part in parts if part.strip()))


def subject() -> str:
    """Draw the choice between runs and models and return it. The address sets the default."""
    choice = st.query_params.get(WHAT) or ("models" if named(MODELS) and not named(RUNS) else "runs")
    if choice not in ("runs", "models"):
        st.warning(plain(f"{quoted(choice)} cannot be compared. Choose runs or models."), icon=":material/warning:")
        choice = "runs"
    st.session_state["compare_of"] = choice
    chosen = st.segmented_control(
        "Compare", ["runs", "models"], key="compare_of", required=True, on_change=_switch, format_func=str.title
    )
    return chosen or choice


def _switch() -> None:
    st.query_params[WHAT] = st.session_state["compare_of"]


def _update_address(parameter: str, widget: str) -> None:
    """Write the value of a field into the address."""
    st.query_params[parameter] = ",".join(st.session_state[widget])


def runs() -> list[Run]:
    """Draw the field of runs and return the chosen ones in their order. Warn about numbers without a run."""
    store = backend.store()
    chosen = list(dict.fromkeys(str(int(number)) if _is_number(number) else number for number in named(RUNS)))
    recent = {str(run.id): run for run in store.runs(limit=RECENT)}
    existing = recent | {number: run for number in chosen if number not in recent and (run := _run(number))}
    # The labels are text, because the session keeps everything that format_func refers to. It must not keep the runs.
    labels = {number: _label(run) for number, run in existing.items()}
    st.session_state["compare_choose_runs"] = chosen[:MOST]
    st.multiselect(
        "Runs",
        list(dict.fromkeys([*chosen, *recent])),
        format_func=lambda number: labels.get(number, number),
        key="compare_choose_runs",
        accept_new_options=True,
        max_selections=MOST,
        placeholder="Choose runs, or type a run's number",
        on_change=_update_address,
        args=(RUNS, "compare_choose_runs"),
        help=f"Choose up to {MOST} runs of one kind. The list has the {RECENT} newest; type older numbers.",
    )
    if len(chosen) > MOST:
        st.warning(plain(f"At most {MOST} runs can be compared. Left out: {', '.join(chosen[MOST:])}."))
    if missing := [number for number in chosen[:MOST] if number not in existing]:
        numbers = ", ".join(number[:40] for number in missing)
        message = f"There is no run {numbers}; it may have been deleted."
        if len(missing) > 1:
            message = f"There are no runs {numbers}; they may have been deleted."
        st.warning(plain(message), icon=":material/warning:")
    return [existing[number] for number in chosen[:MOST] if number in existing]


def _run(number: str) -> Run | None:
    """Return the run of this number, or None."""
    if not _is_number(number):
        return None
    try:
        return backend.store().run(int(number))
    except LookupError:
        return None


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= backend.LONGEST_ID


def _label(run: Run) -> str:
    return f"{run.id} {run.kind}: {run.name or run.spec.summary}, {run.created_at:%Y-%m-%d %H:%M}"


def models() -> list[str]:
    """Draw the field of models and return the chosen ones in their order. Warn about names not in the catalogue."""
    catalogue, chosen = backend.catalogue(), named(MODELS)
    existing = dict.fromkeys(catalogue["name"])
    st.session_state["compare_choose_models"] = chosen[:MOST]
    st.multiselect(
        "Models",
        list(dict.fromkeys([*chosen, *existing])),
        key="compare_choose_models",
        max_selections=MOST,
        placeholder="Choose models",
        on_change=_update_address,
        args=(MODELS, "compare_choose_models"),
    )
    if len(chosen) > MOST:
        st.warning(plain(f"At most {MOST} models can be compared. Left out: {', '.join(chosen[MOST:])}."))
    if unknown := [name for name in chosen[:MOST] if name not in existing]:
        names = ", ".join(name[:100] for name in unknown)
        message = f"The catalogue has no model {names}. Write names as library:model, such as timm:resnet50."
        st.warning(plain(message), icon=":material/warning:")
    return [name for name in chosen[:MOST] if name in existing]


def baseline(names: Sequence[str], label: str = "Baseline") -> str:
    """Draw the choice of the baseline and return its name. The first name is the default."""
    return st.selectbox(label, list(names), key="compare_baseline", bind=BIND)
