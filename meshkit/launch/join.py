"""Join the other ranks at the store of the job, draw the seed, and leave the job."""

from __future__ import annotations

import json
import os
import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import get_worker_info

from ..call import caller_level, parse_integer
from ..errors import VERSION, LaunchError, MeshkitError, RankTimeoutError, SpecError, format_error
from ..text import count_noun
from .agreement import Agreement, broadcast
from .command import check_pod, propose_torchrun, warning_of
from .creation import create_on_all
from .default_group import (
    READ_AT_ONCE,
    create_default_group,
    describe_added,
    gloo_reaches_others,
    guards_can_report,
)
from .detect import check_reach, check_url, detect_world, use_master_variables
from .device import (
    accelerator_row,
    backend_for,
    can_share_device,
    device_uuid,
    select_backend,
    select_device,
    visible_devices,
)
from .generation import (
    DISAGREEMENT,
    END,
    PAUSE,
    Lease,
    check_attempt,
    enter_attempt,
    generation_part,
    init_round,
    is_over,
    last_seen,
)
from .job import LEFT, Job, Membership, current_job, set_current_job
from .judges import Json, Process, all_same
from .launchers import BY_MPI, job_hosts, job_name
from .log import ERROR_FILE, Startup, log_line, report_uncaught_error
from .mpi import store_of_one_node, with_address
from .newcomer import join_running_job, read_invitation, running_job_evidence
from .nodes import FROM_MACHINES, find_node
from .process import check_own_process
from .round import Claimant, Clash, Round
from .store import Store, address, lost_error
from .times import ARRIVAL, TIMES, Deadline, format_timeout, wait_for_abandoned
from .torch_groups import forget_groups, waits_for_peers
from .torch_meshes import clear_dtensor_cache
from .world import EXPORTED, World, complete_environment, restore_environment

Seed = int | str | None
SHARED = "shared"
DRAWN = "drawn"  # in the store of a start, or of a round: the seed that rank 0 has drawn
BUILT = "torch"  # in a generation: the first rank that came, and its build of torch
FAILURE = "a rank could not create the default process group; no rank has one."
REPORT_TIME = 5.0  # seconds to reach the store with a report for the other ranks

# "world": that of the thread that joins, one at a time; dict.setdefault is atomic. "store": that of
# a failed call until this process joins, as rank 0 may host it, and other ranks may be behind.
_JOINING: dict[str, Any] = {}


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
        store = job.store
        if store is not None and job.world.world_size > 1:  # for ranks that wait in a guard
            store.try_within(1.0, partial(store.set, LEFT.format(job.world.rank), ""))
        dist.destroy_process_group()
        restore_environment(job.completed, os.environ)
        clear_dtensor_cache()


def world_to_join() -> World:
    """Return the world of the current job; without a job, that of this process. Local."""
    job = current_job()
    if job is None:
        return identify()
    return job.world if job.arrival is None else job.arrival.world


def identify(
    arguments: Mapping[str, int] | None = None, init_method: object | None = None
) -> World:
    """Return the world of this process before it joins the job. Local."""
    if ERROR_FILE in os.environ:
        report_uncaught_error()
    check_attempt(os.environ)
    world = detect_world(os.environ, arguments or {})
    if get_worker_info() is not None:
        check_own_process(world.rank)
    if text := warning_of(world, os.environ):
        warnings.warn(text, RuntimeWarning, stacklevel=caller_level())
    if init_method is None:
        return world
    url, sources = check_url(init_method), {**world.sources, "init_method": "argument"}
    world = replace(world, init_method=url, sources=sources)
    check_reach(world, address(world)[0], "init_method")
    return use_master_variables(world, os.environ) if init_method == "env://" else world


def join(
    world: World,
    backend: str | None = None,
    device: str | torch.device | None = None,
    timeout: timedelta | None = None,
    arrival_timeout: timedelta | None = None,
    seed: Seed = None,
    *,
    bind: bool = True,
) -> Job:
    """Join the other ranks at the store, and create the default group with them. Collective."""
    wait = arrival_timeout or timeout or ARRIVAL
    began, deadline = time.monotonic(), Deadline.after(wait)
    completed: dict[str, str] = {}
    _holder = None  # of the port of the store, until this rank has opened it
    if (other := _JOINING.setdefault("world", world)) is not world:
        error = LaunchError(
            f"another thread of this process is joining as rank {other.rank} of "
            f"{other.world_size}; this one asks for rank {world.rank}.",
            "A process is one rank: torch has one default process group in each process.",
            fix=f"start a process for each rank: meshkit.spawn(fn, {world.world_size}), or "
            f"torchrun --nproc-per-node {world.world_size}; in one rank, call init once.",
        )
        if other.rank != world.rank:  # the other thread waits for this rank
            announce_init_failure(world, error, DISAGREEMENT)
        raise error
    try:
        with announcing(lambda: world):
            check_pod(world, os.environ)
        wait_for_abandoned(deadline)
        if dist.get_pg_count():  # an error ended torch while it created or destroyed a group
            forget_groups()
        if world.launcher in BY_MPI:
            world, _holder = with_address(world, deadline)
        if not {*EXPORTED.values()} <= os.environ.keys():
            completed |= complete_environment(world, *address(world), os.environ)
        with announcing(lambda: world):
            world = _select_device(world, backend, device)  # its bridge may read these variables
        job = _create_job(world, timeout, wait, seed, bind, deadline, completed)
        job = replace(job, completed=completed, leave=shutdown)
        set_current_job(job)
        _JOINING.pop("store", None)
    except BaseException:
        if dist.is_initialized():  # an error came just after this rank had joined
            dist.destroy_process_group()
        restore_environment(completed, os.environ)
        raise
    finally:
        _JOINING.pop("world", None)
    if world.rank == 0:
        facts = [getattr(job.world, n) for n in ("world_size", "launcher", "backend", "device")]
        text = "joined a job: world_size %d, launcher %s, backend %s, device %s, %.2f s"
        log_line(text, *facts, time.monotonic() - began)
        for line in describe_added(completed):
            log_line("%s", line)
    return job


@contextmanager
def announcing(find_world: Callable[[], World]) -> Iterator[None]:
    """Announce an error to the other ranks, which would wait for this one."""
    try:
        yield
    except MeshkitError as error:
        announce_init_failure(find_world(), error, DISAGREEMENT)
        raise


def announce_init_failure(world: World, error: BaseException, summary: str) -> None:
    """Report to ranks that wait in ``init`` that the call of this rank failed, within 5 s."""
    if world.launcher in BY_MPI:
        world = store_of_one_node(world) or world
    if world.world_size == 1 or (world.init_method is None and None in address(world)):
        return
    try:
        base, lease = enter_attempt(world, Deadline.after(REPORT_TIME), fails=True)
    except (MeshkitError, RuntimeError):  # the caller raises ``error`` itself
        return
    _JOINING["store"] = base
    init_round(base, lease.generation, range(world.world_size), summary=summary).fail(error)


def _create_job(
    world: World,
    timeout: timedelta | None,
    wait: timedelta,
    seed: Seed,
    bind: bool,
    deadline: Deadline,
    completed: dict[str, str],
) -> Job:
    """Create the default group with the other ranks. Collective."""
    request = {
        "call": "init",
        "job": job_name(os.environ, world.launcher) or "unknown",
        "world_size": str(world.world_size),
        "backend": str(world.backend),
        "timeout": format_timeout(timeout),
        "arrival_timeout": format_timeout(wait),
        "seed": repr(seed),
        "bind": str(bind),
        "meshkit": VERSION,
        "torch": torch.__version__.partition("+")[0],
    }
    phases: dict[str, float] = {}
    base, lease, round = _rendezvous(world, deadline, request, phases)
    store, ranks = generation_part(base, lease.generation), range(world.world_size)
    if round is None:
        invitation = cast("tuple[int, int]", read_invitation(base, lease.generation))
        prepare = partial(_prepare, completed=completed)
        job = join_running_job(base, invitation, timeout, wait, bind, prepare)
        names = completed.keys() & {"RANK", "WORLD_SIZE"}
        completed |= {name: os.environ[name] for name in names}
        if job.seed is not None:
            seed_all(job.seed)
        return job
    number = None
    if seed is not None:
        number = draw_seed(seed, partial(broadcast, store, Deadline.after(wait)))
    began, look = time.monotonic(), partial(last_seen, base, lease.generation)

    @cache
    def processes() -> dict[int, Process]:
        return {rank: arrival.process for rank, arrival in round.arrivals().arrived.items()}

    end = Agreement(
        *(store, END, world.rank, ranks),
        call="init",
        limit=wait,
        summary=FAILURE,
        look=look,
        processes=processes,
    )
    with end:  # python -W error raises the warning: the other ranks must not wait for this one
        warn_of_other_build(store, deadline)
        world = _prepare(find_node(world, store, round.arrivals, deadline), completed)
    group_store = create_on_all(
        end,
        wait,
        partial(create_default_group, world, store, timeout, bind),
        lambda _: dist.destroy_process_group(),
        connects=waits_for_peers(str(world.backend)),
    )
    phases["default group"] = time.monotonic() - began
    if number is not None:
        seed_all(number)
    return Job(
        *(world, store, timeout, wait, Membership(0, ranks, world.world_size), lease.generation),
        base=store,
        attempt=base,
        joined=round.arrivals,
        default_timeout=timeout,
        bind=bind,
        seed=number,
        group_store=group_store,
        startup=Startup(phases),
    )


def _rendezvous(
    world: World, deadline: Deadline, request: Mapping[str, str], phases: dict[str, float]
) -> tuple[Store, Lease, Round | None]:
    """Bring all ranks to one store, and return when their requests are equal. Collective.

    A rank retries if it has reached the store of an earlier group, or of a start of the job that
    was given up. The round is None if a running job that has lost this rank admits it.
    """
    hosts = partial(job_hosts, os.environ, world.launcher)
    judge = all_same(DISAGREEMENT, seconds=deadline.timeout.total_seconds(), hosts=hosts)
    while True:
        began = time.monotonic()
        try:
            base, lease = enter_attempt(world, deadline)
        except dist.DistNetworkError as error:
            if not deadline.sleep(PAUSE):
                raise lost_error(world) from error
            continue
        entered = time.monotonic()
        over, is_gone = False, False
        try:
            with init_round(base, lease.generation, range(world.world_size)) as round:
                claims = device_claim(world)
                round.arrive(request, same=True, unique=claims, deadline=deadline)
                over = round.decide(judge, deadline).check(world.rank).is_replaced
            if not over:
                phases.update(store=entered - began, arrival=time.monotonic() - entered)
                return base, lease, round
            failure = RankTimeoutError("this start of the job is over; another one has begun.")
        except RankTimeoutError as error:
            failure, is_gone = error, isinstance(error.__cause__, dist.DistNetworkError)
        over = over or (not is_gone and is_over(base, lease.generation))
        if over and read_invitation(base, lease.generation):
            return base, lease, None
        if not (is_gone or over) or not deadline.sleep(PAUSE):
            lines = running_job_evidence(base, lease.generation)
            failure = propose_torchrun(failure.but(evidence=(*failure.evidence, *lines)), world)
            try:
                raise failure
            finally:
                del failure  # a frame that holds its own error would keep what its callers hold


def warn_of_other_build(store: Store, deadline: Deadline) -> None:
    """Warn if another rank has this version of torch in another build. Cost: one operation."""
    rank, own = store.world.rank, torch.__version__
    claim = json.dumps([rank, own])
    limit = deadline.left + TIMES.store
    first, build = json.loads(store.within(limit, lambda: store.claim(BUILT, claim)))
    if build != own:
        text = format_error(
            f"rank {rank} has torch {own}, and rank {int(first)} has torch {build}.",
            "Their versions are equal, but their libraries of CUDA or NCCL may differ.",
            fix="install one build of torch on all hosts.",
        )
        warnings.warn(text, RuntimeWarning, stacklevel=caller_level())


def device_claim(world: World) -> dict[str, Clash]:
    """Return the claim on this rank's device; none if the backend lets ranks share it.

    NCCL refuses two ranks on one device of one host, so the claim contains the host if it is named.
    """
    device = world.device or torch.device("cpu")
    kind = backend_for(str(world.backend), device.type)
    uuid = device_uuid(device) if device.index is not None else None  # the cpu has no index
    if uuid is None or can_share_device(device.type, kind):
        return {}

    def clash(first: Claimant, second: Claimant) -> LaunchError:
        return LaunchError(
            f"ranks {first.rank} and {second.rank} use one device, and {kind} needs one "
            "device per rank.",
            f"Both compute on {device.type} {uuid}: {first}, {second}.",
            fix="start one rank per device, or give each its own: device='cuda:<local rank>', or "
            "CUDA_VISIBLE_DEVICES; or init(backend='gloo').",
        )

    host = os.environ.get(accelerator_row(device.type).host)
    return {f"device/{uuid}/{host}" if host else f"device/{uuid}": clash}


def _prepare(world: World, completed: dict[str, str]) -> World:
    """Return the world with the device of its local rank, and complete the environment. Local."""
    device = world.device
    if device is not None and device.type != "cpu" and device.index is None:
        device = select_device(device, world.local_rank)
        if device.index is None:
            count = count_noun(visible_devices(device), f"{device.type} device")
            raise LaunchError(
                f"the local rank of rank {world.rank} is unknown, and so is its device.",
                f"This process sees {count}.",
                fix=f"export LOCAL_RANK=<its index on its node>, or device='{device.type}:0'.",
            )
        world = replace(world, device=device)
    if FROM_MACHINES in world.sources.values():
        restore_environment(completed, os.environ)
        completed.clear()
        completed |= complete_environment(world, *address(world), os.environ)
    own = guards_can_report(world, os.environ) | gloo_reaches_others(world, os.environ)
    if world.backend == "gloo" and READ_AT_ONCE not in os.environ:
        own[READ_AT_ONCE] = "1"
    os.environ.update(own)
    completed |= own
    return world


def _select_device(world: World, backend: str | None, device: str | torch.device | None) -> World:
    """Return the world with device and backend."""
    selected = select_device(device, world.local_rank)
    given = {"device": device, "backend": backend}
    origin = {k: "torch's default" if v is None else "argument" for k, v in given.items()}
    name = select_backend(backend, selected)
    return replace(world, device=selected, backend=name, sources={**world.sources, **origin})


def parse_seed(seed: object) -> Seed:
    """Return the seed as a plain int or ``"shared"``; None stays None."""
    if seed is None or (isinstance(seed, str) and seed == SHARED):
        return seed
    number = parse_integer(seed)
    if number is None or not 0 <= number < 2**32:
        raise SpecError(
            f"seed is {seed!r}.",
            "Python, numpy and torch all accept ints from 0 to 4294967295.",
            fix="seed=0, or seed='shared', which rank 0 draws for all.",
        )
    return number


def draw_seed(seed: int | str, broadcast: Callable[..., Json]) -> int:
    """Return the seed as a number; rank 0 draws ``"shared"``, and the other ranks wait for it."""
    if isinstance(seed, int):
        return seed
    drawn = random.SystemRandom().randrange(2**32)
    what = "the seed that rank 0 draws"
    fix = "call init(seed='shared') on every rank, rank 0 included; see rank 0's log."
    return int(broadcast(DRAWN, drawn, what=what, fix=fix))


def seed_all(seed: int) -> None:
    """Seed the global generators of python, numpy and torch, accelerators included."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
