"""Process groups in torch's private API: what a group is, how it is created and counted.

If newer versions of torch have a public name, that name is used first. The oldest torch is 2.11.
Every difference between newer versions is a feature for which a line here, or one file elsewhere,
looks:

================================  =====  ====================================================
feature                           since  test
================================  =====  ====================================================
``new_group(sort_ranks=)``        2.12   tests/mesh/test_mesh.py, with and without it
``dist.*_single`` collectives     2.13   tests/redistribute, tests/bench/test_measure.py
count of groups of one rank       2.15   tests/groups/test_groups.py
``split_group`` keeps orders      2.15   tests/scenarios/test_split.py, with and without it
nccl2 as the backend ``nccl``     2.15   tests/scenarios/test_nccl_like.py
private counter of groups         none   tests/groups/test_groups.py
================================  =====  ====================================================

``torch_aborts`` has the timeouts of groups and what ends a collective, ``torch_meshes`` DeviceMesh,
``torch_program`` the compiler, gradients and data loaders, and ``torch_rehearsal`` what a rehearsal
changes in torch. No other file uses torch's private API.
"""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import MeshkitError
from .device import backend_for, nccl_parts

# Before torch 2.12, new_group sorts the ranks of a group.
KEEPS_ORDER = "sort_ranks" in inspect.signature(dist.new_group).parameters

# From torch 2.15 on, torch also counts a group that each rank creates for itself.
_name_by_ranks: Any = getattr(dist.distributed_c10d, "_hash_ranks_to_str", None)
COUNTS_OWN_GROUPS = _name_by_ranks is None or "group_count" in _name_by_ranks.__code__.co_names

# Before torch 2.15, split_group sorts the ranks of a group.
SPLITS_KEEP_ORDER = "sorted" not in inspect.unwrap(dist.split_group).__code__.co_names

# gloo connects to each peer up to five times, each under the timeout of the group.
CONNECT_ATTEMPTS = 5


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


def has_nccl() -> bool:
    """Return whether a group of this process has NCCL's semantics. Local."""
    return any(map(is_nccl, all_groups()))


def all_groups() -> list[dist.ProcessGroup]:
    """Return all groups of this process that torch knows, those of the user too. Local."""
    return [*dist.distributed_c10d._world.pg_names]


class CollectiveCheck(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Checks the ranks of each collective of this thread before it begins. Messages are not seen.

    ``check`` gets the name of the collective and its ranks, and raises.
    """

    supports_higher_order_operators = True  # such as torch.cond

    def __init__(self, check: Callable[[str, Sequence[int]], object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.check = check

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: torch.compile compiles as without this mode."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        """Check the groups among the arguments of an operation, and run it."""
        if any(kind.__name__ == "DTensor" for kind in types):  # it calls collectives of its own
            return NotImplemented
        if "c10d" in func.namespace and not func.__name__.startswith(("send", "recv")):
            named = {*map(_group_name, args)}
            for group in all_groups():
                if group.group_name in named:
                    name = func.__name__.partition(".")[0].strip("_")
                    self.check(name, dist.get_process_group_ranks(group))
        return func(*args, **(kwargs or {}))


def _group_name(argument: Any) -> str:  # noqa: ANN401
    """Return the name of a group among the arguments of an operation; empty for anything else."""
    if isinstance(argument, torch.ScriptObject):
        with suppress(RuntimeError):  # such as a ReduceOp
            return str(dist.ProcessGroup.unbox(argument).group_name)
    return argument if isinstance(argument, str) else ""


def waits_for_peers(backend: str) -> bool:
    """Return whether creating a group waits for its other ranks, in nccl without an end."""
    return "gloo" in backend or bool(nccl_parts(backend))


def connects_at_creation(backend: str) -> bool:
    """Return whether creating a group connects its ranks: gloo connects each pair."""
    return "gloo" in backend


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
def free_names() -> Iterator[None]:
    """Let torch name groups of this rank alone, inside the block, as no group is named. Local.

    Before torch 2.15 such a name depends on the rank and on the number of groups, so it may be
    taken when other groups were destroyed.
    """

    def name_by_ranks(ranks: list[Any]) -> str:
        name = str(_name_by_ranks(ranks))
        while name in dist.distributed_c10d._world.pg_names.values():
            name = str(_name_by_ranks([name]))
        return name

    if COUNTS_OWN_GROUPS:
        yield
        return
    vars(dist.distributed_c10d)["_hash_ranks_to_str"] = name_by_ranks
    try:
        yield
    finally:
        vars(dist.distributed_c10d)["_hash_ranks_to_str"] = _name_by_ranks


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
