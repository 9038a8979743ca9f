"""The command line, `python -m engine`, with the same specs and tasks as the pages.

Flags are made from the specs; only options for output are added. The docstring of Commands has the exit codes.
"""

import os
import re
import sys
import tomllib
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any, Literal

from engine import process

process.collect_rarely()
if __name__ == "__main__":
    process.interrupt_quietly()
# We use no pydantic plugins, and the search for them takes 0.1 s: it reads the metadata of every package.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

from pydantic import BaseModel, Field, ValidationError, create_model
from pydantic_settings import CliApp, CliPositionalArg, CliSettingsSource, SettingsConfigDict, SettingsError

from engine.cli.clip import Evaluate, Search, SubmitEvaluate, SubmitTrain, Train, add_flag
from engine.cli.completion import closest, flag, script, with_flags
from engine.cli.costs import Catalog, CatalogBuild, Profile, Published, PublishedImport, SubmitProfile
from engine.cli.estimates import Calibrate, Estimate
from engine.cli.here import EndedBadly, Group, subcommands
from engine.cli.output import HelpFormatter, note, printable
from engine.cli.processes import Answer, Probe, Scheduler, Stop, Warm, Work
from engine.cli.runs import Resume, Runs
from engine.cli.speed import Benchmark, Device, Recurrent, SubmitBenchmark, SubmitDevice, SubmitRecurrent, SuiteBuild
from engine.cli.store import Health, Store
from engine.settings import ROOT
from engine.specs import Refused, describe_error

MISTYPED = re.compile(r"argument \{[^}]*\}: invalid choice: ('.*?') \(choose from .*\)$")
"""argparse's message about a command that does not exist."""
MISSING = re.compile(r"^Error: CLI subcommand is required \{[^}]*\}")
"""First line of pydantic's message about a missing command; the others are the help, which lists the commands."""
SECOND_VALUE = re.compile(r"unrecognized arguments: ([^-].*)")
"""argparse's message about values after the first one of a flag."""


Submit = create_model(
    "Submit",
    __base__=Group,
    __doc__="""Queue a run instead of running it here.

    Each command takes the same request as the one without `submit`; `runs rows` writes the rows later.
    """,
    **subcommands(
        *(SubmitProfile, SubmitBenchmark, SubmitRecurrent, SubmitDevice, SubmitTrain, SubmitEvaluate), prefix="Submit"
    ),
)


class Completion(BaseModel):
    """Print a script that completes commands and flags: source <(python -m engine completion bash)"""

    shell: CliPositionalArg[Literal["bash", "zsh"]] = Field(description="The shell: bash or zsh.")

    def cli_cmd(self) -> None:
        sys.stdout.write(script(reader(Engine).root_parser, self.shell))


class Commands(Group):
    """Measure what a vision model costs, how fast it runs here, and whether training it is worth it.

    Exit codes: 0 success; 1 a model, a run or a check failed, or Ctrl-C cancelled a run in the foreground; 2 wrong
    request, setting or surroundings, such as a full disk; 130 Ctrl-C ended anything else.

    --version instead of a command prints the version.
    """

    model_config = SettingsConfigDict(
        cli_prog_name="python -m engine",
        enable_decoding=False,  # fields read their own texts, such as `a,b`: no value is JSON
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        cli_enforce_required=True,
        cli_exit_on_error=False,
    )


COMMANDS = subcommands(
    *(Catalog, CatalogBuild, Published, PublishedImport, Profile, Benchmark, SuiteBuild, Recurrent, Device, Calibrate),
    *(Estimate, Train, Evaluate, Search, Submit, Runs, Resume, Store, Health),
    *(Scheduler, Warm, Work, Probe, Answer, Stop, Completion),
)
Engine = create_model("Engine", __base__=Commands, __doc__=Commands.__doc__, **COMMANDS)


def _named(arguments: Sequence[str]) -> type[Commands]:
    """Return a command line with only the command that is named first, because all flags take 0.1 s to set up.

    Without such a command, return all.
    """
    chosen = {name: field for name, field in COMMANDS.items() if name.replace("_", "-") in arguments[:1]}
    return create_model("Engine", __base__=Commands, **chosen) if chosen else Engine


def reader(commands: type[Commands]) -> CliSettingsSource[Any]:
    """Return the source that parses a command line, with its parser."""
    command: Any = commands  # it has no environment, unlike settings
    return CliSettingsSource(command, formatter_class=HelpFormatter, add_argument_method=add_flag)


def _sentence(parser: ArgumentParser, problem: Any) -> str:
    """Return a sentence on one of the problems of a `ValidationError`."""
    text, given = describe_error(problem), repr(problem["input"])
    stated = isinstance(problem["input"], dict) or given in text  # a dict: two flags that exclude each other
    return f"{flag(parser, problem['loc'])}: {text}" + ("" if stated else f" (given: {given})")


def main(arguments: Sequence[str]) -> int:
    """Run one command, write all of its output, and return its exit code."""
    try:
        try:
            return _run(arguments)
        finally:  # also after the help, which ends with SystemExit
            sys.stdout.flush()
    except OSError as error:
        note(f"error: {printable(str(error))}")
        return 2


def _run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. Errors: OSError."""
    if list(arguments) == ["--version"]:
        sys.stdout.write(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] + "\n")
        return 0
    source = reader(commands := _named(arguments))
    parser = source.root_parser
    try:
        CliApp.run(commands, list(arguments) or ["--help"], cli_settings_source=source)
    except ValidationError as error:
        problems = [problem for problem in error.errors() if problem["type"] != "default_factory_not_called"]
        # both sides of an image have the same problem
        for line in dict.fromkeys(_sentence(parser, problem) for problem in problems):
            note(f"error: {with_flags(parser, arguments, line)}")
        return 2
    except (SettingsError, Refused, LookupError) as error:
        message = MISTYPED.sub(r"there is no command \1; --help lists them", str(error))
        message = MISSING.sub("a command is missing", message)
        message = with_flags(parser, arguments, message.removeprefix("error parsing CLI: "))
        extra = SECOND_VALUE.match(message)
        if extra and re.search(rf"--\S+ [^-]\S* {re.escape(extra[1])}", " ".join(arguments)):
            message += " (separate several values of one flag with commas: --models RN50,ViT-B-32; quote the braces of "
            message += "shards: --data '{00..07}.tar')"
        note("\n".join(printable(line) for line in f"error: {message}".splitlines()))
        if isinstance(error, SettingsError) and (near := closest(parser, arguments)):
            note(f"closest: {', '.join(near)}")
        return 2
    except EndedBadly as outcome:
        note(str(outcome))
        return 1
    except KeyboardInterrupt:
        note("interrupted")
        return 130  # 128 + SIGINT, as in shells
    return 0


if __name__ == "__main__":
    process.keep_output_open()
    process.leave(main(sys.argv[1:]))
