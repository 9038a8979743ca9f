"""Predict what a training or an evaluation needs: files, downloads and memory. Answers `Outlook` questions."""

import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from engine.measure import environment
from engine.measure.counting import flops, memory
from engine.measure.counting.live import state, tensor_bytes
from engine.models.built import out_of_memory
from engine.models.clip import files as clip_files
from engine.models.clip import hub, tokenizers, towers
from engine.models.clip import weights as clip_weights
from engine.models.clip.build import named_config
from engine.models.clip.hub import Remote
from engine.models.steps import timm_optimizer
from engine.results.answers import Needed, Prospect
from engine.roots import Roots
from engine.settings import Settings
from engine.specs import Refused
from engine.specs.base import CLUSTER, device_on_node
from engine.specs.evaluate import EvaluateSpec
from engine.specs.questions import Outlook
from engine.specs.train import TrainSpec
from engine.training import objectives, optimizers, precision
from engine.training.step import FEATURES

log = logging.getLogger(__name__)

Spec = TrainSpec | EvaluateSpec
MIXED = ("amp", "amp_bf16")
"""Precisions with float32 weights and operators in half precision. They are counted with the autocast of a CPU."""


def answer(question: Outlook) -> Prospect:
    """Return the files that are present or must be downloaded, problems, and the memory if it can be predicted."""
    spec, files, problems = question.spec, list[Needed](), list[str]()
    if isinstance(spec, TrainSpec) and spec.precision == "auto" and spec.device.startswith(CLUSTER):
        # whether a node's GPU computes bfloat16 is not known here: float32 needs the most memory
        spec = spec.model_copy(update={"precision": "fp32"})
    elif isinstance(spec, TrainSpec):
        spec = precision.resolved(spec)
    roots = Settings().roots
    for part, weights in _models(spec):
        for find_files in (_tokenizer, _weights):
            try:
                files += find_files(part, weights, roots)
            except Refused as refused:
                problems.append(str(refused))
    needs: tuple[int, int] | None = None
    try:
        needs = _training(spec, roots) if isinstance(spec, TrainSpec) else _evaluation(spec, roots)
    except Refused as refused:
        problems.append(str(refused))
    except Exception as error:
        if out_of_memory(error):
            raise
        log.exception("the memory of %s cannot be predicted", spec.summary)
    cache = hub.cache().absolute()
    disk = next(path for path in (cache, *cache.parents) if path.exists())  # the cache may not exist yet
    return Prospect(
        needed=tuple(files),
        problems=tuple(dict.fromkeys(problems)),
        cache=str(hub.cache()),
        free_mb=shutil.disk_usage(disk).free / 1e6,
        unused_mb=environment.available_bytes() / 1e6 if spec.device == "cpu" else None,
        peak_mb=needs and needs[0] / 1e6,
        state_mb=needs and needs[1] / 1e6,
    )


def _models(spec: Spec) -> Iterator[tuple[Spec, str]]:
    """Yield the specs whose models will be built, each with the name of its weights."""
    if isinstance(spec, EvaluateSpec):
        yield spec, spec.checkpoint
        return
    yield spec, spec.pretrained
    if spec.loss == "distill":
        yield spec.teacher, spec.distill_pretrained


def _tokenizer(spec: Spec, _weights: str, _roots: Roots) -> Iterator[Needed]:
    """Yield the tokenizer's files and where they are. Errors: Refused."""
    name, config = named_config(spec)
    if place := tokenizers.find(name, config):
        yield _needed(f"the tokenizer of {name}", place)


def _weights(spec: Spec, weights: str, roots: Roots) -> Iterator[Needed]:
    """Yield the weights' file and where it is; nothing for random weights. Errors: Refused."""
    name, cfg = named_config(spec)
    if isinstance(spec, TrainSpec) and not weights:
        for tower in towers.requested_towers(spec, name, cfg):
            yield _needed(tower.what, towers.find(tower))
    if weights:
        what = f"weights {weights} of {name}" if clip_files.published(name, weights) else f"weights {weights}"
        yield _needed(what, clip_files.find(name, weights, roots))


def _needed(what: str, place: Path | Remote) -> Needed:
    if isinstance(place, Path):
        return Needed(what=what, path=str(place))
    return Needed(what=what, address=place.address, mb=place.size and place.size / 1e6)


def _training(spec: TrainSpec, roots: Roots) -> tuple[int, int]:
    """Return the peak bytes of a step with its real loss, and the bytes that are allocated all the time.

    Errors: Refused if this training is not possible.
    """
    assert spec.batch_size is not None, "the batch size depends on the data, which are not read here"
    model, inputs = clip_weights.sketch(spec, weights=spec.pretrained, batch_size=spec.batch_size, roots=roots)
    clip_weights.arrange(model, spec)
    teacher = None
    if spec.loss == "distill":
        # as the student's inputs
        sizes = {"image_size": tuple(inputs[0].shape[-2:]), "context_length": inputs[1].shape[-1]}
        wanted = spec.teacher.model_copy(update=sizes)
        weights, size = spec.distill_pretrained, spec.batch_size
        teacher, _ = clip_weights.sketch(wanted, weights=weights, batch_size=size, roots=roots)
        teacher.eval().requires_grad_(requires_grad=False)
    mode, inputs = _mode(spec, inputs, model, teacher)
    objective = objectives.create(spec, model, teacher=teacher)
    others = spec.batch_size * (spec.accum_freq * spec.nproc - 1)

    def step() -> None:
        # from the second of several batches on, the gradients of earlier ones are there throughout
        for _ in range(min(spec.accum_freq, 2)):
            with precision.autocast(spec.precision, "cpu"):
                outputs = {**model(*inputs), **objective.beside(*inputs)}
                losses = objective({name: _with_other_features(name, value, others) for name, value in outputs.items()})
            losses["loss"].backward()  # type: ignore[no-untyped-call]

    frozen = state(teacher) if teacher is not None else []
    with mode:
        peak = memory.training_peak_bytes(model, (*inputs, *frozen), step)
    parameters = memory.trained(model)
    trained = tensor_bytes(parameters)
    buckets = trained if spec.nproc > 1 else 0  # DDP gathers gradients in buckets of this size
    moments = round(_moments(spec) * trained)
    waiting = (spec.accum_freq - 1) * tensor_bytes(inputs)  # the inputs of the step's other batches
    peak += waiting + moments - 2 * trained  # training_peak_bytes includes AdamW's two moments
    held = tensor_bytes(state(model)) + trained + moments + tensor_bytes(frozen)
    stepping = held + _temporaries(spec, [parameter.nbytes for parameter in parameters])
    return max(peak, stepping) + buckets, held + buckets


def _moments(spec: TrainSpec) -> float:
    """Return the bytes of the optimizer's state per byte of trained weights: 2 for AdamW, with its two moments.

    For timm's optimizers it is that of a small matrix after a step. Errors: Refused if timm cannot make it.
    """
    if spec.opt == "adamw":
        return 2.0
    layer = torch.nn.Linear(64, 64, bias=False)
    optimizer = timm_optimizer(spec.opt, layer, lr=1e-3, weight_decay=0.0, **optimizers.timm_settings(spec))
    layer(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    kept = [leaf for leaf in tree_leaves(optimizer.state_dict()["state"]) if isinstance(leaf, Tensor) and leaf.ndim]
    return tensor_bytes(kept) / layer.weight.nbytes


def _temporaries(spec: TrainSpec, trained: Sequence[int]) -> int:
    """Return the maximum bytes that the optimizer's own step needs besides weights, gradients and moments.

    trained: bytes of each trained weight. Fused AdamW needs none. On accelerators, timm's optimizers use torch's
    foreach form, which holds the square roots of all second moments at once. On a CPU they go weight by weight, with
    three temporaries of its size.
    """
    device = device_on_node(spec.device)
    if spec.opt == "adamw" and device.partition(":")[0] in optimizers.FUSED:
        return 0
    return 3 * max(trained, default=0) if device == "cpu" else sum(trained)


def _mode(
    spec: Spec, inputs: tuple[Tensor, Tensor], *models: torch.nn.Module | None
) -> tuple[AbstractContextManager[object], tuple[Tensor, Tensor]]:
    """Return the context in which to count, and the inputs for it.

    In mixed precision, models and inputs are moved from meta to fake tensors of a CPU, because autocast does nothing on
    meta.
    """
    if spec.precision not in MIXED:
        return nullcontext(), inputs
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    for model in filter(None, models):
        memory.on_fake_cpu(model, mode)
    images, texts = inputs
    return mode, (memory.faked(images, mode), memory.faked(texts, mode))


def _with_other_features(name: str, value: Tensor, others: int) -> Tensor:
    """Return features with room for those of other batches and processes, which the loss compares them with."""
    if not name.endswith(FEATURES) or not others:
        return value
    return torch.cat([value, value.new_empty(others, *value.shape[1:])])


@torch.no_grad()
def _evaluation(spec: EvaluateSpec, roots: Roots) -> tuple[int, int]:
    """Return the peak bytes of an evaluation, and the bytes that are allocated all the time.

    The peak is that of encoding a batch of images and a batch of texts, or of loading the weights. Errors: Refused.
    """
    weights, size = spec.checkpoint, spec.batch_size
    model, inputs = clip_weights.sketch(spec, weights=weights, batch_size=size, roots=roots)
    model.eval()
    mode, (images, texts) = _mode(spec, inputs, model)

    def encode() -> None:
        with precision.autocast(spec.precision, "cpu"):
            model.encode_image(images, normalize=True)
        with precision.autocast(spec.precision, "cpu"):  # frees the copies of the image tower's weights
            model.encode_text(texts, normalize=True)

    with mode:
        counted = flops.count(model, (images, texts), run=encode)
    held = tensor_bytes(state(model))
    loading = 2 * held if spec.checkpoint else 0  # the file's weights beside the model's while they are loaded
    return max(memory.inference_peak_bytes(model, (images, texts), counted), loading), held
