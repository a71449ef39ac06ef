"""The host of a job's store: its address, the process that it ends with, and its loss."""

from __future__ import annotations

import os
from urllib.parse import urlparse

from ...core.errors import RankTimeoutError
from ..launchers import BY_TORCHRUN
from ..world import World
from .file_store import file_error

SERVED = "store"  # the scheme of a store of its own: python -m meshkit store


def address(world: World) -> tuple[str | None, int | None]:
    """Return host and port of the TCP store; None for the unknown."""
    if world.init_method in (None, "env://"):
        return world.master_addr, world.master_port
    try:
        url = urlparse(str(world.init_method))
        return (url.hostname, url.port) if url.scheme in ("tcp", SERVED) else (None, None)
    except ValueError:  # an invalid port, half an IPv6 address
        return None, None


def hosted_by_rank_0(world: World) -> bool:
    """Return whether the store ends with rank 0; also True if that is unknown."""
    is_file = str(world.init_method).startswith("file://")
    return not is_file and not is_served(world) and not hosted_by_agent(world)


def is_served(world: World) -> bool:
    """Return whether a process of its own hosts the store: ``python -m meshkit store``."""
    return str(world.init_method).startswith(f"{SERVED}://")


def hosted_by_agent(world: World) -> bool:
    """Return whether the torchrun agent hosts the store: the user did not ask for another one."""
    has_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return has_agent and world.launcher in BY_TORCHRUN and world.init_method in (None, "env://")


def store_lost_error(world: World, *, silent: bool = False) -> RankTimeoutError:
    """Return the error of a store that is gone."""
    url = str(world.init_method)
    if url.startswith("file://"):
        if error := file_error(url.removeprefix("file://")):
            return RankTimeoutError(error.summary, *error.evidence, fix=error.fix_text)
        evidence, fix = f"It is {url}, which does not answer.", "look at that file system first."
    else:
        has_url = url.startswith("tcp://") or is_served(world)
        place = url if has_url else f"{world.master_addr}:{world.master_port}"
        reason = "is stopped, or the network to it is cut" if silent else "has ended"
        evidence = f"It was at {place}; the process that hosts it {reason}."
        fix = "look at the log of rank 0 first, or of the torchrun agent."
        if is_served(world):
            fix = "look at the output of `python -m meshkit store` there."
    missing = (0,) if hosted_by_rank_0(world) and world.rank else ()
    return RankTimeoutError(
        f"rank {world.rank} lost the store of the job.", evidence, fix=fix, missing_ranks=missing
    )
