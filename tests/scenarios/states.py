"""Lose and admit ranks at random moments of a training, and compare it with one process.

``python -m tests.scenarios.states --kind hsdp --seed 7 --runs 20`` trains a small model 20 times on
4 to 8 local ranks. In each run one rank is killed or stopped, and the others go on. Losses and
weights must equal those of one process to 1e-9. A difference prints the command that repeats it.
"""

from __future__ import annotations

import argparse
import ast
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import meshkit
from meshkit.launch.job import require_job
from meshkit.launch.newcomer import find_newcomers
from meshkit.testing.faults import Played, Strike, play

STEPS, GLOBAL_BATCH = 5, 12
GUARD = 3.0  # seconds of a step
FIRST = 10.0  # seconds of a step with a new model, on a busy machine
WAIT = 60.0  # seconds for a process to start on a busy machine
TOLERANCE = 1e-9
HSDP_TP = {"replicate": 2, "shard": 2, "tp": 2}


@dataclass(frozen=True)
class Kind:
    """A kind of state: the mesh, the model, and the acts of the ranks."""

    sizes: Mapping[str, int]
    sharding: str = ""  # the axes of fully_shard; empty for DDP
    tensor_parallel: str = ""  # of "column", "row"
    norm: bool = False
    widths: tuple[int, int, int] = (4, 8, 4)
    spares: int = 0  # ranks beside the mesh
    behind: bool = False  # whether a rank stops before it changes its weights
    admits: bool = False  # whether the lost rank comes back

    @property
    def ranks(self) -> int:
        """The number of processes."""
        return meshkit.Layout(**self.sizes).num_ranks + self.spares


HSDP = "replicate shard"
KINDS = {
    "ddp": Kind({"dp": 4}),
    "hsdp": Kind({"replicate": 2, "shard": 2}, HSDP),
    "uneven shards": Kind({"replicate": 2, "shard": 3}, HSDP, widths=(4, 7, 5)),
    "spares": Kind({"replicate": 2, "shard": 2}, HSDP, spares=2),
    "a step behind": Kind({"dp": 4}, behind=True),
    "a shard a step behind": Kind({"replicate": 3, "shard": 2}, HSDP, behind=True),
    "admission": Kind({"dp": 4}, admits=True),
    "admission of a shard": Kind({"replicate": 2, "shard": 2}, HSDP, admits=True),
    **{
        f"tp {layers}{' norm' * norm}": Kind(HSDP_TP, HSDP, layers, norm)
        for layers in ("column", "row", "column row")
        for norm in (False, True)
    },
}


@dataclass(frozen=True)
class Case:
    """One run: a kind, and its fault."""

    kind: str  # of KINDS
    seed: int  # of the fault

    @property
    def fault(self) -> tuple[int, int, str, float, int]:
        """The rank, the step, kill or stop, the seconds after the begin, and the rank behind."""
        chance, ranks = random.Random(self.seed), KINDS[self.kind].ranks
        odd, behind = chance.sample(range(ranks - KINDS[self.kind].spares), 2)
        how = "kill" if KINDS[self.kind].admits else chance.choice(["kill", "stop"])
        seconds = chance.choice([0.0, chance.uniform(0, 0.1)]) * (not KINDS[self.kind].admits)
        return odd, chance.randrange(STEPS - 2), how, seconds, behind


def make(kind: Kind, mesh: meshkit.Mesh | None, seed: int) -> tuple[Any, ...]:
    """Return a model, its optimizer and its log, on a mesh or on one process."""
    torch.manual_seed(seed)
    first, hidden, last = kind.widths
    norm = nn.LayerNorm(first) if kind.norm else nn.Identity()
    layers = norm, nn.Linear(first, hidden), nn.Tanh(), nn.Linear(hidden, last)
    model: Any = nn.Sequential(*layers).to(torch.float64)
    if mesh is not None and kind.tensor_parallel:
        column, row = ColwiseParallel(output_layouts=Replicate()), RowwiseParallel
        plans = {
            "column": {"1": column, "3": column},
            "row": {"1": row(input_layouts=Replicate()), "3": row(input_layouts=Replicate())},
            "column row": {"1": ColwiseParallel(), "3": row()},
        }
        parallelize_module(model, mesh.device_mesh("tp"), plans[kind.tensor_parallel])
    if mesh is not None and kind.sharding:
        fully_shard(model, mesh=mesh.device_mesh(kind.sharding))
    elif mesh is not None:
        model = DistributedDataParallel(model, process_group=mesh.gradient_group())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return model, optimizer, {"losses": []}


def begin_step(kind: Kind, state: Sequence[Any], mesh: meshkit.Mesh | None) -> torch.Tensor:
    """Run forward and backward on the samples of this rank; return the mean loss of all."""
    model, optimizer, log = state
    batch = torch.arange(GLOBAL_BATCH * kind.widths[0], dtype=torch.float64)
    batch = batch.reshape(GLOBAL_BATCH, -1).sin() + len(log["losses"])
    if mesh is not None:
        index, size = mesh.group_rank(*data_axes(mesh)), mesh.size(*data_axes(mesh))
        batch = batch.chunk(size)[index]
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    mean: torch.Tensor = loss.detach().clone()
    if mesh is not None:
        # over all axes: else ranks of one tp index could take a step that all of another one miss
        dist.all_reduce(mean, group=mesh.group())
        mean /= mesh.size()
    return mean


def data_axes(mesh: meshkit.Mesh) -> list[str]:
    return [axis for axis in mesh.layout.axes if axis != "tp"]


def end_step(state: Sequence[Any], mean: torch.Tensor) -> None:
    """Change the weights, and count the step."""
    state[1].step()
    state[2]["losses"].append(float(mean))


def weights(state: Sequence[Any]) -> list[Any]:
    full = [getattr(p, "full_tensor", lambda p=p: p)() for p in state[0].parameters()]
    return [value.detach().flatten().tolist() for value in full]


def train_alone(kind: Kind) -> tuple[list[float], list[Any]]:
    """Return losses and weights of one process."""
    state = make(kind, None, 0)
    for _ in range(STEPS):
        end_step(state, begin_step(kind, state, None))
    return state[2]["losses"], weights(state)


def run_step(
    strike: Strike, case: Case, mesh: meshkit.Mesh, state: Sequence[Any], first_rank: int
) -> None:
    """Run a step, with the fault of the case if this is its step and its rank."""
    odd, at, how, seconds, behind = case.fault
    is_due = len(state[2]["losses"]) == at and not (strike.start or mesh.recovery.regrouped)
    if is_due and first_rank == odd:
        fault = getattr(strike, how)
        strike.later(seconds, fault) if seconds else fault()
    mean = begin_step(KINDS[case.kind], state, mesh)
    time.sleep(0.05)  # the fault comes before the end
    if is_due and KINDS[case.kind].behind and first_rank == behind:
        time.sleep(0.2)  # the others have changed their weights
        raise RuntimeError("gloo: Connection closed by peer, as played")
    end_step(state, mean)
    dist.all_reduce(torch.ones(1), group=mesh.group())


def train(strike: Strike, case: Case) -> Any:
    """Train on one rank, with the fault of the case; return its losses and the weights."""
    torch.set_num_threads(1)
    kind = KINDS[case.kind]
    meshkit.init(arrival_timeout=WAIT)
    mesh = meshkit.build_mesh(kind.sizes, ranks=range(kind.ranks - kind.spares))
    first_rank, waits = mesh.rank, kind.admits
    state: Any = None
    built: meshkit.Mesh | None = None
    while (done := len(state[2]["losses"]) if state else 0) < STEPS and not mesh.recovery.is_over:
        try:
            if not mesh.inside:  # a spare
                mesh.recovery.restore(*(state or ()))
                mesh = mesh.recover(step=done)
                continue
            with mesh.guard(timeout=GUARD if built is mesh else FIRST):
                if built is not mesh:
                    new = make(kind, mesh, 7 if mesh.recovery.regrouped else 0)
                    mesh.recovery.restore(*new, held=state or (None,) * len(new))
                    state, built = new, mesh
                run_step(strike, case, mesh, state, first_rank)
            if kind.admits and len(state[2]["losses"]) < STEPS:
                if waits and mesh.group_rank() == 0 and require_job().membership.lost:
                    waits = not wait_for_newcomer()
                mesh = mesh.admit(step=len(state[2]["losses"]))
        except meshkit.CollectiveError:
            mesh = mesh.recover(step=len(state[2]["losses"]) if state else 0)
    result = None
    if mesh.inside:
        with mesh.guard(timeout=WAIT):
            result = state[2]["losses"], weights(state)
    mesh.close()
    meshkit.shutdown()
    return result


def wait_for_newcomer() -> bool:
    deadline = time.monotonic() + WAIT
    while not find_newcomers(require_job())[1]:
        if time.monotonic() > deadline:
            raise TimeoutError("the lost rank does not come back")
        time.sleep(0.02)
    return True


def run_cases(cases: Sequence[Case], at_once: int = 2) -> Iterator[tuple[Case, list[str] | None]]:
    """Yield each case with a line for each difference, or None if its fault did not fire.

    One thread compares, since the models of one process take the seed of the process.
    """
    with ThreadPoolExecutor(at_once) as pool:
        for case, played in zip(cases, pool.map(play_case, cases), strict=True):
            is_fired = played.fired == case.fault[0]
            alone = train_alone(KINDS[case.kind])
            yield case, find_differences(case, played, alone) if is_fired else None


def play_case(case: Case) -> Played:
    """Run a case on its ranks."""
    kind = KINDS[case.kind]
    return play(train, kind.ranks, (case,), timeout=150, restarts=int(kind.admits))


def find_differences(case: Case, played: Played, alone: tuple[list[float], list[Any]]) -> list[str]:
    """Return a line for each difference of a run from one process."""
    kind, odd = KINDS[case.kind], case.fault[0]
    lines, results = [], []
    for rank in range(kind.ranks):
        outcome = played.outcomes.get(rank)
        if outcome is None and (rank != odd or kind.admits):
            lines.append(f"rank {rank} did not end: {played.ends[rank]}")
        elif outcome is not None and outcome.kind != "returned":
            lines.append(f"rank {rank} raised {outcome.kind}: {outcome.text}")
        elif outcome is not None and outcome.text != "None":
            results.append((rank, ast.literal_eval(outcome.text)))
    losses, full = alone
    for rank, (own_losses, own_full) in results:
        close = partial(torch.allclose, rtol=0, atol=TOLERANCE)
        pairs = zip([losses, *full], [own_losses, *own_full], strict=True)
        tensors = [tuple(torch.tensor(v, dtype=torch.float64) for v in pair) for pair in pairs]
        if not all(a.shape == b.shape and close(a, b) for a, b in tensors):
            lines.append(f"rank {rank} differs from one process: losses {own_losses}, not {losses}")
    return lines or ([] if results else ["no rank has a result"])


def main(words: Sequence[str] | None = None) -> int:
    """Run cases from a command line; return 1 if a run differs from one process."""
    parser = argparse.ArgumentParser("python -m tests.scenarios.states", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--kind", choices=KINDS, help="the kind of state; all without it")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first run of each kind")
    parser.add_argument("--runs", type=int, default=5, help="runs of each kind")
    parser.add_argument("--at-once", type=int, default=2, help="runs at the same time")
    options = parser.parse_args(words)
    kinds = [options.kind] if options.kind else [*KINDS]
    seeds = range(options.seed, options.seed + options.runs)
    cases = [Case(kind, seed) for kind in kinds for seed in seeds]
    counts: Counter[tuple[str, str]] = Counter()
    for case, lines in run_cases(cases, options.at_once):
        outcome = "not fired" if lines is None else "differs" if lines else "equal"
        counts[case.kind, outcome] += 1
        for line in lines or ():
            print(f"{case.kind}, {case.fault}: {line}")
        if lines:
            command = f"--kind '{case.kind}' --seed {case.seed} --runs 1"
            print(f"  python -m tests.scenarios.states {command}", flush=True)
    for (kind, outcome), count in sorted(counts.items()):
        print(f"{kind}: {count} {outcome}")
    return int(any(outcome == "differs" for _, outcome in counts))


if __name__ == "__main__":
    sys.exit(main())
