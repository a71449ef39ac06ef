"""Create torch's default process group, or read the world and the store of one that exists.

By default gloo connects every pair while it creates a group, and keeps the time that this may take
as the time of every send and receive. So groups are created without connections, and then connect
every pair by an all-to-all, which has a deadline of its own.

On 256 ranks that is 255 connections a rank, of which most jobs use few. A large default group
therefore connects a pair at its first use. A mesh that uses it connects pairs when it is built.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from ..core.errors import LaunchError
from ..core.judges import Describe, all_done, failure_error
from .detect import detect
from .device import accelerator, device_of_backend
from .launchers import BY_TORCHRUN
from .process import current_process
from .round import Round
from .store import Store
from .times import TIMES, Deadline, DeadlineExceededError, run_with_deadline
from .torch_internals import (
    CONNECT_ATTEMPTS,
    bound_device,
    connects_at_creation,
    default_timeout,
    is_fake_store,
    set_timeout,
    store_of,
)
from .world import World

Result = TypeVar("Result")

LOOK = 0.5  # seconds between two looks at the store while a group connects
LAZY = "TORCH_GLOO_LAZY_INIT"  # torch reads it whenever it creates a gloo group
HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"  # torch reads it whenever it creates an nccl group
OLD_HANDLING = HANDLING.removeprefix("TORCH_")  # torch reads it too
KEEP_HANDLING = "MESHKIT_KEEP_ASYNC_ERROR_HANDLING"  # 1: leave it as it is
EAGER_RANKS = 32  # up to here most jobs use most pairs, so gloo connects all of them


@dataclass(eq=False, repr=False)
class Connections:
    """The pairs of ranks that the default group has connected, equal on every rank."""

    near: bool = True  # those at distances 1, 2, 4, 8, ..., which all but few collectives use
    all: bool = True  # every pair

    def connect(self, *, every_pair: bool) -> None:
        """Connect the near pairs or every pair. Collective over the default group."""
        if every_pair and not self.all:
            numbers = torch.zeros(dist.get_world_size(), dtype=torch.uint8)
            dist.all_to_all_single(numbers.clone(), numbers)
            self.near = self.all = True
        elif not self.near:
            dist.barrier()
            self.near = True


def default_group() -> dist.ProcessGroup:
    """Return torch's default group."""
    group = dist.group.WORLD
    if group is None:
        raise LaunchError("There is no default process group.", fix="meshkit.init().")
    return group


def let_guards_report(world: World, environ: MutableMapping[str, str]) -> dict[str, str]:
    """Set nccl's error handling so that a guard reports before torch ends the process. Local.

    By default, and under torchrun, which sets 1, torch's watchdog ends the process at a timeout and
    when a peer is lost. 0 leaves that to the guard. Another value was set by the user, and stays.

    Returns:
        The variable that was set, if any.
    """
    value, by_torchrun = environ.get(HANDLING), world.launcher in BY_TORCHRUN
    is_free = value == "1" if by_torchrun else value is None and OLD_HANDLING not in environ
    if "nccl" not in str(world.backend) or not is_free or environ.get(KEEP_HANDLING) == "1":
        return {}
    environ[HANDLING] = "0"
    return {HANDLING: "0"}


class Creation(NamedTuple):
    """The creation of groups on all ranks: its deadline, and whether another rank has failed."""

    deadline: Deadline
    has_failed: Callable[[], bool] = lambda: False  # at the store

    @property
    def connects_later(self) -> bool:
        """Whether gloo groups are created without connections: the user may set that otherwise."""
        return LAZY not in os.environ

    @property
    def attempt(self) -> timedelta:
        """The time of one of the attempts in which torch connects a pair, if it does so at once."""
        return timedelta(seconds=max(2.0, self.deadline.left / CONNECT_ATTEMPTS))

    @contextmanager
    def without_connections(self) -> Iterator[None]:
        """Let gloo groups that the block creates connect later."""
        is_set = self.connects_later
        if is_set:
            os.environ[LAZY] = "1"
        try:
            yield
        finally:
            if is_set:
                os.environ.pop(LAZY, None)

    def connect(self, group: dist.ProcessGroup) -> None:
        """Connect every pair of a new gloo group. Collective over the group.

        On failure the group is destroyed, at the latest when torch gives up.

        Raises:
            RuntimeError: if the deadline has passed, a peer has gone, or another rank has failed.
        """
        if not self.connects_later or group.size() == 1:
            return
        numbers = torch.zeros(group.size(), dtype=torch.uint8)
        work = dist.all_to_all_single(numbers.clone(), numbers, group=group, async_op=True)
        pause, next_look = 0.0005, time.monotonic() + LOOK
        try:
            while not work.is_completed():
                time.sleep(pause)
                pause = min(2 * pause, 0.002 + 0.0005 * group.size())
                if self.deadline.expired:
                    raise RuntimeError("it did not connect in time")
                if time.monotonic() > next_look:
                    if self.has_failed():
                        raise RuntimeError("another rank has given up")
                    next_look = time.monotonic() + LOOK
            work.wait()
        except BaseException:
            with suppress(ValueError, AssertionError):  # it is destroyed with the default group
                dist.destroy_process_group(group)
            threading.Thread(target=_hold, args=(work, group), daemon=True).start()
            raise


def _hold(work: dist.Work, *_: object) -> None:
    """Hold a group, whose last reference ends only when all its operations have ended."""
    while not work.is_completed():
        time.sleep(1)


def create_default_group(
    world: World, store: Store, timeout: timedelta | None, creation: Creation
) -> Connections:
    """Create torch's default group. Collective. nccl is bound to the device, to split groups."""
    # a client of its own: torch may wait longer for an address than ranks for each other
    client = store.watcher() if world.world_size > 1 else store
    client.root.set_timeout(timeout or default_timeout(str(world.backend)))
    connects = connects_at_creation(str(world.backend))
    later = connects and creation.connects_later
    is_large = later and world.backend == "gloo" and world.world_size > EAGER_RANKS
    first = timeout
    if is_large:  # the first use of a pair may take as long as any other collective
        first = (timeout or default_timeout("gloo")) / CONNECT_ATTEMPTS
        first = max(creation.attempt, first)
    elif connects and not later:
        first = creation.attempt
    options: dict[str, Any] = {
        "store": client.part("default_group").raw,
        "rank": world.rank,
        "world_size": world.world_size,
    }
    if world.backend == "mpi":  # MPI knows rank and size
        options = {}
    if world.backend == "nccl":  # a group of several backends cannot always be split
        options["device_id"] = world.device
    try:
        with creation.without_connections():
            dist.init_process_group(world.backend, timeout=first, **options)
        if later and not is_large:
            creation.connect(default_group())
    except (RuntimeError, ValueError, AssertionError) as error:  # torch's own
        if dist.is_initialized():  # it failed at the very end
            dist.destroy_process_group()
        raise LaunchError(
            f"rank {world.rank} of {world.world_size} could not create the default group.",
            f"backend {world.backend}, device {world.device}: {str(error).partition(chr(10))[0]}",
            fix="meshkit doctor, on this host.",
        ) from error
    rank, size = dist.get_rank(), dist.get_world_size()
    if (rank, size) != (world.rank, world.world_size):
        dist.destroy_process_group()
        raise LaunchError(
            f"the launcher counts rank {world.rank} of {world.world_size}, the backend "
            f"{world.backend} counts {rank} of {size}.",
            fix="start with the mpirun of the MPI that torch was built with.",
        )
    if connects:
        set_timeout(default_group(), timeout)
    return Connections(near=not is_large, all=not is_large)


def world_from_group(group: dist.ProcessGroup) -> World:
    """Return the world of this process in a group that meshkit did not create. Local.

    The launcher's facts about the node count only if it reports the same rank and size.
    """
    rank, world_size = group.rank(), group.size()
    sources = {
        "rank": "dist.get_rank()",
        "world_size": "dist.get_world_size()",
        "backend": "dist.get_backend()",
        "device": "existing group",
    }
    world = None
    with suppress(LaunchError):
        world = detect()
    if world is not None and (world.rank, world.world_size) == (rank, world_size):
        sources = {**world.sources, **sources}
    else:
        world = World(rank, world_size, rank, None, None, None, None, None, "")
        sources["local_rank"] = "rank, for lack of other facts"
    backend = str(dist.get_backend(group))
    return replace(
        world,
        launcher="existing group",
        device=_device(group, backend),
        backend=backend,
        sources=sources,
    )


def store_from_group(group: dist.ProcessGroup) -> dist.Store | None:
    """Return a store that the ranks of the group share; None if torch exposes none."""
    return None if plays_one_rank(group) else store_of(group)


def plays_one_rank(group: dist.ProcessGroup) -> bool:
    """Return whether this process alone plays one rank of a world, by a fake backend or store."""
    return dist.get_backend(group) == "fake" or is_fake_store(store_of(group))


def _device(group: dist.ProcessGroup, backend: str) -> torch.device:
    # an old bridge, such as Gaudi's, does not make its device torch's accelerator
    bound, kind = bound_device(group), accelerator() or device_of_backend(backend)
    if bound is not None:
        return bound
    if backend in ("gloo", "mpi") or kind is None:
        return torch.device("cpu")
    return torch.device(kind, torch.get_device_module(kind).current_device())


def commit(
    round: Round | None,
    call: str,
    timeout: timedelta,
    create: Callable[[Creation], Result],
    undo: Callable[[Result], None],
    *,
    connects: bool,
    describe: Describe | None = None,
) -> Result:
    """Return the result of ``create``, once every rank has created it; else undo it. Collective.

    torch waits for peers while it creates groups, with timeouts of its own: a rank that dies at
    that moment would block the others for half an hour. Creation is therefore limited to the time
    that ranks wait for each other, 10 s at least, and this round confirms it.

    Args:
        round: the round; None if nothing can fail on one rank only.
        call: the public function.
        timeout: how long ranks wait for each other.
        create: called with the deadline until which groups connect.
        undo: destroys what was created.
        connects: whether creation waits for other ranks.
        describe: returns the coordinate of a rank as text.
    """
    limit = max(timeout, timedelta(seconds=TIMES.create))
    whole = limit + timedelta(seconds=TIMES.create_report)
    if round is None:
        return create(Creation(Deadline.after(limit)))
    work = partial(create, Creation(Deadline.after(limit), round.has_failed))
    deadline, facts = Deadline.after(whole), {"call": f"the end of {call}"}
    judge = all_done(round.summary, seconds=whole.total_seconds(), describe=describe)
    with round:
        try:
            created = _in_time(limit, work, undo) if connects else work()
        except RuntimeError as error:  # torch's own: a peer may be the reason
            objection = failure_error(round.summary, round.rank, current_process(), error)
            round.arrive(facts, same=True, objection=objection, deadline=deadline)
            reason = round.decide(judge, deadline).error
            if reason is None or round.rank in getattr(reason, "requests", ()):
                raise
            try:
                raise reason from error
            finally:
                del reason  # a frame that holds its own error would keep groups
        try:
            round.arrive(facts, same=True, deadline=deadline)
            # If a rank closed its groups while another still connects, that one would hang.
            round.decide(judge, deadline if connects else Deadline.after(whole)).check(round.rank)
        except BaseException:
            undo(created)
            raise
    return created


def _in_time(
    limit: timedelta, work: Callable[[], Result], undo: Callable[[Result], None]
) -> Result:
    """Return the result of the work, or undo it if it comes too late."""
    seconds, has_device = limit.total_seconds(), torch.accelerator.is_available()
    device = torch.accelerator.current_device_index() if has_device else 0

    def create() -> Result:  # in a thread, which begins with device 0
        if has_device:
            torch.accelerator.set_device_index(device)
        return work()

    try:
        return run_with_deadline(seconds + TIMES.create_report / 2, create, late=undo)
    except DeadlineExceededError:
        raise RuntimeError(f"it did not finish within {seconds:g} s") from None
