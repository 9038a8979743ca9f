"""Modules of the user's own run code: every door but a command in the foreground refuses them with the reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine import jobs
from engine.__main__ import main
from engine.jobs.submit import check, why_not_again
from engine.jobs.worker import Stop, execute
from engine.names import ModelNotFound, own_modules, select
from engine.results import ProfileRow
from engine.settings import Settings
from engine.specs import BenchmarkSpec, ProfileSpec, Refused, Spec
from engine.store import Cause, Exit, State, Store, attempts, bundle, open_store, queue
from engine.store.files import RunFiles

NAME = "python:tests.support.own_models:tiny"
REASON = "is refused here, because building it runs the Python code that it names"


@pytest.mark.parametrize("kind", [ProfileSpec, BenchmarkSpec])
@pytest.mark.parametrize(
    "models",
    [
        (NAME,),
        ("timm:resnet18", NAME),
        ("no_such_model", NAME),
        ("{python,timm}:tests.support.own_models:tiny",),
        ("pytho{n,}:tests.support.own_models:tiny",),
    ],
)
def test_a_submitted_spec_is_refused(
    kind: type[Spec], models: tuple[str, ...], settings: Settings, store: Store
) -> None:
    with pytest.raises(Refused, match=REASON):
        jobs.submit(store, settings, kind.model_validate({"models": models}))
    assert store.runs() == []


def test_filters_do_not_hide_one(settings: Settings, store: Store) -> None:
    with pytest.raises(Refused, match=REASON):
        jobs.submit(store, settings, BenchmarkSpec(models=("timm:resnet18", NAME), exclude="tiny"))


def test_the_command_submit_is_a_door_too(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "profile", "--models", NAME]) == 2
    assert f"python -m engine profile --models {NAME}" in capsys.readouterr().err
    assert store.runs() == []


def test_a_queued_run_is_refused_by_its_worker_however_it_was_queued(settings: Settings, store: Store) -> None:
    run_id = store.enqueue(ProfileSpec(models=(NAME,)))
    attempt = queue.claim(store.database, "a host")
    assert attempt is not None
    RunFiles(settings.runs_dir, run_id).prepare()
    execute(store, settings, attempt, Stop())
    run = store.run(run_id)
    assert (run.state, run.cause) == (State.FAILED, Cause.REFUSED)
    assert REASON in run.error
    assert store.rows(run_id) == []


def test_a_run_of_the_foreground_is_not_queued_again(settings: Settings, store: Store) -> None:
    assert main(["profile", "--models", NAME, "--image-size", "8"]) == 0
    (run,) = store.runs()
    (row,) = store.rows(run.id)
    assert isinstance(row, ProfileRow)
    assert row.gmacs == pytest.approx((8 * 8 * 9 * 3 * 8 + 80) / 1e9)
    assert REASON in why_not_again(store, settings, run.id)
    with pytest.raises(Refused, match=REASON):
        jobs.retry(store, settings, run.id)
    with pytest.raises(Refused, match=REASON):  # "Run again" on its page
        jobs.submit(store, settings, run.spec)


def test_an_imported_bundle_is_refused(settings: Settings, store: Store, tmp_path: Path) -> None:
    run_id = store.enqueue(ProfileSpec(models=(NAME,)))
    attempt = queue.claim(store.database, "a host")
    assert attempt is not None
    attempts.begin(store.database, attempt)
    attempts.finish(store.database, attempt, State.FINISHED)
    attempts.close(store.database, attempt, Exit(0), Cause.ERROR, "")
    path = tmp_path / "run.zip"
    path.write_bytes(bundle.export_bundle(store, settings, run_id))
    elsewhere = settings.model_copy(update={"runs_dir": tmp_path / "elsewhere"})
    other = open_store(elsewhere)
    with pytest.raises(Refused, match=REASON):
        bundle.import_bundle(other, elsewhere, path)
    assert other.runs() == []
    other.close()


@pytest.mark.parametrize(
    "name", ["python:os", "python:os:", "python::f", "python:a b:f", "python:../x:f", "python:a:b*"]
)
def test_a_name_without_a_factory_is_refused(name: str) -> None:
    with pytest.raises(Refused, match=r"names no factory in a module: write python:package\.module:factory"):
        select(ProfileSpec(models=(name,)), {}, allow_code=True)


def test_only_an_exact_name_means_a_module() -> None:
    assert own_modules(ProfileSpec(models=(NAME, "timm:*"))) == [NAME]
    with pytest.raises(ModelNotFound, match=r"a module of your own is python:package\.module:factory"):
        select(ProfileSpec(models=("Python:os:system",)), {}, allow_code=True)


def test_in_the_foreground_it_is_checked_like_other_models(settings: Settings, store: Store) -> None:
    check(store, settings, ProfileSpec(models=(NAME, "timm:resnet18")), allow_code=True)
    with pytest.raises(ModelNotFound):
        check(store, settings, ProfileSpec(models=(NAME, "timm:resnet19")), allow_code=True)


SMALL: dict[str, Any] = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "head_width": 64, "patch_size": 16},
    "text_cfg": {"context_length": 8, "vocab_size": 50, "width": 16, "heads": 2, "layers": 1},
}
SHORT = ["--replicates", "1", "--min-seconds", "0.02", "--min-samples", "3", "--threads", "1"]


@pytest.mark.slow
def test_the_command_benchmark_times_a_module_in_another_folder(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_to_time.py").write_text(
        "from torch import nn\n\ndef pooled(width=4):\n"
        "    return nn.Sequential(nn.Conv2d(2, width, 1, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten())\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    arguments = ["--models", "python:mine_to_time:pooled", "--image-size", "8", "--in-chans", "2"]
    assert main(["benchmark", *arguments, "--model-kwargs", "width=6", "--mode", "both", *SHORT]) == 0
    inference, training = store.rows(store.runs()[0].id)
    for row in (inference, training):
        assert (row.library, row.model, row.status) == ("python", "mine_to_time:pooled", "ok")
        assert (row.in_chans, row.model_kwargs, row.image_size) == (2, '{"width": 6}', "8")
        assert row.gmacs == pytest.approx(8 * 8 * 2 * 6 / 1e9)
        assert row.latency_ms > 0


@pytest.mark.slow
def test_the_command_benchmark_times_a_configuration(store: Store, tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text(json.dumps(SMALL))
    assert main(["benchmark", "--models", str(tmp_path / "small.json"), "--mode", "training", *SHORT]) == 0
    (run,) = store.runs()
    assert run.spec == BenchmarkSpec.model_validate(run.spec.model_dump() | {"configs": {"small": SMALL}})
    (row,) = store.rows(run.id)
    assert (row.library, row.model, row.status, row.context_length) == ("config", "small", "ok", 8)
    assert row.backward_ms > 0
    counted = profile_of(tmp_path / "small.json", store)
    assert (row.mparams, row.gmacs) == (pytest.approx(counted.mparams), pytest.approx(counted.gmacs))


def profile_of(path: Path, store: Store) -> ProfileRow:
    """The row of the command profile for a configuration."""
    assert main(["profile", "--models", str(path)]) == 0
    (row,) = store.rows(store.runs()[0].id)
    assert isinstance(row, ProfileRow)
    return row
