"""A bridge: move states between two jobs that meet at a store of their own.

Both sides plan from the same two statements, and move with the plan of a transfer within a job.
An exchange has four steps, and the weights change in the last one only::

    meet       the first ranks of both sides, at the store
    start      all ranks of both sides arrive; they connect, unless they still are
    exchange   messages and copies into new tensors, and a vote of all ranks that they are whole
    take       each side votes once more, and the target fills its tensors

Messages travel on a gloo group that torch does not know. A failed exchange closes it, and the next
one connects anew. So each side may end and start again while the other one goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn, cast

import torch
from torch import Tensor

from ..call import quotes_call
from ..errors import VERSION, MeshkitError, SpecError
from ..groups.registry import MeshGroups
from ..launch.job import require_job
from ..launch.of_one_process import OfOneProcess
from ..launch.process import current_process
from ..launch.store import SERVED, Store, open_store
from ..launch.times import TIMES, Deadline, Time, parse_timeout
from ..launch.urls import url_fault
from ..redistribute.mover import MeshPair
from ..redistribute.to_mesh import MakeReduce
from .bridge_plan import CALL, SIDES, Statement
from .exchange import Connection, Exchange
from .meeting import Met, Side
from .state import Table
from .state_plan import State, StateOptions, agree_on_tables, plan_state, read_state

EXAMPLE = 'mesh.bridge("store://host:29400/weights", side="trainer"), for example.'


class Bridge(OfOneProcess):
    """One side of a bridge between two jobs. See ``mesh.bridge``."""

    def __init__(
        self,
        groups: MeshGroups,
        device: torch.device,
        make_reduce: MakeReduce,
        url: str,
        side: str,
    ) -> None:
        self.groups, self.device, self.make_reduce = groups, device, make_reduce
        groups.check_usable()
        if require_job().rehearsed is not None:
            line = "a rehearsal does not play a bridge: its other side is another job."
            raise MeshkitError(line, fix="leave it out there; mesh.transfer is played.")
        self.own = MeshPair(groups, groups, device)  # the agreement of this side alone
        rank = cast(int, groups.plan.layout.rank_positions.find(groups.rank))
        store: Store | None = None

        def join(_: object) -> int | None:
            nonlocal store
            _check_arguments(url, side)
            world = replace(require_job().world, init_method=url)
            limit = Deadline.after(require_job().arrival_timeout / 2)
            store = Store(open_store(world, limit), world, "bridge")
            key = f"sides/{side}/number"
            return None if rank else store.within(TIMES.store, lambda: store.add(key, 1))

        facts = {"store": str(url), "side": str(side)}
        stated = self.own.agree("mesh.bridge", facts, join, stated="number", alike=False)
        self.side = Side(cast(Store, store), side, int(stated[0][0]), rank)
        self.connection = Connection()
        self.is_closed = False
        self._transfers = 0

    def __repr__(self) -> str:
        return f"Bridge({self.side.where!r}, side={self.side.name!r})"

    def __enter__(self) -> Bridge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @quotes_call("bridge.transfer", by_name=("like",))
    def transfer(
        self,
        patterns: Mapping[str, str],
        /,
        *,
        like: State,
        to: str = "sampler",
        dtype: torch.dtype | None = None,
        chunk: int = 8 * 2**20,
        sizes: Mapping[str, int] | None = None,
    ) -> BridgeTransfer:
        """Agree with the other job on states to move, such as weights from trainer to sampler.

        Collective over the ranks of this side. The other job makes the same call, and each side
        waits for the other one. Several transfers are made in the same order on both sides; a call
        that fails does not count. A job that is started again makes them anew, and the other one
        goes on.

        Args:
            patterns: a pattern for each glob of names, as in :meth:`Mesh.transfer`. The left side
                is over the mesh of the job that sends, and the right one over that of the other.
            like: on the side that sends its local state, on the other one the tensors to fill.
            to: the side that receives, ``"sampler"`` or ``"trainer"``.
            dtype: the dtype in which floating-point numbers travel; None is their own. The side
                that receives has tensors of this dtype, or of that of the other side.
            chunk: the bytes of a rank's tensors of which at most two are on their way. They travel
                in four batches; ranks that want copies gather one while the next ones arrive.
            sizes: the global sizes of dims in brackets, as in :meth:`Mesh.transfer`.

        Raises:
            SpecError: if a name has no pattern, or a tensor does not fit its pattern.
            DisagreementError: if the sides pass other patterns or options, have other names, dtypes
                or shapes, or another version of meshkit. Both sides raise it.
            LaunchError: if two jobs have joined as this side, and none as the other one.
            RankTimeoutError: if the other side does not come within ``arrival_timeout``.

        Cost: a round on each side, and one record of each side at the store. Ranks connect in
        the first exchange.
        """
        self.check_open()
        self.side.attempts += 1
        number, options = self._transfers + 1, StateOptions(dtype, chunk, sizes)
        transfer = BridgeTransfer(self, number, patterns, like, to, options)
        self._transfers = number  # a call that fails does not count: it can be made again
        return transfer

    @quotes_call("bridge.close")
    def close(self) -> None:
        """Close the connections to the other job. Local; the other side may wait for a new one."""
        self.is_closed = True
        self.connection.close()

    def check_open(self) -> None:
        """Raise if the bridge or its mesh is closed."""
        self.groups.check_usable()
        if self.is_closed:
            raise MeshkitError("the bridge is closed.", fix=EXAMPLE)


def _check_arguments(url: object, side: object) -> None:
    is_served = isinstance(url, str) and url.startswith(f"{SERVED}://")
    if not is_served or url_fault(str(url)) is not None:
        line = f"store is {url!r}, not the address of a store that `meshkit store` hosts."
        raise SpecError(line, fix=EXAMPLE)
    if side not in SIDES:
        raise SpecError(f"side is {side!r}.", fix='side="trainer" or side="sampler".')


class BridgeTransfer(OfOneProcess):
    """The move of states between two jobs. See ``bridge.transfer``.

    Attributes:
        version: the number of the last state that has arrived whole, larger than that of any
            before; 0 before the first one. A failed exchange leaves a number out.
    """

    def __init__(
        self,
        bridge: Bridge,
        number: int,
        patterns: Mapping[str, str],
        like: State,
        to: str,
        options: StateOptions,
    ) -> None:
        self.version = 0
        self._bridge, self._side, self._like = bridge, bridge.side, like
        self._number, self._options, self._attempts = number, options, 0
        self._is_target = to == bridge.side.name
        self._store = bridge.side.store.part(f"transfers/{number}")
        self._label = bridge.side.label
        try:
            self._statement = statement = self._agree(patterns, like, to)
        except MeshkitError as error:
            self._side.give_up(self._store, error)
            raise
        deadline = Deadline.after(require_job().arrival_timeout)

        def find() -> str:
            self._side.state(self._store, statement)
            return self._side.find_other(self._store, statement, deadline)

        self._join(str(self._side.lead(find, deadline)))

    def __repr__(self) -> str:
        return f"BridgeTransfer({self._plan}, version={self.version})"

    @quotes_call("sync.push", by_name=("state",))
    def push(self, state: State | None = None, *, timeout: Time | None = None) -> int:
        """Send a state to the other job, which pulls it. Collective over the ranks of this side.

        Args:
            state: the local state, with the names, shapes and dtypes of ``like``; None is ``like``.
            timeout: how long to wait for the other side; None is ``arrival_timeout``.

        Returns:
            The version that has arrived.

        Raises:
            SpecError: if this side receives, or a tensor has another shape or dtype.
            RankTimeoutError: if the other side does not pull in time, or the store is lost.
            CollectiveError: if a rank of either side fails. The next push connects anew.

        Cost: each element leaves this side once. Some operations at the store.
        """
        if self._is_target:
            self._raise_direction("push", "pull")
        given = self._like if state is None else state
        return self._move("push", given, timeout)

    @quotes_call("sync.pull")
    def pull(self, *, timeout: Time | None = None) -> int:
        """Fill the tensors of ``like`` with a state that the other job pushes.

        Collective over the ranks of this side. The tensors change after the whole state has arrived
        on all of them. If this raises, they are as before.

        Args:
            timeout: how long to wait for the other side; None is ``arrival_timeout``.

        Returns:
            The version of the state.

        Raises:
            SpecError: if this side sends, or a tensor of ``like`` has another shape or dtype.
            RankTimeoutError: if the other side does not push in time, or the store is lost.
            CollectiveError: if a rank of either side fails. The next pull connects anew.

        Cost: the memory of one more copy of ``like``. A rank receives what it lacks, and no more.
        """
        if not self._is_target:
            self._raise_direction("pull", "push")
        return self._move("pull", self._like, timeout)

    def _raise_direction(self, call: str, other: str) -> NoReturn:
        line = f"the {self._side.name} cannot {call} in this transfer."
        raise SpecError(
            line, fix=f"sync.{other}(), or bridge.transfer(..., to={self._side.name!r})."
        )

    # -------------------------------------------------------------- the plan

    def _agree(self, patterns: Mapping[str, str], like: State, to: str) -> Statement:
        """Return the statement of this side. Collective over its ranks."""
        own, layout, options = self._bridge.own, self._bridge.groups.plan.layout, self._options

        def read() -> dict[str, Table]:  # an error here is announced to this side
            options.check()
            if to not in SIDES:
                raise SpecError(f"to is {to!r}.", fix='to="sampler" or to="trainer".')
            layouts = (None, layout) if self._is_target else (layout, None)
            return {"": read_state(patterns, like, own.rank, layouts, options.sizes)}

        facts = {
            "meshkit": VERSION,
            "to": str(to),
            "dtype": options.dtype_name,
            "chunk": repr(options.chunk),
            "sizes": options.sizes_text,
        }
        same = {**facts, "transfer": str(self._number), "patterns": repr(patterns)}
        stated = agree_on_tables(own, CALL, same, read)
        position = layout.rank_positions.find
        tables = [(table, [position(rank) or 0 for rank in ranks]) for _, table, ranks in stated]
        pairs = {str(glob): str(text) for glob, text in patterns.items()}
        return Statement(facts, pairs, layout.sizes, tables, current_process())

    def _join(self, label: str) -> None:
        """Plan the transfer with a statement of the other side. Local, with equal errors on all."""
        bridge, side = self._bridge, self._side
        other = side.read(self._store, label)
        plan = side.plan(self._statement, other)
        rank = side.rank + (plan.trainer_ranks if side.name == SIDES[1] else 0)
        groups = None if self._is_target else bridge.groups, None
        device, options, make_reduce = bridge.device, self._options, bridge.make_reduce
        self._plan = plan_state(plan.moved, groups, rank, device, options, make_reduce)
        starts, connection = (str(side.number), label.partition(".")[0]), bridge.connection
        self._exchange = Exchange(
            bridge.own, self._store, plan, self._plan, rank, starts, connection
        )
        self._other, self._other_label = other.process, label

    def _read(self, state: State) -> list[Tensor | None]:
        return self._plan.find(state) if self._is_target else self._plan.read(state)

    def _move(self, call: str, state: State, timeout: Time | None) -> int:
        """Move a state, and return its version. Collective over both sides."""
        bridge, side, deed = self._bridge, self._side, "push" if self._is_target else "pull"
        bridge.check_open()
        limit = parse_timeout("timeout", timeout) or require_job().arrival_timeout
        deadline, name = Deadline.after(limit), f"sync.{call}"
        facts = {"transfer": self._number, "timeout": str(limit)}
        bridge.own.confirm(name, facts, lambda: self._read(state), limit)
        taking = bridge.own.round(name)  # counted by all ranks, also by one that fails before it
        self._attempts += 1

        def meet() -> Met:
            own = f"{self._label} {self._attempts}"
            return side.meet(self._store, own, self._other, deadline, deed)

        # the first rank may have come later than this one
        latest = Deadline.after(limit) if side.rank else deadline
        version, other = Met(*side.lead(meet, latest))
        try:
            if other != self._other_label:
                self._join(other)
            with torch.no_grad():
                tensors = self._read(state)
                self._exchange.move(
                    name, version, tensors, taking, fills=self._is_target, limit=deadline.left
                )
        except BaseException:
            bridge.connection.close()
            raise
        self.version = version
        return version
