"""A level of hardware: which domain each node is in, such as its rack."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from .call import Call
from .errors import SpecError, told
from .integers import divisors, integer
from .seats import Ints
from .words import count_noun


@dataclass(frozen=True, eq=False)
class Level:
    """What some nodes have in common: a rack, an NVLink domain, a switch.

    Attributes:
        name: what a domain of it is called, ``"rack"``.
        of_node: int64 (num_nodes,), the domain of each node, numbered as nodes first meet them.
        names: the name of each domain.
    """

    name: str
    of_node: Ints
    names: tuple[str, ...]


def first_met(level: str, labels: Iterable[Hashable]) -> tuple[Ints, tuple[str, ...]]:
    """Equal labels as numbers in the order in which they come, and a name for each number.

    Example:
        >>> numbers, names = first_met("rack", ["east", "west", "east"])
        >>> numbers.tolist(), names, first_met("rack", [7])[1]
        ([0, 1, 0], ('east', 'west'), ('rack 7',))
    """
    numbers: dict[Hashable, int] = {}
    found = [numbers.setdefault(label, len(numbers)) for label in labels]
    bare = all(integer(label) is not None for label in numbers)
    return np.array(found, dtype=np.int64), numbered(level if bare else "", numbers)


def numbered(level: str, labels: Iterable[object]) -> tuple[str, ...]:
    """The names of domains."""
    return tuple(f"{level} {label}".lstrip() for label in labels)


def check_nested(call: Call, level: Level, inside: tuple[Level, ...]) -> None:
    """Refuse a level that tears a domain of the one inside it apart.

    Raises:
        SpecError: with the first such domain.
    """
    for inner in inside:
        pairs = np.unique(np.stack([inner.of_node, level.of_node]), axis=1)[0]
        torn = np.flatnonzero(np.bincount(pairs) > 1)
        if len(torn):
            line = f"{call}: {inner.names[torn[0]]} would be in several domains."
            fix = f"one domain for all nodes of {inner.names[torn[0]]}; levels go from inside out."
            raise SpecError(told(line, fix=fix))


def check_divides(call: Call, ranks: int, nodes: int) -> None:
    """Refuse nodes that would differ in size, with the nearest numbers of nodes that do not.

    Raises:
        SpecError: with the call changed to each of them.
    """
    if ranks % nodes == 0:
        return
    each = divisors(ranks)
    near = [max(n for n in each if n < nodes), *(n for n in each if n > nodes)][:2]
    verb = "does" if ranks == 1 else "do"
    line = (
        f"{call}: {count_noun(ranks, 'rank')} {verb} not divide over {count_noun(nodes, 'node')}."
    )
    fix = f"{', or '.join(str(call.but(nodes=n)) for n in near)}."
    raise SpecError(told(line, fix=fix), world_size=ranks)
