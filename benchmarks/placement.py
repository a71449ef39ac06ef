"""What ``place=True`` is worth: tp across a slow wire, beside the same ranks put on near ones.

``python -m benchmarks.placement`` (as root, on Linux) makes two hosts of four ranks each, network
namespaces joined by one wire of 200 Mbit/s, and deals ranks to them in turn, as Slurm's cyclic
distribution does. In one job it builds ``dp=2 tp=4`` twice, as the ranks come and with
``place=True``, and times a 4 MiB all-reduce over all tp groups at once, in turn on one mesh and on
the other. The time of a repetition is that of the slowest rank.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

import meshkit

from .rows import Goal, Row, compared
from .two_hosts import Host, NoHostsError, two_hosts

RANKS, REPEATS = 8, 5
RATE, ITEMS = "200mbit", 2**20  # of float32: 4 MiB
NAMES = ("a", "b")
WAIT = 300.0  # seconds for all of it


@dataclass(frozen=True)
class Found:
    """Seconds of one tp all-reduce, repetition by repetition, and who was together."""

    as_dealt: list[float]
    placed: list[float]
    tp_as_dealt: list[int]
    tp_placed: list[int]

    @property
    def ratio(self) -> float:
        """How many times faster the placed one is: the median over repetitions."""
        pairs = zip(self.as_dealt, self.placed, strict=True)
        return median(slow / fast for slow, fast in pairs)

    def __str__(self) -> str:
        slow, fast = (1e3 * median(times) for times in (self.as_dealt, self.placed))
        lowest, highest = (
            pick(s / f for s, f in zip(self.as_dealt, self.placed, strict=True))
            for pick in (min, max)
        )
        return (
            f"all_reduce of 4 MiB over tp=4, 8 ranks dealt in turn to 2 hosts, {RATE} between:\n"
            f"  as dealt    {slow:8.1f} ms   tp group of rank 0: {self.tp_as_dealt}\n"
            f"  place=True  {fast:8.1f} ms   tp group of rank 0: {self.tp_placed}\n"
            f"  {self.ratio:.0f} times faster ({lowest:.0f} to {highest:.0f})"
        )


def timed(mesh: meshkit.Mesh) -> float:
    """Seconds of one all-reduce over every tp group at once, on the slowest rank."""
    group, data = mesh.group("tp"), torch.ones(ITEMS)
    mesh.barrier()
    began = time.perf_counter()
    dist.all_reduce(data, group=group)
    took = torch.tensor([time.perf_counter() - began])
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    if not bool((data == mesh.size("tp")).all()):
        raise RuntimeError("the sum over tp is wrong")
    return float(took)


def rank(repeats: int) -> None:
    """One rank of the job; rank 0 prints what was found."""
    meshkit.init(timeout=WAIT)
    plain = meshkit.build_mesh(dp=2, tp=-1, crossing={"tp": "allow"})
    near = meshkit.build_mesh(dp=2, tp=-1, place=True, crossing={"tp": "error"})
    for mesh in (plain, near):
        timed(mesh)  # connections, buffers
    pairs = [(timed(plain), timed(near)) for _ in range(repeats)]
    found = Found(
        [slow for slow, _ in pairs],
        [fast for _, fast in pairs],
        plain.peers("tp").tolist(),
        near.peers("tp").tolist(),
    )
    if plain.rank == 0:
        print(json.dumps(asdict(found)))
    meshkit.shutdown()


def run(quick: bool) -> list[Row]:
    """One row: tp on near wires beside tp as ranks were dealt."""
    what, peer = f"all_reduce over tp=4, hosts joined by {RATE}", "ranks as dealt"
    try:
        found = measure(1 if quick else REPEATS)
    except NoHostsError as error:
        return [Row(what, RANKS, peer, "s", lacks=str(error))]
    figures = found.placed, found.as_dealt
    return [compared(what, RANKS, peer, "s", figures, Goal("ratio", "<=", 0.2))]


def measure(repeats: int = REPEATS, ranks: int = RANKS) -> Found:
    """Two hosts, a job with half of the ranks on each, and what its rank 0 found.

    Raises:
        NoHostsError: where this machine forbids network namespaces.
        RuntimeError: where the job failed.
    """
    with tempfile.TemporaryDirectory() as folder, two_hosts(Path(folder), *NAMES, rate=RATE) as two:
        started = [_started(two, number, ranks, repeats) for number in range(ranks)]
        try:
            said, _ = started[0].communicate(timeout=WAIT)
        finally:
            for process in started:
                process.kill()
                process.wait(10)
    if not said:
        raise RuntimeError("the job on two hosts failed; its ranks have said why")
    return Found(**json.loads(said))


def _started(hosts: Sequence[Host], number: int, ranks: int, repeats: int) -> subprocess.Popen[str]:
    host = hosts[number % len(hosts)]
    local = {"LOCAL_RANK": str(number // len(hosts)), "LOCAL_WORLD_SIZE": str(ranks // len(hosts))}
    where = {"MASTER_ADDR": hosts[0].address, "MASTER_PORT": "29778"}
    who = {"RANK": str(number), "WORLD_SIZE": str(ranks), **local, **where}
    own = {"GLOO_SOCKET_IFNAME": host.namespace, "OMP_NUM_THREADS": "1"}
    command = host.command(sys.executable, "-m", "benchmarks.placement", "--rank", str(repeats))
    environ = {**os.environ, **who, **own}
    out = subprocess.PIPE if number == 0 else subprocess.DEVNULL
    return subprocess.Popen(command, env=environ, stdout=out, text=True)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.placement", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument("--rank", type=int, metavar="REPEATS", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank:
        rank(asked.rank)
        return 0
    try:
        found = measure()
    except NoHostsError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps({**asdict(found), "ratio": found.ratio}) if asked.json else found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
