"""Ranks and positions: the members of a group from sizes and strides of axes, in O(axes).

A step along an axis moves a position by the stride of that axis::

    dp=4 sp=2 tp=2      dp: 4 steps of 4      sp: 2 steps of 2      tp: 2 steps of 1

    (dp, sp)  is  4 of 4, then 2 of 2: 0 2 4 6 8 10 12 14, the same as 8 steps of 2
    (sp, tp)  is  2 of 2, then 2 of 1: 0 1 2 3, the same as 4 steps of 1
    (tp, sp)  is  2 of 1, then 2 of 2: 0 2 1 3, which is no single step

With as few steps as possible, equal strides mean equal groups, also between two factorizations of
the same ranks: see :meth:`meshkit.Layout.strides`.

RankPositions has the rank at each position of a grid, and the position of each rank. A range costs
nothing; any other order costs one array and its inverse::

    position   0  1  2  3            position   0  1  2  3
    rank       8  9 10 11            rank       0  4  1  5
    range(8, 12)                     an array, and its argsort
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ..call import format_value, parse_integer
from ..errors import CALL, CoordinateError, SpecError
from ..text import Ints, count_noun

Strides = tuple[tuple[int, int], ...]  # size, stride; the outermost first
MAX_MESSAGES = 128  # of one batch of sends and receives
MAX_RANK = 2**63 - 2  # the end of a range up to it still fits int64


def offsets(steps: Strides) -> Ints:
    """Return the distance of each member of a group from its first one: int64 (group_size,)."""
    distances = np.zeros(1, dtype=np.int64)
    for size, stride in steps:
        along = np.arange(0, size * stride, stride, dtype=np.int64)
        distances = (distances[:, None] + along).ravel()
    return distances


def group_start(position: int, steps: Strides) -> int:
    """Return the first position of a position's group: index 0 on each of its axes."""
    return position - sum(position // stride % size * stride for size, stride in steps)


def indices(positions: Ints, shape: Sequence[int]) -> Ints:
    """Return the index along each axis of many positions: int64 (*positions.shape, num_axes)."""
    return np.stack(np.unravel_index(positions, tuple(shape)), axis=-1).astype(np.int64, copy=False)


class RankPositions:
    """The ranks of a grid in row-major order of its positions."""

    def __init__(self, ranks: range | Ints) -> None:
        if not isinstance(ranks, range):
            ranks.flags.writeable = False
        self.ranks = ranks

    def __reduce__(self) -> tuple[type[RankPositions], tuple[range | Ints]]:
        return RankPositions, (self.ranks,)  # a copy is read-only too

    @classmethod
    def of(cls, ranks: Sequence[int] | Ints, num_positions: int | None) -> RankPositions:
        """Return the positions of ranks as a caller lists them, after a check of the ranks."""
        ranks = ranks if isinstance(ranks, range) else _parse_ranks(ranks)
        if len(ranks) == 0:
            raise _ranks_error("ranks is empty")
        if num_positions is not None and len(ranks) != num_positions:
            positions = count_noun(num_positions, "position")
            raise SpecError(
                f"{CALL} has {positions} and {count_noun(len(ranks), 'rank')}.",
                "Each position of the grid holds one rank.",
                fix=f"for example ranks=range({num_positions}), or other sizes.",
            )
        if isinstance(ranks, range):
            _check_bounds(min(ranks[0], ranks[-1]), max(ranks[0], ranks[-1]))
        return cls(_compact(ranks))

    def at(self, position: int) -> int:
        """Return the rank at a position. O(1)."""
        return int(self.ranks[position])

    def array(self) -> Ints:
        """Return all ranks, by position: int64 (num_positions,)."""
        if isinstance(self.ranks, range):
            return np.arange(self.ranks.start, self.ranks.stop, self.ranks.step, dtype=np.int64)
        return self.ranks

    def take(self, positions: Ints) -> Ints:
        """Return the ranks at many positions, in the shape of ``positions``."""
        if isinstance(self.ranks, range):
            return positions * self.ranks.step + self.ranks.start
        return self.ranks[positions]

    def find(self, rank: int) -> int | None:
        """Return the position of a rank, or None. O(1) for a range, O(log n) otherwise."""
        if isinstance(self.ranks, range):
            return self.ranks.index(rank) if rank in self.ranks else None
        index = int(np.searchsorted(self._sorted, rank))
        exists = index < len(self._order) and self._sorted[index] == rank
        return int(self._order[index]) if exists else None

    def find_all(self, ranks: Ints) -> Ints:
        """Return the positions of many ranks, in their shape; -1 for a rank without a position."""
        if isinstance(self.ranks, range):
            start, step = self.ranks.start, self.ranks.step
            positions, remainder = np.divmod(ranks - start, step)
            known = (positions >= 0) & (positions < len(self.ranks)) & (remainder == 0)
            return np.where(known, positions, -1)
        index = np.minimum(np.searchsorted(self._sorted, ranks), len(self._order) - 1)
        return np.where(self._sorted[index] == ranks, self._order[index], -1)

    @property
    def is_identity(self) -> bool:
        """Whether each rank equals its position."""
        return isinstance(self.ranks, range) and self.ranks == range(len(self.ranks))

    def __str__(self) -> str:
        if isinstance(self.ranks, range) and self.ranks.step == 1:
            return f"from {self.ranks[0]} to {self.ranks[-1]}"
        return f"among {format_value([*self.ranks[:8]] if len(self) <= 8 else self.ranks)}"

    def __len__(self) -> int:
        return len(self.ranks)

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, RankPositions) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> range | bytes:
        return self.ranks if isinstance(self.ranks, range) else self.ranks.tobytes()

    @cached_property
    def _order(self) -> Ints:
        return np.argsort(self.array(), kind="stable")

    @cached_property
    def _sorted(self) -> Ints:
        return self.array()[self._order]


def _ranks_error(fault: str) -> SpecError:
    return SpecError(f"{fault}.", fix="distinct ranks of this world, such as ranks=range(4).")


def _parse_ranks(ranks: Sequence[int] | Ints) -> Ints:
    """Return ranks of any sequence as an array of its own: int64 (num_ranks,)."""
    array: np.ndarray[Any, Any]
    if isinstance(ranks, np.ndarray) and ranks.dtype.kind in "iu" and ranks.ndim == 1:
        array = ranks.copy()  # ours is read-only
    else:
        try:
            numbers = [parse_integer(rank) for rank in ranks]
        except TypeError:
            raise _ranks_error(f"ranks is {ranks!r}") from None
        if None in numbers:
            raise _ranks_error("ranks contains a value that is not an int")
        array = np.array(numbers, dtype=object)
    if len(array):
        _check_bounds(int(array.min()), int(array.max()))
    ordered = np.sort(array)  # np.unique imports numpy.ma, which takes each rank 20 ms
    if (ordered[1:] == ordered[:-1]).any():
        raise _ranks_error("ranks contains a rank twice")
    return array.astype(np.int64)


def _check_bounds(low: int, high: int) -> None:
    if low < 0 or high > MAX_RANK:
        raise _ranks_error(f"a rank is {'negative' if low < 0 else 'more than int64 can hold'}")


def _compact(ranks: range | Ints) -> range | Ints:
    """Return the same ranks, as a range if they are an arithmetic progression."""
    if isinstance(ranks, range):
        return range(ranks[0], ranks[0] + 1) if len(ranks) == 1 else ranks
    steps = np.diff(ranks)
    if (steps != steps[:1]).any():
        return ranks
    step = int(steps[0]) if len(steps) else 1
    return range(int(ranks[0]), int(ranks[-1]) + (1 if step > 0 else -1), step)


def unknown_rank_error(rank: int, layout: object, positions: RankPositions) -> CoordinateError:
    """Return the error for a rank that is not in a layout."""
    return CoordinateError(
        f"rank {rank} is not in {layout!r}.",
        f"It has {count_noun(len(positions), 'rank')}, {positions}.",
        fix=f"a rank {positions}.",
        index=rank,
        size=len(positions),
    )


def message_batches(
    rank: int, num_ranks: int, sent: Sequence[int], received: Sequence[int]
) -> list[tuple[list[int], list[int]]]:
    """Return batches of messages that every rank can run one after the other, each with its peers.

    A batch has at most 128 messages: NCCL may hang with more than 256 (pytorch#174288). A rank runs
    its next batch when all messages of this one have met their peers. So both ranks of a message
    put it into the batch with the same key. The key has two numbers: which message of the pair it
    is, and the distance between the ranks, in blocks of 64.

    ``sent`` has the peer of each message that ``rank`` sends, several to one peer in their order,
    and ``received`` those of the messages that it receives. The result has for each batch the
    indexes of its messages in both.

    Example:
        >>> message_batches(0, 200, [1, 70, 1], [199])
        [([0], [0]), ([1], []), ([2], [])]
    """
    batches: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    for side, peers in enumerate((sent, received)):
        numbers: Counter[int] = Counter()
        for index, peer in enumerate(peers):
            distance = (rank - peer if side else peer - rank) % num_ranks
            key = numbers[peer], (distance - 1) // (MAX_MESSAGES // 2)
            batches.setdefault(key, ([], []))[side].append(index)
            numbers[peer] += 1
    return [batches[key] for key in sorted(batches)]
