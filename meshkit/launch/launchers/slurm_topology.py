"""Slurm's ``topology.conf``: the switch, or NVLink block, above each node.

::

    SwitchName=s0 Nodes=n[1-4]               spine     |       top       |
    SwitchName=s1 Nodes=n[5-8]               switch    |   s0   |   s1   |
    SwitchName=top Switches=s[0-1]           node      | n1..n4 | n5..n8 |

Lines such as ``BlockName=b1 Nodes=n[1-18]`` make one level, ``block``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...core.call import quotes_call
from ...core.errors import SpecError
from ...core.topology.topology import Topology
from .hostlist import host_names

TIERS = ("switch", "spine", "superspine")

Parents = dict[str, str]  # a node or switch to the switch or block above it


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
        >>> lines = ["SwitchName=s0 Nodes=n1", "SwitchName=s1 Nodes=n2"]
        >>> lines += ["SwitchName=top Switches=s[0-1]"]
        >>> topology = slurm_topology(chr(10).join(lines), ["n1", "n1", "n2", "n2"])
        >>> print(topology, topology.domain_names("switch"), sep="; ")
        4 ranks on 2 nodes of 2, in 2 switches, in 1 spine; ('s0', 's1')
    """
    block, parents = _read(text)
    topology = Topology.of_hosts(hosts)
    chains = [[*_above(parents, host)] for host in topology.names]
    for height in range(max(map(len, chains))):
        name = TIERS[height] if height < len(TIERS) else f"tier {height + 1}"
        name = "block" if block and height == 0 else name
        topology = topology.with_level(
            name, [chain[min(height, len(chain) - 1)] for chain in chains]
        )
    return topology


def _read(text: str) -> tuple[bool, Parents]:
    """Return whether the file has blocks, and the parent of each node and switch."""
    block, parents = False, Parents()
    for number, line in _lines(text):
        fields = _fields(line)
        name = fields.get("switchname") or fields.get("blockname")
        if name is None:
            if fields.keys() - {"blocksizes"}:
                raise _unread(number, line, "it has no SwitchName and no BlockName")
            continue
        block = block or "blockname" in fields
        for child in _children(number, line, fields):
            if parents.setdefault(child, name) != name:
                raise _unread(number, line, f"{child} is already below {parents[child]}")
    return block, parents


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


def _fields(line: str) -> dict[str, str]:
    """Return the ``key=value`` words of a line by lower-case key; "" without a value."""
    words = (word.partition("=") for word in line.partition("#")[0].split())
    return {key.lower(): value for key, _, value in words}


def _children(number: int, line: str, fields: dict[str, str]) -> Iterator[str]:
    for key in ("nodes", "switches"):
        try:
            yield from host_names(fields.get(key, ""))
        except ValueError as error:
            raise _unread(number, line, str(error)) from None


def _above(parents: Parents, host: str) -> Iterator[str]:
    """Yield the switches above a host, the nearest first."""
    name = host if host in parents else host.partition(".")[0]
    if name not in parents:
        line = f"{host} is below no switch."
        fix = f"a line such as SwitchName=s0 Nodes={host}, or hosts spelled as in Slurm."
        raise SpecError(line, fix=fix)
    seen = {name}
    while (name := parents.get(name, "")) and name not in seen:
        seen.add(name)
        yield name
    if name:
        line = f"the switch {name} is above itself."
        raise SpecError(line, fix="Switches= lines that form a tree.")


def _unread(number: int, line: str, fault: str) -> SpecError:
    evidence = f"Line {number} is {line.strip()!r}: {fault}."
    fix = "lines such as SwitchName=s0 Nodes=n[1-4], or SwitchName=top Switches=s[0-1]."
    return SpecError("the text is not a valid topology.conf.", evidence, fix=fix)
