"""Compare batches of ranks: equal within a data coordinate, different between two of them.

A batch is described by its leaves: a path, dtype and shape, and a digest of the bytes::

    batch['tokens']    int64 (2, 8)    9f86d081
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import BatchError
from ..grid.layout import Layout
from ..text import count_noun, format_sizes, name_ranks

MAX_NAMED = 4  # ranks or coordinates named in one line
MAX_CONTENTS = 8  # different contents of one leaf, shown one by one
PLAIN = "int, float, str, bytes, bool and None"

Leaves = Mapping[str, str]  # path of each leaf to its description, which ends with a digest


@dataclass(frozen=True)
class BatchDigest:
    """The batch of a rank, as descriptions of its leaves.

    Attributes:
        leaves: the path of each leaf to its description.
        fault: the reason why the batch cannot be compared; empty if it can.
    """

    leaves: Leaves
    fault: str = ""

    def packed(self) -> bytes:
        """Return bytes to send. Equal batches have equal bytes, in any order of keys."""
        return json.dumps([self.fault, dict(self.leaves)], sort_keys=True).encode()

    @classmethod
    def unpacked(cls, sent: bytes) -> BatchDigest:
        """Return the digest that another rank packed."""
        fault, leaves = json.loads(sent)
        return cls(leaves, fault)

    def digest(self) -> bytes:
        """Return 32 bytes, equal if and only if all leaves and faults are equal."""
        return hashlib.blake2b(self.packed(), digest_size=32).digest()


def data_coordinates(layout: Layout, data: Sequence[str]) -> dict[int, str]:
    """Return rank to data coordinate as text, for example ``dp=0``. Cost: O(ranks)."""
    ranks = [int(rank) for rank in layout.grid.flat]
    return {rank: _format_coordinate(layout, rank, data) for rank in ranks}


def digests_conflict(digests: Mapping[int, object], where: Mapping[int, str]) -> bool:
    """Return whether ranks of one data coordinate differ, or two data coordinates are equal.

    Example:
        >>> where = {0: "dp=0", 1: "dp=0", 2: "dp=1"}
        >>> good, odd, alike = b"xxy", b"xzy", b"xxx"
        >>> [digests_conflict(dict(enumerate(digests)), where) for digests in (good, odd, alike)]
        [False, True, True]
    """
    pairs = {(where[rank], digest) for rank, digest in digests.items()}
    return not len(pairs) == len(set(where.values())) == len(set(digests.values()))


def batch_conflict_error(
    layout: Layout, data: Sequence[str], held: Mapping[int, BatchDigest]
) -> BatchError:
    """Return the error of conflicting batches, the same on every rank.

    Args:
        layout: the ranks of the mesh.
        data: the axes that divide the samples.
        held: the batch of each rank; they conflict.
    """
    for rank, one in held.items():
        if one.fault:
            return _unreadable_error(layout, rank, one.fault)
    shares: dict[str, list[int]] = {}
    for rank, place in data_coordinates(layout, data).items():
        shares.setdefault(place, []).append(rank)
    odd = {place: found for place, r in shares.items() if (found := _differing_paths(held, r))}
    if odd:
        return _not_shared_error(layout, held, shares, odd)
    return _not_divided_error(held, shares)


def _unreadable_error(layout: Layout, rank: int, fault: str) -> BatchError:
    return BatchError(
        f"{fault}, on {_format_ranks(layout, [rank])}.",
        f"Compared are tensors and {PLAIN}, in dicts, lists and tuples.",
        fix="check the part of the batch that is made of these.",
    )


def _not_shared_error(
    layout: Layout,
    held: Mapping[int, BatchDigest],
    shares: Mapping[str, list[int]],
    odd: Mapping[str, list[str]],
) -> BatchError:
    """Return the error about the first leaf that differs within a data coordinate."""
    place, paths = next(iter(odd.items()))
    alike: dict[str, list[int]] = {}
    for rank in shares[place]:
        alike.setdefault(held[rank].leaves.get(paths[0], "not there"), []).append(rank)
    lines = [f"{_format_ranks(layout, ranks)}:  {what}" for what, ranks in alike.items()]
    lines[MAX_CONTENTS:] = [f"and {len(lines) - MAX_CONTENTS} more."] * (len(lines) > MAX_CONTENTS)
    more = [count_noun(len(paths) - 1, "other leaf").replace("leafs", "leaves")] * (len(paths) > 1)
    more += [count_noun(len(odd) - 1, "other data coordinate")] * (len(odd) > 1)
    return BatchError(
        "ranks that share samples hold different ones.",
        f"{paths[0]} differs{f' at {place}' if place else ''}.",
        *lines,
        *([f"So it is with {' and '.join(more)}."] if more else []),
        fix="read by the data coordinate, not by the rank: mesh.sampler(dataset, plan); "
        "and check before sp cuts the batch.",
    )


def _not_divided_error(
    held: Mapping[int, BatchDigest], shares: Mapping[str, list[int]]
) -> BatchError:
    """Return the error about the first data coordinates that hold equal batches."""
    alike: dict[bytes, list[str]] = {}
    for place, ranks in shares.items():
        alike.setdefault(held[ranks[0]].digest(), []).append(place)
    equal = [places for places in alike.values() if len(places) > 1]
    who = [f"{place} ({name_ranks(shares[place])})" for place in equal[0]]
    who[MAX_NAMED:] = [f"{len(who) - MAX_NAMED} more"] * (len(who) > MAX_NAMED)
    return BatchError(
        "data coordinates that must differ hold the same samples.",
        f"Equal in every leaf: {', '.join(who[:-1])} and {who[-1]}.",
        fix="give each data coordinate its own samples: mesh.sampler(dataset, plan).",
    )


def _differing_paths(held: Mapping[int, BatchDigest], ranks: Sequence[int]) -> list[str]:
    """Return the paths whose leaves differ between some ranks."""
    paths = dict.fromkeys(path for rank in ranks for path in held[rank].leaves)
    return [path for path in paths if len({held[r].leaves.get(path) for r in ranks}) > 1]


def _format_ranks(layout: Layout, ranks: Sequence[int]) -> str:
    """Return ranks with coordinates: ``ranks 0-1 (dp=0 sp=0; dp=0 sp=1)``."""
    where = [_format_coordinate(layout, rank, layout.axes) for rank in ranks[:MAX_NAMED]]
    where += [f"and {len(ranks) - MAX_NAMED} more"] * (len(ranks) > MAX_NAMED)
    return f"{name_ranks(ranks)} ({'; '.join(where)})"


def _format_coordinate(layout: Layout, rank: int, axes: Sequence[str]) -> str:
    coordinate = layout.coordinate(rank)
    return format_sizes({axis: coordinate[axis] for axis in axes})
