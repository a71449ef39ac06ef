"""Where ranks sit, as a file says: a line a rank, with its host and what that sits in.

::

    node1  rack1        rank 0
    node2  rack1        rank 1, on another node of the same rack
    node1  rack1        rank 2, beside rank 0
"""

from __future__ import annotations

from .call import Call, Word
from .errors import SpecError, told
from .topology import Topology
from .words import count

OUTER = ("rack", "row", "hall")  # what columns after the first are called


def rankfile(text: str) -> Topology:
    r"""The topology of a text with a line for each rank, in the order of ranks. Pure. O(ranks).

    Args:
        text: in each line the host, then the rack, the row and the hall it is in, as far as they
            are known. Empty lines and what follows a ``#`` are passed over.

    Raises:
        SpecError: where lines have different numbers of words, or more than four; where a host is
            in two racks; where there is no line.

    Example:
        >>> print(rankfile("a r1\nb r1\na r1\nc r2"))
        4 ranks on 3 nodes of 1 and 2, in 2 racks, not in blocks: node 0 has ranks 0, 2
    """
    call = Call("rankfile", (Word("text"),))
    lines = enumerate(text.splitlines(), 1)
    rows = [(number, line.partition("#")[0].split()) for number, line in lines]
    rows = [(number, words) for number, words in rows if words]
    if not rows:
        fix = "a line for each rank: its host, and its rack where that is known."
        raise SpecError(told(f"{call} has no line that names a host.", fix=fix))
    columns = len(rows[0][1])
    for number, words in rows:
        if len(words) != columns or columns > 1 + len(OUTER):
            first = f"line {rows[0][0]} has {columns}"
            line = f"{call}: line {number} has {count(len(words), 'word')}, {first}."
            raise SpecError(told(line, fix="a host in each line, then its rack, row and hall."))
    topology = Topology.of_hosts(words[0] for _, words in rows)
    for column in range(1, columns):
        topology = topology.within(OUTER[column - 1], _domains(call, rows, column, topology))
    return topology


def _domains(
    call: Call, rows: list[tuple[int, list[str]]], column: int, topology: Topology
) -> list[str]:
    """What each node sits in, by one column.

    Raises:
        SpecError: where a node sits in two.
    """
    found: dict[str, tuple[int, str]] = {}
    for number, words in rows:
        first, domain = found.setdefault(words[0], (number, words[column]))
        if domain != words[column]:
            line = f"{call}: {words[0]} is in {domain} in line {first}, in {words[column]} in line "
            fix = f"one {OUTER[column - 1]} for {words[0]}."
            raise SpecError(told(f"{line}{number}.", fix=fix))
    return [found[str(name)][1] for name in topology.names]
