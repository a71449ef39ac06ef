"""What one rank of :mod:`benchmarks.startup` does: join, build the mesh, reduce over every axis.

Both sides do the same in processes that start alike, with everything imported. Nothing in meshkit
is changed: a phase is timed where its caller calls it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import meshkit
from meshkit.launch import join as joining
from meshkit.launch import rendezvous, together
from meshkit.live import agree, assemble

from .jobs import sizes_of
from .ledger import GATE, START, Ledger, Span

FOUND = {  # where meshkit calls a phase: its name
    (rendezvous, "_opened"): "store",
    (rendezvous, "arrive"): "check-in",
    (joining, "_make_default_group"): "world group",
    (agree, "arrive"): "agreement",
    (assemble, "create"): "groups",
}
Groups = Mapping[str, dist.ProcessGroup]
Result = TypeVar("Result")


def start(side: str, began: float, folder: str, url: str, variables: Mapping[str, str]) -> Ledger:
    """Start on one side, from the rank's first line to the last all-reduce. Collective.

    Args:
        side: ``"meshkit"`` or ``"torch"``.
        began: when the parent began, on the monotonic clock.
        folder: of the gate.
        url: where the ranks meet.
        variables: of the environment, for this job alone.
    """
    here = time.monotonic()
    os.environ.update(variables)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    sizes, before = sizes_of(ranks), memory()
    held = pass_gate(Path(folder), ranks)
    used = time.process_time()
    spans = [Span(START, began, here), Span(GATE, here, time.monotonic())]
    groups = SIDES[side](sizes, url, spans)
    sums = {axis: timed(spans, f"first {axis}", partial(first, groups[axis])) for axis in sizes}
    cpu = time.process_time() - used
    found = Ledger(rank, tuple(spans), sums, *holds(), cpu, memory() - before)
    dist.barrier()  # whoever left now could keep another one connecting
    os.close(held)
    return found


def by_meshkit(sizes: dict[str, int], url: str, spans: list[Span]) -> Groups:
    """The groups of every axis, by meshkit."""
    with phases_timed(spans):
        meshkit.init(device="cpu", init_method=url)
        mesh = meshkit.build_mesh(sizes)
    return {axis: mesh.group(axis) for axis in sizes}


def by_torch(sizes: dict[str, int], url: str, spans: list[Span]) -> Groups:
    """The groups of every axis, by torch alone."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    join = partial(dist.init_process_group, "gloo", init_method=url, rank=rank, world_size=ranks)
    timed(spans, "world group", join)
    shape, names = tuple(sizes.values()), tuple(sizes)
    make = partial(init_device_mesh, "cpu", shape, mesh_dim_names=names)
    mesh = timed(spans, "groups", make)
    return {axis: mesh.get_group(axis) for axis in sizes}


SIDES: dict[str, Callable[[dict[str, int], str, list[Span]], Groups]] = {
    "meshkit": by_meshkit,
    "torch": by_torch,
}


def first(group: dist.ProcessGroup) -> float:
    """The sum of ones over a group: what its first collective gives. Collective."""
    ones = torch.ones(1)
    dist.all_reduce(ones, group=group)
    return float(ones)


def timed(spans: list[Span], phase: str, work: Callable[[], Result]) -> Result:
    """What the work returns, with its time written down, also where it fails."""
    began = time.monotonic()
    try:
        return work()
    finally:
        spans.append(Span(phase, began, time.monotonic()))


@contextmanager
def phases_timed(spans: list[Span]) -> Iterator[None]:
    """The phases of meshkit in the block; a meeting after a making is of that making."""
    with ExitStack() as patches:
        for (module, name), phase in FOUND.items():
            patches.enter_context(_watched(module, name, partial(str, phase), spans))
        after = {"world group": "made", "groups": "all made"}
        patches.enter_context(_watched(together, "arrive", lambda: after[spans[-1].phase], spans))
        yield


def _watched(
    module: object, name: str, phase: Callable[[], str], spans: list[Span]
) -> AbstractContextManager[object]:
    work = getattr(module, name)

    def watched(*args: Any, **kwargs: Any) -> object:  # noqa: ANN401
        return timed(spans, phase(), partial(work, *args, **kwargs))

    return patch.object(module, name, watched)


def pass_gate(folder: Path, ranks: int) -> int:
    """Wait, without using the processor, until all ranks are here; a descriptor to hold.

    The last one opens the pipe for writing, which lets all others open it.
    """
    mine = os.open(folder / "here", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(mine, b".")
    last = os.fstat(mine).st_size == ranks
    os.close(mine)
    return os.open(folder / "gate", os.O_RDWR if last else os.O_RDONLY)


def holds() -> tuple[int, int]:
    """How many descriptors and how many threads this process has."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def memory() -> int:
    """KiB of this process that lie in memory, those that it shares with others among them."""
    words = Path("/proc/self/status").read_text().split()
    return int(words[words.index("VmRSS:") + 1])
