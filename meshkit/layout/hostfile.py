"""The host file: a line for each rank, with its host and, if known, its rack, row and hall."""

from __future__ import annotations

from collections import Counter

from ..errors import SpecError
from ..text import count_noun
from .topology import Topology

LEVELS = ("host", "rack", "row", "hall")  # the columns of a host file


def parse_hostfile(text: str) -> Topology:
    """Return the topology of a text that has a line for each rank, in the order of ranks."""
    lines = enumerate(text.splitlines(), 1)
    rows = [(number, words) for number, line in lines if (words := line.partition("#")[0].split())]
    if not rows:
        fix = "a line for each rank: its host, and its rack if it is known."
        raise SpecError("the file names no host.", fix=fix)
    paths: dict[str, tuple[str, ...]] = {}  # host to its rack, row and hall
    for number, (host, *outer) in rows:
        line = f"line {number}, {' '.join([host, *outer])!r},"
        if any("=" in word for word in (host, *outer)):
            why = "An MPI hostfile has a line for each host; this file needs one for each rank."
            fix = f"for each rank on {host}, a line with the name {host}."
            raise SpecError(f"{line} has a word that is no host and no rack.", why, fix=fix)
        if len(outer) >= len(LEVELS) or len(outer) != len(rows[0][1]) - 1:
            fix = f"a host in each line, then as many of {', '.join(LEVELS[1:])} as in the others."
            raise SpecError(f"{line} has {count_noun(len(outer) + 1, 'word')}.", fix=fix)
        if paths.setdefault(host, tuple(outer)) != tuple(outer):
            other = " ".join(paths[host])
            line += f" contradicts a line above, which has {host} in {other}."
            raise SpecError(line, fix=f"one place for {host}.")
    topology = Topology.of_hosts(words[0] for _, words in rows)
    for column in range(len(rows[0][1]) - 1):
        tails = [paths[str(host)][column:] for host in topology.names]
        uses = Counter(tail[0] for tail in {*tails})
        domains = [tail[0] if uses[tail[0]] == 1 else ".".join(tail[::-1]) for tail in tails]
        topology = topology.with_level(LEVELS[column + 1], domains)
    return topology
