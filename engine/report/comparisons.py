"""Which timed recurrent layers stand side by side, and any of them over any other, computed anew from their samples."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from engine.report import samples
from engine.results import RecurrentRow

PHASES = {"forward_ms": "forward", "backward_ms": "backward", samples.TOTAL: "both"}
"""What can be compared, by its column among samples."""
SIZES = {"seq_length": "Sequence length (steps)", "hidden_size": "Hidden size", "mini_batch": "Mini-batch"}
"""What can be swept, as axes are titled."""
COLUMNS = ["model", "phase", "baseline", "speedup", "speedup_low", "speedup_high", "verdict"]


def swept(rows: Sequence[RecurrentRow]) -> str:
    """The size in which rows differ; empty where none does."""
    return next((size for size in SIZES if len({getattr(row, size) for row in rows} - {None}) > 1), "")


def groups(rows: Sequence[RecurrentRow]) -> dict[str, list[RecurrentRow]]:
    """The rows that were timed side by side, by what tells them from the others: `lstm`, `lstm, hidden size 64`."""
    size = swept(rows)
    found: dict[str, list[RecurrentRow]] = {}
    for row in rows:
        value = getattr(row, size) if size else None
        at = "" if value is None else f", {size.replace('_', ' ')} {value:,}"
        found.setdefault(row.family + at, []).append(row)
    return found


def over(drawn: pd.DataFrame, rows: Sequence[RecurrentRow], baseline: RecurrentRow, *, seed: int) -> pd.DataFrame:
    """How many times as fast each other row is as a baseline, in each phase that both have.

    drawn: of samples.read, of the file that holds them all. Columns: those that speed_figures.speedups draws, with the
    interval (99 %), which is absent where there are too few samples for one, and `phase`.
    """
    found = []
    for row in rows:
        if row.model == baseline.model:
            continue
        here, there = samples.place(row), samples.place(baseline)
        backward = all(samples.phase(drawn, where, "backward_ms") for where in (here, there))
        for column, phase in PHASES.items() if backward else [("forward_ms", "forward")]:
            ratio = samples.ratio(drawn, there, here, seed=seed, name=column)
            if ratio is None:
                continue
            low, high = (np.nan, np.nan) if np.isinf(ratio.high) else (ratio.low, ratio.high)
            verdict = "not comparable" if row.differences(baseline) else ratio.verdict
            found.append((row.model, phase, baseline.model, ratio.value, low, high, verdict))
    return pd.DataFrame(found, columns=COLUMNS)
