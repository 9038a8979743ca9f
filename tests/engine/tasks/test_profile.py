"""The profile task: the order of its events, and a row for every model, also when it fails."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from engine.models import library
from engine.models.built import Built, Wanted
from engine.names import ModelNotFound
from engine.results import LOW_MEMORY, Artifact, Environment, ModuleCount, ProfileRow, Progress, detail_name
from engine.specs import ProfileSpec, Refused
from engine.tasks import profile as profile_task
from engine.tasks.profile import profile, run

SMALL = {
    "embed_dim": 64,
    "vision_cfg": {"image_size": 64, "layers": 2, "width": 128, "head_width": 64, "patch_size": 16},
    "text_cfg": {"context_length": 16, "vocab_size": 100, "width": 64, "heads": 2, "layers": 2},
}


def rows(spec: ProfileSpec, run_dir: Path) -> list[ProfileRow]:
    return [event for event in run(spec, run_dir) if isinstance(event, ProfileRow)]


def test_events_come_in_order(tmp_path: Path) -> None:
    events = list(run(ProfileSpec(models="timm:resnet18,torchvision:resnet18"), tmp_path))
    kinds = [Environment, Progress, Artifact, ProfileRow, Progress, Artifact, ProfileRow, Progress]
    assert [type(event) for event in events] == kinds
    assert [(event.done, event.total) for event in events if isinstance(event, Progress)] == [(0, 2), (1, 2), (2, 2)]


def test_wrong_name_or_device_is_refused_before_the_first_event(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="closest: timm:resnet50"):
        next(run(ProfileSpec(models="timm:resnet18,timm:resnet5O"), tmp_path))
    with pytest.raises(Refused, match="has no device 'cuda:63'"):
        next(run(ProfileSpec(models="timm:resnet18", device="cuda:63"), tmp_path))


def test_failed_model_gives_an_error_row_and_the_next_is_counted(tmp_path: Path) -> None:
    spec = ProfileSpec(models="timm:levit_128s,timm:resnet18", image_size="100")
    failed, counted = rows(spec, tmp_path)
    assert (failed.model, failed.status, failed.gmacs) == ("levit_128s", "error", None)
    assert "its own size is 224" in failed.error
    assert failed.image_size == "100"
    assert (counted.status, counted.error) == ("ok", "")


@pytest.mark.slow
def test_metrics_are_per_sample_and_traffic_is_per_batch() -> None:
    batch_1, batch_4 = (
        profile("open_clip:ViT-B-32", ProfileSpec(models="ViT-B-32", batch_size=batch)).row for batch in (1, 4)
    )
    for metric in ("gmacs", "image_gflops", "text_macts", "mparams", "weights_mb"):
        assert getattr(batch_4, metric) == pytest.approx(getattr(batch_1, metric))
    assert (batch_4.traffic_mb or 0) > (batch_1.traffic_mb or 0)
    assert (batch_4.inference_peak_mb or 0) > (batch_1.inference_peak_mb or 0)
    assert sum(operator.flops for operator in batch_4.operators) == pytest.approx(4 * (batch_1.gflops or 0) * 1e9)


@pytest.mark.parametrize("model", ["timm:vit_small_patch16_224", "open_clip:ViT-S-16"])
def test_size_not_divisible_by_patches_is_refused_with_nearest_sizes(model: str) -> None:
    row = profile(model, ProfileSpec(models=model, image_size="225")).row
    assert "Image size 225 does not divide by the patch size 16. Use 224 or 240." in row.error
    assert profile(model, ProfileSpec(models=model, image_size="240x224")).row.status == "ok"


@pytest.mark.slow
def test_metrics_of_the_parts_add_up_to_the_model() -> None:
    row = profile("open_clip:coca_ViT-B-32", ProfileSpec(models="coca_ViT-B-32")).row
    for metric in ("gmacs", "gflops", "macts", "mparams"):
        parts = [getattr(row, f"{part}_{metric}") for part in ("image", "text", "other")]
        assert all(part > 0 for part in parts)
        assert getattr(row, metric) == pytest.approx(sum(parts))


def test_image_model_is_counted_as_an_image_tower() -> None:
    row = profile("timm:resnet18", ProfileSpec(models="timm:resnet18")).row
    assert (row.image_gmacs, row.image_mparams) == (row.gmacs, row.mparams)
    assert (row.text_gmacs, row.other_gmacs, row.context_length) == (None, 0, None)


@pytest.mark.slow
def test_detail_lists_modules_outermost_first(tmp_path: Path) -> None:
    list(run(ProfileSpec(models="open_clip:ViT-S-32-alt"), tmp_path))
    path = tmp_path / detail_name("open_clip", "ViT-S-32-alt", "224", 1)
    modules = [ModuleCount.model_validate(entry) for entry in json.loads(path.read_text())]
    by_path = {module.path: module for module in modules}
    assert modules[0].path == ""
    assert by_path[""].gmacs == pytest.approx(by_path["visual"].gmacs + by_path["text"].gmacs)
    conv = by_path["visual.conv1"]
    assert (conv.type, conv.output, conv.kernel, conv.stride) == ("Conv2d", "1×384×7×7", "32×32", "32×32")
    assert conv.mparams * 1e6 == pytest.approx(384 * 3 * 32 * 32)
    assert conv.gmacs * 1e9 == pytest.approx(384 * 3 * 32 * 32 * 7 * 7)
    assert by_path["visual"].output == "1×256"


def test_every_size_and_batch_has_a_row_and_a_detail_file(tmp_path: Path) -> None:
    spec = ProfileSpec.model_validate({"models": "timm:resnet18", "image_size": "64,128x64", "batch_size": "1,3"})
    counted = rows(spec, tmp_path)
    assert [(row.image_size, row.batch_size) for row in counted] == [(s, b) for s in ("64", "128x64") for b in (1, 3)]
    assert counted[2].macts == pytest.approx(2 * (counted[0].macts or 0) - 1e-3)  # the size does not change the head
    last = json.loads((tmp_path / counted[3].detail_file).read_text())
    outputs = {module["path"]: module["output"] for module in last}
    assert (outputs["conv1"], outputs[""]) == ("3×64×64×32", "3×1000")


def test_run_of_many_counts_writes_detail_files_only_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile_task, "DETAILED", 1)
    spec = ProfileSpec(models="timm:resnet18,torchvision:resnet18")
    assert [row.detail_file for row in rows(spec, tmp_path)] == ["", ""]
    assert all(
        (tmp_path / row.detail_file).is_file() for row in rows(spec.model_copy(update={"detail": True}), tmp_path)
    )
    assert all(row.detail_file for row in rows(ProfileSpec(models="timm:resnet18"), tmp_path))


def test_detail_file_of_an_unsafe_name_stays_in_the_run_folder(tmp_path: Path) -> None:
    spec = ProfileSpec(models="config:../x y", configs={"../x y": SMALL})
    (artifact,) = (event for event in run(spec, tmp_path) if isinstance(event, Artifact))
    assert (tmp_path / artifact.name).resolve().is_relative_to(tmp_path.resolve())


@pytest.mark.slow
def test_counts_of_a_user_configuration_equal_hand_formulas(tmp_path: Path) -> None:
    good, bad = rows(ProfileSpec(models="config:mine,config:bad", configs={"mine": SMALL, "bad": {}}), tmp_path)
    assert (good.library, good.model, good.status, good.embed_dim) == ("config", "mine", "ok", 64)
    tokens, width, layers, patches = 16, 64, 2, 16
    text = layers * (2 * tokens * 12 * width**2 + 4 * tokens**2 * width) + 2 * width * 64
    assert good.text_gflops == pytest.approx(text / 1e9)
    image = (
        2 * patches * 3 * 16 * 16 * 128
        + layers * (2 * (patches + 1) * 12 * 128**2 + 4 * (patches + 1) ** 2 * 128)
        + 2 * 128 * 64
    )
    assert good.image_gflops == pytest.approx(image / 1e9)
    assert (bad.status, bad.complete) == ("error", None)
    assert "has no embed_dim" in bad.error


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_half_precision_halves_weights_and_traffic(precision: str) -> None:
    name = "timm:resnet18"
    whole = profile(name, ProfileSpec(models=name)).row
    half = profile(name, ProfileSpec(models=name, precision=precision)).row
    assert half.gmacs == whole.gmacs
    assert half.weights_mb == pytest.approx((whole.weights_mb or 0) / 2, rel=0.001)
    assert half.traffic_mb == pytest.approx((whole.traffic_mb or 0) / 2, rel=0.02)


def test_training_peak_is_estimated_only_on_request() -> None:
    name = "timm:resnet18"
    assert profile(name, ProfileSpec(models=name)).row.training_peak_mb is None
    row = profile(name, ProfileSpec(models=name, training=True, batch_size=8)).row
    weights = 4 * (row.weights_mb or 0)
    assert weights < (row.training_peak_mb or 0) < weights + 8 * (row.kept_mb or 0) < 1.1 * (row.training_peak_mb or 0)


class Recurrent(nn.Module):
    """An LSTM over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3 * 4, 5, batch_first=True)

    def forward(self, images: Tensor) -> Tensor:
        return self.lstm(images.transpose(1, 2).flatten(2))[0].mean(1)


def test_training_peak_of_a_model_with_lstms_has_a_note() -> None:
    def recurrent(name: str, wanted: Wanted) -> Built:
        images = torch.ones(wanted.batch_size, 3, 4, 4, device=wanted.device)
        return Built(Recurrent().to(wanted.device), (images,), {"image": ""}, "recurrent", (4, 4), (4, 4))

    for build, noted in ((recurrent, True), (library.build, False)):
        row = profile("timm:test_vit", ProfileSpec(models="timm:test_vit", training=True), build).row
        assert row.training_peak_mb, row.error
        assert (LOW_MEMORY in row.notes) == noted


def test_batch_too_small_to_train_gives_a_note_instead_of_a_peak() -> None:
    """Batch norm over a single value per channel has no variance to train with."""
    name = "timm:botnet26t_256"
    row = profile(name, ProfileSpec(models=name, training=True, image_size="32", batch_size=1)).row
    assert row.status == "ok", row.error
    assert row.training_peak_mb is None
    assert any("no training peak: Expected more than 1 value per channel" in note for note in row.notes)


class Edges(nn.Module):
    """A model without trained parameters, with an operator that has no formula and a pooling without a stride."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.LPPool2d(2, 3)

    def forward(self, images: Tensor) -> Tensor:
        return torch.fft.rfft2(self.pool(images))


def test_unusual_model_has_readable_notes_and_modules() -> None:
    def build(name: str, wanted: Wanted) -> Built:
        images = torch.ones(1, 3, 9, 9, device=wanted.device)
        return Built(Edges(), (images,), {"image": ""}, "mine", (9, 9), (9, 9))

    found = profile("timm:mine", ProfileSpec(models="timm:mine", training=True, detail=True), build=build)
    assert found.row.notes == (
        "work of unknown size is missing: _fft_r2c (1 call)",
        "no training peak: no output has a gradient",
    )
    assert [(module.kernel, module.stride) for module in found.modules] == [("", ""), ("3", "")]


@pytest.mark.slow
def test_counting_five_billion_parameters_needs_little_memory() -> None:
    # not ru_maxrss, because a process inherits the peak of its parent
    code = (
        "from pathlib import Path; from engine.tasks.catalogue import count; row = count('open_clip:EVA02-E-14-plus');"
        "status = Path('/proc/self/status').read_text();"
        "print(row.gflops, row.image_gflops, row.text_gflops, row.mparams);"
        "print(int(status.split('VmHWM:')[1].split()[0]) * 1024 / 1e9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *counts, peak_gb = map(float, done.stdout.split())
    published = [2362.19, 2264.33, 97.86, 5044.89]  # docs/model_profile.csv of mlfoundations/open_clip at 3b37473
    assert [round(value, 2) for value in counts] == published
    assert peak_gb < 1.2


def small_accelerator(limit: int) -> object:
    """Return a builder that runs out of memory on an accelerator above `limit` parameters."""

    def build(name: str, wanted: Wanted) -> Built:
        built = library.build(name, Wanted(device="cpu"))
        if wanted.device != "cpu" and sum(p.numel() for p in built.model.parameters()) > limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return built

    return build


@pytest.mark.slow
def test_model_too_large_for_a_gpu_is_counted_on_the_cpu_with_a_note() -> None:
    spec = ProfileSpec(models="timm:resnet18", device="cuda:0")
    row = profile("timm:resnet18", spec, build=small_accelerator(limit=1000)).row
    assert (row.status, row.device, row.device_used) == ("ok", "cuda:0", "cpu")
    assert row.notes == ("out of memory on cuda:0: counted on cpu instead",)
    assert row.gmacs == pytest.approx(1.814073344)  # GMACs of ResNet-18; torchvision documents 1.814


def test_out_of_memory_on_gpu_and_cpu_gives_a_row_with_that_status() -> None:
    def build(name: str, wanted: Wanted) -> Built:
        raise torch.OutOfMemoryError(f"out of memory on {wanted.device}")

    row = profile("timm:resnet18", ProfileSpec(models="timm:resnet18", device="cuda:0"), build=build).row
    assert (row.status, row.device_used) == ("out_of_memory", "cpu")
    assert row.error == "OutOfMemoryError: out of memory on cpu"


class Untraceable(torch.nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if torch.jit.is_tracing():
            raise RuntimeError("cannot be traced")
        return super().forward(input)


def test_counts_of_one_counter_are_kept_when_the_other_fails() -> None:
    def build(name: str, wanted: Wanted) -> Built:
        size = (1, 8)
        return Built(Untraceable(8, 4), (torch.ones(2, 8),), {"image": ""}, "mine", size, size)

    row = profile("timm:mine", ProfileSpec(models="timm:mine", counter="both", batch_size=2), build=build).row
    assert (row.status, row.fvcore_gmacs) == ("error", None)
    assert "cannot be traced" in row.error
    assert row.gmacs == 8 * 4 / 1e9
    assert row.mparams == (8 * 4 + 4) / 1e6


@pytest.mark.slow
def test_hugging_face_text_model_has_a_note_on_assumptions() -> None:
    row = profile("open_clip:roberta-ViT-B-32", ProfileSpec(models="roberta-ViT-B-32")).row
    assert row.complete
    assert any("was read as a boolean" in note for note in row.notes)
