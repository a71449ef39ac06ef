"""What ranks on several hosts do; the hosts are names, as one machine has one."""

from __future__ import annotations

import socket
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import meshkit
from meshkit.core.errors import MeshkitError
from meshkit.live import topology

Told = dict[str, Any]


def built(hosts: Sequence[str], request: dict[str, Any], foreign: bool) -> Told:
    """A mesh on hosts: its ranks, what was warned of or raised, and the sum over each tp group."""
    rank = meshkit.detect().rank
    socket.gethostname = lambda: hosts[rank]  # type: ignore[method-assign]
    if foreign:
        who = meshkit.detect()
        dist.init_process_group(
            "gloo", init_method=who.init_method, rank=rank, world_size=who.world_size
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with meshkit.build_mesh(**request) as mesh:
                told = _told(mesh)
        except MeshkitError as error:
            told = {"error": f"{type(error).__name__}: {error}", "groups": _open()}
    files = [Path(one.filename).name for one in caught]
    return {**told, "warnings": [str(one.message) for one in caught], "files": files}


def strict(hosts: Sequence[str]) -> tuple[str, float, int]:
    """What is raised where warnings are errors, after how many seconds, and the groups left."""
    rank = meshkit.detect().rank
    socket.gethostname = lambda: hosts[rank]  # type: ignore[method-assign]
    meshkit.init()
    began = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        try:
            meshkit.build_mesh(dp=2, tp=2, arrival_timeout=10)
        except (RuntimeWarning, MeshkitError) as error:
            return f"{type(error).__name__}: {error}", time.monotonic() - began, _open()
    return "", 0.0, 0


def each_its_own(hosts: Sequence[str], requests: Sequence[dict[str, Any]]) -> str:
    """What a rank is told where each asks for something else."""
    rank = meshkit.detect().rank
    socket.gethostname = lambda: hosts[rank]  # type: ignore[method-assign]
    try:
        meshkit.build_mesh(**requests[rank])
    except meshkit.MeshkitError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def rank_0_says_nothing(request: dict[str, Any]) -> tuple[str, float]:
    """What is raised, and when, where rank 0 takes its time over the nodes."""
    meshkit.init()
    began = time.monotonic()
    if dist.get_rank() == 0:
        topology._hosts = lambda *_: time.sleep(7) or []  # type: ignore[assignment,func-returns-value]
    try:
        meshkit.build_mesh(**request, arrival_timeout=2)
    except Exception as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - began
    return "", 0.0


def _told(mesh: meshkit.Mesh) -> Told:
    ones = torch.ones(1) * 10**mesh.rank
    dist.all_reduce(ones, group=mesh.group("tp"))
    return {"ranks": [int(r) for r in mesh.layout.ranks], "sum": int(ones), "mine": mesh.coordinate}


def _open() -> int:
    """How many groups this process has beside the default one."""
    return len(dist.distributed_c10d._world.pg_map) - 1
