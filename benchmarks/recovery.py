"""Recovery: from the loss of a rank to the next finished step, beside a restart under torchrun.

Both sides train the same weights on the same mesh of gloo ranks, and one rank kills itself. After
``mesh.recover()`` the others go on in the same processes. torchrun starts all processes anew, which
build the mesh and load the checkpoint that rank 0 has written after each step. The time ends with
the last rank.

The seconds after the last error are those that ranks spend in ``mesh.recover()``, in ``restore``
and in the step. Before them a guard finds out which ranks are lost, and its report ends the
collectives of all other ranks, whichever rank they wait for.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import meshkit
from meshkit.testing.faults import Strike, play

from .harness import Goal, Row, alternate, compare, mesh_sizes, single

SMALL, RANKS, REPEATS, LARGE = 4, 8, 3, 64
AFTER_ERROR = {RANKS: Goal("ours", "<=", 2), LARGE: Goal("ours", "<=", 3)}
PEER = "torchrun --max-restarts=1"
LOST_AT, NUM_WEIGHTS, LIMIT = 3, 1_000_000, 300
GUARD = 5  # seconds that a collective may take


def run(quick: bool) -> list[Row]:
    """Return the rows of a loss on 8 ranks, and of the recovery alone on 64."""
    rest: list[float] = []
    whole = alternate(lambda: lose(RANKS, rest), restart, 1 if quick else REPEATS, warm_up=0)
    what = "from the last error of a lost rank to the next step"
    whole_of_four = [lose(SMALL, []) for _ in range(1 if quick else REPEATS)]
    loss = "from the loss of a rank to the next step"
    rows = [
        single(loss, SMALL, "s", whole_of_four, Goal("ours", "<=", 2)),
        compare(loss, RANKS, PEER, "s", whole),
        single(what, RANKS, "s", rest, AFTER_ERROR[RANKS]),
    ]
    if not quick:
        large: list[float] = []
        lose(LARGE, large)
        rows.append(single(what, LARGE, "s", large, AFTER_ERROR[LARGE]))
    return rows


def lose(ranks: int, after_error: list[float]) -> float:
    """Return the seconds from the loss to the end of the next step, and keep those after the error.

    Raises:
        RuntimeError: if not all other ranks go on.
    """
    played = play(survive, ranks, (ranks,), timeout=LIMIT)
    ends = [outcome for outcome in played.outcomes.values() if outcome.kind == "returned"]
    if len(ends) != ranks - 1:
        raise RuntimeError(f"{len(ends)} of {ranks} ranks went on: {played.outcomes}")
    times: list[tuple[float, float]] = [ast.literal_eval(end.text) for end in ends]
    after_error.append(max(finished for _, finished in times) - max(error for error, _ in times))
    return max(finished for _, finished in times) - played.at


def survive(strike: Strike, ranks: int) -> tuple[float, float]:
    """Lose the last rank; return when this one got the error, and when its next step ended."""
    mesh = meshkit.build_mesh({"dp": 2, "tp": 2} if ranks == SMALL else mesh_sizes(ranks))
    state: dict[str, Any] = {"weights": torch.zeros(NUM_WEIGHTS), "step": 0}
    failed_at = 0.0
    while state["step"] <= LOST_AT and mesh.inside:
        try:
            with mesh.guard(timeout=GUARD):
                mesh.recovery.restore(state)
                if state["step"] == LOST_AT and strike.rank == ranks - 1:
                    strike.kill()
                train_step(state, [mesh.group(axis) for axis in mesh.layout.axes])
        except meshkit.CollectiveError:
            failed_at = time.monotonic()
            mesh = mesh.recover(step=state["step"])
    finished = time.monotonic() if mesh.inside else 0.0
    mesh.close()
    return failed_at, finished


def train_step(state: dict[str, Any], groups: list[dist.ProcessGroup]) -> None:
    """Average over the groups, then change the weights and count the step."""
    update = torch.ones(NUM_WEIGHTS)
    for group in groups:
        dist.all_reduce(update, group=group)
    state["weights"] += update
    state["step"] += 1


def restart() -> float:
    """Return the seconds from the loss to the end of the next step, with all ranks started anew."""
    with tempfile.TemporaryDirectory(prefix="recovery-") as folder:
        launcher = f"-m torch.distributed.run --nproc-per-node={RANKS} --max-restarts=1"
        rendezvous = "--rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:0"
        command = [sys.executable, *launcher.split(), *rendezvous.split(), "-m", __name__, folder]
        subprocess.run(command, check=True, capture_output=True, timeout=LIMIT)
        ends = [float(path.read_text()) for path in Path(folder).glob("*.finished")]
        if len(ends) != RANKS:
            raise RuntimeError(f"{len(ends)} of {RANKS} ranks finished under torchrun")
        return max(ends) - float(Path(folder, "lost").read_text())


def train_under_torchrun(folder: Path) -> None:
    """Train with a checkpoint after each step; the last rank kills itself in the first attempt."""
    mesh = meshkit.build_mesh(mesh_sizes(RANKS))
    rank, groups = mesh.rank, [mesh.group(axis) for axis in mesh.layout.axes]
    state: dict[str, Any] = {"weights": torch.zeros(NUM_WEIGHTS), "step": 0}
    checkpoint = folder / "checkpoint"
    if checkpoint.exists():
        state = torch.load(checkpoint)
    while state["step"] <= LOST_AT:
        is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if state["step"] == LOST_AT and is_first and rank == RANKS - 1:
            (folder / "lost").write_text(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        train_step(state, groups)
        if rank == 0 and state["step"] <= LOST_AT:
            torch.save(state, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").rename(checkpoint)
    (folder / f"{rank}.finished").write_text(str(time.monotonic()))
    mesh.close()  # a process that ends without it is aborted now and then, and counts as a loss


if __name__ == "__main__":
    train_under_torchrun(Path(sys.argv[1]))
