"""A command of the console script, its result, and the characters that may be printed."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

NOT_ASCII = re.compile(r"[^\x00-\x7f]")


class Draw(Protocol):
    """A function that returns a text of a width."""

    def __call__(self, *, width: int, ascii: bool) -> str:
        """Return the text."""


@dataclass(frozen=True)
class Result:
    """The outcome of a command, which ``main`` prints as text, or as JSON with ``--json``."""

    as_dict: Callable[[], Mapping[str, object]] | None = None  # None: nothing is printed
    draw: Draw | None = None
    ok: bool = True  # whether every check passed; the exit code is 0, or 1 if not
    interrupted: bool = False  # by Ctrl-C; the exit code is then 130


@dataclass(frozen=True)
class Command:
    """A command of the console script."""

    name: str  # word after ``meshkit``
    help: str  # one line of help
    add_options: Callable[[ArgumentParser], None]  # adds the options of the command to a parser
    run: Callable[[Namespace], Result]  # returns the result for the parsed options
    examples: tuple[str, str]  # two command lines, without ``meshkit NAME``


def to_ascii(text: str, also: str = "") -> str:
    """Return a text with all characters escaped that a terminal might not show."""
    return NOT_ASCII.sub(lambda match: match[0] if match[0] in also else _escape(match[0]), text)


def _escape(character: str) -> str:
    return character.encode("ascii", "backslashreplace").decode()
