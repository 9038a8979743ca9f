"""The card of one timed model."""

from engine.results import BenchmarkRow
from pages.shared.timing import card as timing_card

VALUES = (
    *(
        "latency_ms",
        "back_to_back_ms",
        "samples_per_s",
        "mean_ms",
        "std_ms",
        "forward_ms",
        "backward_ms",
        "optimizer_ms",
    ),
    *("first_call_ms", "compile_cold_ms", "compile_warm_ms", "device_peak_mb", "process_peak_mb"),
    *("joules_per_sample", "gradient_deviation", "max_deviation", "mean_deviation", "std_deviation"),
)


def card(row: BenchmarkRow, utilisation: float | None) -> None:
    """Draw everything known about one row. utilisation: FLOP utilisation as a share, or None if unknown."""
    name = f"{row.library}:{row.model}" + (f", {row.tower} tower" if row.tower != "whole" else "")
    timing_card.card(
        row,
        f"{name}, {row.variant}, {row.mode}, batch {row.batch_size}",
        values=VALUES,
        utilisation=utilisation,
        conditions=_conditions(row),
        further={"Accuracy check": row.accuracy.replace("_", " ")} if row.accuracy else None,
    )


def _conditions(row: BenchmarkRow) -> list[str]:
    """Return the settings that the result depends on."""
    return [
        f"batch {row.batch_size} (requested: {row.batch_size_requested})",
        f"{row.image_size} px" if row.image_size else "",
        f"{row.context_length} tokens" if row.context_length else "",
        f"{row.precision}: weights {row.dtype or row.precision}"
        + (f", autocast {row.autocast_dtype}" if row.autocast_dtype else ""),
        row.memory_format.replace("_", " "),
        "deterministic" if row.deterministic else "not deterministic",
        f"{row.cache} cache",
        row.optimizer,
    ]
