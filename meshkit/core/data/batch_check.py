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
from ..text import count_noun, format_sizes, name_ranks, shorten

MAX_NAMED = 4  # ranks or coordinates named in one line
MAX_CONTENTS = 8  # different contents of one leaf or parameter, shown one by one
PLAIN = "int, float, str, bytes, bool and None"

Leaves = Mapping[str, str]  # path of each leaf to its description, which ends with a digest


@dataclass(frozen=True)
class BatchDigest:
    """The batch of a rank, as descriptions of its leaves."""

    leaves: Leaves  # the path of each leaf to its description
    fault: str = ""  # the reason why the batch cannot be compared; empty if it can

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


def digests_conflict(digests: Mapping[int, object], coordinates: Mapping[int, str]) -> bool:
    """Return whether ranks of one data coordinate differ, or two data coordinates are equal."""
    pairs = {(coordinates[rank], digest) for rank, digest in digests.items()}
    return not len(pairs) == len(set(coordinates.values())) == len(set(digests.values()))


def batch_conflict_error(
    layout: Layout, data: Sequence[str], batches: Mapping[int, BatchDigest]
) -> BatchError:
    """Return the error of conflicting batches, the same on every rank."""
    for rank, batch in batches.items():
        if batch.fault:
            return _unreadable_error(layout, rank, batch.fault)
    shares: dict[str, list[int]] = {}
    for rank, coordinate in data_coordinates(layout, data).items():
        shares.setdefault(coordinate, []).append(rank)
    differing = {at: _differing_paths(batches, ranks) for at, ranks in shares.items()}
    differing = {at: paths for at, paths in differing.items() if paths}
    if differing:
        return _not_shared_error(layout, batches, shares, differing)
    return _not_divided_error(batches, shares)


def _unreadable_error(layout: Layout, rank: int, fault: str) -> BatchError:
    return BatchError(
        f"{fault}, on {describe_ranks(layout, [rank])}.",
        f"Batches are compared as tensors and {PLAIN}, in dicts, lists and tuples.",
        fix="check the part of the batch that has these types.",
    )


def _not_shared_error(
    layout: Layout,
    batches: Mapping[int, BatchDigest],
    shares: Mapping[str, list[int]],
    differing: Mapping[str, list[str]],
) -> BatchError:
    """Return the error of the first leaf that differs within a data coordinate."""
    coordinate, paths = next(iter(differing.items()))
    contents = {rank: batches[rank].leaves.get(paths[0], "missing") for rank in shares[coordinate]}
    more = [count_noun(len(paths) - 1, "other leaf").replace("leafs", "leaves")] * (len(paths) > 1)
    more += [count_noun(len(differing) - 1, "other data coordinate")] * (len(differing) > 1)
    return BatchError(
        "ranks that share samples have different batches.",
        f"{paths[0]} differs{f' at {coordinate}' if coordinate else ''}.",
        *content_lines(layout, contents),
        *([f"The same is true for {' and '.join(more)}."] if more else []),
        fix="read by the data coordinate, not by the rank: mesh.sampler(dataset, plan); "
        "and check before sp cuts the batch.",
    )


def _not_divided_error(
    batches: Mapping[int, BatchDigest], shares: Mapping[str, list[int]]
) -> BatchError:
    """Return the error of the first data coordinates that have equal batches."""
    equal: dict[bytes, list[str]] = {}
    for coordinate, ranks in shares.items():
        equal.setdefault(batches[ranks[0]].digest(), []).append(coordinate)
    first = next(coordinates for coordinates in equal.values() if len(coordinates) > 1)
    names = [f"{coordinate} ({name_ranks(shares[coordinate])})" for coordinate in first]
    names[MAX_NAMED:] = [f"{len(names) - MAX_NAMED} more"] * (len(names) > MAX_NAMED)
    return BatchError(
        "data coordinates that must differ have equal batches.",
        f"Equal in every leaf: {', '.join(names[:-1])} and {names[-1]}.",
        fix="give each data coordinate its own samples: mesh.sampler(dataset, plan).",
    )


def _differing_paths(batches: Mapping[int, BatchDigest], ranks: Sequence[int]) -> list[str]:
    """Return the paths whose leaves differ between some ranks."""
    paths = dict.fromkeys(path for rank in ranks for path in batches[rank].leaves)
    return [path for path in paths if len({batches[r].leaves.get(path) for r in ranks}) > 1]


def content_lines(layout: Layout, contents: Mapping[int, str]) -> list[str]:
    """Return a line for each different content, with the ranks that have it."""
    ranks_of: dict[str, list[int]] = {}
    for rank, content in contents.items():
        ranks_of.setdefault(content, []).append(rank)
    lines = [f"{describe_ranks(layout, ranks)}:  {text}" for text, ranks in ranks_of.items()]
    return shorten(lines, MAX_CONTENTS, ".")


def describe_ranks(layout: Layout, ranks: Sequence[int]) -> str:
    """Return ranks with coordinates: ``ranks 0-1 (dp=0 sp=0; dp=0 sp=1)``."""
    coordinates = [format_sizes(layout.coordinate(rank)) for rank in ranks]
    return f"{name_ranks(ranks)} ({'; '.join(shorten(coordinates, MAX_NAMED))})"


def _format_coordinate(layout: Layout, rank: int, axes: Sequence[str]) -> str:
    coordinate = layout.coordinate(rank)
    return format_sizes({axis: coordinate.get(axis, 0) for axis in axes})
