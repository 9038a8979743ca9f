"""Tests of the Evaluate page with AppTest. Runs stay queued, and tests store the results."""

import shlex
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from engine.cli import clip
from engine.datasets import open_pairs, split
from engine.report.quantities import SHARES
from engine.results import Progress, Row
from engine.results.answers import Hit, Hits
from engine.results.clip import EvaluateRow
from engine.settings import ROOT, Settings
from engine.specs import Refused
from engine.specs.evaluate import EvaluateSpec
from engine.specs.questions import Question, Search
from engine.store import State, Store
from engine.store.files import RunFiles
from pages.clip import form
from pages.evaluate.results import NUMBERS
from pages.shared import backend
from pages.shared.form import link
from pages.shared.form.command import command
from tests.support.clip import (
    evaluate_row,
    queue_evaluate,
    queue_train,
    record,
    train_row,
    write_checkpoints,
    write_csv,
    write_evaluation,
    write_images,
)
from tests.support.command import parsed
from tests.support.data import write_image
from tests.support.page import charts, further, open_page, texts, verbatim

PAGE = "evaluate/page.py"
ROWS = (evaluate_row("retrieval"), evaluate_row("zeroshot"), evaluate_row("linear-probe", acc5=None))

# The scheduler outlives the process that starts it, so the warning about a running subprocess is expected.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("own_world"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


def plain_text(app: AppTest) -> str:
    return texts(app).replace("\\", "")


def prediction_captions(app: AppTest) -> list[str]:
    """Return the captions of prediction images. Only these contain a confidence in %."""
    captions = [picture.caption for element in app.get("image") for picture in element.proto.imgs]
    return [caption for caption in captions if caption.endswith(" %")]


@pytest.mark.parametrize("page", ["evaluate", "train"])
def test_non_clip_model_shows_an_error(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITALS_CATALOG_DIR", str(ROOT / "data" / "catalog"))  # counted with the installed libraries
    app = open_page(f"{page}/page.py", **{f"{page}_model": "timm:resnet18"})
    assert not app.exception
    (error,) = app.error
    assert error.value.replace("\\", "").startswith("'timm:resnet18' is no CLIP model. Give a model of open_clip, ")
    assert app.button(key=f"{page}_go").disabled
    app.selectbox(key=f"{page}_model").set_value("ViT-B-32").run()
    assert not app.error


def test_preview_shows_the_prompts_of_open_clip_for_data_without_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITALS_DATA_ROOTS", str(tmp_path))
    images = [write_image(tmp_path / f"{number}.png") for number in range(4)]
    lines = [f"{image.name},picture {number},{'ab'[number % 2]}" for number, image in enumerate(images)]
    (tmp_path / "pairs.csv").write_text("\n".join(["filepath,title,class", *lines]))
    app = open_page(PAGE, evaluate_data=str(tmp_path / "pairs.csv"), evaluate_csv_class_key="class")
    assert not app.exception
    page_text = plain_text(app)
    assert "itap of a a.\na bad photo of the b.\na origami a." in page_text, "open_clip's SIMPLE_IMAGENET_TEMPLATES"
    assert "14 prompts in total" in page_text


def test_first_visit_previews_the_prompts_and_queues_a_run(store: Store) -> None:
    app = open_page(PAGE)
    assert not app.exception
    page_text = plain_text(app)
    assert "1,797 pairs" in page_text
    assert "a photo of the digit zero\nthe number one\na handwritten two\nthree" in page_text
    assert "40 prompts in total" in page_text
    assert "Evaluates digits-clip on digits: retrieval, zeroshot on cpu" in page_text
    app.text_area(key="evaluate_templates").set_value("{}, by hand\n").run()
    assert "zero, by hand\none, by hand\ntwo, by hand" in plain_text(app)
    app.button(key="evaluate_go").click().run()
    assert not app.exception
    assert store.runs()[0].spec == EvaluateSpec(templates=("{}, by hand",))
    assert "No results yet" in texts(app)


def test_all_trainings_with_checkpoints_are_offered(store: Store, settings: Settings) -> None:
    cancelled, without_checkpoint = queue_train(store), queue_train(store)
    write_checkpoints(RunFiles(settings.runs_dir, cancelled).dir, "best.pt")
    record(store, cancelled, [], State.CANCELLED)  # resumed, and cancelled before its first progress
    record(store, without_checkpoint, [Progress(done=22, total=330)], State.CANCELLED)
    app = open_page(PAGE)
    models = app.selectbox(key="evaluate_model").options
    assert str(cancelled) in models
    assert str(without_checkpoint) not in models
    assert app.selectbox(key="evaluate_checkpoint").options == [f"best of run {cancelled}"]


def test_newer_trainings_of_other_models_do_not_hide_weights(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(form, "MOST_RUNS", 1)
    for model in ("digits-clip", "ViT-B-32"):
        trained = queue_train(store, model=model)
        write_checkpoints(RunFiles(settings.runs_dir, trained).dir, "best.pt")
    assert form.weights("digits-clip") == ["best of run 1"]


def test_training_can_be_evaluated_by_its_run_number(store: Store, settings: Settings) -> None:
    trained = queue_train(store, val_fraction=0.3, seed=7)
    write_checkpoints(RunFiles(settings.runs_dir, trained).dir, "latest.pt", "best.pt")
    record(store, trained, [train_row(1), Progress(done=22, total=330)])
    latest = RunFiles(settings.runs_dir, trained).dir / "checkpoints" / "latest.pt"
    app = open_page(PAGE)
    assert app.selectbox(key="evaluate_checkpoint").options == ["best of run 1", str(latest)]
    app = open_page(PAGE, evaluate_model=str(trained))
    app.selectbox(key="evaluate_checkpoint").set_value(str(latest)).run()
    app.button(key="evaluate_go").click().run()
    assert getattr(store.runs()[0].spec, "checkpoint", "") == str(latest)
    app = open_page(PAGE, evaluate_model=str(trained))
    assert not app.exception
    assert "Run 1: digits-clip on digits (cpu)" in plain_text(app)
    app.button(key="evaluate_go").click().run()
    assert not app.exception
    spec = store.runs()[0].spec
    assert isinstance(spec, EvaluateSpec)
    assert (spec.model, spec.val_fraction, spec.seed) == ("digits-clip", 0.3, 7)
    assert spec.checkpoint.endswith("/1/checkpoints/best.pt")
    app = open_page(PAGE, evaluate_model=str(trained), evaluate_samples="20")
    assert not app.exception
    assert "run 1 was trained with all samples, which decides the pairs that it held out" in plain_text(app)
    assert app.button(key="evaluate_go").disabled


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"evaluate_classes": "a\nb"}, "the data have 10 classes, but 2 names were given"),
        ({"evaluate_data": "synthetic"}, "The data need a class per image for zero-shot: choose"),
        ({"evaluate_model": f"{2**63}"}, f"there is no run {2**63}"),
        ({"evaluate_data": "nowhere.csv"}, "there is no nowhere.csv"),
        ({"evaluate_held_out_data": "a\0b"}, "Held-out data sets: must be a text without NUL"),
    ],
)
def test_invalid_settings_show_an_error_before_the_start(query: dict[str, str], message: str) -> None:
    app = open_page(PAGE, **query)
    assert not app.exception
    assert message in plain_text(app)
    assert app.button(key="evaluate_go").disabled


@pytest.mark.slow
@pytest.mark.parametrize(("group", "key"), [("Retrieval", "evaluate_recall_k"), ("Linear probe", "evaluate_probe_c")])
def test_lists_of_numbers_with_their_defaults_are_hidden_again(group: str, key: str) -> None:
    app = further(open_page(PAGE), group)
    assert key in {field.key for field in app.text_input}
    assert key not in {field.key for field in further(app, group, shown=False).text_input}


@pytest.mark.slow
def test_data_without_readable_images_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITALS_DATA_ROOTS", str(tmp_path))
    lines = [["filepath", "title"], *([name, f"a picture of {name}"] for name in "abc")]
    data = write_csv(tmp_path / "none.csv", lines)
    app = open_page(PAGE, evaluate_data=str(data), evaluate_tasks="retrieval")
    assert not app.exception
    assert "3 images opened, none can be read" in plain_text(app)
    assert app.button(key="evaluate_go").disabled


def test_linear_probe_of_images_with_several_classes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITALS_DATA_ROOTS", str(tmp_path))
    write_images(tmp_path, "a.png", "b.png")
    lines = [["filepath", "title", "tags"], ["a.png", "one", "red; big"], ["b.png", "two", "blue"]]
    fields = {"data": str(write_csv(tmp_path / "tags.csv", lines)), "tasks": "linear-probe", "csv_class_key": "tags"}
    fields = {f"evaluate_{name}": fields[name] for name in fields} | {"evaluate_csv_class_separator": ";"}
    app = open_page(PAGE, **fields)
    assert "A linear probe needs one class per image" in plain_text(app)
    assert app.button(key="evaluate_go").disabled
    app = open_page(PAGE, **fields, evaluate_more_data="digits")
    assert "A linear probe needs" not in plain_text(app), "it is possible for digits, which have one class per image"
    assert not app.button(key="evaluate_go").disabled


def test_button_turns_zero_shot_off_for_data_without_classes(store: Store) -> None:
    app = open_page(PAGE, evaluate_data="synthetic")
    app.button(key="evaluate_turn_off").click().run()
    assert not app.exception
    assert "Zero-shot needs" not in plain_text(app)
    app.button(key="evaluate_go").click().run()
    spec = store.runs()[0].spec
    assert isinstance(spec, EvaluateSpec)
    assert spec.tasks == ("retrieval",)


def store_evaluation(store: Store, settings: Settings, *rows: Row) -> int:
    """Store a finished evaluation of digits with its files, and return its run id."""
    pairs = split(open_pairs("digits"), 0.2, 0)[1]
    run_id = queue_evaluate(store)
    labels = [pairs.label(place) or 0 for place in range(30)]
    sources = [pairs.source(place) for place in range(30)]
    write_evaluation(RunFiles(settings.runs_dir, run_id).dir, sources, labels, pairs.classes)
    record(store, run_id, rows or ROWS)
    return run_id


def test_every_metric_of_a_task_is_shown() -> None:
    numbers = {name for name, field in EvaluateRow.model_fields.items() if field.annotation == float | None}
    missing = numbers - SHARES - {*NUMBERS} - {"probe_c", "seconds"}
    assert not missing, "add these to SHARES in engine/report/quantities.py, or to NUMBERS in pages/evaluate/results.py"


def test_results_show_metrics_charts_and_downloads(store: Store, settings: Settings) -> None:
    run_id = store_evaluation(store, settings)
    app = open_page(PAGE, run=str(run_id))
    assert not app.exception
    metrics = [(metric.label, metric.value) for metric in app.metric]
    assert metrics[:2] == [("Image → text R@1", "91.0 %"), ("Image → text R@5", "95.0 %")]
    assert ("Image → text mean rank", "1.5") in metrics
    assert ("Text → image median rank", "12") in metrics
    assert ("Top-1", "93.4 %") in metrics
    assert ("Top-5", "99.8 %") in metrics
    assert ("Mean recall per class", "93.0 %") in metrics, "the same label as on the page Compare"
    assert "Held-out loss" in [label for label, _ in metrics], "same label as on the other pages"
    assert sum(label == "Top-5" for label, _ in metrics) == 1, "only one of the two tasks has a top-5"
    assert "the loss depends on the batch size, here 64" in plain_text(app)
    assert "1,436 captions; guessing gives a text → image R@1 of 0.279 %; cpu" in plain_text(app)  # 1 of 359 images
    assert "359 images; 1,436 captions; 10 classes (guessing is right for 10 %)" in plain_text(app)
    keys = [button.key for button in app.get("download_button")]
    assert keys == [
        *("rows_1_csv", "rows_1_json", "rows_1_parquet"),
        *("zeroshot_confusion.csv_1", "zeroshot_predictions.csv_1", "linear-probe_confusion.csv_1"),
    ]
    tabs = ["Confusion, zeroshot", "Predictions", "Confusion, linear-probe", "Map", "Search", "Try a picture"]
    assert [tab.label for tab in app.tabs] == tabs
    assert len(charts(app)) == 1
    mistakes = app.dataframe[-1].value
    assert list(mistakes["count"]) == [1]


@pytest.mark.slow
def test_note_of_all_tasks_is_shown_once(store: Store) -> None:
    epoch = "the weights are those of epoch 2"
    run_id = queue_evaluate(store)
    record(store, run_id, [evaluate_row("retrieval", notes=(epoch,)), evaluate_row("zeroshot", notes=(epoch, "other"))])
    page_text = plain_text(open_page(PAGE, run=str(run_id)))
    assert (page_text.count("The weights are those of epoch 2."), page_text.count("Other.")) == (1, 1)


def test_several_models_and_data_sets_share_one_table(store: Store, settings: Settings) -> None:
    run_id = queue_evaluate(store, more_models=("digits-clip,b.pt",), more_data=("synthetic",))
    folder = RunFiles(settings.runs_dir, run_id).dir
    write_evaluation(folder, ["digits:1", "digits:2"], [0, 1], ["a", "b"])
    failed_fields = {
        "status": "error",
        "error": "no labels",
        "data": "synthetic",
        "confusion_file": "",
        "predictions_file": "",
    }
    failed_fields |= dict.fromkeys(("acc1", "acc5", "mean_per_class_recall"))
    other_row = evaluate_row(
        "zeroshot", checkpoint="b.pt", acc1=0.5, recalls={"image_to_text_r3": 0.25}, text_to_image_r5=0.5
    )
    searched = evaluate_row("retrieval", checkpoint="b.pt")
    record(store, run_id, [evaluate_row("zeroshot"), evaluate_row("zeroshot", **failed_fields), other_row, searched])
    app = open_page(PAGE, run=str(run_id))
    assert not app.exception
    table = next(frame.value for frame in app.dataframe if "checkpoint" in frame.value)
    assert list(table["data"]) == ["digits", "synthetic", "digits", "digits"]
    assert list(table["error"]) == ["", "no labels", "", ""]
    assert table["image_to_text_r3"].to_list()[2] == 25, "in per cent"
    assert table["text_to_image_r5"].to_list()[2] == 50
    assert table[["image_to_text_mean_rank", "clip_val_loss"]].to_numpy()[3].tolist() == [1.5, 2.5]
    assert "image_to_text_median_rank" not in table, "no row has a value"
    assert [metric.value for metric in app.metric if metric.label == "Top-1"] == ["93.4 %"]
    app.selectbox(key=f"part_{run_id}").set_value(("digits-clip", "b.pt", "digits")).run()
    assert not app.exception
    assert [metric.value for metric in app.metric if metric.label == "Top-1"] == ["50.0 %"]
    assert [metric.value for metric in app.metric if metric.label == "Image → text R@3"] == ["25.0 %"]


def test_predictions_are_shown_as_pictures(store: Store, settings: Settings) -> None:
    run_id = store_evaluation(store, settings)
    app = open_page(PAGE, run=str(run_id))
    app.session_state[f"charts_{run_id}"] = "Predictions"
    app.run()
    assert not app.exception
    assert "1 of 30 predictions, the most confident first" in plain_text(app)
    assert ["predicted as **" in caption for caption in prediction_captions(app)] == [True]
    app.get_by_key(f"kind_{run_id}").set_value("All").run()
    assert "30 of 30" in plain_text(app)
    confidences = [int(caption.split()[-2]) for caption in prediction_captions(app)]
    assert len(confidences) == 24
    assert confidences == sorted(confidences, reverse=True)
    assert len(set(confidences)) > 1
    name = app.selectbox(key=f"true_{run_id}").options[0]
    app.selectbox(key=f"true_{run_id}").set_value(name).run()
    assert 0 < len(prediction_captions(app)) < 24
    captions = prediction_captions(app)
    assert all(f": {name}," in caption for caption in captions)
    link = {f"charts_{run_id}": "Predictions", f"kind_{run_id}": "All", f"true_{run_id}": name, f"many_{run_id}": "2"}
    assert prediction_captions(open_page(PAGE, run=str(run_id), **link)) == captions[:2]


@pytest.mark.slow
def test_map_shows_embeddings_of_images_and_captions(store: Store, settings: Settings) -> None:
    run_id = store_evaluation(store, settings)
    app = open_page(PAGE, run=str(run_id))
    app.session_state[f"charts_{run_id}"] = "Map"
    app.run()
    assert not app.exception
    assert "First two principal components of the embeddings" in plain_text(app)
    (aligned,) = charts(app)
    app.toggle(key=f"aligned_{run_id}").set_value(False).run()
    assert not app.exception
    assert len(charts(app)) == 1
    assert charts(app) != [aligned]


@pytest.mark.slow
def test_missing_or_unreadable_files_show_errors_and_keep_metrics(store: Store, settings: Settings) -> None:
    run_id = store_evaluation(store, settings)
    folder = RunFiles(settings.runs_dir, run_id).dir
    (folder / "zeroshot_confusion.csv").unlink()
    (folder / "zeroshot_predictions.csv").write_text("a,b\n1,2\n")
    (folder / "embeddings.npz").write_bytes(b"nothing")
    app = open_page(PAGE, run=str(run_id))
    assert "zeroshot_confusion.csv was not kept with this run" in plain_text(app)
    (folder / "linear-probe_confusion.csv").write_text(f"true,a,b\na,0,{10**30}\nb,0,1\n")
    problems = {"Predictions": "lacks the columns source", "Map": "embeddings.npz cannot be read"}
    problems |= {"Confusion, linear-probe": "linear-probe_confusion.csv cannot be read: Python int too large"}
    for tab, message in problems.items():
        app.session_state[f"charts_{run_id}"] = tab
        app.run()
        assert not app.exception
        assert message in plain_text(app)
        assert len(app.metric) > 5


@pytest.mark.parametrize("way", ["upwards", "absolute", "link"])
def test_rows_cannot_name_files_of_other_folders(store: Store, settings: Settings, tmp_path: Path, way: str) -> None:
    """Imported rows may contain such names."""
    write_evaluation(tmp_path / "other", ["0.png", "1.png"], [0, 1], ["secret a", "secret b"])
    names = {"confusion_file": "zeroshot_confusion.csv", "predictions_file": "zeroshot_predictions.csv"}
    names["embeddings_file"] = "embeddings.npz"
    run_id = queue_evaluate(store)
    folder = RunFiles(settings.runs_dir, run_id).dir
    folder.mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path / "other")
    prefix = {"upwards": "../../other", "absolute": str(tmp_path / "other"), "link": "link"}[way]
    record(store, run_id, [evaluate_row("zeroshot", **{field: f"{prefix}/{name}" for field, name in names.items()})])
    for tab in ("Confusion, zeroshot", "Predictions", "Map"):
        app = open_page(PAGE, run=str(run_id))
        app.session_state[f"charts_{run_id}"] = tab
        app.run()
        assert not app.exception
        assert "was not kept with this run" in plain_text(app)
        assert not any("secret" in str(frame.value) for frame in app.dataframe)
        downloads = [button.key for button in app.get("download_button")]
        assert downloads == [f"rows_{run_id}_{format}" for format in ("csv", "json", "parquet")]


@pytest.mark.slow
def test_predictions_with_missing_images_have_a_table(
    store: Store, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITALS_DATA_ROOTS", str(tmp_path))
    write_images(tmp_path, *(f"{n}.png" for n in range(4)))
    path = write_csv(tmp_path / "pairs.csv", [["filepath", "title"], *([f"{n}.png", f"{n}"] for n in range(4))])
    run_id = queue_evaluate(store, data=str(path), held_out=False)
    folder = RunFiles(settings.runs_dir, run_id).dir
    write_evaluation(folder, ["elsewhere.png", str(tmp_path / "1.png")], [0, 1], ["a", "b"])
    record(store, run_id, [evaluate_row("zeroshot")])
    app = open_page(PAGE, run=str(run_id))
    app.session_state[f"charts_{run_id}"] = "Predictions"
    app.run()
    app.get_by_key(f"kind_{run_id}").set_value("All").run()
    assert not app.exception
    assert len(prediction_captions(app)) == 1, "the other image was not found in the data"
    assert list(app.dataframe[-1].value["source"]) == ["elsewhere.png", str(tmp_path / "1.png")]


def test_failed_task_shows_its_error(store: Store, settings: Settings) -> None:
    no_values = dict.fromkeys(("acc1", "acc5", "mean_per_class_recall", "classes"))
    failed = evaluate_row(
        "zeroshot", status="error", error="no labels", confusion_file="", predictions_file="", **no_values
    )
    app = open_page(PAGE, run=str(store_evaluation(store, settings, failed)))
    assert not app.exception
    assert [error.value for error in app.error] == ["no labels"]
    assert [tab.label for tab in app.tabs] == ["Map", "Search", "Try a picture"]


FIELDS = [
    {},
    {"model": "ViT-B-32", "checkpoint": "laion2b", "image_size": 96, "held_out": False, "tasks": ["linear-probe"]},
    {"data": "/data/a.csv", "csv_separator": "\t", "classes": ["a cat", "b, c"], "templates": ["-{}.", "{}"]},
    {
        **{
            "more_models": ["ViT-B-32,openai", "RN50"],
            "more_data": ["/b, c.csv", "digits"],
            "held_out_data": ["digits"],
        },
        **{"class_prompts": {"a cat": ["it's a {cat}."]}, "recall_k": [1, 20], "probe_c": [0.5, 2], "shots": 4},
        **{"probe_data": "/train", "reuse_features": False},
    },
]


@pytest.mark.parametrize("fields", FIELDS)
def test_command_has_the_same_settings_as_the_run(fields: dict[str, object]) -> None:
    spec = EvaluateSpec.model_validate(fields)
    arguments = shlex.split(command(spec))
    assert arguments[:4] == ["python", "-m", "engine", "evaluate"]
    assert parsed(clip.Evaluate, arguments[4:]) == spec


@pytest.mark.slow
@pytest.mark.parametrize("fields", [FIELDS[1], {**FIELDS[3], "class_prompts": ""}])
def test_link_with_settings_fills_the_form(store: Store, fields: dict[str, object]) -> None:
    spec = EvaluateSpec.model_validate(fields | {"more_data": ["synthetic"], "probe_data": "digits"})
    app = open_page(PAGE, **link.split(spec)[0])
    assert not app.exception
    assert shlex.split(command(spec)) == shlex.split(verbatim(app)[0])


class FakeSearch:
    """Fake of the process that answers questions. It records them, and the test sets the answers."""

    def __init__(self) -> None:
        self.started = 0
        self.questions: list[Search] = []
        self.answers: list[Future[dict[str, Any]]] = []

    def start(self) -> None:
        self.started += 1

    def ask(self, question: Question) -> "Future[dict[str, Any]]":
        assert isinstance(question, Search)
        self.questions.append(question)
        self.answers.append(Future())
        return self.answers[-1]


@pytest.fixture
def fake_search(monkeypatch: pytest.MonkeyPatch) -> FakeSearch:
    process = FakeSearch()
    monkeypatch.setattr(backend, "answers", lambda: process)
    return process


def open_search(run_id: int) -> AppTest:
    """Open the tab Search on the page of the run, which asks nothing else."""
    app = open_page("run/page.py", run=str(run_id))
    app.session_state[f"charts_{run_id}"] = "Search"
    return app.run()


def search_answer(*sources: str) -> dict[str, Any]:
    hit_list = [
        Hit(index=row, source=source, label="seven", similarity=0.5 - row / 100) for row, source in enumerate(sources)
    ]
    return Hits(hits=tuple(hit_list), images=359).model_dump(mode="json")


def hit_captions(app: AppTest) -> list[str]:
    """Return the captions of hits. Only these begin with a similarity."""
    captions = [picture.caption for element in app.get("image") for picture in element.proto.imgs]
    return [caption.replace("\\", "") for caption in captions if caption.startswith("**0.")]


@pytest.mark.slow
def test_images_are_searched_by_text(store: Store, settings: Settings, fake_search: FakeSearch) -> None:
    run_id = store_evaluation(store, settings)
    app = open_search(run_id)
    assert not app.exception
    assert fake_search.started, "the process starts while the user types"
    assert not fake_search.questions
    app.text_input(key=f"search_text_{run_id}").set_value(" a handwritten seven ").run()
    assert "Searching" in plain_text(app)
    app.run()
    assert [(question.text, question.top) for question in fake_search.questions] == [("a handwritten seven", 12)]
    assert fake_search.questions[0].spec == store.run(run_id).spec
    assert fake_search.questions[0].folder == RunFiles(settings.runs_dir, run_id).dir
    fake_search.answers[0].set_result(search_answer("digits:7", "digits:17"))
    app.run()
    assert not app.exception
    assert hit_captions(app) == ["**0.500** seven  \ndigits:7", "**0.490** seven  \ndigits:17"]
    assert "The 2 of 359 images most similar to “a handwritten seven”" in plain_text(app)
    assert f"search_{run_id}_csv" in [button.key for button in app.get("download_button")]
    app.number_input(key=f"search_top_{run_id}").set_value(3).run()
    assert [question.top for question in fake_search.questions] == [12, 3]
    assert "Searching" in plain_text(app)


@pytest.mark.slow
def test_failed_search_shows_its_error_and_can_be_retried(
    store: Store, settings: Settings, fake_search: FakeSearch
) -> None:
    run_id = store_evaluation(store, settings)
    app = open_search(run_id)
    app.text_input(key=f"search_text_{run_id}").set_value("seven").run()
    fake_search.answers[0].set_exception(Refused("best.pt has *changed* since it was evaluated"))
    app.run()
    assert [error.value.replace("\\", "") for error in app.error] == ["best.pt has *changed* since it was evaluated"]
    app.run()
    assert len(fake_search.questions) == 1, "a failed search is not repeated automatically"
    app.button(key=f"search_{run_id}_again").click().run()
    assert len(fake_search.questions) == 2
    assert "Searching" in plain_text(app)


@pytest.mark.slow
def test_search_without_checkpoint_shows_an_error(store: Store, settings: Settings, fake_search: FakeSearch) -> None:
    run_id = queue_evaluate(store, checkpoint="/nowhere/best.pt")
    record(store, run_id, [evaluate_row("zeroshot")])
    app = open_search(run_id)
    app.text_input(key=f"search_text_{run_id}").set_value("seven").run()
    assert not app.exception
    assert "checkpoint: nothing can be read at '/nowhere/best.pt'" in plain_text(app)
    assert not fake_search.questions


@pytest.mark.slow
def test_hits_with_missing_images_have_a_table(
    store: Store, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_search: FakeSearch
) -> None:
    monkeypatch.setenv("VITALS_DATA_ROOTS", str(tmp_path))
    write_images(tmp_path, *(f"{n}.png" for n in range(4)))
    path = write_csv(tmp_path / "pairs.csv", [["filepath", "title"], *([f"{n}.png", f"{n}"] for n in range(4))])
    run_id = queue_evaluate(store, data=str(path), held_out=False)
    record(store, run_id, [evaluate_row("retrieval")])
    app = open_search(run_id)
    app.text_input(key=f"search_text_{run_id}").set_value("seven").run()
    sources = ["=elsewhere.png", str(tmp_path / "3.png")]
    fake_search.answers[0].set_result(search_answer(*sources))
    app.run()
    assert not app.exception
    assert len(hit_captions(app)) == 1, "the other image does not exist"
    assert list(app.dataframe[-1].value["source"]) == sources
    path.unlink()
    app.run()
    assert not app.exception
    assert "The images are not available any more" in plain_text(app)
    assert list(app.dataframe[-1].value["source"]) == sources


def test_page_shows_the_recall_limit_of_repeated_captions(store: Store) -> None:
    run_id = queue_evaluate(store, tasks=("retrieval",))
    record(store, run_id, [evaluate_row("retrieval", captions=40, distinct_captions=3, embeddings_file="")])
    page_text = plain_text(open_page(PAGE, run=str(run_id)))
    assert "40 captions, 3 distinct" in page_text
    assert "so text-to-image R@1 is at most 7.5 %" in page_text  # 3 of 40
