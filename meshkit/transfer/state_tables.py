"""State the tensors that a rank sends or fills, and agree on the tables of all ranks.

The ranks of both meshes first tell each other which tensors they hold. Most ranks hold equal
tables, so a table stands in the store once, under its digest, and the round carries digests only::

    rank 0   writes table 3f, states 3f ....... decision: 3f of rank 0 1, a8 of rank 2 3
    rank 1   has table 3f too, states 3f ...... reads both tables
    rank 2   writes table a8, states a8 ....... reads both tables

    key                              written by                        goes
    move/<source>/<target>/round/<n> all ranks: digests                two rounds later
      states/<digest>                the first rank with the table     when all have read it
      states                         each rank that has read           with the last reader
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, cast

import torch
from torch import Tensor

from ..errors import MeshkitError, SpecError
from ..launch.agreement import Agreement
from ..launch.job import require_job
from ..launch.store import read_value
from ..launch.tensors import is_dtensor
from ..layout.layout import Layout
from ..redistribute.dim_sizes import check_sizes_known, infer_dim_sizes, parse_layout_sizes
from ..redistribute.mesh_move import axes_of_both, join_axes
from ..redistribute.mesh_pair import MeshPair
from ..redistribute.operations import check_tensor
from ..redistribute.pattern import Pattern, Side
from ..synonyms import STANDARD_OF
from ..text import dtype_name, format_sizes, group_by
from .state import StatePatterns, Table


@dataclass(frozen=True)
class StateOptions:
    """The dtype in which tensors travel, and how many bytes at once."""

    dtype: torch.dtype | None  # of floating-point numbers; None is that of each tensor
    chunk: int
    sizes: Mapping[str, int] | None = None  # of dims, which brackets need

    @property
    def dtype_name(self) -> str:
        """The name of the dtype; "" for None."""
        return "" if self.dtype is None else dtype_name(self.dtype)

    @property
    def sizes_text(self) -> str:
        """The sizes as ranks compare them, in one order."""
        sizes: Any = self.sizes
        return repr(sorted(sizes.items(), key=str) if isinstance(sizes, Mapping) else sizes)

    def check(self) -> None:
        """Raise if one of them is not usable."""
        is_float = isinstance(self.dtype, torch.dtype) and self.dtype.is_floating_point
        if self.dtype is not None and not is_float:
            line = f"dtype is {self.dtype!r}, not a dtype of floating-point numbers."
            raise SpecError(line, fix="dtype=torch.bfloat16, for example.")
        if not isinstance(self.chunk, int) or self.chunk < 1:
            line = f"chunk is {self.chunk!r}, not a number of bytes."
            raise SpecError(line, fix="chunk=64 * 2**20, for example.")


def read_table(
    patterns: Mapping[str, str],
    layouts: tuple[Layout, Layout],
    side: str,
    argument: str,
    state: object,
    rank: int,
    sizes: object,
) -> Table:
    """Return the facts of the tensors that a rank sends, or fills. Local.

    ``side`` is ``"source"`` for tensors to send, ``"target"`` for tensors to fill, and ``argument``
    the name of the state in the call. The caller gives the ``sizes`` of some dims.
    """
    parsed, (source, target) = StatePatterns.of(patterns), layouts
    parsed.check(layouts)
    given = parse_layout_sizes(sizes, (pattern.left for pattern in parsed.globs.values()))
    if not isinstance(state, Mapping):
        fix = "the tensors that this rank sends, or fills, by their names."
        raise SpecError(f"{argument} is {state!r} on rank {rank}, not a state.", fix=fix)
    table: dict[str, list[Any]] = {}
    for name, value in state.items():
        pattern = parsed.find(str(name))
        if side == "source":
            axes = target.sizes
            table[str(name)] = _source_fact(str(name), value, pattern, source, rank, axes, given)
        else:
            check_placements(str(name), value, pattern.right, target, rank)
            tensor = local_tensor(str(name), value)
            table[str(name)] = [[*tensor.shape], dtype_name(tensor.dtype), is_dtensor(value)]
    return table


def agree_on_tables(
    meshes: MeshPair, call: str, facts: Mapping[str, Any], read: Callable[[], Mapping[str, Table]]
) -> list[tuple[str, Table, list[int]]]:
    """Return the tables that ranks state, each with its side and its ranks. Collective.

    ``read`` returns the table of this rank for each of its sides. If it raises, no rank waits. Each
    different table is in the store once, until the last rank has read it.
    """
    if require_job().rehearsed is not None:
        return [*_played_tables(meshes, call, facts, read)]
    store = meshes.store()

    def post(agreement: Agreement) -> dict[str, str]:
        nonlocal store
        digests, store = {}, agreement.round.store
        for side, table in read().items():
            text = json.dumps(table)
            digests[side] = digest = hashlib.sha256(text.encode()).hexdigest()
            store.run(partial(store.claim, f"states/{digest}", text))
        return digests

    stated = meshes.agree(call, facts, post, stated="state", alike=False)
    keys = {digest: f"states/{digest}" for digests, _ in stated for digest in digests.values()}
    readers = sum(len(ranks) for _, ranks in stated)

    def fetch() -> dict[str, Table]:
        tables = {d: read_value(key, store.get(key), json.loads) for d, key in keys.items()}
        if store.add("states", 1) == readers:
            store.delete("states", *keys.values())
        return tables

    tables = store.run(fetch)
    sides = ((side, digest, ranks) for digests, ranks in stated for side, digest in digests.items())
    return [(side, tables[digest], ranks) for side, digest, ranks in sides]


def _played_tables(
    meshes: MeshPair, call: str, facts: Mapping[str, Any], read: Callable[[], Mapping[str, Table]]
) -> Iterator[tuple[str, Table, list[int]]]:
    """Yield the table of one rank of each stage of each side as that of the whole stage.

    Not all ranks are played. The stages are the indices along pp: their ranks may hold other names.
    """
    held, wanted = ({*map(int, layout.grid.flat)} for layout in meshes.layouts)
    missing = ""
    source, target = meshes.layouts
    for side, layout, ranks in (
        ("source", source, held),
        ("target", target, wanted - held),
        ("target", target, wanted & held),  # these need not say what they fill
    ):
        pipeline = [axis for axis in layout.axes if STANDARD_OF.get(axis) == "pp"]
        coordinates = ((rank, layout.coordinate(rank)) for rank in sorted(ranks))
        stages = group_by((format_sizes({a: c[a] for a in pipeline}), r) for r, c in coordinates)
        for stage, members in stages.items():
            state = partial(_state_of, side, read if meshes.rank in members else dict)
            one = {**facts, "side": side, "stage": stage, "holder": members[0]}
            stated = meshes.agree(call, one, state, stated="state", alike=False)
            if stated:
                yield side, cast(Table, stated[0][0]), members
            elif not missing and not (side == "target" and {*members} <= held):
                missing = f"{f'{stage} of ' * bool(stage)}the {side} mesh"
    if missing:
        line = f"no rank of {missing} was rehearsed, so its state is unknown."
        raise MeshkitError(line, fix=f"rehearse a rank of {missing} too.")


def _state_of(side: str, read: Callable[[], Mapping[str, Table]], _: Agreement) -> Table | None:
    return read().get(side)


def _source_fact(
    name: str,
    value: Any,  # noqa: ANN401
    pattern: Pattern,
    source: Layout,
    rank: int,
    target_sizes: Mapping[str, int],
    sizes_given: Mapping[str, int],
) -> list[Any]:
    """Return the global sizes and the dtype of a tensor of a rank of the source."""
    tensor = local_tensor(name, value)
    check_placements(name, value, pattern.left, source, rank)
    joined = join_axes(pattern, source.sizes, target_sizes)
    check_sizes_known(name, pattern.left, sizes_given)
    entries = joined.left.entries
    dims = [dim.name for dim in joined.left.dims]
    given = {dim: size for dim, size in sizes_given.items() if dim in dims}
    axes, coordinate = axes_of_both(source.sizes, target_sizes), source.coordinate(rank)
    if is_dtensor(value) and all(len(entry) == 1 for entry in entries):
        names = value.device_mesh.mesh_dim_names
        known = names if names and {*names} <= {*axes} else axes
        for (dim,), size in zip(entries, value.shape, strict=False):  # others cut it before
            given[dim.name] = size * prod(axes[axis] for axis in dim.axes if axis not in known)
    rules = {"is_dtensor": is_dtensor(value), "is_state": True}
    try:
        sizes = infer_dim_sizes(joined, axes, coordinate, tuple(tensor.shape), given, **rules)[1]
    except SpecError as error:
        evidence = (f"The pattern of {name} is {str(pattern)!r}.", *error.evidence)
        fix = f"a left side that says how {name} is cut{', or other sizes=' * bool(given)}."
        raise error.but(summary=f"{name}: {error.summary}", evidence=evidence, fix=fix) from None
    return [sizes, dtype_name(tensor.dtype), is_dtensor(value)]


def local_tensor(name: str, value: Any) -> Tensor:  # noqa: ANN401
    """Return the local tensor of a tensor or DTensor."""
    tensor = value.to_local() if is_dtensor(value) else value
    try:
        check_tensor(tensor)
    except SpecError as error:
        raise error.but(summary=f"{name}: {error.summary}") from None
    detached: Tensor = tensor.detach()
    return detached


def _axes_of(device_mesh: Any, layout: Layout, rank: int) -> list[str] | None:  # noqa: ANN401
    """Return the axes of a layout along the dims of a DeviceMesh, by name or by ranks; or None."""
    names, place = device_mesh.mesh_dim_names, device_mesh.get_coordinate()
    if names and {*names} <= {*layout.axes}:
        return [*names]
    axes = {tuple(layout.peers(rank, axis).tolist()): axis for axis in layout.axes}
    found = []
    for dim in range(len(place or ())):
        index = [slice(None) if other == dim else at for other, at in enumerate(place)]
        members = tuple(device_mesh.mesh[tuple(index)].tolist())
        found.append(axes.get(members) if len(members) > 1 else "")
    return None if None in found or place is None else cast(list[str], found)


def check_placements(name: str, value: Any, side: Side, layout: Layout, rank: int) -> None:  # noqa: ANN401
    """Raise if a DTensor is not cut as a side of its pattern says. Local.

    Nothing is checked if a dim of its DeviceMesh is no axis of the layout.
    """
    names = _axes_of(value.device_mesh, layout, rank) if is_dtensor(value) else None
    if names is None:
        return
    cuts: dict[int, list[str]] = {}
    strided: dict[int, list[str]] = {}
    sizes = dict(zip(names, value.device_mesh.shape, strict=True))
    for axis, placement in zip(names, value.placements, strict=True):
        dim = getattr(placement, "dim", None)
        if dim is not None and sizes[axis] > 1:
            # FSDP cuts the parts of a tensor that TP has cut before, though its axis is outside
            (cuts if placement.is_shard() else strided).setdefault(dim, []).append(axis)
    for dim, entry in enumerate(side.entries):
        stated = [axis for part in entry for axis in part.axes if sizes.get(axis, 1) > 1]
        held = cuts.get(dim, []) + strided.get(dim, [])
        if stated != held:
            wanted = "/".join([entry[0].name if entry else "1", *held])
            fix = f"{wanted} for its dim {dim}."
            if len(entry) > 1:  # a cut of joined dims goes across them, so no side says it
                fix = f"pass {name}.full_tensor(), which is cut as the pattern says."
            over = " ".join(filter(None, names))
            raise SpecError(
                f"{name} is a DTensor with {[*value.placements]} over {over}.",
                f"Its pattern has {str(side)!r}.",
                fix=fix,
            )
