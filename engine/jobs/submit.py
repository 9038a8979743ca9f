"""From a request to a queued run, and from an ended run to nothing."""

import shutil

from engine import shipped
from engine.jobs import references
from engine.jobs.lifecycle import ensure_scheduler
from engine.names import ModelNotFound, select
from engine.settings import Settings
from engine.specs import BenchmarkSpec, Refused, Spec
from engine.store import RETRYABLE, Store
from engine.store.files import RunFiles


def submit(store: Store, settings: Settings, spec: Spec, *, name: str = "", key: str | None = None) -> int:
    """Queue a run and have a scheduler for it. key: two submissions with one key are one run.

    Errors: ModelNotFound, Refused (an absent device), QueueFull.
    """
    spec = references.resolve(store, settings, spec)
    check(store, settings, spec)
    run_id = store.enqueue(spec, name=name, key=key)
    ensure_scheduler(settings, store)
    return run_id


def retry(store: Store, settings: Settings, run_id: int) -> None:
    """Queue a failed or cancelled run again and have a scheduler for it.

    Errors: LookupError; Refused of any other run, of one that would be refused as a new one, imported ones too, and of
    a training that could only start again at step 0.
    """
    if problem := why_not_again(store, settings, run_id):
        raise Refused(problem)
    run = store.run(run_id)
    if run.state in RETRYABLE:
        references.check_resumable(store, settings, run)
    store.retry(run_id)
    ensure_scheduler(settings, store)


def why_not_again(store: Store, settings: Settings, run_id: int) -> str:
    """Return why a stored run could not be queued again here; empty where it could. Errors: LookupError."""
    run = store.run(run_id)
    try:
        references.check_again(settings, run)
        _check_machine(store, settings, run.spec)
    except Refused as refused:
        return str(refused)
    return ""


def check(store: Store, settings: Settings, spec: Spec) -> None:
    """Refuse at once, and without torch, what cannot be served. Errors: ModelNotFound, Refused."""
    _check_machine(store, settings, spec)
    references.check_paths(settings, spec)


def _check_machine(store: Store, settings: Settings, spec: Spec) -> None:
    """Refuse unknown models and absent devices. Errors: ModelNotFound, Refused."""
    _check_models(settings, spec)
    if (machine := store.machine()) is None:
        return  # not probed yet: the worker will look
    known = ["meta", *(device.name for device in machine.devices)]
    for device in spec.devices:
        if device not in known:
            raise Refused(f"{machine.host} has no device {device!r}; it has {', '.join(known)}")


def _check_models(settings: Settings, spec: Spec) -> None:
    try:
        models = select(spec, shipped.families(settings.catalog_dir))
    except ModelNotFound:
        if not shipped.mismatches(shipped.versions(settings.catalog_dir)):
            raise
        return  # the installed libraries are others than the catalogue's: the worker knows their models
    if isinstance(spec, BenchmarkSpec):
        for model in models:
            spec.batch_sizes(model)


def delete_run(store: Store, settings: Settings, run_id: int) -> None:
    """Forget a run that has ended, with everything it wrote. Errors: LookupError, Refused."""
    store.delete(run_id)
    folder = RunFiles(settings.runs_dir, run_id).dir
    if folder.is_dir():
        shutil.rmtree(folder)
