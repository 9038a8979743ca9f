"""Training and evaluation of CLIP on a real GPU: precisions, continuation from a checkpoint, equality with the CPU."""

from pathlib import Path

import pytest

from engine.measure.environment import computes_bf16
from engine.models import variants
from engine.models.variants import Numbers, has_tf32
from engine.results.embeddings import read_embeddings
from engine.specs.evaluate import EvaluateSpec
from engine.tasks import evaluate
from engine.training import checkpoints, precision
from tests.support.training import TINY, captioned, losses, rows, tiny, train

pytestmark = pytest.mark.gpu

PRECISIONS = ("fp32", "bf16", "fp16", "amp", "amp_bf16")
ONE_BATCH = {"overfit": True, "epochs": None, "steps": 120, "lr": 1e-3, "val_frequency": 0, "zeroshot_frequency": 0}


@pytest.mark.parametrize("selected", PRECISIONS)
def test_loss_of_one_batch_falls_in_every_precision(tmp_path: Path, selected: str) -> None:
    """With `amp` the loss scaler skips the first step or two, and the loss stays near ln 8 for longer."""
    curve = losses(train(tiny(device="cuda:0", precision=selected, **ONE_BATCH), tmp_path))
    assert len(curve) == ONE_BATCH["steps"]
    assert curve[-1][1] < curve[0][1] / 2


@pytest.mark.parametrize("selected", ["fp32", "amp"])
def test_training_continues_from_its_checkpoint(tmp_path: Path, selected: str) -> None:
    """Sums on a GPU are not reproducible bit by bit, so losses are compared with a tolerance."""
    spec = tiny(device="cuda:0", precision=selected)
    uninterrupted = train(spec, tmp_path / "whole")
    train(spec, tmp_path / "stopped", steps=5)
    continued = train(spec, tmp_path / "stopped")
    assert [step for step, _ in losses(continued)] == [step for step, _ in losses(uninterrupted)]
    assert [loss for _, loss in losses(continued)] == pytest.approx(
        [loss for _, loss in losses(uninterrupted)], rel=0.05
    )
    assert len(rows(continued)) == 2
    assert rows(continued)[-1].peak_memory_mb > 0
    state = checkpoints.load(tmp_path / "stopped" / "checkpoints" / "epoch_2.pt")
    assert ("scaler" in state) == (selected == "amp")
    assert all(tensor.device.type == "cpu" for tensor in state["state_dict"].values())


def test_losses_on_the_gpu_equal_those_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TF32 is off, because its products keep only 11 bits of each factor."""
    monkeypatch.setattr(precision, "set_tf32", lambda device: None)
    on_cpu = losses(train(tiny(epochs=1), tmp_path / "cpu"))
    with variants.switches(Numbers("float32"), training=True):
        on_gpu = losses(train(tiny(epochs=1, device="cuda:0", precision="fp32"), tmp_path / "gpu"))
    assert [loss for _, loss in on_gpu] == pytest.approx([loss for _, loss in on_cpu], rel=1e-3)


def test_rows_have_precision_tf32_and_cudnn_benchmark(tmp_path: Path) -> None:
    (row,) = rows(train(tiny(epochs=1, device="cuda:0", precision="fp32"), tmp_path / "fp32"))
    assert (row.precision, row.tf32, row.cudnn_benchmark) == ("fp32", has_tf32("cuda:0"), True)
    assert any("TF32" in note for note in row.notes) == row.tf32
    (row,) = rows(train(tiny(epochs=1, device="cuda:0"), tmp_path / "auto"))
    assert row.precision == ("amp_bf16" if computes_bf16("cuda:0") else "fp32")


def test_losses_are_equal_with_loader_processes(tmp_path: Path) -> None:
    """Loader processes use pinned memory, as trainings on files do by default."""
    fields = {"device": "cuda:0", "data": str(captioned(tmp_path, 40)), "samples": None}
    curves = [losses(train(tiny(workers=count, **fields), tmp_path / f"{count} workers")) for count in (0, 2)]
    assert [loss for _, loss in curves[1]] == pytest.approx([loss for _, loss in curves[0]], rel=0.05)


@pytest.mark.usefixtures("settings", "registry")
def test_features_on_the_gpu_equal_those_on_the_cpu(tmp_path: Path) -> None:
    """TF32, torch's default in convolutions, would change them by up to 4e-5 (emulated on a CPU)."""
    found = []
    for device in ("cpu", "cuda:0"):
        folder = tmp_path / device
        folder.mkdir()
        spec = EvaluateSpec(model="config:tiny", configs={"tiny": TINY}, samples=60, device=device)
        list(evaluate.run(spec, folder))
        found.append(read_embeddings(folder / "embeddings.npz"))
    for name in ("images", "texts"):
        on_cpu, on_gpu = (getattr(embeddings, name) for embeddings in found)
        assert on_gpu == pytest.approx(on_cpu, abs=1e-5), name
