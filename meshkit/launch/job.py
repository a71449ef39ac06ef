"""init and shutdown: join the job's base process group, and leave it."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ..core.call import drop_none, public
from ..core.errors import LaunchError, format_error
from ..core.version import VERSION
from .agreement.commit import commit_on_all
from .agreement.consensus import Participants, Proposal
from .default_group import Job, current_job, default_group, set_current_job
from .device.device import parse_device, select_backend, select_device
from .device_claim import device_claim
from .launchers.detect import (
    ARGUMENT_FIELDS,
    allocation_without_srun,
    check_arguments,
    detect_world,
    use_master_variables,
)
from .launchers.table import job_hosts, job_name
from .launchers.world import World
from .rendezvous.rendezvous import rendezvous
from .seeds import Seed, check_alike, check_seed, drawn, seed_all, seed_claim
from .timeouts import ARRIVAL, Time, format_timeout, parse_timeout
from .torch_internals import (
    clear_dtensor_cache,
    connects_at_creation,
    has_connect_timeout,
    set_timeout,
)

ABOUT = "ranks disagree about init(); no process group was created."
UNMADE = "a rank could not make the default process group; all have given it up."


@public("init")
def init(
    *,
    backend: str | None = None,
    device: str | torch.device | None = None,
    timeout: Time | None = None,
    arrival_timeout: Time | None = None,
    seed: int | str | None = None,
    init_method: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
) -> World:
    """Join the job: set up the default process group, the device and, if asked, the seeds.

    Collective: every rank calls it once; a second call returns the same :class:`World`. A default
    group that someone else initialised is used as it is. Explicit arguments win over what the
    launcher set. Where the backend is nccl the group is bound to its device at once, so that
    groups made on it are split from it. On failure no group is left behind.

    Args:
        backend: what collectives run on; None takes torch's own for the device. One for each
            kind of device works too: ``"cpu:gloo,cuda:nccl"``.
        device: where this process computes; None takes its accelerator, or the cpu.
        timeout: how long a collective may take, in seconds or as a timedelta; None keeps the
            backend's default (gloo 30 min, nccl 10 min). It sets ``arrival_timeout`` too.
        arrival_timeout: how long ranks wait for each other here and in ``build_mesh``; None
            means ``timeout`` where that is given, else 300 s.
        seed: seeds python, numpy and torch alike on all ranks, accelerators included;
            ``"shared"`` is a number that rank 0 draws for all; None leaves them alone.
        init_method: where ranks meet: ``"tcp://host:port"``, ``"file:///shared/path"`` or
            ``"env://"``; None asks the launcher. Ignored where the group exists already.
        rank: this process' rank; None asks the launcher.
        world_size: how many ranks the job has; None asks the launcher.
        local_rank: this process' index on its node; None asks the launcher.

    Raises:
        LaunchError: where it is not clear who this process is, where ranks meet, or which device
            it has; where two ranks are on one device and the backend does not allow it; or where
            an earlier ``init`` said something else.
        DisagreementError: where ranks gave different seeds, world sizes, backends or times, or have
            different versions of meshkit or torch.
        RankTimeoutError: where ranks did not arrive in time, with their numbers.
        SpecError: for a time or a seed that cannot be.

    Warns:
        RuntimeWarning: where this is one process in an allocation of several tasks, which no srun
            has started.
    """
    # in the order of the signature, so that errors quote the call as it was written
    asked = drop_none(
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
    return init_job(asked).world


def init_job(asked: Mapping[str, Any]) -> Job:
    """:func:`init`, for a call of any name with the arguments that were given. Collective."""
    seed = check_seed(asked.get("seed"))
    limit = parse_timeout("timeout", asked.get("timeout"))
    wait = parse_timeout("arrival_timeout", asked.get("arrival_timeout"))
    arguments = check_arguments(asked)
    record = current_job()
    if record is None:
        return _join(_who(arguments, asked), asked, seed, limit, wait)
    if asked.keys() - {"seed", "init_method"}:
        record = _kept(record, asked, limit, wait)
    set_current_job(record)
    if seed is not None:
        number = check_alike(record.store, record.world, seed)
        alike = drawn(record.store, record.world, seed, number, record.arrival_timeout)
        record = replace(record, seed=alike)
        set_current_job(record)
        seed_all(alike)
    return record


def shutdown() -> None:
    """Leave the job: destroy the default group and every group made on it.

    Local, and harmless to repeat. A default group that someone else initialised is left alone.
    """
    record = current_job()
    if record is not None and record.generation:
        dist.destroy_process_group()
        clear_dtensor_cache()


def current_world() -> World:
    """Who this process is, without joining: from the default group, else from the launcher."""
    record = current_job()
    return record.world if record is not None else detect_world(os.environ, {})


def _who(arguments: Mapping[str, int], asked: Mapping[str, Any]) -> World:
    """Who this process is: what the arguments say, else the launcher."""
    try:
        world = detect_world(os.environ, arguments)
    except LaunchError:
        raise
    if tasks := allocation_without_srun(world):
        text = format_error(
            f"this is one process by itself, in an allocation of several: {tasks}.",
            "No srun has started it: there is no SLURM_STEP_ID of a step.",
            fix="srun python ..., or init(rank=0, world_size=1) where one process is meant.",
        )
        warnings.warn(text, RuntimeWarning, stacklevel=4)
    if "init_method" not in asked:
        return world
    if not isinstance(asked["init_method"], str):
        fix = 'init_method="tcp://host:29500", or another URL.'
        raise LaunchError(f"init_method is {asked['init_method']!r}.", fix=fix)
    sources = {**world.sources, "init_method": "argument"}
    world = replace(world, init_method=asked["init_method"], sources=sources)
    return use_master_variables(world, os.environ) if world.init_method == "env://" else world


def _join(
    who: World,
    asked: Mapping[str, Any],
    seed: Seed,
    timeout: timedelta | None,
    arrival_timeout: timedelta | None,
) -> Job:
    """Meet the other ranks, then make the default group with them."""
    began, wait = time.monotonic(), arrival_timeout or timeout or ARRIVAL
    world, device = _equipped(who, asked)
    claims = (seed_claim(seed), *device_claim(world.rank, device, str(world.backend)))
    request = {
        "job": job_name(os.environ, world.launcher) or "untold",
        "world_size": str(world.world_size),
        "backend": str(world.backend),
        "timeout": format_timeout(timeout),
        "arrival_timeout": format_timeout(wait),
        "meshkit": VERSION,
        "torch": torch.__version__,
    }
    matter = Proposal(
        "init", request, ABOUT, claims, hosts=partial(job_hosts, os.environ, world.launcher)
    )
    world, store, generation = rendezvous(matter, world, wait, since=began)
    number = None if seed is None else drawn(store, world, seed, 0, wait)
    home = dist.PrefixStore("default_group", store)
    commit_on_all(
        Proposal("init", {"call": "init, made"}, UNMADE, stage="the end of "),
        Participants.of(store, world),
        wait,
        lambda connect: _make_default_group(world, device, home, timeout, connect),
        lambda _: dist.destroy_process_group(),
        waits=connects_at_creation(str(world.backend)),
    )
    record = Job(world, store, timeout, wait, generation, timeout, number, shutdown)
    set_current_job(record)
    if number is not None:
        seed_all(number)
    return record


def _make_default_group(
    world: World,
    device: torch.device,
    store: dist.Store,
    timeout: timedelta | None,
    connect: timedelta,
) -> None:
    """Torch's default group; bound to the device where the backend splits groups from it."""
    waits = has_connect_timeout(str(world.backend))
    who: dict[str, Any] = {"store": store, "rank": world.rank, "world_size": world.world_size}
    if world.backend == "mpi":  # MPI knows itself who is who
        who = {}
    if world.backend == "nccl":  # of several backends, some cannot be split
        who["device_id"] = device
    try:
        dist.init_process_group(world.backend, timeout=connect if waits else timeout, **who)
    except (RuntimeError, ValueError, AssertionError) as error:  # torch's own refusals
        if dist.is_initialized():  # it failed at the very end
            dist.destroy_process_group()
        raise _not_made(world, error) from error
    if (dist.get_rank(), dist.get_world_size()) != (world.rank, world.world_size):
        text = format_error(
            f"the launcher says rank {world.rank} of {world.world_size}, the backend "
            f"{world.backend} says {dist.get_rank()} of {dist.get_world_size()}.",
            fix="start with the mpirun of the MPI that torch was built with.",
        )
        dist.destroy_process_group()
        raise LaunchError(text)
    if waits:
        set_timeout(default_group(), timeout)


def _not_made(world: World, error: Exception) -> LaunchError:
    return LaunchError(
        f"rank {world.rank} of {world.world_size} could not make the default group.",
        f"backend {world.backend}, device {world.device}: {str(error).partition(chr(10))[0]}",
        fix="meshkit doctor, on this host.",
    )


def _equipped(who: World, asked: Mapping[str, Any]) -> tuple[World, torch.device]:
    """The world with this process' device and backend."""
    device = select_device(asked.get("device"), who.local_rank)
    backend = select_backend(asked.get("backend"), device)
    chosen = {n: "argument" if n in asked else "torch's default" for n in ("device", "backend")}
    sources = {**who.sources, **chosen}
    return replace(who, device=device, backend=backend, sources=sources), device


def _kept(
    record: Job,
    asked: Mapping[str, Any],
    timeout: timedelta | None,
    arrival_timeout: timedelta | None,
) -> Job:
    """The record of a group that exists, unless the call says something else about it."""
    now = {name: getattr(record.world, name) for name in (*ARGUMENT_FIELDS, "backend", "device")}
    differs = [n for n in now if n in asked and not _same(now[n], asked[n])]
    foreign = record.generation == 0  # its times may still be said: ours are not in use yet
    if timeout not in (None, record.timeout) and not foreign:
        differs.append("timeout")
    if arrival_timeout not in (None, record.arrival_timeout) and not foreign:
        differs.append("arrival_timeout")
    if not differs:
        wait = arrival_timeout or timeout or record.arrival_timeout
        return replace(record, timeout=timeout or record.timeout, arrival_timeout=wait)
    said = ", ".join(f"{n}={getattr(record.world, n, getattr(record, n, None))}" for n in differs)
    raise LaunchError(
        f"the default process group already exists, with {said}.",
        fix="the first init() of the program decides; or meshkit.shutdown() before this one.",
    )


def _same(now: object, asked: str | torch.device) -> bool:
    """Whether an argument says what is so: ``"cuda"`` is true of ``cuda:3``."""
    if isinstance(now, torch.device):
        device = parse_device(asked)
        return device.type == now.type and device.index in (None, now.index)
    return str(now).lower() == str(asked).lower()
