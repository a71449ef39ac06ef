"""Bridge: weights between two jobs over one link, beside a gather and a broadcast by hand.

As root on Linux, the benchmark makes two hosts, network namespaces joined by a link of 1 Gbit/s.
The trainer is a job of two ranks on one host (tp=2) and cuts each weight. The sampler is a job of
four ranks on the other host (dp=2 tp=2), and together they want the whole state twice. No way takes
less than the state needs to cross the link once::

    bound = bytes of the state / bytes per second of the link

The way by hand is that of OpenRLHF: a gloo group of the first rank of the trainer and all ranks of
the sampler. For each weight, the trainer gathers it on its first rank, which broadcasts the whole
one, and each rank of the sampler keeps its part. Both ways run in turns in one run; their time is
that of the slowest rank. Counters of the link give the bytes without headers.

The seconds from a sampler's start to its first weights are those from the call that joins the other
job, in processes that run already. By hand the trainer must leave its work to make a new group.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

import meshkit

from .harness import Goal, Row, compare, single
from .hosts import NoHostsError, hosts_on_a_switch, read_figures, read_payload, start_rank
from .transfer import write_page

RATE, BYTES_PER_SECOND = "1gbit", 1e9 / 8
SIZES = {"trainer": {"tp": 2}, "sampler": {"dp": 2, "tp": 2}}
RANKS = {"trainer": 2, "sampler": 4}
ROWS, COLUMNS = 1000, 1000  # of a weight, in float32: 4 MB
PORT, TIMEOUT = 29781, 450.0
EXACT, NEAR = Goal("ours", "<=", 1.005), Goal("ours", "<=", 1.15)
PATTERN = {"*": "o/tp i -> o/tp i"}
PEER = "gather + broadcast"

State = dict[str, Tensor]


def run(quick: bool) -> list[Row]:
    """Return the rows of one state."""
    megabytes = 16 if quick else 256
    what, ranks = f"{megabytes} MB over a link of {RATE}", sum(RANKS.values())
    try:
        figures = measure(megabytes, 1 if quick else 3)
    except NoHostsError as error:
        return [Row(what, ranks, "-", "s", missing=str(error))]
    rows = make_rows(what, ranks, megabytes * 1e6, figures)
    if not quick:
        write_page(rows, "bridge")
    return rows


def make_rows(what: str, ranks: int, size: float, figures: Mapping[str, Any]) -> list[Row]:
    """Return the rows of the seconds and bytes of both ways, and of a sampler that starts."""
    times, received, starts = figures["times"], figures["bytes"], figures["starts"]
    bound = size / BYTES_PER_SECOND
    return [
        compare(f"{what}: time", ranks, PEER, "s", (times["ours"], times["peer"])),
        single(f"{what}: time", ranks, "of the bound", [t / bound for t in times["ours"]], NEAR),
        compare(
            f"{what}: bytes into the sampler's host",
            ranks,
            PEER,
            "of the state",
            ([n / size for n in received["ours"]], [n / size for n in received["peer"]]),
            EXACT,
        ),
        compare(
            f"{what}: a sampler's start to its first weights",
            ranks,
            PEER,
            "s",
            (starts["ours"], starts["peer"]),
        ),
    ]


def measure(megabytes: int, repeats: int) -> dict[str, Any]:
    """Run a store and two jobs on two hosts; return the figures.

    Raises:
        NoHostsError: if this machine forbids network namespaces.
        RuntimeError: if a job fails.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        hosts_on_a_switch(Path(folder), 2, RATE) as hosts,
    ):
        command = [sys.executable, "-m", "meshkit", "store", "--port", str(PORT)]
        null = subprocess.DEVNULL
        processes = [subprocess.Popen(hosts[0].command(*command), stdout=null, text=True)]
        for side, host in zip(RANKS, hosts, strict=True):
            args = "benchmarks.bridge", side, hosts[0].address, megabytes, repeats
            places = [(rank, RANKS[side], rank, RANKS[side]) for rank in range(RANKS[side])]
            processes += [start_rank(host, args, p, (host.address, PORT + 1)) for p in places]
        first = processes[1 + RANKS["trainer"]]  # of the sampler, where the bytes arrive
        return read_figures(processes, first, TIMEOUT)


class Hand:
    """The way by hand: a group of the trainer's first rank and all ranks of the sampler."""

    def __init__(self, mesh: meshkit.Mesh, side: str, store: dist.Store, name: str) -> None:
        self.mesh, self.rank = mesh, mesh.rank + (side == "sampler")
        self.group: Any = None
        if side == "sampler" or mesh.rank == 0:
            place, limit = dist.PrefixStore(name, store), timedelta(seconds=TIMEOUT)
            size = RANKS["sampler"] + 1
            self.group = dist.ProcessGroupGloo(place, self.rank, size, limit)
        self.options = dist.BroadcastOptions()
        self.options.rootRank = 0

    def push(self, state: State) -> None:
        """Gather each weight on the first rank, and broadcast it."""
        for part in state.values():
            parts = [torch.empty_like(part) for _ in range(2)] if self.mesh.rank == 0 else None
            dist.gather(part, parts, dst=0, group=self.mesh.group("tp"))
            if parts is not None:
                self.group.broadcast([torch.cat(parts)], self.options).wait()

    def pull(self, weights: State) -> None:
        """Receive each weight, and keep a part of it."""
        whole = torch.empty(ROWS, COLUMNS)
        for part in weights.values():
            self.group.broadcast([whole], self.options).wait()
            part.copy_(whole.chunk(2)[self.mesh.coordinate["tp"]])


class Clock:
    """A group of all ranks of both jobs, which begin together and know the slowest."""

    def __init__(self, rank: int, store: dist.Store) -> None:
        limit, size = timedelta(seconds=TIMEOUT), sum(RANKS.values())
        self.group: Any = dist.ProcessGroupGloo(dist.PrefixStore("clock", store), rank, size, limit)
        self.options = cast(Any, dist.AllreduceOptions())
        self.options.reduceOp = dist.ReduceOp.MAX

    def time(self, way: Callable[[], object]) -> float:
        """Return the seconds of one way on the slowest rank. Collective."""
        self.group.barrier().wait()
        began = time.perf_counter()
        way()
        seconds = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
        self.group.allreduce([seconds], self.options).wait()
        return float(seconds)


class Side:
    """One rank of one of the jobs, and both ways to move its state."""

    def __init__(self, side: str, host: str, megabytes: int) -> None:
        meshkit.init(timeout=TIMEOUT)
        self.name, self.host, self.mesh = side, host, meshkit.build_mesh(SIZES[side])
        self.store = dist.TCPStore(host, PORT, is_master=False, timeout=timedelta(seconds=TIMEOUT))
        whole = torch.arange(ROWS * COLUMNS, dtype=torch.float32).view(ROWS, COLUMNS)
        count = round(megabytes * 1e6 / (4 * ROWS * COLUMNS))
        own = self.mesh.coordinate["tp"]
        self.wanted = {f"w{n}": (whole + n).chunk(2)[own] for n in range(count)}
        self.state = {name: part.clone() for name, part in self.wanted.items()}
        self.ways: dict[str, Callable[[], object]] = {}

    def start(self, name: str, number: int) -> None:
        """Join the other job and move one state. Collective over both jobs."""
        if name == "peer":
            hand = Hand(self.mesh, self.name, self.store, f"hand/{number}")
            move = hand.push if self.name == "trainer" else hand.pull
            self.ways[name] = lambda: move(self.state)
        elif self.name == "sampler" or not number:  # the trainer goes on, and has joined once
            bridge = self.mesh.bridge(f"store://{self.host}:{PORT}/weights", side=self.name)
            sync = bridge.transfer(PATTERN, like=self.state)
            self.ways[name] = sync.push if self.name == "trainer" else sync.pull
        self.ways[name]()

    def check(self, name: str) -> None:
        """Raise RuntimeError if the weights are wrong; clear those of the sampler."""
        for key, part in self.wanted.items():
            if not torch.equal(self.state[key], part):
                raise RuntimeError(f"{name}: the weights are wrong")
            if self.name == "sampler":
                self.state[key].zero_()


def run_rank(name: str, host: str, megabytes: int, repeats: int) -> None:
    """Time both ways on one rank; the first rank of the sampler prints the figures. Collective."""
    torch.set_num_threads(1)
    side = Side(name, host, megabytes)
    clock = Clock(side.mesh.rank + (name == "sampler") * RANKS["trainer"], side.store)
    interface = os.environ["GLOO_SOCKET_IFNAME"]
    figures: dict[str, dict[str, list[float]]] = {
        figure: {"ours": [], "peer": []} for figure in ("times", "bytes", "starts")
    }
    for repeat in range(repeats):
        for way in ["ours", "peer"][:: 1 if repeat % 2 else -1]:
            figures["starts"][way].append(clock.time(partial(side.start, way, repeat)))
            side.check(way)
            before = read_payload(interface)
            figures["times"][way].append(clock.time(side.ways[way]))
            figures["bytes"][way].append(read_payload(interface)[0] - before[0])
            side.check(way)
    clock.group.barrier().wait()
    if (name, side.mesh.rank) == ("sampler", 0):
        print(json.dumps(figures))
    meshkit.shutdown()


def main(argv: Sequence[str]) -> None:
    """Run one rank."""
    run_rank(argv[0], argv[1], int(argv[2]), int(argv[3]))


if __name__ == "__main__":
    main(sys.argv[1:])
