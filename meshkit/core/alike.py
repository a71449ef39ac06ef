"""Which ranks hold equal batches: those that share samples must, data coordinates must not.

A batch is known by its leaves, each a path, what it is, and a digest of its bytes::

    batch['tokens']    int64 (2, 8)    9f86d081
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .call import Call
from .disagree import NAMED
from .errors import BatchError, told
from .layout import Layout
from .words import count_noun, name_ranks

SHOWN = 8  # different contents of one leaf, shown one by one
PLAIN = "int, float, str, bytes, bool and None"

Leaves = Mapping[str, str]  # the path of each leaf to what it holds, in words, with a digest


@dataclass(frozen=True)
class Held:
    """What a rank holds.

    Attributes:
        leaves: the path of each leaf to what it holds.
        fault: why it cannot be compared, in words; empty where it can.
    """

    leaves: Leaves
    fault: str = ""

    def packed(self) -> bytes:
        """As bytes, to be sent. Equal batches have equal bytes, whatever the order of keys."""
        return json.dumps([self.fault, dict(self.leaves)], sort_keys=True).encode()

    @classmethod
    def unpacked(cls, sent: bytes) -> Held:
        """What another rank sent."""
        fault, leaves = json.loads(sent)
        return cls(leaves, fault)

    def digest(self) -> bytes:
        """32 bytes, equal where all is equal."""
        return hashlib.blake2b(self.packed(), digest_size=32).digest()


def coordinates(layout: Layout, data: Sequence[str]) -> dict[int, str]:
    """Each rank with its data coordinate in words: ``dp=0``. O(ranks)."""
    ranks = [int(rank) for rank in layout.grid.flat]
    return {rank: _place(layout, rank, data) for rank in ranks}


def is_fault(digests: Mapping[int, object], where: Mapping[int, str]) -> bool:
    """Whether ranks of one data coordinate differ, or two data coordinates are alike.

    Example:
        >>> where = {0: "dp=0", 1: "dp=0", 2: "dp=1"}
        >>> good, odd, alike = b"xxy", b"xzy", b"xxx"
        >>> [is_fault(dict(enumerate(digests)), where) for digests in (good, odd, alike)]
        [False, True, True]
    """
    pairs = {(where[rank], digest) for rank, digest in digests.items()}
    return not len(pairs) == len(set(where.values())) == len(set(digests.values()))


def batch_fault(
    call: Call, layout: Layout, data: Sequence[str], held: Mapping[int, Held]
) -> BatchError:
    """What is wrong, the same on every rank.

    Args:
        call: the call to quote.
        layout: the ranks.
        data: the axes that divide the samples.
        held: what each rank holds, where something is wrong.
    """
    for rank, one in held.items():
        if one.fault:
            return _refused(call, layout, rank, one.fault)
    shares: dict[str, list[int]] = {}
    for rank, place in coordinates(layout, data).items():
        shares.setdefault(place, []).append(rank)
    odd = {place: found for place, r in shares.items() if (found := _differing(held, r))}
    if odd:
        return _not_shared(call, layout, held, shares, odd)
    return _not_divided(call, held, shares)


def _refused(call: Call, layout: Layout, rank: int, fault: str) -> BatchError:
    text = told(
        f"{call}: {fault}, on {_named(layout, [rank])}.",
        f"Compared are tensors and {PLAIN}, in dicts, lists and tuples.",
        fix="check the part of the batch that is made of these.",
    )
    return BatchError(text)


def _not_shared(
    call: Call,
    layout: Layout,
    held: Mapping[int, Held],
    shares: Mapping[str, list[int]],
    odd: Mapping[str, list[str]],
) -> BatchError:
    """The first leaf that differs in the first data coordinate where one does."""
    place, paths = next(iter(odd.items()))
    alike: dict[str, list[int]] = {}
    for rank in shares[place]:
        alike.setdefault(held[rank].leaves.get(paths[0], "not there"), []).append(rank)
    lines = [f"{_named(layout, ranks)}:  {what}" for what, ranks in alike.items()]
    lines[SHOWN:] = [f"and {len(lines) - SHOWN} more."] * (len(lines) > SHOWN)
    more = [count_noun(len(paths) - 1, "other leaf").replace("leafs", "leaves")] * (len(paths) > 1)
    more += [count_noun(len(odd) - 1, "other data coordinate")] * (len(odd) > 1)
    text = told(
        f"{call}: ranks that share samples hold different ones.",
        f"{paths[0]} differs{f' at {place}' if place else ''}.",
        *lines,
        *([f"So it is with {' and '.join(more)}."] if more else []),
        fix="read by the data coordinate, not by the rank: mesh.sampler(dataset, plan); "
        "and check before sp cuts the batch.",
    )
    return BatchError(text)


def _not_divided(
    call: Call, held: Mapping[int, Held], shares: Mapping[str, list[int]]
) -> BatchError:
    """The first data coordinates that hold one batch."""
    alike: dict[bytes, list[str]] = {}
    for place, ranks in shares.items():
        alike.setdefault(held[ranks[0]].digest(), []).append(place)
    equal = [places for places in alike.values() if len(places) > 1]
    who = [f"{place} ({name_ranks(shares[place])})" for place in equal[0]]
    who[NAMED:] = [f"{len(who) - NAMED} more"] * (len(who) > NAMED)
    text = told(
        f"{call}: data coordinates that must differ hold the same samples.",
        f"Equal in every leaf: {', '.join(who[:-1])} and {who[-1]}.",
        fix="give each data coordinate its own samples: mesh.sampler(dataset, plan).",
    )
    return BatchError(text)


def _differing(held: Mapping[int, Held], ranks: Sequence[int]) -> list[str]:
    """The paths at which some ranks do not hold the same."""
    paths = dict.fromkeys(path for rank in ranks for path in held[rank].leaves)
    return [path for path in paths if len({held[r].leaves.get(path) for r in ranks}) > 1]


def _named(layout: Layout, ranks: Sequence[int]) -> str:
    """``ranks 0-1 (dp=0 sp=0; dp=0 sp=1)``."""
    where = [_place(layout, rank, layout.axes) for rank in ranks[:NAMED]]
    where += [f"and {len(ranks) - NAMED} more"] * (len(ranks) > NAMED)
    return f"{name_ranks(ranks)} ({'; '.join(where)})"


def _place(layout: Layout, rank: int, axes: Sequence[str]) -> str:
    coordinate = layout.coordinate(rank)
    return " ".join(f"{axis}={coordinate[axis]}" for axis in axes)
