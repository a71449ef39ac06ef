"""A command as it was typed, so that an error can quote it and a fix can be typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..core.call import Call
from ..core.words import pairs

OPTIONS = frozenset(
    {
        *("order", "world", "nodes", "groups", "seq", "seed", "all", "json"),
        *("hosts", "place", "svg"),
        *("global_batch", "micro_batch", "accumulation_steps"),
    }
)


@dataclass(frozen=True)
class Typed(Call):
    """A :class:`Call` whose text is a command line: sizes in a mapping, options as keywords.

    Attributes:
        quoted: whether the sizes are one word of the command.

    Example:
        >>> typed = Typed("meshkit plan", ({"dp": 4, "sp": 2},), {"world": 6})
        >>> print(typed.but(dp=None, order="sp dp"))
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
                words = pairs({**value, **added})
                value = f'"{words}"' if self.quoted else words
            yield from [str(value)] * (value != "")
        for name, value in self.kwargs.items():
            if name in OPTIONS:
                yield from option(name, value)


def option(name: str, value: object) -> Iterator[str]:
    """An option as it is typed; once for each value of a list.

    Example:
        >>> [*option("groups", ["dp tp"]), *option("all", True), *option("global_batch", 64)]
        ['--groups', "'dp tp'", '--all', '--global-batch', '64']
    """
    flag = f"--{name.replace('_', '-')}"
    for one in value if isinstance(value, list | tuple) else [value]:
        yield flag
        if one is not True:
            yield shlex.quote(str(one))


def flagged(text: str) -> str:
    r"""An error whose Fix names keywords, with options in their place.

    Example:
        >>> flagged("f(): no.\n  Fix: global_batch=96, or micro_batch one of 1, 5.")
        'f(): no.\n  Fix: --global-batch 96, or --micro-batch one of 1, 5.'
    """
    head, mark, fix = text.rpartition("Fix: ")
    names = "|".join(sorted(OPTIONS))
    return head + mark + re.sub(rf"\b({names})(?:=| (?=one of))", _flag, fix)


def _flag(found: re.Match[str]) -> str:
    return f"--{found[1].replace('_', '-')} "
