"""Tests of the Train page with AppTest. Runs stay queued, and tests store the results."""

import io
import json
import re
import shlex
import weakref
import zipfile
from base64 import b64encode
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from engine.cli import clip
from engine.datasets import Pairs, note_on_repeats, open_pairs, unpack, with_classes_split
from engine.results import Metric, Progress
from engine.results.answers import Prospect
from engine.settings import Settings
from engine.specs import Refused
from engine.specs.fields.clip import DataKind
from engine.specs.questions import Augment, Export, Match, Outlook
from engine.specs.train import TrainSpec
from engine.store import State, Store, attempts, queue
from engine.store.copies import mirror
from engine.store.files import RunFiles
from pages.clip import curves, uploads
from pages.clip import data as clip_data
from pages.clip.curves import FOLDED
from pages.shared import rerun
from pages.shared.form import link as form_link
from pages.shared.form.command import command
from pages.shared.form.labels import default_hint
from pages.train.results import _evaluation
from tests.support.clip import (
    ENVIRONMENT,
    curve_points,
    queue_evaluate,
    queue_train,
    record,
    train_row,
    write_checkpoints,
    write_csv,
    write_images,
)
from tests.support.command import parsed
from tests.support.data import encoded, write_classes
from tests.support.page import Answering, charts, followed, further, open_page, texts, ticked, unfold, verbatim
from tests.support.training import TINY

PAGE = "train/page.py"

# The scheduler outlives the process that starts it, so the warning about a running subprocess is expected.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("own_world"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


@pytest.fixture
def data_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder, allow runs to read data from it, and return it."""
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.setenv("VITALS_DATA_ROOTS", str(folder))
    return folder


def plain_text(app: AppTest) -> str:
    return texts(app).replace("\\", "")


def test_first_visit_shows_the_digits_and_the_planned_training(store: Store) -> None:
    app = open_page(PAGE)
    assert not app.exception
    assert ticked(app) == ["Digits in a minute"]
    page_text = plain_text(app)
    assert "1,797 pairs; 7,188 captions, 40 distinct; 10 classes; images 32 × 32 px" in page_text
    assert "Pairs per class: zero 178, one 182" in page_text
    assert len(app.get("image")) == 10, "samples"
    assert ":green[:material/check_circle:] 1,438 pairs to train on, 359 held out." in page_text
    assert "330 steps of 64 pairs: 22 steps an epoch, 15 epochs." in page_text
    assert "The learning rate rises to 0.001 within 33 steps, then falls to 0." in page_text
    assert "Trains digits-clip on digits for 330 steps on cpu" in page_text
    assert verbatim(app)[0] == "python -m engine train"
    assert app.selectbox(key="train_model").options[:2] == ["digits-clip", "ViT-B-32"]
    assert app.number_input(key="train_lr").step == 1e-5
    app.button(key="train_go").click().run()
    assert not app.exception
    assert store.runs()[0].spec == TrainSpec(precision="fp32")
    assert app.query_params["run"] == "1"
    assert "No results yet" in texts(app)


def test_presets_fill_the_train_form(store: Store) -> None:
    app = open_page(PAGE)
    app.button(key="train_preset_One batch, to check").click().run()
    assert not app.exception
    assert ticked(app) == ["One batch, to check"]
    page_text = plain_text(app)
    assert "50 steps of 64 pairs: the same batch each time" in page_text
    assert "Neither retrieval nor zero-shot accuracy is measured" in page_text
    app.button(key="train_preset_Fine-tune gently").click().run()
    assert not app.exception
    page_text = plain_text(app)
    assert "The image tower is locked but has no trained weights: it stays random. Choose initial weights" in page_text
    assert "rises to 1e-05" in page_text
    app.button(key="train_go").click().run()
    spec = store.runs()[0].spec
    assert isinstance(spec, TrainSpec)
    assert (spec.lr, spec.epochs, spec.lock_image, spec.overfit) == (1e-5, 5, True, False)
    app.selectbox(key="train_model").set_value("ViT-B-32").run()
    app.selectbox(key="train_pretrained").set_value("openai").run()
    assert "it stays random" not in plain_text(app)


def test_form_offers_only_weights_of_the_chosen_model(store: Store, settings: Settings) -> None:
    run_id = queue_train(store)
    folder = RunFiles(settings.runs_dir, run_id).dir
    write_checkpoints(folder, "best.pt", "epoch_1.pt")
    record(store, run_id, [train_row(1), Progress(done=22, total=330)])
    app = open_page(PAGE)
    path = str(folder / "checkpoints" / "epoch_1.pt")
    assert app.selectbox(key="train_pretrained").options == ["best of run 1", path]
    app.selectbox(key="train_model").set_value("ViT-B-32").run()
    assert app.selectbox(key="train_pretrained").options == ["openai", "laion2b_e16"]
    app = open_page(PAGE, train_model="ViT-B-32", train_pretrained="best of run 1")
    assert "run 1 trained digits-clip, not ViT-B-32: choose digits-clip as the model" in plain_text(app)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"train_data": "nowhere.csv"}, "there is no nowhere.csv"),
        ({"train_val_data": "nowhere.csv"}, "Held-out data: there is no nowhere.csv"),
        ({"train_epochs": "2", "train_steps": "3"}, "give epochs or steps, not both"),
    ],
)
def test_invalid_settings_show_an_error_before_the_start(query: dict[str, str], message: str) -> None:
    app = open_page(PAGE, **query)
    assert not app.exception
    assert message in plain_text(app)
    assert app.button(key="train_go").disabled


def test_model_too_large_for_the_memory_shows_an_error(store: Store, answers: Answering) -> None:
    from engine.results import Device, Machine

    known = {"host": "here", "platform": "Linux", "cpu": "x", "threads": 2, "memory_gb": 2.0, "date": "2026-11-20"}
    store.save_machine(Machine.model_validate(known | {"devices": (Device(name="cpu", model="x"),)}))
    answer_outlook(answers, peak_mb=5770.0, state_mb=2420.0)
    app = open_page(PAGE, train_model="ViT-B-32")
    assert "Memory: about 5.77 GB: 2.42 GB for weights, gradients and optimizer" in plain_text(app)
    assert "The device has 2 GB" in plain_text(app)
    assert app.button(key="train_go").disabled


def test_unreadable_images_are_left_out_before_the_held_out_split(data_root: Path) -> None:
    names = [f"image_{n}.png" for n in range(24)]
    write_images(data_root, *names)
    captions = [["filepath", "title"], *([name, f"a picture of {name}"] for name in [*names, *"abcdefghijkl"])]
    app = open_page(PAGE, train_data=str(write_csv(data_root / "pairs.csv", captions)), train_batch_size="3")
    assert not app.exception
    assert "12 of 36 images opened cannot be read" in plain_text(app)
    assert "19 pairs to train on, 5 held out" in plain_text(app), "24 readable pairs, a fifth held out"
    captions = [["filepath", "title"], *([name, f"a picture of {name}"] for name in "abcdefghijkl")]
    app = open_page(PAGE, train_data=str(write_csv(data_root / "none.csv", captions)))
    assert not app.exception
    assert "12 of 12 images opened cannot be read" in plain_text(app)
    assert "pairs to train on" not in plain_text(app)
    assert app.button(key="train_go").disabled


def test_uploaded_images_that_cannot_be_read_are_named_before_the_start(store: Store) -> None:
    names = [*(f"{number}.png" for number in range(38)), "a-cut.png", "b-cut.png"]
    content = io.BytesIO(zip_of_images(*names[:38]))
    with zipfile.ZipFile(content, "a") as archive:
        for name in names[38:]:  # the beginning of a PNG file, which passes the check of the upload
            archive.writestr(name, archive.read("0.png")[:60])
        archive.writestr("pairs.csv", "filepath,title\n" + "".join(f"{name},picture {name}\n" for name in names))
    app = open_page(PAGE)
    app.file_uploader(key="train_upload").set_value(("pairs.zip", content.getvalue(), "application/zip")).run()
    assert not app.exception
    warning = r"2 of 40 images opened cannot be read: \S+a-cut\.png .*, \S+b-cut\.png .*\. They are left out"
    assert re.search(warning, plain_text(app))
    unreadable = unfold(app, "2 of 40 images opened cannot be read").dataframe[0].value
    assert [Path(name).name for name in unreadable["image"]] == names[38:]
    assert store.runs() == []


def test_user_data_are_summarized_and_broken_images_are_named(store: Store, data_root: Path) -> None:
    names = [f"image_{n}.png" for n in range(39)]
    write_images(data_root, *names, "broken.png")
    lines = [["filepath", "title"], *([name, f"a picture of <b>{name}</b>"] for name in [*names, "broken.png"])]
    path = write_csv(data_root / "pairs.csv", lines)
    app = open_page(PAGE, train_data=str(path))
    assert not app.exception
    page_text = plain_text(app)
    assert "40 pairs; 40 captions, all distinct; no classes" in page_text
    assert "1 of 40 images opened cannot be read" in page_text
    assert "broken.png" in page_text
    unreadable = unfold(app, "1 of 40 images opened cannot be read").dataframe[0].value
    assert [Path(name).name for name in unreadable["image"]] == ["broken.png"]
    assert "31 pairs to train on, 8 held out" in page_text
    assert "Retrieval among the pairs held out is measured" in page_text
    app.button(key="train_go").click().run()
    assert not app.exception
    spec = store.runs()[0].spec
    assert isinstance(spec, TrainSpec)
    assert spec.data == str(path)


@pytest.mark.slow
def test_data_with_only_equal_captions_are_refused(data_root: Path) -> None:
    write_images(data_root, *(f"{n}.png" for n in range(8)))
    path = write_csv(data_root / "pairs.csv", [["filepath", "title"], *([f"{n}.png", "an image"] for n in range(8))])
    app = open_page(PAGE, train_data=str(path))
    assert "All captions are equal" in plain_text(app)
    assert app.button(key="train_go").disabled


def zip_of_images(*names: str) -> bytes:
    content = io.BytesIO()
    picture = io.BytesIO()
    from PIL import Image

    Image.new("RGB", (16, 16), (200, 80, 40)).save(picture, "PNG")
    with zipfile.ZipFile(content, "w") as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name), picture.getvalue())  # equal bytes each time, without the time
    return content.getvalue()


def test_uploaded_zip_becomes_the_training_data(store: Store, settings: Settings) -> None:
    app = open_page(PAGE)
    content = zip_of_images(*(f"{name}/{n}.png" for name in ("cat", "dog") for n in range(20)))
    app.file_uploader(key="train_upload").set_value(("my pets.zip", content, "application/zip")).run()
    assert not app.exception
    assert not app.error
    page_text = plain_text(app)
    assert "40 pairs; 40 captions, 2 distinct; 2 classes" in page_text
    assert "Trains digits-clip on my_pets for" in page_text
    folder = Path(str(app.selectbox(key="train_data").value))
    assert folder.is_relative_to(settings.runs_dir / "uploads")
    assert folder.name.startswith("my_pets-")
    app.button(key="train_go").click().run()
    assert not app.exception
    spec = store.runs()[0].spec
    assert isinstance(spec, TrainSpec)
    assert (spec.data, spec.data_kind) == (str(folder), "folder")
    assert app.number_input(key="train_batch_size").placeholder == "default: 16", "not 2, although there are few pairs"
    app.button(key="train_preset_Digits in a minute").click().run()
    messages = [toast.value.replace("\\", "") for toast in app.toast]
    assert messages == ["Data changed to digits. Before: my_pets"]


def test_uploaded_caption_json_or_parquet_becomes_the_training_data(store: Store) -> None:
    pictures = [f"images/{n}.png" for n in range(20)]
    karpathy = [{"filename": f"{n}.png", "sentences": [{"raw": f"picture {n}"}], "split": "train"} for n in range(20)]
    content = io.BytesIO(zip_of_images(*pictures))
    with zipfile.ZipFile(content, "a") as archive:
        picture = archive.read(pictures[0])
        archive.writestr("captions.json", json.dumps({"images": karpathy}))
    table = io.BytesIO()
    pd.DataFrame({"image": [picture] * 20, "text": [f"picture {n}" for n in range(20)]}).to_parquet(table)
    for file_upload, kind in ((("a.zip", content), "coco"), (("b.parquet", table), "parquet")):
        app = open_page(PAGE)
        name, file = file_upload
        app.file_uploader(key="train_upload").set_value((name, file.getvalue(), "")).run()
        assert not app.exception
        assert not app.error
        assert "20 pairs; 20 captions" in plain_text(app)
        app.button(key="train_go").click().run()
        spec = store.runs()[0].spec
        assert isinstance(spec, TrainSpec)
        assert spec.data_kind == kind


def test_zip_with_paths_outside_its_folder_is_refused(settings: Settings) -> None:
    app = open_page(PAGE)
    file_upload = ("pets.zip", zip_of_images("cat/1.png", "../dog/1.png"), "application/zip")
    app.file_uploader(key="train_upload").set_value(file_upload).run()
    assert not app.exception
    (message,) = (error.value.replace("\\", "") for error in app.error)
    assert "is refused: it holds '../dog/1.png'" in message
    assert message.endswith("The data stay digits.")
    assert app.selectbox(key="train_data").value == "digits"
    assert not list((settings.runs_dir / "uploads").glob("*"))
    assert not list(settings.runs_dir.parent.rglob("1.png"))


def test_running_training_shows_progress_metrics_and_curves(store: Store) -> None:
    run_id = queue_train(store)
    rows = [train_row(1), train_row(2)]
    note = Progress(done=44, total=330, note="epoch 3 of 15, loss 1.234, 900 pairs/s, 20 s left")
    record(store, run_id, [*curve_points(44), *rows, note], state=None)
    app = open_page(PAGE, run=str(run_id))
    assert not app.exception
    page_text = plain_text(app)
    assert "44 of 330 steps done, epoch 3 of 15, loss 1.234, 900 pairs/s, 20 s left" in page_text
    figures = {metric.label: metric.value for metric in app.metric}
    assert figures["Training loss (last step)"] == "0.0227"
    assert figures["Held-out loss"] == "1.75"
    assert figures["Zero-shot top-1"] == "93.4 %"
    assert figures["Best zero-shot top-1 (epoch 2)"] == "93.4 %"
    (best,) = (metric.help for metric in app.metric if metric.label == "Best zero-shot top-1 (epoch 2)")
    assert best.endswith("This metric chooses the best model; the held-out loss decides between equal values.")
    assert "A contrastive loss grows with its batch size: training 64 pairs, held out 64." in page_text
    assert figures["Pairs/s"] == "900"
    assert figures["Training time"] == "6.0 s"
    delta = {metric.label: metric.delta for metric in app.metric}
    assert delta["Zero-shot top-1"] == "+43.4 points"
    assert len(charts(app)) == 2, "loss and accuracy; the others are collapsed"
    assert len(charts(unfold(app, "Learning rate, throughput"))) == 3
    assert app.button(key=f"cancel_{run_id}")


def test_metrics_show_the_change_from_the_initial_weights(store: Store) -> None:
    run_id = queue_train(store)
    figures = {"epoch": 0, "step": 0, "zeroshot_top1": 0.1, "clip_val_loss": 4.0, "best": False}
    initial = train_row(1).model_copy(update=figures)
    record(store, run_id, [initial, train_row(1), train_row(2), Progress(done=50, total=330)])
    app = open_page(PAGE, run=str(run_id))
    assert not app.exception
    assert "Training time to step 44" in [metric.label for metric in app.metric], "the time of a row ends at its step"
    delta = {metric.label: metric.delta for metric in app.metric}
    assert delta["Zero-shot top-1"] == delta["Best zero-shot top-1 (epoch 2)"] == "+83.4 points"
    assert delta["Held-out loss"] == "-2.25"
    assert list(app.dataframe[-1].value["step"]) == [44, 22, 0]


def test_best_metric_is_chosen_from_a_list_and_another_one_is_refused(store: Store) -> None:
    app = open_page(PAGE, train_best_metric="loss")
    assert "is no metric of a training" in app.error[0].value
    assert app.button(key="train_go").disabled
    app.selectbox(key="train_best_metric").select("clip_val_loss").run()
    assert (list(app.error), app.button(key="train_go").disabled) == ([], False)
    assert "--best-metric clip_val_loss" in verbatim(app)[0]


def test_form_states_no_number_for_a_default_that_depends_on_the_optimizer() -> None:
    hints = {default_hint(TrainSpec, name) for name in ("beta1", "beta2", "eps", "momentum")}
    assert hints == {"default: the optimizer's own"}


def test_best_epoch_is_marked_and_results_can_be_downloaded(store: Store, settings: Settings) -> None:
    run_id = queue_train(store, epochs=3, best_metric="clip_val_loss")
    folder = RunFiles(settings.runs_dir, run_id).dir
    write_checkpoints(folder, "epoch_3.pt", "best.pt")
    (folder / "results.jsonl").write_text('{"epoch": 1}\n')
    row = train_row(3, notes=("continued from latest.pt at step 30",), text_to_image_r10=0.75)
    record(store, run_id, [*curve_points(66), train_row(1), train_row(2), row])
    app = open_page(PAGE, run=str(run_id))
    assert not app.exception
    table = app.dataframe[-1].value
    assert list(table["epoch"]) == [3, 2, 1], "newest first"
    assert list(table["mark"]) == ["", "★ best", ""]
    assert table["text_to_image_r10"].to_list()[0] == 75, "in per cent"
    files = ["epoch_3.pt", "epoch_2.pt (removed)", "epoch_1.pt (removed)"]
    assert list(table["checkpoint"]) == [f"checkpoints/{file}" for file in files]
    (best,) = (metric for metric in app.metric if metric.label == "Best held-out loss (epoch 2)")
    assert (best.value, best.help) == ("1.75", "Held-out loss at step 44. This metric chooses the best model.")
    assert "image_to_text_mean_rank" not in table, "not measured"
    keys = [button.key for button in app.get("download_button")]
    assert keys == [
        *(f"{what}_1_{ending}" for what in ("curves", "rows") for ending in ("csv", "json", "parquet")),
        *("results_1", "checkpoint_file_1"),
    ]
    popovers = [menu.proto.popover.label for menu in app.get("popover")]
    assert [label for label in popovers if "Download" in label] == ["Download curves", "Download epochs"]
    assert app.selectbox(key="checkpoint_1").value == "best.pt"
    assert "continued from latest.pt at step 30" in plain_text(app)
    link = next(link for link in app.get("page_link") if link.proto.label == "Evaluate")
    assert link.proto.query_string == "evaluate_model=1"
    assert not [button for button in app.button if button.key == "retry_1"]


def test_evaluate_link_for_data_without_classes_has_only_retrieval(store: Store, settings: Settings) -> None:
    run_id = queue_train(store)
    write_checkpoints(RunFiles(settings.runs_dir, run_id).dir, "best.pt")
    record(store, run_id, [train_row(1, zeroshot_top1=None)])
    app = open_page(PAGE, run=str(run_id))
    link = next(link for link in app.get("page_link") if link.proto.label == "Evaluate")
    assert link.proto.query_string == "evaluate_model=1&evaluate_tasks=retrieval"
    with_other_data = _evaluation(store.run(queue_train(store, val_data="synthetic", samples=9)), ())
    assert (with_other_data.data, with_other_data.held_out, with_other_data.samples) == ("synthetic", False, None)


@pytest.mark.slow
def test_curves_of_other_trainings_can_be_overlaid(store: Store) -> None:
    for epochs in (1, 2):
        run_id = queue_train(store, epochs=epochs)
        record(store, run_id, [*curve_points(22 * epochs), *(train_row(n + 1) for n in range(epochs))])
    app = open_page(PAGE, run="2")
    assert "<br>run 2<extra>" in str(charts(app)[0])
    app.multiselect(key="others_2").set_value([1]).run()
    assert not app.exception
    other_run = "run 1: digits-clip on digits, 1 epoch (cpu)"
    assert other_run in app.multiselect(key="others_2").options
    raw = charts(app)[0]
    assert "run 1: training" in str(raw)
    assert "run 2<extra>" not in str(raw), "the labels of several runs name them"
    app.get_by_key("smooth_2").set_value("5").run()
    assert not app.exception
    assert charts(app)[0] != raw
    linked = open_page(PAGE, run="2", others_2=[other_run, "run 9"], smooth_2="5")
    assert charts(linked) == charts(app)
    assert "others_2 'run 9': not available here" in plain_text(linked)


def test_overlay_and_compare_warn_of_incomparable_losses(store: Store) -> None:
    for size in (64, 16, 64):
        record(store, queue_train(store, batch_size=size), [*curve_points(22), train_row(1)])
    warning_text = "Batch size: 64 (run 1), 16 (run 2); a contrastive loss depends on the number of pairs in a step."
    size_text = "A contrastive loss grows with its batch size: training 64 pairs, held out 64."
    app = open_page(PAGE, run="1")
    assert not app.warning
    app.multiselect(key="others_1").set_value([3]).run()
    assert warning_text not in plain_text(app)
    app.multiselect(key="others_1").set_value([2]).run()
    assert not app.exception
    (warning,) = app.warning
    assert warning_text in warning.value.replace("\\", "")
    assert f"{size_text} These are the sizes of run 1." in plain_text(app)
    assert warning_text in plain_text(open_page("compare/page.py", compare_runs="1,2"))


def test_small_charts_have_the_same_legend_on_train_and_compare(store: Store) -> None:
    for _ in range(2):
        record(store, queue_train(store), [*curve_points(22), train_row(1)])
    legend = "Solid: whole step. Dashed: waiting for data."
    app = open_page(PAGE, run="1")
    assert legend not in plain_text(unfold(app, FOLDED))
    app.multiselect(key="others_1").set_value([2]).run()
    assert legend in plain_text(unfold(app, FOLDED))
    assert legend in plain_text(unfold(open_page("compare/page.py", compare_runs="1,2"), FOLDED))


def test_speed_metric_covers_the_whole_training(store: Store) -> None:
    # 22 steps of 64 pairs in 1.408 s, then 2 steps in 0.256 s: 1,536 pairs in 1.664 s, 923 pairs/s
    fields_of_2_steps = {"step": 24, "samples_seen": 1536, "samples_per_s": 500.0}
    rows = [train_row(1, samples_per_s=1000.0), train_row(2, **fields_of_2_steps)]
    for fields in ({"steps": 24}, {"steps": 24, "resume": "/runs/1"}):
        record(store, queue_train(store, **fields), rows)
    helps = []
    for run_id in ("1", "2"):
        metrics = {metric.label: metric for metric in open_page(PAGE, run=run_id).metric}
        assert metrics["Pairs/s"].value == "923"
        helps.append((metrics["Pairs/s"].help, metrics["Training time"].help))
    pairs = "Pairs of all steps / seconds of all steps, without validation."
    waiting = "In the latest epoch, 5 % of the step time is spent waiting for data."
    time = "Time of steps and validations, without loading PyTorch and the data."
    earlier = "Includes the training that this one continues."
    assert helps == [(f"{pairs} {waiting}", time), (f"{pairs} {earlier} {waiting}", f"{time} {earlier}")]


def test_deciding_metrics_have_large_charts_and_others_are_collapsed(store: Store) -> None:
    held_out = [Metric(step=22, name=f"val/{name}", value=0.5) for name in ("clip_val_loss", "image_to_text_R@1")]
    points = curve_points(22)
    no_zeroshot = [point for point in points if "zeroshot" not in point.name]
    unclassified = train_row(1, zeroshot_top1=None, zeroshot_top5=None)
    notes = (note_on_repeats(captions=100, distinct=40),)
    repeated = unclassified.model_copy(update={"notes": notes, "best_metric": "clip_val_loss"})
    unclassified, repeated = (row.model_copy(update={"val_pairs": 1}) for row in (unclassified, repeated))
    classified = train_row(1, val_pairs=400, zeroshot_images=400, zeroshot_classes=8)
    for curve, row in ((points, classified), (no_zeroshot, unclassified), (no_zeroshot, repeated)):
        record(store, queue_train(store), [*curve, *held_out, row])
    class_page = open_page(PAGE, run="1")
    assert [plot["alt"].partition(" over ")[0] for plot in charts(class_page)] == ["Loss", "Zero-shot accuracy (%)"]
    assert {"training", "held out (CLIP loss)"} <= {trace.get("name") for trace in charts(class_page)[0]["data"]}
    (folded,) = (plot["alt"] for plot in charts(unfold(class_page, FOLDED)) if plot["alt"].startswith("Small charts"))
    assert {"Learning rate", "Pairs per second", "Recall at 1 (%)"} <= set(folded.partition(": ")[2].split(", "))
    assert "Held-out loss" in [metric.label for metric in class_page.metric]
    caption_page, repeat_page = open_page(PAGE, run="2"), open_page(PAGE, run="3")
    assert [plot["alt"].partition(" over ")[0] for plot in charts(caption_page)] == ["Loss", "Recall at 1 (%)"]
    assert [plot["alt"].partition(" over ")[0] for plot in charts(repeat_page)] == ["Loss"]
    recalls = [{metric.label for metric in app.metric if "R@1" in metric.label} for app in (caption_page, repeat_page)]
    assert [bool(labels) for labels in recalls] == [True, False]
    assert "Guessing is right for 12.5 % of the 400 images; one image is 0.25 points." in plain_text(class_page)
    assert "Guessing reaches an R@1 of 100 % among 1 held-out pair." in plain_text(caption_page)
    assert "Guessing" not in plain_text(repeat_page)
    best = [[metric.label for metric in app.metric if "Best" in metric.label] for app in (caption_page, repeat_page)]
    assert best == [["Best image → text R@1 (epoch 1)"], ["Best held-out loss (epoch 1)"]], "the first is an older run"
    compare = open_page("compare/page.py", compare_runs="2,3")
    assert [plot["alt"].partition(" of ")[0] for plot in charts(compare)] == ["Loss", "Held-out loss"]


def test_siglip_loss_and_held_out_clip_loss_have_separate_charts(store: Store) -> None:
    held_out = [Metric(step=step, name="val/clip_val_loss", value=0.5) for step in (22, 44)]
    for loss in ("siglip", "clip", "clip"):
        record(store, queue_train(store, loss=loss), [*curve_points(44), *held_out, train_row(1), train_row(2)])
    siglip, clip = open_page(PAGE, run="1"), open_page(PAGE, run="2")
    separate_titles = ["Loss", "Held-out CLIP loss", "Zero-shot accuracy (%)"]
    assert [plot["alt"].partition(" over ")[0] for plot in charts(siglip)] == separate_titles
    assert "held out (CLIP loss)" not in {trace.get("name") for trace in charts(siglip)[0]["data"]}
    compare_same = open_page("compare/page.py", compare_runs="2,3")
    assert [plot["alt"].partition(" of ")[0] for plot in charts(compare_same)][:2] == separate_titles[::2]
    compare_mixed = open_page("compare/page.py", compare_runs="1,2")
    assert [plot["alt"].partition(" of ")[0] for plot in charts(compare_mixed)][:3] == separate_titles
    clip.multiselect(key="others_2").set_value([1]).run()
    assert not clip.exception
    assert [plot["alt"].partition(" over ")[0] for plot in charts(clip)] == separate_titles


@pytest.mark.parametrize("state", [State.CANCELLED, State.FAILED])
def test_stopped_training_can_be_resumed(state: State, store: Store, settings: Settings) -> None:
    run_id = queue_train(store)
    write_checkpoints(RunFiles(settings.runs_dir, run_id).dir, "latest.pt")
    record(store, run_id, [*curve_points(30), train_row(1)], state=state)
    app = open_page(PAGE, run=str(run_id))
    assert not app.exception
    assert "Resume continues from a checkpoint: latest.pt" in plain_text(app)
    resume = app.button(key=f"retry_{run_id}")
    assert resume.label == "Resume"
    resume.click().run()
    assert not app.exception
    assert store.run(run_id).state is State.QUEUED
    assert len(store.runs()) == 1, "the same run"


def test_running_training_has_curves_before_its_first_row(store: Store) -> None:
    run_id = queue_train(store)
    record(store, run_id, curve_points(30), state=None)
    assert charts(open_page(PAGE, run=str(run_id)))


def test_points_of_an_active_training_are_read_again_after_a_pause_and_kept_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million points take 3 s, and the page updates every second."""
    run_id = queue_train(store)
    attempt = queue.claim(store.database, ENVIRONMENT.host, run_id)
    assert attempt
    attempts.begin(store.database, attempt)
    attempts.record(store.database, attempt, [ENVIRONMENT, *curve_points(10)])
    monkeypatch.setattr(curves, "PAUSE", 1e9)
    app = open_page(PAGE, run=str(run_id))
    first, figures = weakref.ref(curves.of_run(store.run(run_id))), charts(app)
    attempts.record(store.database, attempt, curve_points(30))
    assert curves.of_run(store.run(run_id)) is first()
    assert charts(app.run()) == figures
    attempts.finish(store.database, attempt, State.FINISHED, None)
    assert curves.of_run(store.run(run_id))["step"].max() == 30
    assert first() is None, "only the latest points are kept"
    assert charts(app.run()) != figures


def test_training_that_took_no_step_can_be_restarted(store: Store) -> None:
    run_id = queue_train(store)
    store.request_cancel(run_id)
    assert open_page(PAGE, run=str(run_id)).button(key=f"retry_{run_id}").label == "Restart"


def test_training_without_a_checkpoint_cannot_be_resumed(store: Store) -> None:
    run_id = queue_train(store)
    record(store, run_id, [Progress(done=22, total=44), *curve_points(30), train_row(1)], state=State.FAILED)
    app = open_page(PAGE, run=str(run_id))
    resume = app.button(key=f"retry_{run_id}")
    assert resume.label == "Resume", "a restart would begin at step 0"
    resume.click().run()
    assert not app.exception
    assert "stopped after 22 steps" in plain_text(app)
    assert store.run(run_id).state is State.FAILED
    assert app.button(key=f"again_{run_id}").label == "Run again"


FIELDS = [
    {},
    {"data": "/data/pairs.csv", "csv_separator": ",", "csv_img_key": "image", "val_data": "/data/held.csv"},
    {"data": "a.csv::b.csv", "data_weights": [1.5, 0.5], "resampled": True, "samples": 100, "val_fraction": 0},
    {"model": "ViT-B-32", "pretrained": "laion2b", "image_size": 96, "lock_image": True, "lr": 3e-6, "warmup": "20"},
    {"classes": ["a cat", "a, b"], "templates": ["a photo of a {}.", "{}"], "steps": 100, "tensorboard": False},
    {"opt": "timm/lion", "beta1": 0.9, "beta2": 0.95, "momentum": 0.8, "wd": 0.0, "grad_clip_norm": 1.0},
    {"zeroshot_data": "/data/photos", "classes": ["imagenet"], "image_size": "24x48", "image_mean": [0.5, 0.4, 0.3]},
    {"aug_use_timm": True, "aug_auto_augment": "rand-m9", "aug_ratio": [0.5, 2.0], "image_resize_mode": "squash"},
    {"lr_scheduler": "const-cooldown", "epochs_cooldown": 2, "lr_cooldown_end": 1e-6, "nproc": 2, "overfit": True},
]


@pytest.mark.parametrize("fields", FIELDS)
def test_command_has_the_same_settings_as_the_run(fields: dict[str, object]) -> None:
    spec = TrainSpec.model_validate(fields)
    arguments = shlex.split(command(spec))
    assert arguments[:4] == ["python", "-m", "engine", "train"]
    assert parsed(clip.Train, arguments[4:]) == spec


@pytest.mark.slow
@pytest.mark.parametrize("index", [2, 3, 4, 5])
def test_link_with_settings_fills_the_form(index: int, store: Store) -> None:
    spec = TrainSpec.model_validate(FIELDS[index] | {"data": "digits", "data_weights": [], "classes": []})
    app = open_page(PAGE, **form_link.split(spec)[0])
    assert not app.exception
    assert shlex.split(command(spec)) == shlex.split(verbatim(app)[0])


def answer_outlook(answers: Answering, **fields: object) -> None:
    """Answer the question about the files and memory that a run needs."""
    prospect = Prospect.model_validate({"cache": "/cache", "free_mb": 30_000.0, **fields})
    answers.futures[Outlook].set_result(prospect.model_dump(mode="json"))


def test_form_stays_usable_while_weights_and_memory_are_checked(answers: Answering) -> None:
    app = open_page(PAGE, train_model="ViT-B-32", train_pretrained="openai")
    page_text = plain_text(app)
    assert ":gray[:material/hourglass_top:] Checking weights, tokenizer and memory." in page_text
    assert not app.button(key="train_go").disabled
    needed = {"what": "weights openai of ViT-B-32", "address": "huggingface.co/a/b/c.bin", "mb": 605.0}
    answer_outlook(answers, needed=[needed], peak_mb=5770.0, state_mb=2420.0)
    app.run()
    assert not app.exception
    page_text = plain_text(app)
    assert "to be downloaded from huggingface.co/a/b/c.bin (605 MB) into /cache, where 30 GB are free." in page_text
    assert "Memory: about 5.77 GB: 2.42 GB for weights, gradients and optimizer" in page_text
    assert "Checking weights" not in page_text
    assert not app.button(key="train_go").disabled


def test_outlook_question_depends_on_batch_size_not_learning_rate(answers: Answering) -> None:
    app = open_page(PAGE)
    app.number_input(key="train_lr").set_value(0.01).run()
    first, *others = answers.asked
    assert isinstance(first, Outlook)
    assert isinstance(first.spec, TrainSpec)
    assert first.spec.batch_size == 64, "the default for 1,438 pairs"
    assert others
    assert all(question == first for question in others)
    app.number_input(key="train_batch_size").set_value(32).run()
    assert answers.asked[-1] != first


def test_chosen_augmentation_shows_augmented_images(answers: Answering) -> None:
    app = open_page(PAGE)
    assert not answers.asked_of(Augment)
    answers.futures[Augment].set_result({"images": [b64encode(encoded()).decode()] * 10})
    app = open_page(PAGE, train_aug_scale="0.2,0.5", train_image_size="24x48")
    assert not app.exception
    question = answers.asked_of(Augment)[-1]
    assert (question.spec.aug_scale, question.spec.image_size) == ((0.2, 0.5), (24, 48))
    assert "Images as they are augmented in four epochs" in plain_text(app)


def test_unreachable_weights_disable_the_start(answers: Answering) -> None:
    answer_outlook(answers, problems=["weights 'openai' of ViT-B-32 are not in /cache, and the hub cannot be reached"])
    app = open_page(PAGE, train_model="ViT-B-32", train_pretrained="openai")
    assert ":red[:material/error:] **error**: weights 'openai' of ViT-B-32 are not in /cache" in plain_text(app)
    assert app.button(key="train_go").disabled


def test_failed_outlook_allows_the_start_with_a_warning(answers: Answering) -> None:
    answers.futures[Outlook].set_exception(Refused("the process that answers has died"))
    app = open_page(PAGE)
    assert "**warning**: The files and memory for digits-clip could not be determined: the process" in plain_text(app)
    assert not app.button(key="train_go").disabled


def test_checkpoint_outside_the_data_roots_is_not_opened(answers: Answering, data_root: Path) -> None:
    app = open_page(PAGE, train_pretrained="/etc/passwd")
    assert "pretrained: nothing can be read at '/etc/passwd'" in plain_text(app)
    assert answers.asked == []
    assert app.button(key="train_go").disabled


def upload_zip(app: AppTest, name: str) -> Path:
    content = zip_of_images(*(f"{pet}/{n}{name}.png" for pet in ("cat", "dog") for n in range(20)))
    app.file_uploader(key="train_upload").set_value((f"{name}.zip", content, "application/zip")).run()
    assert not app.exception
    return Path(str(app.selectbox(key="train_data").value))


def test_earlier_upload_can_be_used_again_and_deleted(store: Store) -> None:
    pets = upload_zip(open_page(PAGE), "pets")
    app = unfold(open_page(PAGE), "Uploads: 1")
    assert str(pets) in app.selectbox(key="train_data").options
    assert "pets, " in plain_text(app)
    app.button(key=f"train_kept_{pets.name}_use").click().run()
    assert app.selectbox(key="train_data").value == str(pets)
    app.button(key=f"train_kept_{pets.name}_delete").click().run()
    assert pets.is_dir(), "not deleted before the confirmation"
    app.button(key="train_kept_sure").click().run()
    assert not app.exception
    assert not pets.exists()
    assert app.selectbox(key="train_data").value == "digits"
    app = open_page(PAGE)
    pets = upload_zip(app, "pets")
    store.request_cancel(queue_train(store, data=str(pets)))
    app.selectbox(key="train_data").set_value("synthetic").run()
    assert app.selectbox(key="train_data").value == "synthetic", "the upload is used only once"
    unfold(app, "Uploads: 1").button(key=f"train_kept_{pets.name}_delete").click().run()
    assert "Run 1 used it" in texts(app)
    app.button(key="train_kept_sure").click().run()
    assert not pets.exists()
    assert str(pets) not in open_page(PAGE).selectbox(key="train_data").options
    assert app.selectbox(key="train_data").value == "synthetic"


def test_upload_in_use_by_a_run_cannot_be_deleted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MOST_CHECKED", 1)
    pets = upload_zip(open_page(PAGE), "pets")
    queue_evaluate(store, more_data=("digits", str(pets)))
    assert upload_zip(open_page(PAGE), "pets") == pets, "one folder for equal uploads"
    store.request_cancel(queue_train(store))  # a newer run that has ended
    app = unfold(open_page(PAGE), "Uploads: 1")
    app.button(key=f"train_kept_{pets.name}_delete").click().run()
    assert "Run 1 still uses it" in texts(app)
    assert app.button(key="train_kept_sure").disabled

    def unpack_after_another_session(*upload: Any) -> tuple[Path, DataKind]:
        unpack(*upload)
        return unpack(*upload)

    monkeypatch.setattr(uploads, "unpack", unpack_after_another_session)
    cats = upload_zip(open_page(PAGE), "cats")
    assert cats.is_relative_to(uploads.folder())
    app = unfold(open_page(PAGE), "Uploads: 2")
    app.button(key=f"train_kept_{cats.name}_delete").click().run()
    used_by = queue_train(store, data=str(cats))  # by somebody else, while the dialog is open
    app.button(key="train_kept_sure").click().run()
    assert not app.exception
    assert cats.is_dir()
    assert f"Run {used_by} still uses it" in plain_text(app)


def test_further_settings_are_drawn_only_if_chosen_or_set(store: Store) -> None:
    app = open_page(PAGE)
    drawn = {field.key for field in app.number_input}
    assert "train_lr" in drawn
    assert "train_wd" not in drawn, "a collapsed field with its default is not drawn"
    further(app, "Optimizer")
    assert "train_wd" in {field.key for field in app.number_input}
    assert "train_resampled" not in {field.key for field in app.toggle}
    further(app, "Sampling")
    assert app.toggle(key="train_resampled").value is False
    linked = open_page(PAGE, train_wd="0.25")
    assert linked.number_input(key="train_wd").value == 0.25
    linked.button(key="train_go").click().run()
    assert not linked.exception
    (run,) = store.runs()
    assert run.spec == TrainSpec(wd=0.25, precision="fp32")


def test_zero_shot_data_use_a_common_class_column_or_ask_for_it(data_root: Path, store: Store) -> None:
    write_images(data_root, *(f"{n}.png" for n in range(24)))
    for column in ("colour", "label"):
        lines = [["filename", column], *([f"{n}.png", ("red", "blue")[n % 2]] for n in range(24))]
        write_csv(data_root / f"{column}.csv", lines)
    app = open_page(PAGE, train_zeroshot_data=str(data_root / "colour.csv"))
    (message,) = (error.value.replace("\\", "") for error in app.error)
    assert "colour.csv has no class column with a common name (class, label" in message
    assert "type its name in Class column, or leave Zero-shot data empty" in message
    app = open_page(PAGE, train_zeroshot_data=str(data_root / "label.csv"), train_samples="20")
    assert "Zero-shot accuracy on 24 images of 2 classes is measured during training." in plain_text(app)


@pytest.mark.parametrize("source", ["digits", "synthetic", "{root}", "digits::{root}"])
def test_page_draws_the_samples_that_runs_use_and_opens_files_once(
    source: str, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    def counting_open(data: str, **options: Any) -> Pairs:
        opened.append(data)
        return open_pairs(data, **options)

    monkeypatch.setattr(clip_data, "open_pairs", counting_open)
    name = source.format(root=write_classes(data_root / "classes", {"cat;tabby": 20, "dog": 10}))
    for samples, seed in ((None, 0), (7, 0), (7, 1), (12, 1)):
        values = {"data": name, "samples": samples, "seed": seed, "csv_class_separator": ";"}
        pairs = clip_data.pairs(clip_data.source(values))
        expected = with_classes_split(open_pairs(name, samples=samples, seed=seed, roots=(data_root,)), ";")
        assert [*map(pairs.source, range(len(pairs)))] == [*map(expected.source, range(len(expected)))]
        assert [*map(pairs.captions, range(len(pairs)))] == [*map(expected.captions, range(len(expected)))]
    assert source != "{root}" or len(opened) == 1


def test_presets_set_further_settings(store: Store) -> None:
    app = open_page(PAGE)
    app.button(key="train_preset_One batch, to check").click().run()
    assert app.toggle(key="train_overfit").value
    app.button(key="train_preset_Digits in a minute").click().run()
    assert not app.toggle(key="train_overfit").value
    further(app, "Sampling", shown=False)
    assert "train_overfit" not in {field.key for field in app.toggle}, "a field with its default is hidden again"
    app.button(key="train_go").click().run()
    assert not app.exception
    (run,) = store.runs()
    assert run.spec == TrainSpec(precision="fp32")


def test_opened_further_settings_keep_their_defaults(store: Store) -> None:
    app = open_page(PAGE)
    for group in ("Model", "Loss", "Optimizer", "Sampling", "Validation", "Execution", "Held-out data"):
        further(app, group)
    assert app.text_input(key="train_val_data").placeholder == "default: a share of the data"
    app.button(key="train_go").click().run()
    assert not app.exception
    (run,) = store.runs()
    assert run.spec == TrainSpec(precision="fp32")


def test_uploaded_model_configuration_can_be_trained(store: Store) -> None:
    app = unfold(open_page(PAGE), "Your own model")
    app.file_uploader(key="train_files").upload("mine.json", json.dumps(TINY).encode())
    app.file_uploader(key="train_files").upload("broken.json", b"{")
    app.run()
    assert not app.exception
    assert any("broken" in error.value for error in app.error), [error.value for error in app.error]
    assert "config:mine" in app.selectbox(key="train_model").options
    app.selectbox(key="train_model").set_value("config:mine").run()
    app.button(key="train_go").click().run()
    (run,) = store.runs()
    assert isinstance(run.spec, TrainSpec)
    assert (run.spec.model, run.spec.configs) == ("config:mine", {"mine": TINY})


def test_hidden_field_is_removed_from_the_held_values(store: Store) -> None:
    app = further(open_page(PAGE), "Optimizer")
    for value in (0.3, TrainSpec().wd):
        app.number_input(key="train_wd").set_value(value).run()
    assert app.session_state[rerun.HELD]["train_wd"] == TrainSpec().wd
    further(app, "Optimizer", shown=False)
    assert "train_wd" not in {field.key for field in app.number_input}
    assert "train_wd" not in app.session_state[rerun.HELD]
    assert "train_lr" in app.session_state[rerun.HELD]


def test_sweep_of_one_value_announces_one_run(store: Store) -> None:
    app = unfold(open_page(PAGE), "Sweep")
    app.text_input(key="train_sweep_lr").set_value("1e-3").run()
    assert app.button(key="train_go").label == "Train 1 run"
    assert ", with lr=0.001. Compare then shows this run" in plain_text(app)


def test_sweep_queues_one_tagged_run_per_value(store: Store) -> None:
    app = unfold(open_page(PAGE), "Sweep")
    app.text_input(key="train_sweep_lr").set_value("1e-3, 1e-4").run()
    assert app.button(key="train_go").label == "Train 2 runs"
    assert "once for each of lr=0.001; lr=0.0001. Compare then shows these runs" in plain_text(app)
    assert verbatim(app)[0] == "python -m engine submit train --sweep lr=0.001,0.0001"
    linked = open_page(PAGE, train_sweep_lr="1e-3, 1e-4")
    assert linked.button(key="train_go").label == "Train 2 runs", "the address contains the sweep"
    replaced = open_page(PAGE, train_lr="0.5", train_sweep_lr="1e-3, 50")
    assert verbatim(replaced)[0] == "python -m engine submit train --sweep lr=0.001,50"
    assert "rises to 0.5 " not in plain_text(replaced), "no run has the rate that the sweep replaces"
    assert all(f"rises to {rate} " in plain_text(replaced) for rate in ("0.001", "50"))
    app.text_input(key="train_sweep_lr").set_value("1e-3, none").run()
    assert "sweep, lr: must be a number" in plain_text(app)
    assert "'none': must be a number" in plain_text(app), "the error is also beside the field"
    assert app.button(key="train_go").disabled
    app.text_input(key="train_sweep_lr").set_value("1e-3, 1e-4").run()
    app.button(key="train_go").click().run()
    assert not app.exception
    assert [(run.spec, run.tags) for run in store.runs()] == [
        (TrainSpec(lr=1e-4, precision="fp32"), ("sweep-1",)),
        (TrainSpec(lr=1e-3, precision="fp32"), ("sweep-1",)),
    ]


def finish_training(store: Store, settings: Settings, **fields: Any) -> tuple[int, Path]:
    run_id = queue_train(store, **fields)
    record(store, run_id, [train_row(1, step=1, best=True)])
    folder = RunFiles(settings.runs_dir, run_id).dir
    write_checkpoints(folder, "best.pt")
    return run_id, folder


def test_checkpoint_is_exported_once_and_offered_as_zip(store: Store, settings: Settings, answers: Answering) -> None:
    run_id, folder = finish_training(store, settings)
    app = open_page(PAGE, run=str(run_id))
    app.button(key=f"export_{run_id}_best_step_1").click().run()
    assert not app.exception
    (question,) = answers.asked_of(Export)
    assert question.checkpoint == folder / "checkpoints" / "best.pt"
    assert question.folder == folder / "export" / "best_step_1"
    assert "| Epoch 1, step 1 |" in question.card
    assert "Exporting." in plain_text(app)
    question.folder.mkdir(parents=True)
    (question.folder / "README.md").write_text(question.card)
    answers.futures[Export].set_result({"folder": str(question.folder), "files": {"README.md": 1}})
    app.run()
    assert not app.exception
    assert f'open_clip.create_model_and_transforms("local-dir:{question.folder}")' in verbatim(app)
    assert "Folder as zip (0.0 MB)" in [button.label for button in app.get("download_button")]
    assert len(answers.asked_of(Export)) == 1


def test_export_shows_why_a_checkpoint_of_another_machine_cannot_be_fetched(
    store: Store, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = tmp_path / "copies"
    other_machine = settings.model_copy(update={"runs_dir": tmp_path / "elsewhere", "artifacts_url": str(copies)})
    run_id, _ = finish_training(store, other_machine)
    mirror.upload(other_machine, store.run(run_id))
    for copy in copies.rglob("best.pt*"):
        if copy.read_bytes() == b"weights":
            copy.unlink()
    monkeypatch.setenv("VITALS_ARTIFACTS_URL", str(copies))
    app = open_page(PAGE, run=str(run_id))
    app.button(key=f"export_{run_id}_best_step_1").click().run()
    assert not app.exception
    assert "cannot be reached" in plain_text(app)


def test_uploaded_picture_is_matched_with_the_classes(
    store: Store, settings: Settings, answers: Answering, tmp_path: Path
) -> None:
    run_id, _ = finish_training(store, settings)
    app = unfold(open_page(PAGE, run=str(run_id)), "Try it on a picture")
    assert app.text_area(key=f"try_texts_{run_id}").value.split() == (
        "zero one two three four five six seven eight nine".split()
    )
    write_images(tmp_path, "seven.png")
    picture = (tmp_path / "seven.png").read_bytes()
    app.file_uploader(key=f"try_file_{run_id}").set_value(("seven.png", picture, "image/png")).run()
    assert not app.exception
    (question,) = answers.asked_of(Match)
    assert (question.image, question.texts[7]) == (picture, "seven")
    assert all("{}" in template for template in question.templates)
    texts_ = [{"text": "seven", "similarity": 0.31, "probability": 0.9}]
    answers.futures[Match].set_result({"texts": texts_})
    app.run()
    assert app.dataframe[-1].value.to_dict("records") == [texts_[0] | {"probability": 90}]
    app.toggle(key=f"try_names_{run_id}").set_value(False).run()
    assert answers.asked_of(Match)[-1].templates == ()
    asked = len(answers.asked_of(Match))
    app.text_area(key=f"try_texts_{run_id}").set_value("seven\nseven").run()
    assert "type at least two texts" in plain_text(app)
    app.text_area(key=f"try_texts_{run_id}").set_value("\n".join(map(str, range(1001)))).run()
    assert "Texts: has too many values, at most 1,000" in plain_text(app)
    assert len(answers.asked_of(Match)) == asked


def test_only_as_many_classes_are_filled_in_as_a_question_takes(store: Store, settings: Settings) -> None:
    run_id, _ = finish_training(store, settings, classes=[f"class {number}" for number in range(1001)])
    app = unfold(open_page(PAGE, run=str(run_id)), "Try it on a picture")
    assert app.text_area(key=f"try_texts_{run_id}").value.splitlines() == [f"class {number}" for number in range(1000)]
    assert "The first 1,000 of 1,001 classes are filled in." in plain_text(app)


def test_unreadable_picture_is_refused_without_a_question(store: Store, settings: Settings, answers: Answering) -> None:
    run_id, _ = finish_training(store, settings)
    app = unfold(open_page(PAGE, run=str(run_id)), "Try it on a picture")
    app.file_uploader(key=f"try_file_{run_id}").set_value(("seven.png", b"no picture", "image/png")).run()
    assert "the picture: it is no image of a known format" in plain_text(app)
    assert not answers.asked_of(Match)


def test_held_out_images_that_are_also_training_images_are_counted(data_root: Path) -> None:
    names = [f"image_{n}.png" for n in range(24)]
    write_images(data_root, *names)
    for folder in ("", "./"):
        captions = [["filepath", "title"], *([f"{folder}{name}", f"{folder} a picture of {name}"] for name in names)]
        write_csv(data_root / f"pairs{len(folder)}.csv", captions)
    app = open_page(PAGE, train_data=str(data_root / "pairs0.csv"), train_val_data=str(data_root / "pairs2.csv"))
    assert not app.exception
    assert "24 of 24 held-out images also used for training" in plain_text(app)
    assert "also used for training" not in plain_text(open_page(PAGE, train_data=str(data_root / "pairs0.csv")))


def test_zero_shot_images_that_are_also_training_images_are_counted(data_root: Path) -> None:
    names = [f"image_{n}.png" for n in range(24)]
    write_images(data_root, *names)
    pairs = [["photo", "title"], *([name, f"a picture of {name}"] for name in names[:20])]
    write_csv(data_root / "pairs.csv", pairs)
    labelled = [["filepath", "label"], *([name, ("red", "blue")[n % 2]] for n, name in enumerate(names))]
    write_csv(data_root / "labelled.csv", labelled)
    data = {"train_data": str(data_root / "pairs.csv"), "train_zeroshot_data": str(data_root / "labelled.csv")}
    text = plain_text(open_page(PAGE, **data, train_csv_img_key="photo", train_val_fraction="0.2"))
    assert "16 pairs to train on, 4 held out." in text
    assert "16 of 24 zero-shot images also used for training." in text


def test_csv_columns_are_offered_and_common_names_are_recognised(store: Store, data_root: Path) -> None:
    write_images(data_root, *(f"{n}.png" for n in range(20)))
    lines = [["filename", "caption", "label", "kind"], *([f"{n}.png", f"{n}", "ab"[n % 2], "x"] for n in range(20))]
    path = write_csv(data_root / "pairs.csv", lines)
    other = write_csv(data_root / "other.csv", [line[:2] + line[3:] for line in lines])
    for offered in (other, path):  # the field offers data of earlier runs
        queue_train(store, data=str(offered))
    app = open_page(PAGE)
    app.selectbox(key="train_data").set_value(str(path)).run()
    assert not app.exception
    fields = [app.selectbox(key=f"train_csv_{name}_key") for name in ("img", "caption", "class")]
    assert all(field.options == ["filename", "caption", "label", "kind"] for field in fields)
    assert [field.value for field in fields] == [None, None, "label"]
    assert [field.proto.placeholder for field in fields[:2]] == ["default: filename", "default: caption"]
    assert "20 pairs; 20 captions, all distinct; 2 classes" in plain_text(app)
    assert "Zero-shot accuracy on 2 classes is measured" in plain_text(app)
    fields[2].set_value(None).run()
    assert "Retrieval among the pairs held out is measured" in plain_text(app)
    app.button(key="train_go").click().run()
    spec = store.runs()[0].spec
    assert isinstance(spec, TrainSpec)
    assert (spec.csv_img_key, spec.csv_class_key) == ("", "")
    app = open_page(PAGE, train_data=str(path))
    assert app.selectbox(key="train_csv_class_key").value is None, "a link overrides the recognised name"
    app.selectbox(key="train_csv_class_key").set_value("kind").run()
    app.selectbox(key="train_csv_caption_key").set_value("label").run()
    app.selectbox(key="train_data").set_value(str(other)).run()
    chosen = [app.selectbox(key=f"train_csv_{name}_key").value for name in ("caption", "class")]
    assert chosen == [None, "kind"], "columns that the other table has too are kept"
    app = open_page(PAGE, train_data=str(path), train_csv_class_key="label", train_zeroshot_data="digits")
    assert "20 captions, all distinct; no classes" in plain_text(app)


def test_changed_data_are_read_again(data_root: Path, store: Store) -> None:
    pets, table = data_root / "pets", data_root / "pairs.csv"
    for count in (2, 3):
        write_images(pets / "cat", *(f"{number}.png" for number in range(count)))
        table.write_text("filename,caption\n" + "".join(f"pets/cat/{number}.png,one\n" for number in range(count)))
        for data in (pets, table):
            shown = plain_text(open_page(PAGE, train_data=str(data)))
            assert f"{count} pairs; " in shown
    assert "median image 17 × 12 px (16 × 12 to 18 × 12)" in shown


def test_new_training_can_start_from_the_weights_of_a_run(store: Store, settings: Settings, data_root: Path) -> None:
    run_id = queue_train(store, lr=1e-2, epochs=2, pretrained_image=True, lr_text=1e-2)
    best = RunFiles(settings.runs_dir, run_id).dir / "checkpoints" / "best.pt"
    write_checkpoints(best.parents[1], "best.pt")
    record(store, run_id, [train_row(1), Progress(done=22, total=44)])
    app = open_page(PAGE, run=str(run_id))
    assert not app.exception
    assert str(best) in verbatim(app), "the path can be copied"
    app = followed(app, "Train on from this")
    (toast,) = (toast.value.replace("\\", "") for toast in app.toast)
    assert "Filled from run 1: Initial weights, Epochs." in toast
    assert "filled_from" not in app.query_params
    assert app.selectbox(key="train_pretrained").value == "best of run 1"
    assert "best of run 1" in app.selectbox(key="train_pretrained").options
    assert "The learning rate rises to 1e-05" in plain_text(app)
    assert "The learning rate of run 1 was 0.01. The default for trained weights is 1e-05." in plain_text(app)
    app.selectbox(key="train_pretrained").set_value("best of run 1").run()
    app.button(key="train_go").click().run()
    assert not app.exception
    spec = store.runs()[0].spec
    assert isinstance(spec, TrainSpec)
    assert (spec.pretrained, spec.epochs, spec.lr) == (str(best), 2, None)
