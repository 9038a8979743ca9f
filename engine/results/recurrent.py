"""Rows of timings of recurrent layers: one per runner and size."""

from typing import Any, ClassVar

from pydantic import model_validator

from engine.results.timed import TimedRow


class RecurrentRow(TimedRow):
    """The speed of one runner at one size; `model` is the runner's name."""

    kind: ClassVar[str] = "recurrent"
    comparable: ClassVar[tuple[str, ...]] = (
        *("network", "device", "threads", "seq_length", "num_layers", "input_size", "hidden_size", "mini_batch"),
        *("image_size", "proj_size", "bidirectional", "batch_first", "precision"),
    )

    family: str
    """The runner's family, a `Family` of engine/specs/fields/runners.py."""
    network: str
    """Name of the computation: runners with the same network give the same result."""
    precision: str
    """Precision of weights and inputs; `tf32` means float32 with TF32 products."""
    mini_batch: int
    seq_length: int | None = None
    """Time steps per call, of the longest sequence if lengths differ. None for a ResNet, as are the sizes below."""
    num_layers: int | None = None
    input_size: int | None = None
    hidden_size: int | None = None
    proj_size: int | None = None
    bidirectional: bool = False
    batch_first: bool = False
    image_size: str = ""
    """Image size of a ResNet: N or HxW in pixels."""
    fuser: str = ""
    """TorchScript's fuser; like its executor and options below, empty if nothing is scripted."""
    executor: str = ""
    cuda_pointwise_loop_level: int | None = None
    cuda_pointwise_block_count: int | None = None
    cuda_pointwise_block_size: int | None = None

    forward_mean_ms: float | None = None
    forward_std_ms: float | None = None
    forward_p90_ms: float | None = None
    forward_process_medians_ms: tuple[float, ...] = ()
    forward_spread: float | None = None
    """Spread of the processes' forward medians, defined as `spread` is for both phases together."""
    backward_mean_ms: float | None = None
    """None for a runner without backward pass, as are all `backward` fields."""
    backward_std_ms: float | None = None
    backward_p90_ms: float | None = None
    backward_process_medians_ms: tuple[float, ...] = ()
    backward_spread: float | None = None
    steps_per_s: float | None = None
    """Time steps of the whole mini-batch per second, forward and backward. For a ResNet, calls.

    It is seq_length / back-to-back time on an accelerator, / latency on a CPU. None without a backward pass.
    """
    gflops_per_step: float | None = None
    """GFLOPs of the matrix products in a forward pass per time step (ResNets: per call): mini-batch, all layers."""
    gflops: float | None = None
    """GFLOPs of one call's forward pass, whole mini-batch."""

    output_error: float | None = None
    """Largest relative error of outputs and final states: norm(result - control) / norm(control), of the worst tensor.

    The control is computed in float64, by torch's own layer, or by our own code where torch has none.
    """
    gradient_error: float | None = None
    """Error of the worst parameter's gradient. With ReLUs (ResNets, rnn_relu): squared error of all gradients."""
    tolerance: float | None = None
    """Largest error allowed; a runner that exceeds it is not timed.

    1e-3 in float32. Otherwise 3 times the error of the eager layer in the same precision, but at least 4 times the
    distance from 1 to the next number.
    """

    @model_validator(mode="before")
    @classmethod
    def _tf32_is_a_precision(cls, data: Any) -> Any:
        """Set `tf32` from the precision, also in rows stored before they had this field."""
        return {"tf32": data.get("precision") == "tf32"} | data if isinstance(data, dict) else data
