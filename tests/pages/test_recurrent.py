"""Tests of the page of recurrent layers with AppTest. Runs stay queued, and tests store the results."""

import re
import shlex

import pytest
from streamlit.testing.v1 import AppTest

from engine.cli import speed
from engine.results import Device, Machine, RecurrentRow
from engine.settings import Settings
from engine.specs import RecurrentSpec
from engine.store import Cause, Exit, State, Store, attempts
from engine.store import queue as queueing
from engine.store.files import RunFiles
from pages.shared.form import link
from pages.shared.form.command import command
from tests.support.command import parsed
from tests.support.page import (
    ENVIRONMENT,
    charts,
    finish,
    followed,
    open_page,
    queue_recurrent,
    recurrent_row,
    texts,
    ticked,
    verbatim,
    write_recurrent_samples,
)

PAGE = "recurrent/page.py"

# The scheduler outlives the process that starts it, so the warning about a running subprocess is expected.
pytestmark = [
    pytest.mark.usefixtures("own_world"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


def open_run(store: Store, *rows: RecurrentRow, **fields: object) -> AppTest:
    """Store a finished run with these rows, and open its page."""
    run_id = queue_recurrent(store, **fields)
    finish(store, run_id, list(rows))
    return open_page(PAGE, run=str(run_id))


def plain_text(app: AppTest) -> str:
    return texts(app).replace("\\", "")


def store_machine_with_gpu(store: Store) -> None:
    machine = {"host": "here", "platform": "Linux", "cpu": "x", "threads": 2, "memory_gb": 1.0, "date": "2026-11-20"}
    devices = (Device(name="cpu", model="x"), Device(name="cuda:0", model="y", memory_gb=80.0))
    store.save_machine(Machine.model_validate(machine | {"devices": devices}))


@pytest.mark.slow
def test_first_visit_without_cuda_uses_the_small_preset(store: Store) -> None:
    app = open_page(PAGE)
    assert not app.exception
    assert ticked(app) == ["Small, for a CPU"]
    assert app.session_state["recurrent_groups"] == ["rnns"]
    plan = r"Times 7 runners forward and backward on cpu in 3 fresh processes, [\d.]+ (s|min).* to \d.*: aten"
    assert re.search(plan, texts(app))
    assert "Left out, because cpu has no cuDNN: cudnn." in plain_text(app)
    app.button(key="recurrent_preset_As fastrnns").click().run()
    assert not app.exception
    assert app.number_input(key="recurrent_hidden_size").value == 512
    assert "Times 11 runners forward and backward on cpu in 3 fresh processes per network, " in texts(app)
    app.button(key="recurrent_go").click().run()
    assert store.runs()[0].spec == RecurrentSpec(groups=("rnns", "cnns"))
    assert app.query_params["run"] == "1"


@pytest.mark.slow
def test_link_values_and_cuda_machines_do_not_use_the_small_preset(store: Store) -> None:
    app = open_page(PAGE, recurrent_hidden_size="96")
    assert app.number_input(key="recurrent_hidden_size").value == 96
    assert ticked(app) == []
    store_machine_with_gpu(store)
    app = open_page(PAGE)
    assert app.number_input(key="recurrent_hidden_size").value == 512


@pytest.mark.slow
def test_copy_of_a_run_with_default_settings_does_not_use_the_small_preset(store: Store) -> None:
    run_id = store.enqueue(RecurrentSpec())
    copy = followed(open_page("run/page.py", run=str(run_id)), "Edit a copy")
    assert copy.number_input(key="recurrent_seq_length").value == RecurrentSpec().seq_length
    linked = open_page(PAGE, run=str(run_id))
    assert linked.number_input(key="recurrent_seq_length").value == RecurrentSpec().seq_length


@pytest.mark.slow
def test_form_queues_a_run_with_a_sweep(store: Store) -> None:
    app = open_page(PAGE, recurrent_groups="vl", recurrent_sweep="hidden_size")
    app.multiselect(key="recurrent_runners").set_value(["aten", "gru_py"]).run()
    app.text_input(key="recurrent_sweep_values").set_value("64, 128,256").run()
    app.selectbox(key="recurrent_baseline").set_value("vl_py").run()
    assert not app.exception
    page_text = plain_text(app)
    assert "hidden size 64, 128, 256 on cpu" in page_text
    assert "no cuDNN: vl_cudnn." in page_text
    assert "Very slow, because they process sequences one by one: vl_jit, vl_py" in page_text
    app.button(key="recurrent_go").click().run()
    assert not app.exception
    assert store.runs()[0].spec == RecurrentSpec(
        groups=("vl",),
        runners=("aten", "gru_py"),
        sweep="hidden_size",
        sweep_values=(64, 128, 256),
        baseline="vl_py",
    )


@pytest.mark.slow
def test_invalid_values_show_an_error_and_stay_in_the_form() -> None:
    query = {"recurrent_sweep": "mini_batch", "recurrent_sweep_values": "many"}
    app = open_page(PAGE, **query)
    assert not app.exception
    assert "Sweep values: must be a whole number (given: 'many')" in plain_text(app)
    assert app.button(key="recurrent_go").disabled
    for name, value in query.items():
        assert value in str(app.session_state[name])


@pytest.mark.slow
def test_too_large_settings_show_a_memory_warning(store: Store) -> None:
    store_machine_with_gpu(store)
    app = open_page(PAGE, recurrent_runners="aten", recurrent_seq_length="10000", recurrent_mini_batch="1024")
    assert "of 1 GB: will not fit" in plain_text(app)
    assert [warning.icon for warning in app.warning] == [":material/memory:"], "the message is a warning"


@pytest.mark.slow
def test_queued_run_shows_no_timings_yet(store: Store) -> None:
    app = open_page(PAGE, run=str(queue_recurrent(store, runners="aten")))
    assert not app.exception
    assert "No results yet" in texts(app)


@pytest.mark.slow
def test_running_run_shows_rows_and_out_of_memory_offers_half_batch(store: Store) -> None:
    run_id = queue_recurrent(store, runners="aten,py,resnet18")
    attempt = queueing.claim(store.database, ENVIRONMENT.host, run_id)
    assert attempt
    attempts.begin(store.database, attempt)
    attempts.record(store.database, attempt, [ENVIRONMENT, recurrent_row("aten"), recurrent_row("py")])
    app = open_page(PAGE, run=str(run_id))
    assert not app.exception
    assert list(app.dataframe[0].value["model"]) == ["aten", "py"]
    assert app.button(key=f"cancel_{run_id}")
    attempts.finish(store.database, attempt, State.FAILED, Cause.OUT_OF_MEMORY, "no room")
    attempts.close(store.database, attempt, Exit(code=1), None, "")
    app = open_page(PAGE, run=str(run_id))
    app.button(key=f"half_{run_id}").click().run()
    assert store.runs()[0].spec.mini_batch == 32


@pytest.mark.slow
def test_rows_show_forward_times_flags_and_failures(store: Store) -> None:
    no_values = dict.fromkeys(("latency_ms", "forward_ms", "backward_ms", "forward_mean_ms", "speedup", "verdict"))
    app = open_run(
        store,
        recurrent_row("cudnn", status="error", error="cudnn needs cuDNN, which cpu does not have", **no_values),
        recurrent_row("aten", flags=("unstable", "contended")),
        recurrent_row("py"),
        runners="cudnn,aten,py",
    )
    assert not app.exception
    table = app.dataframe[0].value
    assert list(table["model"]) == ["cudnn", "aten", "py"]
    assert list(table["forward_ms"].fillna(0)) == [0, 10, 10]
    assert list(table["flags"]) == ["", "unstable, contended", ""]
    assert list(table["status"]) == ["error", "ok", "ok"]
    assert "seq_length" not in table, "a column with equal values is hidden"
    assert "1 of 3 rows failed" in texts(app)
    assert [tab.label for tab in app.tabs] == ["Forward and backward", "Speed-up", "Samples"]
    keys = [button.key for button in app.get("download_button")]
    assert keys == ["rows_1_csv", "rows_1_json", "rows_1_parquet", "table_1", "oss_1"], "the pep download needs samples"


@pytest.mark.slow
def test_run_with_only_failures_has_a_table_without_charts(store: Store) -> None:
    no_values = dict.fromkeys(("latency_ms", "forward_ms", "backward_ms", "forward_mean_ms", "speedup", "verdict"))
    app = open_run(store, recurrent_row("cudnn", status="error", error="no", **no_values), runners="cudnn")
    assert not app.exception
    assert len(app.tabs) == 0
    assert [button.key for button in app.get("download_button")] == ["rows_1_csv", "rows_1_json", "rows_1_parquet"]


@pytest.mark.slow
def test_speedups_over_the_chosen_baseline_come_from_samples(store: Store, settings: Settings) -> None:
    rows = [recurrent_row(runner) for runner in ("aten", "py", "aten_layernorm")]
    run_id = queue_recurrent(store, runners="aten,py,aten_layernorm")
    slow, fast = [[20.0, 20.1, 19.9, 20.0] * 5] * 3, [[10.0, 10.1, 9.9, 10.0] * 5] * 3
    folder = RunFiles(settings.runs_dir, run_id).dir
    write_recurrent_samples(folder, rows[0], aten=(fast, slow), py=(slow, fast), aten_layernorm=(fast, []))
    finish(store, run_id, rows)
    app = open_page(PAGE, run=str(run_id))
    assert "pep_1" in [button.key for button in app.get("download_button")]
    app.session_state[f"charts_{run_id}"] = "Speed-up"
    app.run()
    assert not app.exception
    assert app.selectbox(key=f"baseline_0_{run_id}").value == "aten"
    assert "undecided: The interval is too wide to tell" in plain_text(app).replace("**", "")
    app.get_by_key(f"phase_{run_id}").set_value("forward_ms").run()
    page_text = plain_text(app).replace("**", "")
    assert "slower: The whole interval lies below" in page_text
    assert "not comparable: They compute something else" in page_text, "a runner with layer norms is another network"
    app.selectbox(key=f"baseline_0_{run_id}").set_value("aten_layernorm").run()
    app.get_by_key(f"phase_{run_id}").set_value("backward_ms").run()
    assert "No other runner can be compared with aten_layernorm" in plain_text(app)
    link = {f"charts_{run_id}": "Speed-up", f"baseline_0_{run_id}": "py", f"phase_{run_id}": "forward"}
    alts = [chart["alt"] for chart in charts(open_page(PAGE, run=str(run_id), **link))]
    assert "Speed-up over py (forward), with 99 % intervals and verdicts" in alts
    app.session_state[f"charts_{run_id}"] = "Samples"
    app.run()
    assert not app.exception


@pytest.mark.slow
def test_unreadable_samples_show_an_error_and_keep_the_table(store: Store, settings: Settings) -> None:
    run_id = queue_recurrent(store, runners="aten,py")
    rows = [recurrent_row("aten"), recurrent_row("py")]
    file = RunFiles(settings.runs_dir, run_id).dir / rows[0].samples_file
    file.parent.mkdir(parents=True)
    file.write_text("a,b\n1,2\n")
    finish(store, run_id, rows)
    app = open_page(PAGE, run=str(run_id))
    for tab in ("Speed-up", "Samples"):
        app.session_state[f"charts_{run_id}"] = tab
        app.run()
        assert not app.exception
        assert "lacks the columns calls, process" in " ".join(error.value for error in app.error).replace("\\", "")
        assert len(app.dataframe)


@pytest.mark.slow
def test_sweep_has_a_sizes_tab_and_no_single_size_downloads(store: Store) -> None:
    rows = [recurrent_row(runner, hidden_size=size) for size in (32, 64) for runner in ("aten", "py")]
    rows.append(recurrent_row("resnet18"))
    app = open_run(store, *rows, runners="aten,py,resnet18", sweep="hidden_size", sweep_values="32,64")
    assert not app.exception
    assert [tab.label for tab in app.tabs] == ["Forward and backward", "Speed-up", "Sizes", "Samples"]
    assert list(app.dataframe[0].value["hidden_size"].fillna(0)) == [32, 32, 64, 64, 0]
    assert app.selectbox(key="bars_of_1").options == ["lstm, hidden size 32", "lstm, hidden size 64", "resnet"]
    app.session_state["charts_1"] = "Sizes"
    app.run()
    assert not app.exception
    assert [button.key for button in app.get("download_button")] == ["rows_1_csv", "rows_1_json", "rows_1_parquet"]


@pytest.mark.slow
def test_families_that_were_timed_at_one_size_each_have_no_sizes_tab(store: Store) -> None:
    missing: dict[str, object] = {"status": "error", "error": "no"} | dict.fromkeys(("forward_ms", "latency_ms"))
    rows = [recurrent_row("aten", hidden_size=32), recurrent_row("aten", hidden_size=64, **missing)]
    app = open_run(store, *rows, runners="aten", sweep="hidden_size", sweep_values="32,64")
    assert "**lstm\\, hidden size 32**" in texts(app), "the chart of the only group says which size it shows"
    rows += [recurrent_row("gru_aten", hidden_size=32, **missing), recurrent_row("gru_aten", hidden_size=64)]
    app = open_run(store, *rows, runners="aten,gru_aten", sweep="hidden_size", sweep_values="32,64")
    assert [tab.label for tab in app.tabs] == ["Forward and backward", "Samples"]


@pytest.mark.slow
def test_quick_run_can_be_repeated_with_quotable_settings(store: Store) -> None:
    app = open_run(store, recurrent_row("aten", flags=("single_process",)), runners="aten", replicates=1, loops=3)
    app.button(key="quotable_1").click().run()
    assert not app.exception
    assert store.runs()[0].spec == RecurrentSpec(runners=("aten",), loops=10)


@pytest.mark.slow
def test_selected_row_shows_all_details(store: Store) -> None:
    row = recurrent_row("jit", flags=("drifting",), fuser="te", executor="profiling", notes=("fuses nothing",))
    row = row.model_copy(update={"threads": 1, "seq_length": 1, "input_size": 1})
    run_id = queue_recurrent(store, runners="aten,jit")
    finish(store, run_id, [recurrent_row("aten"), row])
    app = open_page(PAGE, run=str(run_id))
    app.session_state[f"rows_{run_id}"] = {"selection": {"rows": [1], "columns": [], "cells": []}}
    app.run()
    assert not app.exception
    metrics = {metric.label: metric.value for metric in app.metric}
    assert (metrics["Forward (ms)"], metrics["Backward (ms)"]) == ("10", "20")
    assert metrics["Gradient error"] == "2e-07"
    page_text = plain_text(app)
    assert (
        "1 thread; TF32 off; cuDNN benchmark off; An LSTM cell in a loop over time steps, scripted; 1 time step; "
        "batch 8; 1 feature in, 64 hidden; 1 layer" in page_text
    )
    assert "TorchScript: fuser te, executor profiling" in page_text
    assert "Fuses nothing." in page_text
    assert "faster: 1.25 times as fast as aten (1.2 to 1.3, 99 %)" in page_text
    assert "30 samples of 1 call in 3 processes" in page_text


@pytest.mark.slow
def test_selected_row_shows_an_interval_without_upper_limit(store: Store) -> None:
    row = recurrent_row("jit", speedup=3.98, speedup_low=0.0, speedup_high=None, verdict="needs 3 processes")
    run_id = queue_recurrent(store, runners="aten,jit")
    finish(store, run_id, [recurrent_row("aten"), row])
    app = open_page(PAGE, run=str(run_id))
    app.session_state[f"rows_{run_id}"] = {"selection": {"rows": [1], "columns": [], "cells": []}}
    assert "3.98 times as fast as aten (0 to no upper limit, 99 %)" in plain_text(app.run())


FIELDS = [
    {},
    {"groups": "rnns,vl", "runners": "gru_py", "baseline": "vl_py", "device": "cuda:0", "precision": "bfloat16"},
    {"sweep": "seq_length", "sweep_values": "10,20,40", "bidirectional": True, "proj_size": 8, "batch_first": True},
    {"runners": "aten,py", "loops": 5, "warmup": 0, "min_seconds": 0.25, "replicates": 1, "image_size": "64x96"},
    {"fuser": "none", "executor": "simple", "cuda_pointwise_loop_level": 2, "cuda_pointwise_block_count": 3},
]


@pytest.mark.parametrize("fields", FIELDS)
def test_command_has_the_same_settings_as_the_run(fields: dict[str, object]) -> None:
    spec = RecurrentSpec.model_validate(fields)
    arguments = shlex.split(command(spec))
    assert arguments[:4] == ["python", "-m", "engine", "recurrent"]
    assert parsed(speed.Recurrent, arguments[4:]) == spec


@pytest.mark.slow
def test_link_with_settings_fills_the_form(store: Store) -> None:
    spec = RecurrentSpec.model_validate(FIELDS[2] | {"groups": "rnns"})
    app = open_page(PAGE, **link.split(spec)[0])
    assert not app.exception
    assert shlex.split(command(spec)) == shlex.split(verbatim(app)[0])
