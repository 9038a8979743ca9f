"""The card of one timed runner."""

from engine.results import RecurrentRow
from engine.specs.recurrent import KNOBS
from engine.specs.runners import RUNNERS
from pages.shared.timing import card as timing_card

VALUES = (
    *("forward_ms", "backward_ms", "latency_ms", "back_to_back_ms", "forward_p90_ms", "backward_p90_ms", "steps_per_s"),
    *("forward_mean_ms", "forward_std_ms", "backward_mean_ms", "backward_std_ms", "gflops_per_step"),
    *("output_error", "gradient_error", "tolerance", "first_call_ms", "compile_cold_ms", "compile_warm_ms"),
    *("device_peak_mb", "process_peak_mb"),
)


def card(row: RecurrentRow, name: str, utilisation: float | None) -> None:
    """Draw everything known about one row. name: unique in the run. utilisation: a share, or None if unknown."""
    conditions = [RUNNERS[row.model].does if row.model in RUNNERS else "", *_sizes(row), row.precision, *_script(row)]
    timing_card.card(row, name, values=VALUES, utilisation=utilisation, conditions=conditions)


def _sizes(row: RecurrentRow) -> list[str]:
    if row.seq_length is None:
        return [f"batch {row.mini_batch}", f"{row.image_size} px" if row.image_size else ""]
    return [
        f"{row.seq_length} time steps",
        f"batch {row.mini_batch}" + (", batch first" if row.batch_first else ""),
        f"{row.input_size} features in, {row.hidden_size} hidden",
        f"{row.num_layers} layer{'s' * (row.num_layers != 1)}",
        f"projected to {row.proj_size}" if row.proj_size else "",
        "bidirectional" if row.bidirectional else "",
    ]


def _script(row: RecurrentRow) -> list[str]:
    """Return the TorchScript settings, if TorchScript ran the network."""
    if not row.fuser:
        return []
    knobs = [f"{name.replace('_', ' ')} {value}" for name in KNOBS if (value := getattr(row, name)) is not None]
    return [f"TorchScript: fuser {row.fuser}, executor {row.executor}", *knobs]
