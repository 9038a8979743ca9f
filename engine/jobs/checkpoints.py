"""Find the checkpoints of trainings: here, or below VITALS_ARTIFACTS_URL when another machine has made them."""

from contextlib import suppress
from pathlib import Path

from engine.results import TrainRow
from engine.results.checkpoints import BEST, FOLDER, manifest_path, read_manifest
from engine.settings import Settings
from engine.specs import Refused
from engine.specs.train import TrainSpec
from engine.store import Run, Store
from engine.store.copies import mirror
from engine.store.files import RunFiles
from engine.words import plural


def best(settings: Settings, run: Run) -> Path:
    """Return a training's best checkpoint, else its newest. Errors: Refused when it has none here; Unreachable."""
    mirror.fetch(settings, run)  # the manifests
    paths = [path for path in versions(settings, run) if path.suffix == ".pt"]
    if not paths and run.state.ended:
        raise Refused(
            f"run {run.id} is {run.state} and has no checkpoint here. If another machine has its files, copy them "
            f"there with `python -m engine runs upload {run.id}`"
        )
    if not paths:
        raise Refused(f"run {run.id} has no checkpoint yet")
    steps = {path: read_manifest(path, settings.roots).get("step", 0) for path in paths}
    path = max(paths, key=lambda path: (path.name == BEST, steps[path]))
    fetch(settings, run, path.name)
    return path


def complete(settings: Settings, run: Run) -> dict[Path, int]:
    """Return a training's complete checkpoints, newest first, with sizes; `fetch` gets them. Errors: Unreachable."""
    found = versions(settings, run)
    paths = [path for path in found if path.suffix == ".pt" and manifest_path(path) in found]
    newest_first = sorted(paths, key=lambda path: found[path].modified_ns, reverse=True)
    return {path: found[path].size for path in newest_first}


def fetch(settings: Settings, run: Run, name: str) -> None:
    """Fetch a checkpoint of a training that another machine has made. name: its file name. Errors: Unreachable."""
    mirror.fetch(settings, run, f"{FOLDER}/{name}".__eq__)


def versions(settings: Settings, run: Run) -> dict[Path, mirror.Version]:
    """Return the versions of all files among a training's checkpoints, here or on the machine that has made them."""
    folder = RunFiles(settings.runs_dir, run.id).dir / FOLDER
    copies = mirror.look(settings, run)
    found = {folder.parent / name: version for name, version in copies.files.items()} if copies else {}
    found = {path: version for path, version in found.items() if path.parent == folder}
    for path in folder.glob("*"):
        with suppress(FileNotFoundError):  # the training has removed this old checkpoint since
            found[path] = mirror.version(path.stat())
    return found


def named(settings: Settings, run: Run, name: str) -> tuple[Path, int]:
    """Return the path and the step of a training's checkpoint. name: its file name; empty for the best one.

    Only the best one is fetched here; `fetch` fetches another one.
    Errors: Refused when the run is no training or has no such checkpoint.
    """
    if not isinstance(run.spec, TrainSpec):
        raise Refused(f"run {run.id} ({run.kind}) has no checkpoints: only a training has them")
    path = RunFiles(settings.runs_dir, run.id).dir / FOLDER / name
    names = sorted(path.name for path in versions(settings, run) if path.suffix == ".pt")
    if name and name not in names:
        raise Refused(f"run {run.id} has no checkpoint {name!r}; it has {', '.join(names) or 'none'}")
    mirror.fetch(settings, run)
    path = path if name else best(settings, run)
    return path, int(read_manifest(path, settings.roots).get("step", 0))


def continued(path: Path) -> TrainSpec:
    """Return a training request that continues from one of our checkpoints, or from the newest in a training's folder.

    Errors: Refused when there is no checkpoint with a manifest, or when the manifest has no readable spec.
    """
    folder = path / FOLDER if (path / FOLDER).is_dir() else path
    found = [path] if path.is_file() else [manifest.with_suffix("") for manifest in folder.glob("*.pt.json")]
    contents = [read_manifest(checkpoint, None) for checkpoint in found if manifest_path(checkpoint).is_file()]
    if not contents:
        raise Refused(
            f"{path} is neither a checkpoint with its manifest (.json) nor a folder of such checkpoints, nor the id of "
            "a run"
        )
    try:
        newest = max(contents, key=lambda manifest: manifest.get("step", 0))
        return TrainSpec.model_validate({**newest["spec"], "resume": str(path.resolve())})
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(f"the manifest of {path} does not contain a valid training request: {error}") from error


def check_resumable(store: Store, settings: Settings, run: Run) -> None:
    """Refuse a training that took steps and has no checkpoint: it would start again at step 0."""
    if not isinstance(run.spec, TrainSpec) or run.spec.resume:
        return
    steps = max([run.done, *(row.step for row in store.rows(run.id) if isinstance(row, TrainRow))])
    folder = RunFiles(settings.runs_dir, run.id).dir / FOLDER
    if steps and not complete(settings, run):
        raise Refused(
            f"run {run.id} stopped after {plural(steps, 'step')}, and {folder} has no checkpoint to continue from: it "
            "stopped before the first checkpoint, or was imported: bundles lack checkpoints of unfinished trainings. "
            'Train from the start as a new run ("Run again" on the page of the run), or put its checkpoints there'
        )
