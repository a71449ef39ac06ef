"""The command as it was typed, which errors quote and whose fixes can be typed."""

from __future__ import annotations

import math
import shlex
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...core.call import drop_none
from ...core.errors import SpecError
from ...core.text import format_sizes
from ...core.validate import divisors
from .grid import read_axis_sizes
from .numbers import INTEGER

OPTIONS = (  # in the order in which they are quoted
    *("world_size", "order", "nodes", "hosts", "global_batch", "micro_batch", "accumulation_steps"),
    "data_axes",
    *(
        "groups",
        "seq",
        "seed",
        "rank",
        "all",
        "place",
        "model",
        "links",
        "memory",
        "top",
        "ops",
        "axes",
    ),
    *(
        "bytes",
        "iters",
        "warm_up",
        "alone",
        "device",
        "timeout",
        "n",
        "html",
        "to",
        "port",
        "json",
    ),
)
FLAGS = {"bytes": "--sizes", "n": "-n", "data_axes": "--data"}  # if they are not the name

Word = str | Mapping[str, int]  # a mapping holds sizes, which a fix can change


@dataclass(frozen=True)
class CommandLine:
    """A command line that an error quotes as its call."""

    name: str  # words before all others, for example ``"meshkit plan"``
    words: tuple[Word, ...] = ()  # positional words; a mapping stands for the sizes of axes
    options: Mapping[str, object] = field(default_factory=dict)  # option name to value
    one_word: bool = False  # whether sizes are one quoted word, which needs no ``--order``

    def __str__(self) -> str:
        words = [self._format_word(word) for word in self.words if word]
        options = [
            text
            for name in OPTIONS
            if name in self.options
            for text in format_option(name, self.options[name])
        ]
        return " ".join([self.name, *words, *options])

    def _format_word(self, word: Word) -> str:
        if isinstance(word, str):
            return word
        return f'"{format_sizes(word)}"' if self.one_word else format_sizes(word)

    def with_args(self, **changes: object) -> CommandLine:
        """Return the command with some arguments changed, added, or (None) left out.

        An argument of a Python function becomes the option of that name, any other name an axis.
        ``--nodes`` is changed with the number of ranks, if it no longer divides them.
        """
        old = self._sizes or {}
        order = str(changes.pop("order", "") or "").split() if self.one_word else []
        options = {k: v for k, v in changes.items() if k in OPTIONS and k not in old}
        new = {**old, **{k: v for k, v in changes.items() if k not in options}}
        sizes = {axis: int(str(new[axis])) for axis in [*order, *new] if new.get(axis) is not None}
        words = tuple(
            (sizes or {"dp": -1}) if isinstance(word, Mapping) else word for word in self.words
        )
        changed = replace(self, words=words, options=drop_none(**{**self.options, **options}))
        return changed if "nodes" in options else changed.fit_nodes()

    @property
    def _sizes(self) -> Mapping[str, int] | None:
        return next((word for word in self.words if isinstance(word, Mapping)), None)

    @property
    def _num_ranks(self) -> int | None:
        """The number of ranks, or None if there are no sizes or one has to be inferred."""
        if self._sizes is None:
            return None
        if "world_size" in self.options:
            return int(str(self.options["world_size"]))
        return None if -1 in self._sizes.values() else math.prod(self._sizes.values())

    def fit_nodes(self) -> CommandLine:
        """Return the command with a number of nodes that its ranks divide over."""
        nodes, ranks = self.options.get("nodes"), self._num_ranks
        if nodes is None or ranks is None:
            return self
        return replace(self, options={**self.options, "nodes": _nearest_nodes(str(nodes), ranks)})


def _nearest_nodes(nodes: str, ranks: int) -> str:
    """Return the nodes if the ranks fit on them, or else the most nodes below that divide them."""
    sizes = [int(size) for size in nodes.split(",")]
    if len(sizes) > 1:
        return nodes if sum(sizes) == ranks else "1"
    return str(max(number for number in divisors(ranks) if number <= sizes[0]))


def command_line(args: Namespace, *words: Word, one_word: bool = False) -> CommandLine:
    """Return the command as typed, without the options that have their default value."""
    defaults = vars(args).get("defaults", {})
    options: dict[str, object] = {}
    for name in OPTIONS:
        value = getattr(args, name, None)
        if value is None or value is False or value == defaults.get(name):
            continue
        # a tuple was typed with commas; a list is an option that was given several times
        options[name] = ",".join(map(str, value)) if isinstance(value, tuple) else value
    if not words and hasattr(args, "words"):
        words = tuple(_split_words(args.words))
    return CommandLine(f"meshkit {args.command.name}", words, options, one_word)


def _split_words(words: Sequence[str]) -> Iterator[Word]:
    """Yield a leading rank, and the sizes as a mapping; invalid sizes as typed."""
    has_rank = bool(words) and INTEGER.fullmatch(words[0]) is not None
    yield from words[:has_rank]
    try:
        yield read_axis_sizes(words[has_rank:])
    except SpecError:
        yield from map(shlex.quote, words[has_rank:])


def format_option(name: str, value: object) -> Iterator[str]:
    """Yield the words of an option, with its flag before each value of a list."""
    flag = FLAGS.get(name, f"--{name.replace('_', '-')}")
    for item in value if isinstance(value, list | tuple) else [value]:
        yield flag
        if item is not True:
            yield shlex.quote(f"{item:.15g}" if isinstance(item, float) else str(item))
