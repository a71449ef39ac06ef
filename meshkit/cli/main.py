"""A command of the console script, its result, and the characters that may be printed.

The abilities of the terminal: its columns, its characters, its streams.

The parser of one command: words in any order, errors as all others.

A misspelt option, a missing word and an invalid value raise a SpecError with a line to type.

The console script: parse the command line, run one command, print its result.

Exit codes: 0 if all is well, 1 if a check failed or an error was raised, 2 if the command line is
invalid, 130 if interrupted.
"""

from __future__ import annotations

import difflib
import importlib
import json
import os
import re
import shlex
import shutil
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn, Protocol

from ..core import VERSION
from ..core.axes import ARGUMENTS, STANDARD
from ..core.errors import BatchError, CoordinateError, MeshkitError, SpecError, UnknownAxisError
from ..core.text import format_items
from ..launch.progress import shows_colors

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


LINES = "┌─┐│└┘"  # all characters of pictures that are not ASCII
BOLD, RESET = "\x1b[1m", "\x1b[0m"
FIX = re.compile(r"^(  Fix:)", re.MULTILINE)


def get_width() -> int:
    """Return the columns of the terminal, or of ``COLUMNS`` if set; 80 if unknown."""
    return shutil.get_terminal_size((80, 24)).columns


def get_line_characters() -> str:
    """Return the line-drawing characters that stdout can encode: all of them, or none."""
    try:
        LINES.encode(sys.stdout.encoding or "ascii")
    except (UnicodeError, LookupError):
        return ""
    return LINES


def paint(text: str, name: str) -> str:
    """Return a text with ``Fix:`` in bold, if the stream shows colors."""
    return FIX.sub(rf"{BOLD}\1{RESET}", text) if shows_colors(getattr(sys, name)) else text


def write_stream(text: str, name: str) -> bool:
    """Write to a stream and flush it. Return False, and close the stream, if that fails."""
    stream = getattr(sys, name)
    if stream is None:  # closed when this process began
        return False
    try:
        stream.write(text)
        stream.flush()
    except OSError:  # a closed pipe or a full disk; Python would report it again at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return False
    return True


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


# Command to the file that has it. A file is imported when its command is typed, and for the list
# of all commands.
MODULES = {
    **dict.fromkeys(("plan", "explain", "search", "move"), "inspect"),
    **{"check": "ranks", "bench": "bench", "doctor": "doctor", "hello": "ranks", "store": "ranks"},
}
COMMANDS = tuple(MODULES)

FAILED, INVALID, INTERRUPTED = 1, 2, 130
INVALID_REQUESTS = SpecError, UnknownAxisError, CoordinateError, BatchError
HELP, VERSIONS = ("-h", "--help"), ("-V", "--version")

DESCRIPTION = "Lay out a distributed PyTorch job: inspect it before it runs, then check it."
EXAMPLES = "meshkit help plan", "meshkit plan dp=4 sp=2 --nodes 2"


def load_command(name: str) -> Command:
    """Import the command of a name: the constant of that name."""
    module = importlib.import_module(f".{MODULES[name]}", __package__)
    command: Command = getattr(module, name.upper())
    return command


def parse_command(name: str, words: Sequence[str]) -> Namespace:
    """Return the options of a command."""
    return CommandParser(load_command(name)).parse(words)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        text, result = _run(words)
    except (MeshkitError, ImportError) as error:  # ImportError: torch is missing
        known = error if isinstance(error, MeshkitError) else MeshkitError(str(error))
        return _report(known.quote(quote_line(words)), words)
    except KeyboardInterrupt:
        if _is_first_rank():
            write_stream(f"{' '.join(['meshkit', *words[:1]])}: interrupted.\n", "stderr")
        return INTERRUPTED
    return _print(text, result)


def _run(words: Sequence[str]) -> tuple[str, Result]:
    """Return the text and the result of a command line."""
    name, *rest = words or ["help"]
    if name in VERSIONS:
        return f"meshkit {VERSION}", Result()
    if name in HELP or (name == "help" and not rest):
        return overview(), Result()
    if name == "help":
        name, rest = rest[0], ["--help"]
    if name not in COMMANDS:
        raise _unknown_command(name, rest)
    if not {*HELP}.isdisjoint(rest):
        return CommandParser(load_command(name)).format_help().rstrip(), Result()
    args = parse_command(name, rest)
    result: Result = args.command.run(args)
    return _format(result, as_json=args.json), result


def _format(result: Result, *, as_json: bool) -> str:
    if result.as_dict is None or result.draw is None:
        return ""
    if as_json:
        return json.dumps(result.as_dict())
    return result.draw(width=get_width(), ascii=not get_line_characters())


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
        write_stream(paint(f"{to_ascii(error.text)}\n", "stderr"), "stderr")
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


def _print(text: str, result: Result) -> int:
    """Print the text of a result, and return the exit code."""
    text = text and f"{to_ascii(text, get_line_characters())}\n"
    if text and not write_stream(text, "stdout"):
        return FAILED
    return FAILED if not result.ok else INTERRUPTED if result.interrupted else 0


def _is_first_rank() -> bool:
    """Return whether this process is rank 0, or no rank of a launcher."""
    from ..launch.detect import detect

    with suppress(Exception):  # the launcher's variables may be invalid
        return detect().rank == 0
    return True
