"""Mesh: a layout, the rank of this process, and its live process groups.

A method that is one line here, such as ``sampler = loaders.sampler``, is a function in that file,
with its arguments, its text and what it does. A method that takes or returns a mesh stands here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, overload

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ..call import Call, quotes_call
from ..data import checks, loaders, micro_batches
from ..data import rng as random_streams
from ..data import sequence as token_shards
from ..errors import SpecError
from ..groups import edges as edge_groups
from ..groups import open_mesh
from ..groups.close_mesh import close_mesh
from ..groups.device_mesh import find_attribute
from ..groups.device_mesh_groups import Owner, find_owner, make_device_mesh
from ..groups.registry import GroupsReport, MeshGroups, report_groups
from ..guard import barrier as barriers
from ..guard import commit as commits
from ..guard import first as first_ranks
from ..guard import guard as guards
from ..guard.state import GuardState
from ..launch.log import Startup
from ..launch.of_one_process import OfOneProcess, keep_whole
from ..launch.times import Time
from ..launch.torch_program import make_constant, mark_constant
from ..layout.axes import Names
from ..layout.layout import Coordinate, Layout
from ..layout.position import Position, group_rank
from ..layout.sequence import SequencePlan
from ..norm import norm
from ..recover.admission import admit_newcomers
from ..recover.recovery import Recovery
from ..recover.rounds import RecoveryRequest, Rounds, recover_mesh
from ..redistribute import ring as rings
from ..redistribute.dim_sizes import merge_dim_sizes
from ..redistribute.mover import CHUNK
from ..redistribute.moves import MeshMoves
from ..redistribute.program import Handle
from ..redistribute.redistribution import Redistribution
from ..synonyms import mesh_class_error
from ..text import Ints, format_sizes
from ..transfer.transfer import Transfer
from ..transfer.whole_state import make_local, make_whole
from .current_mesh import find_current_mesh, make_current


@keep_whole
@dataclass(eq=False, repr=False)
class Mesh(OfOneProcess):
    """The mesh of one process: its rank, its peers, and the process groups that they share.

    Created by :func:`meshkit.build_mesh`. ``layout`` answers every question about the grid.
    ``with`` closes the mesh at the end.

    A method is local, or collective: then all ranks that it names call it, in the same order and
    with equal arguments, and no other method communicates. Times are in seconds, or timedeltas.
    Data axes are listed as ``"dp ep"`` or ``("dp", "ep")``.

    A mesh, and what it makes, may be an attribute of a model. ``copy.deepcopy(model)`` and
    ``AveragedModel(model)`` share it, and a copy of ``rng`` has streams of its own; so does
    ``dataclasses.asdict``. Pickling raises a MeshkitError, so save ``model.state_dict()``.

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
    _guard_state: GuardState = field(default_factory=GuardState)
    _coordinate: Coordinate | None = None  # from its first use on
    _known_norms: norm.GradientNorms | None = None  # likewise

    # -------------------------------------------------------------------- the grid

    @property
    def layout(self) -> Layout:
        """The grid of ranks: a :class:`meshkit.Layout`."""
        return self._groups.plan.layout

    @property
    def rank(self) -> int:
        """The global rank of this process, an int.

        The index along an axis is ``mesh.coordinate["dp"]``.
        """
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
        the last one fastest. The SpecError of a missing group has the argument that creates it. An
        absent standard axis, such as pp, has size 1: its group is this rank alone.

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
        self, pattern: Names | None = None, *more: str, joint: Mapping[str, Names] | None = None
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

        def __new__(cls, *fields: object, **sizes: object) -> Mesh:
            """Refuse the arguments of :func:`build_mesh`."""
            if sizes or not (fields and isinstance(fields[0], open_mesh.MeshProposal)):
                raise mesh_class_error(fields, sizes).quote(Call("Mesh", fields, sizes))
            return super().__new__(cls)

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

    edges = edge_groups.edges  # this rank's groups for single directed edges of an axis

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
            DisagreementError: on gloo and nccl, if ranks differ in pattern, options, sizes, dtype
                or in whether a gradient flows, in the first call over a group and in all calls
                inside a guard with a timeout.

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
            DisagreementError: also if the tensors of one name are not the parts of a whole, or if a
                tensor differs by more than rounding along an axis that its side leaves out; not
                along data axes and pp, nor for statistics such as ``running_mean``. Nothing is sent
                then. Last, if DTensors of one name lie on several parts of an axis, and differ, and
                no side names the axis.

        Cost: two rounds at the store, and a third if copies differ by rounding; an all_gather for
        each tensor that is cut, one pass over each copy, and the memory of the whole state.

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
        DTensors become whole first, which is collective over their ranks: if one of these refuses
        its arguments, they all raise.

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
        Shape, dtype, ``requires_grad`` and steps are equal on all ranks, which compare them as in
        :meth:`redistribute`.

        Example:
            >>> mesh.shift(torch.tensor([mesh.rank]), "dp")  # from rank 3
            tensor([3])
        """
        if torch.compiler.is_compiling():
            ring: rings.Ring = getattr(self._moves.rings, self._prepare_ring(axis))
        else:
            ring = rings.make_ring(self._groups, axis)
        return self._moves.shift(ring, x, steps)

    exchange = rings.exchange  # send rows to the ranks of an axis, and get those that arrive

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

    batch = micro_batches.batch  # the batch plan of this mesh
    token_weights = micro_batches.token_weights  # for samples that differ in length
    sampler = loaders.sampler  # this rank's micro batches of a dataset
    loader = loaders.loader  # torch's DataLoader over them
    check_batch = checks.check_batch  # equal where ranks share samples, different elsewhere
    check_parameters = checks.check_parameters  # equal where ranks average their gradients
    agree = checks.agree  # compare any value over all ranks
    sequence = token_shards.sequence  # this rank's tokens of a sequence
    seed = random_streams.seed  # distinct along some axes, equal along others

    @cached_property
    def rng(self) -> random_streams.RandomStreams:
        """The random streams of this rank, as :class:`~meshkit.data.rng.RandomStreams`.

        ``with mesh.rng("dropout", vary="dp"):`` draws numbers that are equal along sp.
        """
        # no method of the mesh, so that the two objects make no cycle
        base = partial(random_streams.base_seed, self._proposal.job.seed)
        return random_streams.RandomStreams(self.layout, self.rank, self.device.type, base)

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

    barrier = barriers.barrier  # wait for all ranks, or name the missing ones
    verify = barriers.verify  # check and time each group
    first = first_ranks.first  # run a block on the first rank of the mesh before all others
    first_on_node = first_ranks.first_on_node  # likewise on each node
    guard = guards.guard  # report a collective that fails or hangs with the ranks behind
    commit = commits.commit  # raise before the step if a collective of it has failed

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
        guards.post_end(self._groups, job, self._guard_state, "mesh.close()")
        close_mesh(self._groups, job, error)
        self.__dict__.pop("_moves", None)  # programs that torch compiled hold groups

    def __repr__(self) -> str:
        position = f": {format_sizes(self.coordinate)}" if self.inside else " is outside"
        closed = "; closed" if self._groups.is_closed else ""
        return f"Mesh({format_sizes(self.layout.sizes, ', ')}; rank {self.rank}{position}{closed})"

    def __str__(self) -> str:
        return self.layout.draw(mark=self.rank if self.inside else None)


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
