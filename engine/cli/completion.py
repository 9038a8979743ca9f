"""Commands and flags as they are typed: in messages about them, and in a script with which a shell completes them."""

import re
from argparse import SUPPRESS, Action, ArgumentParser, _SubParsersAction
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from engine.cli.output import INTERNAL
from engine.results import kinds
from engine.specs.fields.variant import MODIFIERS
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


def script(parser: ArgumentParser, shell: str) -> str:
    """Return a script that lets a shell complete commands and flags. parser: that of the command line."""
    words = {chain: names for chain, names in _words(parser).items() if chain.strip() not in INTERNAL}
    words[""] = [name for name in words[""] if name not in INTERNAL]
    cases = [f'        "{chain}") words="{" ".join(names)}" ;;' for chain, names in words.items()]
    chains = "|".join(f'"{chain}"' for chain in words if chain)
    return SETUP[shell] + SCRIPT.format(chains=chains, words="\n".join(cases))


def flag(parser: ArgumentParser, path: tuple[Any, ...]) -> str:
    """Return the text that a user types for a field: `--lr` for ("submit", "train", "lr"), `RUN-ID` for an argument.

    For a subcommand, or a field that is not typed, return its name. parser: that of the command line. path: field
    names, as in pydantic's errors.
    """
    fields = {action.dest: action for _, command in _parsers(parser) for action in _typed(command)}
    names = ["request", *map(str, path)]
    for end in range(len(names), 1, -1):
        if field := fields.get(".".join(names[1:end])):
            return field.option_strings[0] if field.option_strings else str(field.metavar)
    return names[-1].replace("_", "-")


def closest(parser: ArgumentParser, arguments: Sequence[str]) -> list[str]:
    """Return up to three words similar to the first argument that is no flag of its command, or no command."""
    known, chain = _words(parser), ""
    for argument in arguments:
        words = known[chain]
        if f"{chain} {argument}" in known:
            chain = f"{chain} {argument}"
        elif argument.startswith("--") and (typed := argument.partition("=")[0]) not in words:
            return get_close_matches(typed, words)
        elif any(f"{chain} {word}" in known for word in words):
            return get_close_matches(argument, words)
    return []


def with_flags(parser: ArgumentParser, arguments: Sequence[str], message: str) -> str:
    """Return a message about a request in which its fields are named as they are typed: `--lr-image` for lr_image.

    A field of one word, such as `data`, is named so only in a list before the first colon: it may be a plain word. One
    that is part of a value too, such as channels_last in a variant, stays as it is.
    """
    known, chain = _words(parser), ""
    for argument in arguments:
        chain = f"{chain} {argument}" if f"{chain} {argument}" in known else chain
    if chain.rpartition(" ")[2] not in kinds():
        return message
    flags = {word.removeprefix("--").replace("-", "_"): word for word in known[chain]}
    if names := "|".join(name for name in flags if "_" in name and name not in (*BOUNDS, *MODIFIERS)):
        message = re.sub(rf"(?<![\w'\"/.-])({names})(?![\w'\"/.-])", lambda match: flags[match[1]], message)
    begin, colon, rest = message.partition(": ")
    return ", ".join(flags.get(word, word) for word in begin.split(", ")) + colon + rest


def _words(parser: ArgumentParser) -> dict[str, list[str]]:
    """Return the words that may follow each chain of commands."""
    words = {
        chain: [word for action in _typed(command) for word in action.option_strings]
        for chain, command in _parsers(parser)
    }
    for chain in filter(None, words):
        above, _, name = chain.rpartition(" ")
        words[above].append(name)
    return words


def _typed(parser: ArgumentParser) -> list[Action]:
    """Return the flags and arguments that a user types: without those that the help does not show."""
    return [action for action in parser._actions if action.help != SUPPRESS]


def _parsers(parser: ArgumentParser, chain: str = "") -> Iterator[tuple[str, ArgumentParser]]:
    """Yield a parser and those of the commands below it, each after its chain of commands."""
    yield chain, parser
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            for name, command in action.choices.items():
                yield from _parsers(command, f"{chain} {name}")
