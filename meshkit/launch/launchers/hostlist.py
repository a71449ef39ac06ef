"""Lists of hosts and tasks as batch systems write them.

::

    rack[1-2]node[3-4],login1   rack1node3 rack1node4 rack2node3 rack2node4 login1
    n[09-11]                    n09 n10 n11
    n[0-6:2]                    n0 n2 n4 n6
    2(x3),1                     2 2 2 1
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

MOST = 10**7  # nodes of one part of a list; there is no such machine
_NAME = re.compile(r"(?:[^\[\],]|\[[^\[\]]*\])+")  # up to a comma outside brackets
_BRACKET = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+)(?::([0-9]+))?)?")
_TASKS = re.compile(r"([0-9]{1,18})(?:\(x([0-9]{1,18})\))?")


def host_names(text: str) -> Iterator[str]:
    """The hosts of a Slurm node list, in order, one at a time.

    The format is that of ``scontrol show hostnames``: several brackets in a name vary like nested
    loops, the last fastest (from three on scontrol has another order, with the same first host);
    the digits of a range's start set the width. Steps, ``n[0-6:2]``, are read too. Pure.

    Args:
        text: ``"rack[1-2]node[3-4],login1"``.

    Raises:
        ValueError: where it is no such list, when the fault is reached.

    Example:
        >>> list(host_names("rack[1-2]node[3-4],login1"))
        ['rack1node3', 'rack1node4', 'rack2node3', 'rack2node4', 'login1']
    """
    for name in _names(text):
        yield from _expanded(name)


def first_host(text: str) -> str:
    """The first host of a node list.

    Raises:
        ValueError: where it is no node list, or empty.
    """
    name = next(_names(text), None)
    if name is None:
        raise ValueError("no hosts")
    return _BRACKET.sub(lambda part: _bounds(part[1].partition(",")[0])[0], name)


def task_counts(text: str) -> list[int]:
    """Tasks by node, as Slurm writes them.

    Args:
        text: ``"2(x3),1"``.

    Returns:
        One number a node.

    Raises:
        ValueError: where it is no such list.

    Example:
        >>> task_counts("2(x3),1")
        [2, 2, 2, 1]
    """
    counts: list[int] = []
    for part in text.split(","):
        found = _TASKS.fullmatch(part.strip())
        if found is None or not 0 < int(found[2] or 1) <= MOST:
            raise ValueError(f"no list of tasks: {text!r}")
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def _names(text: str) -> Iterator[str]:
    """The names of a list, brackets and all; empty ones are passed over, as scontrol does."""
    place = 0
    while place < len(text):
        found = _NAME.match(text, place)
        end = found.end() if found else place
        if text[end : end + 1] not in ("", ","):
            raise ValueError(f"no node list: {text!r}")
        if found and found.group().strip():
            yield found.group().strip()
        place = end + 1


def _expanded(name: str) -> Iterator[str]:
    """``n[1-2]m[3-4]`` as n1m3 n1m4 n2m3 n2m4."""
    parts = _BRACKET.split(name)  # text, range, text, range, ..., text
    ranges = [_numbers(part) for part in parts[1::2]]
    for numbers in product(*ranges):
        middle = "".join(number + text for number, text in zip(numbers, parts[2::2], strict=True))
        yield parts[0] + middle


def _numbers(text: str) -> list[str]:
    """``"09-11,20"`` as 09 10 11 20."""
    numbers: list[str] = []
    for part in text.split(","):
        first, last, step = _bounds(part)
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1, step)]
    return numbers


def _bounds(part: str) -> tuple[str, str, int]:
    """First, last and step of a range.

    Raises:
        ValueError: where it is none.
    """
    found = _RANGE.fullmatch(part.strip())
    if found is None or found[3] == "0" or int(found[2] or found[1]) < int(found[1]):
        raise ValueError(f"no range: {part!r}")
    return found[1], found[2] or found[1], int(found[3] or 1)
