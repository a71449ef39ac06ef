"""Move whole states between two meshes: planned once, packed, in chunks.

The plan is made when the transfer is created. Each rank states the names, sizes and dtypes of its
part of the state, so a wrong name or a missing pattern is an error before anything moves.

Ranks outside both meshes need not call. An axis that a side leaves out has copies on all its ranks.
A fused weight moves by ``"(qkv h/tp d) i -> (qkv h d) i"`` with ``{"qkv": 3, "d": 64}``. DTensors
need ``out`` if their dims are cut into parts of different sizes, as ``torch.chunk`` cuts otherwise.

Tensors to fill convert the numbers that arrive to their own dtype, except if numbers lose a part,
as complex ones do in float32 and floating-point ones in int64, and if whole ones may wrap, as those
of int64 do in int32. A chunk travels in four batches. If a transfer is staged, all ranks agree
before ``out`` changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from ..call import quotes_call
from ..errors import CollectiveError, SpecError
from ..launch.job import require_job
from ..launch.of_one_process import OfOneProcess
from ..launch.tensors import check_equal_memory, find_tied
from ..redistribute.mesh_pair import MeshPair
from ..redistribute.mover import Channel, Mover
from ..redistribute.program import Handle
from .state import StatePatterns, Table, plan_moves
from .state_plan import State, StatePlan, plan_state
from .state_tables import StateOptions, agree_on_tables, read_table

Result = TypeVar("Result")
CALL = "mesh.transfer"
LOST, LOG_FIRST = "the state did not arrive.", "look at the logs of these ranks first."
INTACT = "The tensors of out are as before on each rank."
UNDEFINED = "The transfer has failed, and the tensors of out are undefined."


class Transfer(OfOneProcess):
    """The move of whole states between two meshes: call it with a state. See ``mesh.transfer``."""

    def __init__(
        self,
        meshes: MeshPair,
        patterns: Mapping[str, str],
        like: State | None,
        out: State | None,
        dtype: torch.dtype | None,
        chunk: int,
        staged: bool,
        sizes: Mapping[str, int] | None,
    ) -> None:
        self._meshes, self._staged = meshes, staged
        self._options = StateOptions(dtype, chunk, sizes)
        self._number = 0  # how many votes there were
        self._running = Handle(lambda: None)  # the last one
        meshes.check_open()
        outside = meshes.is_outside
        nothing = StatePlan((), meshes.device, 1)
        self._plan = nothing if outside else self._agree(patterns, like, out)
        plan, channel = self._plan, Channel(CALL, meshes.message_timeout)
        self._mover = Mover(meshes.rank, meshes.device, plan.legs, plan.batches, channel)

    def __repr__(self) -> str:
        return f"Transfer({self._plan})"

    @quotes_call("transfer", by_name=("state", "out"))
    def __call__(self, state: State | None = None, *, out: State | None = None) -> State | None:
        """Move a state. Collective over the ranks of both meshes.

        Args:
            state: the local state on a rank of the source, with the names, shapes and dtypes of
                ``like``; None elsewhere, and refused there without ``out``.
            out: the tensors to fill on a rank of the target; None makes new ones.

        Returns:
            ``out``, or a dict of new local tensors, on a rank of the target; None elsewhere.

        Raises:
            SpecError: if a tensor is missing or has another shape or dtype. Other ranks raise a
                DisagreementError that repeats it, and ``out`` is as before on all ranks. Also if
                two names of one tensor of ``out`` arrive with different numbers. Then ``out`` is
                undefined, and other ranks do not raise, unless the transfer is staged.
            CollectiveError: if one of the first messages of this rank fails, or any if the transfer
                is staged. Other ranks raise a DisagreementError, and ``out`` is as before.
            RankTimeoutError: if a rank does not come to a vote in time.

        Cost: a vote of all ranks, once the first messages have arrived: a round at the store. A
        staged transfer has another one at its end.
        """
        moved: State | None = self._begin(state, out).wait()
        return moved

    @quotes_call("transfer.begin", by_name=("state", "out"))
    def begin(self, state: State | None = None, *, out: State | None = None) -> Handle:
        """Begin the move of a state; ``handle.wait()`` returns what a call returns.

        The first batch travels meanwhile, the others in ``wait``: keep both states unchanged until
        then, or parts of other versions arrive. The next move waits for this one first.
        """
        return self._begin(state, out)

    def _begin(self, state: State | None, out: State | None) -> Handle:
        if self._meshes.is_outside:
            return Handle(lambda: None)
        self._meshes.check_open()
        self._running.wait()  # else its messages would meet those of this move
        is_target = self._meshes.rank in self._meshes.layouts[1]
        with torch.no_grad():
            try:
                held, filled, wanted, places = self._prepare(state, out)
                views = self._plan.view(places)
            except Exception as error:
                self._refuse(error)
                raise
            moving = self._step(lambda: self._mover.start(self._plan.arrange(held), views))

        def finish() -> State | None:
            self._running = Handle(lambda: None)  # also if this fails
            with torch.no_grad():
                self._step(moving.wait_for_first)
                self._vote(self._meshes.message_timeout())
                self._step(moving.wait, is_last=True)
                if self._staged:
                    self._step(self._meshes.synchronize, is_last=True)
                check = partial(check_equal_memory, wanted, places, self._plan.names)
                self._step(check, is_last=True)
                if self._staged:
                    self._vote(self._limit)
                    for place, tensor in zip(places, wanted, strict=True):
                        if tensor is not None and place is not None:
                            tensor.copy_(place)
            return filled if is_target else None

        self._running = Handle(finish)
        return self._running

    def _prepare(self, state: State | None, out: State | None) -> Prepared:
        """Return what this rank sends, and what it fills. Local."""
        plan, (source, target) = self._plan, self._meshes.layouts
        if state is not None and out is None and self._meshes.rank not in source:
            line = f"rank {self._meshes.rank} is outside the source, and state is what it sends."
            raise SpecError(line, fix="the tensors to fill as out=.")
        held = plan.read(state)
        filled = plan.new_state() if out is None and self._meshes.rank in target else out
        wanted = plan.find(filled)
        places = [*wanted]
        for number in range(len(wanted)) if self._staged else find_tied(wanted):
            tensor = wanted[number]
            places[number] = None if tensor is None else torch.empty_like(tensor)
        return Prepared(held, filled, wanted, places)

    def _refuse(self, error: Exception) -> None:
        """Raise an error on all ranks before a state moves.

        The others may wait already for sums and for first messages, so this rank sends zeros. They
        throw away what has arrived.
        """
        plan = self._plan
        try:
            moving = self._mover.start(plan.arrange(plan.zeros()), [None] * len(plan.parts))
            self._running = Handle(moving.wait_for_first)
        finally:
            self._vote(self._limit, error)

    def _step(self, work: Callable[[], Result], *, is_last: bool = False) -> Result:
        """Move on; if that fails, let the other ranks know, or say what is undefined.

        ``is_last``: after the vote before the move, so the next one is that of a staged transfer.
        """
        try:
            return work()
        except Exception as error:
            if self._staged or not is_last:
                evidence = f"rank {self._meshes.rank}: {type(error).__name__}: {error}"
                reason = CollectiveError(LOST, evidence, INTACT, fix=LOG_FIRST)
                # the frames of torch's error hold the new tensors
                self._vote(self._limit, reason, error.with_traceback(None))
            elif isinstance(error, RuntimeError) and error.args:
                error.args = (f"{error}\n{UNDEFINED}",)
            raise

    @property
    def _limit(self) -> timedelta:
        """How late the others are at most whose last messages may be on their way."""
        return min(require_job().arrival_timeout, self._meshes.message_timeout())

    def _vote(
        self, limit: timedelta, reason: Exception | None = None, cause: Exception | None = None
    ) -> None:
        """Agree that all ranks go on. Collective, also on a rank with an error."""
        self._number += 1

        def read() -> None:
            if reason is not None:
                raise reason from cause

        self._meshes.confirm("transfer", {"vote": self._number}, read, limit)

    def _agree(
        self, patterns: Mapping[str, str], like: State | None, out: State | None
    ) -> StatePlan:
        """Return the plan of this rank. Collective."""
        meshes, rank, options = self._meshes, self._meshes.rank, self._options
        source, target = meshes.layouts

        def read() -> dict[str, Table]:  # an error here is announced to all ranks
            options.check()
            side = "source" if rank in source else "target"
            sizes = options.sizes
            tables = {side: read_table(patterns, meshes.layouts, side, "like", like, rank, sizes)}
            if out is not None:
                if not (rank in source and rank in target):
                    line = f"out is given on rank {rank}, which is not in both meshes."
                    raise SpecError(line, fix="leave it out there; like= is the tensors to fill.")
                given = patterns, meshes.layouts, "target", "out", out, rank, sizes
                tables["target"] = read_table(*given)
            return tables

        facts = {
            "patterns": repr(patterns),
            "sizes": options.sizes_text,
            "dtype": str(options.dtype),
            "chunk": repr(options.chunk),
            "staged": repr(self._staged),
        }
        stated = agree_on_tables(meshes, CALL, facts, read)
        held, wanted = (
            [(table, ranks) for side, table, ranks in stated if side == name]
            for name in ("source", "target")
        )
        parsed, dtype = StatePatterns.of(patterns), options.dtype_name
        moved = plan_moves(parsed, meshes.layouts, held, wanted, dtype, CALL)
        return plan_state(moved, meshes, options)


class Prepared(NamedTuple):
    """The tensors of a rank in one move."""

    held: list[Tensor | None]  # what it sends
    filled: State | None  # what its call returns
    wanted: list[Tensor | None]  # the tensors of that, of each part
    places: list[Tensor | None]  # where they arrive: there, or in new ones if staged
