"""Rows of a benchmark: statistics over all processes, flags, verdicts and written samples."""

import csv
import dataclasses
import statistics
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from engine.measure.plan import Timed
from engine.replicates import summary
from engine.replicates.benchmark import rows
from engine.replicates.benchmark.rows import Outcome
from engine.replicates.messages import Measured
from engine.replicates.recurrent import rows as recurrent_rows
from engine.results import BenchmarkRow, Contention, Flag, RecurrentRow, TimedRow, load
from engine.settings import ROOT
from engine.specs import BenchmarkSpec, RecurrentSpec
from engine.specs.benchmark import CONDITIONS

COMMON = {"library": "timm", "model": "toy", "device": "cpu", "batch_size_requested": "2"}
SHORT_TIMING: dict[str, Any] = {
    "models": "timm:toy",
    "batch_size": 2,
    "min_samples": 3,
    "min_seconds": 0.01,
    "threads": 1,
}


def spec(**fields: Any) -> BenchmarkSpec:
    return BenchmarkSpec(**SHORT_TIMING | fields)


def measured(variant: str, *samples: float, **fields: Any) -> Measured:
    """Return what one process measured: forward samples in ms, and other fields of Timed and of Measured."""
    row = {"dtype": "float32", "threads": 1, **fields.pop("row", {})}
    timed = {"rounds": tuple(range(len(samples))), "phases": {"forward": samples}, "calls": (1,) * len(samples)}
    timed |= {field.name: fields.pop(field.name) for field in dataclasses.fields(Timed) if field.name in fields}
    return Measured(label=variant, timed=Timed(**timed), row=row, **fields)


def row(*processes: Measured, **fields: Any) -> BenchmarkRow:
    """Return the row of one variant that several processes measured. fields: of the request."""
    (only_row,) = rows.rows(spec(**fields), COMMON, Outcome("inference", 2, tuple({m.label: m} for m in processes)))
    return only_row


@pytest.mark.parametrize("name", CONDITIONS)
def test_processes_of_a_timing_apply_each_condition(name: str) -> None:
    sources = (ROOT / "engine" / "replicates" / "benchmark").glob("*.py")
    assert any(f"spec.{name}" in source.read_text() for source in sources)


def test_statistics_equal_values_by_hand() -> None:
    found = row(
        measured("eager", 1.0, 2.0, 3.0, first_call_ms=9.0, loop_ms=0.25),
        measured("eager", 2.0, 2.0, 8.0, first_call_ms=7.0, loop_ms=0.75),
    )
    assert (found.latency_ms, found.mean_ms, found.samples, found.processes) == (2.0, 3.0, 6, 2)
    assert found.std_ms == pytest.approx(statistics.stdev([1, 2, 3, 2, 2, 8]))
    assert found.samples_per_s == 1000.0
    assert found.process_medians_ms == (2.0, 2.0)
    assert found.spread == 0
    assert (found.first_call_ms, found.loop_ms) == (9.0, 0.5)
    assert (found.p90_ms, found.compile_cold_ms) == (None, None)


def test_process_twenty_times_slower_makes_a_row_unstable() -> None:
    """All samples of a process are equal, so only the spread between processes can show the slow one."""
    for slow in range(3):
        processes = [measured("eager", *[20.0 if number == slow else 1.0] * 70) for number in range(3)]
        found = row(*processes)
        assert "unstable" in found.flags
        assert found.spread == 19
        assert "drifting" not in found.flags
    assert row(*[measured("eager", *[1.0] * 70)] * 3).flags == ("below_floor",)


def test_row_is_unstable_above_a_spread_of_five_percent() -> None:
    steady = [measured("eager", *[value] * 10) for value in (40.0, 40.0, 42.0)]
    assert "unstable" not in row(*steady).flags
    assert "unstable" in row(*steady[:2], measured("eager", *[42.1] * 10)).flags


def test_row_of_one_process_is_flagged_and_has_no_spread() -> None:
    found = row(measured("eager", *[1.0] * 10), replicates=1)
    assert "single_process" in found.flags
    assert found.spread is None


def test_row_has_the_flags_of_all_processes() -> None:
    calm = Contention(cpu_share=0.99, neighbour_share=0.01, switches_per_s=3)
    busy = Contention(cpu_share=0.8, neighbour_share=0.2, switches_per_s=1)
    found = row(
        measured("eager", 1.0, contention=calm),
        measured("eager", 1.0, contention=busy, foreign=("2 other processes were on the GPU",), throttled="the GPU"),
        measured("eager", *[1.0] * 6, *[1.1] * 3),
    )
    assert found.flags == ("contended", "drifting", "throttled", "below_floor")
    assert found.contention == Contention(cpu_share=0.8, neighbour_share=0.2, switches_per_s=3)
    *contention, foreign, throttled = found.notes
    assert [word for word in ("80.0 %", "20.0 %") if any(word in note for note in contention)] == ["80.0 %", "20.0 %"]
    assert (foreign, throttled) == ("2 other processes were on the GPU", "the GPU")
    alone = row(measured("eager", *[1.0] * 10, foreign=("1 other process computed on the GPU",)))
    assert "contended" in alone.flags, "another process on the GPU is contention, whatever the CPUs do"


def test_every_flag_is_raised() -> None:
    disturbed = measured("eager", *[1.0] * 6, *[1.1] * 3, foreign=("a process",), throttled="the GPU")
    calm, slow = measured("eager", *[1.0] * 9), measured("eager", *[2.0] * 9)
    raised = {*summary.flags([disturbed], below_floor=True), *summary.flags([calm, slow], below_floor=False)}
    assert raised == {*get_args(Flag)}, "`flags` in engine/replicates/summary.py raises flags; show it here"


def test_row_is_contended_without_a_cpu_share() -> None:
    busy = Contention(cpu_share=None, neighbour_share=0.2, switches_per_s=1)
    found = row(*[measured("eager", 1.0, contention=busy)] * 3)
    assert found.contention == busy
    assert "contended" in found.flags
    assert "other processes used 20.0 % of the CPUs (at most 5 %)" in found.notes


def test_garbage_collections_within_samples_have_a_note() -> None:
    found = row(measured("eager", 1.0, gc_runs=2), measured("eager", 1.0, gc_runs=1))
    assert found.notes == ("the model itself ran Python's garbage collector 3 times within samples",)
    once = row(measured("eager", 1.0, gc_runs=1))
    assert once.notes == ("the model itself ran Python's garbage collector 1 time within samples",)
    assert row(measured("eager", 1.0)).notes == ()


def test_row_has_cold_and_warm_compile_times() -> None:
    cold, *warm = (measured("eager", 1.0, compile_ms=ms) for ms in (900.0, 100.0, 140.0))
    found = row(cold, *warm)
    assert (found.compile_cold_ms, found.compile_warm_ms) == (900.0, 120.0)
    single = row(cold.model_copy(update={"compile_again_ms": 80.0}), replicates=1)
    assert (single.compile_cold_ms, single.compile_warm_ms) == (900.0, 80.0)


def test_row_with_cut_off_sampling_is_below_floor() -> None:
    complete, cut = (measured("eager", 1.0, 2.0, cut_off=cut_off) for cut_off in (False, True))
    floor: dict[str, Any] = {"min_samples": 10, "min_seconds": 2, "replicates": 1, "max_seconds": 5}
    assert "below_floor" not in row(complete, **floor).flags
    assert "below_floor" in row(cut, **floor).flags


def compare_variants(baseline: Measured, compared: Measured, processes: int = 3, **fields: Any) -> BenchmarkRow:
    """Return the row of the second of two variants that all processes measured."""
    request = spec(variants=f"{baseline.label.partition('+')[0]},{compared.label}", **fields)
    outcome = Outcome("inference", 2, ({baseline.label: baseline, compared.label: compared},) * processes)
    return rows.rows(request, COMMON, outcome)[1]


def test_speedup_has_an_interval_and_a_verdict() -> None:
    noise = 1 + 0.01 * np.random.default_rng(7).standard_normal(200)
    found = compare_variants(measured("eager", *(2 * noise)), measured("compile", *noise))
    assert found.baseline == "eager"
    assert found.speedup == pytest.approx(2)
    assert found.speedup_low is not None
    assert found.speedup_high is not None
    assert found.speedup_low <= found.speedup <= found.speedup_high
    assert found.verdict == "faster"
    pair = measured("eager", *(2 * noise)), measured("compile", *noise)
    assert compare_variants(*pair, processes=2).verdict == "needs 3 processes"
    same = measured("eager", *noise), measured("compile", *noise)
    assert compare_variants(*same).verdict == "undecided"
    assert compare_variants(*same, processes=5, publishable=True).verdict == "no difference"


def test_speedup_is_the_geometric_mean_of_the_processes() -> None:
    processes = [
        {"eager": measured("eager", *[slow] * 30), "compile": measured("compile", *[1.0] * 30)}
        for slow in (1.0, 1.0, 8.0)
    ]
    request = spec(variants="eager,compile", replicates=3)
    _, found = rows.rows(request, COMMON, Outcome("inference", 2, tuple(processes)))
    assert found.speedup == pytest.approx(2)


SETTINGS: dict[type[TimedRow], str] = {
    BenchmarkRow: "mode tower device host threads batch_size image_size context_length precision dtype autocast_dtype "
    "tf32 memory_format cache cudnn_benchmark deterministic optimizer num_classes in_chans model_kwargs",
    RecurrentRow: "network device threads precision seq_length num_layers input_size hidden_size mini_batch "
    "image_size proj_size bidirectional batch_first",
}
"""Settings that must be equal before one row may be called faster than another."""


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in SETTINGS.items() for name in names.split()])
def test_rows_that_differ_in_a_setting_are_not_comparable(kind: type[TimedRow], name: str) -> None:
    first, second = (
        kind.model_construct(**dict.fromkeys(SETTINGS[kind].split(), 1) | {name: value}) for value in (1, 2)
    )
    assert second.differences(first) == (name,)


@pytest.mark.parametrize(("spec", "kind"), [(BenchmarkSpec, BenchmarkRow), (RecurrentSpec, RecurrentRow)])
def test_rows_that_differ_in_what_changes_their_meaning_are_not_comparable(
    spec: type[BenchmarkSpec | RecurrentSpec], kind: type[TimedRow]
) -> None:
    of_some_rows = {*recurrent_rows.TORCHSCRIPT, "purpose", "cosine", "tolerance"}  # of scripted runners; of checks
    missing = {*spec.meaning} - {*kind.comparable} - of_some_rows
    assert not missing, f"add these to the fields of {kind.__name__} and to its `comparable`"


def test_row_of_a_recurrent_layer_has_the_requested_sizes() -> None:
    """`threads` and `device` are the used ones, and `image_size` is for ResNets."""
    names = {*RecurrentRow.comparable} & {*RecurrentSpec.model_fields} - {"threads", "device", "image_size"}
    values = {name: 9 - place for place, name in enumerate(("hidden_size", "input_size", "mini_batch", "proj_size"))}
    values |= {"seq_length": 4, "num_layers": 3, "bidirectional": True, "batch_first": True, "precision": "bfloat16"}
    assert names == values.keys(), "give a new field a value other than its default here"
    (found,) = recurrent_rows.rows(RecurrentSpec(runners=("aten",), **values), {"device": "cpu"}, [])
    differing = {name for name in names if getattr(found, name) != values[name]}
    assert not differing, "add these to SHAPE in engine/replicates/recurrent/rows.py"


@pytest.mark.parametrize(
    ("variant", "settings", "field"),
    [
        ("eager+bfloat16", {"dtype": "bfloat16"}, "dtype"),
        ("eager+amp", {"autocast_dtype": "bfloat16"}, "autocast_dtype"),
        ("eager+tf32", {"tf32": True}, "tf32"),
        ("eager+channels_last", {}, "memory_format"),
        ("compile", {"threads": 2}, "threads"),
    ],
)
def test_variants_with_different_settings_are_not_comparable(
    variant: str, settings: dict[str, Any], field: str
) -> None:
    found = compare_variants(
        measured("eager", *[2.0] * 30), measured(variant, *[1.0] * 30, row=settings), device="cuda:0"
    )
    assert found.verdict == "not comparable"
    assert field in found.differs_in
    assert found.speedup == 2, "the ratio is still given"


def test_speedup_is_the_ratio_of_latencies() -> None:
    baseline = measured("eager", 2.0, 2.2, 2.4, 2.2, rounds=(0, 1, 2, 3))
    compared = measured("compile", 1.0, 1.2, rounds=(0, 2))
    assert compare_variants(baseline, compared).speedup == pytest.approx(2.2 / 1.1)


def test_variant_that_fails_in_a_later_process_has_no_latency() -> None:
    failed = Measured(label="eager", status="error", error="RuntimeError: no")
    found = row(measured("eager", 1.0, 1.0), failed)
    assert (found.status, found.error, found.latency_ms) == ("error", "RuntimeError: no (in process 2 of 3)", None)


def test_statistics_can_be_recomputed_from_the_written_samples(tmp_path: Path) -> None:
    random = np.random.default_rng(3)

    def training() -> Measured:
        phases = {part: tuple(random.lognormal(size=80).tolist()) for part in ("forward", "backward", "optimizer")}
        return measured("eager", *phases["forward"], phases=phases)

    outcome = Outcome("training", 2, ({"eager": training()}, {"eager": training()}))
    (found,) = rows.rows(spec(mode="training"), COMMON, outcome)
    written: set[str] = set()
    for mode, processes in (("inference", [{"eager": measured("eager", 1.0)}]), ("training", outcome.processes)):
        columns = {"constants": {"mode": mode}, "label": "variant", "phases": rows.PHASES}
        list(summary.write_samples(tmp_path, "samples/toy.csv", processes, written, **columns))
    with (tmp_path / "samples" / "toy.csv").open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["mode"] == "training"]
    parts = [[float(line[f"{part}_ms"]) for line in lines] for part in ("forward", "backward", "optimizer")]
    samples = np.sum(parts, axis=0)
    assert len(lines) == found.samples == 160
    assert float(np.mean(samples)) == pytest.approx(found.mean_ms, rel=1e-14)
    assert float(np.std(samples, ddof=1)) == pytest.approx(found.std_ms, rel=1e-14)
    of_process = [[line["process"] == number for line in lines] for number in "12"]
    medians = [float(np.median(samples[in_process])) for in_process in of_process]
    assert medians == pytest.approx(list(found.process_medians_ms), rel=1e-15)
    assert sum(medians) / 2 == pytest.approx(found.latency_ms, rel=1e-15), "the median of the medians of two processes"
    by_phase = [sum(float(np.median(np.array(part)[in_process])) for in_process in of_process) / 2 for part in parts]
    assert by_phase == pytest.approx([found.forward_ms, found.backward_ms, found.optimizer_ms], rel=1e-15)


def test_stored_rows_without_later_fields_load() -> None:
    stored = {"library": "timm", "model": "m", "device": "cpu", "mode": "inference", "variant": "eager"}
    stored |= {"batch_size_requested": "1", "batch_size": 1, "precision": "float32", "latency_ms": 2.0}
    found = load("benchmark", stored)
    assert (found.back_to_back_ms, found.parts, found.neighbours, found.first_call_after) == (None, None, {}, ())  # type: ignore[attr-defined]
