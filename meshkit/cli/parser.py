"""The parser of one command: words in any order, errors as all others.

A misspelt option, a missing word and an invalid value raise a SpecError with a line to type.
"""

from __future__ import annotations

import difflib
import re
import shlex
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from typing import NoReturn

from ..core.aliases import ARGUMENTS
from ..core.errors import SpecError
from ..core.grid.axis_names import STANDARD
from .command import Command

ALIASES = re.compile(r"^argument ([^\s/:]+)[^:]*: ")


class CommandParser(ArgumentParser):
    """The parser of a command."""

    def __init__(self, command: Command) -> None:
        prog, text = f"meshkit {command.name}", f"{command.help[0].upper()}{command.help[1:]}."
        super().__init__(prog=prog, description=text, allow_abbrev=False)
        vars(self)["color"] = False  # Python 3.14 adds colors of its own
        self.examples = [f"{prog} {example}".rstrip() for example in command.examples]
        self.add_argument("--json", action="store_true", help="print one JSON object instead")
        command.add_options(self)
        self.set_defaults(command=command)

    def format_help(self) -> str:
        """Return the options, and two examples at the end."""
        return "\n".join([super().format_help(), "examples:", *map("  {}".format, self.examples)])

    def error(self, message: str) -> NoReturn:
        """Raise an error of argparse as one of meshkit."""
        text = ALIASES.sub(r"\1: ", message)  # an option without its other names
        option = text.partition(":")[0]
        example = next((e for e in self.examples if option in e), self.examples[0])
        raise SpecError(f"{text}.", fix=f"for example {example}")

    def parse(self, words: Sequence[str]) -> Namespace:
        """Return the options of a command; options and other words may stand in any order."""
        typed = [*words]
        args, unknown = self.parse_known_intermixed_args(typed)
        if unknown:
            raise self._unknown(unknown[0], typed)
        return args

    def _unknown(self, word: str, typed: list[str]) -> SpecError:
        """Return the error for a word that the command does not have."""
        flag, equals, value = word.partition("=")
        if not flag.startswith("-"):
            fix = f"{self.prog}{_join(other for other in typed if other != word)}"
            return SpecError(
                f"{word!r} is no option, and {self.prog} takes no other words.", fix=fix
            )
        if flag[2:] in STANDARD:
            size = f"{flag[2:]}={value or 'N'}"
            return SpecError(f"there is no option {flag}.", fix=f"{size}, without hyphens.")
        flags = [*self._flags()]
        alias = ARGUMENTS.get(flag[2:].replace("-", "_"), "").replace("_", "-")
        known = [f"--{alias}"] if f"--{alias}" in flags else []
        close = known or difflib.get_close_matches(flag, flags, n=1)
        fix = f"meshkit help {self.prog.split()[-1]} lists the options."
        if close:
            correct = close[0] + equals + value
            fix = f"{self.prog}{_join(correct if other == word else other for other in typed)}"
        return SpecError(f"there is no option {flag}.", fix=fix)

    def _flags(self) -> Iterator[str]:
        """Yield the options that the help lists."""
        for action in self._actions:
            if action.help != SUPPRESS:
                yield from action.option_strings


def _join(words: Iterator[str]) -> str:
    return "".join(f" {shlex.quote(word)}" for word in words)
