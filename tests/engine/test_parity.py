"""docs/parity.md: its counts equal those of its tables, its flags exist, and it names every runner."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import get_args

import pytest

from engine.__main__ import main
from engine.settings import ROOT
from engine.specs.fields.runners import Group, of_group

TEXT = (ROOT / "docs" / "parity.md").read_text()
SECTIONS = {
    "open_clip's profiler": "profile",
    "PyTorch's timm suite": "benchmark",
    "PyTorch's fastrnns": "recurrent",
    "open_clip's training": "train",
    "timm's benchmark.py": "benchmark",
    "CLIP_benchmark": "evaluate",
}
"""The sections with tables of options, each with our command for it."""


def rows(section: str) -> Iterator[tuple[list[str], str, str]]:
    """Yield (their options, our option, note) for each row of the table of a section."""
    table = TEXT.partition(f"\n## {section}\n")[2].partition("| their option |")[2].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        theirs, ours, note = (cell.strip() for cell in line.strip().strip("|").split(" | "))
        yield re.findall(r"`--[\w-]+`", theirs), ours, note


def support(ours: str) -> str:
    return "left out" if ours == "left out" else "supported"


def count_options(section: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for theirs, ours, _ in rows(section):
        counts[support(ours)] += len(theirs)
    return counts


def test_counts_equal_those_of_the_tables() -> None:
    found = {}
    for line in TEXT.partition("\n## Counts\n")[2].partition("\n\n- ")[0].splitlines()[3:]:
        name, _, *numbers = (cell.strip() for cell in line.strip("|").split("|"))
        found[name] = [int(number) for number in numbers]
    totals = {section: count_options(section) for section in SECTIONS}
    totals["all"] = sum(totals.values(), Counter[str]())
    columns = ("supported", "left out")
    assert found == {name: [counts.total(), *(counts[column] for column in columns)] for name, counts in totals.items()}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_named_flag_of_ours_exists(section: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([SECTIONS[section], "--help"])
    existing_flags = set(re.findall(r"--[\w-]+", capsys.readouterr().out))
    named_flags = {
        flag
        for _, ours, _ in rows(section)
        if support(ours) == "supported"
        for flag in re.findall(r"`(--[\w-]+)", ours)
    }
    assert named_flags
    assert named_flags <= existing_flags


def test_every_runner_of_fastrnns_and_ours_is_in_the_table_of_its_group() -> None:
    named = {}
    for line in TEXT.partition("| group here |")[2].partition("\n\n")[0].splitlines()[2:]:
        group, *runners = (cell.strip(" `") for cell in line.strip("|").split("|"))
        named[group] = sorted(re.findall(r"\w+", " ".join(runners)))
    assert named.pop("cells"), "described in words"
    assert named == {group: sorted(of_group(group)) for group in get_args(Group) if group != "cells"}
