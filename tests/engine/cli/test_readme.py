"""The commands that README.md shows are accepted as they stand there."""

import re
import shlex
from pathlib import Path

import pytest
from sqlalchemy import update

from engine.__main__ import main
from engine.settings import ROOT
from engine.specs import EvaluateSpec, TrainSpec
from engine.store import Store
from engine.store.tables import runs

COMMANDS = re.findall(r"^python -m engine (.+?)(?: +#.*)?$", (ROOT / "README.md").read_text(), re.MULTILINE)
REFUSALS = {"runs restore": "there is nothing to restore", "search": "evaluate again to search"}
"""Reasons why a command has nothing to do with the store of this test, by its first words."""


class Begun(Exception):
    """Raised where a command would begin to measure or train."""


@pytest.fixture
def old_runs(store: Store) -> None:
    """Twelve trainings and an evaluation, so that runs 12 and 13 exist, all cancelled long ago."""
    for spec in [*[TrainSpec()] * 12, EvaluateSpec()]:
        store.request_cancel(store.enqueue(spec))
    with store.database.write() as connection:
        connection.execute(update(runs).values(ended_at=runs.c.ended_at - 365 * 86_400))


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_the_readmes_commands_are_accepted(
    old_runs: None,
    no_scheduler: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    def begin(*_arguments: object, **_options: object) -> None:
        raise Begun

    monkeypatch.setattr("engine.jobs.foreground.run_here", begin)
    monkeypatch.chdir(tmp_path)
    try:
        code = main(shlex.split(command))
    except Begun:
        return
    problem = capsys.readouterr().err
    reason = next((reason for words, reason in REFUSALS.items() if command.startswith(words)), "")
    assert reason in problem if reason else code == 0, problem


def test_the_readme_shows_commands() -> None:
    assert len(COMMANDS) > 20
