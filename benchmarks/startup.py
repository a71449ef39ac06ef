"""Start-up: from the start of a job to the first all-reduce on every axis, beside torch.

Both sides create the same groups on the same gloo ranks. Torch runs ``init_process_group``,
``init_device_mesh`` and the same all-reduces. meshkit does more: ranks check in, compare their
requests, and agree again when all groups exist.

Processes come from a forkserver that has imported torch, and wait until all of them are there. The
time of a start begins then, and ends with the last all-reduce of the last rank.

A lazy start sets torch's ``TORCH_GLOO_LAZY_INIT=1`` for meshkit: gloo then connects a pair of ranks
at its first use.

At a TCPStore torch looks up the names of addresses, which takes 5 s or 10 s without a name server.
With ``hosts_file_only`` names come from /etc/hosts alone (``RES_OPTIONS=attempts:0``). The longest
wait for a name is the longest start less such a start.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import meshkit
from meshkit.launch import current_job
from meshkit.launch.agreement.consensus import agree

from .harness import Goal, Row, compare, mesh_sizes, single

REPEATS = {8: 3, 32: 3, 64: 2, 128: 3, 256: 1}  # a job of 256 takes half a minute on two cores
GOAL_RANKS = 128
HALF, TENTH, NO_WAIT = Goal("ratio", "<=", 0.5), Goal("ours", "<=", 10), Goal("ours", "<=", 1)
PEER = "init_device_mesh"


@dataclass(frozen=True)
class Setting:
    """How the ranks of a job start."""

    ranks: int
    store: str = "file"  # or "tcp"
    lazy: bool = False  # gloo connects ranks at their first use
    hosts_file_only: bool = False  # host names come from /etc/hosts alone

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment variables that every rank sets."""
        lazy = {"TORCH_GLOO_LAZY_INIT": "1"} if self.lazy else {}
        return lazy | ({"RES_OPTIONS": "attempts:0"} if self.hosts_file_only else {})

    def __str__(self) -> str:
        names = ", names answered" if self.hosts_file_only else ""
        return f"{self.store} store{', lazy' if self.lazy else ''}{names}"


class RankStart(NamedTuple):
    """The start of one rank; times are seconds on the monotonic clock of the machine."""

    ready: float  # when the process began to wait for the others
    finished: float  # when its last all-reduce returned
    share: float  # percent of build_mesh in which it compared the requests; 0 for torch
    sums: dict[str, float]  # axis -> result of the all-reduce of ones


Job = Sequence[RankStart]


def run(quick: bool) -> list[Row]:
    """Return the rows of FileStores of all sizes, then those of TCPStores of the smallest two."""
    repeats = {8: 1} if quick else REPEATS
    rows = []
    for ranks, times in repeats.items():
        settings = [Setting(ranks), Setting(ranks, lazy=True)]
        *ours, theirs = run_jobs(settings, times)
        for setting, jobs in zip(settings, ours, strict=True):
            rows += start_rows(setting, jobs, theirs)
    for ranks in [*repeats][:2]:
        rows += tcp_rows(Setting(ranks, "tcp"), repeats[ranks])
    return rows


def start_rows(setting: Setting, ours: Sequence[Job], theirs: Sequence[Job]) -> list[Row]:
    """Return the row of the whole start and that of the agreement in ``build_mesh``."""
    what, ranks = f"start-up, {setting}", setting.ranks
    half, tenth = (HALF, TENTH) if setting == Setting(GOAL_RANKS) else (None, None)
    times = [*map(start_time, ours)], [*map(start_time, theirs)]
    shares = [median(rank.share for rank in job) for job in ours]
    return [
        compare(what, ranks, PEER, "s", times, half),
        single(f"{what}, agreement in build_mesh", ranks, "%", shares, tenth),
    ]


def tcp_rows(setting: Setting, repeats: int) -> list[Row]:
    """Return the rows of a TCPStore: the start, and the longest wait for a name."""
    ours, theirs = run_jobs([setting], repeats)
    answered = replace(setting, hosts_file_only=True)
    our_wait, their_wait = (
        max(0.0, max(map(start_time, jobs)) - start_time(run_job(side, answered)))
        for side, jobs in (("meshkit", ours), ("torch", theirs))
    )
    what = f"start-up, {setting}, longest wait for a name"
    wait = Row(what, setting.ranks, PEER, "s", our_wait, their_wait, goal=NO_WAIT)
    return [*start_rows(setting, ours, theirs), wait]


def start_time(job: Job) -> float:
    """Return the seconds from the last process's arrival to the last rank's last all-reduce."""
    return max(rank.finished for rank in job) - max(rank.ready for rank in job)


def run_jobs(settings: Sequence[Setting], repeats: int) -> list[Sequence[Job]]:
    """Return the jobs of each setting, then those of torch in the first one, run in turns."""
    sides = [*(("meshkit", setting) for setting in settings), ("torch", settings[0])]
    jobs: list[list[Job]] = [[] for _ in sides]
    for repeat in range(repeats):
        for index in range(len(sides))[:: 1 if repeat % 2 == 0 else -1]:
            jobs[index].append(run_job(*sides[index]))
    return [*jobs]


def run_job(side: str, setting: Setting) -> Job:
    """Start the ranks of one side in a job of their own.

    Raises:
        RuntimeError: if an all-reduce of ones over an axis does not return the size of the axis.
    """
    with tempfile.TemporaryDirectory(prefix="startup-") as folder:
        os.mkfifo(Path(folder) / "start")
        with socket.create_server(("127.0.0.1", 0)) as probe:
            tcp = f"tcp://127.0.0.1:{probe.getsockname()[1]}"  # a free port
        url = tcp if setting.store == "tcp" else f"file://{folder}/store"
        arguments = (side, folder, url, setting)
        job: Job = meshkit.spawn(start_rank, setting.ranks, arguments, timeout=300)
    sizes = mesh_sizes(setting.ranks)
    for number, rank in enumerate(job):
        if rank.sums != sizes:
            sums = f"ones over {sizes} sum up to {rank.sums}"
            raise RuntimeError(f"{side}: {sums} on rank {number}")
    return job


def start_rank(side: str, folder: str, url: str, setting: Setting) -> RankStart:
    """Start one rank, from the wait for the others to the last all-reduce. Collective."""
    os.environ.update(setting.variables)
    ready, sizes = time.monotonic(), mesh_sizes(setting.ranks)
    pipe = wait_for_all(Path(folder), setting.ranks)
    groups, share = (join_meshkit if side == "meshkit" else join_torch)(sizes, url)
    ones = {axis: torch.ones(1) for axis in sizes}
    for axis, group in groups.items():
        dist.all_reduce(ones[axis], group=group)
    finished = time.monotonic()
    sums = {axis: float(total) for axis, total in ones.items()}
    dist.barrier()  # a rank that left now could keep another rank from connecting
    os.close(pipe)
    return RankStart(ready, finished, share, sums)


def wait_for_all(folder: Path, ranks: int) -> int:
    """Wait until all ranks are here, without using the processor; return a descriptor to hold.

    The last rank opens the pipe for writing, and so lets all others open it.
    """
    here = os.open(folder / "here", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(here, b".")
    last = os.fstat(here).st_size == ranks
    os.close(here)
    return os.open(folder / "start", os.O_RDWR if last else os.O_RDONLY)


Groups = dict[str, dist.ProcessGroup]


def join_meshkit(sizes: dict[str, int], url: str) -> tuple[Groups, float]:
    """Return the groups by meshkit, and the percentage of agreement in ``build_mesh``."""
    meshkit.init(device="cpu", init_method=url)
    seconds: list[float] = []

    def timed(*args: Any, **kwargs: Any) -> int:  # noqa: ANN401
        began = time.monotonic()
        number = agree(*args, **kwargs)
        seconds.append(time.monotonic() - began)
        return number

    began = time.monotonic()
    with patch.object(current_job, agree.__name__, timed):
        mesh = meshkit.build_mesh(sizes)
    share = 100 * sum(seconds) / (time.monotonic() - began)
    return {axis: mesh.group(axis) for axis in sizes}, share


def join_torch(sizes: dict[str, int], url: str) -> tuple[Groups, float]:
    """Return the groups by torch, and 0."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=url, rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (*sizes.values(),), mesh_dim_names=(*sizes,))
    return {axis: mesh.get_group(axis) for axis in sizes}, 0.0
