"""Compare the statements of two jobs that move a state from one to the other.

Each side of a bridge states once, for all its ranks, the facts that both must share, the sizes of
its mesh, and its part of the state. Both sides compare the same two statements, so both raise the
same error. Ranks of the bridge are those of the trainer, and then those of the sampler::

    trainer dp=2 tp=2   ranks 0 1 2 3
    sampler tp=2        ranks 4 5
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .errors import DisagreementError, MeshkitError
from .judges import Process
from .layout import Layout
from .redistribute.mesh_move import join_axes, make_mesh_move
from .redistribute.move import check_axes, local_shape
from .redistribute.pattern import Pattern
from .redistribute.state import MovedTensor, StatePatterns, Tables, list_moved
from .text import format_sizes, plural

SIDES = "trainer", "sampler"
SUMMARY = "the trainer and the sampler disagree about bridge.transfer()."
MISFITS = 3  # tensors that an error names


@dataclass(frozen=True)
class Statement:
    """The facts that one side of a bridge states about a transfer."""

    facts: Mapping[str, str]  # must be equal on both sides
    sizes: Mapping[str, int]  # of the axes of its mesh, in order
    patterns: Sequence[tuple[str, str]]  # glob and pattern
    tables: Tables  # of its ranks, from 0
    process: Process  # of its first rank

    def to_json(self) -> str:
        """Return the statement as it stands in the store."""
        record = self.facts, [*self.sizes.items()], self.patterns, self.tables, self.process
        return json.dumps(record)

    @classmethod
    def from_json(cls, text: str) -> Statement:
        """Return the statement that a side wrote."""
        facts, sizes, patterns, tables, (host, pid, *more) = json.loads(text)
        return cls(
            {str(name): str(value) for name, value in facts.items()},
            {str(axis): int(size) for axis, size in sizes},
            [(str(glob), str(pattern)) for glob, pattern in patterns],
            [(dict(table), [int(rank) for rank in ranks]) for table, ranks in tables],
            Process(str(host), int(pid), *map(str, more)),
        )


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
        DisagreementError: if the sides state other facts, or a tensor of other shapes.
        SpecError: if a pattern does not fit one of the meshes, or names differ.
    """
    differing = [
        name
        for name in {**trainer.facts, **sampler.facts}
        if trainer.facts.get(name) != sampler.facts.get(name)
    ]
    if differing:
        lines = [
            f"{name}: {trainer.facts.get(name)} on the trainer, {sampler.facts.get(name)} on the "
            "sampler."
            for name in differing
        ]
        fix = f"the same {' and '.join(differing)} on both sides."
        raise DisagreementError(SUMMARY, *lines, fix=fix)
    count = Layout.of(trainer.sizes).num_ranks
    statements = {"trainer": trainer, "sampler": sampler}
    layouts = {
        "trainer": Layout.of(trainer.sizes),
        "sampler": Layout(sampler.sizes, ranks=range(count, count + _size(sampler))),
    }
    target = trainer.facts["to"]
    source = SIDES[SIDES.index(target) - 1]
    patterns = StatePatterns.of(dict(trainer.patterns))
    for _, pattern in patterns.globs:
        for side, name in zip((pattern.left, pattern.right), (source, target), strict=True):
            check_axes(Pattern(side, side), layouts[name].sizes)
    held, wanted = (
        [
            (table, [rank + count * (name == "sampler") for rank in ranks])
            for table, ranks in statements[name].tables
        ]
        for name in (source, target)
    )
    pair = layouts[source], layouts[target]
    moved = list_moved(patterns, *pair, held, wanted)
    if error := _shape_error(moved, pair, wanted):
        raise error
    return BridgePlan(moved, pair, count)


def _size(statement: Statement) -> int:
    return Layout.of(statement.sizes).num_ranks


def _shape_error(
    moved: Sequence[MovedTensor], layouts: tuple[Layout, Layout], wanted: Tables
) -> MeshkitError | None:
    """Return the error of a side with room of other shapes than it gets, or None."""
    source, target = layouts
    lines = []
    for tensor in moved:
        joined = join_axes(tensor.pattern, source.sizes, target.sizes)
        move = make_mesh_move(joined, source, target, tensor.sizes)
        for table, ranks in wanted:
            rank, shape = min(ranks), table.get(tensor.name)
            if shape is None or move.target.place(rank) is None:
                continue
            entries, cut = move.move.right_entries, move.move.target
            expected = [*local_shape(entries, cut.shape(move.coordinate(rank)))]
            if [*shape] != expected:
                sizes = format_sizes(tensor.sizes) or "no dims"
                lines.append(
                    f"{tensor.name} has {sizes}, so a rank gets {expected}, and `like` there has "
                    f"{[*shape]}."
                )
    if not lines:
        return None
    more = [f"{len(lines) - MISFITS} more {plural('tensor', len(lines) - MISFITS)}."]
    shown = lines[:MISFITS] + more * (len(lines) > MISFITS)
    return DisagreementError(SUMMARY, *shown, fix="the shapes of one model on both sides.")
