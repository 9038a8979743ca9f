"""A retry of an imported run passes the same checks as a submission of its request."""

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from engine import jobs
from engine.__main__ import main
from engine.jobs.attempt.worker import Stop, execute
from engine.settings import Settings
from engine.specs import ProfileSpec, RecurrentSpec, Refused, Spec
from engine.specs.evaluate import EvaluateSpec
from engine.specs.train import TrainSpec
from engine.store import Cause, Damaged, Exit, State, Store, attempts, open_store, queue
from engine.store.bundles.bundle import export_bundle, import_bundle
from engine.store.files import RunFiles
from engine.store.tables import runs
from tests.engine.store.test_bundle import rewrite
from tests.pages.test_runs import select_runs
from tests.support.clip import record
from tests.support.page import ENVIRONMENT, open_page, texts, unfold

FACTORY = "os:system"
"""Name of a Python function, given as a runner or a model."""
FORBIDDEN = ("data", "val_data", "pretrained", "distill_pretrained", "resume", "checkpoint")

# The scheduler keeps running after the process that started it, so that process never waits for it.
pytestmark = [
    pytest.mark.usefixtures("own_world"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with an existing file outside the data roots."""
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("VITALS_DATA_ROOTS", str(tmp_path / "mine"))
    (tmp_path / "secret.pt").write_bytes(b"weights")
    (tmp_path / "secret.pt.json").write_text(json.dumps({"step": 1, "spec": {}}))
    return tmp_path


def spec(field: str, path: Path) -> Spec:
    """Return a request that names a file in one of its fields."""
    if field == "checkpoint":
        return EvaluateSpec(checkpoint=str(path))
    return TrainSpec.model_validate({field: str(path)})


def bundle(settings: Settings, folder: Path, request: Spec) -> Path:
    """Return the bundle of a failed run from another machine."""
    elsewhere = settings.model_copy(update={"runs_dir": folder / "elsewhere", "database_url": ""})
    store = open_store(elsewhere)
    run_id = store.enqueue(request)
    record(store, run_id, [], State.FAILED)
    path = folder / f"run-{run_id}.zip"
    path.write_bytes(export_bundle(store, elsewhere, run_id))
    store.close()
    return path


def import_run(store: Store, settings: Settings, folder: Path, request: Spec) -> int:
    return import_bundle(store, settings, bundle(settings, folder, request))


def run_in_worker(store: Store, settings: Settings, run_id: int) -> tuple[State, Cause | None, str]:
    """Execute a queued run in a worker, and return its state, cause and error."""
    attempt = queue.claim(store.database, ENVIRONMENT.host, run_id)
    assert attempt
    RunFiles(settings.runs_dir, run_id).dir.mkdir(exist_ok=True)
    code = execute(store, settings, attempt, Stop())
    attempts.close(store.database, attempt, Exit(code=code), Cause.ERROR, "")
    run = store.run(run_id)
    return run.state, run.cause, run.error


@pytest.mark.slow
@pytest.mark.parametrize("field", FORBIDDEN)
def test_retry_of_an_imported_run_is_checked_like_a_submission(store: Store, outside: Path, field: str) -> None:
    settings, messages = Settings(), set()
    for path in (outside / "secret.pt", outside / "nothing.pt"):
        run_id = import_run(store, settings, outside, spec(field, path))
        for act in (
            lambda run_id=run_id: jobs.retry(store, settings, run_id),
            lambda path=path: jobs.submit(store, settings, spec(field, path)),
        ):
            with pytest.raises(Refused) as refusal:
                act()
            messages.add(str(refusal.value).replace(str(path), "PATH"))
        assert store.run(run_id).state is State.FAILED
    (only,) = messages
    assert only.startswith(f"{field}: nothing can be read at 'PATH'")


@pytest.mark.slow
@pytest.mark.parametrize("field", FORBIDDEN)
def test_worker_checks_paths_of_runs_queued_without_checks(store: Store, outside: Path, field: str) -> None:
    settings, messages = Settings(), set()
    for path in (outside / "secret.pt", outside / "nothing.pt"):
        run_id = import_run(store, settings, outside, spec(field, path))
        store.retry(run_id)
        state, cause, error = run_in_worker(store, settings, run_id)
        assert (state, cause) == (State.FAILED, Cause.REFUSED)
        messages.add(error.replace(str(path), "PATH"))
    (only,) = messages
    assert only.startswith(f"{field}: nothing can be read at 'PATH'")


def test_worker_refuses_a_link_changed_after_submission(store: Store, outside: Path) -> None:
    settings, path = Settings(), outside / "mine" / "pairs.csv"
    path.write_text("filepath,title\n")
    run_id = jobs.submit(store, settings, TrainSpec(data=str(path)))
    path.unlink()
    path.symlink_to(outside / "secret.pt")
    assert run_in_worker(store, settings, run_id)[1:] == (
        Cause.REFUSED,
        f"data: nothing can be read at {str(path)!r}. Readable folders (VITALS_DATA_ROOTS): "
        + ", ".join(str(root) for root in settings.roots),
    )


@pytest.mark.slow
def test_resumed_training_does_not_need_its_initial_checkpoint(store: Store, outside: Path) -> None:
    settings = Settings()
    run_id = import_run(store, settings, outside, spec("resume", outside / "secret.pt"))
    assert jobs.why_not_again(store, settings, run_id)
    folder = RunFiles(settings.runs_dir, run_id).dir / "checkpoints"
    folder.mkdir()
    (folder / "latest.pt").write_bytes(b"")
    assert not jobs.why_not_again(store, settings, run_id)
    jobs.retry(store, settings, run_id)
    assert store.run(run_id).state is State.QUEUED


@pytest.mark.slow
def test_import_warns_if_the_run_cannot_be_repeated(
    store: Store, outside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The import still succeeds, because data of another machine are rarely on this one."""
    path = bundle(Settings(), outside, spec("data", outside / "secret.pt"))
    assert main(["runs", "import", str(path)]) == 0
    printed = capsys.readouterr()
    assert printed.out == "imported as run 1\n"
    assert "run 1 cannot be repeated on this machine: data: nothing can be read" in printed.err
    app = unfold(open_page("history/page.py"), "Import")
    app.file_uploader[0].upload(path.name, path.read_bytes())
    app.run()
    app.button(key="runs_import").click().run()
    assert not app.exception
    assert "cannot be repeated on this machine: data: nothing can be read" in _toasts(app)


@pytest.mark.slow
def test_resume_refuses_an_imported_run_that_reads_other_folders(
    store: Store, outside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import_run(store, Settings(), outside, spec("pretrained", outside / "secret.pt"))
    assert main(["resume", "1"]) == 2
    assert "pretrained: nothing can be read" in capsys.readouterr().err
    assert store.run(1).state is State.FAILED


@pytest.mark.slow
@pytest.mark.parametrize("button", ["retry", "again", "runs_retry"])
def test_pages_refuse_to_retry_imported_runs_that_read_other_folders(store: Store, outside: Path, button: str) -> None:
    run_id = import_run(store, Settings(), outside, spec("checkpoint", outside / "secret.pt"))
    if button == "runs_retry":
        app = open_page("history/page.py")
        select_runs(app, run_id)
        app.button(key=button).click().run()
    else:
        app = open_page("run/page.py", run=str(run_id))
        app.button(key=f"{button}_{run_id}").click().run()
    assert not app.exception
    assert "checkpoint: nothing can be read" in _toasts(app) + texts(app).replace("\\", "")
    assert [run.state for run in store.runs()] == [State.FAILED]


def _toasts(app: Any) -> str:
    return "\n".join(toast.value for toast in app.toast).replace("\\", "")


@pytest.mark.slow
def test_user_code_is_refused_from_every_source_of_requests(
    store: Store, settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = f"no runner is called '{FACTORY}'"
    assert main(["submit", "recurrent", "--runners", FACTORY]) == 2
    assert message in capsys.readouterr().err
    app = open_page("recurrent/page.py", recurrent_runners=FACTORY)
    assert message in texts(app).replace("\\", "")
    assert app.button(key="recurrent_go").disabled
    path = bundle(settings, tmp_path, RecurrentSpec(runners=("aten",)))
    rewrite(path, lambda members: members.update({"run.json": members["run.json"].replace(b"aten", FACTORY.encode())}))
    with pytest.raises(Refused, match=message):
        import_bundle(store, settings, path)
    run_id = store.enqueue(RecurrentSpec())
    with store.database.write() as connection:
        connection.execute(update(runs).values(spec=json.dumps({"runners": [FACTORY]})))
    attempt = queue.claim(store.database, ENVIRONMENT.host, run_id)
    assert attempt
    with pytest.raises(Damaged) as refusal:
        execute(store, settings, attempt, Stop())
    assert message in str(refusal.value.__cause__)


@pytest.mark.slow
def test_user_code_as_a_model_is_refused(store: Store, settings: Settings, tmp_path: Path) -> None:
    run_id = import_run(store, settings, tmp_path, ProfileSpec(models=(FACTORY,)))
    with pytest.raises(Refused, match=f"no model matches '{FACTORY}'"):
        jobs.submit(store, settings, ProfileSpec(models=(FACTORY,)))
    store.retry(run_id)
    state, cause, error = run_in_worker(store, settings, run_id)
    assert (state, cause) == (State.FAILED, Cause.REFUSED)
    assert f"no model matches '{FACTORY}'" in error
