"""The evaluation task: several models and data sets, separate data for the probe, cached features."""

import os
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from engine.datasets import Pairs
from engine.models.clip import weights as clip_weights
from engine.report import frames
from engine.report.figures import evaluation
from engine.results import Progress
from engine.results.clip import EvaluateRow
from engine.results.embeddings import read_embeddings
from engine.settings import Settings
from engine.specs import Refused
from engine.specs.evaluate import EvaluateSpec
from engine.tasks import evaluate
from engine.training.evaluation import classification, feature_cache
from engine.training.evaluation.encode import Features
from tests.support.training import TINY, tiny, train

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("settings", "registry")]
Evaluate = Callable[..., list[EvaluateRow]]


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Evaluate:
    """Return a function that evaluates a tiny model and returns the rows."""
    monkeypatch.setenv("VITALS_DATA_ROOTS", str(tmp_path))

    def run(**fields: Any) -> list[EvaluateRow]:
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        spec = EvaluateSpec(**{"model": "config:tiny", "configs": {"tiny": TINY}, "samples": 60} | fields)
        return [event for event in evaluate.run(spec, folder) if isinstance(event, EvaluateRow)]

    return run


@pytest.mark.slow
def test_progress_never_decreases(tmp_path: Path) -> None:
    tasks = ("retrieval", "zeroshot", "linear-probe")
    spec = EvaluateSpec(model="config:tiny", configs={"tiny": TINY}, samples=60, tasks=tasks)
    events = [event for event in evaluate.run(spec, tmp_path) if isinstance(event, Progress)]
    done = [event.done for event in events]
    assert done == sorted(done)
    assert done[-1] == 1 + len(tasks)
    fits = [event.note for event in events if "fit" in event.note]
    assert len(fits) == len(spec.probe_c) + 1
    assert fits[1] == "choosing C of the linear probe: fit 2 of 5 (C = 1)"
    assert fits[-1].startswith("fitting the linear probe to all its data (C = ")


def test_float32_is_not_tf32(tmp_path: Path) -> None:
    """torch's default on CUDA is TF32 in convolutions. NVIDIA's containers allow it in matrix products too."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    try:
        matmul.allow_tf32 = cudnn.allow_tf32 = True
        list(evaluate.run(EvaluateSpec(model="config:tiny", configs={"tiny": TINY}, samples=60), tmp_path))
        assert (matmul.allow_tf32, cudnn.allow_tf32) == (False, False)
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def write_class_folders(folder: Path, *names: str) -> Path:
    """Write four images per class, with one brightness for each class, and return the folder."""
    for place, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for number in range(4):
            Image.new("L", (32, 32), 40 + 150 * place + number).convert("RGB").save(folder / name / f"{number}.png")
    return folder


def test_each_model_is_evaluated_on_each_data_set(
    rows: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A combination that fails gives an error row, and the others are still evaluated."""
    data = write_class_folders(tmp_path / "data", "dark", "light")
    found = rows(more_models=("config:tiny,/nowhere.pt", "digits-clip"), more_data=(str(data), "/none.csv"))
    by_task = {(row.model, row.checkpoint, row.data, row.task): row for row in found}
    assert len(by_task) == len(found) == 3 * 3 * 2
    ok_keys = {key for key, row in by_task.items() if row.status == "ok"}
    assert {key[:3] for key in ok_keys} == {
        (m, "", d) for m in ("config:tiny", "digits-clip") for d in ("digits", str(data))
    }
    assert "no /none.csv" in by_task["config:tiny", "", "/none.csv", "zeroshot"].error
    assert "/nowhere.pt" in by_task["config:tiny", "/nowhere.pt", "digits", "retrieval"].error
    files = {row.embeddings_file for row in found if row.status == "ok"}
    assert len(files) == 4
    assert all((tmp_path / "run" / name).is_file() for name in files)
    single = rows(model="digits-clip", data=str(data))
    assert single[1].acc1 == by_task["digits-clip", "", str(data), "zeroshot"].acc1
    assert list(frames.evaluate(found)["images"].dropna().unique()) == [60, 8]
    with pytest.raises(Refused, match="no /none"):
        rows(data="/none.csv")
    with pytest.raises(Refused, match="fp16 needs an accelerator"):
        rows(precision="fp16")

    def fail(*_: object) -> None:
        raise RuntimeError("no zero-shot today")

    monkeypatch.setattr(evaluate.classification, "results", fail)
    found = rows(more_data=(str(data),))
    assert [(row.task, row.status) for row in found] == 2 * [("retrieval", "ok"), ("zeroshot", "error")]


def test_notes_on_probe_data_are_only_in_the_row_of_the_probe(rows: Evaluate, tmp_path: Path) -> None:
    data, probe_data = (write_class_folders(tmp_path / name, "dark", "light") for name in ("data", "probe"))
    (probe_data / "dark" / "broken.png").write_bytes(b"no image")
    probe, retrieval = rows(
        data=str(data), probe_data=str(probe_data), tasks=("linear-probe", "retrieval"), samples=None
    )
    assert any("broken.png" in note for note in probe.notes)
    assert not any("broken.png" in note for note in retrieval.notes)


def test_held_out_share_applies_only_to_data_used_in_training(rows: Evaluate) -> None:
    fields = {"samples": 50, "tasks": ("linear-probe", "retrieval")}
    probe, whole = rows(**fields)
    assert (whole.images, probe.images, probe.probe_images) == (50, 10, 40)
    assert "trained on 40 images and tested on 10 others" in probe.notes[-1]
    (few,) = rows(shots=2, samples=50, tasks=("linear-probe",))
    assert few.notes[-1].startswith(f"the probe was trained on {few.probe_images} images and tested on 10 others")
    assert few.probe_images == 20
    (small,) = rows(samples=5, tasks=("linear-probe",))
    assert "trained on 4 images and tested on 1 other:" in small.notes[-1]
    probe, held = rows(held_out_data=("digits",), **fields)
    assert (held.images, probe.images, probe.probe_images) == (10, 10, 40)
    assert rows(held_out_data=("digits",), held_out=False, **fields)[1].images == 50


def test_held_out_pairs_of_changed_data_are_refused(rows: Evaluate, tmp_path: Path) -> None:
    data = write_class_folders(tmp_path / "data", "dark", "grey", "light")
    training = tiny(data=str(data), samples=None, batch_size=4, val_fraction=0.25)
    train(training, tmp_path / "first")
    first = str(tmp_path / "first" / "checkpoints" / "best.pt")
    train(tiny(pretrained=first), tmp_path / "second")
    fields = {"data": str(data), "samples": None, "batch_size": 4, "held_out_data": (str(data),), "val_fraction": 0.25}
    checkpoints = (first, str(tmp_path / "second" / "checkpoints" / "best.pt"))
    for checkpoint in checkpoints:
        assert {row.images for row in rows(checkpoint=checkpoint, **fields)} == {3}
    (data / "dark" / "0.png").unlink()
    for checkpoint in checkpoints:
        with pytest.raises(Refused, match=rf"{data} has changed since {first} was trained on it, .*--no-held-out"):
            rows(checkpoint=checkpoint, **fields)
        assert {row.images for row in rows(checkpoint=checkpoint, **fields, held_out=False)} == {11}
    shutil.copyfile(checkpoints[1], first)
    with pytest.raises(Refused, match=r"best\.pt is damaged: .* are not those that were written"):
        rows(checkpoint=first, **fields, held_out=False)


def test_results_on_images_of_the_training_have_a_note(rows: Evaluate, tmp_path: Path) -> None:
    """Also if an earlier training of the weights used them, or only a part of the evaluated mixture."""
    data, other = (write_class_folders(tmp_path / name, "dark", "light") for name in ("data", "other"))
    checkpoints = [str(tmp_path / name / "checkpoints" / "best.pt") for name in ("first", "second")]
    train(tiny(data=str(data), samples=None, batch_size=4), tmp_path / "first")
    train(tiny(pretrained=checkpoints[0]), tmp_path / "second")

    def has_note(data: str, **fields: Any) -> bool:
        found = rows(data=data, samples=None, batch_size=4, **fields)
        assert [row.status for row in found] == ["ok", "ok"]
        (noted,) = {any("the model was trained on these images" in note for note in row.notes) for row in found}
        return noted

    for checkpoint in checkpoints:
        assert has_note(str(data), checkpoint=checkpoint, held_out=False)
        assert has_note(f"{other}::{data}", checkpoint=checkpoint, held_out=False)
        assert not has_note(str(other), checkpoint=checkpoint, held_out=False)
        assert not has_note(str(data), checkpoint=checkpoint, held_out_data=(str(data),))
    assert not has_note(str(data), held_out=False), "untrained weights"


def test_results_on_images_used_to_choose_the_epoch_have_a_note(rows: Evaluate, tmp_path: Path) -> None:
    """The held-out images choose the best of several epochs, or other images if the training has them."""
    folders: dict[str, Path] = {}

    def has_note(training: dict[str, Any], checkpoint: str = "best.pt", **fields: Any) -> bool:
        folder = folders.setdefault(repr(training), tmp_path / f"training{len(folders)}")
        if not folder.exists():
            train(tiny(**training), folder)
        held_out = {"samples": 40, "held_out_data": ("digits",)}
        found = rows(checkpoint=str(folder / "checkpoints" / checkpoint), **{**held_out, **fields})
        assert [(row.task, row.status) for row in found] == [("retrieval", "ok"), ("zeroshot", "ok")]
        counts = {sum("these images chose the best epoch" in note for note in row.notes) for row in found}
        assert len(counts) == 1
        return counts == {1}

    assert has_note({})
    assert has_note({"best_metric": "clip_val_loss"})
    assert not has_note({}, "epoch_2.pt")
    assert not has_note({}, json_split="test"), "of data with several parts, these are other images"
    assert not has_note({}, held_out_data=()), "most of these images were trained on"
    assert has_note({"epochs": None, "steps": 8})
    assert has_note({"epochs": 1, "val_every_steps": 2})
    for training in ({"epochs": 1}, {"epochs": None, "steps": 4}, {"zeroshot_frequency": 2}):
        assert not has_note(training), "only one epoch could be chosen"
    assert not has_note({"best_metric": "train_loss"})
    other = str(write_class_folders(tmp_path / "other", *map(str, range(10))))
    assert not has_note({"zeroshot_data": other})
    assert has_note({"zeroshot_data": other}, data=other, samples=None)


def test_probe_is_trained_on_separate_data(rows: Evaluate, tmp_path: Path) -> None:
    """The classes of the probe's data may be in another order, because they are matched by name."""
    data = write_class_folders(tmp_path / "data", "dark", "light")
    probe_csv = tmp_path / "own.csv"
    lines = [f"data/{name}/{number}.png,{name}" for name in ("light", "dark") for number in range(4)]
    probe_csv.write_text("\n".join(["filepath,class", *lines, "data/light/0.png,light"]))
    fields = {"data": str(data), "samples": None, "csv_class_key": "class", "tasks": ("linear-probe",)}
    (row,) = rows(probe_data=str(probe_csv), probe_c=(1e4,), **fields)
    assert (row.status, row.acc1, row.images, row.probe_images, row.probe_c) == ("ok", 1.0, 8, 8, 1e4)
    (row,) = rows(probe_data=str(probe_csv), shots=2, probe_c=(1, 1e3), **fields)
    assert row.probe_images == 4
    assert row.probe_c in (1, 1e3)
    (row,) = rows(probe_data=str(probe_csv), shots=5, **fields)
    assert row.error.startswith(
        "5 shots need 5 training images per class; these classes have fewer: dark (4), light (4)"
    )
    write_class_folders(tmp_path / "other", "dark", "grey")
    (row,) = rows(probe_data="synthetic", **fields)
    assert row.error.startswith("a linear probe needs a class per image, which synthetic lacks: give class folders")
    (row,) = rows(probe_data=str(tmp_path / "other"), **fields)
    assert "classes that the evaluated data lack: grey" in row.error


def test_requested_ranks_and_prompts_are_used(rows: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_class_folders(tmp_path / "data", "dark", "light")
    retrieval, zeroshot = rows(data=str(data), recall_k=(1, 3), class_prompts={"dark": ["a b"], "light": ["c", "d e"]})
    assert retrieval.val_batch_size == retrieval.images, "there are fewer images than the default batch size"
    assert set(retrieval.recalls) == {"image_to_text_r3", "text_to_image_r3"}
    assert (retrieval.image_to_text_r5, retrieval.image_to_text_r1 is None) == (None, False)
    assert frames.evaluate([retrieval, zeroshot])["image_to_text_r3"][0] == retrieval.recalls["image_to_text_r3"]
    assert zeroshot.status == "ok"
    counts = list[int]()
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    (row,) = rows(data=str(data), tasks=("zeroshot",), class_prompts={"dark": ["a"]}, threads=3)
    assert counts == [3]
    assert row.error == "no prompts for 1 of 2 classes: light"
    single = write_class_folders(tmp_path / "single", "dark") / "dark"
    (tmp_path / "single.csv").write_text("\n".join(["filepath,class", *(f"{path},dark" for path in single.iterdir())]))
    (row,) = rows(data=str(tmp_path / "single.csv"), csv_class_key="class", tasks=("zeroshot",))
    assert row.error == "zero-shot needs at least two classes, and all images are of 'dark'"


def test_features_are_reused_until_anything_they_depend_on_changes(
    rows: Evaluate, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_class_folders(tmp_path / "data", "dark", "light")
    fields = {"data": str(data), "tasks": ("retrieval",), "samples": None}

    def reused(**more: Any) -> bool:
        (row,) = rows(**fields | more)
        found.append(row)
        return any("are reused" in note for note in row.notes)

    found: list[EvaluateRow] = []
    assert [reused(), reused(), reused(seed=1), reused(seed=1), reused(reuse_features=False)] == [0, 1, 0, 1, 0]
    assert found[0].model_dump(exclude={"seconds", "notes"}) == found[1].model_dump(exclude={"seconds", "notes"})
    assert [reused(precision="bf16"), reused(image_size=64)] == [0, 0]
    os.utime(data / "dark" / "0.png", ns=(1, 1))
    assert [reused(), reused()] == [0, 1]
    table = tmp_path / "table.csv"
    for caption in ("dark", "black"):
        table.write_text("\n".join(["filepath,title", *(f"data/dark/{index}.png,{caption}" for index in range(4))]))
        assert not reused(data=str(table)), "another caption"
    (folder,) = settings.runs_dir.glob("features")
    files = len(list(folder.glob("*.npz")))
    assert files == 7
    interrupted = folder / ".1a2b.npz.7.7.tmp"
    interrupted.touch()
    os.utime(interrupted, ns=(1, 1))
    monkeypatch.setattr(feature_cache, "MOST_BYTES", 2 * max(path.stat().st_size for path in folder.glob("*.npz")))
    assert not reused(seed=2)
    assert len(list(folder.iterdir())) == 2, "older files are deleted, also those of saves that were interrupted"
    assert [reused(seed=2), reused(precision="bf16")] == [1, 0], "the least recently used file was deleted"
    assert [reused(seed=2), reused(seed=3), reused(seed=2)] == [1, 0, 1], "reading is a use"
    for path in folder.glob("*.npz"):
        path.write_bytes(b"PK\3\4, and the rest is lost")
    assert [reused(), reused()] == [0, 1]
    for path in folder.glob("*.npz"):
        np.savez(path, other=np.zeros(1))
    assert [reused(), reused()] == [0, 1]
    for path in folder.glob("*.npz"):
        damaged = bytearray(path.read_bytes())
        damaged[damaged.index(b"PK\1\2") + 10] = 99  # an unknown compression method is a NotImplementedError
        path.write_bytes(damaged)
    assert [reused(), reused()] == [0, 1]
    files = len(list(folder.glob("*.npz")))
    monkeypatch.setattr(feature_cache, "MOST_BYTES", 1)
    assert not reused(seed=4)
    assert len(list(folder.glob("*.npz"))) == files, "features that are too large to be kept replace no others"


def test_cached_features_belong_to_the_content_of_their_images(tmp_path: Path) -> None:
    """An image that is no file of its own, such as one in a Parquet, is identified by its pixels."""
    model, image = torch.nn.Linear(1, 1), Image.new("RGB", (2, 2), "red")
    other, file = image.copy(), tmp_path / "a.png"
    other.putpixel((1, 1), (0, 0, 0))

    def key(picture: Any) -> str:
        return feature_cache.key(model, Pairs(name="own", files=[picture], texts=[("a",)]), {}, None)

    def picture(content: Image.Image) -> Any:
        return SimpleNamespace(source="own:0", image=lambda roots: content)

    assert key(picture(image)) == key(picture(image.copy())) != key(picture(other))
    keys = set()
    for content in (b"a", b"ab"):
        file.write_bytes(content)
        os.utime(file, ns=(1, 1))
        keys.add(key(str(file)))
    assert len(keys) == 2, "the file has another size"


def test_features_are_not_cached_on_a_disk_without_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Features(torch.zeros(2, 3), torch.arange(2), torch.zeros(1, 3), 1.0)  # 52 bytes
    for free, files in ((151, 0), (152, 1)):
        monkeypatch.setattr(feature_cache.shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        feature_cache.save(tmp_path, "a", found, spare_bytes=100)
        assert len(list(tmp_path.iterdir())) == files


def test_cached_features_equal_those_of_open_clip(rows: Evaluate, tmp_path: Path, settings: Settings) -> None:
    data = write_class_folders(tmp_path / "data", "dark", "light")
    rows(data=str(data), tasks=("retrieval",), samples=None)
    (path,) = (settings.runs_dir / "features").glob("*.npz")
    found, _ = feature_cache.load(path.parent, path.stem) or pytest.fail("no features were cached")
    torch.manual_seed(0)
    built = clip_weights.create(EvaluateSpec(model="config:tiny", configs={"tiny": TINY}), weights="")
    images = torch.stack([built.preprocess_val(Image.open(file)) for file in sorted(data.glob("*/*.png"))])
    with torch.no_grad():
        torch.testing.assert_close(found.images, built.model.eval().encode_image(images, normalize=True))
    assert found.read.tolist() == list(range(8))
    assert len(found.texts) == 2


@pytest.mark.parametrize(
    ("name", "broken"),
    [("visual.proj", "60 of 60 images"), ("text_projection", "captions|classes")],
)
def test_features_that_are_not_finite_give_errors_and_no_accuracies(
    rows: Evaluate, tmp_path: Path, name: str, broken: str
) -> None:
    built = clip_weights.create(EvaluateSpec(model="config:tiny", configs={"tiny": TINY}), weights="")
    weights = built.model.state_dict()
    weights[name].fill_(torch.nan)
    torch.save(weights, tmp_path / "broken.pt")
    tasks = ("retrieval", "zeroshot", "linear-probe")
    found = {row.task: row for row in rows(checkpoint=str(tmp_path / "broken.pt"), tasks=tasks)}
    for task in tasks[: 3 if name == "visual.proj" else 2]:  # a linear probe needs no texts
        assert found[task].status == "error"
        assert re.search(rf"the features of .*({broken}) are not finite", found[task].error)
        assert (found[task].acc1, found[task].image_to_text_r1) == (None, None)


def test_confidence_is_that_of_the_models_own_logit_scale(rows: Evaluate, tmp_path: Path) -> None:
    (row,) = rows(tasks=("zeroshot",), templates=("{}",))  # so that each prompt is also a caption
    predictions = evaluation.read_predictions(tmp_path / "run" / row.predictions_file)
    found = read_embeddings(tmp_path / "run" / row.embeddings_file)
    classes = sorted(set(found.labels))
    cosines = found.images @ found.texts[[found.captions.index(name) for name in classes]].T
    odds = np.exp(cosines / 0.07)  # 0.07 is CLIP's initial temperature
    expected = (odds / odds.sum(axis=1, keepdims=True)).max(axis=1)
    assert predictions["confidence"].to_numpy() == pytest.approx(expected, abs=1e-4)


def test_classes_with_the_same_name_stay_separate(
    rows: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ImageNet has two classes named sunglasses in open_clip. Too many classes have no confusion matrix."""
    data = write_class_folders(tmp_path / "data", "one", "two", "three")
    with tarfile.open(data / "0.tar", "w") as tar:
        for place, name in enumerate(("one", "two", "three")):
            (data / f"{name}.cls").write_text(str(place))
            tar.add(data / name / "0.png", f"{name}.png")
            tar.add(data / f"{name}.cls", f"{name}.cls")
    (data / "classnames.txt").write_text("lamp\nowl\nlamp\n")
    (row,) = rows(tasks=("zeroshot",), samples=None, data=str(data / "0.tar"))
    predictions = evaluation.read_predictions(tmp_path / "run" / row.predictions_file)
    assert predictions["true"].to_list() == ["lamp (0)", "owl", "lamp (2)"]
    assert predictions["right"].mean() == row.acc1
    assert list(evaluation.read_confusion(tmp_path / "run" / row.confusion_file).columns) == [
        "lamp (0)",
        "owl",
        "lamp (2)",
    ]
    monkeypatch.setattr(classification, "MOST_CONFUSED", 2)
    (other,) = rows(tasks=("zeroshot",), samples=None, data=str(data / "0.tar"))
    assert (other.confusion_file, other.predictions_file) == ("", row.predictions_file)
    assert "no confusion matrix, because it would have 3 classes" in other.notes
    assert (other.acc1, other.mean_per_class_recall, other.classes) == (row.acc1, row.mean_per_class_recall, 3)


@pytest.mark.parametrize("layout", ["csv", "shards"])
def test_images_of_several_classes_have_a_mean_average_precision(rows: Evaluate, tmp_path: Path, layout: str) -> None:
    """The classes are in a CSV, or as CLIP_benchmark writes them: a vector of zeros and ones beside each image."""
    classes, class_numbers = ("cat", "dog", "owl"), [(0,), (0, 1), (1,), (1,)]
    data = write_class_folders(tmp_path / "data", "only")
    if layout == "csv":
        lines = [f"only/{n}.png,{' ; '.join(classes[c] for c in several)}" for n, several in enumerate(class_numbers)]
        (data / "pairs.csv").write_text("\n".join(["filepath,class", *lines]))
        fields: dict[str, Any] = {"data": str(data / "pairs.csv"), "csv_class_key": "class", "csv_class_separator": ";"}
    else:
        with tarfile.open(data / "0.tar", "w") as tar:
            for n, several in enumerate(class_numbers):
                np.save(data / f"{n}.npy", np.isin(np.arange(3), several).astype(np.int64))
                tar.add(data / "only" / f"{n}.png", f"{n}.png")
                tar.add(data / f"{n}.npy", f"{n}.npy")
        (data / "classnames.txt").write_text("\n".join(classes))
        fields = {"data": str(data / "0.tar")}
    probe, zeroshot, retrieval = rows(tasks=("linear-probe", "zeroshot", "retrieval"), samples=None, **fields)
    assert "one class per image, and these images have several" in probe.error
    assert (retrieval.status, zeroshot.status, zeroshot.acc1) == ("ok", "ok", None)
    assert zeroshot.classes == (2 if layout == "csv" else 3), "a CSV cannot list classes without images"
    table = evaluation.read_average_precision(tmp_path / "run" / zeroshot.average_precision_file).set_index("class")
    assert table["images"].to_dict() == {"cat": 2, "dog": 3} | ({} if layout == "csv" else {"owl": 0})
    assert zeroshot.mean_average_precision == pytest.approx(table["average_precision"].mean(), abs=1e-6)
    assert ("the mean leaves out 1 of 3 classes, for lack of images" in zeroshot.notes) == (layout == "shards")
    captions = read_embeddings(tmp_path / "run" / "embeddings.npz").captions
    assert "a photo of a cat, dog." in captions


def test_class_separator_leaves_data_with_one_class_per_image_as_they_are(rows: Evaluate, tmp_path: Path) -> None:
    data = write_class_folders(tmp_path / "data", "cat", "dog")
    (data / "pairs.csv").write_text("filepath,class\ncat/0.png,cat;dog\ndog/0.png,dog")
    spec: dict[str, Any] = {"data": str(data / "pairs.csv"), "csv_class_key": "class", "csv_class_separator": ";"}
    found = rows(tasks=("linear-probe", "zeroshot"), more_data=("digits",), **spec)
    assert [(row.status, row.acc1 is None, row.mean_average_precision is None) for row in found] == [
        *(("error", True, True), ("ok", True, False)),  # some of the table's images have several classes
        *(("ok", False, True), ("ok", False, True)),
    ]
    note = "no class name has the separator ';', so each image has one class"
    assert [row.notes.count(note) for row in found] == [0, 0, 1, 1]
