"""Which timed recurrent layers stand side by side, and any of them over any other, computed anew from their samples."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from engine.report.timings import samples
from engine.results import RecurrentRow

PHASES = {"forward_ms": "forward", "backward_ms": "backward", samples.TOTAL: "both"}
"""What can be compared, by its column among samples."""
SIZES = {"seq_length": "Sequence length (steps)", "hidden_size": "Hidden size", "mini_batch": "Mini-batch"}
"""What can be swept, as axes are titled."""
COLUMNS = ["model", "baseline", "speedup", "speedup_low", "speedup_high", "verdict"]


def swept(rows: Sequence[RecurrentRow]) -> str:
    """Return the size in which rows differ; empty where none does."""
    return next((size for size in SIZES if len({getattr(row, size) for row in rows} - {None}) > 1), "")


def groups(rows: Sequence[RecurrentRow]) -> dict[str, list[RecurrentRow]]:
    """Return the rows that were timed side by side, by what tells them from the others: `lstm`, `lstm, hidden size
    64`."""
    size = swept(rows)
    found: dict[str, list[RecurrentRow]] = {}
    for row in rows:
        value = getattr(row, size) if size else None
        at = "" if value is None else f", {size.replace('_', ' ')} {value:,}"
        found.setdefault(row.family + at, []).append(row)
    return found


def over(
    drawn: pd.DataFrame,
    rows: Sequence[RecurrentRow],
    baseline: RecurrentRow,
    phase: str,
    *,
    seed: int,
    publishable: bool,
) -> pd.DataFrame:
    """Return how many times as fast each other row is as a baseline in a phase, a column of PHASES, where both have it.

    drawn: of samples.read, of the file that holds them all. Columns: those that speed_figures.speedups draws, with the
    interval (99 %), which is absent where there are too few samples for one.
    """
    there, found = samples.place(baseline), []
    for row in rows:
        here = samples.place(row)
        both_ways = all(samples.phase(drawn, where, "backward_ms") for where in (here, there))
        if row.model == baseline.model or (phase == samples.TOTAL and not both_ways):
            continue
        ratio = samples.ratio(drawn, there, here, seed=seed, publishable=publishable, name=phase)
        if ratio is not None:
            low, high = (np.nan, np.nan) if np.isinf(ratio.high) else (ratio.low, ratio.high)
            verdict = "not comparable" if row.differences(baseline) else ratio.verdict
            found.append((row.model, baseline.model, ratio.value, low, high, verdict))
    return pd.DataFrame(found, columns=COLUMNS)
