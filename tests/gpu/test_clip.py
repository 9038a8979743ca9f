"""Training CLIP on a real accelerator: it learns in every precision, and is continued from its checkpoint."""

from pathlib import Path

import pytest

from engine.measure.environment import computes_bf16
from engine.models import variants
from engine.models.variants import Numbers, has_tf32
from engine.training import checkpoints, precision
from tests.support.training import captioned, losses, rows, tiny, train

pytestmark = pytest.mark.gpu

PRECISIONS = ("fp32", "bf16", "fp16", "amp", "amp_bf16")
ONCE = {"overfit": True, "epochs": None, "steps": 120, "lr": 1e-3, "val_frequency": 0, "zeroshot_frequency": 0}


@pytest.mark.parametrize("chosen", PRECISIONS)
def test_one_batch_is_learned_in_every_precision(tmp_path: Path, chosen: str) -> None:
    """With `amp` the loss scaler skips the first step or two, and the loss stays near ln 8 for longer."""
    curve = losses(train(tiny(device="cuda:0", precision=chosen, **ONCE), tmp_path))
    assert len(curve) == ONCE["steps"]
    assert curve[-1][1] < curve[0][1] / 2


@pytest.mark.parametrize("chosen", ["fp32", "amp"])
def test_a_training_is_continued_from_its_checkpoint(tmp_path: Path, chosen: str) -> None:
    """Sums on a GPU need not come out equal to the bit, so curves agree and steps, scaler and rows are all there."""
    spec = tiny(device="cuda:0", precision=chosen)
    whole = train(spec, tmp_path / "whole")
    train(spec, tmp_path / "stopped", steps=5)
    continued = train(spec, tmp_path / "stopped")
    assert [step for step, _ in losses(continued)] == [step for step, _ in losses(whole)]
    assert [loss for _, loss in losses(continued)] == pytest.approx([loss for _, loss in losses(whole)], rel=0.05)
    assert len(rows(continued)) == 2
    assert rows(continued)[-1].peak_memory_mb > 0  # type: ignore[operator]
    state = checkpoints.load(tmp_path / "stopped" / "checkpoints" / "epoch_2.pt")
    assert ("scaler" in state) == (chosen == "amp")
    assert all(tensor.device.type == "cpu" for tensor in state["state_dict"].values())


def test_the_gpu_computes_what_the_cpu_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without TF32, whose products keep 11 bits of each factor."""
    monkeypatch.setattr(precision, "set_tf32", lambda device: None)
    here = losses(train(tiny(epochs=1), tmp_path / "cpu"))
    with variants.switches(Numbers("float32"), training=True, cudnn_benchmark=False, deterministic=False):
        there = losses(train(tiny(epochs=1, device="cuda:0", precision="fp32"), tmp_path / "gpu"))
    assert [loss for _, loss in there] == pytest.approx([loss for _, loss in here], rel=1e-3)


def test_rows_say_in_what_they_were_computed(tmp_path: Path) -> None:
    (row,) = rows(train(tiny(epochs=1, device="cuda:0", precision="fp32"), tmp_path / "fp32"))
    assert (row.precision, row.tf32, row.cudnn_benchmark) == ("fp32", has_tf32("cuda:0"), True)
    assert any("TF32" in note for note in row.notes) == row.tf32
    (row,) = rows(train(tiny(epochs=1, device="cuda:0"), tmp_path / "auto"))
    assert row.precision == ("amp_bf16" if computes_bf16("cuda:0") else "fp32")


def test_images_are_loaded_by_other_processes(tmp_path: Path) -> None:
    """Through pinned memory, as trainings on files do by default."""
    fields = {"device": "cuda:0", "data": str(captioned(tmp_path, 40)), "samples": None}
    curves = [losses(train(tiny(workers=count, **fields), tmp_path / f"{count} workers")) for count in (0, 2)]
    assert [loss for _, loss in curves[1]] == pytest.approx([loss for _, loss in curves[0]], rel=0.05)
