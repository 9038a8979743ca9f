"""The list of runs and the page of one run, in every state a run can have."""

import pytest

from engine.settings import Settings
from engine.store import Attempt, Cause, Exit, State, Store, attempts
from engine.store import queue as queueing
from engine.store.bundle import export_bundle
from engine.store.files import RunFiles
from tests.page_support import ENVIRONMENT, events, open_page, profile_row, queue, texts

LIST, ONE = "runs/history.py", "runs/run.py"

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


def test_an_empty_list_says_what_to_do_next() -> None:
    app = open_page(LIST)
    assert not app.exception
    assert "Nothing runs and nothing waits" in texts(app)
    assert "No run has been asked for yet" in texts(app)
    assert app.page_link


def test_what_runs_and_what_waits_is_on_top_with_positions(store: Store) -> None:
    ended = bring_to(store, State.FINISHED)
    running = bring_to(store, State.RUNNING)
    first, second = queue(store, "resnet18"), queue(store, "resnet50")
    app = open_page(LIST)
    assert not app.exception
    lines = [element.value for element in app.text]
    assert lines[0].startswith(f"{running}  resnet18, resnet50 (torch, meta): 1 of 2 done")
    assert lines[1] == f"{first}  resnet18 (torch, meta): next in the queue"
    assert lines[2] == f"{second}  resnet50 (torch, meta): 2nd in the queue"
    assert list(app.dataframe[0].value["id"]) == [second, first, running, ended]
    app.button(key=f"runs_cancel_{first}").click().run()
    assert store.run(first).state is State.CANCELLED


def test_runs_that_ended_meanwhile_are_offered_not_forced(store: Store) -> None:
    run_id = bring_to(store, State.RUNNING)
    waiting = queue(store, "resnet18")
    app = open_page(LIST)
    assert "runs_refresh" not in {button.key for button in app.button}
    store.request_cancel(waiting)
    app.run()
    assert list(app.dataframe[0].value["state"])[:2] == ["cancelled", "running"]
    assert store.run(run_id).state is State.RUNNING


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "words"),
    [
        (State.QUEUED, "next in the queue"),
        (State.STARTING, "the worker is being started"),
        (State.RUNNING, "1 of 2 done"),
        (State.STOPPING, "asked to stop; 1 of 2 done"),
        (State.FINISHED, "1 of 2 done in"),
        (State.FAILED, "error after"),
        (State.VANISHED, "no sign of life"),
        (State.CANCELLED, "stopped on request; 1 of 2 done and kept"),
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
    assert (f"again_{run_id}" in keys) == (state in (State.FAILED, State.CANCELLED))


def test_a_run_shows_what_was_asked_where_it_ran_and_what_it_printed(store: Store, settings: Settings) -> None:
    run_id = bring_to(store, State.FINISHED, image_size=192)
    files = RunFiles(settings.runs_dir, run_id)
    files.dir.mkdir(parents=True, exist_ok=True)
    files.log.write_text("one\n<script>alert(1)</script> **two**\n")
    app = open_page(ONE, run=str(run_id))
    assert "<script>alert(1)</script> **two**" in [code.value.splitlines()[-1] for code in app.code]
    app.session_state["run_about"] = "Request"
    app.run()
    assert "python -m engine profile --models resnet18,resnet50 --image-size 192" in [code.value for code in app.code]
    app.session_state["run_about"] = "Environment"
    app.run()
    assert not app.exception
    assert {"version of torch", "host"} <= set(app.dataframe[-1].value["what"])


def test_errors_are_text(store: Store) -> None:
    (error,) = open_page(ONE, run=str(bring_to(store, State.FAILED))).error
    assert error.value == "RuntimeError\\: \\*\\*it\\*\\* \\<b\\>broke\\<\\/b\\>"


def test_out_of_memory_offers_half_the_batch(store: Store) -> None:
    run_id = bring_to(store, State.FAILED, Cause.OUT_OF_MEMORY, batch_size=9)
    app = open_page(ONE, run=str(run_id))
    assert "out of memory" in texts(app)
    app.button(key=f"half_{run_id}").click().run()
    assert not app.exception
    assert store.runs()[0].spec.batch_size == 4
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
    app.button(key=f"clone_{run_id}").click().run()
    assert not app.exception
    assert app.title[0].value == "Profile"
    assert app.multiselect(key="profile_models").value == ["resnet18", "resnet50"]
    assert app.code[0].value == (
        "python -m engine profile --models resnet18,resnet50 --counter both --device cpu --batch-size 3 "
        "--image-size 192x256 --training"
    )


def test_deletion_asks_first_and_takes_everything(store: Store, settings: Settings) -> None:
    run_id = bring_to(store, State.FAILED)
    folder = RunFiles(settings.runs_dir, run_id).dir
    folder.mkdir(parents=True, exist_ok=True)
    app = open_page(ONE, run=str(run_id))
    app.button(key="run_delete").click().run()
    assert store.run(run_id)
    app.button(key="run_delete_sure").click().run()
    assert not app.exception
    with pytest.raises(LookupError):
        store.run(run_id)
    assert not folder.exists()


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["99", "", "-1", "1; drop", "9" * 30])
def test_a_link_to_no_run_says_so(asked: str) -> None:
    app = open_page(ONE, run=asked)
    assert not app.exception
    assert "No such run" in texts(app)


@pytest.mark.slow
def test_a_bundle_comes_back_as_a_run(store: Store, settings: Settings) -> None:
    bundle = export_bundle(store, settings, bring_to(store, State.FINISHED))
    app = open_page(LIST)
    app.file_uploader[0].upload("run-1.zip", bundle)
    app.run()
    app.button(key="runs_import").click().run()
    assert not app.exception
    assert len(store.runs()) == 2
    assert list(app.dataframe[0].value["model"]) == ["resnet18"]


def test_a_file_that_is_no_bundle_is_refused(store: Store) -> None:
    app = open_page(LIST)
    app.file_uploader[0].upload("run.zip", b"not a zip")
    app.run()
    app.button(key="runs_import").click().run()
    assert not app.exception
    assert app.error
    assert not store.runs()
