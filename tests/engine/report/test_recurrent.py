"""Reports of timings of recurrent layers: formats of fastrnns, plots, comparisons and estimates, checked by hand."""

import json
import math
import random
import statistics as stdlib
from pathlib import Path

import pandas as pd
import pytest

from engine.report import frames
from engine.report.compare import timings
from engine.report.compare.timed import Timed
from engine.report.export import fastrnns, timm_dynamo
from engine.report.figures import recurrent, speed
from engine.report.timings import needs, samples
from engine.report.timings import rates as timings_rates
from engine.results import Contention, RecurrentRow
from engine.specs import RecurrentSpec, Refused
from engine.specs.fields.runners import RUNNERS
from tests.support.page import recurrent_row, write_recurrent_samples
from tests.support.ratios import by_hand

TABLE = """\
            name          avg_fwd          std_fwd         info_fwd          avg_bwd          std_bwd         info_bwd
            aten             12.5           0.1235             None        1.235e+05              nan             None
jit_layernorm_de             10.5              0.5             None             20.5             1.25             None
  aten_layernorm             10.5              0.5             None              nan              nan             None

            name          avg_fwd          std_fwd         info_fwd          avg_bwd          std_bwd         info_bwd
    resnet18_jit             10.5              0.5             None             20.5             1.25             None
"""
NO_BACKWARD = dict.fromkeys(("backward_ms", "backward_mean_ms", "backward_std_ms", "backward_p90_ms"))
FAILED = {"status": "error", "error": "no", "latency_ms": None, "forward_ms": None, "forward_mean_ms": None}


def annotation_texts(figure: object) -> list[str]:
    return [annotation.text for annotation in figure.layout.annotations]


def flat(processes: list[list[float]]) -> list[float]:
    return [ms for process in processes for ms in process]


def row_with_means_of(runner: str, forward: list[list[float]], backward: list[list[float]]) -> RecurrentRow:
    """Return a row with the means of the given samples."""
    return recurrent_row(
        runner,
        forward_mean_ms=stdlib.fmean(flat(forward)),
        backward_mean_ms=stdlib.fmean(flat(backward)) if backward else None,
    )


def test_table_has_the_columns_and_format_of_fastrnns() -> None:
    rows = [
        recurrent_row("resnet18_jit"),
        recurrent_row("cudnn", **FAILED),
        recurrent_row(
            *["aten"],
            **{"forward_mean_ms": 12.5, "forward_std_ms": 0.123456},
            **{"backward_mean_ms": 123456.0, "backward_std_ms": None},
        ),
        recurrent_row("jit_layernorm_decom"),
        recurrent_row("aten_layernorm", **NO_BACKWARD),
    ]
    assert fastrnns.table(rows) == TABLE
    assert fastrnns.table(rows, ";").splitlines()[1].split(";")[:3] == [
        f"{name:>16}" for name in ("aten", 12.5, 0.1235)
    ]
    assert fastrnns.table([rows[1]]) == ""
    imported = rows[0].model_copy(update={"model": "=cmd()"})
    assert fastrnns.table([imported], ",").splitlines()[1].split(",")[0].strip() == "'=cmd()"


def test_table_marks_deviations_over_blocks_of_calls() -> None:
    """fastrnns has the deviation of single calls. The mean of 25 calls has a deviation up to five times smaller."""
    rows = [
        recurrent_row("aten", calls_per_sample=25),
        recurrent_row("aten_layernorm", calls_per_sample=4, **NO_BACKWARD),
    ]
    _, long, short = (line.split() for line in fastrnns.table([*rows]).splitlines())
    assert long == ["aten", "10.5", "0.5", "blocks_of_25", "20.5", "1.25", "blocks_of_25"]
    assert short == ["aten_layernorm", "10.5", "0.5", "blocks_of_4", "nan", "nan", "None"]
    single = fastrnns.table([recurrent_row("aten", calls_per_sample=1)])
    assert "blocks" not in single
    assert "blocks" not in fastrnns.table([recurrent_row("aten", calls_per_sample=None)])


def test_oss_has_the_means_and_pep_every_sample(tmp_path: Path) -> None:
    rng = random.Random(7)

    def random_samples() -> list[list[float]]:
        return [[rng.uniform(0.1, 30) for _ in range(4)] for _ in range(3)]

    samples_of = {name: (random_samples(), random_samples()) for name in ("py", "aten", "vl_py", "gru_py", "resnet18")}
    samples_of["aten_layernorm"] = (random_samples(), [])
    rows = [row_with_means_of(name, *passes) for name, passes in samples_of.items()] + [
        recurrent_row("cudnn", **FAILED)
    ]
    for file in {row.samples_file for row in rows}:
        samples_of_file = {
            row.model: samples_of[row.model] for row in rows if row.samples_file == file and row.model in samples_of
        }
        write_recurrent_samples(tmp_path, next(row for row in rows if row.samples_file == file), **samples_of_file)

    (line,) = fastrnns.oss(rows).splitlines()
    groups = json.loads(line)
    families = ["vl_lstm", "lstm", "gru", "resnet"]
    assert list(groups) == [name for family in families for name in (family, f"{family}-backward")]
    assert list(groups["lstm"]) == ["py", "aten", "aten_layernorm"]
    assert list(groups["lstm-backward"]) == ["py", "aten"]
    for group, figures in groups.items():
        for name, mean in figures.items():
            values = flat(samples_of[name][group.endswith("-backward")])
            assert mean == pytest.approx(sum(values) / len(values), rel=1e-12)

    observed: dict[str, list[float]] = {}
    for line in fastrnns.pep(rows, tmp_path).splitlines():
        name, _, body = line.partition(" ")
        content = json.loads(body)
        assert (name, content["type"], content["unit"], set(content)) == (
            *("Caffe2Observer", "NET", "ms"),
            {"type", "metric", "unit", "value"},
        )
        assert isinstance(content["value"], str)
        observed.setdefault(content["metric"], []).append(float(content["value"]))
    assert list(observed)[:4] == ["vl_lstm-vl_py", "vl_lstm-backward-vl_py", "lstm-py", "lstm-aten"]
    expected = {
        f"{group}-{name}": flat(samples_of[name][group.endswith("-backward")])
        for group, figures in groups.items()
        for name in figures
    }
    assert observed == expected  # exactly equal


def test_sweeps_and_missing_samples_are_refused_by_fastrnns_formats(tmp_path: Path) -> None:
    rows = [recurrent_row("aten", hidden_size=size) for size in (32, 64)]
    for export in (fastrnns.table, fastrnns.oss, lambda rows: fastrnns.pep(rows, tmp_path)):
        with pytest.raises(Refused, match="one size per runner"):
            export(rows)
    with pytest.raises(LookupError, match="samples of aten are not here"):
        fastrnns.pep(rows[:1], tmp_path)


def test_rows_stored_without_tf32_get_it_from_their_precision() -> None:
    for precision in ("float32", "tf32", "bfloat16"):
        complete = recurrent_row("cudnn", precision=precision)
        without_tf32 = complete.model_dump(mode="json", exclude={"tf32", "cudnn_benchmark"})
        for row in (complete, RecurrentRow.model_validate_json(json.dumps(without_tf32))):
            assert (row.tf32, row.cudnn_benchmark) == (precision == "tf32", False)


def test_full_table_has_every_field_and_starts_with_the_setup() -> None:
    contention = Contention(cpu_share=0.5, neighbour_share=None, switches_per_s=2.0)
    rows = [recurrent_row("aten", flags=("unstable", "contended"), contention=contention), recurrent_row("resnet18")]
    frame = timm_dynamo.full(frames.recurrent(rows), [0.5, None])
    assert list(frame.columns[:8]) == "library model status error family network baseline seq_length".split()
    assert set(frame.columns) == {*RecurrentRow.model_fields, *Contention.model_fields, "utilisation"} - {"contention"}
    first = frame.iloc[0]
    assert (first["flags"], first["cpu_share"], first["process_medians_ms"]) == (
        *("unstable; contended", 0.5),
        "29.5; 30.0; 30.4",
    )
    assert frame["hidden_size"].tolist() == [64, pd.NA]
    assert list(frame["utilisation"].isna()) == [False, True]


def test_columns_of_a_benchmark_keep_their_order() -> None:
    """Files must keep the columns at the positions where their users read them."""
    head = "library model status error family tower purpose mode variant baseline device device_name threads"
    head += " batch_size_requested batch_size image_size"
    assert list(frames.benchmark([]).columns[:16]) == head.split()


def test_utilisation_is_forward_rate_over_measured_peak_rate() -> None:
    columns = ["operation", "device", "device_name", "threads", "dtype", "gflop_per_s", "host"]
    rates = pd.DataFrame(
        [
            ("matmul", "cpu", "a cpu", 2, "float32", 8.0, "here"),
            ("matmul", "cuda:0", "a gpu", 8, "tf32", 400.0, "here"),
            ("copy", "cpu", "a cpu", 2, "float32", None, "here"),
        ],
        columns=columns,
    )
    rows = [
        recurrent_row("aten", gflops=0.02, forward_ms=10.0),  # 2 GFLOP/s
        recurrent_row("aten", gflops=2.0, forward_ms=10.0, device="cuda:1", device_name="a gpu", precision="tf32"),
        recurrent_row("aten", threads=4),
        recurrent_row("aten", gflops=None),
        recurrent_row("aten", **FAILED),
    ]
    assert timings_rates.utilisation(rows, rates, "here") == [0.25, 0.5, None, None, None]


def test_ratios_of_runners_equal_hand_computation(tmp_path: Path) -> None:
    rng = random.Random(3)

    def normal_samples(median_ms: float) -> list[list[float]]:
        return [[rng.gauss(median_ms, median_ms / 100) for _ in range(20)] for _ in range(3)]

    forward, backward = (
        {"aten": normal_samples(10), "py": normal_samples(20)},
        {"aten": normal_samples(30), "py": normal_samples(30)},
    )
    rows = [recurrent_row(name) for name in ("aten", "py", "aten_layernorm")]
    samples_of = {name: (forward[name], backward[name]) for name in forward} | {
        "aten_layernorm": (normal_samples(11), [])
    }
    write_recurrent_samples(tmp_path, rows[0], **samples_of)
    reader = samples.Reader()
    assert reader.phase(tmp_path, rows[1], "backward_ms") == backward["py"]
    assert reader.phase(tmp_path, rows[2], "backward_ms") == []

    def over_py(phase: str) -> pd.DataFrame:
        timed_rows = [Timed(1, tmp_path, row) for row in rows]
        pairs = [(timed_rows[1], timed_rows[0]), (timed_rows[1], timed_rows[2])]
        return timings.ratios(pairs, phase, seed=5).dropna(subset=["speedup"]).set_index("model")

    frame = over_py("forward_ms")
    value, low, high = by_hand(forward["py"], forward["aten"])
    line = frame.loc["aten"]
    assert line["speedup"] == pytest.approx(value, rel=1e-12)
    assert (line["speedup_low"], line["speedup_high"]) == pytest.approx((low, high), rel=5e-3)
    assert line["verdict"] == "faster"
    assert frame.loc["aten_layernorm", "verdict"] == "not comparable"
    value, _, _ = by_hand(backward["py"], backward["aten"])
    assert over_py("backward_ms").loc["aten", "speedup"] == pytest.approx(value, rel=1e-12)
    total = [
        [[f + b for f, b in zip(*pair, strict=True)] for pair in zip(forward[name], backward[name], strict=True)]
        for name in ("py", "aten")
    ]
    assert over_py("ms").loc["aten", "speedup"] == pytest.approx(by_hand(*total)[0], rel=1e-9)


def test_few_samples_give_an_interval_without_upper_limit(tmp_path: Path) -> None:
    rows = [recurrent_row(name) for name in ("aten", "py")]
    write_recurrent_samples(tmp_path, rows[0], aten=([[1.0, 1.0]], [[1.0, 1.0]]), py=([[2.0, 2.0]], [[2.0, 2.0]]))
    pair = Timed(1, tmp_path, rows[0]), Timed(1, tmp_path, rows[1])
    for phase in ("ms", "forward_ms", "backward_ms"):
        frame = timings.ratios([pair], phase, seed=5)
        assert frame[["speedup", "verdict", "speedup_low"]].values.tolist() == [[0.5, "needs 3 processes", 0.0]]
        assert frame["speedup_high"].isna().all()
        figure = speed.speedups(frame)
        assert annotation_texts(figure) == ["0.50×  <i>needs 3 processes</i> (no upper limit)"]
        assert (figure.data[0].error_x.arrayminus[0], figure.data[0].error_x.array[0]) == (0.5, 2.5)


def test_rows_are_grouped_by_family_and_swept_size() -> None:
    rows = [recurrent_row(name, hidden_size=size) for size in (32, 64) for name in ("aten", "py")]
    rows.append(recurrent_row("resnet18"))
    assert timings.swept(rows) == "hidden_size"
    groups = timings.groups(rows, "hidden_size")
    assert {name: len(members) for name, members in groups.items()} == {
        **{"lstm, hidden size 32": 2, "lstm, hidden size 64": 2},
        "resnet": 1,
    }
    labels = list(speed.labels(frames.recurrent(rows)))
    assert (labels[0], labels[-1]) == ("aten · hidden 32", "resnet18"), "a ResNet has no hidden size"
    assert timings.swept(rows[-2:]) == ""
    assert list(timings.groups(rows[-2:], "hidden_size")) == ["lstm, hidden size 64", "resnet"]


def test_bars_are_grouped_by_pass_and_show_flags() -> None:
    rows = [
        recurrent_row(
            "aten",
            forward_process_medians_ms=(9.0, 10.0, 12.0),
            backward_process_medians_ms=(19.0, 26.0),
            flags=("unstable", "contended"),
        ),
        recurrent_row("aten_layernorm", forward_ms=15.0, **NO_BACKWARD),
        recurrent_row("cudnn", **FAILED),
    ]
    figure = recurrent.bars(frames.recurrent(rows), source="run 7")
    assert [trace.name for trace in figure.data] == ["forward", "backward"]
    assert list(figure.data[0].x) == [10.0, 15.0]
    assert figure.data[1].x[0] == 20.0
    assert math.isnan(figure.data[1].x[1])
    assert list(figure.data[0].error_x.array) == [2.0, 0.0]
    assert list(figure.data[0].error_x.arrayminus) == [1.0, 0.0]
    assert figure.data[1].error_x.array[0] == 6.0
    assert figure.data[1].error_x.arrayminus[0] == 1.0
    assert annotation_texts(figure) == ["10 + 20 ms  <i>unstable, contended</i>", "15 ms"]
    assert [annotation.x for annotation in figure.layout.annotations] == [26.0, 15.0]
    assert figure.layout.barmode == "group"
    assert figure.layout.xaxis.title.text == "Median time per call (ms)"
    assert list(figure.layout.yaxis.categoryarray) == ["aten", "aten_layernorm"]
    assert "run 7" in figure.data[0].hovertemplate
    assert figure.data[0].customdata[0][2] == "processes differ by 2 %; unstable, contended"
    assert [*figure.data[0].marker.pattern.shape] == ["/", ""], "a bar with flags is hatched"


def test_curves_have_a_line_per_runner_in_each_panel() -> None:
    rows = [
        recurrent_row(name, seq_length=size, forward_ms=float(size), backward_ms=2.0 * size)
        for name in ("py", "aten")
        for size in (40, 10, 20)
    ]
    figure = recurrent.curves(frames.recurrent(rows), "seq_length", source="run 7")
    assert [(trace.name, trace.xaxis) for trace in figure.data] == [
        *(("aten", "x"), ("aten", "x2")),
        *(("py", "x"), ("py", "x2")),
    ]
    assert list(figure.data[0].x) == [10, 20, 40]
    assert list(figure.data[1].y) == [20, 40, 80]
    assert [trace.showlegend for trace in figure.data] == [True, False, True, False]
    assert figure.data[0].line.color != figure.data[2].line.color
    assert figure.layout.xaxis.title.text == "Sequence length (time steps)"
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    assert list(figure.layout.xaxis.tickvals) == [10, 20, 40]
    assert annotation_texts(figure) == ["Forward", "Backward"]


def test_raw_samples_are_drawn_per_process_and_phase(tmp_path: Path) -> None:
    row = recurrent_row("aten")
    write_recurrent_samples(tmp_path, row, aten=([[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]))
    frame = samples.read(tmp_path / row.samples_file, None, samples.place(row))
    figure = speed.raw(frame, ["aten"], column="runner", phase="backward_ms")
    assert [list(trace.y) for trace in figure.data] == [[5.0, 6.0], [7.0, 8.0]]


@pytest.mark.parametrize(
    ("fields", "values"),
    [
        # in- and output 10 steps x 2 x (3 + 4), gates and states 6 x 4 each, weights and gradients 2 x 4 x 4 x (3 + 4)
        ({"runners": "aten"}, 10 * 2 * (3 + 4 + 24) + 2 * 16 * 7),
        ({"runners": "aten", "precision": "bfloat16"}, (10 * 2 * (3 + 4 + 24) + 2 * 16 * 7) / 2),
        ({"runners": "gru_py"}, 10 * 2 * (3 + 4 + 16) + 2 * 12 * 7),
        ({"runners": "aten", "num_layers": 2}, 10 * 2 * (3 + 4 + 48) + 2 * 16 * (3 + 4 + 2 * 4)),
        ({"runners": "aten", "bidirectional": True}, 10 * 2 * (3 + 8 + 48) + 2 * 2 * 16 * (3 + 4)),
        # other gates have the same products, an RNN a quarter of them, and it keeps only its state
        ({"runners": "milstm_py"}, 10 * 2 * (3 + 4 + 24) + 2 * 16 * 7),
        ({"runners": "vl_py"}, 10 * 2 * (3 + 4 + 24) + 2 * 16 * 7),
        ({"runners": "rnn_relu_aten"}, 10 * 2 * (3 + 4 + 4) + 2 * 4 * 7),
        # a projection to 2 values has 2 x 4 weights, and each layer then takes in and gives out 2 values
        ({"runners": "aten", "proj_size": 2}, 10 * 2 * (3 + 2 + 24) + 2 * (16 * (3 + 2) + 2 * 4)),
        ({"runners": "resnet18", "image_size": "8x16"}, 2 * 3 * 8 * 16),
        ({"runners": "aten", "sweep": "mini_batch", "sweep_values": "1,4"}, 10 * 4 * (3 + 4 + 24) + 2 * 16 * 7),
    ],
)
def test_lower_bound_of_memory_equals_hand_formula(fields: dict[str, object], values: float) -> None:
    small = {"seq_length": 10, "mini_batch": 2, "input_size": 3, "hidden_size": 4}
    spec = RecurrentSpec.model_validate(small | fields)
    assert needs.recurrent_least_gb(spec) == pytest.approx(4 * values / 1e9)


def test_runners_of_every_family_have_a_lower_bound_of_memory_and_a_group_in_fastrnns() -> None:
    assert needs.recurrent_least_gb(RecurrentSpec(runners=tuple(RUNNERS))) > 0
    groups = json.loads(fastrnns.oss([recurrent_row(name) for name in RUNNERS]))
    assert {name for name in groups if not name.endswith("-backward")} == {runner.family for runner in RUNNERS.values()}


def test_expected_time_covers_sampling_and_grows_with_the_work() -> None:
    start = needs.Span(4, 8)
    small = {"seq_length": 2, "mini_batch": 1, "input_size": 4, "hidden_size": 4, "threads": 1}
    one_runner = needs.recurrent_s(RecurrentSpec(runners=("aten",), **small), start)
    # three processes, each with a start, 2 s of samples and at least 0.5 s of warm-up, at most twice that in total
    assert 3 * (4 + 2.5) <= one_runner.low <= 3 * (4 + 3)
    assert 3 * (8 + 4) <= one_runner.high <= 3 * (8 + 8)
    warm = needs.recurrent_s(RecurrentSpec(runners=("aten",), **small | {"warmup": 10_000}), start)
    assert warm.high > one_runner.high + 3 * 5, "10,000 calls before the timing"
    two_runners = needs.recurrent_s(RecurrentSpec(runners=("aten", "py"), **small), start)
    assert two_runners.low >= one_runner.low + 3 * 2.5
    swept = RecurrentSpec(runners=("aten",), sweep="mini_batch", sweep_values=(1, 2, 4), **small)
    assert needs.recurrent_s(swept, start) == one_runner.times(3)
    # a call computes 3 x 2 x 2^27 FLOPs at up to 80 GFLOP/s, in 64 steps of 10 us at least, and is sampled 1000 times
    large = small | {"seq_length": 64, "mini_batch": 1, "input_size": 512, "hidden_size": 512, "loops": 1000}
    sampled = 1000 * (3 * 2 * 2**27 / 80e9 + 64e-5)
    assert sampled > 2
    found = needs.recurrent_s(RecurrentSpec(runners=("aten",), **large), start)
    assert found.low == pytest.approx(3 * (4 + 0.1 + 1.25 * sampled))
    images = {"image_size": "224x448", "mini_batch": 4, "loops": 1000, "threads": 1}
    found = needs.recurrent_s(RecurrentSpec(runners=("resnet18",), **images), start)
    assert found.low == pytest.approx(3 * (4 + 0.1 + 1.25 * 1000 * 3 * 8.2 * 2 * 4 / 80)), "twice the area of 224 px"
