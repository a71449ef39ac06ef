"""``init``: join the job, or check that the arguments are those of the job that runs."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import cast

import torch

from ..call import drop_none, quotes_call
from ..errors import LaunchError, SpecError
from .detect import check_arguments
from .device import parse_device
from .job import Job, current_job, set_current_job
from .join import announcing, draw_seed, identify, join, parse_seed, seed_all
from .log import show_log
from .times import Time, parse_timeout
from .torch_groups import bound_device
from .world import World

SEEDS_DIFFER = "ranks disagree about the seed; the ranks now have different seeds."


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
    bind: bool = True,
    verbose: bool = False,
) -> World:
    """Join the job: set up the default process group, the device and, on request, the seeds.

    Collective: every rank calls it once. A second call returns the same :class:`World`. A default
    group that someone else created is used as it is. Arguments override the launcher. On failure no
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
        local_rank: the index of this process on its node; None takes the launcher's, or counts the
            ranks of its machine.
        bind: bind the default group to the device of this rank, if its backend is NCCL or one that
            behaves as NCCL. It then connects at once, and torch splits later groups from it, which
            is faster and shows a broken network here. False connects at the first collective. It
            is for a program whose sends over the default group must not wait for collectives, or
            that is faster without. For groups that another library creates, see
            :func:`meshkit.unbound`. ``meshkit doctor`` measures the cost on a GPU.
        verbose: show the lines that rank 0 logs to ``logging.getLogger("meshkit")`` when it joins
            a job and when it builds a mesh; MESHKIT_LOG=info shows them too.

    Raises:
        LaunchError: if the rank, the store or the device of this process is unclear, or if two
            ranks use one device and the backend does not allow it. Also if an earlier ``init`` had
            other arguments, in a worker of a DataLoader, and while another thread joins.
        DisagreementError: if ranks have different seeds, world sizes, backends, bindings, timeouts,
            or versions of meshkit or torch.
        RankTimeoutError: if ranks did not arrive in time, with their numbers.
        SpecError: if a timeout, the seed or ``bind`` is invalid, or if ``init`` does not have an
            option.

    Warns:
        RuntimeWarning: if this is a single process, and a variable says that the job is larger
            (SLURM_NTASKS, NNODES, SM_HOSTS, MASTER_ADDR); or if ranks have builds of one torch
            version for different devices.

    Example:
        ``device = meshkit.init(seed=0, timeout=600).device``
    """
    ranks = check_arguments(drop_none(rank=rank, world_size=world_size, local_rank=local_rank))
    if verbose:
        show_log()
    job = current_job()
    with announcing(lambda: identify(ranks, init_method)) if job is None else nullcontext():
        parsed_seed = parse_seed(seed)
        limit = parse_timeout("timeout", timeout)
        wait = parse_timeout("arrival_timeout", arrival_timeout)
        if not isinstance(bind, bool):
            fix = "bind=False, or leave it out to bind the group."
            raise SpecError(f"bind is {bind!r}.", fix=fix)
    if job is None:
        world = identify(ranks, init_method)
        return join(world, backend, device, limit, wait, parsed_seed, bind=bind).world
    arguments = drop_none(**ranks, backend=backend, device=device, bind=None if bind else False)
    job = _check_same_job(job, arguments, limit, wait)
    set_current_job(job)
    if parsed_seed is not None:
        _reseed(job, parsed_seed)
    return job.world


def _check_same_job(
    job: Job,
    arguments: Mapping[str, object],
    timeout: timedelta | None,
    arrival_timeout: timedelta | None,
) -> Job:
    """Return the job, with the timeouts of this call if someone else created the group."""
    if job.rehearsed is not None:  # backend and device are those of the rehearsal
        arguments = {k: v for k, v in arguments.items() if k not in ("backend", "device")}
    if job.world.local_rank is None and "local_rank" in arguments:
        sources = {**job.world.sources, "local_rank": "argument"}
        world = replace(job.world, local_rank=cast(int, arguments["local_rank"]), sources=sources)
        job = replace(job, world=world)
    current = {name: getattr(job.world, name, None) for name in arguments}
    current["bind"] = bound_device() is not None
    if job.generation:  # else no mesh of meshkit has used its timeouts yet
        times = {"timeout": timeout, "arrival_timeout": arrival_timeout}
        arguments = {**arguments, **drop_none(**times)}
        current |= {"timeout": job.timeout, "arrival_timeout": job.arrival_timeout}
    differing = [n for n, value in arguments.items() if not _is_same(current[n], value)]
    if differing:
        text = ", ".join(f"{name}={current[name]}" for name in differing)
        raise LaunchError(
            f"the default process group already exists, with {text}.",
            fix="the first init() of the program decides; or meshkit.shutdown() before this one.",
        )
    wait = arrival_timeout or timeout or job.arrival_timeout
    return replace(job, timeout=timeout or job.timeout, arrival_timeout=wait)


def _is_same(current: object, argument: object) -> bool:
    """Return whether an argument agrees with a value: ``"cuda"`` agrees with ``cuda:3``."""
    if isinstance(current, torch.device):
        device = parse_device(cast(str | torch.device, argument))
        return device.type == current.type and device.index in (None, current.index)
    return str(current).lower() == str(argument).lower()


def _reseed(job: Job, seed: int | str) -> None:
    """Seed all generators of a rank that has joined, if its seed is that of the first caller."""
    agreement = job.agreement("init", SEEDS_DIFFER, part="seeds")
    if agreement is not None:
        agreement.compare({"seed": repr(seed)})
        number = draw_seed(seed, agreement.broadcast)
    else:
        number = random.SystemRandom().randrange(2**32) if isinstance(seed, str) else seed
    set_current_job(replace(job, seed=number))
    seed_all(number)
