"""Compare what the variants of a model compute, in one process, for the purposes accuracy and tolerance.

The procedure is that of PyTorch's dynamo benchmark: two calls or steps from the same weights, random state and inputs.
In inference, outputs are compared; in training, the loss, gradients, weights and buffers after the last step.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_map

from engine import suite
from engine.measure import accuracy
from engine.models import steps, variants
from engine.models.built import Built
from engine.models.variants import Builder, Numbers
from engine.replicates.benchmark.job import Job
from engine.replicates.benchmark.prepared import build_variant, describe, switches
from engine.replicates.graphs import fresh_counters, graphs, notes_on
from engine.replicates.messages import Measured, Report
from engine.replicates.ready import failure, release
from engine.results.benchmark import AccuracyStatus
from engine.specs import ModelName, Variant

ITERATIONS = 2
"""Number of calls or training steps."""
GRADIENTS = 1
"""Index of the gradients in the results of training."""
BLIND = "this pass says little: outputs for other inputs are within the tolerance, too"


@dataclass(frozen=True)
class Reference:
    """Results of eager in one precision, or the reason why there are none."""

    status: AccuracyStatus = "pass"
    failed: Measured | None = None
    eager: Any = None
    exact: Any = None
    """Results in float64; None if the model does not run in float64."""
    other: Any = None
    """Results of eager for other inputs; only in inference."""


def compare(job: Job, build: Builder) -> Iterator[Report]:
    """Yield progress and one result per variant."""
    judge = _accuracy if job.spec.purpose == "accuracy" else _tolerance
    known: dict[str, Any] = {}
    for variant in job.plan:
        yield Report(doing=f"{variant.label}: comparing", label=variant.label)
        measured = judge(job, variant, build, known)
        release()
        yield Report(measured=measured)
        if job.decays and measured.status == "out_of_memory" and variant == job.spec.plan[0]:
            return  # all variants run again with a smaller batch


def _accuracy(job: Job, variant: Variant, build: Builder, known: dict[str, Any]) -> Measured:
    """Return a variant's accuracy status against eager in its precision. known: references by precision, added to."""
    if suite.is_in(job.model, suite.ACCURACY_SKIPPED):
        return Measured(label=variant.label, accuracy="pass_due_to_skip")
    precision = str(variant.precision)
    if precision not in known:
        known[precision] = _reference(job, Variant(precision=variant.precision), build)
    reference: Reference = known[precision]
    if reference.failed:
        return reference.failed.model_copy(update={"label": variant.label, "accuracy": reference.status})
    try:
        result, row, notes = _run_variant(job, variant, build)
    except Exception as error:  # noqa: BLE001 - models and compilers may raise any error
        return _comparison_failure(variant, error, "fail_to_run")
    if job.mode == "training":
        row["gradient_deviation"], gradient_notes = _gradients(reference, result, job.model, _freezes_weights(variant))
        notes += gradient_notes
    status: AccuracyStatus = reference.status
    if status == "pass":
        usual = accuracy.tolerance(job.model, training=job.mode == "training", frozen=_freezes_weights(variant))
        tol = job.spec.tolerance or usual
        if not accuracy.same(reference.eager, result, reference.exact, tol, cosine=job.spec.cosine):
            status = "fail_accuracy"
        notes = (*notes, *([f"tolerance {tol:g} instead of {usual:g}"] if tol != usual else []))
        if status == "pass" and _is_blind(reference, tol, cosine=job.spec.cosine):
            notes = (*notes, BLIND)
    if job.spec.cosine:
        notes = (*notes, f"compared by cosine similarity, at least {accuracy.SAME_DIRECTION:g}")
    elif reference.exact is None:
        notes = (*notes, "the model does not run in float64: directions were compared instead")
    if status == "eager_two_runs_differ" and not job.spec.deterministic:
        notes = (*notes, "two runs of eager differ: the log names operations that have no deterministic form")
    return Measured(label=variant.label, accuracy=status, row=row, notes=notes)


def _is_blind(reference: Reference, tol: float, *, cosine: bool) -> bool:
    """Return whether results for other inputs would pass, too.

    PyTorch's benchmark has pretrained weights. With random ones, the outputs of every third family of timm's models
    depend on the image by less than the tolerance.
    """
    if reference.other is None:
        return False
    return accuracy.same(reference.eager, reference.other, reference.exact, tol, cosine=cosine)


def _gradients(reference: Reference, result: Any, model: ModelName, frozen: bool) -> tuple[float, tuple[str, ...]]:
    """Return the relative deviation of gradients from the reference, and a note if it is large.

    The note is needed because the rule of PyTorch's benchmark accepts any difference between small gradients.
    """
    exact = reference.eager if reference.exact is None else reference.exact
    deviation = accuracy.relative(exact[GRADIENTS], result[GRADIENTS])
    eager_deviation = accuracy.relative(exact[GRADIENTS], reference.eager[GRADIENTS])
    if deviation <= max(3 * eager_deviation, accuracy.tolerance(model, training=True, frozen=frozen)):
        return deviation, ()
    note = (
        f"gradients differ from the reference by {deviation:.2g} of their norm, those of eager by {eager_deviation:.2g}"
    )
    return deviation, (note,)


def _tolerance(job: Job, variant: Variant, build: Builder, known: dict[str, Any]) -> Measured:
    """Return a variant's deviations from its baseline; without one, from a second run of itself.

    known: results by label, added to.
    """
    base = job.spec.baseline(variant) or variant
    try:
        if base.label not in known:
            known[base.label], _, _ = _run_variant(job, base, build)
        result, row, notes = _run_variant(job, variant, build)
        row |= accuracy.deviation(known[base.label], result)
    except Exception as error:  # noqa: BLE001 - as above
        return failure(variant.label, error)
    return Measured(label=variant.label, row=row, notes=notes)


def _comparison_failure(variant: Variant, error: Exception, status: AccuracyStatus) -> Measured:
    failed = failure(variant.label, error)
    return failed.model_copy(update={"accuracy": "OOM" if failed.status == "out_of_memory" else status})


def _reference(job: Job, eager: Variant, build: Builder) -> Reference:
    """Return the results of two runs of eager, which must be bit-identical, and of one run in float64."""
    stage: AccuracyStatus = "model_fail_to_load"
    try:
        built, types, _ = build_variant(job, eager, build)
        stage = "eager_fail_to_run"
        first, other = _results(job, eager, built, types), None
        if job.mode == "inference":
            other = _results(job, eager, replace(built, inputs=_other_inputs(built)), types)
        del built  # with its gradients, which would add to the memory of the second run
        second, _, _ = _run_variant(job, eager, build)
    except Exception as error:  # noqa: BLE001 - as above
        failed = _comparison_failure(eager, error, stage)
        return Reference(failed.accuracy or stage, failed)
    if not accuracy.identical(first, second):
        return Reference("eager_two_runs_differ", eager=first, exact=second)
    try:
        built, _, _ = build_variant(job, eager, build)
        exact = _results(job, eager, _to_float64(built), replace(types, weights="float64", autocast=""))
    except Exception:  # noqa: BLE001 - without float64, the rule compares directions
        exact = None
    return Reference(eager=first, exact=exact, other=other)


def _other_inputs(built: Built) -> tuple[torch.Tensor, ...]:
    """Return negative images and reversed texts."""
    return tuple(-tensor if tensor.is_floating_point() else tensor.flip(-1) for tensor in built.inputs)


def _run_variant(job: Job, variant: Variant, build: Builder) -> tuple[Any, dict[str, Any], tuple[str, ...]]:
    """Return the results of a fresh model of a variant, the fields of its row that describe it, and notes."""
    built, types, notes = build_variant(job, variant, build)
    counters = fresh_counters(compiles=variant.execution == "compile")
    results = _results(job, variant, built, types)
    return results, describe(job, built, types) | graphs(counters), notes + notes_on(counters)


def _to_float64(built: Built) -> Built:
    """Return the model converted to float64 from its current weights, whose rounding then counts as no difference."""
    inputs = tuple(tensor.double() if tensor.is_floating_point() else tensor for tensor in built.inputs)
    return replace(built, model=built.model.double(), inputs=inputs)


def _results(job: Job, variant: Variant, built: Built, types: Numbers) -> Any:
    # compiled code draws the same random numbers as eager; otherwise dropout masks would differ
    random = variants.inductor(fallback_random=True) if variant.execution == "compile" else nullcontext()
    with switches(job, types, variant)(), random:
        run = variants.runner(variant, built, types, job.spec.device)
        torch.manual_seed(job.spec.seed)  # capturing a graph draws random numbers, too
        if job.mode == "inference":
            for _ in range(ITERATIONS):
                output = run()
            return _copy_tensors(output)
        return _train(job, built.model, run)


def _train(job: Job, model: torch.nn.Module, run: Callable[[], Any]) -> Any:
    optimizer = steps.optimizer(job.spec.optimizer, model, steps.COMPARED_RATE)
    for _ in range(ITERATIONS):
        optimizer.zero_grad(set_to_none=True)
        loss = steps.loss(job.model, run())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    parameters = dict(model.named_parameters())
    # a missing gradient counts as zero
    gradients = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in parameters.items()}
    return _copy_tensors([loss, gradients, parameters, dict(model.named_buffers())])


def _copy_tensors(results: Any) -> Any:
    return tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf, results)


def _freezes_weights(variant: Variant) -> bool:
    """Return whether inductor folds this variant's weights into constants: on request or TORCHINDUCTOR_FREEZING=1."""
    if variant.execution != "compile":
        return False
    from torch._inductor import config

    return variant.freezing or bool(config.freezing)
