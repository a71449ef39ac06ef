"""Compare what ranks hold: equal contents within a class of ranks, and who differs from whom.

Each rank lists rows: a class of ranks, a name, and a content that all ranks of the class must have.
A batch has a row for each leaf, and its class is the rank's data coordinate::

    dp=0    batch['tokens']    int64 (2, 8)    9f86d081

A parameter has two rows. One class must have it, with equal dtype, shape and placements. The other
class holds the same part of it, so all bytes must be equal::

    dp=2 sp=2 tp=2            who must have it    who must hold equal bytes
    plain tensor              tp=0                tp=0
    sharded over dp by FSDP2  tp=0                tp=0, part 0 of dp

A class is the coordinate of its ranks along the axes that may differ, as text.

The last part words the disagreement of ranks whose requests for a mesh differ.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..call import either
from ..errors import CALL, BatchError, DisagreementError
from ..launch.disagreement import Request, differing_fields
from ..layout.axes import (
    axes_with_unknown,
    axis_role,
    gradient_axes,
    resolve_axes,
    unknown_axes,
    unknown_role_error,
)
from ..layout.layout import Layout
from ..text import count_noun, format_sizes, group_by, name_ranks, shorten

SLOTS = 16  # classes whose digests fit the head
DIGEST = 8  # bytes
HEAD_BYTES = SLOTS * 2 * DIGEST + 8 + 1  # the slots, the length of the details, a flag
MAX_NAMED = 4  # ranks or coordinates named in one line
MAX_CONTENTS = 8  # different contents of one row, shown one by one


class Row(NamedTuple):
    """One value that all ranks of a class must hold equally, for example a parameter.

    A class is the ranks that share the value, named by a text that all of them know: ranks with
    ``"dp=0"`` read the same samples.
    """

    ranks: str  # the class
    name: str
    content: str  # a description that ends with a digest
    is_expert: bool = False  # whether it is a parameter of an expert
    noun: str = "parameter"  # or "buffer"


@dataclass(frozen=True)
class Holdings:
    """The values that one rank holds, as it states them to the other ranks.

    The ranks first compare digests of a fixed length (:meth:`head`). If two digests of a class
    differ, the ranks exchange all rows (:meth:`packed`), and :func:`find_conflicts` names them.
    """

    rows: tuple[Row, ...]
    # the classes to which the rank belongs, so that a missing row counts as a difference; the rank
    # may state rows of other classes too
    classes: tuple[str, ...] = ()
    fault: str = ""  # the reason why the rows of this rank cannot be compared; empty if they can
    refusal: str = ""  # the error of a rank that refuses the arguments of its call

    def packed(self) -> bytes:
        """Return bytes to send."""
        return json.dumps([self.fault, self.refusal, self.classes, self.rows]).encode()

    @classmethod
    def unpacked(cls, sent: bytes) -> Holdings:
        """Return the rows that another rank packed."""
        fault, refusal, classes, rows = json.loads(sent)
        return cls(tuple(Row(*row) for row in rows), tuple(classes), fault, refusal)

    def head(self) -> bytes:
        """Return the digest of each class, with the length of the details; equal in any order."""
        classes: dict[str, list[tuple[str, str]]] = {name: [] for name in self.classes}
        for row in self.rows:
            classes.setdefault(row.ranks, []).append((row.name, row.content))
        slots = [_hash(key) + _hash(json.dumps(sorted(rows))) for key, rows in classes.items()]
        content = b"".join(slots[:SLOTS]).ljust(SLOTS * 2 * DIGEST, b"\0")
        needs_details = bool(self.fault or self.refusal) or len(slots) > SLOTS
        return content + len(self.packed()).to_bytes(8, "little") + bytes([needs_details])


def details_length(head: bytes) -> int:
    """Return the number of bytes of the details that a rank has."""
    return int.from_bytes(head[-9:-1], "little")


def heads_conflict(heads: Iterable[bytes], *, distinct: bool = False) -> bool:
    """Return whether the details of the ranks must be compared.

    They must if ranks of one class differ, or if ``distinct`` and two classes are equal.
    """
    known: dict[bytes, bytes] = {}
    for head in heads:
        if head[-1]:
            return True
        for begin in range(0, SLOTS * 2 * DIGEST, 2 * DIGEST):
            key, digest = head[begin:][:DIGEST], head[begin + DIGEST :][:DIGEST]
            if known.setdefault(key, digest) != digest:
                return True
    used = [digest for key, digest in known.items() if any(key)]
    return distinct and len({*used}) < len(used)


def find_conflicts(holdings: Mapping[int, Holdings]) -> dict[Row, dict[int, str]]:
    """Return the rows whose content differs between ranks of their class, with each content.

    Rows that a rank lacks although it must have them come first.
    """
    members = group_by((name, rank) for rank, held in holdings.items() for name in held.classes)
    rows: dict[tuple[str, str], Row] = {}
    contents: dict[tuple[str, str], dict[int, str]] = {}
    for rank, held in holdings.items():
        for row in held.rows:
            key = row.ranks, row.name
            rows.setdefault(key, row)
            missing = dict.fromkeys(members.get(row.ranks, []), "missing")
            contents.setdefault(key, missing)[rank] = row.content
    differing = [key for key, by_rank in contents.items() if len({*by_rank.values()}) > 1]
    differing.sort(key=lambda key: key[0] not in members)
    return {rows[key]: contents[key] for key in differing}


def find_fault(layout: Layout, holdings: Mapping[int, Holdings]) -> tuple[int, str] | None:
    """Return the first rank whose rows cannot be compared, and the reason."""
    rank = next((rank for rank, held in holdings.items() if held.fault), None)
    if rank is None:
        return None
    return rank, f"{holdings[rank].fault}, on {_describe_ranks(layout, [rank])}."


def refused_error(refusals: Mapping[int, str]) -> DisagreementError:
    """Return the error of a rank whose peers refuse their calls; ``refusals`` has their errors."""
    lines = [f"Rank {rank} gave up: {text}" for rank, text in refusals.items()]
    return DisagreementError(
        f"{CALL}: this call has an error on {name_ranks([*refusals])}.",
        *shorten(lines, MAX_CONTENTS, "."),
        fix=f"look at the error of {name_ranks([*refusals][:1])} first.",
        requests=dict(refusals),
    )


def batch_conflict(layout: Layout, holdings: Mapping[int, Holdings]) -> BatchError | None:
    """Return the error of conflicting batches, the same on every rank; None without a conflict."""
    if fault := find_fault(layout, holdings):
        return BatchError(
            fault[1],
            "Batches are compared as tensors and int, float, str, bytes, bool and None, in dicts, "
            "lists and tuples.",
            fix="check the part of the batch that has these types.",
        )
    if conflicts := find_conflicts(holdings):
        row, contents = next(iter(conflicts.items()))
        leaves = len([other for other in conflicts if other.ranks == row.ranks]) - 1
        coordinates = len({other.ranks for other in conflicts}) - 1
        more = [f"{leaves} other {'leaf' if leaves == 1 else 'leaves'}"] * (leaves > 0)
        more += [count_noun(coordinates, "other data coordinate")] * (coordinates > 0)
        return BatchError(
            "ranks that share samples have different batches.",
            f"{row.name} differs{f' at {row.ranks}' if row.ranks else ''}.",
            *content_lines(layout, contents),
            *[f"The same is true for {' and '.join(more)}."] * bool(more),
            fix="read by the data coordinate, not by the rank: mesh.sampler(dataset, plan); "
            "and check before sp cuts the batch.",
        )
    ranks = group_by((held.classes[0], rank) for rank, held in holdings.items())
    equal: dict[frozenset[tuple[str, str]], dict[str, None]] = {}
    for held in holdings.values():
        (coordinate,) = held.classes
        content = frozenset((row.name, row.content) for row in held.rows)
        equal.setdefault(content, {})[coordinate] = None
    first = next((coordinates for coordinates in equal.values() if len(coordinates) > 1), None)
    if first is None:
        return None
    names = [f"{coordinate} ({name_ranks(ranks[coordinate])})" for coordinate in first]
    names[MAX_NAMED:] = [f"{len(names) - MAX_NAMED} more"] * (len(names) > MAX_NAMED)
    return BatchError(
        "data coordinates that must differ have equal batches.",
        f"Equal in every leaf: {', '.join(names[:-1])} and {names[-1]}.",
        fix="give each data coordinate its own samples: mesh.sampler(dataset, plan).",
    )


@dataclass(frozen=True)
class EqualAxes:
    """The axes along which parameters must be equal."""

    dense: tuple[str, ...]  # the axes for dense layers
    experts: tuple[str, ...]  # the axes for experts, which differ along ep

    @classmethod
    def of(cls, sizes: Mapping[str, int], axes: object = None) -> EqualAxes:
        """Return the axes that a user names, or else those over which gradients are averaged."""
        if axes is not None:
            dense = resolve_axes("axes", axes, tuple(sizes))
            return cls(dense, tuple(axis for axis in dense if axis_role(axis) != "expert"))
        dense = gradient_axes(sizes)
        if unknown_axes(sizes):
            ways = [f"axes={' '.join(choice)!r}" for choice in axes_with_unknown(sizes, dense)]
            raise unknown_role_error(sizes, either(*ways))
        return cls(dense, gradient_axes(sizes, experts=True))


def parameter_conflict(
    layout: Layout, axes: EqualAxes, holdings: Mapping[int, Holdings]
) -> DisagreementError | None:
    """Return the error of the first parameter that differs, equal on every rank; None if none."""
    if fault := find_fault(layout, holdings):
        return DisagreementError(
            f"{CALL}: {fault[1]}",
            "Whole tensors and DTensors are compared.",
            fix="a module, or names with tensors, on a device, whole or sharded by fully_shard.",
            requests={fault[0]: holdings[fault[0]].fault},
        )
    conflicts = find_conflicts(holdings)
    if not conflicts:
        return None
    row, contents = next(iter(conflicts.items()))
    others = len({other.name for other in conflicts}) - 1
    averaged = axes.experts if row.is_expert else axes.dense
    along = axes_along_which(layout, contents)
    reason = "Its placements say that these ranks hold the same part."
    if {*along} <= {*averaged}:
        noun = "Gradients of experts" if row.is_expert else "Gradients"
        over = " ".join(averaged)
        reason = f"{noun} are averaged over {over}, so {row.noun}s must be equal there."
    is_kind = any(row.ranks in held.classes for held in holdings.values())
    return DisagreementError(
        f"{CALL}: the {row.noun} {row.name} differs along {' '.join(along)}.",
        *content_lines(layout, contents),
        *[f"The same is true for {count_noun(others, f'other {row.noun}')}."] * (others > 0),
        reason,
        fix="build an equal model on these ranks." if is_kind else _fix(along, averaged, row),
        requests=dict(contents),
        parameter=row.name,
    )


def _fix(along: Sequence[str], averaged: Sequence[str], row: Row) -> str:
    """Return what to type: the group that averages gradients, or the mark of an expert."""
    if not {*along} <= {*averaged}:
        return f"equal weights and gradients of {row.name} on the ranks along {' '.join(along)}."
    if row.is_expert:
        group = "mesh.gradient_group(experts=True)"
        size = "the size of mesh.gradient_group()"
        return f"sum gradients of experts over {group}, and divide them by {size}."
    if row.noun == "buffer":
        return (
            "dist.broadcast(buffer, group_src=0, group=mesh.gradient_group()) for each buffer; for "
            "the statistics of batches, torch's SyncBatchNorm over that group."
        )
    ways = ["DistributedDataParallel(model, process_group=mesh.gradient_group())"]
    if all(axis_role(axis) == "expert" for axis in along):
        ways += ["parameter.allreduce = False for each parameter of an expert"]
    elif len(averaged) > 1:
        ways += [f'fully_shard(model, mesh=mesh.device_mesh("({" ".join(averaged)})"))']
    return either(*ways)


def axes_along_which(layout: Layout, contents: Mapping[int, str]) -> list[str]:
    """Return the axes along which a step alone changes the content; all, if none does."""
    coordinates = {rank: layout.coordinate(rank) for rank in contents}
    axes = []
    for axis in layout.axes:
        seen: dict[tuple[int, ...], set[str]] = {}
        for rank, coordinate in coordinates.items():
            others = tuple(index for name, index in coordinate.items() if name != axis)
            seen.setdefault(others, set()).add(contents[rank])
        axes += [axis] * any(len(texts) > 1 for texts in seen.values())
    return axes or list(layout.axes)


def content_lines(layout: Layout, contents: Mapping[int, str]) -> list[str]:
    """Return a line for each different content, with the ranks that have it."""
    ranks_of = group_by((content, rank) for rank, content in contents.items())
    lines = [f"{_describe_ranks(layout, ranks)}:  {text}" for text, ranks in ranks_of.items()]
    return shorten(lines, MAX_CONTENTS, ".")


def _describe_ranks(layout: Layout, ranks: Sequence[int]) -> str:
    """Return ranks with coordinates: ``ranks 0-1 (dp=0 sp=0; dp=0 sp=1)``."""
    coordinates = [format_sizes(layout.coordinate(rank)) for rank in ranks]
    return f"{name_ranks(ranks)} ({'; '.join(shorten(coordinates, MAX_NAMED))})"


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=DIGEST).digest()


def order_conflict(orders: Mapping[int, Request]) -> DisagreementError | None:
    """Return the error of two ranks that read batches of different orders; None if equal."""
    fields = differing_fields([*orders.values()])
    if not fields:
        return None
    values = {
        rank: ", ".join(f"{name}={order.get(name, 'none')}" for name in fields)
        for rank, order in orders.items()
    }
    return DisagreementError(
        f"ranks read batches of another {' and '.join(fields)}.",
        f"{', '.join(f'rank {rank}: {text}' for rank, text in values.items())}.",
        fix=f"give mesh.batch and mesh.sampler an equal {' and '.join(fields)} on every rank.",
        requests=values,
        for_all=True,
    )
