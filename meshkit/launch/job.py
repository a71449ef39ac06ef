"""Join the job and leave it: ``init`` and ``shutdown``."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.utils.data import get_worker_info

from ..core.call import caller_level, drop_none, quotes_call
from ..core.errors import LaunchError, RankTimeoutError, format_error
from ..core.version import VERSION
from .agreement.consensus import commit
from .agreement.proposal import Proposal
from .current_job import Job, current_job, set_current_job
from .default_group import create_default_group
from .detect import check_arguments, detect_world, use_master_variables
from .device import backend_for, can_share_device, device_uuid, select_backend, select_device
from .launchers import BY_MPI, job_hosts, job_name
from .log import Startup, log_job, report_uncaught_error, show_log
from .own_process import check_own_process
from .rendezvous.rendezvous import AdmittedError, announce_init_failure, rendezvous, with_address
from .seeds import Seed, compare_seed, draw_seed, parse_seed, seed_all
from .store.client import address
from .store.deadline import (
    ARRIVAL,
    Deadline,
    DeadlineExceededError,
    Time,
    format_timeout,
    parse_timeout,
    run_with_deadline,
    wait_for_abandoned,
)
from .store.file_store import check_file
from .store.keys import LEFT
from .torch_internals import clear_dtensor_cache, connects_at_creation, forget_groups
from .world import EXPORTED, MAX_WORLD_SIZE, World, complete_environment, restore_environment

if TYPE_CHECKING:
    from .agreement.claims import Claim, Claimant

DISAGREEMENT = "ranks disagree about init(); no process group was created."
# The world of the thread that joins, one thread at a time. dict.setdefault is atomic.
JOINING: dict[str, World] = {}
REPORT_TIME = 5.0  # seconds to reach the store with a report for the other ranks
FAILURE = "a rank could not create the default process group; no rank has one."


@quotes_call("init")
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
    verbose: bool = False,
) -> World:
    """Join the job: set up the default process group, the device and, on request, the seeds.

    Collective: every rank calls it once. A second call returns the same :class:`World`. A default
    group that someone else created is used as it is. Arguments override the launcher. With nccl the
    group is bound to its device at once, so that other groups are split from it. On failure no
    group is left behind.

    RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set in the
    environment if they are missing and known, since other libraries read them. The bridge of an
    accelerator is imported afterwards. No variable is overwritten, and ``shutdown`` removes those
    that were set.

    A process started anew with the number of a rank that a running job has lost waits here, for
    ``arrival_timeout``, until :meth:`meshkit.Mesh.admit` of that job admits it. Its rank is then
    another one. Build the mesh at once, since the other ranks wait for it.

    Args:
        backend: the backend of collectives; None is torch's default for the device. Each kind of
            device may have its own: ``"cpu:gloo,cuda:nccl"``.
        device: the device of this process; None is its accelerator, or else the cpu.
        timeout: how long a collective may take, in seconds or as a timedelta; None is the
            backend's default (gloo 30 min, nccl 10 min). It also sets ``arrival_timeout``.
        arrival_timeout: how long ranks wait for each other here and in ``build_mesh``; None is
            ``timeout`` if that is given, else 300 s.
        seed: the seed of python, numpy and torch on all ranks, accelerators included. For
            ``"shared"`` rank 0 draws a number. None seeds nothing.
        init_method: the store: ``"tcp://host:port"``, ``"file:///shared/path"`` or ``"env://"``;
            None takes the launcher's. Ignored if the group exists already.
        rank: the rank of this process; None takes the launcher's.
        world_size: the number of ranks of the job; None takes the launcher's.
        local_rank: the index of this process on its node; None takes the launcher's.
        verbose: show the lines that rank 0 logs to ``logging.getLogger("meshkit")`` when it joins
            a job and when it builds a mesh; MESHKIT_LOG=info shows them too.

    Returns:
        The world of this process.

    Raises:
        LaunchError: if the rank, the store or the device of this process is unclear, or if two
            ranks use one device and the backend does not allow it. Also if an earlier ``init`` had
            other arguments, in a worker of a DataLoader, and while another thread joins.
        DisagreementError: if ranks have different seeds, world sizes, backends, timeouts, or
            versions of meshkit or torch.
        RankTimeoutError: if ranks did not arrive in time, with their numbers.
        SpecError: if a timeout or the seed is invalid, or if ``init`` does not have an option.

    Warns:
        RuntimeWarning: if this is one process in an allocation of several tasks, and no srun has
            started it.

    Example:
        ``device = meshkit.init(seed=0, timeout=600).device``
    """
    parsed_seed = parse_seed(seed)
    limit = parse_timeout("timeout", timeout)
    wait = parse_timeout("arrival_timeout", arrival_timeout)
    ranks = check_arguments(drop_none(rank=rank, world_size=world_size, local_rank=local_rank))
    if verbose:
        show_log()
    job = current_job()
    if job is None:
        world = identify(ranks, init_method)
        return join(world, backend, device, limit, wait, parsed_seed).world
    from .repeated_init import check_same_job

    arguments = drop_none(**ranks, backend=backend, device=device)
    job = check_same_job(job, arguments, limit, wait)
    set_current_job(job)
    if parsed_seed is not None:
        _reseed(job, parsed_seed)
    return job.world


def shutdown() -> None:
    """Leave the job: destroy the default group and every group made on it.

    Local, and harmless to repeat. A default group that someone else created is left alone. The
    variables that :func:`init` added to the environment are removed. In a forked process it does
    nothing.

    Example:
        ``mesh.close(); meshkit.shutdown()``
    """
    job = current_job()
    if job is not None and job.generation and job.pid == os.getpid():
        _post_end(job)
        dist.destroy_process_group()
        restore_environment(job.completed, os.environ)
        clear_dtensor_cache()


def _post_end(job: Job) -> None:
    """Post that this rank leaves the job, for ranks that wait for it in a guard.

    Cost: one store operation, which does not wait for an answer.
    """
    store, rank = job.store, job.world.rank
    if store is not None and job.world.world_size > 1:
        with suppress(RuntimeError, RankTimeoutError, DeadlineExceededError):  # the store is gone
            check_file(store)
            run_with_deadline(1, lambda: store.set(LEFT.format(rank), ""))


def identify(
    arguments: Mapping[str, int] | None = None, init_method: object | None = None
) -> World:
    """Return the world of this process before it joins the job. Local."""
    report_uncaught_error()
    world = detect_world(os.environ, arguments or {})
    if world.world_size > MAX_WORLD_SIZE:
        raise LaunchError(
            f"WORLD_SIZE is {world.world_size}, from {world.sources['world_size']} "
            f"({world.launcher}).",
            fix=f"at most {MAX_WORLD_SIZE} ranks.",
        )
    if get_worker_info() is not None:
        check_own_process(world.rank)
    if world.world_size == 1 and world.allocation:
        text = format_error(
            f"this is a single process in an allocation of several tasks: {world.allocation}.",
            "No srun has started it: SLURM_STEP_ID of a step is missing.",
            fix="srun python ..., or init(rank=0, world_size=1) to run one process.",
        )
        warnings.warn(text, RuntimeWarning, stacklevel=caller_level())
    if init_method is None:
        return world
    if not isinstance(init_method, str):
        fix = 'init_method="tcp://host:29500", or another URL.'
        raise LaunchError(f"init_method is {init_method!r}.", fix=fix)
    sources = {**world.sources, "init_method": "argument"}
    world = replace(world, init_method=init_method, sources=sources)
    return use_master_variables(world, os.environ) if init_method == "env://" else world


def join(
    world: World,
    backend: str | None = None,
    device: str | torch.device | None = None,
    timeout: timedelta | None = None,
    arrival_timeout: timedelta | None = None,
    seed: Seed = None,
) -> Job:
    """Join the other ranks at the store, and create the default group with them. Collective."""
    wait = arrival_timeout or timeout or ARRIVAL
    began, deadline = time.monotonic(), Deadline.after(wait)
    completed: dict[str, str] = {}
    _holder = None  # of the port of the store, until this rank has opened it
    if (other := JOINING.setdefault("world", world)) is not world:
        raise _second_thread_error(world, other)
    try:
        wait_for_abandoned(deadline)
        if dist.get_pg_count():  # an error ended torch while it created or destroyed a group
            forget_groups()
        if world.launcher in BY_MPI:
            world, _holder = with_address(world, deadline)
        if not {*EXPORTED.values()} <= os.environ.keys():
            completed = complete_environment(world, *address(world), os.environ)
        world = _select_device(world, backend, device)  # its bridge may read these variables
        job = replace(_create_job(world, timeout, wait, seed, deadline), completed=completed)
        set_current_job(job)
    except BaseException:
        if dist.is_initialized():  # an error came just after this rank had joined
            dist.destroy_process_group()
        restore_environment(completed, os.environ)
        raise
    finally:
        JOINING.clear()
    if world.rank == 0:
        log_job(job.world, time.monotonic() - began)
    return job


def _second_thread_error(world: World, other: World) -> LaunchError:
    """Return the error of a thread that may not join, and report it to the other ranks."""
    from .joining import second_thread_error

    error = second_thread_error(world, other)
    if other.rank != world.rank:  # the other thread waits for this rank
        proposal = Proposal("init", {}, DISAGREEMENT)
        announce_init_failure(proposal, world, Deadline.after(REPORT_TIME), error)
    return error


def _create_job(
    world: World, timeout: timedelta | None, wait: timedelta, seed: Seed, deadline: Deadline
) -> Job:
    """Create the default group with the other ranks. Collective."""
    proposal = _init_proposal(world, timeout, wait, seed)
    phases: dict[str, float] = {}
    try:
        participants, generation = rendezvous(proposal, world, deadline, phases)
    except AdmittedError as admitted:
        from .recovery.newcomer import join_running_job

        return replace(join_running_job(admitted, world, timeout, wait), leave=shutdown)
    world, store = participants.world, participants.store
    number = None if seed is None else draw_seed(participants, seed, 0, Deadline.after(wait))
    group_store = dist.PrefixStore("default_group", store)
    began = time.monotonic()
    connections = commit(
        Proposal("init", {}, FAILURE, stage="the end of "),
        participants,
        wait,
        lambda connect: create_default_group(world, group_store, timeout, connect),
        lambda _: dist.destroy_process_group(),
        connects=connects_at_creation(str(world.backend)),
    )
    phases["default group"] = time.monotonic() - began
    job = Job(
        world,
        store,
        timeout,
        wait,
        generation,
        timeout,
        number,
        shutdown,
        participants.counter,
        connections=connections,
        startup=Startup(phases),
    )
    if number is not None:
        seed_all(number)
    return job


def _init_proposal(
    world: World, timeout: timedelta | None, wait: timedelta, seed: Seed
) -> Proposal:
    """Return everything that must be equal on all ranks when they join."""
    fields = {
        "job": job_name(os.environ, world.launcher) or "unknown",
        "world_size": str(world.world_size),
        "backend": str(world.backend),
        "timeout": format_timeout(timeout),
        "arrival_timeout": format_timeout(wait),
        "seed": repr(seed),
        "meshkit": VERSION,
        "torch": torch.__version__,
    }
    hosts = partial(job_hosts, os.environ, world.launcher)
    return Proposal("init", fields, DISAGREEMENT, device_claim(world), expected_hosts=hosts)


def device_claim(world: World) -> tuple[Claim, ...]:
    """Return the claim on this rank's device, or none if the backend lets ranks share it."""
    device = world.device or torch.device("cpu")
    kind = backend_for(str(world.backend), device.type)
    uuid = device_uuid(device) if device.type != "cpu" else None
    if uuid is None or can_share_device(device.type, kind):
        return ()
    from .agreement.claims import Claim

    def conflict(first: Claimant, second: Claimant) -> LaunchError:
        return LaunchError(
            f"ranks {first.rank} and {second.rank} use one device, and {kind} needs one "
            "device per rank.",
            f"Both compute on {device.type} {uuid}: {first}, {second}.",
            fix="start one rank per device, or give each its own: device='cuda:<local rank>', or "
            "CUDA_VISIBLE_DEVICES; or init(backend='gloo').",
        )

    return (Claim(f"device/{uuid}", str(world.rank), conflict),)


def _reseed(job: Job, seed: int | str) -> None:
    """Seed all generators of a rank that has joined already. ``"shared"`` waits for rank 0."""
    participants = job.participants()
    call_id = compare_seed(participants, seed)
    number = draw_seed(participants, seed, call_id, Deadline.after(job.arrival_timeout))
    set_current_job(replace(job, seed=number))
    seed_all(number)


def _select_device(world: World, backend: str | None, device: str | torch.device | None) -> World:
    """Return the world with device and backend."""
    selected = select_device(device, world.local_rank)
    sources = {
        **world.sources,
        "device": "torch's default" if device is None else "argument",
        "backend": "torch's default" if backend is None else "argument",
    }
    name = select_backend(backend, selected)
    return replace(world, device=selected, backend=name, sources=sources)
