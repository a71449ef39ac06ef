"""Placement: a tp all-reduce with ``place=True``, beside the same ranks in the launcher's order.

As root on Linux, the benchmark makes two hosts: network namespaces joined by a link of 200 Mbit/s.
It assigns ranks to them in turn, as Slurm's cyclic distribution does. One job builds ``dp=2 tp=4``
without and with ``place=True``, and times a 4 MiB all-reduce over all tp groups at once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import meshkit

from .harness import Goal, Row, alternate, compare

RANKS, REPEATS = 8, 5
RATE, ITEMS = "200mbit", 2**20  # of float32: 4 MiB
TIMEOUT = 300.0  # seconds for the whole job
PORT = 29778
FASTER = Goal("ratio", "<=", 0.2)


def run(quick: bool) -> list[Row]:
    """Return one row: tp within hosts beside tp across hosts."""
    what, peer = f"all_reduce over tp=4, hosts joined by {RATE}", "ranks as dealt"
    try:
        times = measure(1 if quick else REPEATS)
    except NoHostsError as error:
        return [Row(what, RANKS, peer, "s", missing=str(error))]
    return [compare(what, RANKS, peer, "s", (times["placed"], times["cyclic"]), FASTER)]


def measure(repeats: int, ranks: int = RANKS) -> dict[str, Any]:
    """Run a job on two hosts; return the times and the tp groups of rank 0, in both orders.

    Raises:
        NoHostsError: if this machine forbids network namespaces.
        RuntimeError: if the job fails.
    """
    with tempfile.TemporaryDirectory() as folder, two_hosts(Path(folder), "a", "b", rate=RATE) as h:
        processes = [start_rank(h, rank, ranks, repeats) for rank in range(ranks)]
        try:
            output, _ = processes[0].communicate(timeout=TIMEOUT)
        finally:
            for process in processes:
                process.kill()
                process.wait(10)
    if not output:
        raise RuntimeError("the job on two hosts failed; see the errors of its ranks")
    times: dict[str, Any] = json.loads(output)
    return times


def start_rank(hosts: Sequence[Host], rank: int, ranks: int, repeats: int) -> subprocess.Popen[str]:
    """Start a rank on its host; rank 0 prints the times."""
    host = hosts[rank % len(hosts)]
    variables = {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank // len(hosts)),
        "LOCAL_WORLD_SIZE": str(ranks // len(hosts)),
        "MASTER_ADDR": hosts[0].address,
        "MASTER_PORT": str(PORT),
        "GLOO_SOCKET_IFNAME": host.namespace,
        "OMP_NUM_THREADS": "1",
    }
    command = host.command(sys.executable, "-m", "benchmarks.placement", str(repeats))
    out = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
    return subprocess.Popen(command, env=os.environ | variables, stdout=out, text=True)


def run_rank(repeats: int) -> None:
    """Time both meshes on one rank of the job; rank 0 prints the times. Collective."""
    meshkit.init(timeout=TIMEOUT)
    cyclic = meshkit.build_mesh(dp=2, tp=-1, crossing={"tp": "allow"})
    placed = meshkit.build_mesh(dp=2, tp=-1, place=True, crossing={"tp": "error"})
    # the first repetition opens connections and fills buffers
    times = alternate(lambda: time_all_reduce(cyclic), lambda: time_all_reduce(placed), repeats)
    if cyclic.rank == 0:
        groups = {
            "tp_cyclic": cyclic.peers("tp").tolist(),
            "tp_placed": placed.peers("tp").tolist(),
        }
        print(json.dumps({"cyclic": times[0], "placed": times[1], **groups}))
    meshkit.shutdown()


def time_all_reduce(mesh: meshkit.Mesh) -> float:
    """Return the seconds of one all-reduce over every tp group at once, on the slowest rank."""
    group, data = mesh.group("tp"), torch.ones(ITEMS)
    mesh.barrier()
    began = time.perf_counter()
    dist.all_reduce(data, group=group)
    seconds = torch.tensor([time.perf_counter() - began])
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    if not bool((data == mesh.size("tp")).all()):
        raise RuntimeError("the sum over tp is wrong")
    return float(seconds)


# Make two namespaces $1 and $2 with one link. Each end of the link has the name of its host, and is
# made inside: other programs on this machine would see an interface come and go.
CONNECT = """
ip netns add $1 && ip netns add $2
ip -n $1 link add $1 type veth peer name $2 netns $2
for i in 1 2; do
    eval host=\\$$i
    ip -n $host address add 10.77.0.$i/24 dev $host
    ip -n $host link set $host up
    ip -n $host link set lo up
    [ -z "$3" ] || tc -n $host qdisc add dev $host root tbf rate $3 burst 64kb latency 400ms
done
"""
# In the namespaces of a host: set its host name and its /etc/hosts, then run the command.
ENTER = (
    'hostname "$1" && mount --bind "$2" /etc/hosts && export MESHKIT_MACHINE="$1" && shift 2 && '
    'exec "$@"'
)


class NoHostsError(RuntimeError):
    """This machine forbids network namespaces, or lacks the programs that make them."""


@dataclass(frozen=True)
class Host:
    """A network namespace with an address and a host name; its interface has the same name."""

    name: str
    address: str
    namespace: str
    hosts_file: Path

    def command(self, *argv: str) -> list[str]:
        """Return the command that runs ``argv`` on this host."""
        inside = ["nsenter", f"--net=/run/netns/{self.namespace}", "unshare", "--mount", "--uts"]
        return [*inside, "sh", "-c", ENTER, "sh", self.name, str(self.hosts_file), *argv]


@contextmanager
def two_hosts(folder: Path, *names: str, rate: str | None = None) -> Iterator[list[Host]]:
    """Make two hosts that reach each other and nothing else.

    ``rate`` is the speed of the link, as ``tc`` writes it: ``"200mbit"``. None sets no limit.

    Raises:
        NoHostsError: if the machine forbids network namespaces.
    """
    file, spaces = folder / "hosts", [f"mk{os.getpid()}{letter}" for letter in "ab"]
    hosts = [Host(names[i], f"10.77.0.{i + 1}", spaces[i], file) for i in (0, 1)]
    lines = [f"{host.address} {host.name}\n" for host in hosts]
    file.write_text("127.0.0.1 localhost\n" + "".join(lines))
    steps = [["sh", "-ec", CONNECT, "sh", *spaces, rate or ""], *(h.command("true") for h in hosts)]
    try:
        for step in steps:
            process = subprocess.run(step, capture_output=True, text=True)
            if process.returncode:
                raise NoHostsError(f"no network namespaces: {process.stderr.strip()}")
        yield hosts
    finally:
        for space in spaces:
            subprocess.run(["sh", "-c", f"ip netns delete {space}"], capture_output=True)


if __name__ == "__main__":
    run_rank(int(sys.argv[1]))
