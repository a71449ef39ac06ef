"""Hostlists and task lists in Slurm's compressed format.

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

MAX_NODES = 10**7  # nodes of one part of a list; larger than any machine
_NAME = re.compile(r"(?:[^\[\],]|\[[^\[\]]*\])+")  # up to a comma outside brackets
_BRACKET = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+)(?::([0-9]+))?)?")
_TASKS = re.compile(r"([0-9]{1,18})(?:\(x([0-9]{1,18})\))?")


def host_names(text: str) -> Iterator[str]:
    """Yield the hosts of a Slurm node list, in order.

    The format is that of ``scontrol show hostnames``. Several brackets in a name vary like nested
    loops, the last one fastest. (With three brackets or more, scontrol uses another order with the
    same first host.) The start of a range sets the number of digits. Steps such as ``n[0-6:2]``
    are supported. Pure.

    Example:
        >>> list(host_names("rack[1-2]node[3-4],login1"))
        ['rack1node3', 'rack1node4', 'rack2node3', 'rack2node4', 'login1']
    """
    for name in _names(text):
        yield from _expanded(name)


def first_host(text: str) -> str:
    """Return the first host of a node list."""
    name = next(_names(text), None)
    if name is None:
        raise ValueError("no hosts")
    return _BRACKET.sub(lambda part: _bounds(part[1].partition(",")[0])[0], name)


def task_counts(text: str) -> list[int]:
    """Return the number of tasks on each node."""
    counts: list[int] = []
    for part in text.split(","):
        match = _TASKS.fullmatch(part.strip())
        if match is None or not 0 < int(match[2] or 1) <= MAX_NODES:
            raise ValueError(f"not a list of tasks: {text!r}")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _names(text: str) -> Iterator[str]:
    """Yield the names of a list with their brackets; skip empty names, as scontrol does."""
    start = 0
    while start < len(text):
        match = _NAME.match(text, start)
        end = match.end() if match else start
        if text[end : end + 1] not in ("", ","):
            raise ValueError(f"not a node list: {text!r}")
        if match and match.group().strip():
            yield match.group().strip()
        start = end + 1


def _expanded(name: str) -> Iterator[str]:
    """Expand ``n[1-2]m[3-4]`` to n1m3 n1m4 n2m3 n2m4."""
    parts = _BRACKET.split(name)  # text, range, text, range, ..., text
    ranges = [_numbers(part) for part in parts[1::2]]
    for numbers in product(*ranges):
        middle = "".join(number + text for number, text in zip(numbers, parts[2::2], strict=True))
        yield parts[0] + middle


def _numbers(text: str) -> list[str]:
    """Expand ``"09-11,20"`` to 09 10 11 20."""
    numbers: list[str] = []
    for part in text.split(","):
        first, last, step = _bounds(part)
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1, step)]
    return numbers


def _bounds(part: str) -> tuple[str, str, int]:
    """Return first, last and step of a range."""
    match = _RANGE.fullmatch(part.strip())
    if match is None or match[3] == "0" or int(match[2] or match[1]) < int(match[1]):
        raise ValueError(f"not a range: {part!r}")
    return match[1], match[2] or match[1], int(match[3] or 1)
