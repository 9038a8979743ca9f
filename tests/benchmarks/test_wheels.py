"""What `make gpu WHEELS=folder` installs beside the packages that a machine has, from wheels made by hand."""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import pytest

from scripts import wheels


def wheel(folder: Path, name: str, release: str, *requires: str) -> None:
    """A wheel of one module that says its version."""
    folder.mkdir(exist_ok=True)
    described = "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {release}"])
    described += "".join(f"\nRequires-Dist: {requirement}" for requirement in requires) + "\n"
    info = f"{name}-{release}.dist-info"
    with ZipFile(folder / f"{name}-{release}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", f"release = {release!r}\n")
        archive.writestr(f"{info}/METADATA", described)
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that name what is needed."""
    monkeypatch.setattr(wheels, "ROOT", tmp_path)
    monkeypatch.setattr(wheels, "NEEDED", tmp_path / "requirements-gpu.in")
    (tmp_path / "requirements.in").write_text("torch  # the machine's own\nnumpy>=1\nvitals_lacking\n")
    (tmp_path / "requirements-gpu.in").write_text("-r requirements.in\npytest\n")
    return tmp_path / "wheels"


@pytest.mark.slow
def test_what_a_machine_lacks_is_installed_and_what_it_has_stays(needed: Path, tmp_path: Path) -> None:
    torch = version("torch").partition("+")[0]
    wheel(needed, "vitals_lacking", "1.5", f"torch=={torch}", "numpy>=1", "vitals-further; python_version > '3'")
    wheel(needed, "vitals_further", "2.0", "vitals-never; extra == 'all'", "vitals-windows; sys_platform == 'win32'")
    wheel(needed, "numpy", "99.0", "vitals-never")
    wheels.install(needed, tmp_path / "site")
    assert {path.name for path in (tmp_path / "site").glob("*.py")} == {"vitals_lacking.py", "vitals_further.py"}
    code = "import numpy, vitals_lacking, vitals_further; print(numpy.__version__, vitals_lacking.release)"
    there = {"PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run([sys.executable, "-c", code], env=there, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [version("numpy"), "1.5"]


@pytest.mark.slow
def test_a_package_that_is_too_old_is_replaced(needed: Path, tmp_path: Path) -> None:
    wheel(needed, "vitals_lacking", "1.5", "numpy>=99")
    wheel(needed, "numpy", "99.0")
    wheels.install(needed, tmp_path / "site")
    assert (tmp_path / "site" / "numpy.py").is_file()


def test_another_release_of_torch_and_what_nobody_has_are_refused(needed: Path, tmp_path: Path) -> None:
    wheel(needed, "vitals_lacking", "1.5", "torch==1.13.1")
    with pytest.raises(SystemExit, match=re.escape("these wheels need torch==1.13.1; this machine has torch 2.")):
        wheels.install(needed, tmp_path / "site")
    wheel(needed, "vitals_lacking", "1.5", "vitals-further>1")
    with pytest.raises(SystemExit, match=r"neither this machine nor .* has vitals-further"):
        wheels.install(needed, tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_what_is_present_may_be_named_or_listed_in_files(tmp_path: Path) -> None:
    (tmp_path / "present.txt").write_text("accelerate, absl-py\npandas==2.3.1\n\nuvloop ; sys_platform != 'win32'\n")
    found = list(wheels._names([str(tmp_path / "present.txt"), "scipy,scikit-learn", "timm"]))
    assert found == ["accelerate", "absl-py", "pandas", "uvloop", "scipy", "scikit-learn", "timm"]


def test_torch_comes_with_cuda_and_triton_and_not_with_nvml() -> None:
    own = ["torch", "triton", "nvidia-cudnn-cu13", "nvidia-nccl-cu13", "cuda-toolkit", "nvidia-cublas"]
    carried = ["torchvision", "nvidia-ml-py", "timm", "open-clip-torch"]
    assert [bool(wheels.TORCHS_OWN.fullmatch(name)) for name in own + carried] == [True] * len(own) + [False] * 4
