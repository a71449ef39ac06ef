"""Three actors of Ray: one is killed, the others go on, and they admit an actor in its place."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

import ray
import torch
import torch.distributed as dist

import meshkit

RANKS, ODD, WAIT = 3, 1, 100.0


def add(mesh: meshkit.Mesh) -> float:
    """Return how many ranks add up, which a guard watches."""
    total = torch.ones(1)
    with mesh.guard(timeout=30):
        dist.all_reduce(total, group=mesh.group())
    return float(total)


class Actor:
    """One rank, in a process of Ray."""

    def run(self, rank: int, store: str, dies: bool) -> list[float]:
        """Join the job; return the sums after the loss, if this rank sees it, and at the end."""
        meshkit.init(rank=rank, world_size=RANKS, init_method=store, arrival_timeout=60)
        mesh = meshkit.build_mesh(dp=-1)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        sums, deadline = [], time.monotonic() + WAIT
        try:
            sums += [] if mesh.recovery.new_ranks else [add(mesh)]
        except meshkit.CollectiveError:
            mesh = mesh.recover()
            sums.append(add(mesh))
        while mesh.size() < RANKS and add(mesh) and time.monotonic() < deadline:
            mesh = mesh.admit()
            time.sleep(0.2)
        sums.append(add(mesh))
        mesh.close()
        meshkit.shutdown()
        return sums


def main(store: str) -> None:
    """Start the actors, and one more for the actor that dies; print the sums of each rank."""
    actor: Any = ray.remote(Actor)
    actors = [actor.remote() for _ in range(RANKS)]
    pending = [a.run.remote(rank, store, rank == ODD) for rank, a in enumerate(actors)]
    try:
        ray.get(pending[ODD])
    except ray.exceptions.RayActorError:
        actors.append(actor.remote())
        pending[ODD] = actors[-1].run.remote(ODD, store, dies=False)
    sys.stdout.write(json.dumps(ray.get(pending)) + "\n")


if __name__ == "__main__":
    ray.init(num_cpus=RANKS + 1, include_dashboard=False)
    try:
        main(sys.argv[1])
    finally:
        ray.shutdown()
