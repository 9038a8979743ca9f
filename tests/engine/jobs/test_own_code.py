"""Python modules of the user are only built by commands in the foreground. All other ways refuse them."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine import jobs
from engine.__main__ import main
from engine.jobs.attempt.worker import Stop, execute
from engine.jobs.submit import check, why_not_again
from engine.names import ModelNotFound, own_modules, select
from engine.results import ProfileRow
from engine.settings import Settings
from engine.specs import BenchmarkSpec, ProfileSpec, Refused, Spec
from engine.store import Cause, Exit, State, Store, attempts, open_store, queue
from engine.store.bundles import bundle
from engine.store.files import RunFiles

MODULE_NAME = "python:tests.support.own_models:tiny"
REFUSAL = "is refused here, because building it runs the Python code that it names"


@pytest.mark.parametrize("kind", [ProfileSpec, BenchmarkSpec])
@pytest.mark.parametrize(
    "models",
    [
        (MODULE_NAME,),
        ("timm:resnet18", MODULE_NAME),
        ("no_such_model", MODULE_NAME),
        ("{python,timm}:tests.support.own_models:tiny",),
        ("pytho{n,}:tests.support.own_models:tiny",),
    ],
)
def test_submitted_spec_is_refused(kind: type[Spec], models: tuple[str, ...], settings: Settings, store: Store) -> None:
    with pytest.raises(Refused, match=REFUSAL):
        jobs.submit(store, settings, kind.model_validate({"models": models}))
    assert store.runs() == []


def test_excluded_module_is_refused(settings: Settings, store: Store) -> None:
    with pytest.raises(Refused, match=REFUSAL):
        jobs.submit(store, settings, BenchmarkSpec(models=("timm:resnet18", MODULE_NAME), exclude="tiny"))


def test_submit_command_is_refused(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "profile", "--models", MODULE_NAME]) == 2
    assert f"python -m engine profile --models {MODULE_NAME}" in capsys.readouterr().err
    assert store.runs() == []


def test_worker_refuses_a_queued_run(settings: Settings, store: Store) -> None:
    run_id = store.enqueue(ProfileSpec(models=(MODULE_NAME,)))
    attempt = queue.claim(store.database, "a host")
    assert attempt is not None
    RunFiles(settings.runs_dir, run_id).prepare()
    execute(store, settings, attempt, Stop())
    run = store.run(run_id)
    assert (run.state, run.cause) == (State.FAILED, Cause.REFUSED)
    assert REFUSAL in run.error
    assert store.rows(run_id) == []


def test_foreground_run_cannot_be_retried_or_submitted_again(settings: Settings, store: Store) -> None:
    assert main(["profile", "--models", MODULE_NAME, "--image-size", "8"]) == 0
    (run,) = store.runs()
    (row,) = store.rows(run.id)
    assert isinstance(row, ProfileRow)
    assert row.gmacs == pytest.approx((8 * 8 * 9 * 3 * 8 + 80) / 1e9)
    assert REFUSAL in why_not_again(store, settings, run.id)
    with pytest.raises(Refused, match=REFUSAL):
        jobs.retry(store, settings, run.id)
    with pytest.raises(Refused, match=REFUSAL):  # "Run again" on its page
        jobs.submit(store, settings, run.spec)


def test_imported_bundle_is_refused(settings: Settings, store: Store, tmp_path: Path) -> None:
    run_id = store.enqueue(ProfileSpec(models=(MODULE_NAME,)))
    attempt = queue.claim(store.database, "a host")
    assert attempt is not None
    attempts.begin(store.database, attempt)
    attempts.finish(store.database, attempt, State.FINISHED)
    attempts.close(store.database, attempt, Exit(0), Cause.ERROR, "")
    path = tmp_path / "run.zip"
    path.write_bytes(bundle.export_bundle(store, settings, run_id))
    other_settings = settings.model_copy(update={"runs_dir": tmp_path / "elsewhere"})
    other_store = open_store(other_settings)
    with pytest.raises(Refused, match=REFUSAL):
        bundle.import_bundle(other_store, other_settings, path)
    assert other_store.runs() == []
    other_store.close()


@pytest.mark.parametrize(
    "name", ["python:os", "python:os:", "python::f", "python:a b:f", "python:../x:f", "python:a:b*"]
)
def test_module_name_without_a_factory_is_refused(name: str) -> None:
    with pytest.raises(Refused, match=r"names no factory in a module: write python:package\.module:factory"):
        select(ProfileSpec(models=(name,)), {}, allow_code=True)


def test_only_an_exact_name_selects_a_module() -> None:
    assert own_modules(ProfileSpec(models=(MODULE_NAME, "timm:*"))) == [MODULE_NAME]
    with pytest.raises(ModelNotFound, match=r"a module of your own is python:package\.module:factory"):
        select(ProfileSpec(models=("Python:os:system",)), {}, allow_code=True)


def test_foreground_request_is_checked_like_other_models(settings: Settings, store: Store) -> None:
    check(store, settings, ProfileSpec(models=(MODULE_NAME, "timm:resnet18")), allow_code=True)
    with pytest.raises(ModelNotFound):
        check(store, settings, ProfileSpec(models=(MODULE_NAME, "timm:resnet19")), allow_code=True)


SMALL_CLIP: dict[str, Any] = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "head_width": 64, "patch_size": 16},
    "text_cfg": {"context_length": 8, "vocab_size": 50, "width": 16, "heads": 2, "layers": 1},
}
SHORT_TIMING = ["--replicates", "1", "--min-seconds", "0.02", "--min-samples", "3", "--threads", "1"]


@pytest.mark.slow
def test_benchmark_command_times_a_module_in_another_folder(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_to_time.py").write_text(
        "from torch import nn\n\ndef pooled(width=4):\n"
        "    return nn.Sequential(nn.Conv2d(2, width, 1, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten())\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    arguments = ["--models", "python:mine_to_time:pooled", "--image-size", "8", "--in-chans", "2"]
    assert main(["benchmark", *arguments, "--model-kwargs", "width=6", "--mode", "both", *SHORT_TIMING]) == 0
    inference, training = store.rows(store.runs()[0].id)
    for row in (inference, training):
        assert (row.library, row.model, row.status) == ("python", "mine_to_time:pooled", "ok")
        assert (row.in_chans, row.model_kwargs, row.image_size) == (2, '{"width": 6}', "8")
        assert row.gmacs == pytest.approx(8 * 8 * 2 * 6 / 1e9)
        assert row.latency_ms > 0


@pytest.mark.slow
def test_benchmark_command_times_a_configuration(store: Store, tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text(json.dumps(SMALL_CLIP))
    assert main(["benchmark", "--models", str(tmp_path / "small.json"), "--mode", "training", *SHORT_TIMING]) == 0
    (run,) = store.runs()
    assert run.spec == BenchmarkSpec.model_validate(run.spec.model_dump() | {"configs": {"small": SMALL_CLIP}})
    (row,) = store.rows(run.id)
    assert (row.library, row.model, row.status, row.context_length) == ("config", "small", "ok", 8)
    assert row.backward_ms > 0
    profile_row = profile_of(tmp_path / "small.json", store)
    assert (row.mparams, row.gmacs) == (pytest.approx(profile_row.mparams), pytest.approx(profile_row.gmacs))


def profile_of(path: Path, store: Store) -> ProfileRow:
    """Run the profile command on a configuration and return its row."""
    assert main(["profile", "--models", str(path)]) == 0
    (row,) = store.rows(store.runs()[0].id)
    assert isinstance(row, ProfileRow)
    return row
