"""Report of one model: values checked by hand, with runs in a real store."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from itertools import accumulate
from math import log10
from pathlib import Path

import pandas as pd
import pytest

from engine.names import ModelNotFound
from engine.report import frames
from engine.report.catalog import catalog, model
from engine.report.export import model_card
from engine.report.figures import memory
from engine.report.timings import by_model
from engine.results import BenchmarkRow
from engine.settings import Settings
from engine.specs import BenchmarkSpec, ModelName, Refused
from engine.specs.evaluate import EvaluateSpec
from engine.specs.train import TrainSpec
from engine.store import Run, Store
from tests.support.clip import evaluate_row, queue_evaluate, queue_train, record, train_row
from tests.support.page import ENVIRONMENT, benchmark_row, finish, profile_row, queue, queue_benchmark

FAMILIES = {
    ModelName(name): family
    for family, names in {
        "resnet": ["timm:resnet18", "timm:resnet50", "torchvision:resnet50"],
        "clip_vit": ["open_clip:ViT-B-32"],
        "clip_rn": ["open_clip:RN50", "open_clip:RN50-quickgelu"],
    }.items()
    for name in names
}
ROW = pd.DataFrame(
    [
        {
            **{"name": "timm:resnet18", "library": "timm", "model": "resnet18", "image_size": "224", "status": "ok"},
            **{"mparams": 25.0, "gmacs": 4.0, "macts": 5.0, "weights_mb": 100.0, "inference_peak_mb": 150.0},
            **{"live_mb": 50.0, "kept_mb": 40.0, "uncounted": '{"native_batch_norm": 20}'},
        }
    ]
)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [("timm:resnet18", "timm:resnet18"), ("resnet18", "timm:resnet18"), ("ViT-B-32", "open_clip:ViT-B-32")],
)
def test_find_returns_the_model_of_a_name(pattern: str, name: str) -> None:
    assert model.find(pattern, FAMILIES) == name


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("resnet19", "no model matches 'resnet19'; closest: timm:resnet18"),
        ("resnet50", "write timm:resnet50 or torchvision:resnet50"),
        ("timm:*", "'timm:*' means 2 models (timm:resnet18, timm:resnet50), and this page shows one"),
        ("all", "means 6 models (timm:resnet18, timm:resnet50, torchvision:resnet50 and 3 more)"),
    ],
)
def test_name_of_no_or_several_models_is_refused_with_suggestions(pattern: str, message: str) -> None:
    with pytest.raises(ModelNotFound) as refused:
        model.find(pattern, FAMILIES)
    assert message in str(refused.value)


def test_names_over_200_characters_are_refused() -> None:
    with pytest.raises(Refused, match="at most 200 characters, this one 1,000"):
        model.find("x" * 1000, FAMILIES)


def test_towers_have_the_counts_of_the_catalogue() -> None:
    counted: dict[str, object] = {"mparams": 151.0, "gmacs": 7.4, "macts": 10.3}
    towers = {"image_mparams": 88.0, "image_gmacs": 4.4, "image_macts": 5.0, "text_mparams": 63.0, "text_gmacs": 3.0}
    frame = frames.towers(counted | towers | {"text_macts": 5.3, "other_mparams": 0.0, "other_gmacs": None})
    assert frame.to_dict("list") == {
        **{"tower": ["image", "text", "total"], "mparams": [88.0, 63.0, 151.0], "gmacs": [4.4, 3.0, 7.4]},
        "macts": [5.0, 5.3, 10.3],
    }


def accuracies(*rows: tuple[str, str, str, str, str, float]) -> pd.DataFrame:
    columns = ["library", "model", "pretrained", "image_size", "accuracy", "percent"]
    return pd.DataFrame(rows, columns=columns).assign(source=lambda frame: frame["library"] + "'s authors")


def test_published_accuracies_have_a_column_per_tag_and_size() -> None:
    published = accuracies(
        ("timm", "resnet18", "a1_in1k", "224", "imagenet_top1", 71.49),
        ("timm", "resnet18", "a1_in1k", "288", "imagenet_top1", 73.16),
        ("timm", "resnet18", "tv_in1k", "224", "imagenet_top1", 69.76),
        ("timm", "resnet18", "tv_in1k", "224", "imagenet_a_top1", 1.15),
        ("timm", "resnet50", "a1_in1k", "224", "imagenet_top1", 80.0),
    )
    of_model = model.published(published, ModelName("timm:resnet18"), FAMILIES)
    assert list(of_model["percent"]) == [71.49, 73.16, 69.76, 1.15]
    headline = model.headline(of_model)
    assert headline is not None
    assert headline["percent"] == 73.16
    assert model.headline(of_model[of_model["accuracy"] == "imagenet_a_top1"]) is None
    table = model.by_tag(of_model).set_index("label")
    assert list(table.columns) == ["a1_in1k at 224 px", "a1_in1k at 288 px", "tv_in1k at 224 px", "source"]
    assert list(table.index) == ["ImageNet top-1", "ImageNet-A top-1"]
    assert table.loc["ImageNet top-1", "a1_in1k at 288 px"] == 73.16
    assert table.loc["ImageNet-A top-1", "tv_in1k at 224 px"] == 1.15
    assert pd.isna(table.loc["ImageNet-A top-1", "a1_in1k at 224 px"])
    assert set(table["source"]) == {"timm's authors"}


def test_accuracies_of_two_activations_with_one_tag_are_not_averaged() -> None:
    published = accuracies(
        ("open_clip", "RN101", "openai", "", "zeroshot_imagenet_1k", 62.3),
        ("open_clip", "RN101-quickgelu", "openai", "", "zeroshot_imagenet_1k", 62.1),
    )
    table = model.by_tag(model.published(published, ModelName("open_clip:RN101"), FAMILIES))
    assert table["openai"].to_list() == [62.3]


def test_quickgelu_accuracies_are_used_only_without_quickgelu_model() -> None:
    published = accuracies(
        ("open_clip", "ViT-B-32-quickgelu", "openai", "", "zeroshot_imagenet_1k", 63.3),
        ("open_clip", "RN50-quickgelu", "openai", "", "zeroshot_imagenet_1k", 59.8),
    )
    assert list(model.published(published, ModelName("open_clip:ViT-B-32"), FAMILIES)["percent"]) == [63.3]
    assert model.published(published, ModelName("open_clip:RN50"), FAMILIES).empty
    assert list(model.published(published, ModelName("open_clip:RN50-quickgelu"), FAMILIES)["percent"]) == [59.8]


def test_requests_reproduce_the_values_of_a_model() -> None:
    published = accuracies(("open_clip", "ViT-B-32", "openai", "", "zeroshot_imagenet_1k", 63.3))
    of_model = model.published(published, ModelName("open_clip:ViT-B-32"), FAMILIES)
    requests = model.requests(ModelName("open_clip:ViT-B-32"), of_model)
    assert requests["Time eager against compile"] == BenchmarkSpec(
        models=("open_clip:ViT-B-32",), variants=("eager", "compile")
    )
    assert requests["Fine-tune it"] == TrainSpec(model="ViT-B-32", pretrained="openai")
    assert requests["Evaluate it"] == EvaluateSpec(model="ViT-B-32", checkpoint="openai")
    assert "Fine-tune it" not in model.requests(ModelName("open_clip:RN50"), of_model.head(0))
    assert {spec.kind for spec in model.requests(ModelName("timm:resnet18"), of_model.head(0)).values()} == {
        "profile",
        "benchmark",
    }


@pytest.mark.parametrize(
    ("way", "precision", "device", "mb"),
    [
        ("inference", "float32", "cpu", 100 + 50 * 4),
        # a copy of the weights, and values in half precision; an accelerator has workspaces and gaps besides
        ("inference", "amp", "cpu", 100 * 1.5 + 50 * 4 * 2.1 / 4),
        ("inference", "amp", "cuda:0", 100 * 1.5 + 50 * 4 * 3.2 / 4),
        ("inference", "bfloat16", "cuda:0", (100 + 50 * 4) / 2),
        ("training, SGD", "float32", "cpu", 100 * 2 + 4 * 40),  # weights, gradients; what the backward pass needs
        ("training, SGD", "amp", "cpu", 100 * 2 + 4 * 40 * 2.1 / 4),  # most of the kept values in half precision
        ("training, SGD", "amp", "cuda:0", 100 * 2 + 4 * 40 * 2.3 / 4),
        ("training, AdamW", "float32", "cpu", 100 * 4 + 2 * 5 * 4 * 4),
        ("training, AdamW", "float16", "cpu", (100 * 4 + 2 * 5 * 4 * 4) / 2),
    ],
)
def test_memory_estimate_equals_hand_computation(way: str, precision: str, device: str, mb: float) -> None:
    estimated = memory.estimate(ROW, way, device).set_index("batch_size")
    assert list(estimated.index) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
    assert estimated.loc[4, precision] == pytest.approx(mb / 1000)


@pytest.mark.parametrize(("device", "inference", "training"), [("cpu", 2.6, 2.3), ("cuda:0", 3.6, 3.0)])
def test_amp_keeps_more_values_in_float32_without_batch_norm(device: str, inference: float, training: float) -> None:
    """Autocast computes batch norm in half precision, and layer norms and what is added to them in float32."""
    row = ROW.assign(uncounted='{"native_layer_norm": 20}')
    forward, step = (
        memory.estimate(row, way, device).set_index("batch_size") for way in ("inference", "training, SGD")
    )
    assert forward.loc[4, "amp"] == pytest.approx((100 * 1.5 + 50 * inference) / 1000)
    assert step.loc[4, "amp"] == pytest.approx((100 * 2 + 40 * training) / 1000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision", "batch"),
    [
        *(("vit_tiny_patch16_224", "amp", batch) for batch in (1, 4)),  # most is a copy of the weights
        ("resnet18", "amp", 4),  # slow on CPUs without bfloat16
        ("convit_tiny", "float32", 8),  # most of the peak of one image does not grow with the batch
        ("lambda_resnet26rpt_256", "float32", 2),  # copies more for each of several images than for one
    ],
)
def test_memory_estimate_is_near_what_torch_allocates(name: str, precision: str, batch: int) -> None:
    import timm
    import torch

    catalogue = catalog.read(Settings().catalog_dir)
    counted = catalogue[catalogue["name"] == f"timm:{name}"].head(1)
    estimated = memory.estimate(counted, "inference", "cpu").set_index("batch_size").loc[batch, precision]
    network = timm.create_model(name).eval()
    size = int(counted["image_size"].iloc[0])
    images = torch.zeros(batch, 3, size, size)
    held = sum(tensor.nbytes for tensor in (*network.parameters(), *network.buffers(), images))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "amp"):
        network(images[:1])  # models keep some tensors from their first call
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiled,
        torch.no_grad(),
        torch.autocast("cpu", torch.bfloat16, enabled=precision == "amp"),
    ):
        network(images)
    allocations = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    allocations.sort(key=lambda event: event.start_ns())
    peak = held + max(accumulate(event.nbytes() for event in allocations))
    assert 0.96 * peak / 1e9 <= estimated < 1.25 * peak / 1e9


def test_largest_batch_that_fits_is_found_per_data_type() -> None:
    estimated = memory.estimate(ROW, "inference", "cuda:0")
    assert memory.largest(estimated, 0.31) == {"float32": 4, "amp": 4, "bfloat16": 8, "float16": 8}
    assert memory.largest(estimated, 0.09) == {"float32": None, "amp": None, "bfloat16": 1, "float16": 1}


def finished_run(store: Store, *rows: BenchmarkRow, date: str = "2026-11-20T10:00:00+00:00") -> Run:
    """Return a finished benchmark with `rows`, whose environment was recorded at `date`."""
    run_id = queue_benchmark(store, *dict.fromkeys(f"{row.library}:{row.model}" for row in rows))
    finish(store, run_id, list(rows))
    return replace(store.run(run_id), environment=ENVIRONMENT.model_copy(update={"date": date}))


def timings_of(store: Store, *rows: BenchmarkRow, date: str = "2026-11-20T10:00:00+00:00") -> pd.DataFrame:
    return by_model.of_run(finished_run(store, *rows, date=date), rows, "timm:resnet18")


@pytest.mark.slow
def test_timings_of_a_model_have_the_range_of_its_processes(store: Store) -> None:
    several_processes = benchmark_row("resnet18", flags=("unstable", "drifting"), spread=0.06)
    one_process = benchmark_row("resnet18", "compile", process_medians_ms=(18.0,), processes=1, spread=None)
    frame = timings_of(
        store,
        several_processes,
        benchmark_row("resnet50"),
        benchmark_row("resnet18", library="torchvision"),
        one_process,
    )
    assert list(frame["variant"]) == ["eager", "compile"]
    assert list(frame.loc[0, ["low_ms", "latency_ms", "high_ms"]]) == [19.5, 20.0, 20.4]
    assert frame.loc[0, "flags"] == "unstable, drifting"
    assert frame.loc[0, "spread_percent"] == pytest.approx(6.0)
    assert frame.loc[0, "where"] == "a cpu, 2 threads, on here"
    assert frame.loc[0, "torch"] == "2.15.0"
    assert frame.loc[0, "date"] == pd.Timestamp("2026-11-20T10:00:00Z")
    assert frame.loc[1, ["low_ms", "high_ms", "spread_percent"]].isna().all()


def test_timings_of_a_run_without_an_environment_have_the_date_of_its_request(store: Store) -> None:
    row = benchmark_row("resnet18")
    run = replace(finished_run(store, row), environment=None)
    line = by_model.of_run(run, [row], "timm:resnet18").iloc[0]
    assert line["date"] == run.created_at
    assert (line["where"], line["torch"]) == ("a cpu, 2 threads", "")


def test_timings_are_newest_first_with_labels_of_differences(store: Store) -> None:
    older = timings_of(store, benchmark_row("resnet18"), date="2026-10-01T00:00:00+00:00")
    newer = timings_of(store, benchmark_row("resnet18"), benchmark_row("resnet18", batch_size=64))
    no_timings = timings_of(store, benchmark_row("resnet50"))
    joined = by_model.together([older, no_timings, newer])
    assert list(joined["run"]) == [2, 2, 1]
    assert list(by_model.settings(joined)) == ["batch 8", "batch 64", "batch 8"]
    assert list(by_model.settings(older)) == ["inference, eager, batch 8, float32"]
    switched = timings_of(store, benchmark_row("resnet18", deterministic=True), benchmark_row("resnet18"))
    assert list(by_model.settings(switched)) == ["deterministic on", "deterministic off"]
    assert by_model.together([]).empty


@pytest.mark.slow
def test_plot_over_time_shows_ranges_of_processes_and_flags(store: Store) -> None:
    older = timings_of(store, benchmark_row("resnet18", flags=("unstable",)), date="2026-10-01T00:00:00+00:00")
    newer = timings_of(store, benchmark_row("resnet18", latency_ms=30.0, process_medians_ms=(30.0,)))
    (trace,) = by_model.over_time(by_model.together([newer, older])).data
    assert list(trace.y) == [20.0, 30.0]
    assert list(trace.marker.symbol) == ["circle-open", "circle"]
    assert list(trace.error_y.array) == pytest.approx([0.4, 0.0])
    assert list(trace.error_y.arrayminus) == pytest.approx([0.5, 0.0])
    settings = [benchmark_row("resnet18", batch_size=size) for size in (1, 2, 4)]
    legends = [by_model.over_time(timings_of(store, *settings[:count])).layout.legend for count in (2, 3)]
    assert [legend.orientation for legend in legends] == ["h", "v"], "three settings do not fit side by side"
    first, last = by_model.over_time(by_model.together([newer])).layout.xaxis.range
    assert (last - first).days == 2, "one timing has days on its axis, not a millisecond"


def test_runs_are_found_by_the_complete_name_of_a_model(store: Store) -> None:
    by_pattern = queue_benchmark(store, "resnet*")
    finish(store, by_pattern, [benchmark_row("resnet18")])
    for name in ("resnet18", "resnet18d", "my_resnet18", "resnet19", "wesnet18"):
        queue_benchmark(store, name)
    queue(store, "resnet18")
    assert [run.id for run in by_model.runs(store, "timm:resnet18", "benchmark", 9)] == [2, 1]
    assert [run.id for run in by_model.runs(store, "timm:resnet18", "benchmark", 1)] == [2]
    assert [run.id for run in by_model.runs(store, "timm:resnet18", "profile", 9)] == [7]


def test_memory_peak_is_of_the_device_if_recorded_else_of_the_process(store: Store) -> None:
    on_gpu = benchmark_row("resnet18", device="cuda:0", device_name="a GPU", device_peak_mb=250.0, batch_size=16)
    training = benchmark_row("resnet18", mode="training", optimizer="adamw", process_peak_mb=1500.0)
    tower = benchmark_row("resnet18", tower="image")
    peaks = memory.peaks(timings_of(store, on_gpu, benchmark_row("resnet18"), training, tower))
    assert list(peaks["way"]) == ["inference", "inference", "training, AdamW"]
    assert list(peaks["peak_gb"]) == [0.25, 0.3, 1.5]
    assert list(peaks["what"]) == ["allocated on the device", *["whole process, with PyTorch itself"] * 2]


def test_memory_peaks_of_training_are_labelled_by_optimizer(store: Store) -> None:
    rows = [benchmark_row("resnet18", mode="training", optimizer=name) for name in ("timm/adam", "sgd", "")]
    peaks = memory.peaks(timings_of(store, *rows))
    assert list(peaks["way"]) == ["training, timm/adam", "training, SGD", "training, SGD"]


def test_equal_memory_estimates_share_a_line_and_devices_are_marked(store: Store) -> None:
    peaks = memory.peaks(timings_of(store, benchmark_row("resnet18")))
    figure = memory.figure(memory.estimate(ROW, "inference", "cpu"), peaks, {"this host": 8.0})
    names = [trace.name for trace in figure.data]
    assert names[:3] == ["float32, estimated", "amp, estimated", "bfloat16, float16, estimated"]
    assert names[3] == "measured: whole process, with PyTorch itself"
    assert list(figure.data[3].x) == [8]
    assert list(figure.data[3].y) == [0.3]
    (note,) = figure.layout.annotations
    assert (note.text, note.y) == ("this host has 8 GB", pytest.approx(log10(8.0))), (
        "a position on a logarithmic axis is an exponent"
    )


@pytest.mark.parametrize(
    ("fields", "start", "what"),
    [
        ({}, "from random weights", "from scratch"),
        ({"pretrained": "/x/laion.pt"}, "from the weights laion.pt", "fine-tune"),
        ({"resume": "/runs/7/epoch_3.pt"}, "from the weights epoch_3.pt", "fine-tune"),
        ({"pretrained_image": True}, "from the weights pretrained image tower", "fine-tune"),
    ],
)
def test_initial_weights_are_stated(store: Store, fields: dict[str, object], start: str, what: str) -> None:
    run = store.run(queue_train(store, model="ViT-B-32", **fields))
    card = model_card.markdown(run, None)
    assert f"ViT-B-32, trained {start} with Model Vitals (run {run.id})." in card
    assert not re.search("/x/|/runs/", card), "no folder of this machine"
    assert list(runs_of_model(store, "open_clip:ViT-B-32")["what"]) == [what]


def test_model_card_names_the_zero_shot_data_and_no_folder_of_this_machine(store: Store) -> None:
    fields = {"zeroshot_data": "/x/birds", "loss": "distill", "distill_model": "RN50"}
    run = store.run(queue_train(store, distill_pretrained="/x/7/checkpoints/best.pt", **fields))
    card = model_card.markdown(run, train_row(2, image_to_text_median_rank=3.0))
    assert "Held out: 20 % of it. Zero-shot: birds.\n" in card
    assert "| Metric | Epoch 2, step 44 |" in card, "zero-shot is not of held-out pairs"
    assert "| Image → text median rank | 3 |" in card
    assert "| distill_pretrained | `best.pt` |" in card
    assert "/x/" not in card
    assert "\n| lr | `" in card, "it depends on other settings"
    assert "\n| precision | " not in card, "it has its default"
    rows = [train_row(1), train_row(2)]
    request = model_card.export(run, rows, Path("epoch_1.pt"), rows[0].step, Path("out"))
    assert "| Metric | Epoch 1, step 22 |" in request.card
    assert (request.checkpoint, request.folder) == (Path("epoch_1.pt"), Path("out").absolute())
    rows += [train_row(2, image_to_text_median_rank=7.0)]  # of a later attempt
    assert "| Image → text median rank | 7 |" in model_card.export(run, rows, Path("a.pt"), rows[1].step, Path()).card
    host = ENVIRONMENT.model_copy(update={"device_name": "", "cpu": "x|86"})
    assert "\n| device | x\\|86 |\n| date | 2026-11-20" in model_card.markdown(replace(run, environment=host), None)


def runs_of_model(store: Store, name: str) -> pd.DataFrame:
    runs = [(run, store.rows(run.id)) for run in store.runs()]
    return model.of_runs(runs, ModelName(name)).set_index("run")


def test_training_has_the_values_of_its_best_epoch(store: Store) -> None:
    fine_tuned = queue_train(store, model="ViT-B-32", pretrained="openai", data="synthetic")
    record(store, fine_tuned, [train_row(epoch, model="ViT-B-32") for epoch in (1, 2, 3)])
    unmarked = queue_train(store, model="ViT-B-32")
    record(store, unmarked, [train_row(3, model="ViT-B-32")])
    untrained = queue_train(store, model="ViT-B-32")
    record(store, untrained, [train_row(1, model="ViT-B-32").model_copy(update={"epoch": 0, "step": 0, "best": False})])
    other_model = queue_train(store, model="RN50")
    teacher = queue_train(store, model="RN50", loss="distill", distill_model="ViT-B-32", distill_pretrained="openai")
    frame = runs_of_model(store, "open_clip:ViT-B-32")
    assert list(frame.index) == [teacher, untrained, unmarked, fine_tuned]
    assert list(frame["what"]) == ["taught RN50", "from scratch", "from scratch", "fine-tune"]
    assert list(frame.loc[fine_tuned, ["zeroshot_top1", "clip_val_loss", "epochs", "data"]]) == [
        *(0.934, 1.75, 3),
        "synthetic",
    ]
    assert frame.loc[fine_tuned, "begins_with"] == "openai"
    assert frame.loc[unmarked, "zeroshot_top1"] == 0.5
    assert frame.loc[untrained, [*model.MAIN_SHARES, "clip_val_loss"]].isna().all(), "the initial weights are no epoch"
    store.request_cancel(other_model)  # otherwise it would run first
    record(store, teacher, [train_row(epoch, model="RN50") for epoch in (1, 2)])
    distillation = runs_of_model(store, "open_clip:ViT-B-32").loc[teacher]
    assert distillation[[*model.MAIN_SHARES, "clip_val_loss"]].isna().all(), (
        "the values of a distillation belong to the student"
    )
    assert (distillation["epochs"], distillation["seconds"]) == (2, 6.0)
    assert runs_of_model(store, "open_clip:RN50").loc[teacher, "zeroshot_top1"] == 0.934


def test_evaluation_has_the_values_of_its_tasks(store: Store) -> None:
    run_id = queue_evaluate(store, model="ViT-B-32", checkpoint="openai", tasks=("retrieval", "zeroshot"))
    rows = [evaluate_row("retrieval"), evaluate_row("zeroshot"), evaluate_row("linear-probe", acc1=0.97)]
    record(store, run_id, [*rows, evaluate_row("zeroshot", status="error", error="no", acc1=0.1)])
    line = runs_of_model(store, "open_clip:ViT-B-32").loc[run_id]
    assert line["what"] == "evaluation"
    assert list(line[["zeroshot_top1", "linear_probe_top1", "image_to_text_r1", "text_to_image_r1"]]) == [
        *(0.934, 0.97, 0.91, 0.25)
    ]
    assert line["seconds"] == 8.0
    several = queue_evaluate(store, model="ViT-B-32", csv_class_separator=";")
    record(store, several, [evaluate_row("zeroshot", acc1=None, mean_average_precision=0.4), evaluate_row("retrieval")])
    assert runs_of_model(store, "open_clip:ViT-B-32").loc[several, "mean_average_precision"] == 0.4
    assert line["date"] <= datetime.now(UTC)
    assert runs_of_model(store, "open_clip:RN50").empty


def test_rows_of_other_kinds_are_omitted_from_timings(store: Store) -> None:
    run = finished_run(store, benchmark_row("resnet18"))
    assert by_model.of_run(run, [profile_row("resnet18")], "timm:resnet18").empty
