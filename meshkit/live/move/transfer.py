"""Move whole states between two meshes: planned once, packed, in chunks.

The plan is made when the transfer is created. Each rank states the names, sizes and dtypes of its
part of the state, so a wrong name or a missing pattern is an error before anything moves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ...core.call import quotes_call
from ...core.errors import CollectiveError, MeshkitError, SpecError
from ...core.redistribute.state import Ends, StatePatterns, Table, plan_moves
from ...launch.job import require_job
from ..copies import OfOneProcess
from .mesh_move import Handle, MakeReduce
from .mover import JobChannel, MeshPair, Mover
from .state_plan import (
    State,
    StateOptions,
    StatePlan,
    agree_on_tables,
    plan_state,
    read_state,
)

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
        dtype: torch.dtype | None,
        chunk: int,
        staged: bool,
        sizes: Mapping[str, int] | None,
        make_reduce: MakeReduce,
    ) -> None:
        self._meshes, self._staged = meshes, staged
        self._options, self._make_reduce = StateOptions(dtype, chunk, sizes), make_reduce
        self._number = 0  # how many states have moved
        self._running = Handle(lambda: None)  # the last one
        meshes.check_open()
        outside = meshes.is_outside
        self._plan = StatePlan((), meshes.device, 1) if outside else self._agree(patterns, like)
        plan, channel = self._plan, JobChannel(CALL, meshes.device, meshes.message_timeout)
        self._mover = Mover(meshes.rank, meshes.device, plan.legs, plan.batches, CALL, channel)

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
            SpecError: if a tensor is missing or has another shape or dtype, before it is sent.
            CollectiveError: if a message of this rank fails and the transfer is staged. Other
                ranks raise a DisagreementError that repeats it. ``out`` is then as before.
            RankTimeoutError: if a rank does not come to the vote of a staged transfer in time.
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
        if state is not None and out is None and self._meshes.rank not in self._meshes.layouts[0]:
            line = f"rank {self._meshes.rank} is outside the source, and state is what it sends."
            raise SpecError(line, fix="the tensors to fill as out=.")
        self._running.wait()  # else its messages would meet those of this move
        with torch.no_grad():
            plan, is_target = self._plan, self._meshes.rank in self._meshes.layouts[1]
            held = plan.read(state)
            filled = plan.new_state() if out is None and is_target else out
            places = wanted = plan.find(filled)
            if self._staged:
                places = []
                self._step(lambda: places.extend(map(_room, wanted)))
            views, sources = plan.view(places), plan.arrange(held)
            running = self._mover.start(sources, views)
            self._step(lambda: next(running, None))

        def finish() -> State | None:
            self._running = Handle(lambda: None)  # also if this fails
            with torch.no_grad():
                self._step(lambda: [*running])
                if self._staged:
                    self._step(self._meshes.synchronize)
                    self._vote()
                    for place, tensor in zip(places, wanted, strict=True):
                        if tensor is not None and place is not None:
                            tensor.copy_(place)
            return filled if is_target else None

        self._running = Handle(finish)
        return self._running

    def _step(self, work: Callable[[], object]) -> None:
        """Move on; if that fails, let the other ranks know, or say what is undefined."""
        try:
            work()
        except Exception as error:
            if self._staged:
                evidence = f"rank {self._meshes.rank}: {type(error).__name__}: {error}"
                reason = CollectiveError(LOST, evidence, INTACT, fix=LOG_FIRST)
                # the frames of torch's error hold the new tensors
                self._vote(reason, error.with_traceback(None))
            elif isinstance(error, RuntimeError) and error.args:
                error.args = (f"{error}\n{UNDEFINED}",)
            raise

    def _vote(self, reason: MeshkitError | None = None, cause: Exception | None = None) -> None:
        """Agree that all ranks have a whole state. Collective, also on a rank with an error.

        The others are late by no more than their last messages may take.
        """
        self._number += 1

        def read() -> None:
            if reason is not None:
                raise reason from cause

        facts, meshes = {"state": self._number}, self._meshes
        limit = min(require_job().arrival_timeout, meshes.message_timeout())
        meshes.confirm("transfer", facts, read, limit)

    def _agree(self, patterns: Mapping[str, str], like: State | None) -> StatePlan:
        """Return the plan of this rank. Collective."""
        meshes, rank, options = self._meshes, self._meshes.rank, self._options

        def read() -> tuple[str, Table]:  # an error here is announced to all ranks
            options.check()
            table = read_state(patterns, like, rank, meshes.layouts, options.sizes)
            return "source" if rank in meshes.layouts[0] else "target", table

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
        moved = plan_moves(parsed, meshes.layouts, held, wanted, dtype, Ends(CALL, converts=True))
        groups = meshes.source, meshes.target
        return plan_state(moved, groups, rank, meshes.device, options, self._make_reduce)


def _room(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else torch.empty_like(tensor)
