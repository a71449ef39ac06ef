"""A command of the console script, its result, and the characters that may be printed."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass

NOT_ASCII = re.compile(r"[^\x00-\x7f]")


@dataclass(frozen=True)
class Result:
    """The outcome of a command.

    Attributes:
        text: the text for stdout; an empty text is not printed.
        ok: whether every check passed. The exit code is 0, or 1 if not.
        interrupted: whether a Ctrl-C ended the command early. The exit code is then 130.
    """

    text: str
    ok: bool = True
    interrupted: bool = False


@dataclass(frozen=True)
class Command:
    """A command of the console script.

    Attributes:
        name: the word after ``meshkit``.
        help: one line of help.
        add_options: adds the options of the command to a parser.
        run: returns the result for the parsed options.
    """

    name: str
    help: str
    add_options: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], Result]


def to_ascii(text: str, also: str = "") -> str:
    r"""Return a text with all characters escaped that a terminal might not show.

    Example:
        >>> print(to_ascii("h\u00f4te"))
        h\xf4te
    """
    return NOT_ASCII.sub(lambda match: match[0] if match[0] in also else _escape(match[0]), text)


def _escape(character: str) -> str:
    return character.encode("ascii", "backslashreplace").decode()
