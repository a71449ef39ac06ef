"""The console script: parse, run one command, print its answer.

Exit codes: 0 all is well, 1 a check failed or meshkit refused, 2 the command line was wrong, 130
interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterable, Sequence

from ..core.errors import BatchError, CoordinateError, MeshkitError, SpecError, UnknownAxisError
from ..core.version import VERSION
from . import terminal
from .command import Command, Result, to_ascii
from .options.command_line import OPTIONS, command_line
from .terminal import open_stream, write_stream

# A file each, read when it is typed, or for the help of all.
COMMANDS = ("plan", "explain", "diff", "search", "check", "bench", "doctor", "hello")

FAILED, MISUSE, INTERRUPTED = 1, 2, 130
MISUSED = SpecError, UnknownAxisError, CoordinateError, BatchError  # what was typed cannot be


def command_of(name: str) -> Command:
    """The command of a name: the constant of that name in the file of that name."""
    found: Command = getattr(
        importlib.import_module(f".commands.{name}", __package__), name.upper()
    )
    return found


def parser(names: Iterable[str]) -> argparse.ArgumentParser:
    """The parser of the command line, with a sub-parser for each of some commands."""
    text = "Lay out a distributed PyTorch job: see it before it runs, then check it."
    top = _plain(argparse.ArgumentParser(prog="meshkit", description=text, allow_abbrev=False))
    top.add_argument("--version", action="version", version=f"meshkit {VERSION}")
    commands = top.add_subparsers(required=True, metavar="command", title="commands")
    for command in map(command_of, names):
        text = command.help
        one = commands.add_parser(command.name, help=text, description=text, allow_abbrev=False)
        _plain(one)
        one.add_argument("--json", action="store_true", help="print one JSON object instead")
        command.add(one)
        usual = {name: one.get_default(name) for name in OPTIONS}
        one.set_defaults(command=command, usual=usual)
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
    heard = open_stream("stdout")
    open_stream("stderr")
    asked = _parsed(sys.argv[1:] if arguments is None else arguments, heard=heard)
    if not heard and vars(asked).get("n"):  # ranks would be started for nobody
        return FAILED
    try:
        answer: Result = asked.command.run(asked)
    except (MeshkitError, ImportError) as error:  # ImportError: torch, where there is none
        if isinstance(error, MeshkitError):
            error.quote(vars(asked).get("line") or command_line(asked))
        write_stream(f"{to_ascii(str(error))}\n", "stderr")
        return MISUSE if isinstance(error, MISUSED) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    text = answer.text and f"{to_ascii(answer.text, terminal.lines())}\n"
    told = write_stream(text, "stdout") and (heard or not text)
    code = FAILED if not answer.ok else INTERRUPTED if answer.interrupted else 0
    return code if told else FAILED


def _parsed(arguments: Sequence[str], *, heard: bool) -> argparse.Namespace:
    """What was typed, in options.

    Raises:
        SystemExit: as :func:`main`; with 1 where a help that was asked for cannot be written.
    """
    first = arguments[0] if arguments else None
    try:
        return parser([first] if first in COMMANDS else COMMANDS).parse_args(arguments)
    except SystemExit as left:
        told = write_stream("", "stdout") and heard
        write_stream("", "stderr")
        raise SystemExit(left.code or (0 if told else FAILED)) from None
