"""Download packages for an offline machine with a GPU, and install there those that it lacks.

python scripts/wheels.py download FOLDER --torch 2.11 [--python 3.12] [--present NAME|FILE ...]
    Download the wheels that requirements-gpu.in needs with this release of torch, including torchvision, for Linux on
    x86-64: without torch, CUDA and Triton, and without the packages that are named as present.
python scripts/wheels.py install FOLDER TARGET
    Install the wheels that this machine lacks, or has in an unsuitable version, into TARGET. Then add TARGET to
    PYTHONPATH. Fails if torch is another release, or if a package is neither on this machine nor in FOLDER.

Wheels keep the versions of requirements.txt where they fit that release of torch.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from email import message_from_bytes
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parent.parent
NEEDED = ROOT / "requirements-gpu.in"
PINNED = (ROOT / "requirements.txt", ROOT / "requirements-dev.txt")
TORCHS_OWN = re.compile(r"torch|triton|cuda-.*|nvidia-(?!ml-py).*")
"""Packages that come with torch: gigabytes, which a machine with torch has."""
PLATFORMS = [*(f"manylinux_2_{minor}_x86_64" for minor in (35, 34, 31, 28, 27, 24, 17, 12, 5)), "manylinux2014_x86_64"]
PLATFORMS += ["manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
"""Platforms of wheels that run there. pip matches each literally, so the names of older systems are listed too."""


def resolved(torch: str, python: str) -> dict[str, str]:
    """Return the version of each package needed with this release of torch, by name. Pinned versions are preferred."""
    with tempfile.TemporaryDirectory() as name:
        constraint, output = Path(name, "constraint.txt"), Path(name, "resolved.txt")
        constraint.write_text(f"torch=={torch}.*\n")
        output.write_text("\n".join(_pins()))  # uv prefers what its output holds already
        command = [_uv(), "pip", "compile", "--quiet", "--no-annotate", "--python-version", python]
        command += ["--python-platform", "x86_64-manylinux_2_28", "--constraint", str(constraint)]
        subprocess.run([*command, str(NEEDED), "-o", str(output)], check=True)
        requirements = [Requirement(line) for line in output.read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(item.name): next(iter(item.specifier)).version for item in requirements}


def _pins() -> Iterator[str]:
    seen: set[str] = set()
    for line in (line for path in PINNED for line in path.read_text().splitlines()):
        if (found := re.match(r"([a-zA-Z0-9._-]+)==\S+", line)) and found[1] not in seen:
            seen.add(found[1])
            yield found[0]


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.is_file() else "uv"


def download(folder: Path, torch: str, python: str, present: Iterable[str]) -> None:
    """Fill the folder. Packages without a wheel on PyPI are built here.

    Errors: CalledProcessError; SystemExit when a built wheel runs only on this system.
    """
    present_names = {canonicalize_name(name) for name in _names(present)}
    versions = {
        name: release
        for name, release in resolved(torch, python).items()
        if name not in present_names and not TORCHS_OWN.fullmatch(name)
    }
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    for_linux = ["--python-version", python, "--implementation", "cp", "--only-binary=:all:"]
    for_linux += [word for name in PLATFORMS for word in ("--platform", name)]
    for name, release in versions.items():
        requirement = f"{name}=={release}"
        result = subprocess.run(
            [*pip, "download", "--no-deps", *for_linux, "-d", str(folder), requirement], check=False
        )
        if result.returncode:
            subprocess.run([*pip, "wheel", "--no-deps", "-w", str(folder), requirement], check=True)
    built = [path.name for path in folder.glob("*.whl") if not path.name.endswith(("-any.whl", "x86_64.whl"))]
    if built:
        raise SystemExit(f"not for Linux on x86-64: {', '.join(built)}")
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{len(versions)} wheels for torch {torch} and Python {python} in {folder}: {size / 2**20:.1f} MiB")


def _names(present: Iterable[str]) -> Iterator[str]:
    """Yield the names of packages. present: names, or files with names by line or comma, with or without versions."""
    for word in present:
        text = Path(word).read_text() if Path(word).is_file() else word
        yield from (found[1] for part in re.split(r"[,\n]", text) if (found := re.match(r"\s*([A-Za-z0-9._-]+)", part)))


def install(folder: Path, target: Path) -> None:
    """Install the wheels that this machine needs. Errors: SystemExit, which names unsuitable or missing packages."""
    wheels = {parse_wheel_filename(path.name)[0]: path for path in sorted(folder.glob("*.whl"))}
    chosen: dict[str, Path] = {}
    wrong, missing = set(), set()
    needed = list(_direct())
    for item in needed:  # grows by what each chosen wheel needs
        name = canonicalize_name(item.name)
        if name in chosen or _satisfied(item):
            continue
        if _comes_with_torch(item):
            wrong.add(str(item))
        elif name not in wheels:
            missing.add(name)
        else:
            chosen[name] = wheels[name]
            needed += _requires(wheels[name])
    if wrong:
        raise SystemExit(f"these wheels need {', '.join(sorted(wrong))}; this machine has torch {_installed('torch')}")
    if missing:
        names = ", ".join(sorted(missing))
        raise SystemExit(f"neither this machine nor {folder} has {names}: download without them as present")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-index"]
    if chosen:
        paths = [str(path) for path in chosen.values()]
        subprocess.run([*command, "--no-deps", "--no-cache-dir", "--target", str(target), *paths], check=True)
    print(f"{len(chosen)} of {len(wheels)} wheels installed into {target}; this machine has the others")


def _direct() -> Iterator[Requirement]:
    """Yield the requirements in requirements-gpu.in and in requirements.in, which it includes."""
    for path in (ROOT / "requirements.in", NEEDED):
        for line in path.read_text().splitlines():
            text = line.partition("#")[0].strip()
            if text and not text.startswith("-"):
                yield from _applying([Requirement(text)])


def _requires(wheel: Path) -> Iterator[Requirement]:
    with ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
        message = message_from_bytes(archive.read(name))
    yield from _applying(Requirement(text) for text in message.get_all("Requires-Dist", []))


def _applying(requirements: Iterable[Requirement]) -> Iterator[Requirement]:
    """Return the requirements that apply to this machine, without extras."""
    return (item for item in requirements if item.marker is None or item.marker.evaluate({"extra": ""}))


def _comes_with_torch(requirement: Requirement) -> bool:
    return TORCHS_OWN.fullmatch(canonicalize_name(requirement.name)) is not None


def _satisfied(requirement: Requirement) -> bool:
    found = _installed(requirement.name)
    return found is not None and requirement.specifier.contains(found, prereleases=True)


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    download_arguments = commands.add_parser("download")
    download_arguments.add_argument("folder", type=Path)
    download_arguments.add_argument("--torch", required=True, help="its release, such as 2.11")
    download_arguments.add_argument("--python", default="3.12")
    download_arguments.add_argument("--present", nargs="*", default=[], help="packages of the machine: names or files")
    install_arguments = commands.add_parser("install")
    install_arguments.add_argument("folder", type=Path)
    install_arguments.add_argument("target", type=Path)
    chosen = parser.parse_args()
    if chosen.command == "download":
        download(chosen.folder, chosen.torch, chosen.python, chosen.present)
    else:
        install(chosen.folder, chosen.target)


if __name__ == "__main__":
    main()
