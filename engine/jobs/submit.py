"""Submit, retry, check and delete runs."""

from collections.abc import Mapping
from contextlib import suppress

from engine import shipped
from engine.jobs import checkpoints, named_files, references
from engine.jobs.lifecycle import ensure_scheduler
from engine.names import ModelNotFound, check_excluded, select, unknown_clip_model
from engine.settings import Settings
from engine.specs import BenchmarkSpec, EvaluateSpec, Refused, Spec, TrainSpec
from engine.specs.base import CLUSTER
from engine.store import RETRYABLE, Damaged, QueueFull, Run, Store
from engine.store.copies import deletions, remote
from engine.store.files import RunFiles


def submit(store: Store, settings: Settings, spec: Spec, *, name: str = "", key: str | None = None) -> int:
    """Queue a run, make sure a scheduler runs, and return the run's id. key: two submissions with one key make one run.

    Errors: ModelNotFound; Refused, for example for an absent device; QueueFull.
    """
    spec = references.resolve(store, settings, spec)
    check(store, settings, spec)
    named_files.share_uploads(settings, spec)
    run_id = store.enqueue(spec, name=name, key=key)
    ensure_scheduler(settings, store)
    return run_id


def submit_sweep(
    store: Store, settings: Settings, specs: Mapping[str, Spec], *, name: str = "", key: str | None = None
) -> list[int]:
    """Queue a run per spec, tag all of them with `sweep-N` (N: the first one's id), and return their ids.

    specs: by a label of the values that each sets. A run is named `name` and its label. key: as in `submit`, for the
    whole sweep.
    Errors: those of `submit`. All specs are checked before the first is queued; when the queue is full, none stays.
    """
    resolved = {label: references.resolve(store, settings, spec) for label, spec in specs.items()}
    for spec in resolved.values():
        check(store, settings, spec)
        named_files.share_uploads(settings, spec)
    ids: list[int] = []
    try:
        for label, spec in resolved.items():
            own_key = f"{key} {label}" if key else None
            ids.append(store.enqueue(spec, name=f"{name} {label}".strip(), key=own_key))
    except QueueFull:
        for run_id in ids:
            store.request_cancel(run_id)
        raise
    store.change_tags(ids, add=[f"sweep-{ids[0]}"])
    ensure_scheduler(settings, store)
    return ids


def retry(store: Store, settings: Settings, run_id: int) -> None:
    """Queue a failed or cancelled run again and make sure a scheduler runs.

    Errors: LookupError when there is no such run. Refused when the run is in another state, when it would be refused as
    a new one (also if it was imported), and when it is a training that could only start again at step 0.
    """
    if problem := why_not_again(store, settings, run_id):
        raise Refused(problem)
    run = store.run(run_id)
    if run.state in RETRYABLE:
        checkpoints.check_resumable(store, settings, run)
    try:
        store.retry(run_id)
    finally:
        ensure_scheduler(settings, store)  # also if refused: the run may be one whose process was killed


def why_not_again(store: Store, settings: Settings, run_id: int) -> str:
    """Return the reason why a stored run cannot be queued again here; empty if it can. Errors: LookupError."""
    run = store.run(run_id)
    try:
        named_files.check_again(store, settings, run)
        _check_machine(store, settings, run.spec)
    except Refused as refused:
        return str(refused)
    return ""


def check(store: Store, settings: Settings, spec: Spec, *, allow_code: bool = False) -> None:
    """Check a request at once and without torch.

    allow_code: accept modules of the user's own, in the foreground.
    Errors: ModelNotFound; Refused for absent devices, unreadable files, missing columns, modules of the user's own.
    """
    _check_machine(store, settings, spec, allow_code=allow_code)
    named_files.check_paths(settings, spec)
    if isinstance(spec, TrainSpec):
        from engine.datasets import check_columns  # numpy and Pillow take a second that other requests do not need

        check_columns(spec, settings.roots)


def _check_machine(store: Store, settings: Settings, spec: Spec, *, allow_code: bool = False) -> None:
    """Check models and devices. Errors: ModelNotFound for an unknown model; Refused for an absent device."""
    if spec.refusal:
        raise Refused(spec.refusal)
    check_models(settings, spec, allow_code=allow_code)
    if spec.devices[0].startswith(CLUSTER):
        _check_cluster(store, settings, spec)
        return
    if (machine := store.machine()) is None:
        return  # not probed yet: the worker will check
    available = ["meta", *(device.name for device in machine.devices)]
    for device in spec.devices:
        if device not in available:
            raise Refused(f"{machine.host} has no device {device!r}; it has {', '.join(available)}")


def _check_cluster(store: Store, settings: Settings, spec: Spec) -> None:
    """Check that the cluster has enough of a spec's device, and can read its data. Errors: Refused."""
    devices = spec.devices  # a device's name, once for each process
    device = devices[0]
    if not settings.ray_address:
        raise Refused(f"{device!r} is a device of a Ray cluster, and none is configured: set VITALS_RAY_ADDRESS")
    cluster = store.cluster()
    available = {known.name: known for known in cluster.devices} if cluster else {}
    if not available:
        raise Refused(
            f"no node of the cluster is known yet, so there is no {device!r}: start the app, whose scheduler looks for "
            "nodes, and try again in a few seconds (scheduler.log names problems)"
        )
    if device not in available:
        raise Refused(f"the cluster has no device {device!r}; it has {', '.join(available)}")
    offered = available[device]
    if spec.exclusive and len(devices) > 1:
        types = [name for name in available if name.startswith(f"{CLUSTER}gpu:")]
        if device == f"{CLUSTER}gpu" and len(types) > 1:
            raise Refused(f"nodes that share the models must have the same GPUs: choose one of {', '.join(types)}")
        if offered.nodes < len(devices):
            raise Refused(f"{len(devices)} nodes were asked for, and {device} is {offered.model}: ask for fewer")
    elif offered.count < len(devices):
        raise Refused(
            f"{len(devices)} processes need a {device} each, and the cluster has {offered.count} {offered.model}: "
            "ask for fewer processes"
        )


def check_models(settings: Settings, spec: Spec, *, allow_code: bool = False) -> None:
    """Check the models of a request. allow_code: as for `check`. Errors: ModelNotFound; Refused."""
    families = shipped.families(settings.catalog_dir)
    try:
        models = select(spec, families, allow_code=allow_code)
        check_excluded(spec, families)
    except ModelNotFound:
        if shipped.mismatches(shipped.versions(settings.catalog_dir)):
            return  # the installed libraries differ from those of the catalogue: the worker knows their models
        if families and isinstance(spec, TrainSpec | EvaluateSpec):
            raise ModelNotFound(unknown_clip_model(spec, families)) from None
        raise
    if isinstance(spec, BenchmarkSpec):
        for model in models:
            spec.batch_sizes(model)
        if spec.nodes > max(1, len(models)):
            raise Refused(
                f"{spec.nodes} nodes were asked for, and each model is timed on one: ask for at most {len(models)}"
            )


def delete_run(store: Store, settings: Settings, run_id: int) -> None:
    """Delete a run that has ended, with its folder and the copies of its files.

    Errors: LookupError; Refused, as in `Store.delete`, and when the copies cannot be deleted.
    """
    run: Run | None = None
    with suppress(Damaged):
        run = store.run(run_id)
    store.delete(run_id)
    RunFiles(settings.runs_dir, run_id).remove()
    try:
        if run:
            deletions.delete_copies(settings, run)
    except remote.Unreachable as error:
        raise Refused(
            f"run {run_id} is deleted, but not the copies of its files. Delete them there: {error}"
        ) from error
