"""Read a topology from a text: a line for each rank, with its host, rack, row and hall.

::

    node1  rack1        rank 0
    node2  rack1        rank 1, on another node of the same rack
    node1  rack1        rank 2, on the node of rank 0
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..errors import SpecError
from ..text import count_noun
from .topology import Topology

LEVELS = ("host", "rack", "row", "hall")  # the columns

Row = tuple[int, list[str]]  # the number of a line, from 1, and its words


def parse_hostfile(text: str) -> Topology:
    """Return the topology of a text that has a line for each rank, in the order of ranks."""
    rows = [*_rows(text)]
    if not rows:
        fix = "a line for each rank: its host, and its rack if it is known."
        raise SpecError("the file names no host.", fix=fix)
    _check_columns(rows)
    topology = Topology.of_hosts(words[0] for _, words in rows)
    for column in range(1, len(rows[0][1])):
        parents = _parents(rows, column)
        host_domains = {words[0]: parents[words[column - 1]] for _, words in rows}
        domains = [host_domains[str(name)] for name in topology.names]
        topology = topology.with_level(LEVELS[column], domains)
    return topology


def _rows(text: str) -> Iterator[Row]:
    """Yield the words of each line that has any."""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        for word in words:
            if "=" in word:
                summary = f"line {number} has {word!r}, which is no host and no rack."
                why = "An MPI hostfile has a line for each host; this file needs one for each rank."
                fix = f"for each rank on {words[0]}, a line with the name {words[0]}."
                raise SpecError(summary, why, fix=fix)
        if words:
            yield number, words


def _check_columns(rows: Sequence[Row]) -> None:
    """Check that all lines have equally many words, four at most."""
    (first, first_words), most = rows[0], len(LEVELS)
    for number, words in rows:
        line = f"line {number} has {count_noun(len(words), 'word')}"
        if len(words) > most:
            raise SpecError(f"{line}.", fix=f"at most {most} words: {', '.join(LEVELS)}.")
        if len(words) != len(first_words):
            fix = "a host in each line, then its rack, row and hall."
            raise SpecError(f"{line}, line {first} has {len(first_words)}.", fix=fix)


def _parents(rows: Sequence[Row], column: int) -> dict[str, str]:
    """Return the domain in a column for each domain in the column before."""
    parents: dict[str, tuple[int, str]] = {}
    for number, words in rows:
        inner, parent = words[column - 1], words[column]
        first, other = parents.setdefault(inner, (number, parent))
        if other != parent:
            line = f"{inner} is in {other} in line {first}, in {parent} in line {number}."
            raise SpecError(line, fix=f"one {LEVELS[column]} for {inner}.")
    return {inner: parent for inner, (_, parent) in parents.items()}
