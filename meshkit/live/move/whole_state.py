"""Turn the local state of a rank into the whole one, for a checkpoint, and back, on any mesh."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from ...core.axes import has_pipeline
from ...core.errors import SpecError
from ...core.redistribute.pattern import (
    DOTS,
    Side,
    check_globs,
    first_match,
    parse_layout,
    parse_pattern,
)
from ...core.redistribute.whole import uncut, whole_sizes
from .mover import MeshPair
from .redistribution import MeshMoves
from .state_plan import agree_on_tables, is_dtensor, name_of

CALL = "mesh.whole_state"
RENAME = "another key for one of them, or a call for each of the two states."


def make_whole(moves: MeshMoves, meshes: MeshPair, state: object, layout: object) -> Any:  # noqa: ANN401
    """Return the whole tensors of a state. See :meth:`meshkit.Mesh.whole_state`."""
    sides = parse_layout(layout)
    tensors: dict[str, Tensor] = {}

    def read() -> tuple[str, dict[str, Any]]:  # an error here is announced to all ranks
        tensors.update(sorted(_name_tensors(state).items()))
        dtypes = {n: "" if is_dtensor(x) else name_of(x.dtype) for n, x in tensors.items()}
        return "source", {name: [[*x.shape], dtypes[name]] for name, x in tensors.items()}

    facts = {"layout": repr({glob: str(side) for glob, side in sides.items()})}
    stated = agree_on_tables(meshes, CALL, facts, read)
    check_globs(sides, {name: None for _, table, _ in stated for name in table}, "tensor")
    parts = [({n: p for n, p in table.items() if p[0] and p[1]}, r) for _, table, r in stated]
    sizes = whole_sizes(meshes.layouts[0], sides, parts, meshes.rank)
    whole: dict[str, Tensor] = {}
    for name, tensor in tensors.items():  # in one order on all ranks
        if is_dtensor(tensor):
            whole[name] = tensor.full_tensor()  # type: ignore[attr-defined]
        elif name in sizes:
            side = cast(Side, first_match(sides, name))
            whole[name] = _move(moves, f"{side} -> {uncut(side)}", name, tensor, sizes[name])
    return _replace(state, whole)


def make_local(moves: MeshMoves, state: object, layout: object) -> Any:  # noqa: ANN401
    """Return this rank's parts of a whole state. See :meth:`meshkit.Mesh.local_state`."""
    sides, tensors = parse_layout(layout), _name_tensors(state)
    if not any(
        size > 1 and has_pipeline([axis]) for axis, size in moves.groups.plan.layout.sizes.items()
    ):
        check_globs(sides, tensors, "tensor")  # a stage of a pipeline may lack it
    local = {}
    for name, tensor in tensors.items():
        side = first_match(sides, name)
        if is_dtensor(tensor):
            local[name] = tensor.full_tensor()  # type: ignore[attr-defined]
        elif side is not None and tensor.dim():
            entries = [dim for dim in side.entries if [part.name for part in dim] != [DOTS]]
            plain = len(entries) == tensor.dim() and all(len(entry) == 1 for entry in entries)
            pairs = zip(entries, tensor.shape, strict=False) if plain else ()
            sizes = {entry[0].name: size for entry, size in pairs}
            part = _move(moves, f"{uncut(side)} -> {side}", name, tensor, sizes)
            local[name] = part.clone()  # else a saved part would have the memory of the whole
    return _replace(state, local)


def _name_tensors(state: object) -> dict[str, Tensor]:
    """Return the tensors of a state by their names; raise if two of them have one name."""
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
        fix = error.fix
        if "(" in pattern:
            fix = f'mesh.redistribute(x, "{pattern}") with the sizes of its dims.'
        raise SpecError(f"{name}: {error.summary}", *error.evidence, fix=fix) from None
