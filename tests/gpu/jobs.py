"""Jobs that ``.ci/gpu`` starts: python tests/gpu/jobs.py JOB RANKS DEVICE BACKEND.

The jobs are healthy, hang, kill and recovery. Each prints the outcome of every rank, and exits with
1 if one is not as expected.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
import torch.distributed as dist

import meshkit
from meshkit.testing.faults import Strike, play

LIMIT = 10.0  # seconds of a guard


def join(strike: Strike, ranks: int, kind: str, backend: str) -> tuple[meshkit.Mesh, torch.device]:
    """Join the job, on a GPU of its own if there are enough."""
    count = torch.cuda.device_count() if kind == "cuda" else 0
    device = f"cuda:{strike.rank % count}" if count else "cpu"
    meshkit.init(backend=backend, device=device, timeout=120, arrival_timeout=60)
    mesh = meshkit.build_mesh(dp=ranks, tp=1)
    total(mesh, torch.device(device))
    return mesh, torch.device(device)


def total(mesh: meshkit.Mesh, device: torch.device) -> float:
    """Return the number of ranks, as an all-reduce counts them."""
    tensor = torch.ones(1 << 20, device=device)
    dist.all_reduce(tensor, group=mesh.group("dp"))
    return tensor[0].item()


def run(strike: Strike, job: str, ranks: int, kind: str, backend: str) -> Any:
    """Run four steps; the last rank hangs or is killed before the third."""
    mesh, device = join(strike, ranks, kind, backend)
    done, began, took, missing = 0, 0.0, 0.0, None
    while done < 4 and mesh.inside:
        try:
            with mesh.guard(timeout=LIMIT):
                if done == 2 and mesh.rank == ranks - 1 and job in ("hang", "kill", "recovery"):
                    strike.stop() if job == "hang" else strike.kill()
                began = time.monotonic()
                total(mesh, device)
                mesh.commit()
            done += 1
        except meshkit.CollectiveError as error:
            took, missing = time.monotonic() - began, error.missing_ranks
            if job != "recovery":
                break
            mesh = mesh.recover(step=done)
    result = done, mesh.size("dp"), missing, round(took)
    if missing is None or job == "recovery":
        mesh.close()
        meshkit.shutdown()
    return result


def main(job: str, size: str, kind: str, backend: str) -> int:
    """Play the job, and compare the outcomes."""
    ranks = int(size)
    played = play(run, ranks, (job, ranks, kind, backend), timeout=80)
    last = (ranks - 1,)
    expected = {
        "healthy": (4, ranks, None),
        "hang": (2, ranks, last),
        "kill": (2, ranks, last),
        "recovery": (4, ranks - 1, last),
    }[job]
    is_right = (played.fired is None) == (job == "healthy")
    for rank in range(ranks - (job != "healthy")):
        outcome = played.outcomes.get(rank)
        print(rank, played.ends[rank], outcome.kind if outcome else "no outcome")
        print("  ", outcome.text if outcome else "", f"expected {expected}")
        is_right &= outcome is not None and outcome.text.startswith(str(expected)[:-1])
    print(job, "as expected" if is_right else "NOT as expected")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
