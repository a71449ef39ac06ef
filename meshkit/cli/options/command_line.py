"""A command as it was typed, so that an error can quote it and a fix can be typed."""

from __future__ import annotations

import math
import re
import shlex
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ...core.call import Call
from ...core.text import format_sizes
from ...core.validate import divisors

BATCH = ("global_batch", "micro_batch", "accumulation_steps")
OPTIONS = (  # in the order in which they are quoted
    *("world", "order", "nodes", "hosts", *BATCH, "groups", "seq", "seed", "all", "place"),
    *("model", "links", "memory", "top", "ops", "axes", "bytes", "iters", "warm_up", "alone"),
    *("device", "timeout", "n", "plot", "svg", "json"),
)
FLAGS = {"bytes": "--sizes"}  # where they are not the name


@dataclass(frozen=True)
class CommandLine(Call):
    """A :class:`Call` whose text is a command line: sizes in a mapping, options as keywords.

    Attributes:
        quoted: whether the sizes are one word of the command.

    Example:
        >>> typed = CommandLine("meshkit plan", ({"dp": 4, "sp": 2},), {"world": 6})
        >>> print(typed.with_args(dp=None, order="sp dp"))
        meshkit plan sp=2 --world 6 --order 'sp dp'
    """

    quoted: bool = False

    def __str__(self) -> str:
        return " ".join([self.name, *self._words()])

    def _words(self) -> Iterator[str]:
        """What stands after the name; a size that was added stands with the other sizes."""
        added = {name: size for name, size in self.kwargs.items() if name not in OPTIONS}
        for value in self.args:
            if isinstance(value, Mapping):
                words = format_sizes({**value, **added} or {"dp": -1})  # no size at all means that
                value = f'"{words}"' if self.quoted else words
            yield from [str(value)] * (value != "")
        for name, value in self.kwargs.items():
            if name in OPTIONS:
                yield from format_option(name, value)

    def with_args(self, **changes: object) -> CommandLine:
        """As :meth:`Call.with_args`; of another grid ``--nodes`` are such as it can be on.

        Example:
            >>> typed = CommandLine("meshkit plan", ({"x": 4},), {"nodes": "3"})
            >>> print(typed.with_args(order="dp x"))
            meshkit plan x=4 --nodes 2 --order 'dp x'
        """
        found = replace(self, **vars(super().with_args(**changes)))
        nodes, ranks = found.kwargs.get("nodes"), found._ranks()
        if "nodes" in changes or nodes is None or ranks is None:
            return found
        return replace(found, kwargs={**found.kwargs, "nodes": _nodes(str(nodes), ranks)})

    def _ranks(self) -> int | None:
        """How many ranks it asks for; None where it has no sizes, or one is to be inferred."""
        world = self.kwargs.get("world")
        for value in self.args:
            if isinstance(value, Mapping):
                known = -1 not in value.values()
                return int(str(world)) if world else math.prod(value.values()) if known else None
        return None

    def nested(self, sizes: Mapping[str, int]) -> CommandLine:
        """The same command with more sizes, which nest in the order in which they stand here.

        Example:
            >>> print(CommandLine("meshkit plan", ({"x": 4},)).nested({"dp": 1, "x": 4}))
            meshkit plan x=4 dp=1 --order 'dp x'
            >>> diff = CommandLine("meshkit diff", ({"x": 4}, '"dp=4"'), quoted=True)
            >>> print(diff.nested({"dp": 1, "x": 4}))
            meshkit diff "dp=1 x=4" "dp=4"
        """
        if self.quoted:
            args = (sizes if isinstance(value, Mapping) else value for value in self.args)
            return replace(self, args=tuple(args))
        return self.with_args(**sizes, order=" ".join(sizes))


def _nodes(nodes: str, ranks: int) -> str:
    """The nodes, if so many ranks can be on them; else the most, below them, on which they can be.

    Example:
        >>> _nodes("3", 6), _nodes("4", 6), _nodes("7,8", 15), _nodes("7,8", 16)
        ('3', '3', '7,8', '1')
    """
    sizes = [int(size) for size in nodes.split(",")]
    if len(sizes) > 1:
        return nodes if sum(sizes) == ranks else "1"
    return str(max(number for number in divisors(ranks) if number <= sizes[0]))


def command_line(
    asked: Namespace, sizes: Mapping[str, int] | None = None, *before: object, quoted: bool = False
) -> CommandLine:
    """The command as it was typed.

    Args:
        asked: its options; what is as usual is not quoted.
        sizes: its sizes; None where it has none.
        *before: what stands before the sizes.
        quoted: as in :class:`CommandLine`.
    """
    usual = vars(asked).get("usual", {})
    said = {name: getattr(asked, name, None) for name in OPTIONS}
    said = {name: value for name, value in said.items() if value is not None and value is not False}
    said = {name: value for name, value in said.items() if value != usual.get(name)}
    for name, value in said.items():
        if isinstance(value, tuple):  # typed with commas; a list is an option for each
            said[name] = ",".join(map(str, value))
    args = (*before, *([] if sizes is None else [dict(sizes)]))
    return CommandLine(f"meshkit {asked.command.name}", args, said, quoted=quoted)


def format_option(name: str, value: object) -> Iterator[str]:
    """An option as it is typed; once for each value of a list.

    Example:
        >>> [*format_option("groups", ["dp tp"]), *format_option("all", True), *format_option("global_batch", 64)]
        ['--groups', "'dp tp'", '--all', '--global-batch', '64']
        >>> [*format_option("bytes", "1K:4M"), *format_option("timeout", 5.0)]
        ['--sizes', '1K:4M', '--timeout', '5']
    """
    flag = FLAGS.get(name, f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}")
    for one in value if isinstance(value, list | tuple) else [value]:
        yield flag
        if one is not True:
            yield shlex.quote(f"{one:.15g}" if isinstance(one, float) else str(one))


def flagged(text: str) -> str:
    r"""An error whose Fix names keywords, with options in their place.

    Example:
        >>> flagged("f(): no.\n  Fix: global_batch=96, or micro_batch one of 1, 5.")
        'f(): no.\n  Fix: --global-batch 96, or --micro-batch one of 1, 5.'
    """
    head, mark, fix = text.rpartition("Fix: ")
    names = "|".join(BATCH)
    return head + mark + re.sub(rf"\b({names})(?:=| (?=one of))", _flag, fix)


def _flag(found: re.Match[str]) -> str:
    return f"--{found[1].replace('_', '-')} "
