"""What each column is called, in which unit, and what it means: read by tables, axes and hovers alike."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Quantity:
    """A numeric column. `unit` may be empty for pure numbers."""

    label: str
    unit: str
    help: str

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
    "intensity": Quantity("Intensity", "FLOP/B", "Arithmetic intensity: FLOPs per byte of memory traffic."),
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
    "seconds": Quantity("Counting took", "s", "Wall time of counting this model."),
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


def title(column: str) -> str:
    """Header of a column: its label with unit, or the name in words."""
    if column in QUANTITIES:
        return QUANTITIES[column].title
    if column == "image_size":
        return "Image (px)"
    return column.replace("_", " ").capitalize()
