"""Turn the local state of a rank into the whole one, for a checkpoint, and back, on any mesh."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ...core.errors import SpecError
from ...core.redistribute.pattern import DOTS, Dim, Mark, Side, first_match, parse_layout
from .redistribution import MeshMoves
from .state_plan import is_dtensor

Change = Callable[[str, Tensor, Side], Tensor]  # the name, the tensor and its side of a pattern


def make_whole(moves: MeshMoves, state: object, layout: object) -> Any:  # noqa: ANN401
    """Return the whole tensors of a state. See :meth:`meshkit.Mesh.whole_state`."""

    def gather(name: str, tensor: Tensor, side: Side) -> Tensor:
        whole: Tensor = _move(moves, f"{side} -> {_uncut(side)}", name, tensor, {})
        return whole

    return _change(state, parse_layout(layout), gather)


def make_local(moves: MeshMoves, state: object, layout: object) -> Any:  # noqa: ANN401
    """Return this rank's parts of a whole state. See :meth:`meshkit.Mesh.local_state`."""

    def cut(name: str, tensor: Tensor, side: Side) -> Tensor:
        entries = [dim for dim in side.entries if [part.name for part in dim] != [DOTS]]
        plain = len(entries) == tensor.dim() and all(len(entry) == 1 for entry in entries)
        pairs = zip(entries, tensor.shape, strict=False) if plain else ()
        sizes = {entry[0].name: size for entry, size in pairs}
        local: Tensor = _move(moves, f"{_uncut(side)} -> {side}", name, tensor, sizes)
        return local.clone()  # else a saved part would have the memory of the whole tensor

    return _change(state, parse_layout(layout), cut)


def _uncut(side: Side) -> Side:
    """Return the side without axes."""
    return side.rewrite(lambda item: [] if isinstance(item, Mark) else [Dim(item.name)])


def _change(state: object, layout: Mapping[str, Side], change: Change, name: str = "") -> Any:  # noqa: ANN401
    """Return a state with its tensors changed; nested states have names with dots."""
    inner: Callable[[object, object], Any] = lambda key, value: _change(  # noqa: E731
        value, layout, change, f"{name}.{key}" if name else str(key)
    )
    if isinstance(state, Mapping):
        return {key: inner(key, value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        changed = [inner(number, value) for number, value in enumerate(state)]
        return type(state)(*changed) if hasattr(state, "_fields") else type(state)(changed)
    if not isinstance(state, Tensor):
        return state
    if is_dtensor(state):
        return state.full_tensor()  # type: ignore[attr-defined]
    side = first_match(layout, name)
    if side is None or not state.dim():  # a copy; also the step of an optimizer
        return state
    with torch.no_grad():
        return change(name, state.detach(), side)


def _move(
    moves: MeshMoves, pattern: str, name: str, tensor: Tensor, sizes: Mapping[str, int]
) -> Any:  # noqa: ANN401
    items: Iterable[tuple[str, int]] = sizes.items()
    try:
        return moves.find(pattern, "sum", None, None, tuple(items)).run(tensor)
    except SpecError as error:
        raise SpecError(f"{name}: {error.summary}", *error.evidence, fix=error.fix) from None
