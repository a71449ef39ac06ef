"""The console script: parse the command line, run one command, print its result.

Exit codes: 0 if all is well, 1 if a check failed or an error was raised, 2 if the command line is
invalid, 130 if interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterable, Sequence

from ..core.errors import BatchError, CoordinateError, MeshkitError, SpecError, UnknownAxisError
from ..core.version import VERSION
from .command import Command, Result, to_ascii
from .options.command_line import OPTIONS, CommandLine, command_line
from .terminal import get_line_characters, open_stream, write_stream

# One file each. It is imported when its command is typed, and for the help of all commands.
COMMANDS = (
    "plan",
    "explain",
    "diff",
    "search",
    "move",
    "check",
    "bench",
    "doctor",
    "hello",
    "store",
)

FAILED, INVALID, INTERRUPTED = 1, 2, 130
INVALID_REQUESTS = SpecError, UnknownAxisError, CoordinateError, BatchError

DESCRIPTION = "Lay out a distributed PyTorch job: inspect it before it runs, then check it."


def load_command(name: str) -> Command:
    """Import the command of a name: the constant of that name, in the file of that name."""
    module = importlib.import_module(f".commands.{name}", __package__)
    command: Command = getattr(module, name.upper())
    return command


def create_parser(names: Iterable[str]) -> argparse.ArgumentParser:
    """Create the parser of the command line, with a sub-parser for each of the named commands."""
    parser = argparse.ArgumentParser(prog="meshkit", description=DESCRIPTION, allow_abbrev=False)
    _disable_color(parser)
    parser.add_argument("--version", action="version", version=f"meshkit {VERSION}")
    subparsers = parser.add_subparsers(required=True, metavar="command", title="commands")
    for command in map(load_command, names):
        subparser = subparsers.add_parser(
            command.name, help=command.help, description=_sentence(command.help), allow_abbrev=False
        )
        _disable_color(subparser)
        subparser.add_argument("--json", action="store_true", help="print one JSON object instead")
        command.add_options(subparser)
        defaults = {name: subparser.get_default(name) for name in OPTIONS}
        subparser.set_defaults(command=command, defaults=defaults)
    return parser


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _disable_color(parser: argparse.ArgumentParser) -> None:
    """Disable the colors that Python 3.14 adds to help."""
    vars(parser)["color"] = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command."""
    is_open = open_stream("stdout")
    open_stream("stderr")
    args = _parse(sys.argv[1:] if arguments is None else arguments, is_open=is_open)
    if not is_open and vars(args).get("n"):  # nobody would see the result of these ranks
        return FAILED
    try:
        result: Result = args.command.run(args)
    except (MeshkitError, ImportError) as error:  # ImportError: torch is missing
        write_stream(f"{to_ascii(str(_quote(error, args)))}\n", "stderr")
        return INVALID if isinstance(error, INVALID_REQUESTS) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    text = result.text and f"{to_ascii(result.text, get_line_characters())}\n"
    is_written = write_stream(text, "stdout") and (is_open or not text)
    code = FAILED if not result.ok else INTERRUPTED if result.interrupted else 0
    return code if is_written else FAILED


def _quote(error: MeshkitError | ImportError, args: argparse.Namespace) -> MeshkitError:
    """Return the error with the command line as its call, in place of a Python call."""
    if not isinstance(error, MeshkitError):
        error = MeshkitError(str(error))
    return error if isinstance(error.call, CommandLine) else error.quote(command_line(args))


def _parse(arguments: Sequence[str], *, is_open: bool) -> argparse.Namespace:
    """Parse the command line."""
    first = arguments[0] if arguments else None
    try:
        return create_parser([first] if first in COMMANDS else COMMANDS).parse_args(arguments)
    except SystemExit as exit:
        is_written = write_stream("", "stdout") and is_open
        write_stream("", "stderr")
        raise SystemExit(exit.code or (0 if is_written else FAILED)) from None
