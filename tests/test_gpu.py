"""On a real accelerator: `pytest -m gpu`. Everywhere else the same paths are tested with fakes at the boundary."""

import pytest
import torch

from engine.models.built import out_of_memory
from engine.specs import ProfileSpec
from engine.tasks.profile import profile

pytestmark = pytest.mark.gpu


@pytest.fixture
def device() -> str:
    found = torch.accelerator.current_accelerator(check_available=True)
    assert found is not None, "these tests need an accelerator that torch can use"
    return f"{found.type}:0"


@pytest.mark.parametrize("model", ["timm:resnet18", "timm:vit_tiny_patch16_224", "open_clip:ViT-B-32"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_counts_on_the_accelerator_are_those_on_meta(device: str, model: str, precision: str) -> None:
    asked = {"models": (model,), "precision": precision, "batch_size": 2}
    real = profile(model, ProfileSpec.model_validate(asked | {"device": device})).row
    meta = profile(model, ProfileSpec.model_validate(asked)).row
    assert (real.status, real.device_used, real.complete) == ("ok", device, True), real.error
    assert (real.gflops, real.macts, real.mparams) == (meta.gflops, meta.macts, meta.mparams)


def test_both_counters_agree_on_the_accelerator_but_for_what_they_explain(device: str) -> None:
    row = profile("timm:resnet18", ProfileSpec(models=("timm:resnet18",), device=device, counter="both")).row
    assert row.status == "ok", row.error
    assert row.fvcore_macts == row.macts
    assert all(difference.explanation != "not explained" for difference in row.differences)


def test_running_out_of_its_memory_is_known_for_what_it_is(device: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50, dtype=torch.uint8, device=device)
    assert out_of_memory(caught.value)
