"""The commands in README.md are accepted exactly as they are written."""

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
REFUSALS = {
    "runs restore": "there is nothing to restore",
    "runs compare": "there are no values to compare yet",
    "search": "evaluate again to search",
}
"""Expected refusals by the first words of a command, because the store of this test has nothing for it to do."""


class Started(Exception):
    """Raised when a command would begin to measure or train."""


@pytest.fixture
def old_runs(store: Store) -> None:
    """Store 12 trainings and an evaluation, cancelled a year ago: the README uses runs 12 and 13."""
    for spec in [*[TrainSpec()] * 12, EvaluateSpec()]:
        store.request_cancel(store.enqueue(spec))
    with store.database.write() as connection:
        connection.execute(update(runs).values(ended_at=runs.c.ended_at - 365 * 86_400))


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_readme_are_accepted(
    old_runs: None,
    no_scheduler: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    def raise_started(*_arguments: object, **_options: object) -> None:
        raise Started

    monkeypatch.setattr("engine.jobs.foreground.run_here", raise_started)
    monkeypatch.chdir(tmp_path)
    try:
        code = main(shlex.split(command))
    except Started:
        return
    problem = capsys.readouterr().err
    reason = next((reason for words, reason in REFUSALS.items() if command.startswith(words)), "")
    assert reason in problem if reason else code == 0, problem


def test_readme_has_commands() -> None:
    assert len(COMMANDS) > 20
