"""Slurm's formats: node lists, task lists, and ``topology.conf``. Pure.

::

    rack[1-2]node[3-4],login1   rack1node3 rack1node4 rack2node3 rack2node4 login1
    n[09-11]                    n09 n10 n11
    n[0-6:2]                    n0 n2 n4 n6
    2(x3),1                     2 2 2 1

    SwitchName=s0 Nodes=n[1-4]               spine     |       top       |
    SwitchName=s1 Nodes=n[5-8]               switch    |   s0   |   s1   |
    SwitchName=top Switches=s[0-1]           node      | n1..n4 | n5..n8 |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product

from ..call import quotes_call
from ..errors import SpecError
from ..layout.topology import Topology

MAX_NODES = 10**6  # nodes of a task list; more than any machine has
TIERS = ("switch", "spine", "superspine")
_NAME = re.compile(r"(?:[^\[\],]|\[[^\[\]]*\])+")  # up to a comma outside brackets
_BRACKET = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+)(?::([0-9]+))?)?")
_TASKS = re.compile(r"([0-9]{1,18})(?:\(x([0-9]{1,18})\))?")


def host_names(text: str) -> Iterator[str]:
    """Yield the hosts of a node list, in the order of ``scontrol show hostnames``.

    Several brackets in a name vary like nested loops, the last one fastest. (With three brackets or
    more, scontrol uses another order with the same first host.) The start of a range sets the
    number of digits.
    """
    for name in _names(text):
        parts = _BRACKET.split(name)  # text, range, text, range, ..., text
        for numbers in product(*map(_numbers, parts[1::2])):
            tails = zip(numbers, parts[2::2], strict=True)
            yield parts[0] + "".join(number + tail for number, tail in tails)


def first_host(text: str) -> str:
    """Return the first host of a node list; the rest may be in a newer format."""
    name = next(_names(text), None)
    if name is None:
        raise ValueError("no hosts")
    return _BRACKET.sub(lambda part: _bounds(part[1].partition(",")[0])[0], name)


def task_counts(text: str) -> list[int]:
    """Return the number of tasks on each node."""
    counts: list[int] = []
    for part in text.split(","):
        match = _TASKS.fullmatch(part.strip())
        if match is None or not 0 < int(match[2] or 1) <= MAX_NODES - len(counts):
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


@quotes_call("slurm_topology")
def slurm_topology(text: str, hosts: Sequence[str]) -> Topology:
    """Return the topology of ranks with Slurm's switches or blocks as levels. Pure.

    The levels are ``"block"``, or from the nodes up ``"switch"``, ``"spine"``, ``"superspine"``,
    ``"tier 4"`` and so on. A switch without a parent is its own domain on the levels above.

    Args:
        text: the content of ``topology.conf``; keywords in any case. A backslash at the end of a
            line continues it. Comments and other keywords (``LinkSpeed=``, ``BlockSizes=``) are
            skipped.
        hosts: the host of each rank, in rank order, as Slurm names it. A domain after the first
            dot is dropped if Slurm only knows the short name.

    Raises:
        SpecError: if a line is malformed, the switches form a cycle, or a host has no switch.

    Example:
        >>> lines = "SwitchName=s0 Nodes=n1", "SwitchName=s1 Nodes=n2"
        >>> lines += ("SwitchName=top Switches=s[0-1]",)
        >>> topology = slurm_topology(chr(10).join(lines), ["n1", "n1", "n2", "n2"])
        >>> print(topology, topology.domain_names("switch"), sep="; ")
        4 ranks on 2 nodes of 2, in 2 switches, in 1 spine; ('s0', 's1')
    """
    has_blocks, parents = _read(text)
    topology = Topology.of_hosts(hosts)
    chains = [[*_above(parents, host)] for host in topology.names]
    for height in range(max(map(len, chains))):
        name = TIERS[height] if height < len(TIERS) else f"tier {height + 1}"
        name = "block" if has_blocks and height == 0 else name
        domains = [chain[min(height, len(chain) - 1)] for chain in chains]
        topology = topology.with_level(name, domains)
    return topology


def _read(text: str) -> tuple[bool, dict[str, str]]:
    """Return whether the file has blocks, and the parent of each node and switch."""
    has_blocks, parents = False, dict[str, str]()
    for number, line in _lines(text):
        words = (word.partition("=") for word in line.partition("#")[0].split())
        fields = {key.lower(): value for key, _, value in words}
        name = fields.get("switchname") or fields.get("blockname")
        if name is None and fields.keys() - {"blocksizes"}:
            raise _invalid_line(number, line, "it has no SwitchName and no BlockName")
        if name is None:
            continue
        has_blocks = has_blocks or "blockname" in fields
        try:
            children = [c for key in ("nodes", "switches") for c in host_names(fields.get(key, ""))]
        except ValueError as error:
            raise _invalid_line(number, line, str(error)) from None
        for child in children:
            if parents.setdefault(child, name) != name:
                raise _invalid_line(number, line, f"{child} is already below {parents[child]}")
    return has_blocks, parents


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with the number of their first part, joined at a final backslash."""
    joined, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        first = first or number
        joined += line.removesuffix("\\")
        if not line.endswith("\\"):
            yield first, joined
            joined, first = "", 0
    if first:
        yield first, joined


def _above(parents: dict[str, str], host: str) -> Iterator[str]:
    """Yield the switches above a host, the nearest first."""
    name = host if host in parents else host.partition(".")[0]
    if name not in parents:
        fix = f"a line such as SwitchName=s0 Nodes={host}, or hosts spelled as in Slurm."
        raise SpecError(f"{host} is below no switch.", fix=fix)
    seen = {name}
    while (name := parents.get(name, "")) and name not in seen:
        seen.add(name)
        yield name
    if name:
        fix = "Switches= lines that form a tree."
        raise SpecError(f"the switch {name} is above itself.", fix=fix)


def _invalid_line(number: int, line: str, fault: str) -> SpecError:
    evidence = f"Line {number} is {line.strip()!r}: {fault}."
    fix = "lines such as SwitchName=s0 Nodes=n[1-4], or SwitchName=top Switches=s[0-1]."
    return SpecError("the text is not a valid topology.conf.", evidence, fix=fix)
