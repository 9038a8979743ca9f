"""What timing recurrent layers found: its rows as they come, charts of them, and one card per selected row."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st

from engine.report import frames
from engine.report.compare import ratios
from engine.report.export import fastrnns, timm_dynamo
from engine.report.figures import recurrent, speed
from engine.report.timings import rates, readable, samples
from engine.results import RecurrentRow
from engine.specs import RecurrentSpec
from engine.specs.timed import LEAST_SAMPLES
from engine.store import Run
from pages.recurrent import card
from pages.shared import backend, run_view
from pages.shared.chart.chart import chart, tabs
from pages.shared.download import download, from_rows, rows_table
from pages.shared.table import informative_columns, results_table
from pages.shared.text import plain
from pages.shared.timing import samples as timing_samples
from pages.shared.timing import view

ALIKE = (
    *("family", "seq_length", "mini_batch", "input_size", "hidden_size", "num_layers", "image_size", "precision"),
    *("fuser", "executor", "tolerance"),
)
COLUMNS = (
    *("model", "family", *ratios.SIZES, "status", "forward_ms", "backward_ms", "speedup", "verdict"),
    "spread_percent",
    *("flags", "error", "steps_per_s", "gflops_per_step", "utilisation_percent", "output_error", "gradient_error"),
    *("compile_cold_ms", "compile_warm_ms", "device_peak_mb", "process_peak_mb", "baseline", "speedup_low"),
    *("speedup_high", "differs_in", "forward_p90_ms", "backward_p90_ms", "forward_std_ms", "backward_std_ms"),
    *(
        "forward_spread_percent",
        "backward_spread_percent",
        "latency_ms",
        "back_to_back_ms",
        "p90_ms",
        "first_call_ms",
        "samples",
    ),
    *("input_size", "num_layers", "image_size", "precision", "fuser", "executor", "tolerance", "notes"),
)
LABELS = {"table": "Table as fastrnns", "oss": "JSON as fastrnns (oss)", "pep": "JSON as fastrnns (pep)"}
ENDINGS = {"table": "txt", "oss": "json", "pep": "txt"}


def draw(run: Run, rows: Sequence[RecurrentRow]) -> None:
    """All of it, for the rows that have come so far."""
    if not rows:
        st.caption("Nothing has been timed yet: rows appear when all that is timed side by side is done.")
        return
    frame = frames.recurrent(rows)
    utilisation = _utilisation(run, rows)
    names = [_name(run, row) for row in rows]
    table = readable.table(frame, rows, utilisation).set_axis(names)
    shown, look = informative_columns(table, ALIKE), {"columns": COLUMNS, "selectable": True}
    picked = results_table(shown, key=f"rows_{run.id}", alt="Timings, runner by runner", **look)
    with st.container(horizontal=True, vertical_alignment="center"):
        _downloads(run, rows)
        run_view.more_processes(run, loops=max(run.spec.loops, LEAST_SAMPLES))
        view.failures(rows)
    _charts(run, rows)
    by_name = dict(zip(names, zip(rows, utilisation, strict=True), strict=True))
    for name in picked:
        if name in by_name:
            row, share = by_name[name]
            card.card(row, name, share)
    if not picked:
        st.caption("Select rows to see percentiles, errors, memory, conditions and what each flag means.")


def _name(run: Run, row: RecurrentRow) -> str:
    """Unlike any other row's of the run: `jit`, and of a sweep `jit, hidden size 64`."""
    size = run.spec.sweep
    value = getattr(row, size, None) if run.spec.swept else None
    return row.model if value is None else f"{row.model}, {size.replace('_', ' ')} {value:,}"


def _utilisation(run: Run, rows: Sequence[RecurrentRow]) -> list[float | None]:
    """Return the share of the device's measured rate that each row reaches, in per cent."""
    return rates.utilisation(rows, rates.rates(backend.store()), run.host)


def _downloads(run: Run, rows: Sequence[RecurrentRow]) -> None:
    """Our own formats of all rows, and fastrnns' of what was timed, where each runner has one size."""
    rows_table(run, lambda rows: timm_dynamo.full(frames.recurrent(rows), _utilisation(run, rows)))
    timed = [row for row in rows if row.status == "ok"]
    if not timed or not fastrnns.fits(rows):
        return
    content = {
        "table": fastrnns.table,
        "oss": fastrnns.oss,
        "pep": lambda rows: fastrnns.pep(rows, backend.folder(run)),
    }
    for format in fastrnns.FORMATS:
        if format != "pep" or all(timing_samples.stamp(run, row) for row in timed):
            file = f"recurrent-{run.id}-{format}.{ENDINGS[format]}"
            download(LABELS[format], from_rows(run, content[format]), file, key=f"{format}_{run.id}")


def _charts(run: Run, rows: Sequence[RecurrentRow]) -> None:
    """Only tabs there are figures for are offered."""
    timed = [row for row in rows if row.forward_ms is not None]
    kept = [row for row in timed if row.samples_file]
    groups = ratios.groups(kept)
    contents: dict[str, Any] = {}
    if timed:
        contents["Forward and backward"] = lambda: _bars(run, timed)
    if any(len(members) > 1 for members in groups.values()):
        contents["Speed-up"] = lambda: _speedups(run, groups)
    if ratios.swept(timed):
        contents["Sizes"] = lambda: _curves(run, timed)
    if kept:
        contents["Samples"] = lambda: _samples(run, groups)
    tabs(contents, key=f"charts_{run.id}")


def _bars(run: Run, rows: Sequence[RecurrentRow]) -> None:
    """All families one below the other, each on an axis of its own; of a sweep, one size of one family."""
    groups = ratios.groups(rows)
    if ratios.swept(rows):
        groups = {(name := _choose(run, "bars", list(groups))): groups[name]}
    for place, (name, members) in enumerate(groups.items()):
        if len(groups) > 1:
            st.caption(f"**{plain(name)}**")
        chart(
            recurrent.bars(frames.recurrent(members), source=view.source(run)),
            key=f"bars_{run.id}_{place}",
            alt=f"Median time forward and backward of every runner, {name}",
        )
    st.caption(
        "Bar: median of the processes' medians. Whisker: from the fastest process to the slowest; above 5 % a row is "
        "flagged unstable. Flags stand beside the figure."
    )


def _speedups(run: Run, groups: dict[str, list[RecurrentRow]]) -> None:
    """Every runner over a baseline of one's choice, computed here from the samples."""
    several = [name for name, members in groups.items() if len(members) > 1]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        members = groups[_choose(run, "speedup", several)]
        by_runner = {row.model: row for row in members}
        usual = next((row.baseline for row in members if row.baseline in by_runner), members[0].model)
        baseline = st.selectbox(
            "Baseline",
            list(by_runner),
            list(by_runner).index(usual),
            key=f"baseline_{run.id}_{members[0].samples_file}",
        )
        phase = _pass("phase", run)
    drawn = timing_samples.read(run, members[0])
    if drawn is None:
        return
    stamp = timing_samples.stamp(run, members[0])
    found = _over(drawn, members, by_runner[baseline], phase, run.spec, stamp)
    if found.empty:
        st.caption(plain(f"Nothing to compare {baseline} with: both must have been timed in the pass chosen."))
        return
    chart(
        speed.speedups(found, source=view.source(run)),
        key=f"speedup_{run.id}",
        alt=f"Speed-up over {baseline} ({ratios.PHASES[phase]}), with 99 % intervals and verdicts",
    )
    view.verdicts(found)


@st.cache_data(
    max_entries=32,
    show_spinner="Comparing samples",
    hash_funcs={
        pd.DataFrame: lambda frame: frame.shape,
        RecurrentRow: RecurrentRow.model_dump_json,
        RecurrentSpec: RecurrentSpec.model_dump_json,
    },
)
def _over(
    drawn: pd.DataFrame,
    rows: Sequence[RecurrentRow],
    baseline: RecurrentRow,
    phase: str,
    spec: RecurrentSpec,
    stamp: int,
) -> pd.DataFrame:
    return ratios.over(drawn, rows, baseline, phase, seed=spec.seed, publishable=spec.publishable)


def _curves(run: Run, rows: Sequence[RecurrentRow]) -> None:
    size = ratios.swept(rows)
    families: dict[str, list[RecurrentRow]] = {}
    for row in rows:
        families.setdefault(row.family, []).append(row)
    varied = {family: members for family, members in families.items() if ratios.swept(members)}
    members = varied[_choose(run, "curves", list(varied))]
    chart(
        recurrent.curves(frames.recurrent(members), size, source=view.source(run)),
        key=f"curves_{run.id}",
        alt=f"Time forward and backward over {ratios.SIZES[size].lower()}, one line per runner",
    )
    st.caption("Both axes are logarithmic: a line that rises one decade per decade costs in proportion to the size.")


def _samples(run: Run, groups: dict[str, list[RecurrentRow]]) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        members = groups[_choose(run, "samples", list(groups))]
        phase = _pass("samples", run)
    drawn = timing_samples.read(run, members[0])
    if drawn is None:
        return
    runners = [row.model for row in members]
    look = {"column": "runner", "phase": phase, "source": view.source(run)}
    alt = f"Every sample over its round, {ratios.PHASES[phase]}, one panel per process"
    chart(speed.raw(drawn, runners, **look), key=f"raw_{run.id}", alt=alt)
    st.caption(view.SAMPLES.format(one="runner"))


def _pass(place: str, run: Run) -> str:
    """Forward, backward or both, as a column of samples."""
    words = {"label": "Pass", "format_func": ratios.PHASES.get, "default": samples.TOTAL, "required": True}
    return st.segmented_control(options=list(ratios.PHASES), key=f"{place}_{run.id}", **words)


def _choose(run: Run, place: str, names: list[str]) -> str:
    """One of what was timed side by side, without asking where there is but one."""
    return st.selectbox("Timed side by side", names, key=f"{place}_of_{run.id}") if len(names) > 1 else names[0]
