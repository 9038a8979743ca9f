"""Check a training or an evaluation before it starts: steps, problems of settings and data, files, memory."""

from dataclasses import dataclass
from typing import Literal

import pandas as pd

from engine.datasets import DataProblem, DataSummary, class_names, note_on_ids, note_on_repeats, note_on_shared
from engine.report.style import compute, digits
from engine.results.answers import Needed, Prospect
from engine.results.flags import SPOILING
from engine.specs.base import device_on_node
from engine.specs.evaluate import EvaluateSpec
from engine.specs.schedule import Schedule, schedule
from engine.specs.train import TrainSpec
from engine.words import count_captions, in_words, plural, shortened

Mark = Literal["ok", "warning", "error", "waiting"]
LEAST_BF16_LR = 1e-4
"""Warn below this learning rate. AdamW's steps are then smaller than half the distance between neighbouring bfloat16
values of a typical weight, and round to zero. In 60 steps, 94 % of the values in digits-clip's matrices stayed
unchanged at 1e-5, 58 % at 1e-4 and 1.4 % at 1e-3; with amp_bf16 0 %."""
MOST_ADAMW_LR = 2.048e-3
"""Warn above this learning rate, the highest of an image model in open_clip's docs/script_examples: CLIPA, batches of
65,536 pairs."""
BF16_PAYS = 1.3
"""Propose mixed precision if measured bfloat16 products are at least this many times as fast as float32 products."""


@dataclass(frozen=True)
class Check:
    """Result of one check. "error": it cannot work. "warning": it may be intended. "waiting": no result yet."""

    mark: Mark
    text: str


@dataclass(frozen=True)
class Data:
    """Facts about the data of a training."""

    train: int
    """Pairs to train on."""
    held: int
    """Pairs held out."""
    facts: DataSummary
    """Facts about the pairs. The classes are those of the data for zero-shot."""
    shared: int = 0
    """Held-out images that are also trained on."""
    zeroshot: int = 0
    """Number of images in zeroshot_data; 0 without it."""
    zeroshot_shared: int = 0
    """Images in zeroshot_data that are also trained on."""


def checks(spec: TrainSpec, data: Data) -> list[Check]:
    """Return checks of the request and its data, most important first."""
    if data.facts.none_readable:
        return _images(data.facts)  # there is nothing to count or to plan
    plan = schedule(spec, data.train)
    results = [*_pairs(data), *_captions(spec, data, plan), *_images(data.facts)]
    if plan.steps_per_epoch < 1:
        return [*results, Check("error", f"Batch: {plan.problem}.")]
    return [*results, _steps(spec, plan, data.train), _warmup(spec, plan), *_validation(spec, data), *_doubts(spec)]


def _pairs(data: Data) -> list[Check]:
    text = f"{plural(data.train, 'pair')} to train on, {data.held:,} held out."
    if not data.held:
        text += " The quality of the model cannot be measured."
    shared = note_on_shared(data.shared, data.held)
    warnings = [shared, note_on_shared(data.zeroshot_shared, data.zeroshot, "zero-shot image")]
    return [
        Check("ok" if data.held else "warning", text),
        *(Check("warning", f"{warning}.") for warning in warnings if warning),
    ]


def _captions(spec: TrainSpec, data: Data, plan: Schedule) -> list[Check]:
    captions, distinct = data.facts.captions, data.facts.distinct_captions
    if distinct == 1 and captions > 1:
        remedy = "Give captions in a CSV beside the images, or put the images of each class into a folder of its own."
        return [Check("error", f"All captions are equal, so the loss cannot tell pairs apart. {remedy}")]
    counts = count_captions(captions, distinct)
    zeroshot = (len(data.facts.classes) > 1 or data.zeroshot) and spec.zeroshot_frequency
    if not zeroshot and note_on_repeats(captions, distinct):
        doubt = "retrieval cannot be good, because equal captions cannot be told apart. Judge by held-out loss."
        return [Check("warning", f"{counts}: {doubt}")]
    if distinct < plan.batch_size * plan.steps_per_epoch:
        return [Check("ok", f"{counts}: pairs that share a caption keep the loss above 0 and lower retrieval.")]
    return [Check("ok", f"{counts}.")]


def _images(facts: DataSummary) -> list[Check]:
    broken = len(facts.unreadable)
    if not broken:
        return [Check("ok", f"Opened {plural(facts.opened, 'image')}; all can be read.")]
    names = shortened([f"{source} ({reason})" for source, reason in facts.unreadable])
    text = f"{broken:,} of {plural(facts.opened, 'image')} opened cannot be read: {names}."
    return [Check("error", text) if facts.none_readable else Check("warning", f"{text} They are left out.")]


def _steps(spec: TrainSpec, plan: Schedule, available: int) -> Check:
    epochs = plural(plan.epochs, "epoch")
    parts = [f"{plan.batch_size:,} pairs"] + [f"{spec.accum_freq} batches"] * (spec.accum_freq > 1)
    parts += [f"{spec.nproc} processes"] * (spec.nproc > 1)
    size = f"{' × '.join(parts)} = {plan.step_pairs:,} pairs" if len(parts) > 1 else parts[0]
    an_epoch = plural(plan.steps_per_epoch, "step")
    what = "the same batch each time" if spec.overfit else f"{an_epoch} an epoch, {epochs}"
    text = f"{plural(plan.steps, 'step')} of {size}: {what}."
    permuted = not (spec.overfit or spec.resampled or spec.data_weights)
    if permuted and (left_out := available - plan.steps_per_epoch * plan.step_pairs):
        text += f" Each epoch leaves out {plural(left_out, 'pair')}, chosen at random."
    return Check("ok", text)


def _warmup(spec: TrainSpec, plan: Schedule) -> Check:
    if plan.problem:
        return Check("error", f"Learning rate: {plan.problem}.")
    courses = {"cosine": "then falls to 0", "const": "then stays", "const-cooldown": "then stays until the cooldown"}
    steps = plural(plan.warmup_steps, "step")
    rates = {tower: spec.peak_lr * scale for tower, scale in spec.lr_scales.items()}
    own = "; ".join(f"{tower} tower: {rate:g}" for tower, rate in rates.items())
    peak = f"{spec.peak_lr:g} ({own})" if own else f"{spec.peak_lr:g}"
    start = f"rises to {peak} within {steps}" if plan.warmup_steps else f"is {peak} at the first step"
    text = f"The learning rate {start}, {courses[spec.lr_scheduler]}."
    if spec.opt == "adamw" and max([spec.peak_lr, *rates.values()]) > MOST_ADAMW_LR:
        text += f" open_clip's image scripts use at most {MOST_ADAMW_LR:g} with AdamW: the loss may diverge."
        return Check("warning", text)
    return Check("ok", text)


def _validation(spec: TrainSpec, data: Data) -> list[Check]:
    try:
        classes = class_names(spec.classes, data.facts.classes)
    except DataProblem as problem:
        return [Check("error", f"Classes: {problem}.")]
    if spec.zeroshot_data and not classes:
        text = f"Zero-shot needs a class for each image, which {spec.zeroshot_data} does not have"
        return [Check("error", f"{text}: type its class column under Columns, or leave Zero-shot data empty.")]
    if spec.zeroshot_data and len(classes) == 1:
        return [
            Check("error", f"Zero-shot needs at least two classes, and {spec.zeroshot_data} has only {classes[0]!r}.")
        ]
    zeroshot = bool(spec.zeroshot_frequency and (data.facts.classes or data.zeroshot) and len(classes) > 1)
    zeroshot = zeroshot and bool(data.held or data.zeroshot)
    retrieval = bool(spec.val_frequency and data.held)
    if text := _unmeasured(spec, classes=len(classes) if zeroshot else 0, retrieval=retrieval):
        return [Check("error", text)]
    if not (data.held or data.zeroshot):
        return []
    if zeroshot:
        class_count = plural(len(classes), "class", "es")
        where = f"{plural(data.zeroshot, 'image')} of {class_count}" if data.zeroshot else class_count
        doubt = note_on_ids(classes)
        return [
            Check("ok", f"Zero-shot accuracy on {where} is measured during training."),
            *([Check("warning", f"{doubt[0].upper()}{doubt[1:]}.")] if doubt else []),
        ]
    if spec.val_frequency:
        return [Check("ok", "Retrieval among the pairs held out is measured during training.")]
    return [Check("warning", "Neither retrieval nor zero-shot accuracy is measured, only the loss.")]


def _unmeasured(spec: TrainSpec, *, classes: int, retrieval: bool) -> str:
    """Return an error if the training would refuse to start because it does not measure what is asked, else "".

    classes: number of classes that zero-shot chooses from; 0 if it is not measured.
    """
    if spec.val_every_steps and not (classes or retrieval):
        remedy = "hold out pairs, and set Validate every (epochs) or Zero-shot every (epochs) above 0"
        return f"Validate every (steps) has nothing to measure: {remedy}."
    measured = {"": True, "train_loss": True, "zeroshot_top1": classes > 1, "zeroshot_top5": classes > 5}
    measured["val_generative_loss"] = retrieval and spec.loss == "coca"
    if measured.get(spec.best_metric, retrieval):
        return ""
    return f"The best checkpoint cannot be chosen by {spec.best_metric}: this training does not measure it."


def _doubts(spec: TrainSpec) -> list[Check]:
    results, doubts = [], []
    if spec.precision == "fp16" and device_on_node(spec.device) == "cpu":
        results.append(Check("error", "Training in fp16 needs an accelerator: take fp32, bf16 or amp_bf16 on the CPU."))
    elif spec.precision == "fp16":
        doubts += ["Pure fp16 weights often fail to train, because small gradients become 0. Take amp_bf16 or amp."]
    lowest = spec.peak_lr * min(spec.lr_scales.get(tower, 1.0) for tower in ("image", "text"))
    if spec.precision == "bf16" and spec.opt == "adamw" and lowest < LEAST_BF16_LR:
        doubts += [
            f"Pure bf16 weights with AdamW at a learning rate of {lowest:g}: most weights will not change, "
            f"because such small updates round away. Take amp_bf16, or a learning rate of at least {LEAST_BF16_LR:g}."
        ]
    locked = [tower for tower in ("image", "text") if getattr(spec, f"lock_{tower}")]
    random = [tower for tower in locked if not getattr(spec, f"pretrained_{tower}")]
    if random and not spec.pretrained and not spec.resume:
        text = f"The {' and '.join(random)} tower is locked but has no trained weights: it stays random."
        doubts += [f"{text} Choose initial weights, or do not lock it."]
    if spec.loss == "distill" and not spec.distill_pretrained:
        doubts += [f"The teacher {spec.distill_model} has no trained weights: it stays random. Choose teacher weights."]
    if len(locked) == 2 and not spec.lock_image_unlocked_groups and not spec.lock_text_unlocked_layers:
        doubts += ["Both towers are locked, so almost nothing is trained."]
    return [*results, *(Check("warning", doubt) for doubt in doubts)]


def bf16_advice(rates: pd.DataFrame, host: str, device: str, taken: str, base: str = "float32") -> str:
    """Return a text that proposes bfloat16 if this device's measured rates show a gain, else an empty text.

    The text names flags of SPOILING. rates: from report.timings.rates.rates. host: this machine's name. taken: the
    setting to choose, such as `amp_bf16`. base: the data type of matrix products without it, float32 or tf32.
    """
    products = rates[(rates["operation"] == "matmul") & (rates["host"] == host) & (rates["device"] == device)]
    for _, measured in products.groupby("where", sort=False):
        measured = measured[measured["dtype"].isin(["bfloat16", base])].drop_duplicates("dtype")
        rate = measured.set_index("dtype")["gflop_per_s"]
        if len(rate) == 2 and rate["bfloat16"] >= BF16_PAYS * rate[base]:
            gain, flags = rate["bfloat16"] / rate[base], " ".join(measured["flags"].astype(str))
            spoiling = in_words(flag for flag in SPOILING if flag in flags)
            return (
                f"{taken} may be up to {digits(gain)} times as fast: matrix products on {device} ran at "
                f"{compute(rate['bfloat16'])} in bfloat16 and {compute(rate[base])} in {base}."
                + (f" These rates are flagged ({spoiling}), so they may be wrong." if spoiling else "")
            )
    return ""


def of_prospect(prospect: Prospect, spec: TrainSpec | EvaluateSpec, device_gb: float | None) -> list[Check]:
    """Return problems first, then files, then memory. device_gb: memory of the device, in 1e9 bytes."""
    problems = [Check("error", problem) for problem in prospect.problems]
    memory = [_memory(prospect, spec, device_gb)] if prospect.peak_mb is not None else []
    room = prospect.free_mb - sum(needed.mb or 0 for needed in prospect.needed if needed.address)
    files = [_file(needed, prospect, enough=room > 0) for needed in prospect.needed]
    return [*problems, *files, *memory]


def _file(needed: Needed, prospect: Prospect, *, enough: bool) -> Check:
    what = needed.what[:1].upper() + needed.what[1:].rstrip(".")
    if not needed.address:
        return Check("ok", f"{what}." if str(needed.path) in what else f"{what}: {needed.path}.")
    size = f" ({_size(needed.mb)})" if needed.mb else ""
    text = f"{what}: to be downloaded from {needed.address}{size} into {prospect.cache}"
    if enough:
        return Check("ok", f"{text}, where {_size(prospect.free_mb)} are free.")
    return Check("error", f"{text}, where only {_size(prospect.free_mb)} are free. Make room, or set HF_HUB_CACHE.")


def _memory(prospect: Prospect, spec: TrainSpec | EvaluateSpec, device_gb: float | None) -> Check:
    """Return the check of memory: an error if the state does not fit, a warning if the peak exceeds free memory."""
    assert prospect.peak_mb is not None
    assert prospect.state_mb is not None
    training = isinstance(spec, TrainSpec)
    # accelerators are not shared: each process has its own
    sharing = spec.nproc if isinstance(spec, TrainSpec) and spec.device == "cpu" else 1
    peak_mb, state_mb = sharing * prospect.peak_mb, sharing * prospect.state_mb
    what = "weights, gradients and optimizer" if training else "weights"
    processes = f" in {sharing} processes" if sharing > 1 else ""
    text = f"Memory: about {_size(peak_mb)}{processes}: {_size(state_mb)} for {what}, the rest for a batch."
    if device_gb is None:
        return Check("ok", text)
    free_gb = device_gb if prospect.unused_mb is None else prospect.unused_mb / 1e3
    text += f" The device has {digits(device_gb)} GB"
    text += "." if prospect.unused_mb is None else f", and {digits(free_gb)} GB are free now."
    if state_mb / 1e3 > device_gb:
        return Check("error", text)
    if peak_mb / 1e3 > free_gb:
        less = "a smaller batch, or checkpoint activations" if training else "a smaller batch"
        return Check("warning", f"{text} Take {less}.")
    return Check("ok", text)


def _size(mb: float) -> str:
    return f"{digits(mb / 1e3)} GB" if mb >= 1000 else f"{digits(mb)} MB"
