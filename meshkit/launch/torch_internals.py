"""All uses of torch's private API, and the differences between torch versions.

If newer versions of torch have a public name, that name is used first. The oldest torch is 2.11.
Every difference between newer versions is a feature that a line here, or one file elsewhere, looks
for:

================================  =====  ====================================================
feature                           since  test
================================  =====  ====================================================
``new_group(sort_ranks=)``        2.12   tests/mesh/test_mesh.py, with and without it
``_mesh_layout._FlatLayout``      2.13   tests/groups/test_device_mesh.py
``dist.*_single`` collectives     2.13   tests/redistribute, tests/bench/test_measure.py
count of groups of one rank       2.15   tests/groups/test_groups.py
``split_group`` keeps orders      2.15   tests/scenarios/test_split.py, with and without it
nccl2 as the backend ``nccl``     2.15   tests/scenarios/test_nccl_like.py
private counter of groups         none   tests/groups/test_groups.py
groups of a later dim of a mesh   none   tests/groups/test_device_mesh.py
================================  =====  ====================================================
"""

from __future__ import annotations

import copy
import inspect
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.autograd import forward_ad
from torch.distributed.constants import default_pg_nccl_timeout, default_pg_timeout
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import dataloader
from torch.utils.data._utils import worker

from ..errors import MeshkitError
from .device import backend_for, nccl_parts

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule

Function = TypeVar("Function", bound=Callable[..., object])
Sample = TypeVar("Sample")

_END = object()  # the end of a dataset

# Before torch 2.12, new_group sorts the ranks of a group.
KEEPS_ORDER = "sort_ranks" in inspect.signature(dist.new_group).parameters

# From torch 2.15 on, torch also counts a group that each rank creates for itself.
_name_by_ranks = getattr(dist.distributed_c10d, "_hash_ranks_to_str", None)
COUNTS_OWN_GROUPS = _name_by_ranks is None or "group_count" in _name_by_ranks.__code__.co_names

# Before torch 2.15, split_group sorts the ranks of a group.
SPLITS_KEEP_ORDER = "sorted" not in inspect.unwrap(dist.split_group).__code__.co_names

SMALL, JOINED = 2048, 32  # elements of a tensor, and tensors, whose norm is taken together

CLOSING, PROBING = 2**16, 2**16 + 1  # the tags of messages that nobody sends

# the receives by which meshkit has looked for lost connections of a group, which torch counts too
_num_probes: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()

# gloo connects to each peer up to five times, each under the timeout of the group.
CONNECT_ATTEMPTS = 5


def timeout_of(group: dist.ProcessGroup) -> timedelta | None:
    """Return how long a collective of the group may take; None if torch does not expose it. Local.

    The groups of a mesh get this timeout of the default group, instead of torch's default.
    """
    timeouts = []
    for device in group._device_types:
        with suppress(AttributeError, RuntimeError):
            timeouts.append(group._get_backend(device).options._timeout)
    return min((each for each in timeouts if isinstance(each, timedelta)), default=None)


def set_timeout(group: dist.ProcessGroup, timeout: timedelta | None) -> None:
    """Set the timeout of later collectives; None is the default of each device's backend. Local."""
    group.set_timeout(timeout or default_timeout(backend_of(group)))
    for name, part in _parts(group) if timeout is None else ():
        _set_timeout_of(part, default_timeout(name))


def _set_timeout_of(part: Any, timeout: timedelta | None) -> None:  # noqa: ANN401
    """Set the timeout of later collectives of one device; nccl2 has another name for it."""
    change = getattr(part, "_set_default_timeout", None) or part.set_timeout
    change(timeout)


def _parts(group: dist.ProcessGroup) -> Iterator[tuple[str, Any]]:
    """Yield the backend of each device with its name, if a group has several."""
    pairs = backend_of(group).split(",")
    for kind, _, name in (pair.partition(":") for pair in pairs if len(pairs) > 1):
        yield name, group._get_backend(torch.device(kind))


class LoweredTimeouts:
    """The timeouts of groups inside guards, which end in any order if several threads have some."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # group and device backend to the timeout outside all guards, and those of the guards
        self._limits: dict[tuple[dist.ProcessGroup, str], list[list[timedelta | None]]] = {}

    @contextmanager
    def lower(self, groups: Iterable[dist.ProcessGroup], limit: timedelta | None) -> Iterator[None]:
        """Lower the timeout of gloo, which raises in the thread that waits, inside the block.

        At its timeout the watchdog of nccl ends the process, so the timeout of nccl stays. The last
        block that was entered decides. Local.
        """
        changes: dict[tuple[dist.ProcessGroup, str], Callable[[Any], object]] = {}
        own = [limit]
        with self._lock:
            for group in groups if limit is not None else ():
                timeout, parts = timeout_of(group), [*_parts(group)]
                if not parts and backend_of(group) in ("gloo", "cpu:gloo"):
                    changes[group, ""] = partial(set_timeout, group)
                    self._limits.setdefault((group, ""), [[timeout]])
                for name, part in parts:
                    if name == "gloo":
                        changes[group, name] = partial(_set_timeout_of, part)
                        self._limits.setdefault((group, name), [[part.options._timeout]])
            for key, change in changes.items():
                self._limits[key].append(own)
                change(limit)
        try:
            yield
        finally:
            with self._lock:
                for key, change in changes.items():
                    limits = self._limits[key]
                    limits[:] = [each for each in limits if each is not own]
                    change(limits[-1][0])
                    if len(limits) == 1:
                        del self._limits[key]


def mark_constant(function: Function) -> Function:
    """Let torch.compile call a method while it traces, and take the result as a constant.

    ``torch.compiler.assume_constant_result`` sets the same mark, but first imports the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def has_dual_level() -> bool:
    """Return whether tensors may have tangents, in the time of one attribute."""
    return forward_ad._current_level >= 0


def make_constant(value: Any) -> Any:  # noqa: ANN401
    """Return a value of which torch.compile takes an int as a constant, with a guard."""
    return len(range(value)) if isinstance(value, int) and value > 0 else value


def foreach_norms(
    tensors: Sequence[torch.Tensor], order: float, *, joined: bool = False
) -> list[torch.Tensor]:
    """Return the norm of each tensor of one device and dtype, added up in float64.

    ``joined`` allows one norm for several tensors. On the CPU, small ones are then copied together,
    which takes half of the time.
    """
    plain = [tensor.abs() for tensor in tensors] if tensors[0].is_complex() else [*tensors]
    is_small = plain[0].device.type == "cpu" and max(map(torch.numel, plain)) <= SMALL
    if not joined or not is_small:
        return [*torch._foreach_norm(plain, order, torch.float64)]
    parts = (_join(plain[start : start + JOINED]) for start in range(0, len(plain), JOINED))
    return [torch.linalg.vector_norm(part, order, dtype=torch.float64) for part in parts]


def _join(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Copy tensors into one; those of one shape in half of the time."""
    try:
        return torch.stack(tensors)
    except RuntimeError:  # other shapes
        flatten: Callable[..., torch.Tensor] = torch._utils._flatten_dense_tensors
        return flatten(tensors)


def foreach_scale(tensors: Sequence[torch.Tensor], factor: torch.Tensor) -> None:
    """Multiply tensors of one device and dtype in place by a float64 number of shape ().

    A factor of the dtype of the tensors takes a third of the time of a float64 one.
    """
    dtype = torch.float64 if tensors[0].element_size() > 4 else torch.float32
    factor = factor.to(tensors[0].device, dtype)
    views = [tensor for tensor in tensors if tensor.is_conj() or tensor.is_neg()]
    for view in views:  # which foreach refuses
        view.mul_(factor)
    if len(views) < len(tensors):
        rest = [tensor for tensor in tensors if not (tensor.is_conj() or tensor.is_neg())]
        torch._foreach_mul_(rest, factor)


def keep_gradient_sync(module: FSDPModule) -> Callable[[], None]:
    """Return what restores whether a module under ``fully_shard`` synchronizes its gradients.

    torch has a public function that sets it, and none that reads it.
    """
    state: Any = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # before torch 2.13
        groups = [group for group in [state._fsdp_param_group] if group is not None]
    kept = [(group, group.reduce_grads, group.all_reduce_grads) for group in groups]

    def restore() -> None:
        for group, reduces, all_reduces in kept:
            group.reduce_grads, group.all_reduce_grads = reduces, all_reduces

    return restore


def iterate_unsplit(dataset: Iterable[Sample]) -> Iterator[Sample]:
    """Yield the samples of a dataset as if this were the only worker of a DataLoader.

    A dataset that splits itself by ``get_worker_info`` then yields all its samples in each worker.
    """
    with _as_only_worker():
        samples = iter(dataset)
    while True:
        with _as_only_worker():
            sample = next(samples, _END)
        if sample is _END:
            return
        yield sample  # type: ignore[misc]


class Reader(NamedTuple):
    """A pass of a DataLoader, as it begins to take indices of a sampler."""

    num_workers: int
    dataset: Any


def find_reader() -> Reader | None:
    """Return the DataLoader that takes the indices of the caller, through any other sampler.

    None if no DataLoader does. One that is reading a sample takes no indices.
    """
    frame = inspect.currentframe()
    while frame := frame.f_back if frame else None:
        iterator = frame.f_locals.get("self")
        if isinstance(iterator, dataloader._BaseDataLoaderIter):
            reads_a_sample = frame.f_code.co_name == "_next_data"
            return None if reads_a_sample else Reader(iterator._num_workers, iterator._dataset)
    return None


@contextmanager
def _as_only_worker() -> Iterator[None]:
    """Let ``torch.utils.data.get_worker_info`` return worker 0 of 1 in a worker."""
    info = worker._worker_info
    if info is not None:
        worker._worker_info = worker.WorkerInfo(
            id=0, num_workers=1, seed=info.seed, dataset=info.dataset
        )
    try:
        yield
    finally:
        worker._worker_info = info


def default_timeout(backend: str) -> timedelta:
    """Return torch's default timeout of a group: 10 min for nccl alone, 30 min for all others."""
    return (default_pg_nccl_timeout if backend[:4] == "nccl" else None) or default_pg_timeout


def knows_group(group: dist.ProcessGroup) -> bool:
    """Return whether a group is one that torch knows, and that nobody has destroyed. Local."""
    return group in dist.distributed_c10d._world.pg_map


def backend_of(group: dist.ProcessGroup | None = None) -> str:
    """Return the backend of a group, None for the default group: its name, or one for each device.

    Local. torch calls it "undefined" if nobody named it, and has chosen that of the accelerator.
    """
    name = str(dist.get_backend(group))
    return str(dist.get_backend_config(group)) if name == dist.Backend.UNDEFINED else name


def is_nccl(group: dist.ProcessGroup) -> bool:
    """Return whether a group has NCCL's semantics on a device. Local; see ``nccl_parts``.

    The name of a group of several devices is that of one of its backends only.
    """
    return bool(nccl_parts(backend_of(group) if knows_group(group) else group.name()))


def wait_in_time(work: dist.Work, group: dist.ProcessGroup, limit: timedelta | None) -> None:
    """Wait until a work is done; raise torch's error, or one of its class, at the limit.

    A wait of nccl with a timeout would abort that group alone, and so may hang.
    """
    if limit is None or not is_nccl(group):
        work.wait(*[limit] if limit else [])
        return
    end, pause = time.monotonic() + limit.total_seconds(), 0.0001
    while not work.is_completed():
        if time.monotonic() > end:
            raise dist.DistBackendError(f"wait timeout after {limit.total_seconds():g} s")
        time.sleep(pause)
        pause = min(2 * pause, 0.01)
    work.wait()


def error_of(group: dist.ProcessGroup, device: torch.device) -> str:
    """Return the error that the watchdog of a group has seen; "" for none, or if unknown. Local."""
    with suppress(AttributeError, RuntimeError):
        error: Any = cast(Any, group._get_backend(device)).get_error()
        return "" if error.name == "SUCCESS" else str(error.name)
    return ""


def waits_for_peers(backend: str) -> bool:
    """Return whether creating a group waits for its other ranks, in nccl without an end."""
    return "gloo" in backend or bool(nccl_parts(backend))


def connects_at_creation(backend: str) -> bool:
    """Return whether creating a group connects its ranks: gloo connects each pair."""
    return "gloo" in backend


def collective_count(group: dist.ProcessGroup) -> int | None:
    """Return how many collectives this rank has started on the group; None if unknown. Local.

    On gloo sends and receives also count, so the ranks of a pipeline have different counts. On nccl
    they do not.
    """
    try:
        number = int(group._get_sequence_number_for_group())  # type: ignore[attr-defined]
        return number - _num_probes.get(group, 0)
    except (AttributeError, RuntimeError):
        return None


def store_of(group: dist.ProcessGroup) -> dist.Store | None:
    """Return the store of a group; None if torch exposes none. Local."""
    try:
        store = group.get_group_store()
    except RuntimeError:
        return None
    if store is None and group is dist.group.WORLD:  # a group written in Python need not keep it
        return dist.distributed_c10d._get_default_store()
    return store


def is_fake_store(store: dist.Store | None) -> bool:
    """Return whether a store keeps nothing: torch's FakeStore, under any prefixes. Local."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if type(store) is dist.Store:  # of a class that Python does not know, or has forgotten
        try:
            store.check([""])
        except RuntimeError as error:  # a FakeStore whose class is forgotten has no operations
            return not isinstance(error, dist.DistError)
        return False
    return type(store).__name__ == "FakeStore"


def bound_device(group: dist.ProcessGroup | None = None) -> torch.device | None:
    """Return the device to which a group is bound; None for an unbound group. Local."""
    device = getattr(dist.group.WORLD if group is None else group, "bound_device_id", None)
    return device if isinstance(device, torch.device) else None


@contextmanager
def hidden_device() -> Iterator[bool]:
    """Hide from torch, inside the block, that the default group is bound to a device. Local.

    Yields:
        Whether it was bound.

    Raises:
        MeshkitError: if this torch keeps the device in another place.
    """
    world, device = dist.group.WORLD, bound_device()
    if world is None or device is None:
        yield False
        return
    try:
        world.bound_device_id = None
        if bound_device(world) is not None:
            raise MeshkitError(
                f"torch {torch.__version__} does not let go of the device of the default group.",
                f"bound_device_id stays {device} when it is set to None.",
                fix="meshkit.init(bind=False), so that the default group is not bound.",
            )
        yield True
    finally:
        world.bound_device_id = device


def takes_part_in_split(backend: str | None) -> bool:
    """Return whether torch splits every new group from the default group, with all ranks. Local.

    torch does so if the default group is bound to a device, and the new group has its backend for
    that device. To a backend of another name, such as nccl2 beside nccl, it need not hand the
    communicator.
    """
    device = bound_device()
    if device is None:
        return False
    own = backend_for(backend_of(), device.type)
    return own == (own if backend is None else backend_for(backend, device.type))


def can_split(backend: str | None) -> bool:
    """Return whether ``dist.split_group`` can split new groups from the default group. Local.

    NCCL can split a default group that is bound to a device and has no other backend: torch hands
    the options of NCCL to each part. Before torch 2.15, torch sorts the ranks of each split group.
    The default group must know its ranks.
    """
    if not takes_part_in_split(backend):
        return False
    own = backend_of()
    is_alone = bool(nccl_parts(own)) and "," not in own and backend in (None, own)
    return is_alone and store_global_ranks(cast(dist.ProcessGroup, dist.group.WORLD))


def store_global_ranks(world: dist.ProcessGroup) -> bool:
    """Name the ranks of the default group in its options; return whether they are named. Local.

    torch leaves them empty, whatever options it is given. NCCL's backend then knows the ranks only
    if it is the first one of the process: a split from a later default group ends the process with
    SIGSEGV (pytorch#191952). The backend reads the options whenever it splits.
    """
    ranks = [*range(world.size())]
    try:
        part: Any = world._get_backend(bound_device(world) or torch.device("cuda"))
        if part.options.global_ranks_in_group != ranks:
            part.options.global_ranks_in_group = ranks
        # a copy of the options would not keep them, and a wrapper of torch hides the real backend
        return bool(part.options.global_ranks_in_group == ranks and part.supports_splitting)
    except (AttributeError, RuntimeError, TypeError):  # another backend, or one that is wrapped
        return False


def abort_all_groups(seconds: float) -> list[str]:
    """Abort the collectives of all groups, so that no thread and no kernel waits for them. Local.

    An abort in NCCL waits until the kernels of the device are done, also if one of them belongs to
    another group, which is still to be aborted. So each abort has a thread, and all begin at once.
    torch's own function aborts one group after another: its NCCL group call spans one thread, and
    each abort runs in another one. The groups stay until they are destroyed. On gloo nothing
    happens.

    Returns:
        The names of the groups whose abort did not end in time.
    """
    names = dict(getattr(getattr(dist.distributed_c10d, "_world", None), "pg_names", {}))
    late = _for_each_at_once(_abort, names, seconds)
    return [names[group] for group in late]


def _for_each_at_once(
    work: Callable[[dist.ProcessGroup], object],
    groups: Iterable[dist.ProcessGroup],
    seconds: float,
) -> list[dist.ProcessGroup]:
    """Do some work for each group, in a thread each; return the groups that were not in time."""
    threads = {
        group: threading.Thread(target=work, args=(group,), name="meshkit-abort", daemon=True)
        for group in groups
    }
    for thread in threads.values():
        thread.start()
    end = time.monotonic() + seconds
    for thread in threads.values():
        thread.join(max(0.0, end - time.monotonic()))
    return [group for group, thread in threads.items() if thread.is_alive()]


def _abort(group: dist.ProcessGroup) -> None:
    """Abort a group; an error of torch leaves it to its destruction."""
    with suppress(RuntimeError):
        group.abort()


def has_nccl() -> bool:
    """Return whether a group of this process has NCCL's semantics. Local."""
    return any(map(is_nccl, all_groups()))


def all_groups() -> list[dist.ProcessGroup]:
    """Return all groups of this process that torch knows, those of the user too. Local."""
    return [*dist.distributed_c10d._world.pg_names]


def close_gloo_group(group: Any) -> bool:  # noqa: ANN401
    """Close the connections of a gloo group; return whether there were any. Local.

    gloo closes all connections of a group if a message times out. Every thread that waits in the
    group then raises, as do the peers. A receive from any rank is possible also if a peer is lost.
    torch 2.13 has ``abort`` and
    ``shutdown`` too, which end no wait. An error may still refer to the group.
    """
    backend: Any = group if isinstance(group, dist.ProcessGroupGloo) else gloo_backend(group)
    if backend is None or backend.size() == 1:
        return False
    with suppress(RuntimeError):
        work = backend.recv_anysource([torch.empty(1)], CLOSING)
        _num_probes[group] = _num_probes.get(group, 0) + 1
        work.wait(timedelta(milliseconds=1))
    return True


def close_gloo_groups(ranks: Collection[int] | None, seconds: float) -> bool:
    """Close the connections of all gloo groups, also of the user; return if there were any. Local.

    ``ranks`` limits this to groups inside these ranks. If gloo connects at the first use, nothing
    happens: it ends the process if a group is closed while a connection to a lost rank begins.

    Cost: 30 ms, all groups at once.
    """
    if connects_later():
        return False
    groups = []
    for group in all_groups():
        members = {*dist.get_process_group_ranks(group)}
        is_inside = ranks is None or members <= {*ranks}
        if is_inside and len(members) > 1 and gloo_backend(group) is not None:
            groups.append(group)
    _for_each_at_once(close_gloo_group, groups, seconds)
    return bool(groups)


def connects_later() -> bool:
    """Return whether gloo connects two ranks at their first message, not at the creation. Local."""
    return os.environ.get("TORCH_GLOO_LAZY_INIT") == "1"


def has_lost_connection() -> bool:
    """Return whether a gloo group of this process has lost the connection to a rank. Local.

    A receive from a lost rank raises at once. A receive from any other rank has no effect, as it is
    given up. If gloo connects at the first use, a receive would connect, so the answer is True.
    """
    if connects_later():
        return True
    return any(map(_has_lost_connection, all_groups()))


def gloo_backend(group: dist.ProcessGroup) -> Any:  # noqa: ANN401
    """Return the backend of a group for the CPU, if it is gloo; else None. Local."""
    try:
        backend = group._get_backend(torch.device("cpu"))
    except RuntimeError:  # a group written in Python, or one that has no backend for the CPU
        return None
    return backend if "gloo" in backend.name() else None


def _has_lost_connection(group: dist.ProcessGroup) -> bool:
    """Return whether the gloo backend of a group has lost the connection to a rank."""
    if (backend := gloo_backend(group)) is None:
        return False
    for peer in {*range(group.size())} - {group.rank()}:
        try:
            backend.recv([torch.empty(1)], peer, PROBING)
        except RuntimeError:  # torch does not count it
            return True
        _num_probes[group] = _num_probes.get(group, 0) + 1
    return False


def advance_group_counter(groups: int) -> bool:
    """Advance torch's group counter without creating groups; return whether it advanced. Local.

    torch names groups by their number, so every rank must count every group. ``new_group`` takes
    0.1 ms for each group of other ranks, and a large mesh has a thousand of them.
    """
    state, world = getattr(dist.distributed_c10d, "_world", None), dist.group.WORLD
    has_barrier = os.environ.get("TORCH_DIST_INIT_BARRIER") == "1"
    count = getattr(state, "group_count", None)
    if has_barrier or hasattr(world, "new_group") or count != dist.get_pg_count():
        return False
    state.group_count = count + groups  # type: ignore[union-attr]
    return True


def forget_groups() -> None:
    """Clear what torch has kept of groups that an error has left half created or destroyed.

    Local; only without a default group. torch clears it when it destroys the default group. A
    counter of groups that differs between ranks would give the next default groups two names.
    """
    state = dist.distributed_c10d._world
    names = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag")
    for name in (*names, "tags_to_pg", "pg_coalesce_state"):
        getattr(state, name, {}).clear()
    dist.distributed_c10d._unregister_all_process_groups()
    state.group_count = 0


def clear_dtensor_cache() -> None:
    """Clear DTensor's cache, which may hold destroyed groups. Local; a no-op without DTensor.

    The key of the cache ignores the groups, so equal DeviceMeshes share an entry. A later mesh over
    the same ranks would get the groups of an earlier one, and fail.
    """
    tensor = sys.modules.get("torch.distributed.tensor")
    if tensor is not None:  # torch's own function is in a module that takes long to import
        with suppress(AttributeError):
            tensor.DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()
            torch._C._clear_DTensor_sharding_propagator_cache()


def can_slice() -> bool:
    """Return whether a dim of a sliced DeviceMesh can join several dims of the root.

    Local. Below torch 2.13 each DeviceMesh is its own root.
    """
    from torch.distributed.device_mesh import DeviceMesh

    with suppress(ImportError):
        from torch.distributed._mesh_layout import _FlatLayout  # noqa: F401

        return hasattr(DeviceMesh, "_concatenate")
    return False


def slice_device_mesh(
    root: DeviceMesh,
    dims: Mapping[str, tuple[tuple[int, int], ...]],
    groups: Sequence[dist.ProcessGroup],
) -> DeviceMesh:
    """Return a slice of a root over existing groups. torch's own slicing would make groups."""
    from torch.distributed._mesh_layout import _FlatLayout, _MeshLayout
    from torch.distributed.device_mesh import DeviceMesh

    flat = [
        _FlatLayout(tuple(size for size, _ in steps), tuple(stride for _, stride in steps))
        if steps
        else _FlatLayout(1, 0)
        for steps in dims.values()
    ]
    sliced = DeviceMesh(
        root.device_type,
        mesh_dim_names=tuple(dims),
        _init_backend=False,
        _layout=_MeshLayout(flat),
        _rank_map=root._rank_map,
        _root_mesh=root,
    )
    sliced._dim_group_names = [group.group_name for group in groups]
    root._pg_registry.update({group.group_name: group for group in groups})
    return sliced


# ------------------------------------------------------------------ dims made after a DeviceMesh


class DimRequest(NamedTuple):
    """A dim of a DeviceMesh for which torch requests a group."""

    name: str
    ranks: list[int]  # of this rank's group, in order
    backend: str | None  # None is that of the default group
    options: object  # of the backend; None are its defaults


MADE_BY = "meshkit"  # an attribute of a root DeviceMesh: the owner of its groups
# torch calls the method with these arguments, and newer versions with more of them
GROUPS_METHOD = "_init_process_groups"
GROUPS_PARAMETERS = ("layout", "rank_map", "mesh_dim_names", "backend_override")


def register_fake_backend() -> None:
    """Make torch's backend "fake" known, whose groups communicate with nobody. Local."""
    from torch.testing._internal.distributed import fake_pg  # noqa: F401


def describe_options(options: object, depth: int = 2) -> str:
    """Return torch's options of a backend as text, without their timeout. Equal options: one text.

    Example:
        >>> describe_options(None)
        ''
    """
    facts = []
    for name in () if options is None else dir(options):
        value = None if name.startswith("_") else getattr(options, name, None)
        if isinstance(value, bool | int | float | str):
            facts.append(f"{name}={value!r}")
        elif value is not None and not callable(value) and depth:
            facts.append(f"{name}=({describe_options(value, depth - 1)})")
    return f"{type(options).__name__}({', '.join(facts)})" if options is not None else ""


def is_options(value: object) -> bool:
    """Return whether a value is torch's options of a backend."""
    return isinstance(getattr(value, "_timeout", None), timedelta)


def timeout_of_options(options: object) -> timedelta | None:
    """Return the timeout that was set in torch's options of a backend; None if none was."""
    if not is_options(options):
        return None
    default = getattr(type(options)(), "_timeout", None)
    timeout: timedelta = options._timeout  # type: ignore[attr-defined]
    return None if timeout == default else timeout


def copy_options(options: object, timeout: timedelta) -> object:
    """Return torch's options of a backend for one group, with its timeout; None for None.

    torch writes the name and the ranks of a group into its options and keeps them, so one object
    must not serve two groups.
    """
    if options is None:
        return None
    copied: Any
    try:
        copied = copy.deepcopy(options)
    except TypeError:  # of gloo
        copied = type(options)()
        for name in dir(options):
            value = getattr(options, name)
            if not name.startswith("__") and not callable(value):
                with suppress(AttributeError, TypeError):  # a property without a setter
                    setattr(copied, name, value)
    copied._timeout = timeout
    return copied


def root_of(device_mesh: DeviceMesh) -> DeviceMesh:
    """Return the DeviceMesh of which another one is a slice, or a DeviceMesh itself. Local."""
    return device_mesh._get_root_mesh()


def serve_groups(
    serve: Callable[[Any, str, list[DimRequest]], list[dist.ProcessGroup]],
) -> None:
    """Let a function return the groups of each later dim of a DeviceMesh that meshkit has made.

    Local, and harmless to repeat. torch makes the groups of ``_flatten`` and ``_unflatten`` in one
    private method. It is replaced once. For any other DeviceMesh it does what it did.
    """
    from torch.distributed.device_mesh import DeviceMesh

    make_groups: Any = getattr(DeviceMesh, GROUPS_METHOD, None)
    if hasattr(make_groups, "serve"):
        return
    known = make_groups is not None and tuple(inspect.signature(make_groups).parameters)[:4]
    if known != GROUPS_PARAMETERS:
        raise MeshkitError(
            f"torch {torch.__version__} makes the groups of a DeviceMesh in another way than the "
            "versions that meshkit knows, 2.11 to 2.15.",
            f"DeviceMesh.{GROUPS_METHOD} does not take {', '.join(GROUPS_PARAMETERS)}.",
            fix="a torch from 2.11 to 2.15; or build_mesh, and a newer meshkit for this torch.",
        )

    def init_process_groups(
        self: DeviceMesh,
        layout: Any,  # noqa: ANN401
        rank_map: torch.Tensor,
        names: Sequence[str] | None,
        override: Sequence[tuple[str | None, object]],
        *more: object,
    ) -> list[str]:
        owner = vars(root_of(self)).get(MADE_BY)
        if not owner:  # also of an unpickled DeviceMesh, whose owner is an empty set
            names_of_groups: list[str] = make_groups(layout, rank_map, names, override, *more)
            return names_of_groups
        dims = [
            DimRequest(name, _own_row(layout, dim, rank_map), *override[dim])
            for dim, name in enumerate(names or map("dim_{}".format, range(len(layout))))
        ]
        flattens = not hasattr(self, "_dim_group_names")  # the DeviceMesh is just being made
        groups = serve(owner, "_flatten" if flattens else "_unflatten", dims)
        return [group.group_name for group in groups]

    init_process_groups.serve = serve  # type: ignore[attr-defined]
    setattr(DeviceMesh, GROUPS_METHOD, init_process_groups)


def _own_row(layout: Any, dim: int, rank_map: torch.Tensor) -> list[int]:  # noqa: ANN401
    """Return the ranks along a dim of a DeviceMesh that include this rank, in order."""
    flat = layout[dim]
    nested = type(layout)([flat]) if can_slice() else flat.nest()
    rows = nested.remap_to_tensor(rank_map).reshape(-1, flat.numel())
    ranks: list[int] = rows[(rows == dist.get_rank()).any(dim=1)][0].tolist()
    return ranks


def join_dims(root: DeviceMesh, name: str, axes: tuple[str, ...], group: dist.ProcessGroup) -> None:
    """Give a root a name for several of its dims together, over an existing group. Local."""
    if axes:
        root[axes]._flatten(name)
    elif name not in root._flatten_mapping:  # only axes that the root does not have
        root._flatten_mapping[name] = slice_device_mesh(root, {name: ()}, [group])


def remake_root(root: DeviceMesh, *, named: bool, number: int) -> DeviceMesh:
    """Return an equal root, with or without names, that is equal to no root of another number.

    torch compares two DeviceMeshes by their ranks, and not by their groups, also in the caches of
    DTensor. A root with a number has as many negative ranks after its own, which no dim uses. Its
    slices have them too.
    """
    from torch.distributed.device_mesh import DeviceMesh

    # a whole number of grids, since torch tiles the ranks by the layout
    others = torch.full((root._rank_map.numel() * bool(number),), -number, dtype=torch.int)
    remade = DeviceMesh(
        root.device_type,
        mesh_dim_names=root.mesh_dim_names if named else None,
        _init_backend=False,
        _layout=root._layout,
        _rank_map=torch.cat([root._rank_map, others]),
    )
    remade._dim_group_names = root._dim_group_names
    remade._pg_registry = dict(root._pg_registry)
    return remade


BACKEND = "rehearsal"  # the name of the backend of recording groups
_kept: list[object] = []  # the kernels of a library end with its last reference


def record_every_group(
    create: Callable[[Any, object], dist.ProcessGroup],
    count: Callable[[int], None],
    rank: int,
    world_size: int,
) -> None:
    """Let torch create every group by ``create``, whatever its backend, and the default group now.

    Local. ``count`` gets torch's count of groups after each, and before it begins again.
    ``init_process_group`` then only creates a default group that a program has destroyed.
    """
    c10d: Any = dist.distributed_c10d
    helper, init = c10d._new_process_group_helper, c10d.init_process_group
    destroy = c10d.destroy_process_group
    devices = ["cpu", "meta", "cuda"]
    dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=devices)

    def create_group(*args: object, **options: object) -> object:
        size, own, ranks, _, *more = args
        count(c10d._world.group_count)
        return helper(size, own, ranks, BACKEND, *more, **{**options, "device_id": None})

    def init_process_group(*_: object, **__: object) -> None:
        if not dist.is_initialized():
            init(BACKEND, store=dist.HashStore(), rank=rank, world_size=world_size)

    def destroy_process_group(group: dist.ProcessGroup | None = None) -> None:
        count(c10d._world.group_count)
        destroy(group)

    c10d._new_process_group_helper = create_group
    c10d.destroy_process_group = dist.destroy_process_group = destroy_process_group
    c10d.init_process_group = dist.init_process_group = init_process_group
    init_process_group()


def record_meta_collectives() -> None:
    """Let functional collectives of meta tensors reach their group, as those of other tensors do.

    Local. torch's kernels for them compute shapes, which suffices only while it traces a program.
    """
    import torch.distributed._functional_collectives as functional  # registers torch's kernels

    def kernel_of(name: str, trace: Callable[..., object]) -> Callable[..., object]:
        run = cast(Any, torch.library).get_kernel(f"_c10d_functional::{name}", "CPU")

        def kernel(keys: object, *args: object) -> object:
            is_traced = torch._guards.detect_fake_mode() is not None
            return trace(*args) if is_traced else run.call_boxed(keys, *args)

        return kernel

    library: Any = cast(Any, torch.library).Library("_c10d_functional", "IMPL")
    _kept.append(library)
    for operator in torch._C._dispatch_get_all_op_names():
        namespace, _, name = operator.partition("::")
        traces = (getattr(functional, f"_{name}_{end}", None) for end in ("native_meta", "meta"))
        trace = next(filter(None, traces), None)
        if namespace == "_c10d_functional" and trace is not None:
            kernel = kernel_of(name, trace)
            library.impl(name, kernel, "Meta", with_keyset=True, allow_override=True)


def allow_meta_training() -> None:
    """Let DDP, FSDP2 and DeviceMesh treat the meta device as an accelerator without streams. Local.

    DDP reads values when it compares the sizes of parameters between ranks, and when it agrees on
    other buckets after the first step. Both are left out.
    """
    from torch.distributed.fsdp._fully_shard import (
        _fsdp_collectives,
        _fsdp_init,
        _fsdp_param_group,
        _fully_shard,
    )
    from torch.nn.parallel import distributed

    vars(distributed)["_verify_param_shape_across_processes"] = lambda *_: None
    cast(Any, dist).Reducer._rebuild_buckets = lambda _: False
    vars(torch)["meta"] = torch.cpu
    # torch 2.15 records the stream of a gradient, and the CPU has none
    vars(_fsdp_collectives)["record_grad_output_stream"] = lambda *_: None
    group: Any = _fsdp_param_group.FSDPParamGroup
    group._validate_no_meta_params = lambda _: None
    find = _fsdp_init._get_device_from_mesh

    def device_of(mesh: DeviceMesh) -> torch.device:
        return torch.device("meta") if mesh.device_type == "meta" else find(mesh)

    for module in (_fsdp_init, _fully_shard):
        vars(module)["_get_device_from_mesh"] = device_of


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensors that operations of this thread make, while it is entered.

    Tensors inside an operation of DTensor are not seen, but its result is.
    """

    def __init__(self, memory: dict[str, int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memory = memory  # gets the largest number so far, as "peak"
        self.sizes: dict[int, int] = {}  # of each storage that lives
        self.total = 0
        resize: Any = torch.UntypedStorage.resize_

        def resize_and_count(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
            resized: torch.UntypedStorage = resize(storage, size)  # FSDP2 frees weights so
            if id(storage) in self.sizes:
                self.count(id(storage), storage.nbytes())
            return resized

        cast(Any, torch.UntypedStorage).resize_ = resize_and_count

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: torch.compile compiles as without this mode."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        """Run an operation, and count its results."""
        results = func(*args, **(kwargs or {}))
        for result in results if isinstance(results, list | tuple) else [results]:
            local: Any = getattr(result, "_local_tensor", getattr(result, "elem", result))
            if type(local) in (torch.Tensor, torch.nn.Parameter):
                storage = local.untyped_storage()
                if id(storage) not in self.sizes:
                    weakref.finalize(storage, self.count, id(storage), None)
                self.count(id(storage), storage.nbytes())
        return results

    def count(self, key: int, size: int | None) -> None:
        """Set the bytes of a storage; None if it no longer lives."""
        self.total += (size or 0) - self.sizes.pop(key, 0)
        if size is not None:
            self.sizes[key] = size
            self.memory["peak"] = max(self.memory.get("peak", 0), self.total)


def keep_uncompiled(function: Function) -> Function:
    """Let torch.compile run a function, and what it calls, as it is; its caller's graph ends there.

    ``torch.compiler.disable`` does the same, but first imports the compiler, which takes 1 s.
    """
    eval_frame: Any = torch._C._dynamo.eval_frame
    skip = eval_frame._FrameAction.SKIP
    strategy = eval_frame._FrameExecStrategy(skip, skip)
    eval_frame.set_code_exec_strategy(function.__code__, strategy)
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


def program_frames(libraries: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Yield the file and the line of each running frame outside some folders, the inner first."""
    frame = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(libraries):
            yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
