"""A level of hardware, such as racks: the domain that each node is in."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from ..arrays import Ints
from ..errors import SpecError
from ..text import plural
from ..validate import parse_integer


@dataclass(frozen=True, eq=False)
class Level:
    """Domains of nodes, for example racks, NVLink domains or switches."""

    name: str  # noun for one domain, for example ``"rack"``
    of_node: Ints  # int64 (num_nodes,), domains are numbered in order of appearance
    names: tuple[str, ...]  # of the domains


def number_labels(level: str, labels: Iterable[Hashable]) -> tuple[Ints, tuple[str, ...]]:
    """Assign numbers to the labels in order of first appearance."""
    numbers: dict[Hashable, int] = {}
    numbered = [numbers.setdefault(label, len(numbers)) for label in labels]
    are_integers = all(parse_integer(label) is not None for label in numbers)
    return np.array(numbered, dtype=np.int64), name_domains(level if are_integers else "", numbers)


def name_domains(level: str, labels: Iterable[object]) -> tuple[str, ...]:
    """Return the names of domains: the level, if any, and the label."""
    return tuple(f"{level} {label}".lstrip() for label in labels)


def check_nested(level: Level, inner_levels: tuple[Level, ...]) -> None:
    """Check that a level splits no domain of the levels inside it."""
    for inner in inner_levels:
        parts = np.unique(np.stack([inner.of_node, level.of_node]), axis=1)[0]
        split = np.flatnonzero(np.bincount(parts) > 1)
        if len(split):
            name = inner.names[split[0]]
            line = f"the level {level.name!r} would split {name} into several {plural(level.name)}."
            fix = f"one domain for all nodes of {name}; add levels from the inside out."
            raise SpecError(line, fix=fix)
