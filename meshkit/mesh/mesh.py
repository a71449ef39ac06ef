"""Mesh: a layout, the rank of this process, and its live process groups."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence, Sized
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import DataLoader, IterableDataset

from ..call import quotes_call
from ..data.batch import BatchPlan
from ..data.checks import compare_batches, compare_parameters, compare_values
from ..data.epoch import SampleOrder
from ..data.first_batch import open_source
from ..data.micro_batches import RankBatch, plan_rank_batch, shard_sequence, weigh_tokens
from ..data.rng import RandomStreams, base_seed
from ..data.sampler import MicroBatchSampler, make_loader
from ..data.seeds import compute_seed, select_coordinate
from ..data.sequence import SequenceShard
from ..data.stream import MicroBatchStream
from ..errors import SpecError
from ..groups import open_mesh
from ..groups.close_mesh import close_mesh
from ..groups.device_mesh import find_attribute
from ..groups.device_mesh_groups import Owner, find_owner, make_device_mesh
from ..groups.edges import edge_groups
from ..groups.registry import GroupsReport, MeshGroups, report_groups
from ..guard.barrier import verify_mesh, wait_at_barrier
from ..guard.commit import commit_step
from ..guard.first import run_first
from ..guard.guard import guard_mesh, post_end
from ..guard.state import GuardState
from ..guard.verification import Verification
from ..launch.log import Startup
from ..launch.of_one_process import OfOneProcess
from ..launch.times import Time
from ..launch.torch_program import make_constant, mark_constant
from ..layout.axes import Names
from ..layout.layout import Coordinate, Layout
from ..layout.position import Position, group_rank
from ..layout.sequence import Order, SequencePlan
from ..norm import norm
from ..recover.admission import admit_newcomers
from ..recover.recovery import Recovery
from ..recover.rounds import RecoveryRequest, Rounds, recover_mesh
from ..redistribute.dim_sizes import merge_dim_sizes
from ..redistribute.mover import CHUNK
from ..redistribute.moves import MeshMoves
from ..redistribute.program import Handle
from ..redistribute.redistribution import Redistribution
from ..redistribute.ring import Ring, exchange_rows, make_ring
from ..text import Ints, format_sizes
from ..transfer.transfer import Transfer
from ..transfer.whole_state import make_local, make_whole
from .current_mesh import find_current_mesh, make_current

Sample = TypeVar("Sample")


@dataclass(eq=False, repr=False)
class Mesh(OfOneProcess):
    """The mesh of one process: its rank, its peers, and the process groups that they share.

    Created by :func:`meshkit.build_mesh`. ``layout`` answers every question about the grid.
    ``with`` closes the mesh at the end.

    A method is local, or collective: then all ranks that it names call it, in the same order and
    with equal arguments, and no other method communicates. Times are in seconds, or timedeltas.
    Data axes are listed as ``"dp ep"`` or ``("dp", "ep")``.

    A mesh, and what it makes, may be an attribute of a model. ``copy.deepcopy(model)`` and
    ``AveragedModel(model)`` share it, and a copy of ``rng`` has streams of its own. Pickling raises
    a MeshkitError, so save ``model.state_dict()``.

    Raises:
        UnknownAxisError: in every method, if the mesh does not have an axis.
        CoordinateError: in every method that needs the coordinate or a group of this rank, on a
            rank outside the mesh, where ``inside`` is False.
        SpecError: in every method that needs the data axes or the gradient group, if an axis longer
            than 1 has an unknown role and no axes are given; if a group was not requested.
        MeshkitError: in every method that needs a group, after ``close`` or ``shutdown``.
        DisagreementError: in every method that creates or compares, on every rank, if ranks pass
            different values, or another rank failed.
        RankTimeoutError: in these methods, if ranks did not arrive within ``arrival_timeout``.
    """

    _proposal: open_mesh.MeshProposal  # with the job, the arrival timeout and the options
    _groups: MeshGroups  # those of this rank, with the plan and the registry of the mesh
    _recovery: Recovery | None = None  # the last one; None before the first
    _coordinate: Coordinate | None = None  # from its first use on
    _known_norms: norm.GradientNorms | None = None  # likewise

    # -------------------------------------------------------------------- the grid

    @property
    def layout(self) -> Layout:
        """The grid of ranks: a :class:`meshkit.Layout`."""
        return self._groups.plan.layout

    @property
    def rank(self) -> int:
        """The global rank of this process."""
        return self._groups.rank

    @property
    def coordinate(self) -> dict[str, int]:
        """The coordinate of this rank: axis name to index, as in ``{"dp": 2, "sp": 1}``."""
        if self._coordinate is None:  # a cached_property would take a lock, which is not compiled
            self._coordinate = Coordinate(self.layout.coordinate(self.rank))
        return Coordinate(self._coordinate)

    @property
    def position(self) -> Position:
        """The rank and its layout without process groups, which can be pickled.

        Give it, not the mesh, to datasets, to workers of a DataLoader and to other processes.
        """
        return Position(self.layout, self.rank)

    @property
    def inside(self) -> bool:
        """Whether this rank is in the mesh. Other ranks have no coordinate and no group."""
        return self.rank in self.layout

    @property
    def device(self) -> torch.device:
        """The device of this process, for the tensors of its collectives."""
        return self._proposal.job.world.device or torch.device("cpu")

    @quotes_call("mesh.size")
    def size(self, *axes: Names) -> int:
        """Return the size of the groups over the axes; without axes, of the whole mesh. Local.

        Example:
            >>> mesh.size("dp"), mesh.size("dp", "sp"), mesh.size()
            (4, 8, 8)
        """
        return self.layout.size(*axes)

    @quotes_call("mesh.group_rank")
    def group_rank(self, *axes: Names) -> int:
        """Return the rank of this process in its group over the axes. Local, O(axes).

        It is the index along the axes as listed, the last one fastest, as ``group(*axes).rank()``,
        but the group need not exist. Without axes it is the position in the mesh.
        """
        return group_rank(self.layout, self.rank, axes or self.layout.axes)

    @quotes_call("mesh.peers")
    def peers(self, *axes: Names) -> Ints:
        """Return the global ranks of this rank's group over the axes, in group order. Local.

        Example:
            >>> mesh.peers("dp")
            array([1, 3, 5, 7])
        """
        return self.layout.peers(self.rank, *axes)

    @quotes_call("mesh.neighbor")
    def neighbor(self, axis: str, shift: int = 1, *, wrap: bool = True) -> int | None:
        """Return the global rank some steps along an axis. Local, O(axes).

        Negative steps go back. Without ``wrap`` the result is None beyond the ends of the axis.

        Example:
            >>> mesh.neighbor("dp"), mesh.neighbor("dp", -1), mesh.neighbor("dp", 2, wrap=False)
            (7, 3, None)
        """
        return self.layout.neighbor(self.rank, axis, shift, wrap=wrap)

    @quotes_call("mesh.ring")
    def ring(self, axis: Names) -> Ints:
        """Return the global ranks around an axis, or around several, this one first. Local.

        See :meth:`meshkit.Layout.ring`.
        """
        return self.layout.ring(self.rank, axis)

    # -------------------------------------------------------------------- process groups

    def group(self, *axes: Names) -> dist.ProcessGroup:
        """Return this rank's process group over the axes; without axes, that of the whole mesh.

        Local: ``build_mesh`` created it. ``group.rank()`` is the index along the axes as listed,
        the last one fastest. The SpecError of a missing group has the argument that creates it.

        Example:
            >>> number = torch.tensor(mesh.rank)
            >>> dist.all_reduce(number, group=mesh.group("sp"))  # of ranks 4 and 5
            >>> number
            tensor(9)
        """
        return self._groups.get(axes)

    @quotes_call("mesh.gradient_group")
    def gradient_group(self, *, experts: bool = False) -> dist.ProcessGroup:
        """Return this rank's group over which gradients are averaged, for DDP. Local.

        Its ranks hold equal weights and see different tokens: they differ along dp, ep, cp and sp,
        and along axes with these roles. Without such axes it holds this rank only.

        Args:
            experts: return the group for the weights of experts, which ranks along ep do not share.
                Divide the sum over it by the size of the group without ``experts``, since an expert
                has the tokens of all ranks along ep. Without ep both groups are the same.

        Example:
            ``DistributedDataParallel(model, process_group=mesh.gradient_group())``
        """
        return self._groups.gradient_group(experts=experts)

    @quotes_call("mesh.device_mesh")
    def device_mesh(
        self,
        pattern: Names | None = None,
        *more: str,
        joint: Mapping[str, Names] | None = None,
    ) -> DeviceMesh:
        """Return the groups as torch's ``DeviceMesh``, for FSDP2, DTensor and DDP. Local.

        All results are slices of one root, so ``fully_shard`` and ``parallelize_module`` combine in
        one model; :mod:`meshkit.groups.device_mesh` has the exceptions. Use none after ``close``.

        Args:
            pattern: ``"(dp sp) tp"`` gives two dims, ``dp_sp`` and ``tp``. Axes that are left out
                are fixed at this rank's coordinate. None gives every axis. An absent standard axis
                has size 1.
            *more: further dims of the pattern: ``("dp", "tp")`` is the same as ``("dp tp")``.
            joint: names for several axes together, in the order of the mesh and without a pattern:
                ``joint={"dp_cp": "dp cp"}`` gives ``["dp_cp"]``.

        Example:
            >>> mesh.device_mesh("(dp sp)").mesh_dim_names
            ('dp_sp',)
            >>> mesh.device_mesh(joint={"dp_sp": "dp sp"})["dp_sp"].size()
            8
        """
        owner = Owner(self, self._proposal, self._groups)
        return make_device_mesh(owner, pattern, more, joint)

    @property
    def startup(self) -> Startup:
        """The seconds of this rank until the mesh was there, by phase. ``print`` shows them."""
        return self._groups.startup

    def __getitem__(self, pattern: Names) -> DeviceMesh:
        """Return ``device_mesh(pattern)``, for those who know DeviceMesh: ``mesh["dp"]``."""
        return self.device_mesh(pattern)

    def __contains__(self, axis: object) -> bool:
        """Return whether the mesh has an axis: ``"tp" in mesh``. Local."""
        return axis in self.layout.axes

    __iter__ = None  # a mesh is no sequence, though mesh["dp"] works

    if not TYPE_CHECKING:  # a type checker reports names that the mesh does not have

        def __getattr__(self, name: str) -> object:
            """Return the value of a name of DeviceMesh, or raise with its counterpart."""
            return find_attribute(self, name)

    @quotes_call("mesh.groups_report")
    def groups_report(self) -> GroupsReport:
        """Return the groups of this rank in the mesh and its open views, and their users. Local.

        ``print`` shows a table; ``.communicators`` is the number of groups.
        """
        return report_groups(self._groups)

    @classmethod
    @quotes_call("Mesh.from_groups")
    def from_groups(cls, layout: Layout, groups: Mapping[str | tuple[str, ...], object], /) -> Mesh:
        """Create a mesh over process groups of the user. Collective over the world.

        They keep their timeouts, serve views too, and are never destroyed. Missing groups are
        created, also those over the whole mesh and those with one rank.

        Args:
            layout: the grid.
            groups: axes to this rank's group, ``{"dp": g, "dp sp": h}``; None on a rank outside.

        Raises:
            SpecError: on every rank, if a group does not hold exactly the ranks of the layout in
                their order, or ranks are not in the world.
            LaunchError: if there is no default group.

        Cost: as :func:`build_mesh`, and one store operation per group.
        """
        proposal = open_mesh.propose_from_groups(layout, groups)
        return cls(proposal, open_mesh.open_groups(proposal))

    @classmethod
    @quotes_call("Mesh.from_device_mesh")
    def from_device_mesh(cls, device_mesh: DeviceMesh, /) -> Mesh:
        """Create a mesh over a DeviceMesh with names. Collective over the world.

        Example:
            >>> from torch.distributed.device_mesh import init_device_mesh
            >>> grid = init_device_mesh("cpu", (2, 4), mesh_dim_names=("replicate", "shard"))
            >>> meshkit.Mesh.from_device_mesh(grid).coordinate
            {'replicate': 1, 'shard': 1}
        """
        proposal = open_mesh.propose_from_device_mesh(device_mesh)
        return cls(proposal, open_mesh.open_groups(proposal))

    @staticmethod
    @quotes_call("Mesh.of")
    def of(device_mesh: DeviceMesh, /) -> Mesh:
        """Return the mesh of a DeviceMesh that meshkit has made, or of a slice of it. Local.

        Raises:
            SpecError: if meshkit did not make it. :meth:`from_device_mesh` takes any DeviceMesh.

        Example:
            >>> meshkit.Mesh.of(mesh.device_mesh("dp")) is mesh
            True
        """
        mesh: Mesh = find_owner(device_mesh).mesh
        return mesh

    def edges(self, axis: str, *, wrap: bool = False) -> dict[tuple[int, int], dist.ProcessGroup]:
        """Return this rank's groups for single directed edges between neighbors of an axis.

        For pipelines whose sends and receives must not wait for one another; see
        :mod:`meshkit.groups.edges`. The first call for an axis creates the groups: collective over
        the world, also for ranks outside the mesh. Later calls are local. ``close`` closes the
        groups.

        Args:
            axis: one axis.
            wrap: also the edges between the last coordinate and the first, for several stages a
                rank.

        Returns:
            ``(source, target)`` to group of two ranks, both as coordinates along the axis, for the
            edges of this rank; empty along an axis of size 1, and outside the mesh.

        Cost: 8 store operations and four or six rounds of groups for each axis, once.

        Example:
            >>> sorted(mesh.edges("sp"))
            [(0, 1), (1, 0)]
        """
        return edge_groups(self._groups, self._proposal, axis, wrap)

    @quotes_call("mesh.view")
    def view(
        self,
        sizes: Mapping[str, int] | None = None,
        /,
        *,
        order: str | Iterable[str] | None = None,
        groups: str | Sequence[str | Iterable[str]] | None = None,
        timeout: Time | Mapping[str, Time] | None = None,
        arrival_timeout: Time | None = None,
        backend: str | Mapping[str, object] | None = None,
        share: bool = True,
        **axes: int,
    ) -> Mesh:
        """Create a mesh of the same ranks in the same order, with other axes.

        Collective over the world, as ``build_mesh``, whose arguments it takes, with one size of -1
        at most. Without ``order``, axes nest as written. All else that is left out is as in this
        mesh, so ``mesh.view(backend="gloo")`` is its twin for tensors on the CPU. Equal groups are
        shared, except with ``share=False``; :mod:`meshkit.groups.registry` says when they are
        equal. Call ``close()``: dropping the object does not free its groups.

        Example:
            >>> with mesh.view(replicate=2, shard=-1) as hsdp:
            ...     hsdp.coordinate
            {'replicate': 1, 'shard': 1}
        """
        request = sizes, axes, order, groups, timeout, arrival_timeout, backend, share
        proposal = open_mesh.propose_view(self._groups, self._proposal, *request)
        return Mesh(proposal, open_mesh.open_groups(proposal))

    def current(self) -> AbstractContextManager[Mesh]:
        """Return a context in which ``meshkit.current_mesh()`` is this mesh. Local.

        Example:
            >>> with mesh.current():
            ...     meshkit.current_mesh() is mesh
            True
        """
        return make_current(self)

    # -------------------------------------------------------------------- movement

    @overload
    def redistribute(  # noqa: D418
        self,
        x: torch.Tensor,
        pattern: str,
        /,
        *,
        op: str = "sum",
        grad_dtype: torch.dtype | None = None,
        to: None = None,
        sizes: Mapping[str, int | SequencePlan] | None = None,
        **dims: int | SequencePlan,
    ) -> torch.Tensor:
        """Return a tensor in another division over the mesh."""

    @overload
    def redistribute(  # noqa: D418
        self,
        x: torch.Tensor | None,
        pattern: str,
        /,
        *,
        op: str = "sum",
        grad_dtype: torch.dtype | None = None,
        to: Mesh,
        sizes: Mapping[str, int | SequencePlan] | None = None,
        **dims: int | SequencePlan,
    ) -> Any:  # noqa: ANN401
        """Return a tensor on the ranks of another mesh, and None elsewhere."""

    @quotes_call("mesh.redistribute", by_name=("x",))
    def redistribute(
        self,
        x: torch.Tensor | None,
        pattern: str,
        /,
        *,
        op: str = "sum",
        grad_dtype: torch.dtype | None = None,
        to: Mesh | None = None,
        sizes: Mapping[str, int | SequencePlan] | None = None,
        **dims: int | SequencePlan,
    ) -> Any:
        """Return a tensor in another division over the mesh. Differentiable.

        Collective over the axes that change; with a mesh ``to`` other than a view, over the ranks
        of both. ``"b s/sp h d -> b s h/sp d"`` is an all_to_all: each rank had all heads of some
        tokens, and has all tokens of some heads. :mod:`meshkit.redistribute.redistribution` has the
        marks ``/ + * = @`` and the rules of another mesh.

        Args:
            x: the local tensor; None on a rank outside this mesh. ``requires_grad`` is equal on all
                ranks.
            pattern: the division before and after.
            op: the reduction of ``+``: ``"sum"``, ``"avg"``, ``"max"`` or ``"min"``.
            grad_dtype: the dtype in which gradients are summed, needed below float32; a complex one
                for complex tensors.
            to: the mesh whose axes the right side names; None is this mesh.
            sizes: the sizes of dims that are called like an argument, as in ``sizes={"op": 8}``.
            **dims: global sizes of dims: for a bracket on the left; for parts of different sizes,
                cut as by ``numpy.array_split``; or a :class:`meshkit.SequencePlan`, which pads with
                zeros.

        Returns:
            The local tensor of the right side, None outside ``to``. It may share memory with ``x``,
            so change neither of them in place.

        Raises:
            SpecError: if the pattern is invalid; if a size does not divide or does not fit the
                tensor; if a gradient flows over an axis without a mark on one side, through a
                maximum, or below float32 without ``grad_dtype``; if a group is missing; to another
                mesh, if the tensor is not that of the first call, before anything is sent.
            CoordinateError: if a mark lies outside its axis.
            DisagreementError: on gloo and nccl, if ranks differ in pattern, options, sizes or
                dtype, in the first call over a group and in all calls inside a guard with a
                timeout.

        Cost: no more than each rank lacks, in at most one collective of each kind; see
        :func:`meshkit.plan_redistribution`. The plan is made once for each shape.

        Example:
            >>> x = torch.ones(1, 8, 4, 2)  # 8 of 16 tokens, all heads
            >>> mesh.redistribute(x, "b s/sp h d -> b s h/sp d").shape
            torch.Size([1, 16, 2, 2])
        """
        options = pattern, op, grad_dtype, _groups_of(to)
        given = merge_dim_sizes(sizes, dims)
        if torch.compiler.is_compiling():
            values = map(make_constant, given.values())
            name = self._prepare_move(*options, *given, *values)  # first: it makes the moves
            return getattr(self._moves.known, name).run(x)
        return self._moves.find_for_call(*options, tuple(given.items())).run(x)

    @quotes_call("mesh.redistribution")
    def redistribution(
        self,
        pattern: str,
        /,
        *,
        op: str = "sum",
        grad_dtype: torch.dtype | None = None,
        to: Mesh | None = None,
        sizes: Mapping[str, int | SequencePlan] | None = None,
        **dims: int | SequencePlan,
    ) -> Redistribution:
        """Return the redistribution of a pattern, a function of a tensor. Local.

        Arguments and errors are those of :meth:`redistribute`.
        """
        given = tuple(merge_dim_sizes(sizes, dims).items())
        found: Redistribution = self._moves.find(pattern, op, grad_dtype, _groups_of(to), given)
        return found

    @quotes_call("mesh.begin", by_name=("x",))
    def begin(
        self,
        x: torch.Tensor | None,
        pattern: str,
        /,
        *,
        op: str = "sum",
        to: Mesh | None = None,
        sizes: Mapping[str, int | SequencePlan] | None = None,
        **dims: int | SequencePlan,
    ) -> Handle:
        """Begin a redistribution, and return a handle whose ``wait`` returns the result.

        As :meth:`redistribute`, without a gradient. Only the last collective of the plan, most
        often the only one, runs beside the caller's work. Keep ``x`` unchanged until ``wait``.
        """
        given = tuple(merge_dim_sizes(sizes, dims).items())
        found = self._moves.find_for_call(pattern, op, None, _groups_of(to), given)
        started: Handle = found.begin(x)
        return started

    @quotes_call("mesh.transfer", by_name=("like",))
    def transfer(
        self,
        patterns: Mapping[str, str],
        /,
        *,
        to: Mesh,
        like: Mapping[str, Any] | None,
        out: Mapping[str, Any] | None = None,
        dtype: torch.dtype | None = None,
        chunk: int = CHUNK,
        staged: bool = False,
        sizes: Mapping[str, int] | None = None,
    ) -> Transfer:
        """Plan the move of whole states to another mesh, such as weights from trainer to sampler.

        Collective over the ranks of both meshes. ``sync = actor.transfer({...}, to=sampler,
        like=state)`` makes the plan once. ``sync(state, out=weights)`` then moves a state, and
        ``sync.begin(state)`` with ``wait()`` moves it beside other work.
        :mod:`meshkit.transfer.transfer` says how.

        Args:
            patterns: a pattern of :meth:`redistribute` for each glob of names, the right side over
                ``to``. The first glob that matches a whole name counts, and a name without one is
                refused.
            to: any mesh of the job, on equal, disjoint or overlapping ranks.
            like: names with tensors or DTensors: the state on a rank of this mesh, the tensors to
                fill on a rank of ``to`` alone, None elsewhere. Names of one pipeline stage are held
                by its ranks.
            out: the tensors to fill, on a rank of both meshes; None elsewhere.
            dtype: the dtype in which floating-point numbers travel, and of new tensors; None is
                their own.
            chunk: the bytes of a rank's tensors of which at most two are on their way, and need
                memory.
            staged: whether a state arrives whole or not at all, for one more copy of the target.
                Else ``out`` is undefined after an error.
            sizes: the global sizes of dims in brackets, of all but one, equal on all ranks, as in
                :meth:`whole_state`.

        Raises:
            SpecError: if a name has no pattern, a tensor does not fit its pattern, a DTensor is cut
                otherwise, or a group is missing.
            DisagreementError: also if the tensors to fill have other names or shapes, or a dtype in
                which numbers lose a part or wrap.

        Cost: a round at the store for the plan. Each rank of ``to`` then receives what it lacks,
        and no more, and each element leaves this mesh once.

        Example:
            ``trainer.transfer({"w": "o/tp i -> o i/tp"}, to=sampler, like=state)``
        """
        others = _groups_of(to)
        if others is None:
            raise SpecError("to is None.", fix="to=other, a mesh of this job.")
        meshes = self._moves.pair(others)
        return Transfer(meshes, patterns, like, out, dtype, chunk, staged, sizes)

    @quotes_call("mesh.whole_state", by_name=("state",))
    def whole_state(
        self,
        state: Mapping[str, Any],
        layout: Mapping[str, str],
        /,
        *,
        sizes: Mapping[str, int] | None = None,
    ) -> dict[str, Any]:
        """Return the whole tensors of a local state, for a checkpoint that any mesh can read.

        Collective over the mesh; every rank gets the whole state of its pipeline stage, nested
        names joined by dots, ``"state.layers.0.weight.exp_avg"``. See
        :mod:`meshkit.transfer.whole_state`.

        Args:
            state: names with tensors, nested states and other values, which stay.
            layout: one side of a pattern for each glob of names, ``{"*.up.weight*": "o/tp i"}``.
                The first glob that matches a whole name counts. A tensor without one, and a number,
                is a copy that every rank holds. DTensors need none for the axes of their
                DeviceMesh.
            sizes: the global sizes of dims in brackets, of all but one: a weight that fuses q, k
                and v is ``"(qkv h/tp d) i"`` with ``{"qkv": 3, "d": 64}``.

        Raises:
            SpecError: if the state is not a mapping, a side is invalid or does not fit its tensor,
                a glob matches no tensor, or two tensors have one name after their keys are joined.
            DisagreementError: also if the tensors of one name are not the parts of a whole. Nothing
                is sent then.

        Cost: a round at the store, an all_gather for each tensor that is cut, and the memory of the
        whole state.

        Example:
            >>> mesh.whole_state({"w": torch.ones(4, 3)}, {"w": "o/sp i"})["w"].shape
            torch.Size([8, 3])
        """
        self._groups.check_can_communicate()
        meshes = self._moves.pair(self._groups)
        whole: dict[str, Any] = make_whole(self._moves, meshes, state, layout, sizes)
        return whole

    @quotes_call("mesh.local_state", by_name=("state",))
    def local_state(
        self,
        state: Mapping[str, Any],
        layout: Mapping[str, str],
        /,
        *,
        sizes: Mapping[str, int] | None = None,
    ) -> dict[str, Any]:
        """Return this rank's parts of a whole state, as the layout of :meth:`whole_state` says.

        Local, with its errors. Parts may have different sizes, cut as by ``numpy.array_split``.
        DTensors become whole first, which is collective over their ranks.

        Example:
            >>> mesh.local_state({"w": torch.ones(8, 3)}, {"w": "o/sp i"})["w"].shape
            torch.Size([4, 3])
        """
        local: dict[str, Any] = make_local(self._moves, state, layout, sizes)
        return local

    @quotes_call("mesh.shift", by_name=("x",))
    def shift(self, x: torch.Tensor, axis: str, steps: int = 1) -> torch.Tensor:
        """Send a tensor some steps along an axis, and return the one that arrives. Differentiable.

        Collective over the axis, a ring: the rank at index i gets the tensor of index i - steps.
        Shape, dtype and steps are equal on all ranks, which compare them as in
        :meth:`redistribute`.

        Example:
            >>> mesh.shift(torch.tensor([mesh.rank]), "dp")  # from rank 3
            tensor([3])
        """
        if torch.compiler.is_compiling():
            ring: Ring = getattr(self._moves.rings, self._prepare_ring(axis))
        else:
            ring = make_ring(self._groups, axis)
        return self._moves.shift(ring, x, steps)

    @quotes_call("mesh.exchange", by_name=("x",))
    def exchange(
        self, x: torch.Tensor, axis: str, counts: Sequence[int] | torch.Tensor
    ) -> tuple[torch.Tensor, list[int]]:
        """Send rows to the ranks of an axis, and return the rows that arrive. Differentiable.

        Collective over the axis. The rows for the first rank come first, and so on.

        Args:
            x: the rows in its dim 0. All other dims and the dtype are equal on all ranks, which
                compare them as in :meth:`redistribute`.
            axis: the axis of the mesh.
            counts: the number of rows for each rank of the axis, in their order; their sum is all
                rows.

        Returns:
            The rows received, in the order of the ranks, and how many came from each: the counts of
            a second call that sends results back.

        Raises:
            SpecError: if the counts do not fit the rows. The other ranks of the axis raise a
                DisagreementError that repeats it.

        Cost: two all_to_alls, the first one of the counts, which are read on the host.

        Example:
            >>> rows = torch.full((3, 1), mesh.rank)
            >>> received, counts = mesh.exchange(rows, "sp", [1, 2])
            >>> received.flatten().tolist(), counts
            ([4, 4, 5, 5], [2, 2])
        """
        return exchange_rows(self._groups, x, axis, counts)

    @quotes_call("mesh.checked")
    def checked(self) -> AbstractContextManager[None]:
        """Check the marks of every redistribution of this mesh inside, forwards and backwards.

        Enter it on every rank, also around the backward. :mod:`meshkit.redistribute.checked` has
        the rules. Calls that torch compiled are not checked.

        Raises:
            SpecError: the same on all ranks of the axis, with the mark to write. If some ranks
                raise one, or refuse their tensor, all ranks along the axes of the pattern raise.
            DisagreementError: in place of it on ranks that find nothing, with the error of another.

        Cost: a hash of each tensor on the host, and three small collectives for each axis.
        """
        return self._moves.checked()

    @mark_constant
    def _prepare_move(self, *options: Any) -> str:  # noqa: ANN401
        """Return the attribute of the moves that holds a redistribution, for torch.compile.

        The names of sizes and then their values stand last: torch takes no plan inside a tuple.
        """
        names, values = options[4 : 2 + len(options) // 2], options[2 + len(options) // 2 :]
        return self._moves.publish(*options[:4], tuple(zip(names, values, strict=True)))

    @mark_constant
    def _prepare_ring(self, axis: str) -> str:
        """Return the attribute of the moves that holds a ring, for torch.compile."""
        return self._moves.publish_ring(axis)

    @cached_property
    def _moves(self) -> MeshMoves:
        """The redistributions of this mesh."""
        return MeshMoves(self._groups, self.device)

    # -------------------------------------------------------------------- data

    @quotes_call("mesh.batch")
    def batch(
        self,
        *,
        global_batch: int | None = None,
        micro_batch: int | None = None,
        accumulation_steps: int | None = None,
        data: str | tuple[str, ...] | None = None,
        uneven: bool = False,
    ) -> RankBatch:
        """Return the batch plan of this mesh: any two of the three sizes give the third. Local.

        Args:
            global_batch: samples in one optimizer step, over all ranks.
            micro_batch: samples in one forward and backward of one rank.
            accumulation_steps: micro batches per rank and optimizer step.
            data: the axes that divide the samples; ranks along all others share them. Empty: all
                ranks read the same samples. None: the axes whose names have the role of data or of
                experts.
            uneven: let some ranks run one micro batch more than others if the micro batches do not
                divide; see :meth:`meshkit.BatchPlan.solve`.

        Returns:
            The plan, which knows this rank's share: ``plan.samples(step)``,
            ``plan.micro_batches(step)`` and ``plan.sync_on_last(model, micro)``. Its ``repr`` is
            equal on all ranks, for ``agree``.

        Raises:
            BatchError: if they do not divide, with the nearest batches that do.

        Example:
            >>> print(mesh.batch(global_batch=32, micro_batch=2))
            global_batch 32 = micro_batch 2 x accumulation_steps 4 x dp 4
        """
        return plan_rank_batch(
            self._groups,
            data,
            uneven,
            global_batch=global_batch,
            micro_batch=micro_batch,
            accumulation_steps=accumulation_steps,
        )

    @quotes_call("mesh.token_weights")
    def token_weights(self, counts: Sequence[int] | torch.Tensor, *axes: Names) -> torch.Tensor:
        """Return the factors for the mean loss of each micro batch if samples differ in length.

        Collective over the group of the axes: one all-reduce of two numbers. The factor is
        ``size(*axes) * tokens / all tokens``: the gradient averaged over that group is then exactly
        that of the mean over all tokens of the step.

        Args:
            counts: the tokens that count in each micro batch of the step on this rank, without
                padding and masked ones; 0 for a filler. A mean over no token is NaN, also after
                scaling by 0, so divide by at least one.
            *axes: the axes over which gradients are averaged and tokens differ; without any, those
                of :meth:`gradient_group`.

        Returns:
            float64 (micro batches,), on the cpu. It replaces ``micro.weight``.

        Raises:
            SpecError: if counts are not whole numbers of 0 or more, or no rank has a token.
        """
        return weigh_tokens(self._groups, counts, axes, self.device)

    @overload
    def sampler(  # noqa: D418
        self,
        dataset: IterableDataset[Sample],
        plan: BatchPlan,
        *,
        shuffle: bool = False,
        seed: int = 0,
        epoch: int = 0,
        tail: str | None = None,
    ) -> MicroBatchStream[Sample]:
        """Return the stream of an iterable dataset."""

    @overload
    def sampler(  # noqa: D418
        self,
        dataset: Sized | int,
        plan: BatchPlan,
        *,
        shuffle: bool = False,
        seed: int = 0,
        epoch: int = 0,
        tail: str | None = None,
        order: Iterable[int] | None = None,
    ) -> MicroBatchSampler:
        """Return the sampler of a dataset that is read by index."""

    @quotes_call("mesh.sampler", by_name=("plan",))
    def sampler(
        self,
        dataset: IterableDataset[Any] | Sized | int,
        plan: BatchPlan,
        *,
        shuffle: bool = False,
        seed: int = 0,
        epoch: int = 0,
        tail: str | None = None,
        order: Iterable[int] | None = None,
    ) -> MicroBatchSampler | MicroBatchStream[Any]:
        """Return this rank's micro batches of a dataset, for torch's DataLoader. Local.

        There is one global order of samples for any mesh, so a state that is saved on one mesh
        resumes on another. :mod:`meshkit.data.sampler` and :mod:`meshkit.data.first_batch` say how.

        Args:
            dataset: a dataset that is read by index, or its number of samples; or an
                ``IterableDataset``.
            plan: the result of :meth:`batch`; or a plain :class:`meshkit.BatchPlan` over the data
                axes of the mesh.
            shuffle: whether each epoch has its own order, by ``seed`` and its number. Not for a
                stream.
            seed: any int, the same on every rank.
            epoch: the first epoch, from 0.
            tail: the use of the samples at the end that do not fill a global batch. ``"keep"``
                makes a smaller last step of them, with weights to match. ``"drop"`` leaves them
                out. ``"pad"`` repeats the first samples of the epoch. None is ``"keep"``;
                ``"drop"`` for a stream.
            order: the dataset indices of an epoch, with repeats or gaps: a ``Sampler`` of torch of
                single samples, or a sequence of ints. It is global, read anew for each epoch.

        Returns:
            A ``Sampler[list[int]]`` for ``DataLoader(dataset, batch_sampler=...)``. For an iterable
            dataset, a :class:`~meshkit.data.stream.MicroBatchStream` for ``DataLoader(stream,
            batch_size=None)``.

        Raises:
            BatchError: if the dataset is empty, or is none, such as a DataLoader or a dict; if a
                tail is invalid; if ``"drop"`` leaves no step; if the plan is of another mesh; if an
                order has no length, yields no dataset index, or differs when one epoch is read
                twice.
            DisagreementError: by the first batch, if ranks differ in an argument or in the length.

        Cost: 0.1 microseconds per sample with shuffle, and 0.3 milliseconds per step; 8 bytes an
        index of ``order``. One store operation at the first batch, which waits for no rank.

        Example:
            >>> plan = mesh.batch(global_batch=8, micro_batch=2)
            >>> list(mesh.sampler(range(16), plan))
            [[4, 5], [12, 13]]
        """
        samples = SampleOrder(shuffle, seed, epoch, tail, order)
        return open_source(self._groups, self._proposal.job, dataset, plan, samples)

    @quotes_call("mesh.loader", by_name=("dataset", "plan"))
    def loader(
        self,
        dataset: IterableDataset[Any] | Sized,
        plan: BatchPlan,
        *,
        shuffle: bool = False,
        seed: int = 0,
        epoch: int = 0,
        tail: str | None = None,
        order: Iterable[int] | None = None,
        **options: Any,  # noqa: ANN401  # any option of DataLoader
    ) -> DataLoader[Any]:
        """Return torch's DataLoader over this rank's micro batches of a dataset. Local.

        Each item is one collated micro batch. ``options`` are more options of ``DataLoader``, as
        ``num_workers``; all other arguments are those of :meth:`sampler`. The position for a
        checkpoint is ``loader.batch_sampler.state_dict(steps=...)``, for an iterable dataset
        ``loader.dataset.state_dict(steps=...)``.

        Raises:
            BatchError: as :meth:`sampler`; if an option would change the samples of a batch, such
                as ``batch_size``; if the dataset is a number.

        Example:
            ``for batch in mesh.loader(dataset, plan, shuffle=True): train(batch)``
        """
        samples = SampleOrder(shuffle, seed, epoch, tail, order)
        source = open_source(self._groups, self._proposal.job, dataset, plan, samples)
        return make_loader(dataset, source, options)

    @quotes_call("mesh.check_batch", by_name=("batch",))
    def check_batch(self, batch: object, *, data: str | tuple[str, ...] | None = None) -> None:
        """Check that ranks which share samples hold equal batches, and other ranks different ones.

        Collective over the mesh. The BatchError is the same on every rank, with the first key that
        differs. Pass the batch as it was read, before sp cuts the sequence, and no filler. Two data
        coordinates can hold equal batches by chance if the dataset repeats them.

        Args:
            batch: a tensor, or nested dicts, lists and tuples of tensors, int, float, str, bytes,
                bool and None. Dtype, shape and bytes are compared, not the device or the order of
                keys.
            data: the axes that divide the samples, as in :meth:`batch`.

        Cost: one gather of 265 bytes per rank, and one more if there is a conflict. Tensors are
        copied to the host and hashed there, a second or two per gigabyte.
        """
        compare_batches(self._groups, batch, data, self.device)

    @quotes_call("mesh.check_parameters", by_name=("model",))
    def check_parameters(
        self,
        model: torch.nn.Module | Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]],
        *,
        axes: str | tuple[str, ...] | None = None,
    ) -> None:
        """Check that parameters are equal on all ranks that average their gradients.

        Collective over the mesh, between steps. It finds replicas that drift. A module is compared
        without its buffers, which ``check_parameters(model.named_buffers())`` compares. A plain
        tensor must be equal along ``axes``, by default those of :meth:`gradient_group`. The
        placements of a DTensor say which ranks hold equal parts; :mod:`meshkit.data.checks` has the
        mark of experts.

        Raises:
            DisagreementError: the same on every rank, with the first parameter that differs in
                bytes, dtype, shape or placement. Also for a shard of FSDP1 or ZeRO-3.

        Cost: one gather of 265 bytes per rank, and one more if there is a conflict. Bytes are
        summed on the device of the parameter, in one pass.
        """
        compare_parameters(self._groups, model, axes, self.device)

    @quotes_call("mesh.sequence")
    def sequence(
        self,
        length: int,
        *,
        axes: str | tuple[str, ...] | None = None,
        order: Order = "contiguous",
        pad: bool = False,
    ) -> SequenceShard:
        """Return this rank's tokens of a sequence, the same number on every rank. Local.

        The part of this rank is ``mesh.group_rank(*axes)``; along axes of size 1 it is the whole
        sequence. A length that does not divide raises a SpecError with the nearest lengths, except
        with ``pad``.

        Args:
            length: tokens in the sequence.
            axes: the axes that divide it, ``"cp sp"`` or ``("cp", "sp")``. None is those of cp and
                sp that the mesh has. Empty means that all ranks hold all of it.
            order: ``"contiguous"``, one run of tokens per rank; or ``"zigzag"``, an early and a
                late chunk per rank, equal work for all in causal ring attention. See
                :class:`meshkit.SequencePlan`.
            pad: whether a length that does not divide is filled with padding at its end.

        Example:
            >>> shard = mesh.sequence(8, order="zigzag")
            >>> shard.take(torch.arange(100, 108)[None])
            tensor([[102, 103, 104, 105]])
        """
        return shard_sequence(self._groups, length, axes, order, pad, self.device)

    @quotes_call("mesh.seed")
    def seed(self, base: int | None = None, *, vary: str | tuple[str, ...] = ()) -> int:
        """Return the seed of this rank: distinct along the axes of ``vary``, equal along others.

        Local; no generator changes. It is :func:`meshkit.stream_seed` of the base and this rank's
        coordinate along ``vary``, so it stays the same when another axis grows.

        Args:
            base: any int; None is the seed of ``meshkit.init``, also the number that it drew for
                ``"shared"``, or 0 without one.
            vary: the axes along which seeds differ; empty means that all ranks have the same.

        Returns:
            An int from 0 to 2**63 - 1, valid for every generator of torch. On fewer than 2**13
            ranks its low 32 bits are distinct too: ``np.random.seed(mesh.seed() % 2**32)``.

        Example:
            >>> mesh.seed(7, vary=("dp",)) == meshkit.stream_seed(7, dp=2)
            True
        """
        number = base_seed(self._proposal.job.seed) if base is None else base
        return compute_seed(number, "", select_coordinate(self.layout, self.rank, vary))

    @cached_property
    def rng(self) -> RandomStreams:
        """The random streams of this rank, as :class:`~meshkit.data.rng.RandomStreams`.

        ``with mesh.rng("dropout", vary="dp"):`` draws numbers that are equal along sp.
        """
        base = partial(base_seed, self._proposal.job.seed)  # no method of the mesh: avoids a cycle
        return RandomStreams(self.layout, self.rank, self.device.type, base)

    # -------------------------------------------------------------------- gradients

    grad_norm = norm.grad_norm  # of all gradients, as one process would compute it
    clip_grad_norm = norm.clip_grad_norm  # scale them so that their norm is at most this

    @property
    def _norms(self) -> norm.GradientNorms:
        """The norms of gradients on this mesh, with what earlier calls have learned."""
        if self._known_norms is None:
            self._known_norms = norm.GradientNorms(self._groups, self.device)
        return self._known_norms

    # -------------------------------------------------------------------- checks and failures

    @quotes_call("mesh.barrier")
    def barrier(self, *axes: Names, timeout: Time | None = None) -> None:
        """Wait until every rank of this rank's group over the axes has called this.

        Collective over that group; without axes, over the whole mesh. It names missing ranks on any
        backend. None as the timeout is that of the group.

        Raises:
            RankTimeoutError: with the coordinates of missing ranks. The group is then unusable.
            CollectiveError: if the barrier broke earlier because a rank died.

        Cost: one store operation per rank, beside the group's own barrier.
        """
        wait_at_barrier(self._groups, self._proposal.job, axes, timeout)

    def first_on_node(self, *, arrival_timeout: Time | None = None) -> AbstractContextManager[bool]:
        """Run a block on the first rank of each node, then on all others: a download, a cache.

        Collective over the mesh. The others run the block when all first ranks are done. ``as
        is_first`` is whether this rank is the first one, for what must not run twice. A node is a
        machine, as ``init`` found it. Call no collective and no other method of the mesh inside.

        Args:
            arrival_timeout: how long ranks wait for each other, the block of the first ranks
                included; None is that of the mesh.

        Raises:
            DisagreementError: on all other ranks, before they run the block, if a first rank raises
                in it, with its error; also if ranks make other calls.
            RankTimeoutError: on all ranks, if ranks do not arrive, or first ranks are not done in
                time; within 2 s if the process of a missing rank has ended, as
                :mod:`meshkit.guard.first` says.

        Cost: 4 store operations per rank, and one a second while it waits.

        Example:
            >>> with mesh.first_on_node() as is_first:
            ...     data = "downloaded" if is_first else "cached"
        """
        return run_first(
            *(self._groups, self._proposal.job, "mesh.first_on_node", arrival_timeout), on_node=True
        )

    def first(self, *, arrival_timeout: Time | None = None) -> AbstractContextManager[bool]:
        """Run a block on the first rank of the mesh, then on all others.

        As :meth:`first_on_node`, for a file system that all nodes share.
        """
        return run_first(
            *(self._groups, self._proposal.job, "mesh.first", arrival_timeout), on_node=False
        )

    @quotes_call("mesh.guard")
    def guard(self, *, timeout: Time | None = None) -> AbstractContextManager[None]:
        """Report a failed collective inside with coordinates: the ranks behind, the ranks gone.

        Enter it on every rank. Run on gloo, and with NCCL on one GPU that several ranks share. A
        collective inside may take as long as ``timeout``; on other backends than gloo, so long may
        a rank start none. Other errors pass unchanged. :mod:`meshkit.guard.guard` says how, and
        what is compared at the end. A guard may be entered again, by several threads and tasks at
        once, and decorate a function.

        Raises:
            CollectiveError: the same on every rank, within 4 s of torch's own error on the first
                one, which is the cause. It ends the waits of all ranks, also over groups of the
                user, within a second more. Call :meth:`recover` then; or close the mesh, shut down
                and build again. Also on leaving, if ranks have begun different numbers of
                collectives.

        Cost: none without a timeout; with one, two store operations on leaving, which waits for
        nobody, and a thread that reads the store twice a second.

        Example:
            ``with mesh.guard(timeout=60): loss.backward()``
        """
        return guard_mesh(self._groups, self._proposal.job, self._guard_state, timeout)

    @quotes_call("mesh.verify")
    def verify(self, *, timeout: Time | None = None) -> Verification:
        """Check each group with one collective, and time some more.

        Collective over the mesh. On every group, ranks gather their numbers, which must arrive in
        the order of the coordinate. Then the call is timed. ``timeout`` is as in :meth:`guard`.

        Returns:
            The time of each group, the slowest group, and the rank for which others waited most.

        Raises:
            CollectiveError: if a collective failed or did not complete, with the ranks behind.
            MeshkitError: if a group holds other ranks than the layout.

        Cost: six collectives of a few bytes per group, and one over all ranks.
        """
        return verify_mesh(
            self._groups, self._proposal.job, self._guard_state, timeout, self.device
        )

    @quotes_call("mesh.commit")
    def commit(self) -> None:
        """Raise on every rank if a collective of this step has failed; call it before the step.

        Every rank calls it once a step, after the backward and before ``optimizer.step()``, inside
        a guard with a timeout. Run on gloo, and with NCCL on one GPU that several ranks share.
        Collective on NCCL, where a failed collective leaves partial sums; local on gloo. See
        :mod:`meshkit.guard.commit`.

        Raises:
            CollectiveError: the same on every rank, if a rank has seen a failure, or does not come
                within the ``arrival_timeout`` of the mesh.
            DisagreementError: the same on every rank, if ranks of a group made different calls of
                :meth:`redistribute` and the like in this guard.

        Cost: nothing on gloo. On NCCL a wait for the current stream, and 4 store operations per
        rank.

        Example:
            ``loss.backward(); mesh.commit(); optimizer.step()``
        """
        commit_step(self._groups, self._proposal.job, self._guard_state)

    @quotes_call("mesh.recover")
    def recover(
        self,
        *,
        step: int | None = None,
        arrival_timeout: Time | None = None,
        min_ranks: int | None = None,
    ) -> Mesh:
        """Return a mesh of the ranks that live, after a rank was lost or a collective failed.

        Collective over the ranks that live, in the same processes, with the state in memory. Run on
        gloo, and with NCCL on one GPU that several ranks share. It destroys the default group and
        all groups on it. In the new mesh ranks are numbered anew, data axes shrink and all other
        axes are whole; ranks left over are spares, for which ``inside`` is False. :attr:`recovery`
        tells what has changed. Build again whatever holds groups. :mod:`meshkit.recover.rounds`
        says how.

        Args:
            step: the number of optimizer steps that this rank has completed; all ranks pass one, or
                none does. ``mesh.recovery.step`` is then the number from which all go on.
            arrival_timeout: how long ranks wait for those that do not come, but not for a process
                known to have ended, and 1 s for ranks that the guard reports as silent. None is
                that of the mesh.
            min_ranks: the least number of ranks with which to go on, spares included; None means
                those of one replica.

        Returns:
            A new mesh. This one can no longer be used. On a spare, once all ranks close: this mesh.

        Raises:
            RankTimeoutError: if fewer ranks live than ``min_ranks`` or than one replica needs, or
                if this rank came too late and was declared lost. Also if the store is lost, for
                example with rank 0, or if no collective has failed and ranks did not call it.
            SpecError: if an argument is invalid; if no step is held for each part of the state.
            MeshkitError: if the mesh is healthy, or was recovered before; on a view, or on a mesh
                of groups that meshkit did not create.

        Cost: about 15 store operations per rank, and those of :func:`build_mesh`. From the error to
        the new mesh it takes less than 1 s on 8 ranks, plus the wait for ranks that do not come.

        Example:
            ``except meshkit.CollectiveError: mesh = mesh.recover(step=step)``
        """
        request = RecoveryRequest.of(step, arrival_timeout, min_ranks)
        rounds = Rounds(self._groups, self._proposal, self.recovery, request)
        recovered = recover_mesh(rounds, self._guard_state)
        return self if recovered is None else Mesh(*recovered)

    @quotes_call("mesh.admit")
    def admit(self, *, step: int | None = None) -> Mesh:
        """Return a mesh with the processes that were started anew for lost ranks, if any wait.

        Collective over the mesh; call it between steps, with the ``step`` of :meth:`recover`, which
        it runs with the new processes. Run on gloo, and on a stand-in for NCCL; never with NCCL
        itself. Data axes grow again, no rank changes its coordinate, and ``mesh.recovery.restore``
        sends the newcomers the state. :mod:`meshkit.recover.admission` says how. With FSDP over all
        ranks, call it right after saving a checkpoint, since no rank holds a second copy of a
        shard.

        Returns:
            A new mesh, and this one can no longer be used; or this mesh, if nobody waits.

        Raises:
            CollectiveError: if a rank was lost. Call :meth:`recover`, whose errors it raises too.
            MeshkitError: on a spare; on a view, or on a mesh of groups that meshkit did not create.

        Cost: none while no rank is lost. After a rank was lost, a broadcast of 8 bytes, and on one
        rank one store operation; three once a process was started anew. An admission costs as much
        as :meth:`recover`, and up to 5 s for a process that does not answer.
        """
        request = RecoveryRequest.of_admission(step)
        rounds = Rounds(self._groups, self._proposal, self.recovery, request)
        grown = admit_newcomers(rounds, self._guard_state)
        return self if grown is None else Mesh(*grown)

    @property
    def recovery(self) -> Recovery:
        """The last recovery: lost ranks, moves, the step to go on from, and ``restore``. Local.

        Before the first recovery it is empty.
        """
        if self._recovery is None:
            self._recovery = Recovery(self._groups, self.layout.sizes)
        return self._recovery

    @quotes_call("mesh.agree")
    def agree(self, what: str, value: object) -> None:
        """Compare a value over all ranks of the mesh: a learning rate, a set of names, a config.

        Collective over the mesh, on the host, without a process group. ``what`` is the name of the
        value in one line. Values are compared by their ``repr``, without the order in sets, dicts,
        namespaces and dataclasses at any depth; arrays and tensors exactly, whatever their device.

        Raises:
            SpecError: on all ranks, if a part of the value has no ``repr`` but its address, as a
                function or an object of a plain class.
            DisagreementError: if the values differ, with the value of each rank.

        Cost: 4 store operations per rank. Large arrays are copied to the host and hashed.
        """
        compare_values(self._groups, self._proposal.job, what, value)

    @quotes_call("mesh.close")
    def close(self) -> None:
        """Destroy the groups that this mesh created and no open view uses. Harmless to repeat.

        Call it on every rank, and close views in the same order. The default group and groups of
        the user stay. Local on gloo and after the report of a guard. On NCCL all ranks of a group
        destroy it together; see :mod:`meshkit.groups.close_mesh`.
        """
        self._close(None)

    @quotes_call("with mesh")
    def __enter__(self) -> Mesh:
        self._groups.check_open()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._close(error)

    def _close(self, error: BaseException | None) -> None:
        job = self._proposal.job
        if self._groups.pid != os.getpid():  # a fork: freeing the parent's groups would end it
            self._groups.is_closed = True
            return
        post_end(self._groups, job, self.__dict__.get("_guard_state"), "mesh.close()")
        close_mesh(self._groups, job, error)
        self.__dict__.pop("_moves", None)  # programs that torch compiled hold groups

    def __repr__(self) -> str:
        position = f": {format_sizes(self.coordinate)}" if self.inside else " is outside"
        closed = "; closed" if self._groups.is_closed else ""
        return f"Mesh({format_sizes(self.layout.sizes, ', ')}; rank {self.rank}{position}{closed})"

    def __str__(self) -> str:
        return self.layout.draw(mark=self.rank if self.inside else None)

    @cached_property
    def _guard_state(self) -> GuardState:
        """The state of the roll calls of this mesh."""
        return GuardState()


def _groups_of(mesh: Mesh | None) -> MeshGroups | None:
    """Return the groups of another mesh, or None."""
    if mesh is None:
        return None
    if not isinstance(mesh, Mesh):
        fix = "to=other, a mesh of this job, or to=mesh.view(...)."
        raise SpecError(f"to is {mesh!r}, not a mesh.", fix=fix)
    return mesh._groups  # noqa: SLF001  # of the same class


@quotes_call("current_mesh")
def current_mesh() -> Mesh:
    """Return the mesh of the innermost open ``with mesh.current():``. Local.

    It is that of this thread or task, else the newest one that is open in the process. Compiled
    code may call it with ``fullgraph=True``, and is compiled again for another mesh.

    Raises:
        MeshkitError: if no context is open; in compiled code also if several threads have open
            contexts of different meshes.

    Example:
        ``with mesh.current(): model(x)``, and in the model ``meshkit.current_mesh().group("tp")``
    """
    mesh: Mesh = find_current_mesh()
    return mesh
