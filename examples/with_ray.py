"""Lay out actors of Ray as one job: an actor and a critic model side by side.

    python examples/with_ray.py [--actor 2] [--critic 2]

Needs ``pip install -e '.[ray]'``. Ray starts the processes, so no variable says which rank each
of them is: ``meshkit.init`` takes rank, size and address as arguments. The actor model proposes
numbers, and the critic model scores them; each has a mesh of its own ranks, and the mesh of all
ranks carries the numbers.
"""

from __future__ import annotations

import argparse
import socket
import sys
from collections import Counter
from typing import Any

import ray
import torch
import torch.distributed as dist

import meshkit


class Worker:
    """One rank, in a process of Ray."""

    def address(self) -> tuple[str, int]:
        """Return the host of this process, and a port that is free there."""
        host = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind(("", 0))
            return host, probe.getsockname()[1]

    def join(self, rank: int, local_rank: int, parts: dict[str, range], address: str) -> str:
        """Join the job, and build the mesh of all ranks and one for each model."""
        world_size = sum(map(len, parts.values()))
        world = meshkit.init(
            rank=rank, world_size=world_size, local_rank=local_rank, init_method=address
        )
        self.device = world.device
        self.all = meshkit.build_mesh(dp=-1)
        self.meshes = {name: meshkit.build_mesh(ranks=ranks) for name, ranks in parts.items()}
        self.name = next(name for name, mesh in self.meshes.items() if mesh.inside)
        torch.manual_seed(rank)
        self.weight = torch.zeros(1, device=self.device)
        return f"rank {rank}: {self.name} {self.meshes[self.name].coordinate}"

    def step(self) -> float:
        """Let the actor model move towards the number that the critic model rewards, 3."""
        dp = self.meshes[self.name].group("dp")
        number = self.weight + torch.randn(1, device=self.device) / 10
        first_actor, first_critic = (mesh.layout.grid.flat[0] for mesh in self.meshes.values())
        if self.name == "actor":
            dist.all_reduce(number, group=dp)
            number /= self.meshes["actor"].size("dp")
        dist.broadcast(number, int(first_actor), group=self.all.group())
        slope = 2 * (3 - number)  # of the reward -(number - 3) ** 2
        dist.broadcast(slope, int(first_critic), group=self.all.group())
        if self.name == "actor":
            self.weight += 0.2 * slope
        return float(number)

    def leave(self) -> None:
        """Leave the job."""
        meshkit.shutdown()


def main(actor: int, critic: int) -> None:
    """Start the workers, train, and print the proposed numbers."""
    parts = meshkit.split_world(actor=actor, critic=critic)
    workers: list[Any] = [ray.remote(Worker).remote() for _ in range(actor + critic)]
    addresses = ray.get([worker.address.remote() for worker in workers])
    host, port = addresses[0]
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"  # of an IPv6 address
    on_node: Counter[str] = Counter()
    joining = []
    for rank, (worker, (node, _)) in enumerate(zip(workers, addresses, strict=True)):
        joining.append(worker.join.remote(rank, on_node[node], parts, f"tcp://{place}"))
        on_node[node] += 1
    sys.stdout.write("".join(f"{line}\n" for line in ray.get(joining)))
    numbers = [ray.get([worker.step.remote() for worker in workers]) for _ in range(10)]
    sys.stdout.write(f"proposed {' '.join(f'{by_rank[0]:.2f}' for by_rank in numbers)}\n")
    difference = max(max(by_rank) - min(by_rank) for by_rank in numbers)
    sys.stdout.write(f"difference between ranks {difference}\n")
    ray.get([worker.leave.remote() for worker in workers])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Lay out actors of Ray as one job.")
    parser.add_argument("--actor", type=int, default=2, help="ranks of the actor model")
    parser.add_argument("--critic", type=int, default=2, help="ranks of the critic model")
    arguments = parser.parse_args()
    ray.init(num_cpus=arguments.actor + arguments.critic, include_dashboard=False)
    try:
        main(arguments.actor, arguments.critic)
    finally:
        ray.shutdown()
