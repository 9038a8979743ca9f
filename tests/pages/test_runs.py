"""Tests of the list of runs and of the page of a run, in all states of a run."""

import json
import re
import time
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import streamlit as st
from sqlalchemy import update
from streamlit.proto.WidgetStates_pb2 import WidgetState
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import Dataframe, Multiselect, TextArea

from engine.results import Progress, Row
from engine.settings import Settings
from engine.specs import BenchmarkSpec, DeviceSpec, ProfileSpec, RecurrentSpec, Spec, TrainSpec
from engine.specs.evaluate import EvaluateSpec
from engine.store import ENDED, Attempt, Cause, Exit, Run, State, Store, StoredArtifact, attempts, tables
from engine.store import queue as queueing
from engine.store.bundles import files as bundle_files
from engine.store.bundles.bundle import export_bundle
from engine.store.copies import mirror
from engine.store.files import RunFiles
from engine.store.find import Order
from pages.history import filters
from pages.shared import backend
from pages.shared.runs import view
from pages.shared.table import from_rows
from tests.support.clip import evaluate_row, queue_evaluate, queue_train, record, train_row, write_checkpoints
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
"""One request of each kind, with the arguments of `python -m engine` for the same request."""
LIST, RUN = "history/page.py", "run/page.py"

# The scheduler outlives the process that starts it, so the warning about a running subprocess is expected.
pytestmark = [
    pytest.mark.usefixtures("own_world"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


def start_run(store: Store, run_id: int) -> Attempt:
    attempt = queueing.claim(store.database, ENVIRONMENT.host, run_id)
    assert attempt
    attempts.begin(store.database, attempt)
    return attempt


def store_run(store: Store, state: State, cause: Cause = Cause.ERROR, **fields: object) -> int:
    """Store a profile of two models in this state, with one model counted, and return its run id."""
    run_id = queue(store, "resnet18", "resnet50", **fields)
    if state is State.QUEUED:
        return run_id
    attempt = start_run(store, run_id)
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


def run_table(app: AppTest) -> Dataframe:
    """Return the table of the list of runs."""
    (table,) = [table for table in app.dataframe if table.key.startswith("runs_table")]
    return table


def listed_runs(app: AppTest) -> list[int]:
    """Return the numbers of the runs on the page of the list."""
    return [int(number) for number in run_table(app).value["id"]]


def newest_duration(app: AppTest) -> float:
    """Return the duration in s that the list shows for the newest run."""
    return float(run_table(app).value["duration_s"].iloc[0])


def select_runs(app: AppTest, *run_ids: int) -> None:
    """Select runs in the list."""
    app.session_state["runs_selected"] = [str(run_id) for run_id in run_ids]
    app.run()
    assert selected_runs(app) == sorted(run_ids)


def selected_runs(app: AppTest) -> list[int]:
    """Return the numbers of the selected runs on the page of the list."""
    numbers = listed_runs(app)
    return sorted(numbers[place] for place in app.session_state[run_table(app).key]["selection"]["rows"])


def list_columns(app: AppTest) -> list[str]:
    """Return the columns of the list of runs without `id`."""
    return [name for name in run_table(app).value if name != "id"]


@pytest.mark.slow
def test_empty_list_offers_a_next_step() -> None:
    app = open_page(LIST)
    assert not app.exception
    assert "No active runs" in texts(app)
    assert "No runs yet" in texts(app)
    assert app.page_link


def set_seconds_left(store: Store, seconds_left: float) -> None:
    """Set the remaining time of the only running run."""
    (attempt,) = attempts.open_attempts(store.database)
    attempts.record(store.database, attempt, [Progress(done=1, total=2, seconds_left=seconds_left)])


@pytest.mark.slow
def test_active_and_queued_runs_are_on_top_with_their_positions(store: Store) -> None:
    ended = store_run(store, State.FINISHED)
    running = store_run(store, State.RUNNING)
    set_seconds_left(store, 60.0)
    first, second = queue(store, "resnet18"), queue(store, "resnet50")
    app = open_page(LIST)
    assert not app.exception
    lines = [element.value for element in app.text]
    assert lines[0].startswith(f"{running}  resnet18, resnet50 (torch, meta): 1 of 2 counts done")
    assert lines[1].startswith(f"{first}  resnet18 (torch, meta): next in the queue, starts in ")
    assert lines[2].startswith(f"{second}  resnet50 (torch, meta): position 2 in the queue, starts ")
    assert listed_runs(app) == [second, first, running, ended]
    labels = [button.label for button in app.button] + [link.proto.label for link in app.get("page_link")]
    waiting = (f"Cancel run {first}", f"Cancel run {second}", f"Open run {first}", f"Open run {second}")
    assert [labels.count(label) for label in waiting] == [1] * 4, "each name says which run it acts on"
    app.button(key=f"runs_cancel_{first}").click().run()
    assert store.run(first).state is State.CANCELLED
    assert "– cancelled" in set(app.dataframe[0].value["state"])
    app.button(key=f"runs_cancel_{running}").click().run()
    assert app.button(key=f"runs_cancel_{running}").disabled, "it is asked to stop already"


@pytest.mark.slow
def test_oldest_open_runs_come_first_and_a_long_queue_is_cut(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    running = [store_run(store, State.RUNNING, device=device) for device in ("meta", "cpu")]
    waiting = [queue(store, "resnet18") for _ in range(12)]
    monkeypatch.setattr(backend, "may_change", lambda run: run.id == running[1])
    app = open_page(LIST)
    lines = [element.value for element in app.text if element.value[0].isdigit()]
    assert [int(line.split()[0]) for line in lines] == [*running, *waiting[:10]]
    assert "and 2 more in the queue." in texts(app)
    assert [button.key for button in app.button if "cancel" in button.key] == [f"runs_cancel_{running[1]}"]


@pytest.mark.slow
@pytest.mark.parametrize("others", [0, 1])
def test_page_is_drawn_again_after_the_last_run_has_ended(
    store: Store, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """With other open runs, a button draws it again. A run ends here after the page has read it."""
    first, *_ = (queue(store, "resnet18") for _ in range(1 + others))
    runs, fragment, intervals = Store.runs, st.fragment, list[object]()

    def read_and_end(self: Store, **options: Any) -> list[Run]:
        found = runs(self, **options)
        if options.get("states") is ENDED and store.run(first).state is State.QUEUED:
            store.request_cancel(first)
        return found

    def noted_fragment(*arguments: Any, **options: Any) -> Any:
        if options.get("key") == "runs_now":
            intervals.append(options["run_every"])
        return fragment(*arguments, **options)

    monkeypatch.setattr(Store, "runs", read_and_end)
    monkeypatch.setattr(st, "fragment", noted_fragment)
    app = open_page(LIST)
    assert not app.exception
    assert intervals == ([1] if others else [1, None]), "it updates itself only while there are open runs"
    labels = [button.label for button in app.button if button.key == "runs_refresh"]
    assert labels == ["Show runs that have ended"] * others


@pytest.mark.slow
def test_queued_run_shows_no_start_time_behind_an_overdue_run(store: Store) -> None:
    running = store_run(store, State.RUNNING)
    set_seconds_left(store, 0.0)
    queue(store, "resnet18")
    assert f"next in the queue, starts after run {running}" in texts(open_page(LIST))


@pytest.mark.slow
def test_queued_run_shows_that_it_waits_for_disk_space(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = store_run(store, State.QUEUED)
    monkeypatch.setenv("VITALS_MIN_FREE_GB", "1e9")
    for app in (open_page(LIST), open_page(RUN, run=str(run_id))):
        assert "next in the queue, starts when there is disk space: " in texts(app)
        assert "VITALS_MIN_FREE_GB asks for 1e+09 GB" in texts(app)


@pytest.mark.slow
def test_tags_and_notes_of_two_windows_are_merged(store: Store) -> None:
    run_id = store_run(store, State.FINISHED)
    first, second = open_page(RUN, run=str(run_id)), open_page(RUN, run=str(run_id))

    def tags(window: AppTest) -> Multiselect:
        return next(field for field in window.multiselect if field.label == "Tags")

    def notes(window: AppTest) -> TextArea:
        return next(field for field in window.text_area if field.label == "Notes")

    tags(first).set_value(["alpha"]).run()
    sent = tags(second).set_value(["beta"])
    for _ in range(2):  # a timer sends the value again before the browser has received the merged one
        sent.run()
        assert tags(second).value == ["alpha", "beta"]
    assert store.run(run_id).tags == ("alpha", "beta")
    tags(first).set_value([]).run()
    assert store.run(run_id).tags == ("beta",)
    notes(first).set_value("by one").run()
    notes(first).set_value("by one, again").run()
    assert store.run(run_id).notes == "by one, again"
    assert "changed elsewhere" not in texts(first)
    sent = notes(second).set_value("by the other")
    sent.run()
    assert not second.exception
    assert "These notes were also changed elsewhere" in texts(second)
    sent.run()
    assert store.run(run_id).notes == notes(second).value == "by one, again\n\nby the other"
    notes(first).set_value("").run()
    assert store.run(run_id).notes == "by one, again\n\nby the other"
    notes(second).set_value("merged").run()
    assert store.run(run_id).notes == "merged"


@pytest.mark.slow
def test_duration_of_a_running_run_is_not_cached(store: Store) -> None:
    store_run(store, State.RUNNING)
    app = open_page(LIST)
    before, revision = newest_duration(app), store.revision()
    app.run()
    assert store.revision() == revision
    assert newest_duration(app) > before


@pytest.mark.slow
def test_list_updates_the_state_of_a_cancelled_run(store: Store) -> None:
    run_id = store_run(store, State.RUNNING)
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
def test_run_page_describes_every_state(store: Store, state: State, words: str) -> None:
    run_id = store_run(store, state)
    app = open_page(RUN, run=str(run_id))
    assert not app.exception
    assert words in texts(app)
    assert f"{state.value}]" in texts(app)  # the badge
    keys = {button.key for button in app.button}
    assert (f"cancel_{run_id}" in keys) == (not state.ended)
    assert ("run_delete" in keys) == state.ended
    assert (f"again_{run_id}" in keys) == (f"retry_{run_id}" in keys) == (state in (State.FAILED, State.CANCELLED))


@pytest.mark.slow
def test_parts_of_a_page_update_themselves_only_while_a_run_is_open(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers: dict[str, float | None] = {}
    fragment = st.fragment

    def recorded(func: Any = None, *, run_every: Any = None, key: Any = None) -> Any:
        if key:
            timers[key] = run_every
        return fragment(func, run_every=run_every, key=key)

    def timers_of(*pages: str, **query: str) -> dict[str, float | None]:
        timers.clear()
        for page in pages:
            assert not open_page(page, **query).exception
        return dict(timers)

    monkeypatch.setattr(st, "fragment", recorded)
    ended = store_run(store, State.FINISHED)
    assert timers_of(RUN, LIST, run=str(ended)) == {f"run_{ended}": None, "run_about_now": None, "runs_now": None}
    running = store_run(store, State.RUNNING)
    assert timers_of(RUN, LIST, run=str(running)) == {f"run_{running}": 1, "run_about_now": 2, "runs_now": 1}
    timing = queue_benchmark(store, "resnet18")
    assert timers_of(RUN, run=str(timing))[f"run_{timing}"] == 3, "updates disturb a timing"


@pytest.mark.slow
def test_run_page_shows_request_environment_and_log(store: Store, settings: Settings) -> None:
    run_id = store_run(store, State.FINISHED, image_size=192)
    files = RunFiles(settings.runs_dir, run_id)
    files.dir.mkdir(parents=True, exist_ok=True)
    files.log.write_text("one\n<script>alert(1)</script> **two**\n")
    app = open_page(RUN, run=str(run_id))
    assert "<script>alert(1)</script> **two**" in [text.splitlines()[-1] for text in verbatim(app)]
    app.session_state["run_about"] = "Request"
    app.run()
    command, request = verbatim(app)[-2:]
    assert command == "python -m engine profile --models resnet18,resnet50 --image-size 192"
    assert json.loads(request) == store.run(run_id).spec.model_dump(mode="json")
    app.session_state["run_about"] = "Environment"
    app.run()
    assert not app.exception
    assert {"version of torch", "host"} <= set(app.dataframe[-1].value["what"])


@pytest.mark.slow
@pytest.mark.parametrize("spec", [spec for spec, _ in EVERY_KIND], ids=lambda spec: spec.kind)
def test_ended_run_without_results_has_a_final_message(store: Store, spec: Spec) -> None:
    run_id = store.enqueue(spec)
    assert re.search(r"No (results|timings|measurements|models counted) yet\.", texts(open_page(RUN, run=str(run_id))))
    store.request_cancel(run_id)
    app = open_page(RUN, run=str(run_id))
    app.session_state["run_about"] = "Environment"
    app.run()
    assert not app.exception
    assert "This run ended without results." in texts(app)
    assert "No environment was recorded." in texts(app)
    assert " yet. " not in texts(app)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "words"),
    [(State.QUEUED, "has no log yet: it is queued"), (State.FINISHED, "has no log here: it ran in a terminal")],
)
def test_run_without_a_log_shows_the_reason(store: Store, state: State, words: str) -> None:
    run_id = store_run(store, state)
    assert f"Run {run_id} {words}" in texts(open_page(RUN, run=str(run_id)))


@pytest.mark.slow
def test_run_of_another_machine_shows_its_log_or_a_warning(
    store: Store, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = store_run(store, State.RUNNING)
    attempt = attempts.current(store.database, run_id)
    assert attempt is not None
    attempts.finish(store.database, attempt, State.FINISHED)
    attempts.warn(store.database, attempt, "its files are only there")
    copies = tmp_path / "copies"
    other_machine = settings.model_copy(update={"runs_dir": tmp_path / "elsewhere", "artifacts_url": str(copies)})
    files = RunFiles(other_machine.runs_dir, run_id)
    files.prepare()
    files.log.write_text("printed elsewhere\n")
    mirror.upload(other_machine, store.run(run_id))
    monkeypatch.setenv("VITALS_ARTIFACTS_URL", str(copies))
    copies.rename(tmp_path / "aside")
    copies.write_text("no folder")
    app = open_page(RUN, run=str(run_id))
    assert [warning.value[:8] for warning in app.warning] == ["its file", "Log\\, sa"]
    assert f"Run {run_id} has its log on another machine: see the warning above." in texts(app)
    copies.unlink()
    (tmp_path / "aside").rename(copies)
    monkeypatch.setattr(mirror, "FAILED_S", 0.0)
    assert "printed elsewhere\n" in verbatim(app.run())
    assert len(app.warning) == 1


@pytest.mark.slow
def test_run_errors_are_shown_without_markup(store: Store) -> None:
    (error,) = open_page(RUN, run=str(store_run(store, State.FAILED))).error
    assert error.value == "RuntimeError\\: \\*\\*it\\*\\* \\<b\\>broke\\<\\/b\\>"


@pytest.mark.slow
def test_out_of_memory_offers_half_the_batch_size(store: Store) -> None:
    run_id = store_run(store, State.FAILED, Cause.OUT_OF_MEMORY, batch_size=9)
    app = open_page(RUN, run=str(run_id))
    assert "out of memory" in texts(app)
    app.button(key=f"half_{run_id}").click().run()
    assert not app.exception
    assert store.runs()[0].spec.batch_size == (4,)
    assert store.runs()[0].state is State.QUEUED


@pytest.mark.slow
def test_run_again_queues_a_new_run(store: Store) -> None:
    run_id = store_run(store, State.CANCELLED)
    app = open_page(RUN, run=str(run_id))
    app.button(key=f"again_{run_id}").click().run()
    new_run = store.runs()[0]
    assert new_run.id != run_id
    assert new_run.spec == store.run(run_id).spec


@pytest.mark.slow
def test_edit_a_copy_opens_the_filled_form(store: Store) -> None:
    run_id = store_run(
        store, State.FINISHED, counter="both", device="cpu", batch_size=3, image_size="192x256", training=True
    )
    app = open_page(RUN, run=str(run_id))
    app = followed(app, "Edit a copy")
    assert not app.exception
    assert app.title[0].value == "Profile"
    assert app.multiselect(key="profile_models").value == ["resnet18", "resnet50"]
    assert verbatim(app)[0] == (
        "python -m engine profile --models resnet18,resnet50 --counter both --device cpu --batch-size 3 "
        "--image-size 192x256 --training"
    )


@pytest.mark.slow
def test_edit_a_copy_keeps_a_list_too_long_for_a_link(store: Store) -> None:
    names = tuple(f"timm:model_{number}" for number in range(41))
    run_id = store.enqueue(ProfileSpec(models=names))
    app = open_page(RUN, run=str(run_id))
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
def test_edit_a_copy_shows_the_same_command_for_every_kind(store: Store, spec: Spec, command: str) -> None:
    run_id = store.enqueue(spec)
    app = open_page(RUN, run=str(run_id))
    app = followed(app, "Edit a copy")
    assert not app.exception
    assert f"python -m engine {command}" in verbatim(app)


@pytest.mark.slow
def test_deletion_needs_the_run_number_and_deletes_all_files(store: Store, settings: Settings) -> None:
    run_id = store_run(store, State.FAILED)
    folder = RunFiles(settings.runs_dir, run_id).dir
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights.pt").write_bytes(b"0" * 1500)
    (folder / "log.txt").write_bytes(b"0" * 500)
    app = open_page(RUN, run=str(run_id))
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
def test_delete_dialog_names_runs_that_use_its_checkpoints(store: Store, settings: Settings) -> None:
    run_id = store_run(store, State.FAILED)
    best, other_run = (settings.runs_dir / str(number) / "checkpoints" / "best.pt" for number in (run_id, 10 * run_id))
    training = store.enqueue(TrainSpec(model="ViT-B-32", pretrained=str(best)))
    store.enqueue(EvaluateSpec(model="ViT-B-32", checkpoint=str(other_run)))
    evaluation = store.enqueue(EvaluateSpec(model="ViT-B-32", more_models=(f"ViT-B-16,{best}",)))
    app = open_page(RUN, run=str(run_id))
    app.button(key="run_delete").click().run()
    assert f"2 other runs began from it: evaluate {evaluation}, train {training}. They keep" in texts(app)


@pytest.mark.slow
@pytest.mark.parametrize("number", ["99", "", "9" * 30])
def test_link_to_an_unknown_run_shows_a_message(number: str) -> None:
    app = open_page(RUN, run=number)
    assert not app.exception
    assert "No such run" in texts(app)


@pytest.mark.slow
def test_exported_bundle_can_be_imported_as_a_run(store: Store, settings: Settings) -> None:
    bundle = export_bundle(store, settings, store_run(store, State.FINISHED))
    app = unfold(open_page(LIST), "Import")
    app.file_uploader[0].upload(f"{'模' * 100}.zip", bundle)
    app.run()
    app.button(key="runs_import").click().run()
    assert not app.exception
    assert len(store.runs()) == 2
    assert list(app.dataframe[0].value["model"]) == ["resnet18"]


@pytest.mark.slow
@pytest.mark.parametrize("public", [True, False])
def test_pages_of_a_public_server_show_a_warning(store: Store, monkeypatch: pytest.MonkeyPatch, public: bool) -> None:
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
def test_run_page_names_files_that_the_bundle_leaves_out(
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

    assert "Not in the bundle" not in captions()
    monkeypatch.setattr(bundle_files, "ARTIFACT_BYTES", 10)
    assert "Not in the bundle, because it takes at most 0 MB of files: checkpoints/latest.pt." in captions()


@pytest.mark.slow
def test_import_refuses_a_file_that_is_not_a_bundle(store: Store) -> None:
    app = unfold(open_page(LIST), "Import")
    app.file_uploader[0].upload("run.zip", b"not a zip")
    app.run()
    app.button(key="runs_import").click().run()
    assert not app.exception
    assert app.error[0].value.replace("\\", "").startswith("run.zip is not a run bundle: ")
    assert not store.runs()


@pytest.mark.slow
def test_run_page_names_kind_and_page_and_marks_the_list_in_the_navigation(store: Store) -> None:
    app = open_page(RUN, run=str(queue_benchmark(store, "resnet18")))
    assert "benchmark (Vision speed): resnet18" in texts(app)
    assert "profile: resnet18" in texts(open_page(RUN, run=str(queue(store, "resnet18")))), "the page has the same name"
    assert "[href$='/runs']" in styles(app)
    assert "[href$='/']" in styles(open_page("model/page.py")), "the catalogue leads to the models"
    assert "href" not in styles(open_page(LIST)), "Streamlit marks the page itself"


def styles(app: AppTest) -> str:
    return "".join(element.proto.body for element in app.get("html"))


@pytest.mark.slow
def test_run_page_stays_open_if_the_address_lost_its_run(store: Store) -> None:
    run_id = store_run(store, State.FAILED)
    assert "No such run" in texts(open_page(RUN, runs_selected="3"))
    app = open_page(RUN, run=str(run_id))
    app.query_params.clear()
    app.query_params["runs_selected"] = "3"
    app.run()
    assert not app.exception
    assert app.title[0].value == f"Run {run_id}"
    assert app.query_params["run"] == str(run_id)
    clicked = queue(store, "resnet34")  # a click in the list; the address is replaced before the page is drawn
    app.session_state[view.OPENED] = str(clicked)
    app.query_params.clear()
    assert app.run().title[0].value == f"Run {clicked}"


@pytest.mark.slow
def test_retry_queues_the_same_run(store: Store) -> None:
    run_id = store_run(store, State.FAILED)
    app = open_page(RUN, run=str(run_id))
    app.button(key=f"retry_{run_id}").click().run()
    assert not app.exception
    assert store.run(run_id).state is State.QUEUED
    assert len(store.runs()) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "label"), [([], "Restart"), ([benchmark_row("a")], "Run the rest")])
def test_cancelled_timing_offers_to_run_the_remaining_rows(store: Store, rows: list[Row], label: str) -> None:
    run_id = store.enqueue(BenchmarkSpec(models="a,b"))
    attempt = start_run(store, run_id)
    attempts.record(store.database, attempt, events(rows, 2))
    attempts.finish(store.database, attempt, State.CANCELLED)
    attempts.close(store.database, attempt, Exit(code=0), None, "")
    app = open_page(RUN, run=str(run_id))
    assert not app.exception
    assert app.button(key=f"retry_{run_id}").label == label


@pytest.mark.slow
def test_tags_and_notes_are_saved_after_each_change(store: Store) -> None:
    other, run_id = store_run(store, State.FINISHED), store_run(store, State.FINISHED)
    store.change_tags([other], add=["baseline"])
    app = open_page(RUN, run=str(run_id))
    tags = app.multiselect(key=f"run_tags_{run_id}")
    assert tags.options == ["baseline"]
    tags.set_value(["baseline"]).run()
    app.text_area(key=f"run_notes_{run_id}").set_value("*the* one").run()
    assert not app.exception
    run = store.run(run_id)
    assert (run.tags, run.notes) == (("baseline",), "*the* one")
    reopened = open_page(RUN, run=str(run_id))
    assert reopened.multiselect(key=f"run_tags_{run_id}").value == ["baseline"]
    assert reopened.text_area(key=f"run_notes_{run_id}").value == "*the* one"
    app.multiselect(key=f"run_tags_{run_id}").set_value([]).run()
    assert store.run(run_id).tags == ()


def test_list_offers_every_order() -> None:
    assert set(filters.ORDERS.values()) == set(get_args(Order))


@pytest.mark.slow
def test_filters_in_the_address_select_runs(store: Store) -> None:
    failed, tagged = store_run(store, State.FAILED), store_run(store, State.FINISHED, device="cpu")
    store.change_tags([tagged], add=["paper"])
    other = queue(store, "vit_tiny")
    assert listed_runs(open_page(LIST)) == [other, tagged, failed]
    with store.database.write() as connection:
        earlier = filters._midnight(1) - 1  # a second before yesterday began
        connection.execute(update(tables.runs).where(tables.runs.c.id == failed).values(created_at=earlier))
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
        assert listed_runs(app) == found, query


def test_day_of_25_hours_begins_at_midnight(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_run_with_only_failed_rows_is_marked_as_failed(store: Store) -> None:
    run_id = queue(store, "resnet18")
    finish(store, run_id, [profile_row("resnet18", status="error", error="too small")])
    app = open_page(RUN, run=str(run_id))
    assert not app.exception
    assert ":red-badge[:material/error: all failed]" in [text.value for text in app.markdown]
    assert "1 of 1 row failed; the run took" in texts(app)
    table = run_table(open_page(LIST))
    assert list(table.value["state"]) == ["✗ all failed"]
    finish(store, queue(store, "resnet18"), [profile_row("a"), profile_row("b", status="error", error="too small")])
    assert list(run_table(open_page(LIST)).value["state"]) == [f"! {store.runs()[0].outcome}", "✗ all failed"]
    assert "progress" not in table.value, "100 % done would look like a success"


@pytest.mark.slow
def test_list_shows_only_columns_with_values(store: Store) -> None:
    request = ["kind", "what"]
    always = ["created", "duration_s", "device"]
    finish(store, queue(store, "resnet18"), [profile_row("resnet18")])
    assert list_columns(open_page(LIST)) == ["state", *request, *always]
    trained, timed, pair = store.enqueue(TrainSpec()), queue_benchmark(store, "a"), queue_benchmark(store, "a", "b")
    finish(store, trained, [train_row(1, zeroshot_top1=None), train_row(2, zeroshot_top1=None)])
    finish(store, timed, [benchmark_row("a", flags=("unstable",))])
    finish(store, pair, [benchmark_row("a"), benchmark_row("b")])
    store.change_tags([trained], add=["paper"])
    app = open_page(LIST)
    results = ["latency_ms", "flags", "clip_val_loss", "train_loss"]
    assert list_columns(app) == ["state", *request, *results, "tags", *always]
    table = run_table(app)
    assert "YYYY-MM-DD HH:mm [UTC]" in table.proto.columns, "neither the server's time nor the browser's"
    rows = table.value.set_index("id")
    assert list(rows.loc[str(trained), ["train_loss", "clip_val_loss"]]) == [1.5, 1.75]
    assert rows.loc[str(timed), "latency_ms"] == 20.0
    assert rows["latency_ms"].notna().sum() == 1, "a run of two models has no single latency"
    assert list_columns(open_page(LIST, runs_kinds="benchmark")) == ["state", *request, "latency_ms", "flags", *always]
    labels = ["Request", "Held-out loss", "Top-1", "Done"]
    assert list_columns(open_page(LIST, runs_columns=labels)) == ["what", "clip_val_loss", "progress"]
    assert listed_runs(open_page(LIST, runs_order="lowest held-out loss"))[0] == trained
    record(store, several := queue_evaluate(store), [evaluate_row("zeroshot", acc1=None, mean_average_precision=0.6)])
    table = run_table(open_page(LIST)).value.set_index("id")
    assert table.loc[str(several), "mean_average_precision"] == 60.0


@pytest.mark.slow
def test_link_selects_runs_and_an_old_address_keeps_a_new_selection(store: Store) -> None:
    first, second = (store_run(store, State.FINISHED) for _ in range(2))
    app = open_page(LIST, runs_selected=f"{second},99")
    assert not app.exception
    assert selected_runs(app) == [second]
    assert "1 selected" in texts(app)
    select_runs(app, first)
    assert app.query_params["runs_selected"] == f"{second},99"


@pytest.mark.slow
def test_late_positions_of_ticks_select_no_other_run(store: Store) -> None:
    """A timer or the next letter in a filter may send positions before the browser receives the changed list."""
    oldest, middle, _ = (queue(store, model) for model in ("resnet18", "resnet18", "resnet50"))
    app = open_page(LIST)
    positions = json.dumps({"selection": {"rows": [1], "columns": [], "cells": []}})
    tick = WidgetState(id=run_table(app).proto.id, string_value=positions)

    def send() -> list[int]:
        """Send the tick with the current fields, and return the selected runs."""
        message = app._tree.get_widget_states()
        message.widgets.append(tick)
        return selected_runs(app._run(message))

    assert send() == [middle]
    app.text_input(key="runs_model").set_value("resnet18").run()
    assert listed_runs(app) == [middle, oldest]
    assert send() == [middle]


@pytest.mark.slow
def test_list_without_matches_offers_to_clear_the_filters(store: Store) -> None:
    run_id = store_run(store, State.FINISHED)
    query = {"runs_model": "none", "runs_device": "meta", "runs_states": "failed", "runs_days": "today"}
    app = open_page(LIST, runs_kinds="train", runs_text="no such thing", **query)
    assert not app.exception
    assert "No runs match these filters" in texts(app)
    app.button(key="runs_clear").click().run()
    assert listed_runs(app) == [run_id]


@pytest.mark.slow
def test_long_list_has_pages(store: Store) -> None:
    ids = [queue(store, "resnet18") for _ in range(60)]
    for run_id in ids:
        store.request_cancel(run_id)
    app = open_page(LIST, runs_size="25")
    assert listed_runs(app) == ids[:-26:-1]
    assert "1 to 25 of 60 runs" in texts(app)
    app.pagination(key="runs_page").set_value(3).run()
    assert listed_runs(app) == ids[9::-1]
    assert "51 to 60 of 60 runs" in texts(app)
    app.pagination(key="runs_page").set_value(2).run()
    app.selectbox(key="runs_size").set_value(50).run()
    assert "1 to 50 of 60 runs" in texts(app), "another number of runs per page shows the first page"
    app.pagination(key="runs_page").set_value(2).run()
    app.text_input(key="runs_text").set_value("resnet").run()
    assert listed_runs(app)[0] == ids[-1], "a changed filter shows the first page"


@pytest.mark.slow
def test_selected_runs_are_deleted_only_if_all_have_ended(store: Store) -> None:
    states = (State.FINISHED, State.FAILED, State.CANCELLED, State.RUNNING)
    ended, failed, cancelled, running = (store_run(store, state) for state in states)
    app = open_page(LIST)
    select_runs(app, ended, running)
    app.button(key="runs_delete").click().run()
    message = f"Only ended runs can be deleted. Cancel first or leave out: {running}."
    assert message in texts(app).replace("\\", "")
    assert "runs_delete_sure" not in {button.key for button in app.button}
    select_runs(app, ended, failed, cancelled)
    app.button(key="runs_delete").click().run()
    assert "these 3 runs" in texts(app)
    store.delete(cancelled)  # in another session
    app.text_input(key="runs_delete_number").set_value("2").run()
    assert "these 2 runs" in texts(app)
    app.button(key="runs_delete_sure").click().run()
    assert not app.exception
    assert [run.id for run in store.runs()] == [running]


@pytest.mark.slow
def test_selected_runs_can_be_tagged_and_retried(store: Store) -> None:
    ended, failed = store_run(store, State.FINISHED), store_run(store, State.FAILED)
    store.change_tags([ended], add=["old"])
    app = open_page(LIST)
    select_runs(app, ended, failed)
    app.multiselect(key="runs_tag_add").set_value(["old"])
    app.run()
    app.button(key="runs_tag").click().run()
    assert not app.exception
    assert store.run(failed).tags == store.run(ended).tags == ("old",)
    app.button(key="runs_retry").click().run()
    assert (store.run(failed).state, store.run(ended).state) == (State.QUEUED, State.FINISHED)


@pytest.mark.slow
def test_storage_section_shows_database_and_run_folders(store: Store, settings: Settings) -> None:
    run_id = store_run(store, State.FINISHED)
    folder = RunFiles(settings.runs_dir, run_id).dir
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.bin").write_bytes(b"0" * 3_000_000)
    app = open_page(LIST)
    assert "1 run." not in texts(app), "storage is measured only when the section is open"
    app.session_state["runs_storage"] = True
    app.run()
    assert not app.exception
    assert "1 run. Database:" in texts(app)
    assert "Run folders: 1 file, 3 MB" in texts(app)


def test_table_of_a_run_that_was_deleted_meanwhile_is_refused(store: Store) -> None:
    run_id = queue(store, "timm:tiny")
    finish(store, run_id, [profile_row("tiny")])
    content = from_rows(store.run(run_id), len)
    assert content() == 1
    store.delete(run_id)
    with pytest.raises(LookupError, match="there is no run 1"):
        content()
