"""The console script: parse the command line, run one command, print its result.

Exit codes: 0 if all is well, 1 if a check failed or an error was raised, 2 if the command line is
invalid, 130 if interrupted.
"""

from __future__ import annotations

import difflib
import importlib
import json
import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress

from ..core.draw.table import format_items
from ..core.errors import (
    BatchError,
    CoordinateError,
    MeshkitError,
    SpecError,
    UnknownAxisError,
)
from ..core.version import VERSION
from ..launch.output.console import completes_words
from .command import Command, Result, to_ascii
from .parser import CommandParser
from .terminal import get_line_characters, get_width, open_stream, paint, write_stream

# One file each. It is imported when its command is typed, and for the list of all commands.
COMMANDS = (
    *("plan", "explain", "diff", "search", "move", "check", "bench", "doctor", "hello", "store"),
    "completion",
)

FAILED, INVALID, INTERRUPTED = 1, 2, 130
INVALID_REQUESTS = SpecError, UnknownAxisError, CoordinateError, BatchError
HELP, VERSIONS = ("-h", "--help"), ("-V", "--version")

DESCRIPTION = "Lay out a distributed PyTorch job: inspect it before it runs, then check it."
EXAMPLES = "meshkit help plan", "meshkit plan dp=4 sp=2 --nodes 2"


def load_command(name: str) -> Command:
    """Import the command of a name: the constant of that name, in the file of that name."""
    module = importlib.import_module(f".commands.{name}", __package__)
    command: Command = getattr(module, name.upper())
    return command


def parse_command(name: str, words: Sequence[str]) -> Namespace:
    """Return the options of a command."""
    return CommandParser(load_command(name)).parse(words)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command."""
    is_open = open_stream("stdout")
    open_stream("stderr")
    words = list(sys.argv[1:] if arguments is None else arguments)
    if completes_words():
        from .complete import complete_words

        complete_words(load_command(name) for name in COMMANDS)
    try:
        result = _run(words, is_open=is_open)
    except (MeshkitError, ImportError) as error:  # ImportError: torch is missing
        known = error if isinstance(error, MeshkitError) else MeshkitError(str(error))
        return _report(known.quote(quote_line(words)), words)
    except KeyboardInterrupt:
        if _is_first_rank():
            write_stream(f"{' '.join(['meshkit', *words[:1]])}: interrupted.\n", "stderr")
        return INTERRUPTED
    return _print(result, is_open=is_open)


def _run(words: Sequence[str], *, is_open: bool) -> Result:
    """Return the result of a command line."""
    name, *rest = words or ["help"]
    if name in VERSIONS:
        return Result(f"meshkit {VERSION}")
    if name in HELP or (name == "help" and not rest):
        return Result(overview())
    if name == "help":
        name, rest = rest[0], ["--help"]
    if name not in COMMANDS:
        raise _unknown_command(name, rest)
    if not {*HELP}.isdisjoint(rest):
        return Result(CommandParser(load_command(name)).format_help().rstrip())
    args = parse_command(name, rest)
    if not is_open and vars(args).get("n"):  # nobody would see the result of these ranks
        return Result("", ok=False)
    result: Result = args.command.run(args)
    return result


def overview() -> str:
    """Return the list of commands, each in a line."""
    commands = [load_command(name) for name in COMMANDS]
    rows = [(f"  {command.name}", command.help) for command in commands]
    rows.append(("  help", "show the options and two examples of a command"))
    usage = "usage: meshkit COMMAND [WORD ...]"
    lines = [format_items([("", DESCRIPTION)], width=get_width()).strip(), "", usage, ""]
    lines += ["commands:", format_items(rows, width=get_width()), "", "examples:"]
    return "\n".join([*lines, *map("  {}".format, EXAMPLES)])


def _unknown_command(name: str, rest: Sequence[str]) -> SpecError:
    """Return the error for a first word that is no command, with the likely line."""
    command = next((word for word in rest if word in COMMANDS), "")
    if close := difflib.get_close_matches(name, COMMANDS, n=1):
        line = ["meshkit", close[0], *rest]
    elif name.startswith("-") and command:
        line = ["meshkit", command, *(word for word in rest if word != command), name]
    elif "=" in name:
        line = ["meshkit", "plan", name, *rest]
    else:
        fix = "meshkit help lists the commands."
        return SpecError(f"there is no command {name!r}.", fix=fix)
    evidence = f"The commands are {', '.join(COMMANDS)}."
    return SpecError(f"there is no command {name!r}.", evidence, fix=shlex.join(line))


def quote_line(words: Sequence[str]) -> str:
    """Return a command line as typed, with control characters escaped.

    Example:
        >>> print(quote_line(["plan", "dp=4 sp=2"]))
        meshkit plan 'dp=4 sp=2'
    """
    line = shlex.join(["meshkit", *words])
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


def _report(error: MeshkitError, words: Sequence[str]) -> int:
    """Print an error, as JSON on stdout if requested, and return the exit code."""
    if "--json" in words:
        write_stream(f"{json.dumps({'ok': False, 'error': error_dict(error)})}\n", "stdout")
    else:
        write_stream(paint(f"{to_ascii(error.text)}\n", (), "stderr"), "stderr")
    return INVALID if isinstance(error, INVALID_REQUESTS) else FAILED


def error_dict(error: MeshkitError) -> dict[str, object]:
    """Return an error in JSON types."""
    call = str(error.call)
    return {
        "type": type(error).__name__,
        "call": call,
        "summary": error.headline.removeprefix(f"{call}: "),
        "evidence": list(error.evidence),
        "fix": error.fix_text,
        "text": error.text,
    }


def _print(result: Result, *, is_open: bool) -> int:
    """Print a result, and return the exit code."""
    text = result.text and f"{to_ascii(result.text, get_line_characters())}\n"
    is_written = write_stream(paint(text, result.axes, "stdout"), "stdout")
    code = FAILED if not result.ok else INTERRUPTED if result.interrupted else 0
    return code if is_written and (is_open or not text) else FAILED


def _is_first_rank() -> bool:
    """Return whether this process is rank 0, or no rank of a launcher."""
    from ..launch.launchers.detect import detect

    with suppress(Exception):  # the launcher's variables may be invalid
        return detect().rank == 0
    return True
