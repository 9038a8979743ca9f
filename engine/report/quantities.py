"""Define label, unit and meaning of each column, for tables, axes and hover texts."""

import re
from dataclasses import dataclass
from typing import Literal

from engine.published.publishers import ACCURACIES, TABLE_OF
from engine.statistics import NEEDED


@dataclass(frozen=True)
class Quantity:
    """A numeric column. `unit` may be empty for pure numbers."""

    label: str
    unit: str
    help: str
    better: Literal["smaller", "larger"] = "smaller"
    """Whether smaller or larger values are better."""

    @property
    def title(self) -> str:
        """Return the label with its unit, for headers and axis titles."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


def _towers(stem: str, label: str, unit: str, help: str) -> dict[str, Quantity]:
    """Return a quantity of the whole model and of its image tower, text tower and the rest."""
    parts = {"image": "Image tower.", "text": "Text tower.", "other": "In neither tower."}
    whole = {stem: Quantity(label[0].upper() + label[1:], unit, f"{help} Whole model.")}
    return whole | {
        f"{part}_{stem}": Quantity(f"{part.capitalize()} {label}", unit, f"{help} {where}")
        for part, where in parts.items()
    }


APART = "Medians of the parts of a call need not add up to its latency."


OF_BLOCKS = "A sample of very quick calls is the mean of a block of calls, so single slow calls do not show."


def _pass(name: str) -> dict[str, Quantity]:
    label, of_pass = name.capitalize(), f"of the {name} pass"
    return {
        f"{name}_ms": Quantity(label, "ms", f"Median {of_pass}. {APART}"),
        f"{name}_mean_ms": Quantity(f"{label} mean", "ms", f"Mean time {of_pass}, with outliers."),
        f"{name}_std_ms": Quantity(f"{label} deviation", "ms", f"Standard deviation {of_pass}'s samples."),
        f"{name}_p90_ms": Quantity(f"{label} p90", "ms", f"90 % {of_pass}'s samples are faster. {OF_BLOCKS}"),
        f"{name}_spread_percent": Quantity(
            f"{label} spread", "%", f"(largest - smallest) / median of the processes' medians, {name} pass."
        ),
    }


QUANTITIES: dict[str, Quantity] = {
    **_towers("mparams", "parameters", "M", "Weights, in millions."),
    **_towers("gmacs", "MACs", "G", "Multiply-adds of one forward pass per image, in 1e9. 1 MAC is 2 FLOPs."),
    **_towers("gflops", "FLOPs", "G", "Floating-point operations of one forward pass per image, in 1e9."),
    **_towers(
        "macts", "activations", "M", "Elements of the outputs of convolutions and matrix products per image, in 1e6."
    ),
    "trainable_mparams": Quantity("Trainable parameters", "M", "Parameters that require a gradient, in millions."),
    "mbuffers": Quantity("Buffers", "M", "Elements of buffers, in millions."),
    "traffic_mb": Quantity(
        "Memory traffic", "MB", "Bytes that all operators read and write for the whole batch, without caches or fusion."
    ),
    "intensity": Quantity("Intensity", "FLOP/B", "Arithmetic intensity: FLOPs per byte of memory traffic.", "larger"),
    "weights_mb": Quantity("Weights", "MB", "Memory of parameters and buffers."),
    "inference_peak_mb": Quantity("Peak mem.", "MB", "Estimated peak memory of a forward pass of the batch."),
    "live_mb": Quantity(
        "Mem. per image",
        "MB",
        "Memory that each image, or image and text, of a large batch adds to the peak of a forward pass, in float32.",
    ),
    "kept_mb": Quantity(
        "Kept in training",
        "MB",
        "Memory that a training step keeps from the forward to the backward pass, divided by the batch size, in the "
        "precision of the count. The Catalogue counts batches of 64 in float32.",
    ),
    "training_peak_mb": Quantity(
        "Training peak",
        "MB",
        "Estimate for a training step of the batch: weights, gradients, AdamW's two moments and saved activations.",
    ),
    "torch_gmacs": Quantity("torch MACs", "G", "Multiply-adds per image, counted by our counter."),
    "fvcore_gmacs": Quantity("fvcore MACs", "G", "Multiply-adds per image, counted by fvcore."),
    "fvcore_image_gmacs": Quantity("fvcore image MACs", "G", "Image tower, counted by fvcore."),
    "fvcore_text_gmacs": Quantity("fvcore text MACs", "G", "Text tower, counted by fvcore."),
    "fvcore_macts": Quantity("fvcore activations", "M", "Activations per image, counted by fvcore."),
    "fvcore_image_macts": Quantity("fvcore image activations", "M", "Image tower, counted by fvcore."),
    "fvcore_text_macts": Quantity("fvcore text activations", "M", "Text tower, counted by fvcore."),
    "read_mb": Quantity("Read", "MB", "Bytes read by all calls for the whole batch."),
    "written_mb": Quantity("Written", "MB", "Bytes written by all calls for the whole batch."),
    "share": Quantity("Share of MACs", "%", "Share of the model's counted MACs."),
    "latency_ms": Quantity(
        "Latency p50",
        "ms",
        "Time from the start to the end of one call, for one batch. Median of the processes' medians.",
    ),
    "back_to_back_ms": Quantity(
        "Back to back",
        "ms",
        "Time per call when calls are queued back to back on an accelerator. Median of the processes' medians.",
    ),
    **{
        f"p{q}_ms": Quantity(
            f"p{q}",
            "ms",
            f"{q} % of the samples are faster. Needs {needed} samples: if they are independent, at least 2 lie above "
            f"the true value with a probability of 99 %. {OF_BLOCKS}",
        )
        for q, needed in NEEDED.items()
    },
    "mean_ms": Quantity("Mean", "ms", "Mean time per call, with outliers."),
    "std_ms": Quantity("Deviation", "ms", "Standard deviation of the samples. A sample is the mean of its calls."),
    "samples_per_s": Quantity(
        "Throughput", "samples/s", "Batch size / back-to-back time. On a CPU: batch size / median latency.", "larger"
    ),
    **_pass("forward"),
    **_pass("backward"),
    "steps_per_s": Quantity(
        "Time steps",
        "1/s",
        "Time steps of the whole mini-batch per second, forward and backward: from the back-to-back time, on a CPU "
        "from the latency. For a ResNet: calls per second.",
    ),
    "gflops_per_step": Quantity(
        "FLOPs per time step",
        "G",
        "FLOPs of the matrix products in the forward pass, per time step of the mini-batch; for a ResNet, per call.",
    ),
    "output_error": Quantity(
        "Output error",
        "",
        "Difference to a control in float64: norm of the difference / norm of the control, for the worst tensor.",
    ),
    "gradient_error": Quantity(
        "Gradient error",
        "",
        "Difference of the gradients to the control, for the worst parameter. With ReLUs: squared, over all together.",
    ),
    "tolerance": Quantity(
        "Tolerance",
        "",
        "Largest allowed error: 1e-3 in float32, 3 times the eager layer's error in lower precisions. "
        "A runner with a larger error is not timed.",
    ),
    "optimizer_ms": Quantity("Optimizer", "ms", f"Median time of the optimizer's update in a training step. {APART}"),
    "first_call_ms": Quantity(
        "First call",
        "ms",
        "Time of the first call, not part of the samples. Earlier variants in the same process may have loaded its "
        "kernels.",
    ),
    "compile_cold_ms": Quantity(
        "Compile cold",
        "ms",
        "Compilation, scripting or tracing, recording of CUDA graphs, and first call, with empty caches. Loading the "
        "compiler is not included.",
    ),
    "compile_warm_ms": Quantity(
        "Compile warm", "ms", "As compile cold, with the caches that the first process has filled."
    ),
    "loop_ms": Quantity("Timing loop", "ms", "Time per call of the timing loop itself. It is not subtracted."),
    "spread_percent": Quantity(
        "Spread", "%", "(largest - smallest) / median of the processes' medians. Above 5 % a row is flagged unstable."
    ),
    "utilisation_percent": Quantity(
        "FLOP utilisation",
        "%",
        "Counted FLOPs / median time, as a share of this device's measured matmul rate. In training and for "
        "recurrent layers, of the forward pass.",
    ),
    "speedup": Quantity(
        "Speed-up",
        "×",
        "Geometric mean over processes of the baseline's median / this row's median. Back-to-back times are not used.",
    ),
    "speedup_low": Quantity("Speed-up from", "×", "Lower end of the speed-up's 99 % interval (Student's t)."),
    "speedup_high": Quantity(
        "Speed-up to",
        "×",
        "Upper end of the speed-up's 99 % interval (Student's t). Empty beside a lower end: no upper limit.",
    ),
    "device_peak_mb": Quantity(
        "Device peak",
        "MB",
        "Peak memory allocated on the accelerator, measured in a separate loop; for CUDA graphs, also while they are "
        "recorded.",
    ),
    "process_peak_mb": Quantity(
        "Process peak", "MB", "Peak resident memory of the process, measured in a separate loop."
    ),
    "joules_per_sample": Quantity(
        "Energy",
        "J/sample",
        "Energy of the whole GPU board, read from its counter over a separate loop of 1 s per process. The counter "
        "updates at least every 0.1 s, an error of up to 10 %; its sensor adds about 5 %.",
    ),
    "gradient_deviation": Quantity(
        "Gradient deviation",
        "",
        "Norm of the difference to the reference's gradients / norm of the reference's gradients.",
    ),
    "max_deviation": Quantity(
        "Largest deviation", "", "Largest value of abs(result - reference) / (1 + abs(reference))."
    ),
    "mean_deviation": Quantity("Mean deviation", "", "Mean of abs(result - reference) / (1 + abs(reference))."),
    "std_deviation": Quantity("Deviation's spread", "", "Standard deviation of the deviations."),
    "here": Quantity("Here", "samples/s", "Measured on this machine."),
    "theirs": Quantity("Published", "samples/s", "Published value, measured on another machine."),
    "times": Quantity("Published / here", "×", "Published throughput / throughput on this machine."),
    "geometric_mean": Quantity("Geometric mean", "×", "Geometric mean of all speed-ups, one per model and batch size."),
    "seconds": Quantity("Took", "s", "Wall time of this model."),
    **{
        name: Quantity(accuracy.label, "%", f"Published by {TABLE_OF[name].repository}: {accuracy.about}.", "larger")
        for name, accuracy in ACCURACIES.items()
    },
}

COMPARABLE = tuple(
    (
        "gmacs mparams macts fvcore_gmacs gflops traffic_mb intensity weights_mb inference_peak_mb live_mb kept_mb "
        "image_mparams text_mparams image_gmacs text_gmacs"
    ).split()
)
"""Quantities offered as axes, sizes and colours, the most frequently used first."""

MEASURED = ("latency_ms", "samples_per_s")
"""Quantities measured on this machine, which are also offered as axes."""

RECALL = re.compile("(image|text)_to_(image|text)_r([0-9]+)")
"""Name of the recall at a rank."""
_WAYS = (("image", "text"), ("text", "image"))


def _recall_label(one: str, two: str, k: object) -> str:
    return f"{one.capitalize()} → {two} R@{k}"


RECALL_LABELS = {f"{one}_to_{two}_r{k}": _recall_label(one, two, k) for one, two in _WAYS for k in (1, 5, 10)}
RANK_LABELS = {
    f"{one}_to_{two}_{mean}_rank": f"{one.capitalize()} → {two} {mean} rank"
    for one, two in _WAYS
    for mean in ("mean", "median")
}
SHARES = frozenset(
    (
        *("zeroshot_top1", "zeroshot_top5", "acc1", "acc5", "mean_per_class_recall", "average_precision"),
        *("mean_average_precision", "data_share", "neighbour_share", "linear_probe_top1", *RECALL_LABELS),
    )
)
"""Columns of trainings and evaluations that are stored from 0 to 1 and shown in per cent."""
CLIP_LABELS = {
    **RECALL_LABELS,
    **RANK_LABELS,
    "mark": "Best",
    "step": "Step",
    "train_loss": "Training loss",
    "clip_val_loss": "Held-out loss",
    "val_generative_loss": "Held-out loss of captions",
    "zeroshot_top1": "Zero-shot top-1",
    "zeroshot_top5": "Zero-shot top-5",
    "linear_probe_top1": "Linear probe top-1",
    "zeroshot_images": "Zero-shot images",
    "zeroshot_classes": "Zero-shot classes",
    "val_pairs": "Held-out pairs",
    "lr": "Learning rate",
    "logit_scale": "Logit scale",
    "samples_per_s": "Pairs/s",
    "data_share": "Waiting for data",
    "neighbour_share": "CPUs used by others",
    "seconds": "Since the start (s)",
    "peak_memory_mb": "Peak memory (MB)",
    "samples_seen": "Pairs seen",
    "checkpoint": "Checkpoint",
    "acc1": "Top-1",
    "acc5": "Top-5",
    "mean_per_class_recall": "Mean recall per class",
    "mean_average_precision": "mAP",
    "probe_c": "C of the probe",
    "gflop_per_s": "Rate (GFLOP/s)",
    "gb_per_s": "Rate (GB/s)",
}
"""Labels of the columns of trainings, evaluations and rates. In a training, `seconds` counts from its start."""


def is_share(column: str) -> bool:
    """Return whether a column of trainings or evaluations is a share: one of SHARES, or recall at any rank."""
    return column in SHARES or bool(RECALL.fullmatch(column))


def title(column: str) -> str:
    """Return the header of a column: its label, with its unit if it has one, or its name as words."""
    if column in QUANTITIES:
        return QUANTITIES[column].title
    if recall := RECALL.fullmatch(column):
        return _recall_label(*recall.groups())
    if column == "image_size":
        return "Image (px)"
    return CLIP_LABELS.get(column) or column.replace("_", " ").capitalize()
