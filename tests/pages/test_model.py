"""Tests of the page of a model with AppTest. Runs stay queued, and tests store the results as a worker would."""

import json
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from streamlit.testing.v1 import AppTest

from engine.report.timings import by_model
from engine.results import LOW_MEMORY, Device, Machine, ModuleCount, detail_name
from engine.settings import Settings
from engine.specs import ProfileSpec
from engine.store import State, Store
from engine.store.files import RunFiles
from pages.model import history
from pages.shared import table
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
    write_catalogue,
)

PAGE = "model/page.py"

# The scheduler outlives the process that starts it, so the warning about a running subprocess is expected.
pytestmark = [
    pytest.mark.usefixtures("own_world"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


def open_model(name: str, part: str = "Modules", **query: str) -> AppTest:
    app = open_page(PAGE, name=name, model_part=part, **query)
    assert not app.exception
    return app


def plain_text(app: AppTest) -> str:
    return texts(app).replace("\\", "")


def column_values(app: AppTest, column: str) -> list[object]:
    """Return the values of a column that exactly one table has."""
    (frame,) = [element.value for element in app.dataframe if column in element.value]
    return list(frame[column])


def write_modules(settings: Settings, run_id: int, name: str) -> None:
    """Write the file of modules of a count: a model with a stem and a head."""
    parts = [("", "ResNet", 10.0, 2.0, 3.0), ("stem", "Conv2d", 4.0, 1.5, 2.0), ("head", "Linear", 6.0, 0.5, 1.0)]
    fields = ("path", "type", "mparams", "gmacs", "macts")
    counts = [
        ModuleCount(**dict(zip(fields, part, strict=True)), calls=1, output="1×1000").model_dump() for part in parts
    ]
    path = RunFiles(settings.runs_dir, run_id).dir / detail_name(*name.split(":"))
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(counts))


def store_count(store: Store, settings: Settings, name: str = "timm:resnet18", **figures: object) -> int:
    """Store a finished count with its file of modules, and return its run id."""
    run_id = store.enqueue(ProfileSpec(models=(name,)))
    finish(store, run_id, [profile_row(name.partition(":")[2], library=name.partition(":")[0], **figures)])
    write_modules(settings, run_id, name)
    return run_id


@pytest.mark.slow
def test_page_without_a_name_asks_for_a_model_and_opens_the_choice() -> None:
    app = open_page(PAGE)
    assert not app.exception
    assert "Choose a model" in texts(app)
    assert len(app.selectbox(key="model_choice").options) == 7
    app.selectbox(key="model_choice").set_value("timm:resnet18").run()
    assert not app.exception
    assert app.query_params["name"] == "timm:resnet18"
    assert app.title[0].value == "resnet18"


@pytest.mark.slow
def test_unknown_name_shows_the_closest_names() -> None:
    app = open_model("<i>resnet19</i>")
    assert "no model matches '<i>resnet19</i>'; closest: " in app.warning[0].value.replace("\\", "")
    assert app.selectbox(key="model_choice").value is None


@pytest.mark.slow
def test_header_shows_costs_and_how_they_were_counted() -> None:
    app = open_model("ViT-B-32", "Counts")
    assert app.selectbox(key="model_choice").value == "open_clip:ViT-B-32"
    figures = {metric.label: metric.value for metric in app.metric}
    assert figures["MACs (G)"] == "7.39"
    assert figures["Parameters (M)"] == "151"
    assert "torch 0.0.1 on 2026-11-20" in plain_text(app)
    assert "open_clip, family clip_vit" in plain_text(app)
    assert column_values(app, "gmacs") == [7.39]


@pytest.mark.slow
def test_accuracy_is_shown_only_for_the_matching_classifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ["library,model,family,image_size,mparams,status"]
    for tag, mparams in {"": 33.2, ".in1k": 21.2, ".dist_in22k_ft_in1k": 21.2}.items():
        rows.append(f"timm,tiny_vit_21m_224{tag},tiny_vit,224,{mparams},ok")
    catalogue = write_catalogue(tmp_path / "catalog")
    (catalogue / "timm.csv").write_text("\n".join(rows))
    monkeypatch.setenv("VITALS_CATALOG_DIR", str(catalogue))
    app = open_model("timm:tiny_vit_21m_224", "Counts")
    assert "ImageNet top-1 (%)" not in {metric.label for metric in app.metric}
    app = followed(app, plain("tiny_vit_21m_224.in1k"))
    figures = {metric.label: metric.value for metric in app.metric}
    assert (figures["Parameters (M)"], figures["ImageNet top-1 (%)"]) == ("21.2", "83.27")


@pytest.mark.slow
def test_incomplete_and_failed_counts_are_marked() -> None:
    assert "sort (2 calls)" in plain_text(open_model("odd_one"))
    app = open_model("broken", "Memory")
    assert "RuntimeError: **no** <b>way</b>" in app.error[0].value.replace("\\", "")
    assert "could not be counted, so its memory cannot be estimated" in texts(app)


@pytest.mark.slow
def test_memory_that_is_counted_too_low_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_catalogue(tmp_path / "catalog") / "timm.csv"
    monkeypatch.setenv("VITALS_CATALOG_DIR", str(path.parent))
    path.write_text(path.read_text().replace("20.7,True,{},[]", f'20.7,True,{{}},"[""{LOW_MEMORY}""]"'))
    (warning,) = open_model("resnet18").warning
    assert (warning.value.replace("\\", ""), warning.proto.title) == (LOW_MEMORY, "Memory of training")
    assert not open_model("resnet50").warning


@pytest.mark.slow
def test_button_counts_modules_and_shows_the_progress(store: Store) -> None:
    app = open_model("resnet18")
    assert "The catalogue has no costs of single modules" in texts(app)
    app.button(key="model_count").click().run()
    assert not app.exception
    assert store.runs()[0].spec == ProfileSpec(models=("timm:resnet18",))
    assert app.query_params["run"] == "1"
    assert app.query_params["name"] == "resnet18"
    assert "next in the queue" in texts(app)
    app.button(key="cancel_1").click().run()  # together with its page, as after a change of the form
    assert not app.exception
    assert store.run(1).state is State.CANCELLED


@pytest.mark.slow
def test_names_of_downloads_state_the_image_size(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []
    monkeypatch.setattr(table, "download", lambda _label, _content, file_name, **_more: names.append(file_name))
    store_count(store, settings, image_size="64")
    for part in ("Modules", "Memory"):
        open_model("resnet18", part)
    csv_names = [name for name in names if name.endswith(".csv")]
    assert csv_names == ["resnet18-64-batch1-modules.csv", "resnet18-224-inference-memory.csv"]


@pytest.mark.slow
def test_modules_come_from_the_latest_count_at_the_default_size(store: Store, settings: Settings) -> None:
    store_count(store, settings, num_classes=10)
    assert "The catalogue has no costs of single modules" in texts(open_model("resnet18")), "that is another model"
    small_count = store_count(store, settings, image_size="64")
    assert f"Counted in run {small_count} on" in plain_text(open_model("resnet18"))
    store_count(store, settings)
    latest = store_count(store, settings)
    store_count(store, settings, image_size="64")
    finish(store, store.enqueue(ProfileSpec(models=("timm:resnet18",))), [profile_row("resnet18")])
    app = open_model("resnet18", run=str(latest))
    assert f"Counted in run {latest} on" in plain_text(app)
    (chart,) = charts(app)
    assert chart["data"][0]["labels"] == ["model", "stem", "head"]
    assert column_values(app, "module") == ["model", "\u2003stem", "\u2003head"]
    assert column_values(app, "parameters") == [10_000_000, 4_000_000, 6_000_000]
    assert column_values(app, "output") == ["1×1000"] * 3
    assert "modules_file_model_csv" in [button.key for button in app.get("download_button")]


@pytest.mark.slow
def test_memory_estimates_are_beside_device_memory_and_measured_peaks(store: Store) -> None:
    machine = {"host": "here", "platform": "Linux", "cpu": "x", "threads": 2, "memory_gb": 0.5, "date": "2026-11-20"}
    devices = (Device(name="cpu", model="x"), Device(name="cuda:0", model="y", memory_gb=80.0))
    store.save_machine(Machine.model_validate(machine | {"devices": devices}))
    rows = [benchmark_row("resnet18"), benchmark_row("resnet18", image_size="288", process_peak_mb=999.0)]
    finish(store, queue_benchmark(store, "resnet18"), rows)
    app = open_model("resnet18", "Memory")
    text = plain_text(app)
    # 46.8 MB of weights and 9.2 MB per image; half of both in half precision; in amp 70.2 MB and, on a CPU, 5.98 MB
    assert "This host, 500 MB: largest batch size of the table that should fit: float32 32, amp 64, bfloat16 64" in text
    assert "cuda:0 y, 80 GB: largest batch size of the table that should fit: float32 4,096" in text
    assert "estimates from the catalogue's counts" in text
    assert "The line of amp is for an accelerator" in text
    assert column_values(app, "float32")[3] == pytest.approx((46.8 + 8 * 9.2) / 1000)
    assert column_values(app, "peak_gb") == [0.3]
    app.number_input(key="model_memory_gb").set_value(1.0).run()
    assert (
        "Other device, 1 GB: largest batch size of the table that should fit: float32 64, amp 64, bfloat16 128"
        in plain_text(app)
    )
    app.get_by_key("model_way").set_value("training, AdamW").run()
    assert not app.exception
    assert column_values(app, "float32")[0] == pytest.approx((4 * 46.8 + 20.7) / 1000)
    linked = open_model("resnet18", "Memory", model_way="training, AdamW", model_memory_gb="1.0")
    assert column_values(linked, "float32") == column_values(app, "float32")
    assert "Other device, 1 GB" in plain_text(linked)
    assert "No timing on this machine has measured the peak" in texts(app)


@pytest.mark.slow
def test_published_values_are_shown_with_their_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_model("resnet18", "Published")
    (accuracies,) = [element.value for element in app.dataframe if "label" in element.value]
    assert accuracies["label"].iloc[0] == "ImageNet top-1"
    assert any(column.startswith("a1_in1k") for column in accuracies)
    assert "huggingface/pytorch-image-models" in plain_text(app)
    best = accuracies.loc[0].drop(["label", "source"]).max()
    assert [metric.value for metric in app.metric if metric.label == "ImageNet top-1 (%)"] == [f"{best:.2f}"]
    assert "Measured by others on their machines" in plain_text(app)
    assert "Timings here have TF32 and cuDNN's autotuning off unless they are asked for" in plain_text(app)
    (speeds,) = [element.value for element in app.dataframe if "setup" in element.value]
    assert speeds["samples_per_s"].is_monotonic_decreasing
    assert len(speeds) > 1
    path = write_catalogue(tmp_path / "catalog") / "timm.csv"
    path.with_name("torchvision.csv").write_text(path.read_text().replace("timm,resnet", "torchvision,resnet"))
    monkeypatch.setenv("VITALS_CATALOG_DIR", str(path.parent))
    for name in ("timm:odd_one", "torchvision:resnet18"):  # timm has another model of the name resnet18
        app = open_model(name, "Published")
        assert "No published accuracy of this model is shipped or imported" in texts(app)
        assert "No shipped table has a published speed" in texts(app)


@pytest.mark.slow
def test_all_timings_of_the_model_are_shown(store: Store) -> None:
    finish(store, queue_benchmark(store, "resnet*"), [benchmark_row("resnet18"), benchmark_row("resnet50")])
    rows = [benchmark_row("resnet18", "compile"), benchmark_row("resnet18", latency_ms=25.0, flags=("unstable",))]
    finish(store, queue_benchmark(store, "resnet18"), rows)
    finish(
        store, queue_benchmark(store, "broken"), [benchmark_row("broken", latency_ms=None, status="error", error="no")]
    )
    app = open_model("resnet18", "Timed here")
    assert column_values(app, "latency_ms") == [20.0, 25.0, 20.0]
    assert column_values(app, "run") == ["2", "2", "1"]
    assert column_values(app, "flags") == ["", "unstable", ""]
    assert "3 rows of 2 runs." in texts(app)
    (chart,) = charts(app)
    assert sorted(trace["name"] for trace in chart["data"]) == ["compile", "eager"]
    app = open_model("broken", "Timed here")
    assert column_values(app, "error") == ["no"]
    assert not charts(app)


def test_table_of_timings_has_every_setting_in_which_they_differ(store: Store) -> None:
    changes: dict[str, object] = {"num_classes": 10, "in_chans": 4, "model_kwargs": '{"depth": 2}', "image_size": "160"}
    changes |= {"context_length": 16, "cudnn_benchmark": True, "deterministic": True, "cache": "cold"}
    changes |= {"mode": "training", "optimizer": "adamw", "tower": "image"}
    finish(store, queue_benchmark(store, "resnet18"), [benchmark_row("resnet18"), benchmark_row("resnet18", **changes)])
    (table,) = open_model("resnet18", "Timed here").dataframe
    assert set(by_model.SETTING_FORMATS) <= set(table.value)


@pytest.mark.slow
def test_note_says_that_only_the_latest_benchmark_runs_are_searched(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "BENCHMARKS", 5)
    finish(store, queue_benchmark(store, "resnet18"), [benchmark_row("resnet18", latency_ms=25.0)])
    for _ in range(history.BENCHMARKS - 1):
        store.request_cancel(queue_benchmark(store, "resnet18"))
    assert column_values(open_model("resnet18", "Timed here"), "latency_ms") == [25.0]
    finish(store, queue_benchmark(store, "resnet18"), [benchmark_row("resnet18", latency_ms=20.0)])
    app = open_model("resnet18", "Timed here")
    assert column_values(app, "latency_ms") == [20.0]
    assert f"1 row of 1 run. Only the latest {history.BENCHMARKS} runs of this model were searched." in texts(app)


@pytest.mark.slow
def test_note_says_that_only_the_latest_trainings_are_shown(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "LATEST", 5)
    for _ in range(history.LATEST - 1):
        queue_train(store, model="ViT-B-32")
    note = f"Only the latest {history.LATEST} trainings and the latest {history.LATEST} evaluations are shown."
    assert note not in texts(open_model("ViT-B-32", "Trained here"))
    queue_train(store, model="ViT-B-32")
    assert note in texts(open_model("ViT-B-32", "Trained here"))


@pytest.mark.slow
def test_page_without_timings_offers_to_time_the_model(store: Store) -> None:
    app = open_model("resnet18", "Timed here")
    assert "No timings of this model yet" in texts(app)
    app = followed(app, "Time it")
    assert not app.exception
    assert app.multiselect(key="benchmark_models").value == ["timm:resnet18"]


@pytest.mark.slow
def test_trainings_and_evaluations_show_their_best_values(store: Store) -> None:
    run_id = queue_train(store, model="ViT-B-32", pretrained="openai")
    record(store, run_id, [train_row(epoch, model="ViT-B-32") for epoch in (1, 2, 3)])
    record(store, queue_evaluate(store, model="ViT-B-32"), [evaluate_row("zeroshot", model="ViT-B-32")])
    failed = [evaluate_row("zeroshot", model="ViT-B-32", status="error", acc1=None)]
    record(store, queue_evaluate(store, model="ViT-B-32"), failed)
    app = open_model("ViT-B-32", "Trained here")
    assert column_values(app, "what") == ["evaluation", "evaluation", "fine-tune"]
    assert column_values(app, "state") == ["all failed", "finished", "finished"]
    assert column_values(app, "zeroshot_top1")[1:] == [93.4, 93.4]
    assert "No trainings or evaluations" in texts(open_model("ViT-L-14", "Trained here"))
    app = open_model("resnet18", "Trained here")
    assert "Trained here" not in [tab.label for tab in app.tabs], "only CLIP models can be trained"


@pytest.mark.slow
def test_commands_and_links_contain_the_model() -> None:
    app = open_model("ViT-B-32", "Commands")
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
def test_model_can_be_compared_with_another() -> None:
    app = open_model("resnet18")
    assert app.button(key="model_compare").disabled
    assert "timm:resnet18" not in app.multiselect(key="model_others").options
    app.multiselect(key="model_others").set_value(["timm:resnet50"]).run()
    app.button(key="model_compare").click().run()
    assert not app.exception
    assert app.title[0].value != "resnet18"
    assert app.query_params["compare_models"] == "timm:resnet18,timm:resnet50"
