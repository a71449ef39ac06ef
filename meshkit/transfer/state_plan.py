"""Plan the parts of a state that one rank sends and receives, and find them in a state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from ..errors import SpecError
from ..launch.of_one_process import OfOneProcess
from ..launch.tensors import check_writable, is_dtensor
from ..redistribute.mesh_pair import MeshPair
from ..redistribute.mover import BATCHES, Leg, make_leg
from ..redistribute.operations import run_local
from ..redistribute.to_mesh import make_sum
from ..text import count_noun, dtype_name
from .state import MovedTensor, loses_a_part, travel_dtype
from .state_tables import StateOptions, local_tensor

State = Mapping[str, Any]  # names with tensors or DTensors


@dataclass(frozen=True, eq=False)
class MovedPart(OfOneProcess):
    """This rank's parts of a tensor that moves."""

    tensor: MovedTensor
    leg: Leg
    sum_parts: Callable[[Tensor], Tensor] | None  # for a left side that is a sum

    @property
    def name(self) -> str:
        """The name in the state."""
        return self.tensor.name

    @property
    def is_held(self) -> bool:
        """Whether this rank has a part before."""
        return self.leg.move.source.place(self.leg.rank) is not None

    @property
    def is_wanted(self) -> bool:
        """Whether this rank gets a part."""
        return self.leg.is_holder

    @property
    def size(self) -> int:
        """The bytes of the largest part of a rank."""
        move = self.leg.move
        return max(move.source.largest, move.target.largest) * self.leg.dtype.itemsize

    def arrange(self, x: Tensor) -> Tensor:
        """Return a local tensor of the source in the order of the move, with sums done."""
        if self.sum_parts is not None:
            x = self.sum_parts(x)
        for step in self.leg.bind(self.leg.move.before):
            x = run_local(step, x, None)
        return x

    def view(self, out: Tensor) -> Tensor:
        """Return a local tensor of the target as its region: the dims in the order of the move."""
        order = [dim for entry in self.leg.move.move.right_entries for dim in entry]
        shape = [self.leg.wanted[dim].size for dim in order]
        try:
            regions = out.view(shape)
        except RuntimeError:  # dims that the pattern joins are not contiguous
            line = f"{self.name} of out has strides {out.stride()}."
            raise SpecError(line, fix=f"{self.name}.contiguous().") from None
        return regions.permute([order.index(dim) for dim in range(len(order))])


@dataclass(frozen=True, eq=False)
class StatePlan(OfOneProcess):
    """The parts of all tensors on this rank, and what travels together."""

    parts: Sequence[MovedPart]  # elements of more bytes first, so that all are aligned in a message
    device: torch.device
    chunk: int  # the bytes of a rank that travel as one batch

    def __str__(self) -> str:
        return count_noun(len({part.name for part in self.parts}), "tensor")

    @property
    def legs(self) -> list[Leg]:
        """The move of each part."""
        return [part.leg for part in self.parts]

    @property
    def names(self) -> list[str]:
        """The name of each part."""
        return [part.name for part in self.parts]

    @cached_property
    def batches(self) -> list[tuple[tuple[int, int, int], ...]]:
        """The parts that travel together: tensors of at most a chunk, or a chunk of a tensor."""
        batches: list[tuple[tuple[int, int, int], ...]] = []
        batch: list[tuple[int, int, int]] = []
        filled = 0
        for number, part in enumerate(self.parts):
            if part.size > self.chunk:
                chunks = -(-part.size // self.chunk)
                batches += [((number, chunk, chunks),) for chunk in range(chunks)]
                continue
            if filled + part.size > self.chunk:
                batches.append(tuple(batch))
                batch, filled = [], 0
            batch.append((number, 0, 1))
            filled += part.size
        return [*batches, tuple(batch)] if batch else batches

    def zeros(self) -> list[Tensor | None]:
        """Return zeros, each of a few bytes, in place of each part that this rank sends."""
        zero = partial(torch.zeros, (), device=self.device)
        return [
            zero(dtype=getattr(torch, part.tensor.dtype)).expand(part.leg.held_shape)
            if part.is_held
            else None
            for part in self.parts
        ]

    def read(self, state: State | None) -> list[Tensor | None]:
        """Return the local tensor of each part that this rank sends."""
        return [self._read(part, state) if part.is_held else None for part in self.parts]

    def find(self, out: State | None) -> list[Tensor | None]:
        """Return the local tensor to fill with each part that this rank wants."""
        return [self._find(part, out) if part.is_wanted else None for part in self.parts]

    def new_state(self) -> dict[str, Tensor]:
        """Return new tensors for all that this rank wants."""
        wanted = (part for part in self.parts if part.is_wanted)
        return {
            part.name: torch.empty(part.leg.wanted_shape, dtype=part.leg.dtype, device=self.device)
            for part in wanted
        }

    def arrange(self, held: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the parts to send, in the order of the move, with sums done. Collective."""
        pairs = zip(self.parts, held, strict=True)
        return [None if x is None else part.arrange(x) for part, x in pairs]

    def view(self, places: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the regions to fill in local tensors."""
        pairs = zip(self.parts, places, strict=True)
        return [None if place is None else part.view(place) for part, place in pairs]

    def _read(self, part: MovedPart, state: State | None) -> Tensor:
        tensor = _tensor_of(part.name, state, "state")
        fix = "a transfer of its own, whose like= is this state."
        return self._check(part.name, tensor, part.leg.held_shape, {part.tensor.dtype}, fix)

    def _find(self, part: MovedPart, out: State | None) -> Tensor:
        tensor = _tensor_of(part.name, out, "out")
        check_writable(tensor, f"{part.name} of out", f"{part.name}.clone().")
        fix = "a transfer of its own for other shapes or dtypes."
        if is_dtensor(out and out[part.name]):
            fix = f"mesh.transfer(..., out=) on ranks of both meshes, or {fix}"
        arrives, held = dtype_name(part.leg.dtype), dtype_name(tensor.dtype)
        dtypes = {arrives} if loses_a_part(arrives, held) else {held}  # others convert
        return self._check(part.name, tensor, part.leg.wanted_shape, dtypes, fix)

    def _check(
        self, name: str, tensor: Tensor, shape: tuple[int, ...], dtypes: Collection[str], fix: str
    ) -> Tensor:
        if tensor.shape == shape and dtype_name(tensor.dtype) in dtypes:
            return tensor
        raise SpecError(
            f"{name} has {[*tensor.shape]} in {dtype_name(tensor.dtype)} on this rank, and the "
            f"transfer has {[*shape]} in {' or '.join(sorted(dtypes))}.",
            fix=fix,
        )


def plan_state(moved: Sequence[MovedTensor], meshes: MeshPair, options: StateOptions) -> StatePlan:
    """Return the plan of this rank. Local."""
    parts = [_part(tensor, meshes, options) for tensor in moved]
    parts.sort(key=lambda part: -part.leg.dtype.itemsize)
    return StatePlan(parts, meshes.device, max(1, options.chunk // BATCHES))


def _part(tensor: MovedTensor, meshes: MeshPair, options: StateOptions) -> MovedPart:
    """Return this rank's parts of a tensor."""
    travels: torch.dtype = getattr(torch, travel_dtype(tensor.dtype, options.dtype_name))
    leg = make_leg(tensor.move, meshes.target, travels)
    left = tensor.pattern.left
    sum_parts = make_sum(meshes, meshes.source, left, tensor.sizes, "sum")
    return MovedPart(tensor, leg, sum_parts)


def _tensor_of(name: str, state: State | None, argument: str) -> Tensor:
    if state is None or name not in state:
        what = "None" if state is None else f"a state without {name}"
        raise SpecError(f"{argument} is {what} on this rank.", fix=f"a state with {name}.")
    return local_tensor(name, state[name])
