"""Rows of timings of recurrent layers: one per runner and size."""

from typing import Any, ClassVar

from pydantic import model_validator

from engine.results.timed import TimedRow


class RecurrentRow(TimedRow):
    """How fast one runner is at one size; `model` is the runner's name."""

    kind: ClassVar[str] = "recurrent"
    comparable: ClassVar[tuple[str, ...]] = (
        *("network", "device", "threads", "seq_length", "num_layers", "input_size", "hidden_size", "mini_batch"),
        *("image_size", "proj_size", "bidirectional", "batch_first", "precision"),
    )

    family: str
    """As fastrnns names its groups of results: lstm, vl_lstm, gru, rnn_relu, rnn_tanh, milstm, resnet."""
    network: str
    """What is computed: runners of one network give the same."""
    precision: str
    """Of weights and inputs; `tf32` is float32 with TF32 products."""
    mini_batch: int
    seq_length: int | None = None
    """Steps of a call; of sequences of different lengths, of the longest. None of a ResNet, like all sizes below."""
    num_layers: int | None = None
    input_size: int | None = None
    hidden_size: int | None = None
    proj_size: int | None = None
    bidirectional: bool = False
    batch_first: bool = False
    image_size: str = ""
    """Of a ResNet, as N or HxW in pixels."""
    fuser: str = ""
    """Of TorchScript, with its executor and knobs; empty where nothing is scripted."""
    executor: str = ""
    cuda_pointwise_loop_level: int | None = None
    cuda_pointwise_block_count: int | None = None
    cuda_pointwise_block_size: int | None = None

    forward_mean_ms: float | None = None
    forward_std_ms: float | None = None
    forward_p90_ms: float | None = None
    forward_process_medians_ms: tuple[float, ...] = ()
    forward_spread: float | None = None
    """Between the processes' medians, as `spread` is of both phases together."""
    backward_mean_ms: float | None = None
    """None of a runner that has no backward pass, as all of `backward`."""
    backward_std_ms: float | None = None
    backward_p90_ms: float | None = None
    backward_process_medians_ms: tuple[float, ...] = ()
    backward_spread: float | None = None
    steps_per_s: float | None = None
    """Time steps of the whole mini-batch per second, forward and backward: seq_length / latency; of a ResNet, calls.
    None without a backward pass."""
    gflops_per_step: float | None = None
    """Of the matrix products of one time step's forward pass, whole mini-batch, all layers; of a ResNet, of a call."""
    gflops: float | None = None
    """Of one call's forward pass, whole mini-batch."""

    output_error: float | None = None
    """Of outputs and final states, against the control in float64 (torch's own layer; by hand where torch has none):
    norm of the difference / norm of the control's, of the worst tensor."""
    gradient_error: float | None = None
    """The same of the worst parameter's gradient; with ReLUs (ResNets, rnn_relu) of all gradients together, squared."""
    tolerance: float | None = None
    """Largest error allowed; a runner that exceeds it is not timed. 1e-3 in float32; otherwise 3 times the error of the
    eager layer in the same precision, at least 4 times the distance from 1 to the next number."""

    @model_validator(mode="before")
    @classmethod
    def _tf32_is_a_precision(cls, data: Any) -> Any:
        """Fill in `tf32` from the precision, also of rows stored before they had the field."""
        return {"tf32": data.get("precision") == "tf32"} | data if isinstance(data, dict) else data
