"""Draw the menu that queues a calibration: timings from which the speed of all other models is estimated."""

import streamlit as st

from engine.jobs import submit
from engine.report.timings import estimates, needs
from engine.report.timings.durations import in_words
from engine.store import UNFINISHED, Run
from engine.words import plural
from pages.shared import backend, rerun
from pages.shared.chart.chart import choice
from pages.shared.runs import durations, launch, view
from pages.shared.text import plain, refusals_shown
from pages.shared.timing import speeds

BATCHES = {1: "Latency (batch 1)", 64: "Throughput (batch 64)"}


def draw(key: str) -> None:
    """Draw the menu that queues a calibration. While one waits or runs, draw its progress instead."""
    if speeds.work() is None:
        return
    run = _unfinished_calibration()
    tick = view.TIMING_TICK_S if run else None
    st.fragment(_draw, run_every=tick, key=f"{key}_part")(key, run.id if run else None)


def _unfinished_calibration() -> Run | None:
    runs = backend.store().runs(kind="benchmark", states=UNFINISHED)
    return next((run for run in runs if run.name == estimates.CALIBRATION), None)


def _draw(key: str, run_id: int | None) -> None:
    if run_id is None:
        viewer = not backend.may_start()
        icon = ":material/speed:"
        menu = st.popover("Calibrate this machine", icon=icon, key=key, on_change="rerun", disabled=viewer)
        if menu.open and not viewer:
            with menu:
                _form(key)
        return
    run = backend.current_run(run_id)
    if run.state.ended:
        rerun.show_later(f"Calibration, run {run_id}: {run.outcome}", ":material/speed:")
        rerun.page()  # redraw once with the calibrated device and without the timer
    link = {"run": str(run_id)}
    st.page_link("run/page.py", label=f"Calibration: run {run_id}", icon=":material/speed:", query_params=link)
    st.caption(plain(view.sentence(run, backend.store())))
    view.progress(run)


@refusals_shown()
def _form(key: str) -> None:
    """Draw the choice of what to time, the button, and warnings about earlier calibrations."""
    work = speeds.work()
    assert work is not None, "the menu is drawn only with counted operators"
    speeds.draw_warnings(speeds.devices(speeds.timed()))
    batch = choice("Speed to estimate", list(BATCHES), format_func=BATCHES.__getitem__, key=f"{key}_batch")
    device = st.selectbox("Device", launch.devices(), key=f"{key}_device")
    nodes = 1
    if (most_nodes := launch.nodes_with(device)) > 1:
        nodes = st.number_input("Nodes that share the models", 1, most_nodes, key=f"{key}_nodes")
    spec = estimates.calibration(work, device, batch_size=batch, nodes=nodes)
    st.caption(
        f"One run times {plural(len(spec.models), 'quick model')} of different families, eager and in float32. Run "
        "nothing else meanwhile. Every later timing in this setting also improves the estimates."
    )
    if load := needs.overload():
        st.caption(f"**Calibrate later: {load}.** A calibration now takes longer, and its estimates are less accurate.")
    label = f"Calibrate ({in_words(durations.timing_s(spec, spec.models))})"
    if st.button(label, key=f"{key}_go", icon=":material/timer:"):
        latest = backend.store().runs(kind="benchmark", limit=1)
        # Two presses at once have the same key, so they make one run.
        submit_key = f"{estimates.CALIBRATION} after {latest[0].id if latest else 0}"
        if _unfinished_calibration() is None:
            submit(backend.store(), backend.settings(), spec, name=estimates.CALIBRATION, key=submit_key)
        st.rerun()
