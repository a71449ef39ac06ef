"""Two actors of Ray are the sampler of ``examples/rl.py``, whose trainer is a job of torchrun."""

from __future__ import annotations

import os
import sys

import ray

from examples import rl

RANKS = 2


class Actor:
    """One rank, in a process of Ray."""

    def run(self, rank: int, store: str, port: str, steps: int) -> None:
        """Sample until the last step."""
        names = {"RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_RANK": rank, "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in names.items()})
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        rl.run_side("sampler", store, {"dp": RANKS, "tp": 1}, steps)


def main(store: str, port: str, steps: str) -> None:
    """Start the actors, and wait for them."""
    ray.init(num_cpus=RANKS, include_dashboard=False, log_to_driver=True)
    actors = [ray.remote(Actor).options(num_cpus=1).remote() for _ in range(RANKS)]
    ray.get([actor.run.remote(n, store, port, int(steps)) for n, actor in enumerate(actors)])
    print("sampled")


if __name__ == "__main__":
    main(*sys.argv[1:])
