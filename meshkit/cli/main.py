"""The console script: parse the command line, run one command, and print its result.

Exit codes: 0 if all is well, 1 if a check failed or an error was raised, 2 if the command line is
invalid, 130 if interrupted.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import shlex
import shutil
import sys
import textwrap
from argparse import REMAINDER, SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, dropwhile, pairwise, takewhile
from typing import NoReturn

from ..errors import VERSION, BatchError, CoordinateError, MeshkitError, SpecError, UnknownAxisError
from ..launch.detect import detect
from ..launch.log import CLEAR, is_terminal, shows_colors
from ..synonyms import ARGUMENTS, STANDARD, SYNONYMS, closest_name, standard_axis
from ..text import format_table

# Command to the file that has it, imported when the command is typed
MODULES = {
    **dict.fromkeys(("plan", "explain", "search", "move"), "inspect"),
    "eject": "eject",
    **{"check": "ranks", "bench": "bench", "doctor": "doctor", "hello": "ranks", "store": "ranks"},
    "rehearse": "rehearse",
    "preflight": "preflight",
    "status": "status",
}
COMMANDS = tuple(MODULES)
DESCRIPTION = "Lay out a distributed PyTorch job: inspect it before it runs, then check it."
EXAMPLES = "meshkit help plan", "meshkit plan dp=4 sp=2 --nodes 2"

FAILED, INVALID, INTERRUPTED = 1, 2, 130
INVALID_REQUESTS = SpecError, UnknownAxisError, CoordinateError, BatchError

# options of other programs beside those of meshkit.synonyms
OPTIONS = {
    **dict.fromkeys(("ranks", "num_ranks", "nproc", "np", "num_processes"), "world_size"),
    **dict.fromkeys(("gpus", "num_gpus", "ngpus"), "world_size"),
    **dict.fromkeys(("gpu", "gpu_type", "machine", "hardware"), "links"),
}
SHORT = {"-np": "-n", "-N": "--nodes"}  # of mpirun and srun
BY_BACKEND = {"--backend": "--device", "gloo": "cpu", "nccl": "cuda"}
PER_NODE = re.compile("--(n?proc|n?tasks|n?gpus|ranks|devices)[_-]per[_-]node")
# commands, and the words by which others ask for them
OTHER_COMMANDS = {
    "plan": "layout show print draw describe",
    "check": "test verify validate",
    "bench": "benchmark perf",
    "doctor": "info env collect_env",
    "rehearse": "simulate dryrun dry-run",
}
LAUNCHERS = ("torchrun", "srun", "mpirun")
STARTERS = ("run", "launch", "start", "train", *LAUNCHERS)
LINES = "┌─┐│└┘"  # all characters of pictures that are not ASCII
FIX = re.compile(r"^(  Fix:)", re.MULTILINE)


@dataclass(frozen=True)
class Result:
    """The outcome of a command, which ``main`` prints as text, or as JSON with ``--json``."""

    as_dict: Callable[[], Mapping[str, object]] | None = None  # None: nothing is printed
    draw: Callable[..., str] | None = None  # (*, width, ascii) to the text
    ok: bool = True  # whether every check passed; the exit code is 0, or 1 if not


@dataclass(frozen=True)
class Command:
    """A command of the console script."""

    name: str  # word after ``meshkit``
    help: str  # one line of help
    add_options: Callable[[ArgumentParser], None]  # adds the options of the command to a parser
    run: Callable[[Namespace], Result]  # returns the result for the parsed options
    examples: tuple[str, str]  # two command lines, without ``meshkit NAME``
    other_words: str = ""  # for the error of a word that the command does not take
    # returns the words that a line lacks beside its options, for a line that an error proposes
    complete: Callable[[Namespace], list[str]] = lambda _: []


class CommandParser(ArgumentParser):
    """The parser of a command: words in any order, and every misuse as a SpecError."""

    def __init__(self, command: Command) -> None:
        prog, text = f"meshkit {command.name}", f"{command.help[0].upper()}{command.help[1:]}."
        super().__init__(prog=prog, description=text, allow_abbrev=False)
        vars(self)["color"] = False  # Python 3.14 adds colors of its own
        self.other_words = command.other_words
        self.examples = [f"{prog} {example}".rstrip() for example in command.examples]
        self.typed: list[str] = []
        self.add_argument("--json", action="store_true", help="print one JSON object instead")
        command.add_options(self)
        self.set_defaults(command=command)

    def format_help(self) -> str:
        """Return the options, and two examples at the end."""
        return "\n".join([super().format_help(), "examples:", *map("  {}".format, self.examples)])

    def error(self, message: str) -> NoReturn:
        """Raise an error of argparse as one of meshkit, without the other names of an option."""
        text = re.sub(r"^argument ([^\s/:]+)[^:]*: ", r"\1: ", message)
        text = re.sub(r"(--[\w-]+)(?:/-[\w-]+)+", r"\1", text)
        option = text.partition(":")[0]
        words = shlex.split(" ".join(self.examples).replace("\\\n    ", ""))
        values = [value for flag, value in pairwise(words) if flag == option]
        fix = f"meshkit help {self.prog.split()[-1]} shows the options."
        if "required" in text:
            fix = f"for example {self._completed(text.partition('required: ')[2].split(', '))}"
        action = self._option_string_actions.get(option)
        if action is not None and action.nargs == 0:
            fix = f"write {option} alone: it takes no value."
        elif values:
            fix = f"for example {option} {shlex.quote(values[0])}."
        raise SpecError(f"{text}.", fix=fix)

    def _own(self, words: Sequence[str]) -> list[str]:
        """Return the words of the command, without those of a script."""
        if not any(action.nargs == REMAINDER for action in self._actions):
            return [*words]
        return [*takewhile(lambda word: not word.endswith(".py"), words)]

    def _completed(self, missing: Sequence[str]) -> str:
        """Return the line as typed with what it lacks, or the first example if none was typed."""
        example = shlex.split(self.examples[0].replace("\\\n", ""))
        flags, typed, added = self._option_string_actions, [*self.typed], list[str]()
        is_clear = all(w[:1] != "-" or w.partition("=")[0] in flags for w in self._own(typed))
        if not typed or not is_clear or "WORD" in missing:
            return shlex.join(example)
        takes_words = any(not action.option_strings for action in self._actions)
        strays = [w for last, w in pairwise(["", *typed]) if w[:1] != "-" and last not in flags]
        if strays and not takes_words:
            if len(missing) > 1 or len(strays) > 1:
                return shlex.join(example)
            typed[typed.index(strays[0])] = f"{missing[0]}={strays[0]}"
            return shlex.join([*self.prog.split(), *typed])
        count = next((n for flag, n in pairwise(typed) if flag in ("-n", "--world-size")), "4")
        for name in missing:
            words = flags[name].option_strings if name in flags else ()
            at = next((i for i, w in enumerate(typed[:-1]) if self._correct(w) in words), None)
            if name not in flags:
                added.append(f"dp={count}")
            elif at is not None:  # after the script, whose options stand there
                added += [name, typed[at + 1]]
                del typed[at : at + 2]
            elif "-n" in words and typed[0].isdecimal():
                added += [name, typed.pop(0)]
            else:
                added += [name, example[example.index(name) + 1] if name in example else "..."]
        return shlex.join([*self.prog.split(), *added, *typed])

    def parse(self, words: Sequence[str]) -> Namespace:
        """Return the options of a command."""
        takes_rest = any(action.nargs == REMAINDER for action in self._get_positional_actions())
        read = self.parse_known_args if takes_rest else self.parse_known_intermixed_args
        self.typed = [*words]
        try:
            args, unknown = read(words)
        except SpecError:
            own = self._own(words)
            flags = self._option_string_actions
            misspelt = [w for w in own if self._correct(w) != w or axis_option(w)] or [
                w
                for w in own
                if re.match("--?[a-z]", w) and not {w.partition("=")[0], w[:2]} & flags.keys()
            ]
            if not misspelt:
                raise
            raise self._unknown(misspelt[0], words) from None
        if unknown:
            raise self._unknown(unknown[0], words)
        return args

    def _unknown(self, word: str, typed: Iterable[str]) -> SpecError:
        """Return the error for a word that the command does not have."""
        typed = [*typed]
        flag, _, value = word.partition("=")
        line = shlex.join([*self.prog.split(), *(other for other in typed if other != word)])
        takes_words = any(not action.option_strings for action in self._actions)
        axis = axis_option(word)
        if not flag.startswith("-") or flag == "->" or (axis and not takes_words):
            others = "" if takes_words else f", and {self.prog} takes no other words"
            summary = f"{word!r} is no option{others}."
            is_count = word.isdecimal() and "-n" in self._option_string_actions
            if is_count and not {"-n", "--world-size"} & {*typed}:
                counted = (["-n", word] if other == word else [other] for other in typed)
                line = shlex.join([*self.prog.split(), *chain.from_iterable(counted)])
            advice = [self.other_words] if self.other_words else []
            return SpecError(summary, *advice, fix="" if advice else line)
        if axis:
            after = typed[typed.index(word) + 1 :]
            value = value or next((size for size in after[:1] if size.isdecimal()), "N")
            fix = f"{axis}={value}, without hyphens."
            return SpecError(f"there is no option {flag}.", fix=fix)
        if flag == "--rank" and self.prog.split()[-1] in ("plan", "explain"):
            kept = (value if other == word else other for other in typed)
            fix = shlex.join(["meshkit", "explain", *filter(None, kept)])
            return SpecError(f"there is no option {flag}.", fix=fix)
        known = [a.option_strings for a in self._actions if a.help != SUPPRESS and a.dest != "help"]
        names = [next(flag for flag in flags if flag[:2] == "--") for flags in known if flags]
        advice = [f"The options are {', '.join(names)}."]
        fix = self._without(typed, word)
        has_script = any(action.nargs == REMAINDER for action in self._actions)
        own = typed[: typed.index(word) + 1] if has_script else typed  # the rest is of the script
        renamed = BY_BACKEND if flag == "--backend" and "--device" in names else {}
        corrected = [self._correct(renamed.get(w, w)) for w in own] + typed[len(own) :]
        if corrected != typed:
            try:
                args = self.parse(corrected)
                completed = [*corrected, *args.command.complete(args)]
                advice, fix = [], shlex.join([*self.prog.split(), *completed])
            except SpecError as error:  # the line has another mistake, or it is a wrong guess
                guess = self._correct(renamed.get(word, word)).partition("=")[0]
                advice, fix = [f"It may be {guess}; then {error.summary}"], error.fix
        return SpecError(f"there is no option {flag}.", *advice, fix=fix)

    def _without(self, typed: Sequence[str], word: str) -> str:
        """Return the line without an option and its value, or that of its first other mistake."""
        at, fixes = typed.index(word), list[str]()
        flag, equals, number = word.partition("=")
        value = [w for w in typed[at + 1 : at + 2] if not (equals or re.match("-|.*=|.*[.]py$", w))]
        is_per_node = bool(PER_NODE.fullmatch(flag))
        nodes = self._count_nodes(typed, number or "".join(value)) if is_per_node else []
        for end in dict.fromkeys((at + 1 + len(value), at + 1 + len(value) * is_per_node)):
            try:
                self.parse([*typed[:at], *typed[end:]])
            except SpecError as error:  # the line has another mistake, or the word is no value
                fixes.append(error.fix)
            else:
                return shlex.join([*self.prog.split(), *nodes, *typed[:at], *typed[end:]])
        return fixes[0]

    def _count_nodes(self, typed: Sequence[str], per_node: str) -> list[str]:
        """Return ``--nodes`` with the number of nodes, if the sizes and ranks of a node say it."""
        sizes = re.findall(r"(?:^|[\s,])([a-z]\w*)=(-?[0-9]{1,9})", " ".join(typed))
        ranks = math.prod(int(size) for _, size in sizes)
        is_known = len({axis for axis, _ in sizes}) == len(sizes) > 0 < ranks
        flags = {"--nodes", "-n", "--world-size"} & {*typed}
        if flags or not is_known or not re.fullmatch("[1-9][0-9]{0,8}", per_node):
            return []
        nodes, rest = divmod(ranks, int(per_node))
        return ["--nodes", str(nodes)] * (rest == 0 and "--nodes" in self._option_string_actions)

    def _correct(self, word: str) -> str:
        """Return a word with the option that is likely meant."""
        flag, equals, value = word.partition("=")
        flags = [f for a in self._actions if a.help != SUPPRESS for f in a.option_strings]
        for short, own in SHORT.items():
            if word.startswith(short) and own in flags:
                count = word.removeprefix(short).lstrip("=")
                return f"{own}={count}" if count else own
        is_per_node = PER_NODE.fullmatch(flag) and "--nodes" in flags
        if not flag.startswith("--") or flag in flags or is_per_node:
            return word
        name = flag[2:].replace("-", "_")
        alias = "--" + (ARGUMENTS.get(name) or OPTIONS.get(name, "")).replace("_", "-")
        close = alias if alias in flags else closest_name(flag, flags, 0.8)
        return (close or flag) + equals + value


def axis_option(word: str) -> str:
    """Return the axis of an option such as ``--tp`` or ``--tensor-parallel-size``, or ""."""
    flag = word.partition("=")[0]
    name = flag.lstrip("-").replace("-", "_")
    is_axis = flag.startswith("-") and (name in STANDARD or name not in SYNONYMS)
    return (standard_axis(name) or "") if is_axis else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line, print its outcome, and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        text, result = _run(words)
    except (MeshkitError, ImportError) as error:  # ImportError: torch is missing
        known = error if isinstance(error, MeshkitError) else MeshkitError(str(error))
        return _report(known.quote(quote_line(words)), words)
    except KeyboardInterrupt:
        with suppress(Exception):  # the launcher's variables may be invalid
            if detect().rank:
                return INTERRUPTED
        clear = CLEAR * is_terminal(sys.stderr)  # the line of progress
        _write(f"{clear}{' '.join(['meshkit', *words[:1]])}: interrupted.\n", "stderr")
        return INTERRUPTED
    if text and not _write(f"{to_ascii(text, get_line_characters())}\n", "stdout"):
        return FAILED
    return 0 if result.ok else FAILED


def _run(words: Sequence[str]) -> tuple[str, Result]:
    """Return the text and the result of a command line."""
    name, *rest = words or ["help"]
    if name in ("-V", "--version"):
        return f"meshkit {VERSION}", Result()
    if name in ("-h", "--help") or (name == "help" and not rest):
        return overview(), Result()
    if name == "help":
        name, rest = rest[0], ["--help"]
    if name not in COMMANDS:
        raise _unknown_command(name, rest)
    parser = CommandParser(load_command(name))
    if rest == ["help"] or not {"-h", "--help"}.isdisjoint(rest):
        return parser.format_help().rstrip(), Result()
    args = parser.parse(rest)
    result: Result = args.command.run(args)
    if result.as_dict is None or result.draw is None:
        return "", result
    if args.json:
        return json.dumps(result.as_dict()), result
    return result.draw(width=get_width(), ascii=not get_line_characters()), result


def load_command(name: str) -> Command:
    """Import the command of a name: the constant of that name."""
    module = importlib.import_module(f".{MODULES[name]}", __package__)
    command: Command = getattr(module, name.upper())
    return command


def overview() -> str:
    """Return the list of commands, each in a line."""
    commands = [load_command(name) for name in COMMANDS]
    rows = [(f"  {command.name}", command.help) for command in commands]
    rows.append(("  help", "show the options and two examples of a command"))
    usage = "usage: meshkit COMMAND [WORD ...]"
    lines = [*textwrap.wrap(DESCRIPTION, get_width()), "", usage, ""]
    lines += ["commands:", format_table(rows, width=get_width()), "", "examples:"]
    return "\n".join([*lines, *map("  {}".format, EXAMPLES)])


def _unknown_command(name: str, rest: Sequence[str]) -> SpecError:
    """Return the error for a first word that is no command, with the likely line."""
    command = next((word for word in rest if word in COMMANDS), "")
    other = next((own for own, names in OTHER_COMMANDS.items() if name in names.split()), "")
    fix, evidence = "meshkit help lists the commands.", [f"The commands are {', '.join(COMMANDS)}."]
    if name in STARTERS:
        evidence = ["meshkit starts no program; a launcher does."]
        script = [*dropwhile(lambda word: not word.endswith(".py"), rest)] or ["train.py"]
        fix = f"torchrun --nproc-per-node 4 {shlex.join(script)}"
        if name in LAUNCHERS and rest:
            fix = shlex.join([name, *rest])
    elif name == "version":
        fix = "meshkit --version"
    elif close := closest_name(name, COMMANDS, 0.6) or other:
        fix = shlex.join(["meshkit", close, *rest])
    elif name.startswith("-") and command:
        at = rest.index(command)
        fix = shlex.join(["meshkit", command, name, *rest[:at], *rest[at + 1 :]])
    elif "=" in name:
        fix = shlex.join(["meshkit", "plan", name, *rest])
    else:
        evidence = []
    return SpecError(f"there is no command {name!r}.", *evidence, fix=fix)


def quote_line(words: Sequence[str]) -> str:
    """Return a command line as typed, with control characters escaped."""
    line = shlex.join(["meshkit", *words])
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


def _report(error: MeshkitError, words: Sequence[str]) -> int:
    """Print an error, as JSON on stdout if requested, and return the exit code."""
    if "--json" in words:
        _write(f"{json.dumps({'ok': False, 'error': error_dict(error)})}\n", "stdout")
    else:
        text = f"{to_ascii(error.text)}\n"
        bold = "\x1b[1m\\1\x1b[0m" if shows_colors(sys.stderr) else r"\1"
        _write(FIX.sub(bold, text), "stderr")
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


def to_ascii(text: str, also: str = "") -> str:
    """Return a text with all characters escaped that a terminal might not show, or might obey."""
    unsafe = (
        c for c in set(text) if not (c in also or c == "\n" or (c.isascii() and c.isprintable()))
    )
    return text.translate({ord(c): ascii(c)[1:-1] for c in unsafe})


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


def _write(text: str, name: str) -> bool:
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
