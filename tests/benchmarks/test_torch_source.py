"""The source of torch that the set-up chooses, with fake commands `uv` and `nvidia-smi`."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "torch_source.sh"


@pytest.mark.parametrize(
    ("gpu", "reached", "arguments", "reason"),
    [
        (False, True, "--torch-backend cpu", "the CPU build, because this machine has no NVIDIA GPU"),
        (False, False, "", "PyTorch's index of CPU builds cannot be reached"),
        (True, True, "", "this machine has an NVIDIA GPU"),
    ],
)
def test_torch_build_depends_on_gpu_and_network(
    tmp_path: Path, gpu: bool, reached: bool, arguments: str, reason: str
) -> None:
    for name, succeeds in (("nvidia-smi", gpu), ("uv", reached), ("uname", True)):
        command = tmp_path / name
        command.write_text(f"#!/bin/sh\necho Linux\nexit {0 if succeeds else 1}\n")
        command.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.run(
        [SCRIPT, tmp_path / "uv", "python", "2.15.0"], env={"PATH": path}, capture_output=True, text=True, check=True
    )
    assert (process.stdout.strip(), reason in process.stderr) == (arguments, True)
