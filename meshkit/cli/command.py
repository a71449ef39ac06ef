"""How a person looks at it: the console script ``meshkit``, one command a file.

A command computes an :class:`Result`; :mod:`meshkit.cli.command.main` alone prints and exits. Nothing here
imports torch before a command that needs it runs.
"""

from __future__ import annotations

import math
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from dataclasses import dataclass

NOT_ASCII = re.compile(r"[^\x00-\x7f]")


@dataclass(frozen=True)
class Result:
    """What a command has to say.

    Attributes:
        text: what to print on stdout; nothing is printed where it is empty.
        ok: whether every check was passed: exit code 0, else 1.
        interrupted: whether a Ctrl-C cut it short: exit code 130.
    """

    text: str
    ok: bool = True
    interrupted: bool = False


@dataclass(frozen=True)
class Command:
    """A command of the console script.

    Attributes:
        name: what to type.
        help: one line that says what it does.
        add: gives its options to a parser.
        run: answers, given the parsed options.
    """

    name: str
    help: str
    add: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], Result]


def seconds(text: str) -> float:
    """A time as typed on a command line.

    Args:
        text: a number of seconds, a millisecond or more.

    Raises:
        ArgumentTypeError: where it is none.

    Example:
        >>> seconds("2.5")
        2.5
    """
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0.001 <= found <= 1e9:  # nan is neither
        raise ArgumentTypeError(f"{text!r} is not a number of seconds above zero")
    return found


def to_ascii(text: str, also: str = "") -> str:
    r"""Text that any terminal can show: ASCII, the rest escaped.

    Args:
        text: what to show.
        also: other characters that this terminal can show; they stay.

    Example:
        >>> print(to_ascii("h\u00f4te"))
        h\xf4te
    """
    return NOT_ASCII.sub(lambda found: found[0] if found[0] in also else _escaped(found[0]), text)


def _escaped(character: str) -> str:
    return character.encode("ascii", "backslashreplace").decode()
