"""The command `completion`: print a script that lets a shell complete commands and flags."""

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, Literal, get_args

from pydantic import AliasChoices, BaseModel, Field
from pydantic.fields import FieldInfo
from pydantic_settings import CliPositionalArg

from engine.cli.output import INTERNAL
from engine.results import kinds
from engine.specs.recurrent import BOUNDS

SCRIPT = """\
_model_vitals() {{
    local chain="" words="" i
    [ "${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}" = "-m engine" ] || return 0
    for ((i = 3; i < COMP_CWORD; i++)); do
        case "$chain ${{COMP_WORDS[i]}}" in
            {chains}) chain="$chain ${{COMP_WORDS[i]}}" ;;
        esac
    done
    case "$chain" in
{words}
    esac
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _model_vitals python python3
"""
SETUP = {"bash": "", "zsh": "autoload -U +X bashcompinit && bashcompinit\n"}
"""Lines before the script that a shell needs to understand bash's completions."""


class Completion(BaseModel):
    """Print a script that completes commands and flags: source <(python -m engine completion bash)"""

    shell: CliPositionalArg[Literal["bash", "zsh"]] = Field(description="The shell: bash or zsh.")

    def cli_cmd(self) -> None:
        from engine.__main__ import Engine

        words = {
            chain: [name for name in names if name not in INTERNAL]
            for chain, names in _words(Engine)
            if chain.strip() not in INTERNAL
        }
        cases = [f'        "{chain}") words="{" ".join(names)}" ;;' for chain, names in words.items()]
        chains = "|".join(f'"{chain}"' for chain in words if chain)
        print(SETUP[self.shell] + SCRIPT.format(chains=chains, words="\n".join(cases)), end="")


def subcommand(field: FieldInfo) -> type[BaseModel] | None:
    """Return the subcommand that a field defines; None for a flag or an argument."""
    if not any(getattr(mark, "__name__", "") == "_CliSubCommand" for mark in field.metadata):
        return None
    command: type[BaseModel] = get_args(field.annotation)[0]
    return command


def flag(model: type[BaseModel], path: tuple[Any, ...]) -> str:
    """Return the text that a user types for a field: `--lr` for ("submit", "train", "lr"), `RUN-ID` for an argument.

    For a subcommand, return its name. path: field names, as in pydantic's errors.
    """
    typed = "request"
    for name in path:
        field = next((field for key, field in model.model_fields.items() if name in _names(key, field)), None)
        if field is None:
            break
        typed = str(name).replace("_", "-")
        if (command := subcommand(field)) is None:
            positional = any(getattr(mark, "__name__", "") == "_CliPositionalArg" for mark in field.metadata)
            return typed.upper() if positional else f"--{typed}"
        model = command
    return typed


def closest(model: type[BaseModel], arguments: Sequence[str]) -> list[str]:
    """Return up to three words similar to the first argument that is no flag of its command, or no command."""
    known, chain = dict(_words(model)), ""
    for argument in arguments:
        words = known[chain]
        if f"{chain} {argument}" in known:
            chain = f"{chain} {argument}"
        elif argument.startswith("--") and (typed := argument.partition("=")[0]) not in words:
            return get_close_matches(typed, words)
        elif any(f"{chain} {word}" in known for word in words):
            return get_close_matches(argument, words)
    return []


def with_flags(model: type[BaseModel], arguments: Sequence[str], message: str) -> str:
    """Return a message about a request in which its fields are named as they are typed: `--lr-image` for lr_image.

    A field of one word, such as `data`, is named so only in a list before the first colon: it may be a plain word.
    """
    known, chain = dict(_words(model)), ""
    for argument in arguments:
        chain = f"{chain} {argument}" if f"{chain} {argument}" in known else chain
    if chain.rpartition(" ")[2] not in kinds():
        return message
    flags = {word.removeprefix("--").replace("-", "_"): word for word in known[chain]}
    if names := "|".join(name for name in flags if "_" in name and name not in BOUNDS):
        message = re.sub(rf"(?<![\w'\"/.-])({names})(?![\w'\"/.-])", lambda match: flags[match[1]], message)
    begin, colon, rest = message.partition(": ")
    return ", ".join(flags.get(word, word) for word in begin.split(", ")) + colon + rest


def _names(key: str, field: FieldInfo) -> list[str]:
    """Return the name of a field on the command line, and its aliases."""
    if isinstance(field.validation_alias, AliasChoices):
        return [str(choice) for choice in field.validation_alias.choices]
    return [field.alias or key]


def _words(model: type[BaseModel], chain: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield the words that may follow a chain of commands, for this command and those below it."""
    commands, flags = {}, ["--help"]
    for key, field in model.model_fields.items():
        names = [name.replace("_", "-") for name in _names(key, field)]
        name = names[0]
        if (command := subcommand(field)) is not None:
            commands[name] = command
        elif not any(getattr(mark, "__name__", "") in ("_CliPositionalArg", "_CliSuppress") for mark in field.metadata):
            flags += [
                *(f"--{name}" for name in names),
                *([f"--no-{name}"] if field.annotation is bool and field.default else []),
            ]
    yield chain, [*commands, *flags]
    for name, command in commands.items():
        yield from _words(command, f"{chain} {name}")
