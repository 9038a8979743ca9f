"""Export timings of recurrent layers as PyTorch's fastrnns benchmark prints them: its table, and its JSON `oss` and
`pep`.

All three have one value per runner and direction. Failed runners are left out, and swept sizes cannot be represented.
"""

import json
import math
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import get_args

from engine.report.export.tables import guard
from engine.report.timings import samples
from engine.results import RecurrentRow
from engine.specs import Refused
from engine.specs.fields.runners import Family

COLUMNS = ("name", "avg_fwd", "std_fwd", "info_fwd", "avg_bwd", "std_bwd", "info_bwd")
WIDTH = 16


def fits(rows: Sequence[RecurrentRow]) -> bool:
    """Return whether every runner was timed at only one size."""
    return len({row.model for row in rows}) == len(rows)


def table(rows: Sequence[RecurrentRow], separator: str = " ") -> str:
    """Return a block of lines per group, with a header: means and deviations in ms, 16 characters per column, no
    samples.

    fastrnns times single calls. Here short calls are timed in blocks, and means of blocks deviate less than calls do:
    the info of such a runner is `blocks_of_K` instead of None, with K calls per sample. The deviation of a single
    sample and the missing values of a runner without a backward pass are `nan`. Errors: Refused.
    """
    return "\n".join(_block(members, separator) for members in _groups(rows).values())


def _block(rows: Sequence[RecurrentRow], separator: str) -> str:
    lines: list[tuple[str | float | None, ...]] = [COLUMNS]
    for row in rows:
        calls = row.calls_per_sample or 1
        info = "None" if calls == 1 else f"blocks_of_{calls}"
        forward = (row.forward_mean_ms, row.forward_std_ms, info)
        backward = (row.backward_mean_ms, row.backward_std_ms, "None" if row.backward_mean_ms is None else info)
        lines.append((row.model, *forward, *backward))
    return "".join(separator.join(map(_cell, line)) + "\n" for line in lines)


def _cell(value: str | float | None) -> str:
    text: str = guard(value) if isinstance(value, str) else "%.4g" % (math.nan if value is None else value)
    return text[:WIDTH].rjust(WIDTH)


def oss(rows: Sequence[RecurrentRow]) -> str:
    """Return one line: {group: {runner: mean ms}}, each group followed by `<group>-backward`. Errors: Refused."""
    means: dict[str, dict[str, float | None]] = {}
    for group, members in _groups(rows).items():
        means[group] = {row.model: row.forward_mean_ms for row in members}
        trained = [row for row in members if row.backward_mean_ms is not None]
        means[f"{group}-backward"] = {row.model: row.backward_mean_ms for row in trained}
    return json.dumps(means) + "\n"


def pep(rows: Sequence[RecurrentRow], run_dir: Path) -> str:
    """Return one line per sample, in the order taken: each group first forward, then backward.

    A sample is the mean of its calls, of which there are several if calls are short.

    Errors: Refused; LookupError when a row's samples were not kept; ValueError and OSError as samples.read.
    """
    reader = samples.Reader()
    lines = []
    for group, members in _groups(rows).items():
        for metric, phase in ((group, "forward_ms"), (f"{group}-backward", "backward_ms")):
            for row in members:
                processes = reader.phase(run_dir, row, phase)
                if processes is None:
                    raise LookupError(
                        f"the samples of {row.model} are not here: {row.samples_file!r} was not kept with its run"
                    )
                fields = {"type": "NET", "metric": f"{metric}-{row.model}", "unit": "ms"}
                samples_ms = chain.from_iterable(processes)
                lines += [f"Caffe2Observer {json.dumps(fields | {'value': str(ms)})}\n" for ms in samples_ms]
    return "".join(lines)


def _groups(rows: Sequence[RecurrentRow]) -> dict[str, list[RecurrentRow]]:
    """Return the timed rows by group. Errors: Refused when a runner has several sizes."""
    if not fits(rows):
        raise Refused("fastrnns' formats hold one size per runner, and here sizes were swept: take the CSV or JSON")
    timed = [row for row in rows if row.forward_mean_ms is not None]
    members_by_family = {family: [row for row in timed if row.family == family] for family in get_args(Family)}
    return {family: members for family, members in members_by_family.items() if members}
