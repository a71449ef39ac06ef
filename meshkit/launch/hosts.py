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
from itertools import islice, product

_NAME = re.compile(r"(?:[^\[\],]|\[[^\[\]]*\])+")  # up to a comma outside brackets
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def host_names(text: str) -> Iterator[str]:
    """The hosts of a Slurm node list, in order, one at a time.

    The format is that of ``scontrol show hostnames``: several brackets in a name vary like
    nested loops, the last fastest; the digits of a range's start set the width. Pure.

    Args:
        text: ``"rack[1-2]node[3-4],login1"``.

    Raises:
        ValueError: where it is no such list, when the fault is reached.

    Example:
        >>> list(host_names("rack[1-2]node[3-4],login1"))
        ['rack1node3', 'rack1node4', 'rack2node3', 'rack2node4', 'login1']
    """
    place = 0
    while place < len(text):
        found = _NAME.match(text, place)
        if found is None or text[found.end() : found.end() + 1] not in ("", ","):
            raise ValueError(f"no node list: {text!r}")
        yield from _expanded(found.group())
        place = found.end() + 1


def first_host(text: str) -> str:
    """The first host of a node list.

    Raises:
        ValueError: where it is no node list, or empty.
    """
    found = list(islice(host_names(text), 1))
    if not found:
        raise ValueError("no hosts")
    return found[0]


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
        if found is None:
            raise ValueError(f"no list of tasks: {text!r}")
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def _expanded(name: str) -> Iterator[str]:
    """``n[1-2]m[3-4]`` as n1m3 n1m4 n2m3 n2m4."""
    parts = re.split(r"\[([^\]]*)\]", name)  # text, range, text, range, ..., text
    ranges = [_numbers(part) for part in parts[1::2]]
    for numbers in product(*ranges):
        middle = "".join(number + text for number, text in zip(numbers, parts[2::2], strict=True))
        yield parts[0] + middle


def _numbers(text: str) -> list[str]:
    """``"09-11,20"`` as 09 10 11 20."""
    numbers: list[str] = []
    for part in text.split(","):
        found = _RANGE.fullmatch(part.strip())
        first, last = (found[1], found[2] or found[1]) if found else ("1", "0")
        if int(last) < int(first) or (found and found[3] == "0"):
            raise ValueError(f"no range: {part!r}")
        step = int(found[3] or 1) if found else 1
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1, step)]
    return numbers
