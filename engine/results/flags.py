"""Flags and verdicts of timings, with the meaning that users read. Their thresholds are where they are measured."""

from typing import Literal

Flag = Literal["single_process", "unstable", "contended", "drifting", "throttled", "below_floor"]
"""Reasons for caution before a timing is quoted."""

FLAGS: dict[Flag, str] = {
    "single_process": "One process does not show how much processes differ: a first impression, not to be quoted.",
    "unstable": "The medians of the processes differ by more than 5 %: the value depends on the process.",
    "contended": "Other programs used the processors during the timing, or its threads had to wait.",
    "drifting": "The first and the last third of the samples differ by 2 % or more, and by more than noise explains: "
    "the model was still warming up, or slows down.",
    "throttled": "The GPU reduced its clocks for heat, power supply or hardware, or to below 75 % of their maximum.",
    "below_floor": "Fewer samples, seconds or processes were requested than a result to quote needs.",
}
"""The meaning of each flag, as shown to users."""

SPOILING: tuple[Flag, ...] = ("unstable", "contended", "drifting", "throttled")
"""Flags of values that may be wrong. The other flags say that less was measured than a quotable result needs.

Each is one word: some texts show underscores as blanks, and `engine/report` searches these texts for flags.
"""

Verdict = Literal[
    "faster",
    "slower",
    "no difference",
    "undecided",
    "not comparable",
    "needs 3 processes",
    "needs 3 runs",
    "same request",
]
"""The result of a comparison with the baseline."""

VERDICTS: dict[Verdict, str] = {
    "faster": "The whole interval lies above the margin of 2 %.",
    "slower": "The whole interval lies below the margin of 2 %.",
    "no difference": "The whole interval lies within the margin of 2 %.",
    "undecided": "The interval is too wide to tell. Time flagged rows again on a quiet machine. A publishable timing "
    "(5 processes) narrows the interval, and can also show that there is no difference. If they were timed "
    "one after the other, more turns of both narrow it.",
    "not comparable": "They compute something else, or differ in a setting such as image size, precision or host: "
    "there is a ratio but no verdict.",
    "needs 3 processes": "Fewer than 3 processes say too little about how much processes differ: time it in 3 or more.",
    "needs 3 runs": "They were timed one after the other, and the machine changes with time. Run both requests in "
    "turns, 3 times each, or a request that has both 3 times.",
    "same request": "Both are runs of the same request: the ratio shows how far two runs differ. There is no verdict.",
}
"""The meaning of each verdict, as shown to users. "Interval" means that of the ratio."""
