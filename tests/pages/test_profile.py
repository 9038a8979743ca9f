"""Tests of the profile page with AppTest. Runs stay queued, and tests store the results as a worker would."""

import json
import re
import shlex

import pytest
from streamlit.testing.v1 import AppTest

from engine.cli import costs
from engine.results import Device, Machine
from engine.settings import Settings
from engine.specs import ProfileSpec
from engine.specs.base import CLUSTER
from engine.store import Store, attempts
from engine.store import queue as queueing
from pages.profile import results
from pages.shared import backend
from pages.shared.form.command import command
from pages.shared.form.link import split
from pages.shared.runs import launch
from tests.support.command import parsed
from tests.support.page import (
    ENVIRONMENT,
    charts,
    events,
    finish,
    open_page,
    profile_row,
    queue,
    texts,
    unfold,
    verbatim,
)

PAGE = "profile/page.py"

# The scheduler outlives the process that starts it, so the warning about a running subprocess is expected.
pytestmark = [
    pytest.mark.usefixtures("own_world"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


def start_run(app: AppTest) -> AppTest:
    return app.button(key="profile_go").click().run()


def spec_of(store: Store) -> ProfileSpec:
    spec = store.runs()[0].spec
    assert isinstance(spec, ProfileSpec)
    return spec


@pytest.mark.slow
def test_empty_form_asks_for_models_and_disables_its_button() -> None:
    app = open_page(PAGE)
    assert not app.exception
    assert "Choose models" in texts(app)
    assert app.button(key="profile_go").disabled


@pytest.mark.slow
def test_form_shows_the_planned_run_and_its_command() -> None:
    app = open_page(PAGE, profile_models="resnet*", profile_batch_size="4")
    assert "Counts 2 models on meta: timm:resnet18, timm:resnet50" in texts(app)
    assert verbatim(app)[0] == "python -m engine profile --models 'resnet*' --batch-size 4"


@pytest.mark.slow
def test_time_estimate_comes_from_similar_runs(store: Store) -> None:
    finish(store, queue(store, "resnet18"), [profile_row("resnet18", seconds=2.0)])
    assert "2.8 s to 6.0 s as in similar runs here" in texts(open_page(PAGE, profile_models="resnet*"))
    assert "similar runs" not in texts(open_page(PAGE, profile_models="resnet*", profile_counter="fvcore"))


@pytest.mark.slow
def test_form_queues_a_run(store: Store) -> None:
    app = open_page(PAGE, profile_models="resnet18")
    app.text_input(key="profile_image_size").set_value("160x224, 224").run()
    app.text_input(key="profile_batch_size").set_value("1,8").run()
    app.get_by_key("profile_precision").set_value("bfloat16").run()
    assert "Counts 1 model at 2 image sizes and 2 batch sizes on meta" in texts(app)
    assert "--batch-size 1,8 --image-size 160x224,224" in verbatim(app)[0]
    app = start_run(app)
    assert not app.exception
    expected = {"models": "resnet18", "image_size": ((160, 224), 224), "batch_size": [1, 8], "precision": "bfloat16"}
    assert spec_of(store) == ProfileSpec.model_validate(expected)
    assert app.query_params["run"] == "1"
    assert "queued" in texts(app)
    assert "next in the queue" in texts(app)


@pytest.mark.slow
def test_two_clicks_queue_one_run_until_it_has_ended(store: Store) -> None:
    app = start_run(start_run(open_page(PAGE, profile_models="resnet18")))
    assert len(store.runs()) == 1
    finish(store, 1, [profile_row("resnet18")])
    store.delete(1)
    assert not start_run(app).exception
    assert [run.id for run in store.runs()] == [2]


@pytest.mark.slow
def test_invalid_values_show_an_error_and_stay_in_the_form() -> None:
    app = open_page(PAGE, profile_models="resnet18", profile_image_size="big")
    assert not app.exception
    assert "image size 'big'" in texts(app).replace("\\", "")
    assert app.button(key="profile_go").disabled
    assert app.text_input(key="profile_image_size").value == "big"
    assert app.multiselect(key="profile_models").value == ["resnet18"]
    app.text_input(key="profile_image_size").set_value("99999999").run()
    (error,) = app.error  # one error for both sides of the square
    assert "must be at most 4,096" in error.value.replace("\\", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "field", "button"),
    [
        ("profile", "profile_num_classes", "profile_go"),
        ("vision", "benchmark_time_limit", "benchmark_go"),
        ("recurrent", "recurrent_hidden_size", "recurrent_go"),
        ("device", "device_seconds", "device_go"),
        ("train", "train_epochs", "train_go"),
        ("evaluate", "evaluate_samples", "evaluate_go"),
    ],
)
def test_number_out_of_bounds_disables_the_button_of_every_form(page: str, field: str, button: str) -> None:
    """Fields have no bounds: a browser would not send a number outside them, and the form would use the old one."""
    models = {"profile": {"profile_models": "resnet18"}, "vision": {"benchmark_models": "resnet18"}}.get(page, {})
    app = open_page(f"{page}/page.py", **models, **{field: "1000000000"})
    assert not app.exception
    assert not [item.key for item in app.number_input if item.proto.has_max and item.proto.max < 2**53]
    assert re.search(r"must be at most [\d,]+ \(given: 1,000,000,000\)", texts(app).replace("\\", ""))
    assert app.button(key=button).disabled


@pytest.mark.slow
def test_unknown_model_name_is_refused_with_the_closest_name() -> None:
    app = open_page(PAGE, profile_models="resnet19")
    assert "no model matches 'resnet19'" in texts(app).replace("\\", "")
    assert "closest: timm:resnet18" in texts(app).replace("\\", "")
    assert app.button(key="profile_go").disabled


@pytest.mark.slow
def test_model_names_are_shown_without_markup() -> None:
    app = open_page(PAGE, profile_models="**bold** <b>x</b> :red[y]")
    (error,) = app.error
    assert "\\*\\*bold\\*\\*" in error.value
    assert "\\<b\\>" in error.value
    assert "\\:red\\[y\\]" in error.value


@pytest.mark.slow
def test_counter_both_offers_only_real_devices(store: Store) -> None:
    devices = (Device(name="cpu", model="x"), Device(name="cuda:0", model="y"))
    machine = {"host": "here", "platform": "Linux", "cpu": "x", "threads": 2, "memory_gb": 8.0, "date": "2026-11-20"}
    store.save_machine(Machine.model_validate(machine | {"devices": devices}))
    app = open_page(PAGE, profile_models="resnet18")
    assert app.selectbox(key="profile_device").options == ["meta", "cpu", "cuda:0"]
    app.get_by_key("profile_counter").set_value("both").run()
    assert app.selectbox(key="profile_device").options == ["cpu", "cuda:0"]
    start_run(app)
    assert (spec_of(store).counter, spec_of(store).device) == ("both", "cpu")


@pytest.mark.slow
def test_model_names_and_configurations_can_be_uploaded(store: Store) -> None:
    app = unfold(open_page(PAGE), "Models from files")
    app.file_uploader[0].upload("list.txt", b"resnet18  # small\nresnet50\n")
    config = {"embed_dim": 64, "vision_cfg": {}, "text_cfg": {}}
    app.file_uploader[0].upload("mine.JSON", json.dumps(config).encode())
    app.file_uploader[0].upload("mine.json", json.dumps(config | {"embed_dim": 8}).encode())
    app.run()
    assert ["two uploaded configurations" in error.value for error in app.error] == [True]
    assert "Counts 3 models" in texts(app)
    assert verbatim(app)[0].endswith("--models resnet18,resnet50,mine.json")
    start_run(app)
    assert spec_of(store).models == ("resnet18", "resnet50", "config:mine")
    assert spec_of(store).configs == {"mine": config}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "content"), [("bad.json", b"{"), ("empty.txt", b"# nothing\n"), ("list.json", b"[]")])
def test_unusable_upload_is_named(name: str, content: bytes) -> None:
    app = unfold(open_page(PAGE), "Models from files")
    app.file_uploader[0].upload(name, content)
    app.run()
    assert not app.exception
    assert app.error
    assert name.partition(".")[0] in texts(app).replace("\\", "")


@pytest.mark.slow
def test_results_show_every_row_and_mark_failures(store: Store) -> None:
    run_id = queue(store, "resnet18", "broken")
    finish(store, run_id, [profile_row("resnet18"), profile_row("broken", status="error", error="no", gmacs=None)])
    app = open_page(PAGE, run=str(run_id))
    assert not app.exception
    table = app.dataframe[0].value
    assert list(table["model"]) == ["resnet18", "broken"]
    assert list(table["status"]) == ["ok", "error"]
    assert list(table).index("error") == 1, "an error is visible without scrolling"
    assert "1 of 2 rows could not be counted" in texts(app)
    assert "finished" in texts(app)


@pytest.mark.slow
def test_single_row_shows_its_details(store: Store) -> None:
    run_id = queue(store, "resnet18")
    finish(store, run_id, [profile_row("resnet18", complete=False, uncounted={"sort": 2}, notes=("sort is missing",))])
    app = open_page(PAGE, run=str(run_id))
    assert not app.exception
    assert "timm\\:resnet18 at 224 px" in [heading.value for heading in app.header]
    assert {metric.label: metric.value for metric in app.metric}["MACs (G)"] == "2"
    assert "sort is missing" in texts(app)


def open_cross_check(run_id: int) -> AppTest:
    """Open the page of a run of resnet18 with its tab Cross-check."""
    app = open_page(PAGE, run=str(run_id))
    app.session_state[f"tabs_{run_id}_timm:resnet18_224_1"] = "Cross-check"
    return app.run()


@pytest.mark.slow
def test_count_is_cross_checked_with_fvcore(store: Store) -> None:
    difference = {"operator": "bmm", "torch_gmacs": 0.5, "fvcore_gmacs": 0.0, "explanation": "fused attention"}
    fields = {"counter": "both", "fvcore_gmacs": 1.5, "fvcore_unsupported": {"aten::gelu": 12}}
    for differences, agree in (((), True), ((difference,), False)):
        run_id = queue(store, "resnet18", counter="both")
        finish(store, run_id, [profile_row("resnet18", **fields, differences=differences)])
        app = open_cross_check(run_id)
        assert not app.exception
        assert ("fvcore and the torch counter agree on every operator" in texts(app)) is agree
        assert "fvcore skipped: aten::gelu (12)" in texts(app).replace("\\", "")
        explanations = [list(table.value["explanation"]) for table in app.dataframe if "explanation" in table.value]
        assert explanations == ([] if agree else [["fused attention"]])

    run_id = queue(store, "resnet18")
    finish(store, run_id, [profile_row("resnet18")])
    app = open_cross_check(run_id)
    (button,) = (item for item in app.button if item.label == "Cross-check with fvcore")
    button.click().run()
    assert not app.exception
    assert (spec_of(store).models, spec_of(store).counter, spec_of(store).device) == (("timm:resnet18",), "both", "cpu")


@pytest.mark.slow
def test_table_of_operators_has_a_download(store: Store) -> None:
    run_id = queue(store, "resnet18")
    finish(store, run_id, [profile_row("resnet18")])
    app = open_page(PAGE, run=str(run_id))
    app.session_state[f"tabs_{run_id}_timm:resnet18_224_1"] = "Operators"
    keys = [button.key for button in app.run().get("download_button")]
    assert f"operators_file_{run_id}_timm:resnet18_224_1_csv" in keys


@pytest.mark.slow
def test_hint_names_modules_only_if_the_run_stores_them(store: Store) -> None:
    for file, text in {"detail/a.json": "see modules, operators and", "": "see operators and"}.items():
        run_id = queue(store, "resnet18", "resnet50")
        finish(store, run_id, [profile_row(name, detail_file=file) for name in ("resnet18", "resnet50")])
        assert text in texts(open_page(PAGE, run=str(run_id)))


@pytest.mark.slow
@pytest.mark.parametrize("counter", ["torch", "both"])
def test_count_without_modules_is_repeated_by_the_same_counter(store: Store, counter: str) -> None:
    run_id = queue(store, "resnet18", "resnet50", counter=counter)
    finish(store, run_id, [profile_row("resnet18", counter=counter)])
    app = open_page(PAGE, run=str(run_id))
    assert "This run has no table of modules that can be read" in texts(app)
    (button,) = (item for item in app.button if item.label == "Count this model again")
    button.click().run()
    assert (spec_of(store).models, spec_of(store).counter) == (("timm:resnet18",), counter)


FVCORE_FIELDS = {
    **{"counter": "fvcore", "device": "cpu", "gmacs": None, "gflops": None, "macts": None, "operators": ()},
    **{"image_gmacs": None, "image_macts": None, "fvcore_gmacs": 1.5, "fvcore_image_gmacs": 1.5, "fvcore_macts": 2.5},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tab", "message"),
    [
        ("Modules", "fvcore does not count by module"),
        ("Cross-check", "This run has no count by the torch counter"),
    ],
)
def test_fvcore_run_explains_missing_parts_and_offers_both_counters(store: Store, tab: str, message: str) -> None:
    run_id = queue(store, "resnet18", counter="fvcore")
    finish(store, run_id, [profile_row("resnet18", **FVCORE_FIELDS)])
    app = open_page(PAGE, run=str(run_id))
    app.session_state[f"tabs_{run_id}_timm:resnet18_224_1"] = tab
    app.run()
    assert message in texts(app)
    assert "agree on every operator" not in texts(app)
    (button,) = (item for item in app.button if item.label in ("Count with both counters", "Count this model again"))
    assert button.label == "Count with both counters"
    button.click().run()
    assert not app.exception
    assert (spec_of(store).models, spec_of(store).counter, spec_of(store).device) == (("timm:resnet18",), "both", "cpu")


@pytest.mark.slow
def test_fvcore_values_are_in_the_metrics_and_the_bar_chart(store: Store) -> None:
    run_id = queue(store, "resnet18", counter="fvcore")
    finish(store, run_id, [profile_row("resnet18", **FVCORE_FIELDS)])
    values = {metric.label: metric.value for metric in open_page(PAGE, run=str(run_id)).metric}
    assert (values["fvcore MACs (G)"], values["fvcore activations (M)"]) == ("1.5", "2.5")
    assert "MACs (G)" not in values
    run_id = queue(store, "resnet18", "resnet50", counter="fvcore")
    finish(store, run_id, [profile_row(name, **FVCORE_FIELDS) for name in ("resnet18", "resnet50")])
    app = open_page(PAGE, run=str(run_id))
    assert not app.exception
    assert charts(app)[0]["layout"]["xaxis"]["title"]["text"] == "fvcore MACs (G)"
    app.get_by_key(f"bars_{run_id}").set_value("fvcore_macts").run()
    assert charts(app)[0]["layout"]["xaxis"]["title"]["text"] == "fvcore activations (M)"


@pytest.mark.slow
def test_only_the_largest_of_many_rows_have_bars(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bars of 100,000 rows took the server 10 s with each redraw, and are 2,600,000 px high."""
    monkeypatch.setattr(results, "MOST_BARS", 2)
    run_id = queue(store, "a", "b", "c")
    finish(store, run_id, [profile_row(name, gmacs=value) for name, value in (("a", 3.0), ("b", 1.0), ("c", 2.0))])
    app = open_page(PAGE, run=str(run_id))
    assert [note["y"] for note in charts(app)[0]["layout"]["annotations"]] == ["c", "a"]
    assert "The 2 largest of 3 rows. The table and Scatter have all." in texts(app)


@pytest.mark.slow
def test_link_opens_the_scatter_plot_with_its_axes(store: Store) -> None:
    run_id = queue(store, "resnet18", "resnet50")
    finish(store, run_id, [profile_row("resnet18"), profile_row("resnet50", mparams=20.0)])
    app = open_page(PAGE, run=str(run_id), compare_1="Scatter", x_1="Parameters (M)", y_1="Activations (M)")
    assert not app.exception
    axes = charts(app)[0]["layout"]
    assert [axes[axis]["title"]["text"] for axis in ("xaxis", "yaxis")] == ["Parameters (M)", "Activations (M)"]


@pytest.mark.slow
def test_sweep_has_a_chart_and_each_row_shows_its_details(store: Store) -> None:
    run_id = queue(store, "resnet18", image_size="128,224", batch_size="1,8")
    pairs = [(size, batch) for size in ("128", "224") for batch in (1, 8)]
    finish(
        store,
        run_id,
        [profile_row("resnet18", image_size=s, batch_size=b, inference_peak_mb={1: 50, 8: 80}[b]) for s, b in pairs],
    )
    app = open_page(PAGE, run=str(run_id))
    (chart,) = charts(app)
    assert [line["name"] for line in chart["data"]] == ["resnet18"], "MACs per image do not depend on the batch size"
    app.selectbox(key=f"sweep_y_{run_id}").set_value("inference_peak_mb").run()
    assert not app.exception
    assert app.tabs[0].label == "Sweep"
    (chart,) = charts(app)
    assert [line["name"] for line in chart["data"]] == ["resnet18, batch 1", "resnet18, batch 8"]
    assert chart["layout"]["xaxis"]["ticktext"] == ["128", "224"]
    app.session_state[f"rows_{run_id}"] = {"selection": {"rows": [1], "columns": [], "cells": []}}
    row = app.dataframe[0].value.iloc[1]
    assert f"at {row['image_size']} px" in texts(app.run())


@pytest.mark.slow
def test_running_run_shows_its_rows_so_far(store: Store) -> None:
    run_id = queue(store, "resnet18", "resnet50")
    attempt = queueing.claim(store.database, ENVIRONMENT.host, run_id)
    assert attempt
    attempts.begin(store.database, attempt)
    app = open_page(PAGE, run=str(run_id))
    assert "starting" in texts(app)
    assert "No results yet" in texts(app)
    attempts.record(store.database, attempt, events([profile_row("resnet18")], 2))
    app.run()
    assert list(app.dataframe[0].value["model"]) == ["resnet18"]
    assert "1 of 2 counts done" in texts(app)
    app.button(key=f"cancel_{run_id}").click().run()
    assert store.run(run_id).cancel_requested


@pytest.mark.slow
def test_unknown_run_shows_a_message() -> None:
    app = open_page(PAGE, run="77")
    assert not app.exception
    assert "There is no run '77'" in texts(app).replace("\\", "")


@pytest.mark.parametrize(
    "fields",
    [
        {"models": "ViT-B-*,{a,b}"},
        {"models": "resnet18", "counter": "both", "device": "cpu", "batch_size": "3,1", "image_size": "64,96x128"},
        {"models": "resnet18", "image_size": "160x224", "precision": "float16", "training": True, "detail": True},
        {"models": "it's; $(rm -rf /)", "context_length": 12},
    ],
)
def test_command_has_the_same_settings_as_the_run(fields: dict[str, object]) -> None:
    spec = ProfileSpec.model_validate(fields)
    arguments = shlex.split(command(spec))
    assert arguments[:4] == ["python", "-m", "engine", "profile"]
    assert parsed(costs.Profile, arguments[4:]) == spec


@pytest.mark.slow
def test_link_to_python_code_is_refused(store: Store) -> None:
    app = open_page(PAGE, profile_models="python:os:getcwd")
    assert "building it runs the Python code that it names" in texts(app)
    assert app.button(key="profile_go").disabled
    assert store.runs() == []


@pytest.mark.slow
def test_classes_channels_and_model_arguments_reach_the_run(store: Store) -> None:
    query = {"profile_num_classes": "10", "profile_in_chans": "4", "profile_model_kwargs": "drop_rate=0.1"}
    app = open_page(PAGE, profile_models="resnet18", **query)
    expected = {"models": "resnet18", "num_classes": 10, "in_chans": 4, "model_kwargs": {"drop_rate": 0.1}}
    assert shlex.split(verbatim(app)[0])[-2:] == ["--model-kwargs", '{"drop_rate": 0.1}']
    start_run(app)
    assert spec_of(store) == ProfileSpec.model_validate(expected)
    finish(store, 1, [profile_row("resnet18", num_classes=10, in_chans=4, model_kwargs='{"drop_rate": 0.1}')])
    app = open_page(PAGE, run="1")
    assert list(app.dataframe[0].value["num_classes"]) == [10]
    assert "10 classes, 4 channels" in texts(app).replace("\\", "")
    link_values = {name: str(value) for name, value in split(spec_of(store))[0].items() if name != "profile_models"}
    assert ProfileSpec.model_validate(
        {name.removeprefix("profile_"): value for name, value in link_values.items()} | {"models": "resnet18"}
    ) == spec_of(store)


def test_cluster_devices_are_offered_when_a_cluster_is_configured(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = tuple(
        Device(name=f"{CLUSTER}{name}", model="on 2 nodes", nodes=2) for name in ("cpu", "gpu:H100", "meta")
    )
    machine = {"platform": "", "cpu": "", "threads": 2, "memory_gb": 1, "date": ""}
    store.save_machine(Machine(host=CLUSTER, devices=devices, **machine))
    monkeypatch.setattr(backend, "store", lambda: store)  # a real cluster needs PostgreSQL, this store is SQLite
    monkeypatch.setattr(backend, "settings", lambda: settings)
    assert launch.devices() == ["cpu"]
    assert launch.cluster_devices() == []
    monkeypatch.setattr(backend, "settings", lambda: settings.model_copy(update={"ray_address": "http://127.0.0.1:1"}))
    assert launch.devices() == ["cpu", "cluster:cpu", "cluster:gpu:H100"]
    assert "cluster:meta" in launch.cluster_devices()
    assert [launch.nodes_with(name) for name in launch.devices()] == [0, 2, 2]
    (device,) = (box for box in open_page(PAGE).selectbox if box.label == "Device")
    assert device.options == ["meta", "cluster:meta", *launch.devices()]


@pytest.mark.slow
def test_column_of_names_fits_long_names(store: Store) -> None:
    names = ("vit_base_patch32_clip_quickgelu_224", "resnet18")
    run_id = store.enqueue(ProfileSpec(models=names))
    finish(store, run_id, [profile_row(name) for name in names])
    columns = json.loads(open_page("run/page.py", run=str(run_id)).dataframe[0].proto.columns)
    assert columns["model"]["width"] >= 6 * len(names[0]) + 16, "a letter takes about 6 px, the margins take 16"
