"""Where ranks sit, as a file says: a line a rank, with its host and what that sits in.

::

    node1  rack1        rank 0
    node2  rack1        rank 1, on another node of the same rack
    node1  rack1        rank 2, beside rank 0
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .call import Call, Word
from .errors import SpecError, told
from .topology.topology import Topology
from .words import count_noun

LEVELS = ("host", "rack", "row", "hall")  # what the columns are called
READ = Call("rankfile", (Word("text"),))

Row = tuple[int, list[str]]  # the number of a line, from 1, and its words


def rankfile(text: str, *, call: Call = READ) -> Topology:
    r"""The topology of a text with a line for each rank, in the order of ranks. Pure. O(ranks).

    Args:
        text: in each line the host, then the rack, the row and the hall it is in, as far as they
            are known. Empty lines and what follows a ``#`` are passed over.
        call: what to quote in an error.

    Raises:
        SpecError: where lines have different numbers of words, or more than four; for a word with
            ``=`` in it, as the hostfiles of MPI have; where a host is in two racks, or a rack in
            two rows; where there is no line.

    Example:
        >>> print(rankfile("a r1\nb r1\na r1\nc r2"))
        4 ranks on 3 nodes of 1 and 2, in 2 racks, not in blocks: node 0 has ranks 0, 2
    """
    rows = [*_rows(call, text)]
    if not rows:
        fix = "a line for each rank: its host, and its rack where that is known."
        raise SpecError(told(f"{call}: the file has no line that names a host.", fix=fix))
    _check_columns(call, rows)
    topology = Topology.of_hosts(words[0] for _, words in rows)
    for column in range(1, len(rows[0][1])):
        outside = _outside(call, rows, column)
        hosts = {words[0]: outside[words[column - 1]] for _, words in rows}
        domains = [hosts[str(name)] for name in topology.names]
        topology = topology.inside(LEVELS[column], domains)
    return topology


def _rows(call: Call, text: str) -> Iterator[Row]:
    """The words of each line that has any.

    Raises:
        SpecError: for a word that is none of ours.
    """
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        for word in words:
            if "=" in word:
                said = f"{call}: line {number} has {word!r}, which is no host and no rack."
                why = "A hostfile has a line for each host; here is one for each rank."
                fix = f"{words[0]} in a line for each of its ranks."
                raise SpecError(told(said, why, fix=fix))
        if words:
            yield number, words


def _check_columns(call: Call, rows: Sequence[Row]) -> None:
    """Refuse lines of different lengths, and too long ones. Raises SpecError."""
    (first, words), most = rows[0], len(LEVELS)
    for number, others in rows:
        line = f"{call}: line {number} has {count_noun(len(others), 'word')}"
        if len(others) > most:
            raise SpecError(told(f"{line}.", fix=f"{most} words at most: {', '.join(LEVELS)}."))
        if len(others) != len(words):
            fix = "a host in each line, then its rack, row and hall."
            raise SpecError(told(f"{line}, line {first} has {len(words)}.", fix=fix))


def _outside(call: Call, rows: Sequence[Row], column: int) -> dict[str, str]:
    """What each domain of the column before sits in, by one column.

    Raises:
        SpecError: where one sits in two.
    """
    found: dict[str, tuple[int, str]] = {}
    for number, words in rows:
        inner, domain = words[column - 1], words[column]
        first, other = found.setdefault(inner, (number, domain))
        if other != domain:
            line = f"{call}: {inner} is in {other} in line {first}, in {domain} in line {number}."
            raise SpecError(told(line, fix=f"one {LEVELS[column]} for {inner}."))
    return {inner: domain for inner, (_, domain) in found.items()}
