"""The profile page, driven in process. Runs are queued; what they find is stored by hand, as a worker would."""

import json
import re
import shlex

import pytest
from streamlit.testing.v1 import AppTest

from engine.results import Device, Machine
from engine.settings import Settings
from engine.specs import ProfileSpec
from engine.specs.base import CLUSTER
from engine.store import Store, attempts
from engine.store import queue as queueing
from pages.shared import backend, launch
from pages.shared.form.command import command
from pages.shared.form.link import address
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

# A scheduler outlives whoever started it: that nobody waits for it is meant.
pytestmark = [
    pytest.mark.usefixtures("own_world"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


def go(app: AppTest) -> AppTest:
    return app.button(key="profile_go").click().run()


def spec_of(store: Store) -> ProfileSpec:
    spec = store.runs()[0].spec
    assert isinstance(spec, ProfileSpec)
    return spec


@pytest.mark.slow
def test_an_empty_form_asks_for_models_and_starts_nothing() -> None:
    app = open_page(PAGE)
    assert not app.exception
    assert "Choose models" in texts(app)
    assert app.button(key="profile_go").disabled


@pytest.mark.slow
def test_it_says_what_it_will_do_and_which_command_does_the_same() -> None:
    app = open_page(PAGE, profile_models="resnet*", profile_batch_size="4")
    assert "Counts 2 models on meta: timm:resnet18, timm:resnet50" in texts(app)
    assert verbatim(app)[0] == "python -m engine profile --models 'resnet*' --batch-size 4"


@pytest.mark.slow
def test_the_time_it_takes_is_taken_from_runs_before(store: Store) -> None:
    finish(store, queue(store, "resnet18"), [profile_row("resnet18", seconds=2.0)])
    assert "2.8 s to 6.0 s as in similar runs here" in texts(open_page(PAGE, profile_models="resnet*"))
    assert "similar runs" not in texts(open_page(PAGE, profile_models="resnet*", profile_counter="fvcore"))


@pytest.mark.slow
def test_a_form_becomes_a_queued_run(store: Store) -> None:
    app = open_page(PAGE, profile_models="resnet18")
    app.text_input(key="profile_image_size").set_value("160x224, 224").run()
    app.text_input(key="profile_batch_size").set_value("1,8").run()
    app.get_by_key("profile_precision").set_value("bfloat16").run()
    assert "Counts 1 model at 2 image sizes and 2 batch sizes on meta" in texts(app)
    assert "--batch-size 1,8 --image-size 160x224,224" in verbatim(app)[0]
    app = go(app)
    assert not app.exception
    asked = {"models": "resnet18", "image_size": ((160, 224), 224), "batch_size": [1, 8], "precision": "bfloat16"}
    assert spec_of(store) == ProfileSpec.model_validate(asked)
    assert app.query_params["run"] == "1"
    assert "queued" in texts(app)
    assert "next in the queue" in texts(app)


@pytest.mark.slow
def test_two_clicks_are_one_run_until_it_has_ended(store: Store) -> None:
    app = go(go(open_page(PAGE, profile_models="resnet18")))
    assert len(store.runs()) == 1
    finish(store, 1, [profile_row("resnet18")])
    store.delete(1)
    assert not go(app).exception
    assert [run.id for run in store.runs()] == [2]


@pytest.mark.slow
def test_what_the_engine_refuses_stands_beside_the_form_and_nothing_is_lost() -> None:
    app = open_page(PAGE, profile_models="resnet18", profile_image_size="big")
    assert not app.exception
    assert "image size 'big'" in texts(app).replace("\\", "")
    assert app.button(key="profile_go").disabled
    assert app.text_input(key="profile_image_size").value == "big"
    assert app.multiselect(key="profile_models").value == ["resnet18"]
    app.text_input(key="profile_image_size").set_value("99999999").run()
    (error,) = app.error  # one for both sides of the square
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
def test_a_number_out_of_bounds_disables_the_button_of_any_form(page: str, field: str, button: str) -> None:
    """A browser would keep it to itself if the field had bounds; the form would run the number before."""
    models = {"profile": {"profile_models": "resnet18"}, "vision": {"benchmark_models": "resnet18"}}.get(page, {})
    app = open_page(f"{page}/page.py", **models, **{field: "1000000000"})
    assert not app.exception
    assert not [item.key for item in app.number_input if item.proto.has_max and item.proto.max < 2**53]
    assert re.search(r"must be at most [\d,]+ \(given: 1,000,000,000\)", texts(app).replace("\\", ""))
    assert app.button(key=button).disabled


@pytest.mark.slow
def test_an_unknown_name_is_refused_with_the_closest() -> None:
    app = open_page(PAGE, profile_models="resnet19")
    assert "no model matches 'resnet19'" in texts(app).replace("\\", "")
    assert "closest: timm:resnet18" in texts(app).replace("\\", "")
    assert app.button(key="profile_go").disabled


@pytest.mark.slow
def test_names_are_shown_as_text() -> None:
    app = open_page(PAGE, profile_models="**bold** <b>x</b> :red[y]")
    (error,) = app.error
    assert "\\*\\*bold\\*\\*" in error.value
    assert "\\<b\\>" in error.value
    assert "\\:red\\[y\\]" in error.value


@pytest.mark.slow
def test_a_counter_of_real_models_offers_only_real_devices(store: Store) -> None:
    devices = (Device(name="cpu", model="x"), Device(name="cuda:0", model="y"))
    known = {"host": "here", "platform": "Linux", "cpu": "x", "threads": 2, "memory_gb": 8.0, "date": "2026-11-20"}
    store.save_machine(Machine.model_validate(known | {"devices": devices}))
    app = open_page(PAGE, profile_models="resnet18")
    assert app.selectbox(key="profile_device").options == ["meta", "cpu", "cuda:0"]
    app.get_by_key("profile_counter").set_value("both").run()
    assert app.selectbox(key="profile_device").options == ["cpu", "cuda:0"]
    go(app)
    assert (spec_of(store).counter, spec_of(store).device) == ("both", "cpu")


@pytest.mark.slow
def test_names_and_configurations_can_be_uploaded(store: Store) -> None:
    app = unfold(open_page(PAGE), "Models from files")
    app.file_uploader[0].upload("list.txt", b"resnet18  # small\nresnet50\n")
    mine = {"embed_dim": 64, "vision_cfg": {}, "text_cfg": {}}
    app.file_uploader[0].upload("mine.json", json.dumps(mine).encode())
    app.file_uploader[0].upload("mine.json", json.dumps(mine | {"embed_dim": 8}).encode())
    app.run()
    assert ["two uploaded configurations" in error.value for error in app.error] == [True]
    assert "Counts 3 models" in texts(app)
    assert verbatim(app)[0].endswith("--models resnet18,resnet50,mine.json")
    go(app)
    assert spec_of(store).models == ("resnet18", "resnet50", "config:mine")
    assert spec_of(store).configs == {"mine": mine}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "content"), [("bad.json", b"{"), ("empty.txt", b"# nothing\n"), ("list.json", b"[]")])
def test_a_file_that_cannot_be_used_is_named(name: str, content: bytes) -> None:
    app = unfold(open_page(PAGE), "Models from files")
    app.file_uploader[0].upload(name, content)
    app.run()
    assert not app.exception
    assert app.error
    assert name.partition(".")[0] in texts(app).replace("\\", "")


@pytest.mark.slow
def test_results_show_every_row_and_failures_as_such(store: Store) -> None:
    run_id = queue(store, "resnet18", "broken")
    finish(store, run_id, [profile_row("resnet18"), profile_row("broken", status="error", error="no", gmacs=None)])
    app = open_page(PAGE, run=str(run_id))
    assert not app.exception
    table = app.dataframe[0].value
    assert list(table["model"]) == ["resnet18", "broken"]
    assert list(table["status"]) == ["ok", "error"]
    assert list(table).index("error") == 1, "an error can be read without scrolling"
    assert "1 of 2 could not be counted" in texts(app)
    assert "finished" in texts(app)


@pytest.mark.slow
def test_a_single_row_opens_its_card(store: Store) -> None:
    run_id = queue(store, "resnet18")
    finish(store, run_id, [profile_row("resnet18", complete=False, uncounted={"sort": 2}, notes=("sort is missing",))])
    app = open_page(PAGE, run=str(run_id))
    assert not app.exception
    assert "timm\\:resnet18 at 224 px" in [heading.value for heading in app.header]
    assert {metric.label: metric.value for metric in app.metric}["MACs (G)"] == "2"
    assert "sort is missing" in texts(app)


def cross_check(run_id: int) -> AppTest:
    """The page of a run of one model, with that tab open."""
    app = open_page(PAGE, run=str(run_id))
    app.session_state[f"tabs_{run_id}_timm:resnet18_224_1"] = "Cross-check"
    return app.run()


@pytest.mark.slow
def test_a_count_is_cross_checked_with_fvcore(store: Store) -> None:
    difference = {"operator": "bmm", "torch_gmacs": 0.5, "fvcore_gmacs": 0.0, "explanation": "fused attention"}
    checked = {"counter": "both", "fvcore_gmacs": 1.5, "fvcore_unsupported": {"aten::gelu": 12}}
    for differences, found in (((), True), ((difference,), False)):
        run_id = queue(store, "resnet18", counter="both")
        finish(store, run_id, [profile_row("resnet18", **checked, differences=differences)])
        app = cross_check(run_id)
        assert not app.exception
        assert ("fvcore and the torch counter agree on every operator" in texts(app)) is found
        assert "fvcore skipped: aten::gelu (12)" in texts(app).replace("\\", "")
        explained = [list(table.value["explanation"]) for table in app.dataframe if "explanation" in table.value]
        assert explained == ([] if found else [["fused attention"]])

    run_id = queue(store, "resnet18")
    finish(store, run_id, [profile_row("resnet18")])
    app = cross_check(run_id)
    (button,) = (item for item in app.button if item.label == "Cross-check with fvcore")
    button.click().run()
    assert not app.exception
    assert (spec_of(store).models, spec_of(store).counter, spec_of(store).device) == (("timm:resnet18",), "both", "cpu")


@pytest.mark.slow
def test_the_text_names_modules_where_the_run_keeps_them(store: Store) -> None:
    for file, text in {"detail/a.json": "see modules, operators and", "": "see operators and"}.items():
        run_id = queue(store, "resnet18", "resnet50")
        finish(store, run_id, [profile_row(name, detail_file=file) for name in ("resnet18", "resnet50")])
        assert text in texts(open_page(PAGE, run=str(run_id)))


@pytest.mark.slow
@pytest.mark.parametrize("counter", ["torch", "both"])
def test_a_count_without_modules_is_made_again_by_the_same_counter(store: Store, counter: str) -> None:
    run_id = queue(store, "resnet18", "resnet50", counter=counter)
    finish(store, run_id, [profile_row("resnet18", counter=counter)])
    app = open_page(PAGE, run=str(run_id))
    assert "This run kept no table of modules" in texts(app)
    (button,) = (item for item in app.button if item.label == "Count this model again")
    button.click().run()
    assert (spec_of(store).models, spec_of(store).counter) == (("timm:resnet18",), counter)


FVCORE = {
    **{"counter": "fvcore", "device": "cpu", "gmacs": None, "gflops": None, "macts": None, "operators": ()},
    **{"image_gmacs": None, "image_macts": None, "fvcore_gmacs": 1.5, "fvcore_image_gmacs": 1.5, "fvcore_macts": 2.5},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tab", "said"),
    [
        ("Modules", "fvcore does not count by module"),
        ("Cross-check", "This run has no count by the torch counter"),
    ],
)
def test_what_fvcore_alone_cannot_show_is_said_and_a_count_with_both_is_offered(
    store: Store, tab: str, said: str
) -> None:
    run_id = queue(store, "resnet18", counter="fvcore")
    finish(store, run_id, [profile_row("resnet18", **FVCORE)])
    app = open_page(PAGE, run=str(run_id))
    app.session_state[f"tabs_{run_id}_timm:resnet18_224_1"] = tab
    app.run()
    assert said in texts(app)
    assert "agree on every operator" not in texts(app)
    (button,) = (item for item in app.button if item.label in ("Count with both counters", "Count this model again"))
    assert button.label == "Count with both counters"
    button.click().run()
    assert not app.exception
    assert (spec_of(store).models, spec_of(store).counter, spec_of(store).device) == (("timm:resnet18",), "both", "cpu")


@pytest.mark.slow
def test_values_of_fvcore_are_in_the_card_and_in_the_bars(store: Store) -> None:
    run_id = queue(store, "resnet18", counter="fvcore")
    finish(store, run_id, [profile_row("resnet18", **FVCORE)])
    values = {metric.label: metric.value for metric in open_page(PAGE, run=str(run_id)).metric}
    assert (values["fvcore MACs (G)"], values["fvcore activations (M)"]) == ("1.5", "2.5")
    assert "MACs (G)" not in values
    run_id = queue(store, "resnet18", "resnet50", counter="fvcore")
    finish(store, run_id, [profile_row(name, **FVCORE) for name in ("resnet18", "resnet50")])
    app = open_page(PAGE, run=str(run_id))
    assert not app.exception
    assert charts(app)[0]["layout"]["xaxis"]["title"]["text"] == "fvcore MACs (G)"
    app.get_by_key(f"bars_{run_id}").set_value("fvcore_macts").run()
    assert charts(app)[0]["layout"]["xaxis"]["title"]["text"] == "fvcore activations (M)"


@pytest.mark.slow
def test_a_link_opens_the_plot_with_its_axes(store: Store) -> None:
    run_id = queue(store, "resnet18", "resnet50")
    finish(store, run_id, [profile_row("resnet18"), profile_row("resnet50", mparams=20.0)])
    app = open_page(PAGE, run=str(run_id), compare_1="Scatter", x_1="Parameters (M)", y_1="Activations (M)")
    assert not app.exception
    axes = charts(app)[0]["layout"]
    assert [axes[axis]["title"]["text"] for axis in ("xaxis", "yaxis")] == ["Parameters (M)", "Activations (M)"]


@pytest.mark.slow
def test_a_sweep_is_drawn_and_each_of_its_rows_opens_its_own_card(store: Store) -> None:
    run_id = queue(store, "resnet18", image_size="128,224", batch_size="1,8")
    places = [(size, batch) for size in ("128", "224") for batch in (1, 8)]
    finish(
        store,
        run_id,
        [profile_row("resnet18", image_size=s, batch_size=b, inference_peak_mb={1: 50, 8: 80}[b]) for s, b in places],
    )
    app = open_page(PAGE, run=str(run_id))
    (drawn,) = charts(app)
    assert [line["name"] for line in drawn["data"]] == ["resnet18"], "MACs per image are the same in any batch"
    app.selectbox(key=f"sweep_y_{run_id}").set_value("inference_peak_mb").run()
    assert not app.exception
    assert app.tabs[0].label == "Sweep"
    (drawn,) = charts(app)
    assert [line["name"] for line in drawn["data"]] == ["resnet18, batch 1", "resnet18, batch 8"]
    assert drawn["layout"]["xaxis"]["ticktext"] == ["128", "224"]
    app.session_state[f"rows_{run_id}"] = {"selection": {"rows": [1], "columns": [], "cells": []}}
    shown = app.dataframe[0].value.iloc[1]
    assert f"at {shown['image_size']} px" in texts(app.run())


@pytest.mark.slow
def test_rows_of_a_running_run_are_there_already(store: Store) -> None:
    run_id = queue(store, "resnet18", "resnet50")
    attempt = queueing.claim(store.database, ENVIRONMENT.host, run_id)
    assert attempt
    attempts.begin(store.database, attempt)
    app = open_page(PAGE, run=str(run_id))
    assert "starting" in texts(app)
    assert "No models counted yet" in texts(app)
    attempts.record(store.database, attempt, events([profile_row("resnet18")], 2))
    app.run()
    assert list(app.dataframe[0].value["model"]) == ["resnet18"]
    assert "1 of 2 counts done" in texts(app)
    app.button(key=f"cancel_{run_id}").click().run()
    assert store.run(run_id).cancel_requested


@pytest.mark.slow
def test_a_run_that_is_not_there_is_said_so() -> None:
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
def test_the_command_asks_for_the_very_same(fields: dict[str, object]) -> None:
    from pydantic_settings import CliApp

    from engine.cli.costs import ProfileFlags

    class Flags(ProfileFlags):
        model_config = ProfileFlags.model_config | {"cli_kebab_case": True, "cli_implicit_flags": True}

    spec = ProfileSpec.model_validate(fields)
    words = shlex.split(command(spec))
    assert words[:4] == ["python", "-m", "engine", "profile"]
    assert CliApp.run(Flags, words[4:]).spec() == spec


@pytest.mark.slow
def test_an_address_that_names_somebodys_code_is_refused(store: Store) -> None:
    app = open_page(PAGE, profile_models="python:os:getcwd")
    assert "building it runs the Python code that it names" in texts(app)
    assert app.button(key="profile_go").disabled
    assert store.runs() == []


@pytest.mark.slow
def test_classes_channels_and_keywords_reach_the_run(store: Store) -> None:
    asked = {"profile_num_classes": "10", "profile_in_chans": "4", "profile_model_kwargs": "drop_rate=0.1"}
    app = open_page(PAGE, profile_models="resnet18", **asked)
    spec = {"models": "resnet18", "num_classes": 10, "in_chans": 4, "model_kwargs": {"drop_rate": 0.1}}
    assert shlex.split(verbatim(app)[0])[-2:] == ["--model-kwargs", '{"drop_rate": 0.1}']
    go(app)
    assert spec_of(store) == ProfileSpec.model_validate(spec)
    finish(store, 1, [profile_row("resnet18", num_classes=10, in_chans=4, model_kwargs='{"drop_rate": 0.1}')])
    app = open_page(PAGE, run="1")
    assert list(app.dataframe[0].value["num_classes"]) == [10]
    assert "10 classes, 4 channels" in texts(app).replace("\\", "")
    copied = {name: str(value) for name, value in address(spec_of(store)).items() if name != "profile_models"}
    assert ProfileSpec.model_validate(
        {name.removeprefix("profile_"): value for name, value in copied.items()} | {"models": "resnet18"}
    ) == spec_of(store)


def test_devices_of_the_cluster_are_offered_once_one_is_configured(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = tuple(
        Device(name=f"{CLUSTER}{name}", model="on 2 nodes", nodes=2) for name in ("cpu", "gpu:H100", "meta")
    )
    known = {"platform": "", "cpu": "", "threads": 2, "memory_gb": 1, "date": ""}
    store.save_machine(Machine(host=CLUSTER, devices=devices, **known))
    monkeypatch.setattr(backend, "store", lambda: store)  # on SQLite, which is refused with a cluster otherwise
    monkeypatch.setattr(backend, "settings", lambda: settings)
    assert launch.devices() == ["cpu"]
    assert launch.cluster_devices() == []
    monkeypatch.setattr(backend, "settings", lambda: settings.model_copy(update={"ray_address": "http://127.0.0.1:1"}))
    assert launch.devices() == ["cpu", "cluster:cpu", "cluster:gpu:H100"]
    assert "cluster:meta" in launch.cluster_devices()
    assert [launch.nodes_with(name) for name in launch.devices()] == [0, 2, 2]
    (device,) = (box for box in open_page(PAGE).selectbox if box.label == "Device")
    assert device.options == ["meta", "cluster:meta", *launch.devices()]
