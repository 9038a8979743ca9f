"""docs/parity.md: its counts are those of its tables, and the flags that it names exist."""

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from engine.__main__ import main
from engine.settings import ROOT

TEXT = (ROOT / "docs" / "parity.md").read_text()
SECTIONS = {
    "open_clip's profiler": "profile",
    "PyTorch's timm suite": "benchmark",
    "PyTorch's fastrnns": "recurrent",
    "open_clip's training": "train",
    "timm's benchmark.py": "benchmark",
    "CLIP_benchmark": "evaluate",
}
"""The sections with tables of options, with our command that stands for each."""


def rows(section: str) -> Iterator[tuple[list[str], str, str]]:
    """Yield their options, ours and the note of each line of a section's table."""
    table = TEXT.partition(f"\n## {section}\n")[2].partition("| their option |")[2].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        theirs, ours, note = (cell.strip() for cell in line.strip().strip("|").split(" | "))
        yield re.findall(r"`--[\w-]+`", theirs), ours, note


def kind(ours: str) -> str:
    return "left out" if ours == "left out" else "there"


def counted(section: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for theirs, ours, _ in rows(section):
        counts[kind(ours)] += len(theirs)
    return counts


def test_the_counts_are_those_of_the_tables() -> None:
    found = {}
    for line in TEXT.partition("\n## Counts\n")[2].partition("\n\n- ")[0].splitlines()[3:]:
        name, _, *numbers = (cell.strip() for cell in line.strip("|").split("|"))
        found[name] = [int(number) for number in numbers]
    totals = {section: counted(section) for section in SECTIONS}
    totals["all"] = sum(totals.values(), Counter[str]())
    kinds = ("there", "left out")
    assert found == {name: [counts.total(), *(counts[kind] for kind in kinds)] for name, counts in totals.items()}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_flag_of_ours_exists(section: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([SECTIONS[section], "--help"])
    known = set(re.findall(r"--[\w-]+", capsys.readouterr().out))
    named = {flag for _, ours, _ in rows(section) if kind(ours) == "there" for flag in re.findall(r"`(--[\w-]+)", ours)}
    assert named
    assert named <= known
