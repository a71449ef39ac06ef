"""Turn the local state of a rank into the whole one, for a checkpoint, and back, on any mesh.

States may be nested, such as that of an optimizer: names are then joined by dots. Parts may have
the different sizes of ``local_state``. DTensors become whole by themselves; for other axes, which
their DeviceMesh lacks, the layout says how they are cut.

A weight that fuses q, k and v is cut inside brackets, ``"(qkv h/tp d) i"``: ``"o/tp i"`` would take
other heads of it. If q has more heads than k and v, they have no common dim: pass q, k and v as
three tensors, ``dict(zip("qkv", qkv.split([...])))``, each ``"o/tp i"``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from glob import escape
from math import prod
from operator import itemgetter, ne
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from ..errors import DisagreementError, MeshkitError, SpecError
from ..groups.groups import gather_bytes
from ..launch.tensors import find_tied, is_dtensor, plain
from ..layout.axes import check_axes_exist, has_pipeline
from ..layout.layout import Layout
from ..redistribute.checked import digest_of, share_error
from ..redistribute.dim_sizes import check_sizes_known, expand_to, parse_layout_sizes
from ..redistribute.mesh_pair import MeshPair
from ..redistribute.moves import MeshMoves
from ..redistribute.pattern import (
    Dim,
    Mark,
    Side,
    check_globs,
    first_match,
    parse_layout,
    parse_pattern,
)
from ..text import article, dtype_name, format_ranks, format_sizes, plural
from .copies import Facts, check_copies, find_unequal, is_comparable, shared_axes
from .state_tables import agree_on_tables, local_tensor
from .whole import uncut, whole_sizes

CALL = "mesh.whole_state"
RENAME = "another key for one of them, or a call for each of the two states."


def make_whole(
    moves: MeshMoves, meshes: MeshPair, state: object, layout: object, sizes: object
) -> Any:  # noqa: ANN401
    """Return the whole tensors of a state. See :meth:`meshkit.Mesh.whole_state`."""
    with meshes.announcing(CALL):
        sides, given = _parse_layout(moves, layout, sizes)
    tensors: dict[str, Tensor] = {}

    def read() -> dict[str, dict[str, Any]]:  # an error here is announced to all ranks
        tensors.update(sorted(_name_tensors(state).items()))
        for name, tensor in tensors.items():
            if first_match(sides, name) is not None:
                local_tensor(name, tensor)
        return {"source": {n: _part(x, grid, meshes.rank) for n, x in tensors.items()}}

    grid = meshes.layouts[0]
    texts = {glob: str(side) for glob, side in sides.items()}
    facts = {"layout": repr(texts), "sizes": format_sizes(given) or "no sizes"}
    stated = agree_on_tables(meshes, CALL, facts, read)
    check_globs(sides, {name: None for _, table, _ in stated for name in table}, "tensor")
    parts = [({n: p[:2] for n, p in table.items() if p[0]}, ranks) for _, table, ranks in stated]
    sides_left = {**_sides_of_dtensors(grid, sides, [table for _, table, _ in stated]), **sides}
    known = whole_sizes(grid, sides_left, parts, meshes.rank, given)
    check_copies(meshes, CALL, lambda: _find_copies(grid, meshes.rank, sides, tensors), tensors)
    whole: dict[str, Tensor] = {}
    for name, tensor in tensors.items():  # in one order on all ranks
        if is_dtensor(tensor):
            tensor = whole[name] = tensor.full_tensor()
        if name in known:
            side = cast(Side, first_match(sides_left, name))
            whole[name] = _move(moves, f"{side} -> {uncut(side)}", name, tensor, known[name])
    _compare_replicas(meshes, sides, [table for _, table, _ in stated], whole)
    return _replace(state, _keep_ties(tensors, whole))


def _compare_replicas(
    meshes: MeshPair,
    sides: Mapping[str, Side],
    tables: Iterable[Mapping[str, Any]],
    whole: Mapping[str, Tensor],
) -> None:
    """Compare DTensors over a part of an axis of which no side says anything. Collective.

    Several DeviceMeshes then hold tensors of one name: replicas, or other experts. A side with
    ``=`` vouches for replicas.
    """
    names: dict[str, set[str]] = {}  # with all axes along which a tensor must be equal
    for table in tables:
        for name, (_, _, axes, partly) in table.items():
            side = first_match(sides, name)
            if {*partly} - {*(() if side is None else side.types)}:
                names.setdefault(name, set()).update(axes, partly)
    if not names:
        return
    grid, held = meshes.layouts[0], sorted({*names} & {*whole})

    def read() -> Facts:
        return {n: [" ".join(sorted(names[n])), digest_of(whole[n]).hex()] for n in held}

    for name, held_by in find_unequal(meshes, CALL, read, ne):
        axes = " ".join(axis for axis in grid.axes if axis in names[name])
        first, second = held_by
        raise DisagreementError(
            f"{name} is a DTensor over some of the ranks along {axes}, and differs there.",
            f"Ranks {first} and {second} hold other numbers under this name.",
            fix="mesh.view(...).whole_state, on a view with an axis inside "
            f"{axes} for its ranks and one for the others, which the layout names.",
            requests=held_by,
        )


def _find_copies(
    layout: Layout, rank: int, sides: Mapping[str, Side], tensors: Mapping[str, Any]
) -> dict[str, list[str]]:
    """Return the axes along which each tensor is a copy, as neither side nor DeviceMesh cut it."""
    shared, copies = shared_axes(layout), {}
    for name, tensor in tensors.items():
        side, (*_, known, partly) = first_match(sides, name), _part(tensor, layout, rank)
        cut = {*(() if side is None else side.types), *(known or ()), *partly}
        axes = [axis for axis in shared if axis not in cut]
        if axes and is_comparable(tensor):
            copies[name] = axes
    return copies


def _part(tensor: Any, layout: Layout, rank: int) -> list[Any]:  # noqa: ANN401
    """Return the shape and dtype of a tensor, and the axes along which a DTensor knows its cut.

    Last come the axes along which it lies on some of the ranks only.
    """
    axes, partly = None, []
    if is_dtensor(tensor):
        members = {*tensor.device_mesh.mesh.flatten().tolist()}
        peers = {axis: {*layout.peers(rank, axis).tolist()} for axis in layout.axes}
        axes = [axis for axis in layout.axes if members >= peers[axis]]
        partly = [a for a in layout.axes if 1 < len(members & peers[a]) < len(peers[a])]
    return [[*tensor.shape], dtype_name(tensor.dtype), axes, partly]


def _sides_of_dtensors(
    layout: Layout, sides: Mapping[str, Side], tables: Iterable[Mapping[str, Any]]
) -> dict[str, Side | None]:
    """Return how DTensors are cut along the axes of which they know nothing; None if not at all."""
    left: dict[str, Side | None] = {}
    facts = [(name, *fact[2:]) for table in tables for name, fact in table.items()]
    for name, axes, partly in facts:
        if axes is not None:
            side = first_match(sides, name)
            rest = None if side is None else _without(side, axes)
            kinds = {} if rest is None else rest.types
            moved = [a for a, k in kinds.items() if k.symbol in "/+" and layout.sizes.get(a, 1) > 1]
            for axis in {*partly} & {*moved}:
                raise SpecError(
                    f"{name} is a DTensor over some of the ranks along {axis}.",
                    f"Its side is {str(side)!r}, which takes it for a part on each of them.",
                    fix=f"mesh.view(...).whole_state, on a view with an axis inside {axis} for its "
                    "ranks and one for the others.",
                )
            left[escape(name)] = rest if moved else None
    return left


def _without(side: Side, axes: Collection[str]) -> Side:
    """Return a side without some axes."""

    def change(item: Dim | Mark) -> list[Dim | Mark]:
        if isinstance(item, Mark):
            return [] if item.axis in axes else [item]
        return [Dim(item.name, tuple(axis for axis in item.axes if axis not in axes))]

    return side.rewrite(change)


def make_local(moves: MeshMoves, state: object, layout: object, sizes: object) -> Any:  # noqa: ANN401
    """Return this rank's parts of a whole state. See :meth:`meshkit.Mesh.local_state`.

    Plain tensors are cut first, and zeros in place of DTensors, so that a rank that refuses its
    state lets the other ranks know before a DTensor is made whole.
    """
    error, tensors, local = None, {}, {}
    cuts: dict[str, tuple[str, str, dict[str, int]]] = {}
    try:
        sides, given = _parse_layout(moves, layout, sizes)
        tensors = _name_tensors(state)
        if not any(
            size > 1 and has_pipeline([axis])
            for axis, size in moves.groups.plan.layout.sizes.items()
        ):
            check_globs(sides, tensors, "tensor")  # a stage of a pipeline may lack it
        for name, tensor in tensors.items():
            side = first_match(sides, name)
            if side is not None and tensor.dim():
                check_sizes_known(name, side, given)
                cuts[name] = f"{uncut(side)} -> {side}", name, _sizes_of(side, tensor, given)
                local[name] = _cut(moves, *cuts[name], _stand_in(tensor))
    except MeshkitError as refusal:
        error = refusal
    whole = sorted((pair for pair in _tensors(state) if is_dtensor(pair[1])), key=itemgetter(0))
    _share_refusal(error, whole)
    for name, dtensor in whole:  # in one order on all ranks
        tensor = cast(Any, dtensor).full_tensor()
        local[name] = _cut(moves, *cuts[name], tensor) if name in cuts else tensor
    return _replace(state, _keep_ties(tensors, local))


def _keep_ties(tensors: Mapping[str, Tensor], moved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what came of some tensors: equal results of tensors in one memory are one. Local.

    Such are tied weights. Their results differ if their sides do, or if another rank has not tied
    them. A tensor of another class has no memory that says so.
    """
    kept, names = {**moved}, [*moved]
    held = [None if moved[n].is_meta else local_tensor(n, tensors[n]) for n in names]
    ordinary = [x if type(x) in (Tensor, Parameter) else None for x in held]
    for number, earlier in find_tied(ordinary).items():
        first, own = kept[names[earlier]], moved[names[number]]
        if first.dtype == own.dtype and first.shape == own.shape and _bits_are_equal(first, own):
            kept[names[number]] = first
    return kept


def _bits_are_equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have equal bits, which every dtype can compare, and NaN too."""
    first, second = (plain(x).reshape(-1).view(torch.uint8) for x in (one, other))
    return torch.equal(first, second)


def _cut(
    moves: MeshMoves, pattern: str, name: str, sizes: Mapping[str, int], tensor: Tensor
) -> Tensor:
    """Return a part of a whole tensor, in memory of its own. Local."""
    part: Tensor = _move(moves, pattern, name, tensor, sizes)
    return part.clone()  # else a saved part would have the memory of the whole


def _share_refusal(error: MeshkitError | None, whole: Sequence[tuple[str, Any]]) -> None:
    """Raise if a rank refuses its state, or has other DTensors. Collective over their ranks."""
    held: dict[Any, list[str]] = {}
    for name, x in whole:
        if x.device_mesh.get_coordinate() is not None:
            form = f"{name} {tuple(x.shape)} {x.dtype} {x.placements}"
            held.setdefault(x.device_mesh, []).append(form)
    # in one order on all ranks, whatever the names of the tensors
    meshes = sorted(held, key=lambda x: (x.mesh_dim_names or (), x.mesh.flatten().tolist()))
    groups = {mesh: [mesh.get_group(dim) for dim in range(mesh.ndim)] for mesh in meshes}
    device = whole[0][1].to_local().device if whole else torch.device("cpu")
    everywhere = [group for each in groups.values() for group in each]
    share_error(error, everywhere, device, "this call")
    for mesh, of_mesh in groups.items():
        forms = held[mesh]
        own = hashlib.sha256("\n".join(forms).encode()).digest()
        for group in of_mesh:
            others = gather_bytes(own, len(own), group, device)
            ranks = zip(dist.get_process_group_ranks(group), others, strict=True)
            if unequal := [rank for rank, other in ranks if other != own]:
                error = error or _unequal_error(forms, unequal)
    share_error(error, everywhere, device, "this call")


def _unequal_error(forms: Sequence[str], ranks: Sequence[int]) -> DisagreementError:
    """Return the error of DTensors that other ranks of their DeviceMesh do not have."""
    more = f", and {len(forms) - 1} more" * (len(forms) > 1)
    return DisagreementError(
        "ranks of one DeviceMesh give other DTensors.",
        f"Rank {dist.get_rank()} has {forms[0]}{more}.",
        f"Other names, shapes or placements: {plural('rank', len(ranks))} {format_ranks(ranks)}.",
        fix="give this call the same DTensors, under the same names, on all their ranks.",
    )


def _parse_layout(
    moves: MeshMoves, layout: object, sizes: object
) -> tuple[dict[str, Side], dict[str, int]]:
    """Return the side of each glob, and the given sizes of dims; raise on an unknown axis."""
    sides = parse_layout(layout)
    for side in sides.values():
        check_axes_exist(side.types, moves.groups.plan.layout.axes)
    return sides, parse_layout_sizes(sizes, sides.values())


def _stand_in(tensor: Any) -> Tensor:  # noqa: ANN401
    """Return a tensor, or zeros of the shape of a DTensor, in the memory of one. Local."""
    if is_dtensor(tensor):
        return tensor.to_local().new_zeros(()).expand(tensor.shape)
    whole: Tensor = tensor
    return whole


def _sizes_of(side: Side, tensor: Tensor, given: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of the dims of a whole tensor: those given, and those that follow."""
    sizes = {dim.name: given[dim.name] for dim in side.dims if dim.name in given}
    try:
        whole = parse_pattern(f"{uncut(side)} -> {uncut(side)}")
        entries = expand_to(whole, tensor.dim()).left.entries
    except SpecError:  # the move raises
        return sizes
    for entry, size in zip(entries, tensor.shape, strict=True):
        known = prod(given.get(dim.name, 1) for dim in entry)
        unknown = [dim.name for dim in entry if dim.name not in given]
        if unknown and known and size % known == 0:  # else the move raises
            sizes[unknown[0]] = size // known
    return sizes


def _name_tensors(state: object) -> dict[str, Tensor]:
    """Return the tensors of a state by their names; raise if two of them have one name."""
    if not isinstance(state, Mapping):
        line = f"the state is {article(type(state).__name__)}, not a mapping."
        raise SpecError(line, fix="names with tensors, such as model.state_dict().")
    tensors: dict[str, Tensor] = {}
    for name, tensor in _tensors(state):
        if name in tensors:
            line = f"two tensors of the state have the name {name}."
            raise SpecError(line, "The keys of nested states are joined by dots.", fix=RENAME)
        tensors[name] = tensor
    return tensors


def _tensors(state: object, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a state; nested states have names with dots."""
    if isinstance(state, Tensor):
        yield name, state.detach()
    for key, value in _items(state):
        yield from _tensors(value, f"{name}.{key}" if name else str(key))


def _replace(state: Any, tensors: Mapping[str, Tensor], name: str = "") -> Any:  # noqa: ANN401
    """Return a state with other tensors of some names."""
    if isinstance(state, Tensor):
        return tensors.get(name, state)
    changed = {
        key: _replace(value, tensors, f"{name}.{key}" if name else str(key))
        for key, value in _items(state)
    }
    if isinstance(state, Mapping):
        return changed
    if isinstance(state, list | tuple):
        values = changed.values()
        return type(state)(*values) if hasattr(state, "_fields") else type(state)(values)
    return state


def _items(state: object) -> Iterable[tuple[Any, Any]]:
    """Return the parts of a nested state with their keys."""
    if isinstance(state, Mapping):
        return state.items()
    return enumerate(state) if isinstance(state, list | tuple) else ()


def _move(
    moves: MeshMoves, pattern: str, name: str, tensor: Tensor, sizes: Mapping[str, int]
) -> Any:  # noqa: ANN401
    known = parse_pattern(pattern).left.dims
    given = tuple((dim.name, sizes[dim.name]) for dim in known if dim.name in sizes)
    try:
        with torch.no_grad():
            return moves.find(pattern, "sum", None, None, given).run(tensor)
    except SpecError as error:
        raise error.but(summary=f"{name}: {error.summary}") from None
