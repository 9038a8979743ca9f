"""References in CLIP requests: to runs, to their checkpoints, and to files below the readable folders."""

import hashlib
import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from engine import jobs
from engine.__main__ import main
from engine.jobs import checkpoints, named_files, references
from engine.jobs.attempt import worker
from engine.results import Device, Machine, Progress
from engine.settings import Settings
from engine.specs import ProfileSpec, Refused, TrainSpec
from engine.specs.evaluate import EvaluateSpec
from engine.specs.fields.clip import default_workers
from engine.store import State, Store
from engine.store.bundles.bundle import export_bundle, import_bundle
from engine.store.files import RunFiles
from tests.support.clip import queue_train, record, train_row, write_checkpoints
from tests.support.training import TINY


def store_training(store: Store, settings: Settings, **fields: object) -> int:
    """Store a training with a best checkpoint and its manifest, and return the id of the run."""
    run_id = store.enqueue(TrainSpec.model_validate(fields))
    folder = RunFiles(settings.runs_dir, run_id).dir / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "best.pt").write_bytes(b"weights")
    (folder / "best.pt.json").write_text(json.dumps({"step": 5, "spec": fields}))
    return run_id


def evaluate(store: Store, settings: Settings, **fields: object) -> EvaluateSpec:
    """Return an evaluation with its references resolved."""
    found = references.resolve(store, settings, EvaluateSpec.model_validate(fields))
    assert isinstance(found, EvaluateSpec)
    return found


def test_evaluation_of_a_run_uses_its_held_out_pairs(store: Store, settings: Settings) -> None:
    run_id = store_training(store, settings, seed=3, val_fraction=0.3, samples=500, image_size=48)
    spec = evaluate(store, settings, model=str(run_id))
    assert spec.checkpoint == str(RunFiles(settings.runs_dir, run_id).dir / "checkpoints" / "best.pt")
    assert (spec.model, spec.image_size) == ("digits-clip", (48, 48))
    assert (spec.seed, spec.val_fraction, spec.samples) == (3, 0.3, 500)


def test_settings_that_contradict_the_held_out_pairs_are_refused(store: Store, settings: Settings) -> None:
    run_id = store_training(store, settings, seed=3, val_fraction=0.3)
    message = f"^run {run_id} was trained with all samples, which decides the pairs that it held out: leave out samples"
    with pytest.raises(Refused, match=f"{message} 20, or give --no-held-out$"):
        evaluate(store, settings, model=str(run_id), samples=20)
    with pytest.raises(Refused, match=r"was trained with val_fraction 0\.3, .*: leave out val_fraction 0\.5"):
        evaluate(store, settings, model=str(run_id), val_fraction=0.5)
    spec = evaluate(store, settings, model=str(run_id), seed=3, samples=20, held_out=False)
    assert (spec.seed, spec.samples, spec.held_out) == (3, 20, False)
    resolved_twice = evaluate(store, settings, **evaluate(store, settings, model=str(run_id)).model_dump())
    assert (resolved_twice.seed, resolved_twice.val_fraction, resolved_twice.samples) == (3, 0.3, None)


def test_data_folder_is_recognized_in_other_spellings(store: Store, settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    run_id = store_training(
        store, settings, data=str(tmp_path / "photos"), data_kind="folder", seed=7, val_fraction=0.4
    )
    spec = evaluate(store, settings, model=str(run_id), data=f"{tmp_path}/./photos/")
    assert (spec.seed, spec.val_fraction, spec.data_kind) == (7, 0.4, "folder")
    with pytest.raises(Refused, match="was trained with data_kind folder"):
        evaluate(store, settings, model=str(run_id), data=str(tmp_path / "photos"), data_kind="csv")
    run_id = store_training(store, settings, data=str(tmp_path / "photos"))
    spec = evaluate(store, settings, model=str(run_id), data=str(tmp_path / "photos"), data_kind="folder")
    assert (spec.data_kind, spec.held_out_data) == ("folder", (str(tmp_path / "photos"),))


def test_class_column_unknown_to_the_training_is_refused(store: Store, settings: Settings) -> None:
    with_classes, without_classes = (
        store_training(store, settings, csv_class_key="kind"),
        store_training(store, settings),
    )
    assert evaluate(store, settings, model=str(with_classes)).csv_class_key == "kind"
    with pytest.raises(Refused, match=f"run {without_classes} was trained without the class column 'kind'"):
        evaluate(store, settings, model=str(without_classes), csv_class_key="kind")
    on_all_pairs = evaluate(store, settings, model=str(without_classes), csv_class_key="kind", held_out=False)
    assert on_all_pairs.csv_class_key == "kind"


def test_other_split_of_a_karpathy_json_counts_as_new_data(store: Store, settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "captions.json").touch()
    data = {"data": str(tmp_path / "captions.json")}
    run = str(store_training(store, settings, **data, seed=4))
    test = evaluate(store, settings, model=run, **data, json_split="test")
    assert (test.json_split, test.held_out_data) == ("test", ())
    same = evaluate(store, settings, model=run, **data)
    assert (same.json_split, same.held_out_data, same.seed) == ("auto", (data["data"],), 4)
    with pytest.raises(Refused, match="held out no pairs"):
        evaluate(store, settings, model=run, **data, json_split="train")


@pytest.mark.parametrize("fields", [{"val_fraction": 0}, {"val_data": "synthetic"}])
def test_training_on_all_pairs_has_no_held_out_pairs(
    store: Store, settings: Settings, fields: dict[str, object]
) -> None:
    run_id = store_training(store, settings, **fields)
    with pytest.raises(Refused, match="held out no pairs of digits"):
        evaluate(store, settings, model=str(run_id))
    assert not evaluate(store, settings, model=str(run_id), held_out=False).held_out


def test_only_a_training_with_a_checkpoint_can_be_evaluated(store: Store, settings: Settings) -> None:
    other = store.enqueue(ProfileSpec(models=("resnet18",)))
    with pytest.raises(Refused, match="only a training has one"):
        evaluate(store, settings, model=str(other))
    fresh = store.enqueue(TrainSpec())
    with pytest.raises(Refused, match="no checkpoint yet"):
        evaluate(store, settings, model=str(fresh))
    store.request_cancel(fresh)
    with pytest.raises(Refused, match=f"run {fresh} is cancelled and has no checkpoint here. If another machine has"):
        evaluate(store, settings, model=str(fresh))
    with pytest.raises(LookupError):
        evaluate(store, settings, model="99")


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../../../etc/passwd", "~nobody-here/x", "/" + "x" * 300, "/nowhere/pairs.csv"]
)
def test_absent_and_forbidden_files_give_the_same_error(settings: Settings, path: str) -> None:
    for field in ("data", "val_data", "resume"):
        with pytest.raises(Refused, match=f"^{field}: nothing can be read at"):
            named_files.check_paths(settings, TrainSpec.model_validate({field: path}))


def test_paths_with_nul_are_refused(settings: Settings) -> None:
    with pytest.raises(Refused, match="resume: nothing can be read at"):
        named_files.check_paths(settings, TrainSpec(resume="a\0b"))
    for field in ("data", "val_data"):
        with pytest.raises(ValidationError, match="a text without NUL"):
            TrainSpec.model_validate({field: "a\0b"})


def test_links_that_leave_the_roots_are_refused(settings: Settings, tmp_path: Path) -> None:
    uploads = settings.runs_dir / "uploads"
    uploads.mkdir(parents=True)
    (uploads / "pairs.csv").write_text("filepath,title\n")
    (uploads / "link.csv").symlink_to("/etc/passwd")
    named_files.check_paths(settings, TrainSpec(data=str(uploads / "pairs.csv")))
    named_files.check_paths(settings, TrainSpec(data=f"{uploads}/{{00..03}}.tar"))
    with pytest.raises(Refused, match="nothing can be read"):
        named_files.check_paths(settings, TrainSpec(data=str(uploads / "link.csv")))


def test_continued_training_has_the_settings_of_the_first_one(store: Store, settings: Settings, tmp_path: Path) -> None:
    run_id = store_training(store, settings, epochs=7, seed=2)
    folder = RunFiles(settings.runs_dir, run_id).dir
    spec = checkpoints.continued(folder)
    assert (spec.epochs, spec.seed, spec.resume) == (7, 2, str(folder.resolve()))
    assert checkpoints.continued(folder / "checkpoints" / "best.pt").epochs == 7
    manifest = folder / "checkpoints" / "best.pt.json"
    about = json.loads(manifest.read_text())
    for name, epochs in (("a", 8), ("z", 9)):
        newer = about | {"step": about.get("step", 0) + 10 - epochs, "spec": about["spec"] | {"epochs": epochs}}
        manifest.with_name(f"{name}.pt.json").write_text(json.dumps(newer))
    assert checkpoints.continued(folder).epochs == 8, "the newest checkpoint"
    for name in ("a", "z"):
        manifest.with_name(f"{name}.pt.json").unlink()
    with pytest.raises(Refused, match="neither a checkpoint with its manifest"):
        checkpoints.continued(tmp_path / "nothing")
    for content in ('{"spec": null}', "[1]"):
        manifest.write_text(content)
        with pytest.raises(Refused, match="does not contain a valid training request"):
            checkpoints.continued(manifest.with_suffix(""))


def test_evaluation_of_a_checkpoint_uses_its_held_out_pairs(store: Store, settings: Settings) -> None:
    run_id = store_training(store, settings, seed=3, val_fraction=0.3, samples=500)
    path = str(RunFiles(settings.runs_dir, run_id).dir / "checkpoints" / "best.pt")
    spec = evaluate(store, settings, checkpoint=path)
    assert (spec.checkpoint, spec.seed, spec.val_fraction, spec.samples) == (path, 3, 0.3, 500)
    on_all_pairs = store_training(store, settings, val_fraction=0)
    path = str(RunFiles(settings.runs_dir, on_all_pairs).dir / "checkpoints" / "best.pt")
    with pytest.raises(Refused, match=r"best\.pt held out no pairs of digits"):
        evaluate(store, settings, checkpoint=path)
    assert not evaluate(store, settings, checkpoint=path, held_out=False).held_out


def test_checkpoint_without_valid_settings_needs_no_held_out(store: Store, settings: Settings) -> None:
    run_id = store_training(store, settings, seed=3)
    path = RunFiles(settings.runs_dir, run_id).dir / "checkpoints" / "best.pt"
    manifest = path.with_name("best.pt.json")
    manifest.write_text(json.dumps({"step": 5, "spec": {"seed": 3, "lr": "of old"}}))
    with pytest.raises(Refused, match="does not say which pairs were held out"):
        evaluate(store, settings, checkpoint=str(path))
    for weights in ({"checkpoint": str(path), "held_out": False}, {"checkpoint": "openai"}, {}):
        assert evaluate(store, settings, **weights, seed=5).seed == 5
    manifest.unlink()
    assert evaluate(store, settings, checkpoint=str(path), seed=5).seed == 5


@pytest.mark.usefixtures("no_scheduler")
@pytest.mark.parametrize("imported", [True, False])
def test_retry_of_a_training_without_its_checkpoint_is_refused(
    store: Store, settings: Settings, tmp_path: Path, imported: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = queue_train(store)
    record(store, run_id, [Progress(done=30, total=44), train_row(1)], state=State.CANCELLED)
    if imported:
        write_checkpoints(RunFiles(settings.runs_dir, run_id).dir, "latest.pt")
        (tmp_path / "run.zip").write_bytes(export_bundle(store, settings, run_id))
        run_id = import_bundle(store, settings, tmp_path / "run.zip")
    folder = RunFiles(settings.runs_dir, run_id).dir
    with pytest.raises(
        Refused, match=rf"stopped after 30 steps, and {folder}/checkpoints has no checkpoint.*Run again"
    ):
        jobs.retry(store, settings, run_id)
    assert main(["resume", str(run_id)]) == 2
    assert "stopped after 30 steps" in capsys.readouterr().err
    assert store.run(run_id).state is State.CANCELLED
    write_checkpoints(folder, "latest.pt")
    jobs.retry(store, settings, run_id)
    assert store.run(run_id).state is State.QUEUED


@pytest.mark.usefixtures("no_scheduler")
@pytest.mark.parametrize("resumed", [False, True])
def test_training_without_lost_steps_is_retried(store: Store, settings: Settings, resumed: bool) -> None:
    run_id = queue_train(store, resume=str(settings.runs_dir) if resumed else "")
    record(store, run_id, [Progress(done=30 if resumed else 0, total=44)], state=State.FAILED)
    jobs.retry(store, settings, run_id)
    assert store.run(run_id).state is State.QUEUED
    killed = "only a failed or cancelled run can be tried again. If its process was killed, the scheduler finds out"
    with pytest.raises(Refused, match=killed):
        jobs.retry(store, settings, run_id)
    record(store, run_id, [])
    with pytest.raises(Refused, match="start a training with more epochs that continues its folder"):
        jobs.retry(store, settings, run_id)


def test_precision_auto_becomes_that_of_the_device_at_submission(store: Store, settings: Settings) -> None:
    def resolved_precision(**fields: object) -> str:
        spec = references.resolve(store, settings, TrainSpec.model_validate(fields))
        assert isinstance(spec, TrainSpec)
        return spec.precision

    assert resolved_precision() == "fp32"
    assert resolved_precision(device="cuda:0") == "auto", "the device is not probed yet, so the worker decides"
    devices = (Device(name="cpu", model="x"), *(Device(name=f"cuda:{i}", model="x", bf16=i == 1) for i in range(2)))
    machine_fields = {
        "host": "here",
        "platform": "Linux",
        "cpu": "x",
        "threads": 2,
        "memory_gb": 8.0,
        "date": "2026-11-20",
    }
    store.save_machine(Machine.model_validate(machine_fields | {"devices": devices}))
    assert (resolved_precision(device="cuda"), resolved_precision(device="cuda:1")) == ("fp32", "amp_bf16")
    assert resolved_precision(device="cuda:1", precision="fp32") == "fp32", "an explicit precision stays"


def test_default_workers_depend_on_cpus_and_data() -> None:
    assert default_workers("cuda:0", "pairs.csv", cpus=16, nproc=1) == 8
    assert default_workers("cuda:0", "pairs.csv", cpus=16, nproc=4) == 3
    assert default_workers("cuda:0", "pairs.csv", cpus=2, nproc=4) == 1
    assert default_workers("cuda:0", "digits", cpus=16, nproc=1) == 0
    assert default_workers("cuda:0", "digits::pairs.csv", cpus=16, nproc=1) == 8
    assert default_workers("cpu", "pairs.csv", cpus=16, nproc=1) == 0


def test_all_models_are_evaluated_on_the_held_out_pairs_of_one(
    store: Store, settings: Settings, tmp_path: Path
) -> None:
    run_id = store_training(store, settings, seed=3, val_fraction=0.3, image_size=48)
    plain = evaluate(store, settings, model="ViT-B-32", more_data=(str(tmp_path),))
    assert [part.held_out for part in plain.parts] == [False, False]
    spec = evaluate(store, settings, model="ViT-B-32", more_models=(str(run_id),), more_data=(str(tmp_path),))
    assert (spec.seed, spec.val_fraction, spec.image_size) == (3, 0.3, None), "image sizes are in the checkpoint"
    assert spec.more_models[0].startswith("digits-clip,/")
    assert [(part.model, part.data, part.held_out) for part in spec.parts] == [
        ("ViT-B-32", "digits", True),
        ("ViT-B-32", str(tmp_path), False),
        ("digits-clip", "digits", True),
        ("digits-clip", str(tmp_path), False),
    ]
    assert evaluate(store, settings, **spec.model_dump()) == spec, "resolving it again changes nothing"


def test_held_out_pairs_of_different_trainings_are_not_mixed(store: Store, settings: Settings, tmp_path: Path) -> None:
    first, other = store_training(store, settings, seed=1), store_training(store, settings, seed=2)
    with pytest.raises(Refused, match="hold out different pairs"):
        evaluate(store, settings, model=str(first), more_models=(str(other),))
    mixed = store_training(store, settings, data="digits::synthetic")
    with pytest.raises(Refused, match="shares digits with digits"):
        evaluate(store, settings, model=str(mixed))
    few = store_training(store, settings, samples=50)
    with pytest.raises(Refused, match="trained with samples 50, which would apply to every data set"):
        evaluate(store, settings, model=str(few), more_data=("synthetic",))
    before = str(checkpoints.best(settings, store.run(first)))
    tuned = store_training(store, settings, data="synthetic", pretrained=before)
    assert evaluate(store, settings, model=str(tuned)).held_out_data == ("digits",), (
        "its initial weights were trained on digits"
    )


def test_files_in_every_field_are_checked(settings: Settings) -> None:
    for name, value in (("more_data", ("/etc",)), ("probe_data", "/etc"), ("more_models", ("ViT-B-32,/etc/passwd",))):
        with pytest.raises(Refused, match=f"^{name}: nothing can be read at"):
            named_files.check_paths(settings, EvaluateSpec.model_validate({name: value}))
    deleted = settings.runs_dir / "7" / "checkpoints" / "best.pt"
    with pytest.raises(Refused, match=r"best\.pt'\. The run that made it may have been deleted\. Readable folders"):
        named_files.check_paths(settings, EvaluateSpec(checkpoint=str(deleted)))


def test_submitted_requests_name_their_files_from_any_folder(
    store: Store, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    training = references.resolve(store, settings, TrainSpec(data="digits::a b/{00..07}.tar", pretrained="w.pt"))
    assert isinstance(training, TrainSpec)
    assert training.data == f"digits::{tmp_path}/a b/{{00..07}}.tar"
    assert training.pretrained == f"{tmp_path}/w.pt"
    mixture = "~/x.csv::s3://y/x.csv"
    fields = {"data": mixture, "more_data": ("y.csv", "digits"), "more_models": ("ViT-B-32,z.pt", "RN50,openai")}
    evaluation = evaluate(store, settings, **fields)
    assert (evaluation.data, evaluation.more_data) == (mixture, (f"{tmp_path}/y.csv", "digits"))
    assert evaluation.more_models == (f"ViT-B-32,{tmp_path}/z.pt", "RN50,openai")


def test_run_id_means_its_best_checkpoint_in_train_and_evaluate(store: Store, settings: Settings) -> None:
    run_id = store_training(store, settings, seed=3)
    best = str(RunFiles(settings.runs_dir, run_id).dir / "checkpoints" / "best.pt")
    tuned = references.resolve(store, settings, TrainSpec(pretrained=str(run_id)))
    assert isinstance(tuned, TrainSpec)
    assert tuned.pretrained == best
    fields = {"loss": "distill", "distill_model": "digits-clip", "distill_pretrained": str(run_id)}
    taught = references.resolve(store, settings, TrainSpec.model_validate(fields))
    assert isinstance(taught, TrainSpec)
    assert (taught.distill_pretrained, taught.pretrained) == (best, "")
    for name in ("pretrained", "checkpoint"):
        assert evaluate(store, settings, **{name: str(run_id)}).checkpoint == best
    with pytest.raises(
        Refused, match=f"run {run_id} trained digits-clip, not ViT-B-32: choose digits-clip as the model"
    ):
        references.resolve(store, settings, TrainSpec(model="ViT-B-32", pretrained=str(run_id)))


def test_teacher_with_another_configuration_of_the_same_name_is_refused(store: Store, settings: Settings) -> None:
    run_id = store_training(store, settings, model="config:tiny", configs={"tiny": TINY})
    fields = {"loss": "distill", "distill_model": "config:tiny", "distill_pretrained": str(run_id)}
    student = {"model": "config:tiny", "configs": {"tiny": TINY | {"embed_dim": 32}}}
    with pytest.raises(Refused, match="two models have different configurations called tiny: rename one"):
        references.resolve(store, settings, TrainSpec.model_validate(fields | student))


def test_used_settings_have_the_hashes_of_the_files(store: Store, settings: Settings) -> None:
    run_id = store_training(store, settings)
    spec = evaluate(store, settings, checkpoint=str(run_id))
    digest = hashlib.sha256(b"weights").hexdigest()
    assert worker._used_settings(settings, spec) == {"SHA-256 of checkpoint": digest}


def test_used_settings_have_the_columns_found_by_name(settings: Settings) -> None:
    table = settings.runs_dir / "pets.csv"
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_text("filename,caption,label\na.png,a cat,cat\n")
    found = {"csv_img_key": "filename", "csv_caption_key": "caption"}
    for fields in ({}, {"csv_img_key": "filename"}):
        used = worker._used_settings(settings, TrainSpec.model_validate({"data": str(table), **fields}))
        assert used.items() >= found.items()
