"""Results of timing recurrent layers: the table of rows, charts, and one card per selected row."""

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from engine.report import frames
from engine.report.compare import timings
from engine.report.compare.timed import Timed
from engine.report.export import fastrnns
from engine.report.figures import recurrent, speed
from engine.report.timings import readable, samples
from engine.results import RecurrentRow
from engine.specs import RecurrentSpec
from engine.specs.fields.runners import RUNNERS
from engine.specs.fields.timed import LEAST_SAMPLES
from engine.specs.recurrent import KNOBS
from engine.store import Run
from engine.words import plural
from pages.shared import backend
from pages.shared.chart.chart import chart, choice, tabs
from pages.shared.runs import view
from pages.shared.table import download, download_rows, failures, from_rows, informative_columns, results_table
from pages.shared.text import plain
from pages.shared.timing import timed

PASSES = {samples.TOTAL: "both", "forward_ms": "forward", "backward_ms": "backward"}
"""Name of each pass that can be compared, by its column in the samples."""
SHOWN_IF_DIFFERENT = (
    *("family", "seq_length", "mini_batch", "input_size", "hidden_size", "num_layers", "image_size", "precision"),
    *("fuser", "executor", "tolerance"),
)
COLUMNS = (
    *("model", "family", *timings.SIZES, "status", "forward_ms", "backward_ms", "speedup", "verdict", "spread_percent"),
    *("flags", "error", "steps_per_s", "gflops_per_step", "utilisation_percent", "output_error", "gradient_error"),
    *("compile_cold_ms", "compile_warm_ms", "device_peak_mb", "process_peak_mb", "baseline", "speedup_low"),
    *("speedup_high", "differs_in", "forward_p90_ms", "backward_p90_ms", "forward_std_ms", "backward_std_ms"),
    *("forward_spread_percent", "backward_spread_percent", "latency_ms", "back_to_back_ms", "p90_ms", "first_call_ms"),
    *("samples", "input_size", "num_layers", "image_size", "precision", "fuser", "executor", "tolerance", "notes"),
)


def draw(run: Run, rows: Sequence[RecurrentRow]) -> None:
    """Draw the results of the rows so far."""
    frame = frames.recurrent(rows)
    utilisation = timed.utilisation(run, rows)
    names = [_name(run, row) for row in rows]
    table = readable.table(frame, rows, utilisation).set_axis(names)
    shown, alt = informative_columns(table, SHOWN_IF_DIFFERENT), "Timings, runner by runner"
    config = {"model": st.column_config.TextColumn("Runner", pinned=True, width=180)}
    selected = results_table(shown, key=f"rows_{run.id}", alt=alt, columns=COLUMNS, selectable=True, config=config)
    with st.container(horizontal=True, vertical_alignment="center"):
        _downloads(run, rows)
        view.more_processes(run, loops=max(_spec(run).loops, LEAST_SAMPLES))
        failures(rows)
    _charts(run, rows)
    by_name = dict(zip(names, zip(rows, utilisation, strict=True), strict=True))
    for name in selected:
        row, share = by_name[name]
        card(row, name, share)
    if not selected:
        st.caption("Select rows to see percentiles, errors, memory, conditions and what each flag means.")


def _spec(run: Run) -> RecurrentSpec:
    assert isinstance(run.spec, RecurrentSpec)
    return run.spec


def _swept(run: Run) -> str:
    """Return the field that a run sweeps; empty without a sweep."""
    spec = _spec(run)
    return spec.sweep if spec.swept else ""


def _name(run: Run, row: RecurrentRow) -> str:
    """Return a name that is unique in the run: `jit`, or in a sweep `jit, hidden size 64`."""
    size = _swept(run)
    value = getattr(row, size) if size else None
    return row.model if value is None else f"{row.model}, {size.replace('_', ' ')} {value:,}"


def _downloads(run: Run, rows: Sequence[RecurrentRow]) -> None:
    """Draw the downloads: all rows in our formats and, if each runner has one size, fastrnns' formats."""
    menu = download_rows(run)
    timed_rows = [row for row in rows if row.status == "ok"]
    if not timed_rows or not fastrnns.fits(rows):
        return
    exports: dict[str, tuple[str, str, Callable[[Sequence[RecurrentRow]], str]]] = {
        "table": ("Table as fastrnns", "txt", fastrnns.table),
        "oss": ("JSON as fastrnns (oss)", "json", fastrnns.oss),
    }
    if all(backend.modified_ns(backend.folder(run), row.samples_file) for row in timed_rows):
        exports["pep"] = "JSON as fastrnns (pep)", "txt", lambda rows: fastrnns.pep(rows, backend.folder(run))
    with menu:
        for format, (label, ending, export) in exports.items():
            file = f"recurrent-{run.id}-{format}.{ending}"
            download(label, from_rows(run, export), file, icon=None, key=f"{format}_{run.id}")


def _charts(run: Run, rows: Sequence[RecurrentRow]) -> None:
    """Draw a tab per chart that has data."""
    timed_rows = [row for row in rows if row.forward_ms is not None]
    with_samples = [row for row in timed_rows if row.samples_file]
    groups = timings.groups(with_samples, _swept(run))
    families: dict[str, list[RecurrentRow]] = {}
    for row in timed_rows:
        families.setdefault(row.family, []).append(row)
    swept = {family: members for family, members in families.items() if timings.swept(members)}
    contents: dict[str, Any] = {}
    if timed_rows:
        contents["Forward and backward"] = lambda: _bars(run, timed_rows)
    if any(len(members) > 1 for members in groups.values()):
        contents["Speed-up"] = lambda: _speedups(run, groups)
    if swept:
        contents["Sizes"] = lambda: _curves(run, swept)
    if with_samples:
        contents["Samples"] = lambda: _samples(run, groups)
    tabs(contents, key=f"charts_{run.id}", bind="query-params")


def _bars(run: Run, rows: Sequence[RecurrentRow]) -> None:
    """Draw a chart per family. For a sweep, draw one family at one size."""
    groups = timings.groups(rows, _swept(run))
    if _swept(run):
        groups = {(name := _choose(run, "bars", list(groups))): groups[name]}
    for place, (name, members) in enumerate(groups.items()):
        if len(groups) > 1:
            st.caption(f"**{plain(name)}**")
        alt = f"Median time forward and backward of every runner, {name}"
        figure = recurrent.bars(frames.recurrent(members), source=timed.source(run))
        chart(figure, key=f"bars_{run.id}_{place}", alt=alt)
    st.caption(
        "Bars show the median of the processes' medians, whiskers the fastest and the slowest process. A row "
        "with a spread above 5 % is flagged unstable. Hatched bars have flags, written beside them."
    )


def _speedups(run: Run, groups: dict[str, list[RecurrentRow]]) -> None:
    """Draw the speed-up of every runner over a chosen baseline, computed from the samples."""
    comparable = [name for name, members in groups.items() if len(members) > 1]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        members = groups[group := _choose(run, "speedup", comparable)]
        by_runner = {row.model: row for row in members}
        default = next((row.baseline for row in members if row.baseline in by_runner), members[0].model)
        names, key = list(by_runner), f"baseline_{comparable.index(group)}_{run.id}"
        baseline = st.selectbox("Baseline", names, names.index(default), key=key, bind="query-params")
        phase = _choose_pass(f"phase_{run.id}")
    if timed.read(run, members[0]) is None:
        return
    entries = [Timed(run.id, backend.folder(run), row, _spec(run).publishable) for row in members]
    first = entries[members.index(by_runner[baseline])]
    pairs = [(first, entry) for entry in entries if entry.row.model != baseline]
    ratios = timed.ratios(pairs, phase, _spec(run).seed)
    with_samples = ratios[~ratios["note"].str.startswith("no interval: run")]
    speedups = with_samples.dropna(subset=["speedup"]).assign(baseline=baseline)
    if speedups.empty:
        message = f"No other runner can be compared with {baseline}. Both must have been timed in the chosen pass."
        st.caption(plain(message))
        return
    alt = f"Speed-up over {baseline} ({PASSES[phase]}), with 99 % intervals and verdicts"
    chart(speed.speedups(speedups, source=timed.source(run)), key=f"speedup_{run.id}", alt=alt)
    timed.verdicts(speedups)


def _curves(run: Run, swept: dict[str, list[RecurrentRow]]) -> None:
    """Draw the times of a family over its sizes. swept: the timed rows of each family that has several sizes."""
    members = swept[_choose(run, "curves", list(swept))]
    size = timings.swept(members)
    alt = f"Time forward and backward over {timings.SIZES[size].lower()}, one line per runner"
    figure = recurrent.curves(frames.recurrent(members), size, source=timed.source(run))
    chart(figure, key=f"curves_{run.id}", alt=alt)
    st.caption("Both axes are logarithmic. Where a line has slope 1, time is proportional to the size.")


def _samples(run: Run, groups: dict[str, list[RecurrentRow]]) -> None:
    with st.container(horizontal=True):
        members = groups[_choose(run, "samples", list(groups))]
        phase = _choose_pass(f"samples_{run.id}")
    frame = timed.read(run, members[0])
    if frame is None:
        return
    runners = [row.model for row in members]
    options = {"column": "runner", "phase": phase, "source": timed.source(run)}
    alt = f"Every sample over its round, {PASSES[phase]}, one panel per process"
    chart(speed.raw(frame, runners, **options), key=f"raw_{run.id}", alt=alt)
    st.caption(timed.SAMPLES.format(subject="runner"))


def _choose_pass(key: str) -> str:
    return str(choice("Pass", list(PASSES), key=key, format_func=PASSES.__getitem__, bind="query-params"))


def _choose(run: Run, place: str, names: list[str]) -> str:
    """Draw the choice of a group of runners timed side by side, and return it. A single group of a sweep is named."""
    if len(names) > 1:
        return st.selectbox("Group", names, key=f"{place}_of_{run.id}", bind="query-params")
    if _swept(run):
        st.caption(f"**{plain(names[0])}**")
    return names[0]


VALUES = (
    *("forward_ms", "backward_ms", "latency_ms", "back_to_back_ms", "forward_p90_ms", "backward_p90_ms", "steps_per_s"),
    *("forward_mean_ms", "forward_std_ms", "backward_mean_ms", "backward_std_ms", "gflops_per_step"),
    *("output_error", "gradient_error", "tolerance", "first_call_ms", "compile_cold_ms", "compile_warm_ms"),
    *("device_peak_mb", "process_peak_mb"),
)


def card(row: RecurrentRow, name: str, utilisation: float | None) -> None:
    """Draw everything known about one row. name: unique in the run. utilisation: a share, or None if unknown."""
    conditions = [RUNNERS[row.model].does if row.model in RUNNERS else "", *_sizes(row), row.precision, *_script(row)]
    timed.card(row, name, values=VALUES, utilisation=utilisation, conditions=conditions)


def _sizes(row: RecurrentRow) -> list[str]:
    if row.seq_length is None or row.input_size is None or row.num_layers is None:  # a ResNet
        return [f"batch {row.mini_batch}", f"{row.image_size} px" if row.image_size else ""]
    return [
        plural(row.seq_length, "time step"),
        f"batch {row.mini_batch}" + (", batch first" if row.batch_first else ""),
        f"{plural(row.input_size, 'feature')} in, {row.hidden_size} hidden",
        plural(row.num_layers, "layer"),
        f"projected to {row.proj_size}" if row.proj_size else "",
        "bidirectional" if row.bidirectional else "",
    ]


def _script(row: RecurrentRow) -> list[str]:
    """Return the TorchScript settings, if TorchScript ran the network."""
    if not row.fuser:
        return []
    knobs = [f"{name.replace('_', ' ')} {value}" for name in KNOBS if (value := getattr(row, name)) is not None]
    return [f"TorchScript: fuser {row.fuser}, executor {row.executor}", *knobs]
