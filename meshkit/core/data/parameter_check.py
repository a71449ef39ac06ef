"""Compare the parameters of ranks: those that hold the same part of one must hold equal bytes.

Each rank lists its parameters. Two strings say with whom a parameter is compared::

    peers   the ranks that must have the parameter, with equal dtype, shape and placements
    share   those of them that hold the same part of it, so that all bytes must be equal

    dp=2 sp=2 tp=2            peers    share
    plain tensor              tp=0     tp=0
    sharded over dp by FSDP2  tp=0     tp=0, part 0 of dp

Both are the rank's coordinate along the axes that may differ, as text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..call import either
from ..errors import CALL, DisagreementError
from ..grid.axis_names import resolve_axes
from ..grid.layout import Layout
from ..grid.roles import (
    axes_with_unknown,
    axis_role,
    gradient_axes,
    unknown_axes,
    unknown_role_error,
)
from ..text import count_noun
from .batch_check import content_lines, describe_ranks

SLOTS = 16  # classes of parameters whose digests fit the head
DIGEST = 8  # bytes
HEAD_BYTES = SLOTS * 2 * DIGEST + 8 + 1  # the slots, the length of the details, a flag


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
            ways = [f"axes={' '.join(names)!r}" for names in axes_with_unknown(sizes, dense)]
            raise unknown_role_error(sizes, either(*ways))
        return cls(dense, gradient_axes(sizes, experts=True))


class ParameterDigest(NamedTuple):
    """A parameter of one rank."""

    name: str  # its name in the model
    kind: str  # dtype, global shape and placements
    peers: str  # the class of ranks that must have the parameter
    share: str  # the class of ranks that must hold equal bytes of it
    digest: str  # the digest of this rank's bytes
    is_expert: bool  # whether it belongs to an expert


@dataclass(frozen=True)
class ModelDigest:
    """The parameters of one rank."""

    parameters: tuple[ParameterDigest, ...]  # in the order of the model
    # the classes of ranks to which this rank belongs, also without a parameter there
    peers: tuple[str, ...] = ()
    fault: str = ""  # the reason why they cannot be compared; empty if they can

    def packed(self) -> bytes:
        """Return bytes to send."""
        return json.dumps([self.fault, self.peers, self.parameters]).encode()

    @classmethod
    def unpacked(cls, sent: bytes) -> ModelDigest:
        """Return the digests that another rank packed."""
        fault, peers, rows = json.loads(sent)
        return cls(tuple(ParameterDigest(*row) for row in rows), tuple(peers), fault)

    def head(self) -> bytes:
        """Return the digest of each class of parameters, with the length of the details."""
        classes: dict[str, list[tuple[str, str]]] = {f"peers {key}": [] for key in self.peers}
        for row in self.parameters:
            classes[f"peers {row.peers}"].append((row.name, row.kind))
            classes.setdefault(f"share {row.share}", []).append((row.name, row.digest))
        slots = [_hash(key) + _hash(json.dumps(sorted(rows))) for key, rows in classes.items()]
        needs_details = bool(self.fault) or len(slots) > SLOTS
        content = b"".join(slots[:SLOTS]).ljust(SLOTS * 2 * DIGEST, b"\0")
        return content + len(self.packed()).to_bytes(8, "little") + bytes([needs_details])


def details_length(head: bytes) -> int:
    """Return the number of bytes of the details that a rank has."""
    return int.from_bytes(head[-9:-1], "little")


def heads_conflict(heads: Iterable[bytes]) -> bool:
    """Return whether the details of the ranks must be compared."""
    known: dict[bytes, bytes] = {}
    for head in heads:
        if head[-1]:
            return True
        for begin in range(0, SLOTS * 2 * DIGEST, 2 * DIGEST):
            key, digest = head[begin:][:DIGEST], head[begin + DIGEST :][:DIGEST]
            if known.setdefault(key, digest) != digest:
                return True
    return False


def parameter_conflict(
    layout: Layout, axes: EqualAxes, models: Mapping[int, ModelDigest]
) -> DisagreementError | None:
    """Return the error of the first parameter that differs, equal on every rank; None if none."""
    for rank, model in models.items():
        if model.fault:
            return _unreadable_error(layout, rank, model.fault)
    return _kind_conflict(layout, axes, models) or _drift(layout, axes, models)


def _kind_conflict(
    layout: Layout, axes: EqualAxes, models: Mapping[int, ModelDigest]
) -> DisagreementError | None:
    """Return the error of the first parameter that some rank lacks, or has in another form."""
    ranks_of: dict[str, list[int]] = {}  # class of ranks to its members
    kinds: dict[str, dict[int, str]] = {}
    for rank, model in models.items():
        for row in model.parameters:
            kinds.setdefault(f"{row.peers} {row.name}", {})[rank] = row.kind
        for peers in model.peers:
            ranks_of.setdefault(peers, []).append(rank)
    for model in models.values():
        for row in model.parameters:
            kind_of = kinds[f"{row.peers} {row.name}"]
            contents = {rank: kind_of.get(rank, "missing") for rank in ranks_of[row.peers]}
            if len(set(contents.values())) > 1:
                return _error(
                    layout, axes, row, contents, fix="build an equal model on these ranks."
                )
    return None


def _drift(
    layout: Layout, axes: EqualAxes, models: Mapping[int, ModelDigest]
) -> DisagreementError | None:
    """Return the error of the first parameter whose bytes differ."""
    contents: dict[tuple[str, str], dict[int, str]] = {}
    rows: dict[tuple[str, str], ParameterDigest] = {}
    for rank, model in models.items():
        for row in model.parameters:
            rows.setdefault((row.name, row.share), row)
            contents.setdefault((row.name, row.share), {})[rank] = f"{row.kind} {row.digest}"
    differing = [key for key, by_rank in contents.items() if len(set(by_rank.values())) > 1]
    if not differing:
        return None
    others = len({name for name, _ in differing}) - 1
    return _error(layout, axes, rows[differing[0]], contents[differing[0]], others)


def _error(
    layout: Layout,
    axes: EqualAxes,
    row: ParameterDigest,
    contents: Mapping[int, str],
    num_others: int = 0,
    fix: str = "",
) -> DisagreementError:
    """Return the error of one parameter with the content of each rank."""
    more = [f"The same is true for {count_noun(num_others, 'other parameter')}."]
    averaged = axes.experts if row.is_expert else axes.dense
    along = _axes_along_which(layout, contents)
    if set(along) <= set(averaged):
        noun = "Gradients of experts" if row.is_expert else "Gradients"
        reason = (
            f"{noun} are averaged over {' '.join(averaged)}, so parameters must be equal there."
        )
    else:
        reason = "Its placements say that these ranks hold the same part."
    return DisagreementError(
        f"{CALL}: the parameter {row.name} differs along {' '.join(along)}.",
        *content_lines(layout, contents),
        *more * (num_others > 0),
        reason,
        fix=fix or _fix(along, averaged, row),
        requests=dict(contents),
        parameter=row.name,
    )


def _fix(along: Sequence[str], averaged: Sequence[str], row: ParameterDigest) -> str:
    """Return what to type: the group that averages gradients, or the mark of an expert."""
    if not set(along) <= set(averaged):
        return f"equal weights and gradients of {row.name} on the ranks along {' '.join(along)}."
    if row.is_expert:
        return (
            "sum gradients of experts over mesh.gradient_group(experts=True), and divide them by "
            "the size of mesh.gradient_group()."
        )
    ways = ["DistributedDataParallel(model, process_group=mesh.gradient_group())"]
    if all(axis_role(axis) == "expert" for axis in along):
        ways += ["parameter.allreduce = False for each parameter of an expert"]
    elif len(averaged) > 1:
        ways += [f'fully_shard(model, mesh=mesh.device_mesh("({" ".join(averaged)})"))']
    return f"{', or '.join(ways)}."


def _axes_along_which(layout: Layout, contents: Mapping[int, str]) -> list[str]:
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


def _unreadable_error(layout: Layout, rank: int, fault: str) -> DisagreementError:
    return DisagreementError(
        f"{CALL}: {fault}, on {describe_ranks(layout, [rank])}.",
        "Whole tensors and DTensors are compared.",
        fix="parameters on a device, whole or sharded by fully_shard(model).",
        requests={rank: fault},
    )


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=DIGEST).digest()
