"""Packages that `make gpu WHEELS=folder` installs on a machine, from wheels that the tests write."""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import pytest

from scripts import wheels


def write_wheel(folder: Path, name: str, release: str, *requires: str) -> None:
    """Write a wheel with one module that has its version as `release`."""
    folder.mkdir(exist_ok=True)
    metadata = "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {release}"])
    metadata += "".join(f"\nRequires-Dist: {requirement}" for requirement in requires) + "\n"
    info = f"{name}-{release}.dist-info"
    with ZipFile(folder / f"{name}-{release}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", f"release = {release!r}\n")
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def wheels_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the requirements files, and return the folder for wheels."""
    monkeypatch.setattr(wheels, "ROOT", tmp_path)
    monkeypatch.setattr(wheels, "NEEDED", tmp_path / "requirements-gpu.in")
    (tmp_path / "requirements.in").write_text("torch  # the machine's own\nnumpy>=1\nvitals_lacking\n")
    (tmp_path / "requirements-gpu.in").write_text("-r requirements.in\npytest\n")
    return tmp_path / "wheels"


@pytest.mark.slow
def test_only_missing_packages_are_installed(wheels_dir: Path, tmp_path: Path) -> None:
    torch = version("torch").partition("+")[0]
    write_wheel(
        wheels_dir, "vitals_lacking", "1.5", f"torch=={torch}", "numpy>=1", "vitals-further; python_version > '3'"
    )
    write_wheel(
        wheels_dir, "vitals_further", "2.0", "vitals-never; extra == 'all'", "vitals-windows; sys_platform == 'win32'"
    )
    write_wheel(wheels_dir, "numpy", "99.0", "vitals-never")
    wheels.install(wheels_dir, tmp_path / "site")
    assert {path.name for path in (tmp_path / "site").glob("*.py")} == {"vitals_lacking.py", "vitals_further.py"}
    code = "import numpy, vitals_lacking, vitals_further; print(numpy.__version__, vitals_lacking.release)"
    environment = {"PYTHONPATH": str(tmp_path / "site")}
    child = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert child.stdout.split() == [version("numpy"), "1.5"]


@pytest.mark.slow
def test_package_that_is_too_old_is_replaced(wheels_dir: Path, tmp_path: Path) -> None:
    write_wheel(wheels_dir, "vitals_lacking", "1.5", "numpy>=99")
    write_wheel(wheels_dir, "numpy", "99.0")
    wheels.install(wheels_dir, tmp_path / "site")
    assert (tmp_path / "site" / "numpy.py").is_file()


def test_other_torch_release_and_missing_packages_are_refused(wheels_dir: Path, tmp_path: Path) -> None:
    write_wheel(wheels_dir, "vitals_lacking", "1.5", "torch==1.13.1")
    with pytest.raises(SystemExit, match=re.escape("these wheels need torch==1.13.1; this machine has torch 2.")):
        wheels.install(wheels_dir, tmp_path / "site")
    write_wheel(wheels_dir, "vitals_lacking", "1.5", "vitals-further>1")
    with pytest.raises(SystemExit, match=r"neither this machine nor .* has vitals-further"):
        wheels.install(wheels_dir, tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_present_packages_are_read_from_names_and_files(tmp_path: Path) -> None:
    (tmp_path / "present.txt").write_text("accelerate, absl-py\npandas==2.3.1\n\nuvloop ; sys_platform != 'win32'\n")
    found = list(wheels._names([str(tmp_path / "present.txt"), "scipy,scikit-learn", "timm"]))
    assert found == ["accelerate", "absl-py", "pandas", "uvloop", "scipy", "scikit-learn", "timm"]


def test_cuda_and_triton_belong_to_torch_and_nvml_does_not() -> None:
    of_torch = ["torch", "triton", "nvidia-cudnn-cu13", "nvidia-nccl-cu13", "cuda-toolkit", "nvidia-cublas"]
    others = ["torchvision", "nvidia-ml-py", "timm", "open-clip-torch"]
    assert [bool(wheels.TORCHS_OWN.fullmatch(name)) for name in of_torch + others] == [True] * len(of_torch) + [
        False
    ] * 4
