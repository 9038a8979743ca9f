"""The list of runs and the page of one run, in every state a run can have."""

import re
import time
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import update
from streamlit.testing.v1 import AppTest

from engine.results import Progress, Row
from engine.settings import Settings
from engine.specs import BenchmarkSpec, DeviceSpec, ProfileSpec, RecurrentSpec, Spec, TrainSpec
from engine.specs.evaluate import EvaluateSpec
from engine.store import Attempt, Cause, Exit, State, Store, StoredArtifact, attempts, bundle_files, mirror, tables
from engine.store import queue as queueing
from engine.store.bundle import export_bundle
from engine.store.files import RunFiles
from pages.history import filters
from pages.shared import run_view
from tests.support.clip import queue_train, record, train_row, write_checkpoints
from tests.support.page import (
    ENVIRONMENT,
    benchmark_row,
    events,
    finish,
    followed,
    open_page,
    profile_row,
    queue,
    queue_benchmark,
    texts,
    unfold,
    verbatim,
)

EVERY_KIND = [
    (
        ProfileSpec(
            models=("resnet18", "vit*"), device="cpu", batch_size=3, image_size=(192, 256), precision="bfloat16"
        ),
        "profile --models 'resnet18,vit*' --device cpu --batch-size 3 --image-size 192x256 --precision bfloat16",
    ),
    (
        BenchmarkSpec(
            models=("resnet18",), mode="both", batch_size=4, variants=("eager", "compile"), replicates=2, seed=7
        ),
        "benchmark --models resnet18 --mode both --batch-size 4 --variants eager,compile --replicates 2 --seed 7",
    ),
    (
        RecurrentSpec(
            groups=("rnns",), hidden_size=96, bidirectional=True, sweep="seq_length", sweep_values=(10, 20), seed=7
        ),
        "recurrent --groups rnns --hidden-size 96 --bidirectional --sweep seq_length --sweep-values 10,20 --seed 7",
    ),
    (
        DeviceSpec(dtypes=("float32", "tf32"), seconds=5, threads=2),
        "device --dtypes float32,tf32 --seconds 5.0 --threads 2",
    ),
    (
        TrainSpec(data="synthetic", samples=64, epochs=2, lr=1e-4, warmup="20%", classes=("a cat", "a dog"), seed=7),
        "train --data synthetic --samples 64 --classes 'a cat\na dog' --lr 0.0001 --epochs 2 --warmup 20% --seed 7",
    ),
    (
        EvaluateSpec(samples=64, templates=("a {}", "one {}"), held_out=False, seed=7),
        "evaluate --samples 64 --templates 'a {}\none {}' --no-held-out --seed 7",
    ),
]
"""Requests, and the words after `python -m engine` that ask for the same."""
LIST, ONE = "history/page.py", "run/page.py"

# A scheduler outlives whoever started it: that nobody waits for it is meant.
pytestmark = [
    pytest.mark.usefixtures("own_world"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


def start(store: Store, run_id: int) -> Attempt:
    attempt = queueing.claim(store.database, ENVIRONMENT.host, run_id)
    assert attempt
    attempts.begin(store.database, attempt)
    return attempt


def bring_to(store: Store, state: State, cause: Cause = Cause.ERROR, **fields: object) -> int:
    """A run of two models, one of them counted, in this state."""
    run_id = queue(store, "resnet18", "resnet50", **fields)
    if state is State.QUEUED:
        return run_id
    attempt = start(store, run_id)
    if state is State.STARTING:
        return run_id
    attempts.record(store.database, attempt, events([profile_row("resnet18")], 2))
    match state:
        case State.STOPPING:
            store.request_cancel(run_id)
            attempts.mark_stopping(store.database, attempt)
        case State.VANISHED:
            attempts.mark_vanished(store.database, attempt)
        case State.FAILED:
            attempts.finish(store.database, attempt, state, cause, "RuntimeError: **it** <b>broke</b>")
            attempts.close(store.database, attempt, Exit(code=1), cause, "")
        case State.FINISHED | State.CANCELLED:
            attempts.finish(store.database, attempt, state)
            attempts.close(store.database, attempt, Exit(code=0), cause, "")
        case _:
            pass
    assert store.run(run_id).state == state
    return run_id


def listed(app: AppTest) -> list[int]:
    """The numbers of the runs on the page."""
    (table,) = [table for table in app.dataframe if table.key == "runs_table"]
    return [int(number) for number in table.value["id"]]


def took(app: AppTest) -> float:
    """Seconds of the newest run, as listed."""
    (table,) = [table for table in app.dataframe if table.key == "runs_table"]
    return float(table.value["duration_s"].iloc[0])


def tick(app: AppTest, *run_ids: int) -> None:
    """Choose runs in the list."""
    app.session_state["runs_selected"] = [str(run_id) for run_id in run_ids]
    app.run()
    assert chosen(app) == sorted(run_ids)


def chosen(app: AppTest) -> list[int]:
    """The numbers of the selected runs on the page."""
    numbers = listed(app)
    return sorted(numbers[place] for place in app.session_state["runs_table"]["selection"]["rows"])


def columns(app: AppTest) -> list[str]:
    """The columns of the list of runs, without its numbers."""
    (table,) = [table for table in app.dataframe if table.key == "runs_table"]
    return [name for name in table.value if name != "id"]


@pytest.mark.slow
def test_an_empty_list_says_what_to_do_next() -> None:
    app = open_page(LIST)
    assert not app.exception
    assert "No active runs" in texts(app)
    assert "No runs yet" in texts(app)
    assert app.page_link


def estimate(store: Store, seconds_left: float) -> None:
    """Of the one run that is running."""
    (attempt,) = attempts.open_attempts(store.database)
    attempts.record(store.database, attempt, [Progress(done=1, total=2, seconds_left=seconds_left)])


@pytest.mark.slow
def test_what_runs_and_what_waits_is_on_top_with_positions(store: Store) -> None:
    ended = bring_to(store, State.FINISHED)
    running = bring_to(store, State.RUNNING)
    estimate(store, 60.0)
    first, second = queue(store, "resnet18"), queue(store, "resnet50")
    app = open_page(LIST)
    assert not app.exception
    lines = [element.value for element in app.text]
    assert lines[0].startswith(f"{running}  resnet18, resnet50 (torch, meta): 1 of 2 counts done")
    assert lines[1].startswith(f"{first}  resnet18 (torch, meta): next in the queue, starts in ")
    assert lines[2].startswith(f"{second}  resnet50 (torch, meta): 2nd in the queue, starts ")
    assert listed(app) == [second, first, running, ended]
    app.button(key=f"runs_cancel_{first}").click().run()
    assert store.run(first).state is State.CANCELLED
    assert "– cancelled" in set(app.dataframe[0].value["state"])


@pytest.mark.slow
def test_behind_a_run_that_takes_longer_than_estimated_no_time_is_promised(store: Store) -> None:
    running = bring_to(store, State.RUNNING)
    estimate(store, 0.0)
    queue(store, "resnet18")
    assert f"next in the queue, starts after run {running}" in texts(open_page(LIST))


@pytest.mark.slow
def test_a_run_that_waits_for_disk_space_says_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = bring_to(store, State.QUEUED)
    monkeypatch.setenv("VITALS_MIN_FREE_GB", "1e9")
    for app in (open_page(LIST), open_page(ONE, run=str(run_id))):
        assert "next in the queue, starts when there is disk space: " in texts(app)
        assert "VITALS_MIN_FREE_GB asks for 1e+09 GB" in texts(app)


@pytest.mark.slow
def test_two_windows_keep_each_others_tags_and_notes(store: Store) -> None:
    run_id = bring_to(store, State.FINISHED)
    one, other = open_page(ONE, run=str(run_id)), open_page(ONE, run=str(run_id))
    tags, notes = f"run_tags_{run_id}", f"run_notes_{run_id}"
    one.multiselect(key=tags).set_value(["alpha"]).run()
    other.multiselect(key=tags).set_value(["beta"]).run()
    assert other.multiselect(key=tags).value == ["alpha", "beta"]
    one.multiselect(key=tags).set_value([]).run()
    assert store.run(run_id).tags == ("beta",)
    one.text_area(key=notes).set_value("by one").run()
    one.text_area(key=notes).set_value("by one, again").run()
    assert store.run(run_id).notes == "by one, again"
    assert "changed elsewhere" not in texts(one)
    other.text_area(key=notes).set_value("by the other").run()
    assert not other.exception
    assert "These notes were also changed elsewhere" in texts(other)
    assert store.run(run_id).notes == other.text_area(key=notes).value == "by one, again\n\nby the other"
    one.text_area(key=notes).set_value("").run()
    assert store.run(run_id).notes == "by one, again\n\nby the other"
    other.text_area(key=notes).set_value("merged").run()
    assert store.run(run_id).notes == "merged"


@pytest.mark.slow
def test_what_a_running_run_has_taken_is_not_kept_from_the_last_look(store: Store) -> None:
    bring_to(store, State.RUNNING)
    app = open_page(LIST)
    before, revision = took(app), store.revision()
    app.run()
    assert store.revision() == revision
    assert took(app) > before


@pytest.mark.slow
def test_runs_that_ended_meanwhile_are_offered_not_forced(store: Store) -> None:
    run_id = bring_to(store, State.RUNNING)
    waiting = queue(store, "resnet18")
    app = open_page(LIST)
    assert "runs_refresh" not in {button.key for button in app.button}
    store.request_cancel(waiting)
    app.run()
    assert list(app.dataframe[0].value["state"])[:2] == ["– cancelled", "▸ running"]
    assert store.run(run_id).state is State.RUNNING


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "words"),
    [
        (State.QUEUED, "next in the queue"),
        (State.STARTING, "loading PyTorch, about 10 s the first time"),
        (State.RUNNING, "1 of 2 counts done"),
        (State.STOPPING, "stopping; 1 of 2 counts done"),
        (State.FINISHED, "1 of 2 counts done; the run took"),
        (State.FAILED, "error after"),
        (State.VANISHED, "no heartbeat, and its process cannot be reached"),
        (State.CANCELLED, "stopped on request; 1 of 2 counts done, 1 row kept"),
    ],
)
def test_every_state_is_told_in_words(store: Store, state: State, words: str) -> None:
    run_id = bring_to(store, state)
    app = open_page(ONE, run=str(run_id))
    assert not app.exception
    assert words in texts(app)
    assert f"{state.value}]" in texts(app)  # the badge
    keys = {button.key for button in app.button}
    assert (f"cancel_{run_id}" in keys) == (not state.ended)
    assert ("run_delete" in keys) == state.ended
    assert (f"again_{run_id}" in keys) == (f"retry_{run_id}" in keys) == (state in (State.FAILED, State.CANCELLED))


@pytest.mark.slow
def test_a_run_shows_what_was_asked_where_it_ran_and_what_it_printed(store: Store, settings: Settings) -> None:
    run_id = bring_to(store, State.FINISHED, image_size=192)
    files = RunFiles(settings.runs_dir, run_id)
    files.dir.mkdir(parents=True, exist_ok=True)
    files.log.write_text("one\n<script>alert(1)</script> **two**\n")
    app = open_page(ONE, run=str(run_id))
    assert "<script>alert(1)</script> **two**" in [text.splitlines()[-1] for text in verbatim(app)]
    app.session_state["run_about"] = "Request"
    app.run()
    assert "python -m engine profile --models resnet18,resnet50 --image-size 192" in verbatim(app)
    app.session_state["run_about"] = "Environment"
    app.run()
    assert not app.exception
    assert {"version of torch", "host"} <= set(app.dataframe[-1].value["what"])


@pytest.mark.slow
@pytest.mark.parametrize("spec", [spec for spec, _ in EVERY_KIND], ids=lambda spec: spec.kind)
def test_a_run_that_ended_without_results_promises_none(store: Store, spec: Spec) -> None:
    run_id = store.enqueue(spec)
    assert re.search(r"No (results|timings|measurements|models counted) yet\.", texts(open_page(ONE, run=str(run_id))))
    store.request_cancel(run_id)
    app = open_page(ONE, run=str(run_id))
    app.session_state["run_about"] = "Environment"
    app.run()
    assert not app.exception
    assert "This run ended without results." in texts(app)
    assert "No environment was recorded." in texts(app)
    assert " yet. " not in texts(app)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "words"),
    [(State.QUEUED, "has no log yet: it is queued"), (State.FINISHED, "has no log here: a run in the foreground")],
)
def test_a_run_without_a_log_says_why(store: Store, state: State, words: str) -> None:
    run_id = bring_to(store, state)
    assert f"Run {run_id} {words}" in texts(open_page(ONE, run=str(run_id)))


@pytest.mark.slow
def test_a_run_of_another_machine_shows_its_log_or_says_why_not(
    store: Store, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = bring_to(store, State.RUNNING)
    attempt = attempts.current(store.database, run_id)
    assert attempt is not None
    attempts.finish(store.database, attempt, State.FINISHED)
    attempts.warn(store.database, attempt, "its files are only there")
    copies = tmp_path / "copies"
    there = settings.model_copy(update={"runs_dir": tmp_path / "elsewhere", "artifacts_url": str(copies)})
    files = RunFiles(there.runs_dir, run_id)
    files.prepare()
    files.log.write_text("printed elsewhere\n")
    mirror.upload(there, store.run(run_id))
    monkeypatch.setenv("VITALS_ARTIFACTS_URL", str(copies))
    copies.rename(tmp_path / "aside")
    copies.write_text("no folder")
    app = open_page(ONE, run=str(run_id))
    assert [warning.value[:8] for warning in app.warning] == ["its file", "Log\\, sa"]
    assert f"Run {run_id} has its log on another machine: see the warning above." in texts(app)
    copies.unlink()
    (tmp_path / "aside").rename(copies)
    monkeypatch.setattr(mirror, "FAILED_S", 0.0)
    assert "printed elsewhere\n" in verbatim(app.run())
    assert len(app.warning) == 1


@pytest.mark.slow
def test_errors_are_text(store: Store) -> None:
    (error,) = open_page(ONE, run=str(bring_to(store, State.FAILED))).error
    assert error.value == "RuntimeError\\: \\*\\*it\\*\\* \\<b\\>broke\\<\\/b\\>"


@pytest.mark.slow
def test_out_of_memory_offers_half_the_batch(store: Store) -> None:
    run_id = bring_to(store, State.FAILED, Cause.OUT_OF_MEMORY, batch_size=9)
    app = open_page(ONE, run=str(run_id))
    assert "out of memory" in texts(app)
    app.button(key=f"half_{run_id}").click().run()
    assert not app.exception
    assert store.runs()[0].spec.batch_size == (4,)
    assert store.runs()[0].state is State.QUEUED


@pytest.mark.slow
def test_again_is_a_new_run(store: Store) -> None:
    run_id = bring_to(store, State.CANCELLED)
    app = open_page(ONE, run=str(run_id))
    app.button(key=f"again_{run_id}").click().run()
    again = store.runs()[0]
    assert again.id != run_id
    assert again.spec == store.run(run_id).spec


@pytest.mark.slow
def test_a_clone_opens_the_form_filled_alike(store: Store) -> None:
    run_id = bring_to(
        store, State.FINISHED, counter="both", device="cpu", batch_size=3, image_size="192x256", training=True
    )
    app = open_page(ONE, run=str(run_id))
    app = followed(app, "Edit a copy")
    assert not app.exception
    assert app.title[0].value == "Profile"
    assert app.multiselect(key="profile_models").value == ["resnet18", "resnet50"]
    assert verbatim(app)[0] == (
        "python -m engine profile --models resnet18,resnet50 --counter both --device cpu --batch-size 3 "
        "--image-size 192x256 --training"
    )


@pytest.mark.slow
def test_a_list_too_long_for_a_link_is_put_aside_for_the_form_until_it_is_taken_away(store: Store) -> None:
    names = tuple(f"timm:model_{number}" for number in range(41))
    run_id = store.enqueue(ProfileSpec(models=names))
    app = open_page(ONE, run=str(run_id))
    app.button(key=f"clone_{run_id}").click().run()
    assert not app.exception
    assert "and a list of 41: timm:model_0, timm:model_1, " in texts(app)
    assert app.query_params["profile_listed"] == "41"
    app.switch_page("profile/page.py")
    next(button for button in app.run().button if button.label == "Remove the list").click().run()
    assert not app.exception
    assert "a list of" not in texts(app)
    assert "This link refers to a list of 40 models" in texts(open_page("profile/page.py", profile_listed="40"))


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "command"), EVERY_KIND, ids=[spec.kind for spec, _ in EVERY_KIND])
def test_a_clone_asks_for_the_same_whatever_its_kind(store: Store, spec: Spec, command: str) -> None:
    run_id = store.enqueue(spec)
    app = open_page(ONE, run=str(run_id))
    app = followed(app, "Edit a copy")
    assert not app.exception
    assert f"python -m engine {command}" in verbatim(app)


@pytest.mark.slow
def test_deletion_asks_twice_and_takes_everything(store: Store, settings: Settings) -> None:
    run_id = bring_to(store, State.FAILED)
    folder = RunFiles(settings.runs_dir, run_id).dir
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights.pt").write_bytes(b"0" * 1500)
    (folder / "log.txt").write_bytes(b"0" * 500)
    app = open_page(ONE, run=str(run_id))
    app.button(key="run_delete").click().run()
    assert "2 files (2 kB)" in texts(app)
    assert app.button(key="runs_delete_sure").disabled
    app.text_input(key="runs_delete_number").set_value(str(run_id + 1)).run()
    assert app.button(key="runs_delete_sure").disabled
    app.text_input(key="runs_delete_number").set_value(str(run_id)).run()
    assert store.run(run_id)
    app.button(key="runs_delete_sure").click().run()
    assert not app.exception
    with pytest.raises(LookupError):
        store.run(run_id)
    assert not folder.exists()


@pytest.mark.slow
def test_the_dialog_names_the_runs_that_began_from_a_deleted_one(store: Store, settings: Settings) -> None:
    run_id = bring_to(store, State.FAILED)
    best, other = (settings.runs_dir / str(number) / "checkpoints" / "best.pt" for number in (run_id, 10 * run_id))
    used = store.enqueue(TrainSpec(model="ViT-B-32", pretrained=str(best)))
    store.enqueue(EvaluateSpec(model="ViT-B-32", checkpoint=str(other)))
    more = store.enqueue(EvaluateSpec(model="ViT-B-32", more_models=(f"ViT-B-16,{best}",)))
    app = open_page(ONE, run=str(run_id))
    app.button(key="run_delete").click().run()
    assert f"2 other runs began from it: evaluate {more}, train {used}. They keep" in texts(app)


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["99", "", "9" * 30])
def test_a_link_to_no_run_says_so(asked: str) -> None:
    app = open_page(ONE, run=asked)
    assert not app.exception
    assert "No such run" in texts(app)


@pytest.mark.slow
def test_a_bundle_comes_back_as_a_run(store: Store, settings: Settings) -> None:
    bundle = export_bundle(store, settings, bring_to(store, State.FINISHED))
    app = unfold(open_page(LIST), "Import")
    app.file_uploader[0].upload("run-1.zip", bundle)
    app.run()
    app.button(key="runs_import").click().run()
    assert not app.exception
    assert len(store.runs()) == 2
    assert list(app.dataframe[0].value["model"]) == ["resnet18"]


@pytest.mark.slow
@pytest.mark.parametrize("public", [True, False])
def test_a_public_server_is_warned_of_on_its_pages(store: Store, monkeypatch: pytest.MonkeyPatch, public: bool) -> None:
    monkeypatch.setenv("VITALS_PUBLIC", str(int(public)))
    app = open_page(LIST)
    assert not app.exception
    warnings = [warning.value for warning in app.sidebar.warning]
    assert len(warnings) == public
    assert all(
        "sign-in is not configured" in warning.replace("\\", "") and "whole home folder" in warning
        for warning in warnings
    )


@pytest.mark.slow
def test_files_that_a_bundle_leaves_out_are_named(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = queue_train(store)
    write_checkpoints(RunFiles(settings.runs_dir, run_id).dir, "best.pt", "latest.pt")
    weights = {"kind": "checkpoint", "size": len(b"weights"), "sha256": sha256(b"weights").hexdigest()}
    names = ("checkpoints/best.pt", "checkpoints/latest.pt")
    record(store, run_id, [train_row(1), *(StoredArtifact(name=name, **weights) for name in names)])

    def captions() -> str:
        app = open_page("run/page.py", run=str(run_id))
        assert not app.exception
        return " ".join(caption.value.replace("\\", "") for caption in app.caption)

    assert "not in the bundle" not in captions()
    monkeypatch.setattr(bundle_files, "ARTIFACT_BYTES", 10)
    assert "not in the bundle, because it takes at most 0 MB of files: checkpoints/latest.pt" in captions()


@pytest.mark.slow
def test_a_file_that_is_no_bundle_is_refused(store: Store) -> None:
    app = unfold(open_page(LIST), "Import")
    app.file_uploader[0].upload("run.zip", b"not a zip")
    app.run()
    app.button(key="runs_import").click().run()
    assert not app.exception
    assert app.error[0].value.replace("\\", "").startswith("run.zip is not a run bundle: ")
    assert not store.runs()


@pytest.mark.slow
def test_a_run_stays_when_its_address_is_replaced_by_that_of_the_list(store: Store) -> None:
    run_id = bring_to(store, State.FAILED)
    assert "No such run" in texts(open_page(ONE, runs_selected="3"))
    app = open_page(ONE, run=str(run_id))
    app.query_params.clear()
    app.query_params["runs_selected"] = "3"
    app.run()
    assert not app.exception
    assert app.title[0].value == f"Run {run_id}"
    assert app.query_params["run"] == str(run_id)
    clicked = queue(store, "resnet34")  # in the list; the address is replaced before the page is drawn
    app.session_state[run_view.OPENED] = str(clicked)
    app.query_params.clear()
    assert app.run().title[0].value == f"Run {clicked}"


@pytest.mark.slow
def test_a_run_is_tried_again_in_its_place(store: Store) -> None:
    run_id = bring_to(store, State.FAILED)
    app = open_page(ONE, run=str(run_id))
    app.button(key=f"retry_{run_id}").click().run()
    assert not app.exception
    assert store.run(run_id).state is State.QUEUED
    assert len(store.runs()) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "label"), [([], "Restart"), ([benchmark_row("a")], "Run the rest")])
def test_a_cancelled_timing_offers_to_run_the_rest(store: Store, rows: list[Row], label: str) -> None:
    run_id = store.enqueue(BenchmarkSpec(models="a,b"))
    attempt = start(store, run_id)
    attempts.record(store.database, attempt, events(rows, 2))
    attempts.finish(store.database, attempt, State.CANCELLED)
    attempts.close(store.database, attempt, Exit(code=0), None, "")
    app = open_page(ONE, run=str(run_id))
    assert not app.exception
    assert app.button(key=f"retry_{run_id}").label == label


@pytest.mark.slow
def test_tags_and_notes_are_kept_as_they_are_typed(store: Store) -> None:
    other, run_id = bring_to(store, State.FINISHED), bring_to(store, State.FINISHED)
    store.change_tags([other], add=["baseline"])
    app = open_page(ONE, run=str(run_id))
    tags = app.multiselect(key=f"run_tags_{run_id}")
    assert tags.options == ["baseline"]
    tags.set_value(["baseline"]).run()
    app.text_area(key=f"run_notes_{run_id}").set_value("*the* one").run()
    assert not app.exception
    run = store.run(run_id)
    assert (run.tags, run.notes) == (("baseline",), "*the* one")
    anew = open_page(ONE, run=str(run_id))
    assert anew.multiselect(key=f"run_tags_{run_id}").value == ["baseline"]
    assert anew.text_area(key=f"run_notes_{run_id}").value == "*the* one"
    app.multiselect(key=f"run_tags_{run_id}").set_value([]).run()
    assert store.run(run_id).tags == ()


@pytest.mark.slow
def test_filters_narrow_the_list_down_and_are_in_the_address(store: Store) -> None:
    failed, tagged = bring_to(store, State.FAILED), bring_to(store, State.FINISHED, device="cpu")
    store.change_tags([tagged], add=["paper"])
    other = queue(store, "vit_tiny")
    assert listed(open_page(LIST)) == [other, tagged, failed]
    with store.database.write() as connection:
        three_days_ago = time.time() - 3 * 86400
        connection.execute(update(tables.runs).where(tables.runs.c.id == failed).values(created_at=three_days_ago))
    for query, found in (
        ({"runs_states": "failed"}, [failed]),
        ({"runs_device": "cpu"}, [tagged]),
        ({"runs_tags": "paper"}, [tagged]),
        ({"runs_model": "resnet18"}, [tagged, failed]),
        ({"runs_model": "vit*"}, [other]),
        ({"runs_text": "IT broke"}, [failed]),
        ({"runs_days": "since yesterday"}, [other, tagged]),
        ({"runs_days": "last 7 days"}, [other, tagged, failed]),
        ({"runs_kinds": "profile", "runs_order": "oldest first"}, [failed, tagged, other]),
    ):
        app = open_page(LIST, **query)
        assert not app.exception
        assert listed(app) == found, query


def test_a_day_of_25_hours_begins_at_midnight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    now = datetime(2026, 10, 26, 9, tzinfo=UTC)
    monkeypatch.setattr(filters, "datetime", SimpleNamespace(now=lambda: now, combine=datetime.combine))
    try:
        assert filters._midnight(1) == datetime(2026, 10, 24, 22, tzinfo=UTC).timestamp()
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.slow
def test_a_run_whose_rows_all_failed_does_not_look_like_a_success(store: Store) -> None:
    run_id = queue(store, "resnet18")
    finish(store, run_id, [profile_row("resnet18", status="error", error="too small")])
    app = open_page(ONE, run=str(run_id))
    assert not app.exception
    assert ":red-badge[:material/error: all failed]" in [text.value for text in app.markdown]
    assert "1 of 1 row failed; the run took" in texts(app)
    (table,) = [table for table in open_page(LIST).dataframe if table.key == "runs_table"]
    assert list(table.value["state"]) == ["✗ all failed"]
    assert "progress" not in table.value, "100 % done is no success"


@pytest.mark.slow
def test_the_list_shows_the_columns_that_a_run_on_the_page_has_a_value_for(store: Store) -> None:
    request = ["kind", "what"]
    always = ["created", "duration_s", "device"]
    finish(store, queue(store, "resnet18"), [profile_row("resnet18")])
    assert columns(open_page(LIST)) == ["state", *request, *always]
    trained, timed, two = store.enqueue(TrainSpec()), queue_benchmark(store, "a"), queue_benchmark(store, "a", "b")
    finish(store, trained, [train_row(1, zeroshot_top1=None), train_row(2, zeroshot_top1=None)])
    finish(store, timed, [benchmark_row("a", flags=("unstable",))])
    finish(store, two, [benchmark_row("a"), benchmark_row("b")])
    store.change_tags([trained], add=["paper"])
    app = open_page(LIST)
    results = ["latency_ms", "flags", "clip_val_loss", "train_loss"]
    assert columns(app) == ["state", *request, *results, "tags", *always]
    (table,) = [table for table in app.dataframe if table.key == "runs_table"]
    shown = table.value.set_index("id")
    assert list(shown.loc[str(trained), ["train_loss", "clip_val_loss"]]) == [1.5, 1.75]
    assert shown.loc[str(timed), "latency_ms"] == 20.0
    assert shown["latency_ms"].notna().sum() == 1, "a run of two models has no latency"
    assert columns(open_page(LIST, runs_kinds="benchmark")) == ["state", *request, "latency_ms", "flags", *always]
    chosen = ["Request", "Held-out loss", "Top-1", "Done"]
    assert columns(open_page(LIST, runs_columns=chosen)) == ["what", "clip_val_loss", "progress"]
    assert listed(open_page(LIST, runs_order="lowest held-out loss"))[0] == trained


@pytest.mark.slow
def test_a_link_selects_runs_and_a_message_with_an_older_address_does_not_undo_a_selection(store: Store) -> None:
    one, two = (bring_to(store, State.FINISHED) for _ in range(2))
    app = open_page(LIST, runs_selected=f"{two},99")
    assert not app.exception
    assert chosen(app) == [two]
    assert "1 selected" in texts(app)
    tick(app, one)
    assert app.query_params["runs_selected"] == f"{two},99"


@pytest.mark.slow
def test_a_list_filtered_to_nothing_says_how_to_see_more(store: Store) -> None:
    run_id = bring_to(store, State.FINISHED)
    app = open_page(LIST, runs_kinds="train", runs_text="no such thing")
    assert not app.exception
    assert "No runs match these filters" in texts(app)
    app.button(key="runs_clear").click().run()
    assert listed(app) == [run_id]


@pytest.mark.slow
def test_a_long_list_has_pages(store: Store) -> None:
    ids = [queue(store, "resnet18") for _ in range(60)]
    for run_id in ids:
        store.request_cancel(run_id)
    app = open_page(LIST, runs_size="25")
    assert listed(app) == ids[:-26:-1]
    assert "1 to 25 of 60 runs" in texts(app)
    app.pagination(key="runs_page").set_value(3).run()
    assert listed(app) == ids[9::-1]
    assert "51 to 60 of 60 runs" in texts(app)
    app.text_input(key="runs_text").set_value("resnet").run()
    assert listed(app)[0] == ids[-1], "what is filtered anew begins at its first page"


@pytest.mark.slow
def test_chosen_runs_are_deleted_but_none_that_still_runs(store: Store) -> None:
    states = (State.FINISHED, State.FAILED, State.CANCELLED, State.RUNNING)
    ended, failed, cancelled, running = (bring_to(store, state) for state in states)
    app = open_page(LIST)
    tick(app, ended, running)
    app.button(key="runs_delete").click().run()
    assert f"1 of these 2 runs have not ended: {running}" in texts(app).replace("\\", "")
    assert "runs_delete_sure" not in {button.key for button in app.button}
    tick(app, ended, failed, cancelled)
    app.button(key="runs_delete").click().run()
    assert "these 3 runs" in texts(app)
    store.delete(cancelled)  # as another session may
    app.text_input(key="runs_delete_number").set_value("2").run()
    assert "these 2 runs" in texts(app)
    app.button(key="runs_delete_sure").click().run()
    assert not app.exception
    assert [run.id for run in store.runs()] == [running]


@pytest.mark.slow
def test_chosen_runs_are_tagged_and_tried_again(store: Store) -> None:
    ended, failed = bring_to(store, State.FINISHED), bring_to(store, State.FAILED)
    store.change_tags([ended], add=["old"])
    app = open_page(LIST)
    tick(app, ended, failed)
    app.multiselect(key="runs_tag_add").set_value(["old"])
    app.run()
    app.button(key="runs_tag").click().run()
    assert not app.exception
    assert store.run(failed).tags == store.run(ended).tags == ("old",)
    app.button(key="runs_retry").click().run()
    assert (store.run(failed).state, store.run(ended).state) == (State.QUEUED, State.FINISHED)


@pytest.mark.slow
def test_storage_is_told(store: Store, settings: Settings) -> None:
    run_id = bring_to(store, State.FINISHED)
    folder = RunFiles(settings.runs_dir, run_id).dir
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.bin").write_bytes(b"0" * 3_000_000)
    app = open_page(LIST)
    assert "1 run." not in texts(app), "nothing is looked at before it is asked for"
    app.session_state["runs_storage"] = True
    app.run()
    assert not app.exception
    assert "1 run. Database:" in texts(app)
    assert "Run folders: 1 file, 3 MB" in texts(app)
