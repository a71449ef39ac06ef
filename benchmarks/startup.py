"""Start-up: from the start of a job to the first all-reduce on every axis, beside torch.

Both sides create the same groups on the same gloo ranks. Torch runs ``init_process_group``,
``init_device_mesh`` and the same all-reduces. meshkit does more: ranks check in, compare their
requests, and agree again when all groups exist.

Processes come from a forkserver that has imported torch. A start begins when all of them are there.
Processor time is the sum over all ranks. The seconds of a phase are those of the slowest rank. A
second mesh is a view of which every group exists, from its first call to its last return, beside a
barrier of the same ranks, which is measured alike. Names of addresses come from /etc/hosts alone
(``RES_OPTIONS=attempts:0``), as torch looks them up.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import meshkit

from .harness import Goal, Row, compare, mesh_sizes, single, turn

REPEATS = {8: 5, 64: 3, 128: 3, 256: 3}
BOUNDS = {"tcp": {8: 0.7, 64: 0.7, 128: 0.7, 256: 0.5}, "file": {8: 1, 64: 1, 128: 0.8, 256: 0.6}}
GOALS = {(s, n): Goal("ratio", "<=", b) for s in BOUNDS for n, b in BOUNDS[s].items()}
PROCESSOR = dict.fromkeys((64, 128, 256), Goal("ratio", "<=", 0.9))
GOAL_RANKS, SECOND = 128, {"tcp": 0.02, "file": 0.05}  # seconds of the second mesh
PEER = "init_device_mesh"


@dataclass(frozen=True)
class Setting:
    """How the ranks of a job start."""

    ranks: int
    store: str = "file"  # or "tcp"

    def __str__(self) -> str:
        return f"{self.store} store{', names answered' * (self.store == 'tcp')}"


class RankStart(NamedTuple):
    """The start of one rank; times are seconds on the monotonic clock of the machine."""

    ready: float  # when the process began to wait for the others
    finished: float  # when its last all-reduce returned
    processor: float  # seconds of processor time in between
    phases: dict[str, float]  # phase -> seconds
    share: float  # percent of build_mesh in which it compared the requests; 0 for torch
    second: tuple[float, float]  # when it began and ended a second mesh
    barrier: tuple[float, float]  # when it began and ended a barrier
    sums: dict[str, float]  # axis -> result of the all-reduce of ones


Job = Sequence[RankStart]


def run(quick: bool) -> list[Row]:
    """Return the rows of both stores on each number of ranks."""
    repeats = {8: 1} if quick else REPEATS
    rows = []
    for ranks, times in repeats.items():
        for store in BOUNDS:
            setting = Setting(ranks, store)
            rows += start_rows(setting, *run_jobs(setting, times))
    return rows


def start_rows(setting: Setting, ours: Sequence[Job], theirs: Sequence[Job]) -> list[Row]:
    """Return the rows of a start: its time, its processor time, its phases, the second mesh."""
    what, ranks, store = f"start-up, {setting}", setting.ranks, setting.store
    ratio, share, instant = GOALS.get((store, ranks)), None, None
    if ranks == GOAL_RANKS:
        share, instant = Goal("ours", "<=", 10), Goal("ours", "<=", SECOND[store])
    used = [*map(processor_time, ours)], [*map(processor_time, theirs)]
    times = [*map(start_time, ours)], [*map(start_time, theirs)]
    shares = [median(rank.share for rank in job) for job in ours]
    again = (
        [span(r.second for r in job) for job in ours],
        [span(r.barrier for r in job) for job in ours],
    )
    rows = [
        compare(what, ranks, PEER, "s", times, ratio),
        compare(f"{what}, processor time", ranks, PEER, "s", used, PROCESSOR.get(ranks)),
        single(f"{what}, agreement in build_mesh", ranks, "%", shares, share),
        compare(f"{what}, second mesh", ranks, "a barrier", "s", again, instant),
    ]
    for side, jobs in (("meshkit", ours), ("torch", theirs)):
        for phase in jobs[0][0].phases:
            slowest = [max(rank.phases[phase] for rank in job) for job in jobs]
            rows.append(single(f"{what}, {side}, {phase}", ranks, "s", slowest))
    return rows


def start_time(job: Job) -> float:
    """Return the seconds from the last process's arrival to the last rank's last all-reduce."""
    return max(rank.finished for rank in job) - max(rank.ready for rank in job)


def processor_time(job: Job) -> float:
    """Return the processor time of all ranks together."""
    return sum(rank.processor for rank in job)


def span(times: Iterable[tuple[float, float]]) -> float:
    """Return the seconds from the first begin to the last end."""
    begins, ends = zip(*times, strict=True)
    return float(max(ends) - min(begins))


def run_jobs(setting: Setting, repeats: int) -> tuple[list[Job], list[Job]]:
    """Return the jobs of meshkit and those of torch, run in turns."""
    jobs: tuple[list[Job], list[Job]] = ([], [])
    for repeat in range(repeats):
        for side in turn(repeat):
            jobs[side].append(run_job(("meshkit", "torch")[side], setting))
    return jobs


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
    os.environ["RES_OPTIONS"] = "attempts:0"
    ready, sizes = time.monotonic(), mesh_sizes(setting.ranks)
    pipe = wait_for_all(Path(folder), setting.ranks)
    phases, used = dict[str, float](), time.process_time()
    groups, share, again = (join_meshkit if side == "meshkit" else join_torch)(sizes, url, phases)
    ones = {axis: torch.ones(1) for axis in sizes}
    with timed(phases, "first all-reduces"):
        for axis, group in groups.items():
            dist.all_reduce(ones[axis], group=group)
    finished, processor = time.monotonic(), time.process_time() - used
    sums = {axis: float(total) for axis, total in ones.items()}
    dist.barrier()  # a rank that left now could keep another rank from connecting
    second = timespan(again)
    dist.barrier()
    barrier = timespan(dist.barrier)
    dist.barrier()
    os.close(pipe)
    return RankStart(ready, finished, processor, phases, share, second, barrier, sums)


@contextmanager
def timed(phases: dict[str, float], phase: str) -> Iterator[None]:
    """Keep the seconds of the block as those of a phase."""
    began = time.monotonic()
    yield
    phases[phase] = time.monotonic() - began


def timespan(work: Callable[[], object]) -> tuple[float, float]:
    """Return when the work began and when it ended."""
    began = time.monotonic()
    work()
    return began, time.monotonic()


def wait_for_all(folder: Path, ranks: int) -> int:
    """Wait until all ranks are here, without using the processor; return a descriptor to hold.

    The last rank opens the pipe for writing, and so lets all others open it.
    """
    here = os.open(folder / "here", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(here, b".")
    last = os.fstat(here).st_size == ranks
    os.close(here)
    return os.open(folder / "start", os.O_RDWR if last else os.O_RDONLY)


Joined = tuple[dict[str, dist.ProcessGroup], float, Callable[[], object]]


def join_meshkit(sizes: dict[str, int], url: str, phases: dict[str, float]) -> Joined:
    """Return meshkit's groups, the percentage of agreement, and a call for a second mesh."""
    meshkit.init(device="cpu", init_method=url)
    mesh = meshkit.build_mesh(sizes)
    phases.update(mesh.startup.phases)
    build = phases["agreement"] + phases["groups"] + phases["end"]
    share = 100 * phases["agreement"] / build
    return {axis: mesh.group(axis) for axis in sizes}, share, lambda: mesh.view(sizes)


def join_torch(sizes: dict[str, int], url: str, phases: dict[str, float]) -> Joined:
    """Return torch's groups, 0, and a call that does nothing."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with timed(phases, "init_process_group"):
        dist.init_process_group("gloo", init_method=url, rank=rank, world_size=ranks)
    with timed(phases, "init_device_mesh"):
        mesh = init_device_mesh("cpu", (*sizes.values(),), mesh_dim_names=(*sizes,))
    return {axis: mesh.get_group(axis) for axis in sizes}, 0.0, int
