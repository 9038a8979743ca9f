"""The page of one model, driven in process. Runs are queued; what they find is stored by hand, as a worker would."""

import json
from urllib.parse import parse_qs

import pytest
from streamlit.testing.v1 import AppTest

from engine.report.timings import by_model
from engine.results import Device, Machine, ModuleCount, detail_name
from engine.settings import Settings
from engine.specs import ProfileSpec
from engine.store import Store
from engine.store.files import RunFiles
from pages.model import history
from pages.shared.text import plain
from tests.support.clip import evaluate_row, queue_evaluate, queue_train, record, train_row
from tests.support.page import (
    benchmark_row,
    charts,
    finish,
    followed,
    open_page,
    profile_row,
    queue_benchmark,
    texts,
    verbatim,
)

PAGE = "model/page.py"

# A scheduler outlives whoever started it: that nobody waits for it is meant.
pytestmark = [
    pytest.mark.usefixtures("own_world"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


def opened(name: str, part: str = "Modules", **query: str) -> AppTest:
    app = open_page(PAGE, name=name, model_part=part, **query)
    assert not app.exception
    return app


def plainly(app: AppTest) -> str:
    return texts(app).replace("\\", "")


def table(app: AppTest, column: str) -> list[object]:
    """What stands in a column of the only table that has it."""
    (frame,) = [element.value for element in app.dataframe if column in element.value]
    return list(frame[column])


def write_modules(settings: Settings, run_id: int, name: str) -> None:
    """What a count leaves beside its rows: a model with a stem and a head."""
    parts = [("", "ResNet", 10.0, 2.0, 3.0), ("stem", "Conv2d", 4.0, 1.5, 2.0), ("head", "Linear", 6.0, 0.5, 1.0)]
    fields = ("path", "type", "mparams", "gmacs", "macts")
    counts = [
        ModuleCount(**dict(zip(fields, part, strict=True)), calls=1, output="1×1000").model_dump() for part in parts
    ]
    path = RunFiles(settings.runs_dir, run_id).dir / detail_name(*name.split(":"))
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(counts))


def counted(store: Store, settings: Settings, name: str = "timm:resnet18", **figures: object) -> int:
    """A finished count that has kept its modules."""
    run_id = store.enqueue(ProfileSpec(models=(name,)))
    finish(store, run_id, [profile_row(name.partition(":")[2], library=name.partition(":")[0], **figures)])
    write_modules(settings, run_id, name)
    return run_id


@pytest.mark.slow
def test_without_a_name_it_asks_for_one_and_opens_what_is_chosen() -> None:
    app = open_page(PAGE)
    assert not app.exception
    assert "Choose a model" in texts(app)
    assert len(app.selectbox(key="model_choice").options) == 7
    app.selectbox(key="model_choice").set_value("timm:resnet18").run()
    assert not app.exception
    assert app.query_params["name"] == "timm:resnet18"
    assert app.title[0].value == "resnet18"


@pytest.mark.slow
def test_an_unknown_name_is_said_with_what_is_near() -> None:
    app = opened("<i>resnet19</i>")
    assert "no model matches '<i>resnet19</i>'; closest: " in app.warning[0].value.replace("\\", "")
    assert app.selectbox(key="model_choice").value is None


@pytest.mark.slow
def test_the_head_says_what_it_costs_and_with_what_that_was_counted() -> None:
    app = opened("ViT-B-32", "Counts")
    assert app.selectbox(key="model_choice").value == "open_clip:ViT-B-32"
    figures = {metric.label: metric.value for metric in app.metric}
    assert figures["MACs (G)"] == "7.39"
    assert figures["Parameters (M)"] == "151"
    assert "torch 0.0.1 on 2026-11-20" in plainly(app)
    assert "open_clip, family clip_vit" in plainly(app)
    assert table(app, "gmacs") == [7.39]


@pytest.mark.slow
def test_an_accuracy_stands_on_the_page_of_the_model_with_its_classifier() -> None:
    rows = ["library,model,family,image_size,mparams,status"]
    for tag, mparams in {"": 33.2, ".in1k": 21.2, ".dist_in22k_ft_in1k": 21.2}.items():
        rows.append(f"timm,tiny_vit_21m_224{tag},tiny_vit,224,{mparams},ok")
    (Settings().catalog_dir / "timm.csv").write_text("\n".join(rows))
    app = opened("timm:tiny_vit_21m_224", "Counts")
    assert "ImageNet top-1 (%)" not in {metric.label for metric in app.metric}
    app = followed(app, plain("tiny_vit_21m_224.in1k"))
    figures = {metric.label: metric.value for metric in app.metric}
    assert (figures["Parameters (M)"], figures["ImageNet top-1 (%)"]) == ("21.2", "83.27")


@pytest.mark.slow
def test_what_is_incomplete_or_failed_says_so() -> None:
    assert "sort (2 calls)" in plainly(opened("odd_one"))
    app = opened("broken", "Memory")
    assert "RuntimeError: **no** <b>way</b>" in app.error[0].value.replace("\\", "")
    assert "could not be counted, so its memory cannot be estimated" in texts(app)


@pytest.mark.slow
def test_modules_are_counted_from_here_and_the_count_is_followed(store: Store) -> None:
    app = opened("resnet18")
    assert "The catalogue has no costs of single modules" in texts(app)
    app.button(key="model_count").click().run()
    assert not app.exception
    assert store.runs()[0].spec == ProfileSpec(models=("timm:resnet18",))
    assert app.query_params["run"] == "1"
    assert app.query_params["name"] == "resnet18"
    assert "next in the queue" in texts(app)
    assert [button.label for button in app.button if button.key == "cancel_1"] == ["Cancel"]


@pytest.mark.slow
def test_modules_of_the_latest_count_at_the_models_own_size_are_drawn(store: Store, settings: Settings) -> None:
    small = counted(store, settings, image_size="64")
    assert f"Counted in run {small} on" in plainly(opened("resnet18"))
    counted(store, settings)
    latest = counted(store, settings)
    counted(store, settings, image_size="64")
    finish(store, store.enqueue(ProfileSpec(models=("timm:resnet18",))), [profile_row("resnet18")])
    app = opened("resnet18", run=str(latest))
    assert f"Counted in run {latest} on" in plainly(app)
    (drawn,) = charts(app)
    assert drawn["data"][0]["labels"] == ["model", "stem", "head"]
    assert table(app, "module") == ["model", "\u2003stem", "\u2003head"]
    assert table(app, "parameters") == [10_000_000, 4_000_000, 6_000_000]
    assert table(app, "output") == ["1×1000"] * 3
    assert "modules_file_model_csv" in [button.key for button in app.get("download_button")]


@pytest.mark.slow
def test_memory_is_estimated_beside_what_there_is_and_was_measured(store: Store) -> None:
    known = {"host": "here", "platform": "Linux", "cpu": "x", "threads": 2, "memory_gb": 0.5, "date": "2026-11-20"}
    devices = (Device(name="cpu", model="x"), Device(name="cuda:0", model="y", memory_gb=80.0))
    store.save_machine(Machine.model_validate(known | {"devices": devices}))
    finish(store, queue_benchmark(store, "resnet18"), [benchmark_row("resnet18")])
    app = opened("resnet18", "Memory")
    body = plainly(app)
    # 46.8 MB of weights and 9.2 MB an image; half of both in half precision
    assert "this host, 500 MB: largest batch size of the table that should fit: float32 32, amp 32, bfloat16 64" in body
    assert "cuda:0 y, 80 GB: largest batch size of the table that should fit: float32 4096" in body
    assert "estimates from the catalogue's counts" in body
    assert table(app, "float32")[3] == pytest.approx((46.8 + 8 * 9.2) / 1000)
    assert table(app, "peak_gb") == [0.3]
    app.number_input(key="model_memory_gb").set_value(1.0).run()
    assert (
        "other device, 1 GB: largest batch size of the table that should fit: float32 64, amp 64, bfloat16 128"
        in plainly(app)
    )
    app.get_by_key("model_way").set_value("training, AdamW").run()
    assert not app.exception
    assert table(app, "float32")[0] == pytest.approx((4 * 46.8 + 20.7) / 1000)
    linked = opened("resnet18", "Memory", model_way="training, AdamW", model_memory_gb="1.0")
    assert table(linked, "float32") == table(app, "float32")
    assert "other device, 1 GB" in plainly(linked)
    assert "No timing on this machine has measured the peak" in texts(app)


@pytest.mark.slow
def test_published_figures_stand_with_their_publishers() -> None:
    app = opened("resnet18", "Published")
    (accuracies,) = [element.value for element in app.dataframe if "label" in element.value]
    assert accuracies["label"].iloc[0] == "ImageNet top-1"
    assert any(column.startswith("a1_in1k") for column in accuracies)
    assert "huggingface/pytorch-image-models" in plainly(app)
    best = accuracies.loc[0].drop(["label", "source"]).max()
    assert [metric.value for metric in app.metric if metric.label == "ImageNet top-1 (%)"] == [f"{best:.2f}"]
    assert "Measured by others on their machines" in plainly(app)
    assert "Timings here have TF32 and cuDNN's autotuning off unless they are asked for" in plainly(app)
    assert table(app, "setup")
    app = opened("odd_one", "Published")
    assert "No published accuracy of this model is shipped or imported" in texts(app)
    assert "No shipped table has a published speed" in texts(app)


@pytest.mark.slow
def test_every_timing_here_is_shown_over_time(store: Store) -> None:
    finish(store, queue_benchmark(store, "resnet*"), [benchmark_row("resnet18"), benchmark_row("resnet50")])
    rows = [benchmark_row("resnet18", "compile"), benchmark_row("resnet18", latency_ms=25.0, flags=("unstable",))]
    finish(store, queue_benchmark(store, "resnet18"), rows)
    finish(
        store, queue_benchmark(store, "broken"), [benchmark_row("broken", latency_ms=None, status="error", error="no")]
    )
    app = opened("resnet18", "Timed here")
    assert table(app, "latency_ms") == [20.0, 25.0, 20.0]
    assert table(app, "run") == ["2", "2", "1"]
    assert table(app, "flags") == ["", "unstable", ""]
    assert "3 rows of 2 runs." in texts(app)
    (drawn,) = charts(app)
    assert sorted(trace["name"] for trace in drawn["data"]) == ["compile", "eager"]
    app = opened("broken", "Timed here")
    assert table(app, "error") == ["no"]
    assert not charts(app)


@pytest.mark.slow
def test_a_note_says_that_older_timings_are_cut_off_although_newer_runs_have_no_rows(store: Store) -> None:
    finish(store, queue_benchmark(store, "resnet18"), [benchmark_row("resnet18", latency_ms=25.0)])
    for _ in range(by_model.LATEST - 1):
        store.request_cancel(queue_benchmark(store, "resnet18"))
    assert table(opened("resnet18", "Timed here"), "latency_ms") == [25.0]
    finish(store, queue_benchmark(store, "resnet18"), [benchmark_row("resnet18", latency_ms=20.0)])
    app = opened("resnet18", "Timed here")
    assert table(app, "latency_ms") == [20.0]
    assert f"1 row of 1 run. Only the latest {by_model.LATEST} runs of this model were searched." in texts(app)


@pytest.mark.slow
def test_a_note_says_that_older_trainings_are_cut_off(store: Store) -> None:
    for _ in range(history.LATEST - 1):
        queue_train(store, model="ViT-B-32")
    note = f"Only the latest {history.LATEST} trainings and the latest {history.LATEST} evaluations are shown."
    assert note not in texts(opened("ViT-B-32", "Trained here"))
    queue_train(store, model="ViT-B-32")
    assert note in texts(opened("ViT-B-32", "Trained here"))


@pytest.mark.slow
def test_without_timings_it_offers_to_time(store: Store) -> None:
    app = opened("resnet18", "Timed here")
    assert "No timings of this model yet" in texts(app)
    app = followed(app, "Time it")
    assert not app.exception
    assert app.multiselect(key="benchmark_models").value == ["timm:resnet18"]


@pytest.mark.slow
def test_trainings_and_evaluations_are_shown_with_their_best_figures(store: Store) -> None:
    run_id = queue_train(store, model="ViT-B-32", pretrained="openai")
    record(store, run_id, [train_row(epoch, model="ViT-B-32") for epoch in (1, 2, 3)])
    record(store, queue_evaluate(store, model="ViT-B-32"), [evaluate_row("zeroshot", model="ViT-B-32")])
    app = opened("ViT-B-32", "Trained here")
    assert table(app, "what") == ["evaluation", "fine-tune"]
    assert table(app, "zeroshot_top1") == [0.934, 0.934]
    assert "No trainings or evaluations" in texts(opened("ViT-L-14", "Trained here"))
    app = opened("resnet18", "Trained here")
    assert "Trained here" not in [tab.label for tab in app.tabs], "only CLIP is trained here"


@pytest.mark.slow
def test_commands_and_buttons_lead_to_forms_filled_with_the_model() -> None:
    app = opened("ViT-B-32", "Commands")
    commands = verbatim(app)
    assert "python -m engine profile --models open_clip:ViT-B-32" in commands
    assert "python -m engine benchmark --models open_clip:ViT-B-32 --variants eager,compile" in commands
    assert "python -m engine train --model ViT-B-32" in commands
    assert any(text.startswith("python -m engine evaluate --model ViT-B-32 --pretrained ") for text in commands)
    forms = [parse_qs(item.proto.query_string) for item in app.get("page_link") if item.proto.label == "Open the form"]
    assert {"benchmark_models": ["open_clip:ViT-B-32"], "benchmark_mode": ["training"]} in forms
    app = followed(app, "Profile")
    assert not app.exception
    assert app.multiselect(key="profile_models").value == ["open_clip:ViT-B-32"]


@pytest.mark.slow
def test_another_model_can_be_put_beside_it() -> None:
    app = opened("resnet18")
    assert app.button(key="model_compare").disabled
    assert "timm:resnet18" not in app.multiselect(key="model_others").options
    app.multiselect(key="model_others").set_value(["timm:resnet50"]).run()
    app.button(key="model_compare").click().run()
    assert not app.exception
    assert app.title[0].value != "resnet18"
    assert app.query_params["compare_models"] == "timm:resnet18,timm:resnet50"
