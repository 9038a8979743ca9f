"""Checks of the weights, disk space and memory that a run needs."""

import pytest

from engine.report.checks import Check, of_prospect
from engine.results.answers import Needed, Prospect
from engine.specs.evaluate import EvaluateSpec
from engine.specs.train import TrainSpec

DIGITS = TrainSpec()
REMOTE = Needed(what="weights openai of ViT-B-32", address="huggingface.co/org/name/file.safetensors", mb=605.2)
LOCAL = Needed(what="the tokenizer of roberta-base", path="/cache/tokenizer.json")
FETCHED = (
    "Weights openai of ViT-B-32: to be downloaded from huggingface.co/org/name/file.safetensors (605 MB) into /cache"
)


def lines(
    *, available_gb: float | None = None, spec: TrainSpec | EvaluateSpec | None = None, **fields: object
) -> list[Check]:
    defaults: dict[str, object] = {"cache": "/cache", "free_mb": 30_000.0}
    return of_prospect(Prospect.model_validate(defaults | fields), spec or TrainSpec(), available_gb)


def test_local_files_and_files_to_download_are_listed() -> None:
    assert lines(needed=(LOCAL, REMOTE)) == [
        Check("ok", "The tokenizer of roberta-base: /cache/tokenizer.json."),
        Check("ok", f"{FETCHED}, where 30 GB are free."),
    ]
    weights_by_path = Needed(what="weights /runs/4/best.pt", path="/runs/4/best.pt")
    assert lines(needed=(weights_by_path,)) == [Check("ok", "Weights /runs/4/best.pt.")]
    assert lines(needed=(REMOTE.model_copy(update={"mb": None}),))[0].text.startswith(FETCHED.replace(" (605 MB)", ""))


def test_too_little_disk_for_all_downloads_is_an_error() -> None:
    assert [check.mark for check in lines(needed=(REMOTE,), free_mb=1000.0)] == ["ok"]
    assert (
        lines(needed=(REMOTE, REMOTE), free_mb=1000.0)
        == [Check("error", f"{FETCHED}, where only 1 GB are free. Make room, or set HF_HUB_CACHE.")] * 2
    )


def test_problems_come_first_with_their_text() -> None:
    assert lines(needed=(LOCAL,), problems=("no such tag",))[0] == Check("error", "no such tag")


@pytest.mark.parametrize(("available_gb", "mark"), [(None, "ok"), (6.0, "ok"), (4.0, "warning"), (2.0, "error")])
def test_needed_memory_is_compared_with_available_memory(available_gb: float | None, mark: str) -> None:
    (check,) = lines(peak_mb=5770.0, state_mb=2420.0, available_gb=available_gb)
    start = "Memory: about 5.77 GB: 2.42 GB for weights, gradients and optimizer, the rest for a batch."
    assert check.text.startswith(start)
    assert check.mark == mark
    assert ("Take a smaller batch, or checkpoint activations." in check.text) == (mark == "warning")


def test_memory_used_by_other_processes_causes_a_warning() -> None:
    (check,) = lines(peak_mb=5770.0, state_mb=2420.0, available_gb=8.0, unused_mb=5000.0)
    assert check.mark == "warning"
    assert "The device has 8 GB, and 5 GB are free now. Take a smaller batch" in check.text
    (check,) = lines(peak_mb=5770.0, state_mb=2420.0, available_gb=8.0, unused_mb=7000.0)
    assert check.mark == "ok"


def test_processes_share_host_memory_but_not_accelerators() -> None:
    (check,) = lines(peak_mb=5770.0, state_mb=2420.0, available_gb=8.0, spec=TrainSpec(nproc=2))
    assert check.mark == "warning"
    assert "about 11.5 GB in 2 processes: 4.84 GB for" in check.text
    (check,) = lines(peak_mb=5770.0, state_mb=2420.0, available_gb=8.0, spec=TrainSpec(nproc=2, device="cuda"))
    assert check.mark == "ok"


def test_evaluation_needs_memory_for_weights_and_a_batch() -> None:
    (check,) = lines(peak_mb=700.0, state_mb=605.0, available_gb=0.65, spec=EvaluateSpec())
    assert check == Check(
        "warning",
        "Memory: about 700 MB: 605 MB for weights, the rest for a batch. The device has 0.65 GB. Take a smaller batch.",
    )
