"""init and shutdown: join the job's base process group, and leave it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from ..core.call import Call, given
from ..core.errors import LaunchError, RankTimeoutError, told
from ..core.integers import integer
from .device import choose_backend, choose_device, read_device
from .environment import World, identify
from .foreign import store_of, timeout_of, world_of
from .meet import arrive
from .seeds import check_seed, seed_all
from .store import PROBE, open_store
from .times import ARRIVAL, Time, duration


@dataclass(frozen=True)
class Joined:
    """What ``init`` knows of a default process group.

    Attributes:
        world: who this process is.
        store: where its ranks meet, under a prefix of this generation; None where someone else
            initialised the group and torch does not tell its store.
        timeout: how long a collective may take; None is the backend's own default.
        arrival_timeout: how long ranks wait for each other.
        generation: how many times this rank has joined on this store, from 1; 0 for a group that
            someone else initialised.
    """

    world: World
    store: dist.Store | None
    timeout: timedelta | None
    arrival_timeout: timedelta
    generation: int


# The only module state of meshkit: it lives as long as the default group it speaks of.
_RECORDS: WeakKeyDictionary[dist.ProcessGroup, Joined] = WeakKeyDictionary()


def init(
    *,
    backend: str | None = None,
    device: str | torch.device | None = None,
    timeout: Time | None = None,
    arrival_timeout: Time | None = None,
    seed: int | None = None,
    init_method: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
) -> World:
    """Join the job: set up the default process group, the device and, if asked, the seeds.

    Collective: every rank calls it once; a second call returns the same :class:`World`. A default
    group that someone else initialised is used as it is. Explicit arguments win over what the
    launcher set. On failure no group is left behind.

    Args:
        backend: what collectives run on; None takes torch's own for the device.
        device: where this process computes; None takes its accelerator, or the cpu.
        timeout: how long a collective may take, in seconds or as a timedelta; None keeps the
            backend's default (gloo 30 min, nccl 10 min). It sets ``arrival_timeout`` too.
        arrival_timeout: how long ranks wait for each other here and in ``build_mesh``; None
            means ``timeout`` where that is given, else 300 s.
        seed: seeds python, numpy and torch alike on all ranks; None leaves them alone.
        init_method: where ranks meet: ``"tcp://host:port"``, ``"file:///shared/path"`` or
            ``"env://"``; None asks the launcher. Ignored where the group exists already.
        rank: this process' rank; None asks the launcher.
        world_size: how many ranks the job has; None asks the launcher.
        local_rank: this process' index on its node; None asks the launcher.

    Raises:
        LaunchError: where it is not clear who this process is, where ranks meet, or which device
            it has; or where an earlier ``init`` said something else.
        RankTimeoutError: where ranks did not arrive in time, with their numbers.
        SpecError: for a time or a seed that cannot be.
    """
    # in the order of the signature, so that errors quote the call as it was written
    asked = given(
        backend=backend,
        device=device,
        timeout=timeout,
        arrival_timeout=arrival_timeout,
        seed=seed,
        init_method=init_method,
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
    )
    return enter(Call("init", kwargs=asked), asked).world


def enter(call: Call, asked: Mapping[str, Any]) -> Joined:
    """:func:`init`, for a call of any name with the arguments that were given. Collective."""
    seed = check_seed(call, asked.get("seed"))
    limit = duration(call, "timeout", asked.get("timeout"))
    wait = duration(call, "arrival_timeout", asked.get("arrival_timeout"))
    arguments = {name: _number(call, name, asked[name]) for name in WHO if name in asked}
    record = joined()
    if record is None:
        record = _join(call, _who(call, arguments, asked), asked, limit, wait)
    elif asked.keys() - {"seed", "init_method"}:
        record = _kept(call, record, asked, limit, wait)
    _RECORDS[_default_group()] = record
    if seed is not None:
        seed_all(seed)
    return record


def shutdown() -> None:
    """Leave the job: destroy the default group and every group made on it.

    Local, and harmless to repeat. A default group that someone else initialised is left alone.
    """
    record = joined()
    if record is not None and record.generation:
        dist.destroy_process_group()


def joined() -> Joined | None:
    """What is known of the present default group; None where there is none. Local."""
    if not dist.is_initialized():
        return None
    group = _default_group()
    if group in _RECORDS:
        return _RECORDS[group]
    return Joined(world_of(group), store_of(group), timeout_of(group), ARRIVAL, generation=0)


def peek() -> World:
    """Who this process is, without joining: from the default group, else from the launcher."""
    record = joined()
    return record.world if record is not None else identify(os.environ, {})


WHO = ("rank", "world_size", "local_rank")


def _default_group() -> dist.ProcessGroup:
    group = dist.group.WORLD
    if group is None:
        raise LaunchError(told("There is no default process group.", fix="meshkit.init()."))
    return group


def _number(call: Call, name: str, value: object) -> int:
    number, least = integer(value), 1 if name == "world_size" else 0
    if number is not None and number >= least:
        return number
    raise LaunchError(told(f"{call}: {name} is {value!r}.", fix=f"an int of {least} or more."))


def _who(call: Call, arguments: Mapping[str, int], asked: Mapping[str, Any]) -> World:
    """Who this process is: what the arguments say, else the launcher."""
    rank, world_size = arguments.get("rank"), arguments.get("world_size")
    if rank is not None and world_size is not None and rank >= world_size:
        fix = f"a rank from 0 to {world_size - 1}."
        raise LaunchError(told(f"{call}: there is no rank {rank} of {world_size}.", fix=fix))
    try:
        world = identify(os.environ, arguments)
    except LaunchError as error:
        raise LaunchError(f"{call}: {error}", variables=error.variables) from None
    if "init_method" not in asked:
        return world
    if not isinstance(asked["init_method"], str):
        fix = 'init_method="tcp://host:29500", or another URL.'
        text = told(f"{call}: init_method is {asked['init_method']!r}.", fix=fix)
        raise LaunchError(text)
    sources = {**world.sources, "init_method": "argument"}
    return replace(world, init_method=asked["init_method"], sources=sources)


def _join(
    call: Call,
    who: World,
    asked: Mapping[str, Any],
    timeout: timedelta | None,
    arrival_timeout: timedelta | None,
) -> Joined:
    """Meet the other ranks, then make the default group with them."""
    began, wait = time.monotonic(), arrival_timeout or timeout or ARRIVAL
    world = _equipped(call, who, asked)
    store, generation = _meet(call, world, wait, began)
    dist.init_process_group(
        world.backend,
        store=dist.PrefixStore("default_group", store),
        rank=world.rank,
        world_size=world.world_size,
        timeout=timeout,
    )
    return Joined(world, store, timeout, wait, generation)


def _meet(call: Call, world: World, wait: timedelta, began: float) -> tuple[dist.Store, int]:
    """All ranks at one store, under a prefix of this generation.

    Keys of an earlier group on the same store must not be met again: each rank counts its own
    joins, so all ranks that join together agree on the generation without a word. A rank that
    still found the store of an earlier group, which went with it, comes again.
    """
    while True:
        try:
            base = open_store(call, world, wait, since=began)
            generation = base.add(f"meshkit/generation/{world.rank}", 1)
            store = dist.PrefixStore(f"meshkit/{generation}", base)
            arrive(call, store, world, wait, since=began)
            return store, generation
        except (RankTimeoutError, dist.DistNetworkError) as error:
            gone = isinstance(error.__cause__ or error, dist.DistNetworkError)
            if not gone or time.monotonic() + PROBE > began + wait.total_seconds():
                raise
            time.sleep(PROBE)


def _equipped(call: Call, who: World, asked: Mapping[str, Any]) -> World:
    """The world with this process' device and backend."""
    device = choose_device(call, asked.get("device"), who.local_rank)
    backend = choose_backend(call, asked.get("backend"), device)
    chosen = {n: "argument" if n in asked else "torch's default" for n in ("device", "backend")}
    return replace(who, device=device, backend=backend, sources={**who.sources, **chosen})


def _kept(
    call: Call,
    record: Joined,
    asked: Mapping[str, Any],
    timeout: timedelta | None,
    arrival_timeout: timedelta | None,
) -> Joined:
    """The record of a group that exists, unless the call says something else about it."""
    now = {name: getattr(record.world, name) for name in (*WHO, "backend", "device")}
    differs = [n for n in now if n in asked and not _same(call, now[n], asked[n])]
    foreign = record.generation == 0  # its times may still be said: ours are not in use yet
    if timeout not in (None, record.timeout) and not foreign:
        differs.append("timeout")
    if arrival_timeout not in (None, record.arrival_timeout) and not foreign:
        differs.append("arrival_timeout")
    if not differs:
        wait = arrival_timeout or timeout or record.arrival_timeout
        return replace(record, timeout=timeout or record.timeout, arrival_timeout=wait)
    said = ", ".join(f"{n}={getattr(record.world, n, getattr(record, n, None))}" for n in differs)
    text = told(
        f"{call}: the default process group already exists, with {said}.",
        fix="the first init() of the program decides; or meshkit.shutdown() before this one.",
    )
    raise LaunchError(text)


def _same(call: Call, now: object, asked: str | torch.device) -> bool:
    """Whether an argument says what is so: ``"cuda"`` is true of ``cuda:3``."""
    if isinstance(now, torch.device):
        device = read_device(call, asked)
        return device.type == now.type and device.index in (None, now.index)
    return str(now).lower() == str(asked).lower()
