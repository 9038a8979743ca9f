"""Read the compared runs or models from the page's address, and keep the address in step with the fields."""

from collections.abc import Iterable, Sequence
from typing import Any

import streamlit as st

from engine.store import Run
from engine.words import numbered_runs, shortened
from pages.shared import backend
from pages.shared.text import plain, quoted

MOST = 8
"""Maximum number of runs or models in one comparison. More columns do not fit on a screen."""
RECENT = 200
"""Number of newest runs that the field offers. An older run can be typed by its number."""
RUNS, MODELS = "compare_runs", "compare_models"
WHAT = "compare_what"


def parameter_values(parameter: str) -> list[str]:
    """Return the distinct values of an address parameter, which is a list (`12,15`) or occurs several times."""
    parts = ",".join(st.query_params.get_all(parameter)).split(",")
    return list(dict.fromkeys(part.strip() for part in parts if part.strip()))


def subject() -> str:
    """Draw the choice between runs and models and return it. The address sets the default."""
    default = "models" if parameter_values(MODELS) and not parameter_values(RUNS) else "runs"
    choice = st.query_params.get(WHAT) or default
    choice = choice.lower()
    if choice not in ("runs", "models"):
        message = f"The link asks to compare {quoted(choice)}: {WHAT} must be runs or models. Runs are shown."
        st.warning(plain(message), icon=":material/link_off:")
        choice = "runs"
    st.session_state["compare_of"] = choice
    chosen = st.segmented_control(
        "Compare", ["runs", "models"], key="compare_of", required=True, on_change=_switch, format_func=str.title
    )
    return chosen or choice


def _switch() -> None:
    st.query_params[WHAT] = st.session_state["compare_of"]


def _field(label: str, parameter: str, options: Iterable[str], chosen: list[str], **more: Any) -> list[str]:
    """Draw the field of runs or models and return at most MOST chosen ones. options: offered besides these."""
    key = f"{parameter}_field"

    def update_address() -> None:
        st.query_params[parameter] = ",".join(st.session_state[key])

    st.session_state[key] = chosen[:MOST]
    st.multiselect(
        label,
        list(dict.fromkeys([*chosen, *options])),
        key=key,
        max_selections=MOST,
        select_all=False,  # Enter would select all matches of the typed text
        on_change=update_address,
        **more,
    )
    if len(chosen) > MOST:
        st.warning(plain(f"At most {MOST} {label.lower()} can be compared. Left out: {shortened(chosen[MOST:])}."))
    return chosen[:MOST]


def runs() -> list[Run]:
    """Draw the field of runs and return the chosen ones in their order. Warn about numbers without a run."""
    by_number = {number: backend.find_run(number) for number in parameter_values(RUNS)}
    linked = {str(run.id): run for run in by_number.values() if run}
    existing = {str(run.id): run for run in backend.store().runs(limit=RECENT)} | linked
    # The labels are text, because the session keeps everything that format_func refers to. It must not keep the runs.
    labels = {number: _label(run) for number, run in existing.items()}
    chosen = _field(
        "Runs",
        RUNS,
        existing,
        list(dict.fromkeys(str(run.id) if run else number for number, run in by_number.items())),
        format_func=lambda number: labels.get(number, number),
        accept_new_options=True,
        placeholder="Choose runs, or type a run's number",
        help=f"Choose up to {MOST} runs of one kind. The list has the {RECENT} newest; type older numbers.",
    )
    if missing := [number for number in chosen if number not in existing]:
        names = numbered_runs([number[:40] for number in missing])
        st.warning(plain(f"Not found, maybe deleted: {names}."), icon=":material/warning:")
    return [existing[number] for number in chosen if number in existing]


def _label(run: Run) -> str:
    return f"{run.id} {run.kind}: {run.name or run.spec.summary}, {run.created_at:%Y-%m-%d %H:%M} UTC"


def models() -> list[str]:
    """Draw the field of models and return the chosen ones in their order. Warn about names not in the catalogue."""
    existing = dict.fromkeys(backend.catalogue()["name"])
    chosen = _field("Models", MODELS, existing, parameter_values(MODELS), placeholder="Choose models")
    if unknown := [name for name in chosen if name not in existing]:
        names = ", ".join(name[:100] for name in unknown)
        message = f"The catalogue has no model {names}. Write names as library:model, such as timm:resnet50."
        st.warning(plain(message), icon=":material/warning:")
    return [name for name in chosen if name in existing]


def baseline(names: Sequence[str], label: str = "Baseline") -> str:
    """Draw the choice of the baseline and return its name. The first name is the default."""
    return st.selectbox(label, list(names), key="compare_baseline", bind="query-params")
