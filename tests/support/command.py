"""Read a command line without running its command."""

from collections.abc import Sequence

from pydantic_settings import CliApp

from engine.__main__ import Engine
from engine.cli.here import Flags
from engine.specs import Spec


def parsed(command: type[Flags], arguments: Sequence[str]) -> Spec:
    """Return the request of a command with these flags."""

    class Parsed(command):  # type: ignore[misc, valid-type]
        model_config = Engine.model_config

        def cli_cmd(self) -> None:
            """Do nothing."""

    return CliApp.run(Parsed, list(arguments)).spec()
