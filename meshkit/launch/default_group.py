"""Create torch's default process group, or read the world and the store of one that exists."""

from __future__ import annotations

import fcntl
import socket
import struct
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..errors import LaunchError
from .creation import Creation, GroupStore
from .detect import detect
from .device import accelerator, backend_for, device_of_backend, nccl_parts
from .endpoint import LOOPBACK
from .launchers import BY_TORCHRUN
from .store import Store, address
from .torch_aborts import default_timeout, set_timeout
from .torch_groups import (
    backend_of,
    bound_device,
    connects_at_creation,
    is_fake_store,
    store_global_ranks,
    store_of,
)
from .world import LOOPBACK_HOST, World

HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"  # torch reads it whenever it creates an nccl group
OLD_HANDLING = HANDLING.removeprefix("TORCH_")  # torch reads it too
KEEP_HANDLING = "MESHKIT_KEEP_ASYNC_ERROR_HANDLING"  # 1: leave it as it is
# with torch's dump a watchdog sleeps after an error, and a mark in the store ends later processes
DUMP, DUMP_WAIT = "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"
REPORTING = {HANDLING: "0", DUMP: "0", DUMP_WAIT: "250"}
INTERFACE = "GLOO_SOCKET_IFNAME"  # gloo's own choice is the address of the host's name
# 1: a group reads the addresses of all peers in one call, not each with two store operations; other
# backends than gloo alone meet at a store that cannot ask
READ_AT_ONCE = "GLOO_ENABLE_STORE_V2_API"
INTERFACE_ADDRESS = 0x8915  # of ioctl on Linux: SIOCGIFADDR


def default_group() -> dist.ProcessGroup:
    """Return torch's default group."""
    group = dist.group.WORLD
    if group is None:
        raise LaunchError("There is no default process group.", fix="meshkit.init().")
    return group


def guards_can_report(world: World, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which guards report errors of nccl before torch ends the process.

    By default, and under torchrun, which sets 1, torch's watchdog ends the process at a timeout and
    when a peer is lost. 0 leaves that to the guard. Another value was set by the user, and stays.

    With 0, torch's dump at a timeout is switched off too, unless the user has set its variables:

    * A watchdog that has seen an error sleeps for four times the wait for the dump, 60 s, and holds
      a lock meanwhile, for which the next collective and the end of the group wait. 250 ms make it
      a second.
    * The dump is announced in the store of the job, where the mark stays. The monitor of a process
      that joins after a recovery would find it, and end that process.

    The monitor itself stays on: an abort stops it. ``TORCH_NCCL_RETHROW_CUDA_ERRORS`` stays too,
    since after an error of CUDA itself no process can use its device again.
    """
    value, by_torchrun = environ.get(HANDLING), world.launcher in BY_TORCHRUN
    is_free = value == "1" if by_torchrun else value is None and OLD_HANDLING not in environ
    is_free &= environ.get(KEEP_HANDLING) != "1"
    has_nccl = any(name.startswith("nccl") for name in nccl_parts(str(world.backend)).values())
    if not has_nccl or not (is_free or value == "0"):
        return {}
    added = {name: text for name, text in REPORTING.items() if name not in environ}
    return added | ({HANDLING: "0"} if is_free else {})


def describe_added(added: Mapping[str, str]) -> list[str]:
    """Return the lines that rank 0 logs about the variables that ``init`` has added.

    Example:
        >>> describe_added({"GLOO_SOCKET_IFNAME": "eth0"})
        ['GLOO_SOCKET_IFNAME is eth0, by which rank 0 reaches the store']
    """
    reporting = " ".join(f"{name}={added[name]}" for name in REPORTING if name in added)
    why = "so that guards report errors of nccl"
    lines = [f"{reporting}, {why}; {KEEP_HANDLING}=1 adds none of them"] if reporting else []
    if INTERFACE in added:
        lines.append(f"{INTERFACE} is {added[INTERFACE]}, by which rank 0 reaches the store")
    return lines


def gloo_reaches_others(world: World, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the interface by which this rank reaches the store, for gloo on several hosts. Local.

    The name of a host often has a loopback address, which no other host can reach. A store at
    127.0.0.1 itself is that of one host, whatever its ranks say of nodes.
    """
    host, size = address(world)[0], world.local_world_size
    is_alone = host in (LOOPBACK_HOST, "localhost") or world.world_size in (1, size)
    if host is None or is_alone or INTERFACE in environ or "gloo" not in str(world.backend):
        return {}
    name = interface_towards(host, spans_hosts=size is not None) if sys.platform == "linux" else ""
    return {INTERFACE: name} if name else {}


def interface_towards(host: str, *, spans_hosts: bool) -> str:
    """Return the interface by which this host reaches another one, by IPv4; "" if unknown. Local.

    The kernel names the address, and each interface its first one. If that is of no other interface
    than the loopback, and the job spans hosts, the first other interface is taken.
    """
    names: dict[str, str] = {}
    with suppress(OSError, UnicodeError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no such address
                request = struct.pack("256s", name.encode())
                own = fcntl.ioctl(probe, INTERFACE_ADDRESS, request)[20:24]
                names[socket.inet_ntoa(own)] = name
        others = [name for name in names.values() if name != LOOPBACK]
        for *_, peer in socket.getaddrinfo(host, 1, socket.AF_INET, socket.SOCK_DGRAM):
            with suppress(OSError):  # no route to it
                probe.connect(peer)  # sends nothing
                name = names.get(probe.getsockname()[0], "")
                spans_hosts |= not name  # a second address of an interface
                if name in others:
                    return name
        return others[0] if others and spans_hosts else ""
    return ""


def binds(world: World) -> bool:
    """Return whether the default group can be bound to the device of this rank. Local.

    Every backend that behaves as NCCL can be bound, also if other devices have another backend.
    torch refuses a device of another type than its accelerator.
    """
    device = world.device or torch.device("cpu")
    part = backend_for(str(world.backend), device.type)
    return device.index is not None and device.type == accelerator() and bool(nccl_parts(part))


def measure_binding(device: torch.device, backend: str) -> tuple[float, int]:
    """Return the seconds and the bytes of a communicator of one rank, made as ``init`` binds one.

    Local; without a default group.
    """
    module = torch.get_device_module(device)
    module.set_device(device)
    torch.ones(1, device=device).item()  # what the device needs itself is no cost of the binding
    free, began = module.mem_get_info(device)[0], time.monotonic()
    options: dict[str, Any] = {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group(backend, device_id=device, **options)
    try:
        module.synchronize(device)
        return time.monotonic() - began, free - module.mem_get_info(device)[0]
    finally:
        dist.destroy_process_group()


def create_default_group(
    world: World, store: Store, timeout: timedelta | None, bind: bool, creation: Creation
) -> GroupStore | None:
    """Create torch's default group. Collective.

    With ``bind`` NCCL is bound to the device of this rank, so that torch splits other groups off.

    Returns:
        The store in Python through which the groups of the job meet, which must be kept; or None.
    """
    client, limit = store, timeout or default_timeout(str(world.backend))
    # nccl clones its store, so it cannot be one in Python; and it waits there longer than ranks do
    if world.backend != "gloo" and world.world_size > 1:
        client = store.clone()
        client.root.set_timeout(limit)
    part = client.part("default_group")
    own = GroupStore(part, limit) if world.backend == "gloo" else None
    attempt = creation.attempt if own is None and connects_at_creation(str(world.backend)) else None
    options: dict[str, Any] = {
        "store": own or part.raw,
        "rank": world.rank,
        "world_size": world.world_size,
    }
    if world.backend == "mpi":  # MPI knows rank and size
        options = {}
    bind = bind and binds(world)
    if bind:
        options["device_id"] = world.device
    try:
        dist.init_process_group(world.backend, timeout=attempt or timeout, **options)
    except (RuntimeError, ValueError, AssertionError) as error:  # torch's own
        if dist.is_initialized() and not creation.is_given_up:  # it failed at the very end
            dist.destroy_process_group()
        raise LaunchError(
            f"rank {world.rank} of {world.world_size} could not create the default group.",
            f"backend {world.backend}, device {world.device}: {str(error).partition(chr(10))[0]}",
            fix="meshkit doctor, on this host.",
        ) from error
    if bind:  # also for a library that splits it
        store_global_ranks(default_group())
    rank, size = dist.get_rank(), dist.get_world_size()
    if (rank, size) != (world.rank, world.world_size):
        dist.destroy_process_group()
        raise LaunchError(
            f"the launcher counts rank {world.rank} of {world.world_size}, the backend "
            f"{world.backend} counts {rank} of {size}.",
            fix="start with the mpirun of the MPI that torch was built with.",
        )
    if attempt is not None:
        set_timeout(default_group(), timeout)
    return own


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
        world = World(rank, world_size, None, None, None, None, None, None, "")
    backend = backend_of(group)
    return replace(
        world,
        launcher="existing group",
        device=_device(group, backend),
        backend=backend,
        sources=sources,
    )


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
