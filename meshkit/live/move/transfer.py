"""Move whole states between two meshes: planned once, packed, in chunks.

The plan is made when the transfer is created. Each rank states the names, sizes and dtypes of its
part of the state, so a wrong name or a missing pattern is an error before anything moves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import torch
from torch import Tensor

from ...core.call import quotes_call
from ...core.errors import SpecError
from ...core.group_plan import missing_group_error
from ...core.redistribute.mesh_move import axes_of_both, join_axes, make_mesh_move
from ...core.redistribute.move import check_axes, infer_sizes, local_shape
from ...core.redistribute.pattern import Pattern, Side
from ...core.redistribute.state import MovedTensor, StatePatterns, Table, Tables, list_moved
from ...core.text import count_noun
from ...launch.times import TIMES
from .mesh_move import Handle, MakeReduce, Reduce
from .mover import Leg, MeshPair, Mover
from .operations import check_tensor

State = Mapping[str, Any]  # names with tensors or DTensors
CALL = "mesh.transfer"
UNDEFINED = "The transfer has failed, and the tensors of out are undefined."


@dataclass(frozen=True, eq=False)
class MovedPart:
    """This rank's parts of a tensor that moves."""

    tensor: MovedTensor
    leg: Leg
    reduce: Reduce  # sums the parts that the left side marks so

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

    @cached_property
    def held_shape(self) -> tuple[int, ...]:
        """The shape of the local tensor before."""
        move = self.leg.move.move
        return local_shape(move.left_entries, move.source.shape(self.leg.coordinate))

    @cached_property
    def wanted_shape(self) -> tuple[int, ...]:
        """The shape of the local tensor after."""
        move = self.leg.move.move
        return local_shape(move.right_entries, move.target.shape(self.leg.coordinate))

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


class Transfer:
    """The move of whole states between two meshes: call it with a state. See ``mesh.transfer``."""

    def __init__(
        self,
        meshes: MeshPair,
        patterns: Mapping[str, str],
        like: State | None,
        dtype: torch.dtype | None,
        chunk: int,
        staged: bool,
        make_reduce: MakeReduce,
    ) -> None:
        self._meshes, self._dtype, self._staged = meshes, dtype, staged
        self._chunk, self._make_reduce = chunk, make_reduce
        self._patterns = StatePatterns(())
        self._parts: list[MovedPart] = []
        self._number = 0  # how many states have moved
        meshes.check_open()
        if not meshes.is_outside:
            tables = self._agree(patterns, like)
            moved = list_moved(self._patterns, *meshes.layouts, *tables)
            parts = [self._part(tensor) for tensor in moved]
            # elements of more bytes come first, so that all are aligned in a message
            self._parts = sorted(parts, key=lambda part: -part.leg.dtype.itemsize)
            meshes.agree(CALL, {}, lambda: self._check_like(like), stated="nothing", alike=True)
        legs = [part.leg for part in self._parts]
        limit = meshes.message_timeout
        self._mover = Mover(CALL, meshes.rank, meshes.device, legs, self._batches(), limit)

    def __repr__(self) -> str:
        return f"Transfer({count_noun(len({part.name for part in self._parts}), 'tensor')})"

    @quotes_call("transfer", by_name=("state", "out"))
    def __call__(self, state: State | None = None, *, out: State | None = None) -> State | None:
        """Move a state. Collective over the ranks of both meshes.

        Args:
            state: the local state on a rank of the source, with the names, shapes and dtypes of
                ``like``; None elsewhere.
            out: the tensors to fill on a rank of the target; None makes new ones.

        Returns:
            ``out``, or a dict of new local tensors, on a rank of the target; None elsewhere.

        Raises:
            SpecError: if a tensor is missing or has another shape or dtype, before it is sent.
        """
        moved: State | None = self._begin(state, out).wait()
        return moved

    @quotes_call("transfer.begin", by_name=("state", "out"))
    def begin(self, state: State | None = None, *, out: State | None = None) -> Handle:
        """Begin the move of a state; ``handle.wait()`` returns what a call returns.

        The first batch travels meanwhile. Keep both states unchanged until ``wait``.
        """
        return self._begin(state, out)

    def _begin(self, state: State | None, out: State | None) -> Handle:
        if self._meshes.is_outside:
            return Handle(lambda: None)
        self._meshes.check_open()
        with torch.no_grad():
            held = [self._read(part, state) if part.is_held else None for part in self._parts]
            is_target = self._meshes.rank in self._meshes.layouts[1]
            filled = self._new_state() if out is None and is_target else out
            wanted = [self._find(part, filled) if part.is_wanted else None for part in self._parts]
            places = wanted
            if self._staged:
                places = [None if tensor is None else torch.empty_like(tensor) for tensor in wanted]
            views = [
                None if place is None else part.view(place)
                for part, place in zip(self._parts, places, strict=True)
            ]
            sources = [
                None if x is None else part.leg.arrange(part.leg.move.before, part.reduce(x))
                for part, x in zip(self._parts, held, strict=True)
            ]
            running = self._mover.start(sources, views)
            self._step(lambda: next(running, None))

        def finish() -> State | None:
            with torch.no_grad():
                self._step(lambda: [*running])
                if self._staged:
                    self._step(self._meshes.synchronize)
                    self._vote(None)
                    for place, tensor in zip(places, wanted, strict=True):
                        if tensor is not None and place is not None:
                            tensor.copy_(place)
            return filled if is_target else None

        return Handle(finish)

    def _step(self, work: Callable[[], object]) -> None:
        """Move on; if that fails, let the other ranks know, or say what is undefined."""
        try:
            work()
        except Exception as error:
            if self._staged:
                self._vote(error)
            elif isinstance(error, RuntimeError) and error.args:
                error.args = (f"{error}\n{UNDEFINED}",)
            raise

    def _vote(self, error: Exception | None) -> None:
        """Agree that all ranks have a whole state. Collective, also on a rank with an error."""
        self._number += 1

        def read() -> None:
            if error is not None:
                raise error

        facts = {"state": self._number}
        self._meshes.agree("transfer", facts, read, stated="nothing", alike=True)

    # -------------------------------------------------------------- the plan

    def _check_options(self) -> None:
        if self._dtype is not None and not isinstance(self._dtype, torch.dtype):
            line = f"dtype is {self._dtype!r}, not a dtype of torch."
            raise SpecError(line, fix="dtype=torch.bfloat16, for example.")
        if not isinstance(self._chunk, int) or self._chunk < 1:
            line = f"chunk is {self._chunk!r}, not a number of bytes."
            raise SpecError(line, fix="chunk=64 * 2**20, for example.")

    def _agree(self, patterns: Mapping[str, str], like: State | None) -> tuple[Tables, Tables]:
        """Return the tables of the source, and of the ranks of the target alone. Collective."""
        rank, source = self._meshes.rank, self._meshes.layouts[0]
        store = self._meshes.store()

        def read() -> list[str]:  # an error here is announced to all ranks
            self._check_options()
            self._patterns = StatePatterns.of(patterns)
            for _, pattern in self._patterns.globs:
                sides = pattern.left, pattern.right
                for side, layout in zip(sides, self._meshes.layouts, strict=True):
                    check_axes(Pattern(side, side), layout.sizes)
            if like is None or not isinstance(like, Mapping):
                line = f"like is {like!r} on rank {rank}, which is in one of the meshes."
                raise SpecError(line, fix="the state, or on ranks of `to` alone what to fill.")
            is_source = rank in source
            fact = self._source_fact if is_source else self._target_fact
            table = {str(name): fact(str(name), value) for name, value in like.items()}
            text = json.dumps(table)
            digest = hashlib.sha256(text.encode()).hexdigest()
            key = f"states/{digest}"
            store.within(TIMES.store, lambda: store.claim(key, text))
            return ["source" if is_source else "target", digest]

        facts = {
            "patterns": repr(patterns),
            "dtype": str(self._dtype),
            "chunk": repr(self._chunk),
            "staged": repr(self._staged),
        }
        stated = self._meshes.agree(CALL, facts, read, stated="state", alike=False)
        tables: dict[str, list[tuple[Table, Sequence[int]]]] = {"source": [], "target": []}
        for (side, digest), ranks in stated:
            key = f"states/{digest}"
            table = store.within(TIMES.store, lambda: store.read(key, json.loads))  # noqa: B023
            tables[side].append((table or {}, ranks))
        return tables["source"], tables["target"]

    def _source_fact(self, name: str, value: Any) -> list[Any]:  # noqa: ANN401
        """Return the global sizes and the dtype of a tensor of this rank of the source."""
        pattern, (source, target) = self._patterns.find(name), self._meshes.layouts
        tensor = _local(name, value)
        check_placements(name, value, pattern.left, source.axes)
        joined = join_axes(pattern, source.sizes, target.sizes)
        given: dict[str, int] = {}
        entries = joined.left.entries
        if is_dtensor(value) and all(len(entry) == 1 for entry in entries):
            given = {entry[0].name: size for entry, size in zip(entries, value.shape, strict=False)}
        axes, coordinate = (
            axes_of_both(source.sizes, target.sizes),
            source.coordinate(self._meshes.rank),
        )
        try:
            sizes = infer_sizes(joined, axes, coordinate, tuple(tensor.shape), given)[1]
        except SpecError as error:
            evidence = (f"The pattern of {name} is {str(pattern)!r}.", *error.evidence)
            raise SpecError(f"{name}: {error.summary}", *evidence, fix=error.fix) from None
        return [sizes, _name(tensor.dtype)]

    def _target_fact(self, name: str, value: Any) -> list[Any]:  # noqa: ANN401
        """Return the local shape of a tensor of this rank of the target alone."""
        check_placements(name, value, self._patterns.find(name).right, self._meshes.layouts[1].axes)
        return [*_local(name, value).shape]

    def _part(self, tensor: MovedTensor) -> MovedPart:
        """Return this rank's parts of a tensor."""
        source, target = self._meshes.layouts
        groups = self._meshes.source, self._meshes.target
        joined = join_axes(tensor.pattern, source.sizes, target.sizes)
        move = make_mesh_move(joined, source, target, tensor.sizes)
        axes, group = move.target.copy_axes, None
        if axes and not groups[1].plan.has(axes):
            raise missing_group_error(groups[1].plan, axes, groups[1].extended_by)
        if axes and self._meshes.rank in target:
            group = groups[1].get((axes,))
        dtype: torch.dtype = self._dtype or getattr(torch, tensor.dtype)
        reduce = self._make_reduce(groups[0], tensor.pattern.left, dict(tensor.sizes), "sum")
        return MovedPart(tensor, Leg(move, self._meshes.rank, dtype, group), reduce)

    def _batches(self) -> list[tuple[tuple[int, int, int], ...]]:
        """Return what travels together: tensors of at most a chunk, or a part of a larger one."""
        batches: list[tuple[tuple[int, int, int], ...]] = []
        batch: list[tuple[int, int, int]] = []
        filled = 0
        for number, part in enumerate(self._parts):
            if part.size > self._chunk:
                chunks = -(-part.size // self._chunk)
                batches += [((number, chunk, chunks),) for chunk in range(chunks)]
                continue
            if filled + part.size > self._chunk:
                batches.append(tuple(batch))
                batch, filled = [], 0
            batch.append((number, 0, 1))
            filled += part.size
        return [*batches, tuple(batch)] if batch else batches

    # -------------------------------------------------------------- states

    def _check_like(self, like: State | None) -> None:
        """Check that a rank of the target alone has room for the tensors that it gets."""
        if self._meshes.rank not in self._meshes.layouts[0]:
            for part in self._parts:
                if part.is_wanted:
                    self._find(part, like)

    def _read(self, part: MovedPart, state: State | None) -> Tensor:
        """Return the local tensor of a part that this rank sends."""
        tensor = _tensor_of(part.name, state, "state")
        if tensor.shape != part.held_shape or _name(tensor.dtype) != part.tensor.dtype:
            self._raise_other(part.name, tensor, part.held_shape, part.tensor.dtype)
        return tensor

    def _find(self, part: MovedPart, out: State | None) -> Tensor:
        """Return the local tensor to fill with a part."""
        tensor = _tensor_of(part.name, out, "out")
        if tensor.shape != part.wanted_shape:
            self._raise_other(part.name, tensor, part.wanted_shape, _name(tensor.dtype))
        return tensor

    def _raise_other(
        self, name: str, tensor: Tensor, shape: tuple[int, ...], dtype: str
    ) -> NoReturn:
        raise SpecError(
            f"{name} has {[*tensor.shape]} in {_name(tensor.dtype)} on this rank, and the transfer "
            f"has {[*shape]} in {dtype}.",
            fix="a transfer of its own for other shapes or dtypes.",
        )

    def _new_state(self) -> dict[str, Tensor]:
        device = self._meshes.device
        wanted = (part for part in self._parts if part.is_wanted)
        return {
            part.name: torch.empty(part.wanted_shape, dtype=part.leg.dtype, device=device)
            for part in wanted
        }


def _tensor_of(name: str, state: State | None, argument: str) -> Tensor:
    if state is None or name not in state:
        what = "None" if state is None else f"a state without {name}"
        raise SpecError(f"{argument} is {what} on this rank.", fix=f"a state with {name}.")
    return _local(name, state[name])


def is_dtensor(value: object) -> bool:
    """Return whether a value is a DTensor, without the import of its module."""
    return hasattr(value, "to_local")


def _local(name: str, value: Any) -> Tensor:  # noqa: ANN401
    """Return the local tensor of a tensor or DTensor."""
    tensor = value.to_local() if is_dtensor(value) else value
    try:
        check_tensor(tensor)
    except SpecError as error:
        raise SpecError(f"{name}: {error.summary}", fix=error.fix) from None
    detached: Tensor = tensor.detach()
    return detached


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_placements(name: str, value: Any, side: Side, axes: Sequence[str]) -> None:  # noqa: ANN401
    """Raise if a DTensor is not cut as a side of its pattern says. Local."""
    names = getattr(getattr(value, "device_mesh", None), "mesh_dim_names", None)
    if names is None or not {*names} <= {*axes}:
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
            raise SpecError(
                f"{name} is a DTensor with {[*value.placements]} over {' '.join(names)}.",
                f"Its pattern has {str(side)!r}.",
                fix=f"{wanted} for its dim {dim}.",
            )
