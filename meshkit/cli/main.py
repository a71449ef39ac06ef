"""The console script: parse, run one command, print its answer.

Exit codes: 0 all is well, 1 a check failed or meshkit refused, 2 the command line was wrong, 130
interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from ..core.errors import BatchError, CoordinateError, MeshkitError, SpecError, UnknownAxisError
from ..core.version import VERSION
from . import Answer, Command, plain, terminal
from .check import CHECK
from .diff import DIFF
from .doctor import DOCTOR
from .explain import EXPLAIN
from .hello import HELLO
from .plan import PLAN
from .search import SEARCH

COMMANDS: tuple[Command, ...] = (PLAN, EXPLAIN, DIFF, SEARCH, CHECK, DOCTOR, HELLO)

FAILED, MISUSE, INTERRUPTED = 1, 2, 130
MISUSED = SpecError, UnknownAxisError, CoordinateError, BatchError  # what was typed cannot be


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line, with one sub-parser a command."""
    text = "Lay out a distributed PyTorch job: see it before it runs, then check it."
    top = _plain(argparse.ArgumentParser(prog="meshkit", description=text, allow_abbrev=False))
    top.add_argument("--version", action="version", version=f"meshkit {VERSION}")
    commands = top.add_subparsers(required=True, metavar="command", title="commands")
    for command in COMMANDS:
        text = command.help
        one = commands.add_parser(command.name, help=text, description=text, allow_abbrev=False)
        _plain(one)
        one.add_argument("--json", action="store_true", help="print one JSON object instead")
        command.add(one)
        one.set_defaults(command=command)
    return top


def _plain(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The parser without the colours that Python 3.14 gives it."""
    vars(parser)["color"] = False
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: what was typed after ``meshkit``; None means ``sys.argv[1:]``.

    Returns:
        The exit code.

    Raises:
        SystemExit: with 2 where the command line is wrong, with 0 for ``--help`` and ``--version``.
    """
    asked = parser().parse_args(arguments)
    try:
        answer: Answer = asked.command.run(asked)
    except (MeshkitError, ImportError) as error:  # ImportError: torch, where there is none
        print(plain(_named(f"meshkit {asked.command.name}", str(error))), file=sys.stderr)
        return MISUSE if isinstance(error, MISUSED) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return (0 if answer.ok else FAILED) if _printed(answer.text) else FAILED


def _named(command: str, error: str) -> str:
    """The error behind the command, unless it begins by quoting that."""
    return error if error.startswith(f"{command} ") else f"{command}: {error}"


def _printed(text: str) -> bool:
    """Print an answer; False where nobody reads it, or it cannot be written."""
    try:
        if text:
            print(plain(text, terminal.lines()), flush=True)
        return True
    except OSError:  # a closed pipe, a full disk; Python would complain once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
