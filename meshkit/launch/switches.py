"""Slurm's ``topology.conf``: which switch, or NVLink block, each node hangs on.

::

    SwitchName=s0 Nodes=n[1-4]               spine     |       top       |
    SwitchName=s1 Nodes=n[5-8]               switch    |   s0   |   s1   |
    SwitchName=top Switches=s[0-1]           node      | n1..n4 | n5..n8 |

Lines of ``BlockName=b1 Nodes=n[1-18]`` make one level, blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..core.call import Call, Word
from ..core.errors import SpecError, told
from ..core.topology.topology import Topology
from .hosts import host_names

TIERS = ("switch", "spine", "superspine")

Parents = dict[str, str]  # a node or switch to the switch that it hangs on


def slurm_topology(text: str, hosts: Sequence[str]) -> Topology:
    """Where ranks sit, with the switches or blocks of Slurm as levels. Pure.

    Levels are ``"block"``; or ``"switch"`` for those that nodes hang on, ``"spine"`` for those that
    these hang on, then ``"superspine"``, ``"tier 4"`` and so on. A switch without one above it
    stands for itself on the levels above.

    Args:
        text: what ``topology.conf`` holds; keywords in any case. A line that ends in a backslash
            goes on in the next. Comments, and what says nothing of nodes (``LinkSpeed=``,
            ``BlockSizes=``), are passed over.
        hosts: the host of each rank, in the order of ranks, named as Slurm does; a domain after
            the first dot is passed over where Slurm knows the name without.

    Raises:
        SpecError: where a line cannot be read, a switch hangs on itself, or a host on none.

    Example:
        >>> lines = ["SwitchName=s0 Nodes=n1", "SwitchName=s1 Nodes=n2"]
        >>> lines += ["SwitchName=top Switches=s[0-1]"]
        >>> found = slurm_topology(chr(10).join(lines), ["n1", "n1", "n2", "n2"])
        >>> print(found, found.domain_names("switch"), sep="; ")
        4 ranks on 2 nodes of 2, in 2 switches, in 1 spine; ('s0', 's1')
    """
    call = Call("slurm_topology", (Word("text"), list(hosts)))
    block, parents = _read(call, text)
    topology = Topology.of_hosts(hosts)
    chains = [[*_above(call, parents, host)] for host in topology.names]
    for height in range(max(map(len, chains))):
        name = TIERS[height] if height < len(TIERS) else f"tier {height + 1}"
        name = "block" if block and height == 0 else name
        topology = topology.inside(name, [chain[min(height, len(chain) - 1)] for chain in chains])
    return topology


def _read(call: Call, text: str) -> tuple[bool, Parents]:
    """Whether nodes are in blocks, and what hangs on what."""
    block, parents = False, Parents()
    for number, line in _lines(text):
        fields = _fields(line)
        name = fields.get("switchname") or fields.get("blockname")
        if name is None:
            if fields.keys() - {"blocksizes"}:
                raise _unread(call, number, line, "it names no switch and no block")
            continue
        block = block or "blockname" in fields
        for child in _children(call, number, line, fields):
            if parents.setdefault(child, name) != name:
                raise _unread(call, number, line, f"{child} hangs on {parents[child]} already")
    return block, parents


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines by the number of the first, joined where one ends in a backslash."""
    held, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        first = first or number
        held += line.removesuffix("\\")
        if not line.endswith("\\"):
            yield first, held
            held, first = "", 0
    if first:
        yield first, held


def _fields(line: str) -> dict[str, str]:
    """``key=value`` words by their key in lower case; "" for a word without a value."""
    words = (word.partition("=") for word in line.partition("#")[0].split())
    return {key.lower(): value for key, _, value in words}


def _children(call: Call, number: int, line: str, fields: dict[str, str]) -> Iterator[str]:
    for key in ("nodes", "switches"):
        try:
            yield from host_names(fields.get(key, ""))
        except ValueError as error:
            raise _unread(call, number, line, str(error)) from None


def _above(call: Call, parents: Parents, host: str) -> Iterator[str]:
    """The switches of a host, from its own up."""
    name = host if host in parents else host.partition(".")[0]
    if name not in parents:
        line = f"{call}: {host} hangs on no switch."
        fix = f"a line such as SwitchName=s0 Nodes={host}, or hosts named as Slurm names them."
        raise SpecError(told(line, fix=fix))
    seen = {name}
    while (name := parents.get(name, "")) and name not in seen:
        seen.add(name)
        yield name
    if name:
        line = f"{call}: the switch {name} hangs on itself."
        raise SpecError(told(line, fix="Switches= that make a tree."))


def _unread(call: Call, number: int, line: str, fault: str) -> SpecError:
    said = f"Line {number} is {line.strip()!r}: {fault}."
    fix = "lines such as SwitchName=s0 Nodes=n[1-4], or SwitchName=top Switches=s[0-1]."
    return SpecError(told(f"{call}: that is no topology.conf.", said, fix=fix))
