"""Compare the statements of two jobs that move a state from one to the other.

Each side of a bridge states once, for all its ranks, the facts that both must share, the sizes of
its mesh, and its part of the state. Both sides compare the same two statements, so both raise the
same error. Ranks of the bridge are those of the trainer, and then those of the sampler::

    trainer dp=2 tp=2   ranks 0 1 2 3
    sampler tp=2        ranks 4 5
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import VERSION
from ..launch.judges import Process
from ..layout.layout import Layout
from .state import (
    Difference,
    Ends,
    MovedTensor,
    StatePatterns,
    Tables,
    plan_moves,
    raise_differences,
)

SIDES = "trainer", "sampler"
CALL = "bridge.transfer"


@dataclass(frozen=True)
class Statement:
    """The facts that one side of a bridge states about a transfer."""

    facts: Mapping[str, str]  # must be equal on both sides
    patterns: Mapping[str, str]  # by glob; must be equal too, in equal order
    sizes: Mapping[str, int]  # of the axes of its mesh, in order
    tables: Tables  # of its ranks, from 0
    process: Process  # of its first rank

    def to_json(self) -> str:
        """Return the statement as it stands in the store."""
        rest = [*self.patterns.items()], [*self.sizes.items()], self.tables, self.process
        return json.dumps([self.facts, *rest])

    @classmethod
    def from_json(cls, text: str) -> Statement:
        """Return the statement that a side wrote; of another version only its facts."""
        given, *rest, (host, pid, *more) = json.loads(text)
        facts = {str(name): str(value) for name, value in given.items()}
        process = Process(str(host), int(pid), *map(str, more))
        if facts["meshkit"] != VERSION:
            return cls(facts, {}, {}, [], process)
        patterns, sizes, tables = rest
        return cls(
            facts,
            {str(glob): str(pattern) for glob, pattern in patterns},
            {str(axis): int(size) for axis, size in sizes},
            [
                ({str(name): _fact(*fact) for name, fact in table.items()}, [*map(int, ranks)])
                for table, ranks in tables
            ],
            process,
        )


def _fact(place: Any, dtype: object, is_dtensor: object) -> list[Any]:  # noqa: ANN401
    """Return what a side wrote about a tensor: its global sizes or its local shape, and more."""
    more = str(dtype), bool(is_dtensor)
    if isinstance(place, dict):
        return [{str(dim): int(size) for dim, size in place.items()}, *more]
    return [[*map(int, place)], *more]


class BridgePlan(NamedTuple):
    """The tensors that move, and the ranks of both sides."""

    moved: list[MovedTensor]
    layouts: tuple[Layout, Layout]  # of the source and of the target
    trainer_ranks: int

    @property
    def num_ranks(self) -> int:
        """The ranks of both sides."""
        return sum(layout.num_ranks for layout in self.layouts)

    def describe(self, rank: int) -> str:
        """Return the side of a rank of the bridge, and its position there."""
        is_sampler = rank >= self.trainer_ranks
        return f"{SIDES[is_sampler]} rank {rank - is_sampler * self.trainer_ranks}"


def plan_bridge(trainer: Statement, sampler: Statement) -> BridgePlan:
    """Return what moves between two sides.

    Raises:
        DisagreementError: if the sides state other facts or patterns, or have other names, dtypes
            or shapes.
        UnknownAxisError: if a pattern names an axis that its mesh lacks.
    """
    found = [
        Difference(name, f"{name}: {own or None} on the trainer, {other or None} on the sampler.")
        for name, own, other in _differing(trainer.facts, sampler.facts)
    ]
    if any(difference.kind in ("meshkit", "to") for difference in found):
        raise_differences(Ends(CALL, *SIDES), found)  # the rest means something else
    found += _differing_patterns(trainer.patterns, sampler.patterns)
    statements = dict(zip(SIDES, (trainer, sampler), strict=True))
    first, layouts, tables = 0, {}, {}
    for side, statement in statements.items():
        size = Layout.of(statement.sizes).num_ranks
        layouts[side] = Layout(statement.sizes, ranks=range(first, first + size))
        tables[side] = [(table, [first + n for n in ranks]) for table, ranks in statement.tables]
        first += size
    target = trainer.facts["to"]
    source = SIDES[SIDES.index(target) - 1]
    patterns, pair = StatePatterns.of(trainer.patterns), (layouts[source], layouts[target])
    patterns.check(pair)
    dtype, ends = trainer.facts["dtype"], Ends(CALL, source, target)
    moved = plan_moves(patterns, pair, tables[source], tables[target], dtype, ends, found)
    return BridgePlan(moved, pair, layouts["trainer"].num_ranks)


def _differing(
    first: Mapping[str, str], second: Mapping[str, str]
) -> list[tuple[str, str | None, str | None]]:
    """Return the keys of which two mappings have different values, with both values."""
    pairs = [(key, first.get(key), second.get(key)) for key in {**first, **second}]
    return [pair for pair in pairs if pair[1] != pair[2]]


def _differing_patterns(trainer: Mapping[str, str], sampler: Mapping[str, str]) -> list[Difference]:
    differing = [
        Difference("patterns", f"{glob!r}: {own!r} on the trainer, {other!r} on the sampler.")
        for glob, own, other in _differing(trainer, sampler)
    ]
    if not differing and [*trainer] != [*sampler]:
        line = f"order: {', '.join(trainer)} on the trainer, {', '.join(sampler)} on the sampler."
        return [Difference("order of patterns", line)]
    return differing
