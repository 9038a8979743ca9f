"""What each column is called, in which unit, and what it means: read by tables, axes and hovers alike."""

from dataclasses import dataclass
from typing import Literal

from engine.published.publishers import FIGURES, OF


@dataclass(frozen=True)
class Quantity:
    """A numeric column. `unit` may be empty for pure numbers."""

    label: str
    unit: str
    help: str
    better: Literal["smaller", "larger"] = "smaller"
    """What one wants of it, where one wants anything."""

    @property
    def title(self) -> str:
        """Label with unit, for headers and axis titles."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


def _towers(stem: str, label: str, unit: str, help: str) -> dict[str, Quantity]:
    """A quantity of the whole model and of its image tower, text tower and the rest."""
    parts = {"image": "Image tower.", "text": "Text tower.", "other": "In neither tower."}
    whole = {stem: Quantity(label[0].upper() + label[1:], unit, f"{help} Whole model.")}
    return whole | {
        f"{part}_{stem}": Quantity(f"{part.capitalize()} {label}", unit, f"{help} {where}")
        for part, where in parts.items()
    }


QUANTITIES: dict[str, Quantity] = {
    **_towers("mparams", "parameters", "M", "Weights, in millions."),
    **_towers("gmacs", "MACs", "G", "Multiply-adds of one forward pass per sample, in 1e9; 1 MAC is 2 FLOPs."),
    **_towers("gflops", "FLOPs", "G", "Floating-point operations of one forward pass per sample, in 1e9."),
    **_towers("macts", "activations", "M", "Elements of the outputs of convolutions and matrix products, in 1e6."),
    "trainable_mparams": Quantity("Trainable parameters", "M", "Parameters that require a gradient, in millions."),
    "mbuffers": Quantity("Buffers", "M", "Elements of buffers, in millions."),
    "traffic_mb": Quantity("Memory traffic", "MB", "Bytes all operators read and write, nothing cached or fused."),
    "intensity": Quantity("Intensity", "FLOP/B", "Arithmetic intensity: FLOPs per byte of memory traffic.", "larger"),
    "weights_mb": Quantity("Weights", "MB", "Memory of parameters and buffers."),
    "inference_peak_mb": Quantity("Peak mem.", "MB", "Estimated peak memory of a forward pass of the batch."),
    "training_peak_mb": Quantity(
        "Training peak", "MB", "Estimate: weights, gradients, AdamW's two moments and saved activations."
    ),
    "torch_gmacs": Quantity("torch MACs", "G", "Multiply-adds per sample as our own counter finds them."),
    "fvcore_gmacs": Quantity("fvcore MACs", "G", "Multiply-adds per sample as fvcore traces them."),
    "fvcore_image_gmacs": Quantity("fvcore image MACs", "G", "Image tower, as fvcore traces it."),
    "fvcore_text_gmacs": Quantity("fvcore text MACs", "G", "Text tower, as fvcore traces it."),
    "fvcore_macts": Quantity("fvcore activations", "M", "Activations per sample as fvcore traces them."),
    "fvcore_image_macts": Quantity("fvcore image activations", "M", "Image tower, as fvcore traces it."),
    "fvcore_text_macts": Quantity("fvcore text activations", "M", "Text tower, as fvcore traces it."),
    "read_mb": Quantity("Read", "MB", "Bytes read by all calls, whole batch."),
    "written_mb": Quantity("Written", "MB", "Bytes written by all calls, whole batch."),
    "share": Quantity("Share of MACs", "%", "Of the model's counted MACs."),
    "latency_ms": Quantity(
        "Latency p50",
        "ms",
        "Time of one call, that is of one batch, until it is done: the median of the processes' medians.",
    ),
    "back_to_back_ms": Quantity(
        "Back to back",
        "ms",
        "Time per call of calls that queue up behind each other on an accelerator; median of the processes' medians.",
    ),
    "p90_ms": Quantity(
        "p90", "ms", "90 % of the samples are faster. Needs 64 samples: then 2 lie above the true value (99 % sure)."
    ),
    "p95_ms": Quantity(
        "p95", "ms", "95 % of the samples are faster. Needs 130 samples: then 2 lie above the true value (99 % sure)."
    ),
    "p99_ms": Quantity(
        "p99", "ms", "99 % of the samples are faster. Needs 662 samples: then 2 lie above the true value (99 % sure)."
    ),
    "mean_ms": Quantity("Mean", "ms", "Mean time per call; outliers weigh in."),
    "std_ms": Quantity("Deviation", "ms", "Standard deviation of the samples. A sample is the mean of its calls."),
    "samples_per_s": Quantity(
        "Throughput", "samples/s", "Batch size / back-to-back time; on a CPU / median latency.", "larger"
    ),
    "forward_ms": Quantity("Forward", "ms", "Median of the forward pass."),
    "backward_ms": Quantity("Backward", "ms", "Median of the backward pass."),
    "forward_mean_ms": Quantity("Forward mean", "ms", "Mean time of the forward pass; outliers weigh in."),
    "forward_std_ms": Quantity("Forward deviation", "ms", "As the deviation, of the forward pass alone."),
    "forward_p90_ms": Quantity("Forward p90", "ms", "As p90, of the forward pass alone."),
    "forward_spread_percent": Quantity("Forward spread", "%", "As the spread, of the forward pass alone."),
    "backward_mean_ms": Quantity("Backward mean", "ms", "Mean time of the backward pass; outliers weigh in."),
    "backward_std_ms": Quantity("Backward deviation", "ms", "As the deviation, of the backward pass alone."),
    "backward_p90_ms": Quantity("Backward p90", "ms", "As p90, of the backward pass alone."),
    "backward_spread_percent": Quantity("Backward spread", "%", "As the spread, of the backward pass alone."),
    "steps_per_s": Quantity(
        "Steps", "1/s", "Time steps of the whole mini-batch per second, forward and backward; of a ResNet, calls."
    ),
    "gflops_per_step": Quantity(
        "FLOPs per step", "G", "Matrix products of one time step's forward pass, whole mini-batch; of a ResNet, a call."
    ),
    "output_error": Quantity(
        "Output error",
        "",
        "Against its control in float64: norm of the difference / norm of the control's, of the worst tensor.",
    ),
    "gradient_error": Quantity(
        "Gradient error", "", "Of the worst parameter's gradient, against that control; with ReLUs of all, squared."
    ),
    "tolerance": Quantity(
        "Tolerance", "", "Largest error allowed: 1e-3, below float32 3 times the eager layer's error."
    ),
    "optimizer_ms": Quantity("Optimizer", "ms", "Median of a training step's update."),
    "first_call_ms": Quantity(
        "First call",
        "ms",
        "Outside the timed region. Earlier ones in the same process may have loaded kernels that this one shares.",
    ),
    "compile_cold_ms": Quantity(
        "Compile cold",
        "ms",
        "Compilation (or scripting, or tracing) and first call, and recording of CUDA graphs; caches empty, compiler "
        "loaded.",
    ),
    "compile_warm_ms": Quantity("Compile warm", "ms", "The same with the caches that the first process has left."),
    "loop_ms": Quantity("Timing loop", "ms", "What the timing loop itself costs per call; not subtracted."),
    "spread_percent": Quantity(
        "Spread", "%", "(largest - smallest) / median of the processes' medians; above 5 % is unstable."
    ),
    "utilisation_percent": Quantity(
        "FLOP utilisation", "%", "Counted FLOPs / median time, of this device's own measured matmul rate."
    ),
    "speedup": Quantity(
        "Speed-up", "×", "Median latency of the baseline / of this variant, never of back-to-back time."
    ),
    "speedup_low": Quantity("Speed-up from", "×", "Lower end of its 99 % bootstrap interval."),
    "speedup_high": Quantity("Speed-up to", "×", "Upper end of its 99 % bootstrap interval."),
    "device_peak_mb": Quantity("Device peak", "MB", "Most memory allocated on the accelerator, in a loop of its own."),
    "process_peak_mb": Quantity("Process peak", "MB", "Most resident memory of the process, in a loop of its own."),
    "joules_per_sample": Quantity(
        "Energy",
        "J/sample",
        "Energy of the whole GPU board by its own counter, in a loop of its own of 1 s per process after the timing. "
        "The counter is updated every 0.1 s at the latest, so this is within 10 %, and its sensor within about 5 %.",
    ),
    "gradient_deviation": Quantity(
        "Gradient deviation",
        "",
        "Of all gradients: norm of the difference to the reference's, over the reference's.",
    ),
    "max_deviation": Quantity("Largest deviation", "", "Of abs(result - reference) / (1 + abs(reference))."),
    "mean_deviation": Quantity("Mean deviation", "", "Of abs(result - reference) / (1 + abs(reference))."),
    "std_deviation": Quantity("Deviation's spread", "", "Standard deviation of the deviations."),
    "here": Quantity("Here", "samples/s", "Measured by us, on this machine."),
    "theirs": Quantity("Published", "samples/s", "Somebody else's figure, on their machine."),
    "times": Quantity("Published / here", "×", "How many times as fast theirs was."),
    "geometric_mean": Quantity("Geometric mean", "×", "Of the speed-ups of all models that have one."),
    "seconds": Quantity("Took", "s", "Wall time of this model."),
    **{
        name: Quantity(figure.label, "%", f"Published by {OF[name].repository}: {figure.about}.", "larger")
        for name, figure in FIGURES.items()
    },
}

COMPARABLE = (
    "gmacs",
    "mparams",
    "macts",
    "fvcore_gmacs",
    "gflops",
    "traffic_mb",
    "intensity",
    "weights_mb",
    "inference_peak_mb",
    "image_mparams",
    "text_mparams",
    "image_gmacs",
    "text_gmacs",
)
"""The quantities offered as axes, sizes and colours, most asked for first."""

MEASURED = ("latency_ms", "samples_per_s")
"""What is measured on this machine, and may stand on an axis beside them."""


def title(column: str) -> str:
    """Header of a column: its label with unit, or the name in words."""
    if column in QUANTITIES:
        return QUANTITIES[column].title
    if column == "image_size":
        return "Image (px)"
    return column.replace("_", " ").capitalize()
