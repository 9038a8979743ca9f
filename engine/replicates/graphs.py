"""Read torch.compile's records of a subject: its graphs, why they break, and why they were compiled again."""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MOST_METRICS = 2000
"""Number of compilations that torch keeps metrics of. Its default is 64, and a model with many breaks has more."""
MOST_REASONS = 20
"""Most reasons in a row. A note at the end says how many more there are."""
LONGEST_REASON = 300
NOT_COMPILED = "torch compiled nothing of this variant, so it ran as eager; the log may say why"
"""inductor, for one, skips models in bfloat16 on GPUs before Ampere, and only warns."""


def fresh_counters(*, compiles: bool) -> Any:
    """Clear torch.compile's counters and records. Return the counters; None if the subject does not compile."""
    if not compiles:
        return None
    from torch._dynamo import utils

    utils.counters.clear()
    utils.graph_break_reasons.clear()
    utils.set_compilation_metrics_limit(MOST_METRICS)
    utils.clear_compilation_metrics()
    return utils.counters


def graphs(counters: Any) -> dict[str, Any]:
    """Return torch.compile's counts and records since `fresh_counters`, as fields of a row."""
    if counters is None:
        return {}
    from torch._dynamo import utils

    repeated = _recompilations(utils.get_compilation_metrics())
    return {
        "calls_captured": counters["stats"]["calls_captured"],
        "unique_graphs": counters["stats"]["unique_graphs"],
        "graph_breaks": sum(counters["graph_break"].values()),
        "unique_graph_breaks": len(counters["graph_break"]),
        "graph_break_reasons": _count_reasons(
            f"{_place(one.user_stack)}: {_explanation(one.reason)}" for one in utils.graph_break_reasons
        ),
        "recompilations": len(repeated),
        "recompile_reasons": _count_reasons(
            f"{_line(one.co_filename, one.co_firstlineno)} in {one.co_name}: {_guard(one.recompile_reason)}"
            for one in repeated
        ),
    }


def notes_on(counters: Any) -> tuple[str, ...]:
    """Return a note if torch.compile has made no graph of a subject since `fresh_counters`."""
    return (NOT_COMPILED,) if counters is not None and not counters["stats"]["unique_graphs"] else ()


def _recompilations(compilations: Iterable[Any]) -> list[Any]:
    """Return the compilations of a subject that repeat an earlier compilation of the same subject.

    A reason for recompiling is not enough: torch 2.11 cannot isolate subjects, and also gives one for the first
    compilation of a code if it has compiled the same code for another subject.
    """
    seen, repeated = set[tuple[Any, ...]](), []
    for compilation in compilations:
        code = (compilation.co_filename, compilation.co_firstlineno, compilation.co_name)
        if compilation.recompile_reason and code in seen:
            repeated.append(compilation)
        seen.add(code)
    return repeated


def _count_reasons(reasons: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct reasons in order, each once with its count, and a note on those left out."""
    counted = Counter(text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]} ..." for text in reasons)
    texts = [f"{reason} ({count} times)" if count > 1 else reason for reason, count in counted.items()]
    left = len(texts) - MOST_REASONS
    return (*texts[:MOST_REASONS], *([f"and {left} more"] if left > 0 else []))


def _place(stack: Any) -> str:
    """Return the innermost line of the user's code, such as `timm/layers/norm.py:12 in forward`."""
    if not stack:
        return "unknown line"
    return f"{_line(stack[-1].filename, stack[-1].lineno)} in {stack[-1].name}"


def _line(file: str | None, number: int | None) -> str:
    """Return a place in the code, with the file below the folder of its package instead of its full path."""
    path = Path(file or "unknown")
    parts = path.parts
    start = max((place for place, part in enumerate(parts) if part == "site-packages"), default=len(parts) - 3)
    return f"{'/'.join(parts[max(1, start + 1) :]) or path.name}:{number}"


def _explanation(reason: str) -> str:
    """Return torch's name of a break and its explanation, without hints, context and links."""
    lines = [line.strip() for line in reason.splitlines()]
    texts = [line.removeprefix("Explanation:").strip() for line in lines if line.startswith("Explanation:")]
    return f"{lines[0]}. {texts[0]}" if texts and texts[0] else lines[0]


def _guard(reason: str | None) -> str:
    """Return why a graph did not fit, without the number of the graph: `0/0: tensor 'x' size mismatch ...`."""
    return re.sub(r"^\d+/\d+: ", "", " ".join((reason or "").split()))
