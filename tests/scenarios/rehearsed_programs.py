"""Random programs, rehearsed and then run: a rehearsal must agree with what gloo does.

``python -m tests.scenarios.rehearsed_programs --seed 0 --runs 300 -n 4`` draws 300 programs of 4
ranks. Half of them have a fault on one rank. All ranks are rehearsed, and then run on gloo:

* if the rehearsal matches, the run ends with the numbers that one process computes;
* if it does not match, the run hangs, raises, ends a process, or
  gives other numbers than the program without fault.

A disagreement prints the command that repeats it.
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist

import meshkit
from meshkit.layout.layout import Layout
from meshkit.testing import rehearse
from tests.pool import Pool

GRIDS = {
    4: [{"dp": 2, "tp": 2}],
    6: [{"dp": 3, "tp": 2}],
    8: [{"dp": 4, "tp": 2}, {"dp": 2, "sp": 2, "tp": 2}],
}
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier")
DTYPES = ("float32", "int32", "float64")
REDUCTIONS = ("SUM", "MAX")
FAULTS = ("skip", "repeat", "swap", "size", "dtype", "root", "reduction", "name")
LIMIT = 5.0  # seconds that a collective may take before a run counts as hung
PATIENT = 40.0  # the same, if a run seems to contradict the rehearsal on a busy machine


class Op(NamedTuple):
    """A collective or a message of one rank."""

    name: str
    axis: str
    number: int  # equal on the ranks that start it together
    size: int = 4  # elements that this rank passes to each other one
    dtype: str = "float32"
    reduction: str = "SUM"
    root: int = 0  # group rank of the root, or of the other end of a message
    waits_after: int = 0  # how many more operations start before this rank waits


Ops = list[Op]
Results = dict[int, list[float]]  # number of an operation to the numbers that it gave


@dataclass(frozen=True)
class Program:
    """The operations of each rank, with a fault and without."""

    sizes: Mapping[str, int]
    fault: str  # empty if none was drawn
    ops: tuple[Ops, ...]  # (ranks,)
    right: tuple[Ops, ...]

    @classmethod
    def draw(cls, chance: random.Random, num_ranks: int) -> Program:
        """Return a random program."""
        sizes = chance.choice(GRIDS[num_ranks])
        layout = Layout(**sizes)
        right: tuple[Ops, ...] = tuple([] for _ in range(num_ranks))
        for number in range(chance.randint(2, 7)):
            axis = chance.choice([*sizes])
            drawn = Op(
                chance.choice([*COLLECTIVES, "message", "message"]),
                axis,
                number,
                chance.randint(1, 6),
                chance.choice(DTYPES),
                chance.choice(REDUCTIONS),
                chance.randrange(sizes[axis]),
                chance.choice((0, 0, 1, 2)),
            )
            for rank, ops in enumerate(right):
                index = layout.coordinate(rank)[axis]
                target = (drawn.root + 1) % sizes[axis]
                if drawn.name != "message":
                    ops.append(drawn)
                elif index == drawn.root:
                    ops.append(drawn._replace(name="send", root=target))
                elif index == target:
                    ops.append(drawn._replace(name="recv"))
        wrong, fault = tuple([*ops] for ops in right), chance.choice(FAULTS)
        odd = wrong[chance.randrange(num_ranks)]
        if chance.random() < 0.5 or not odd:
            return cls(sizes, "", right, right)
        damage(odd, fault, chance.randrange(len(odd)), sizes)
        return cls(sizes, fault, wrong, right)


def damage(ops: Ops, fault: str, at: int, sizes: Mapping[str, int]) -> None:
    """Put a fault into the operations of a rank."""
    op = ops[at]
    if fault == "reduction" and op.name == "all_reduce" and op.size < sizes[op.axis]:
        return  # gloo lets each rank reduce some elements, and this rank none
    if fault == "skip":
        del ops[at]
    elif fault == "repeat":
        ops.insert(at, op._replace(number=op.number + 100))
    elif fault == "swap":
        ops.insert(max(at - 1, 0), ops.pop(at))
    else:
        others = {
            "size": op._replace(size=op.size + 1),
            "dtype": op._replace(dtype=DTYPES[DTYPES.index(op.dtype) - 1]),
            "root": op._replace(root=(op.root + 1) % sizes[op.axis]),
            "reduction": op._replace(reduction=REDUCTIONS[REDUCTIONS.index(op.reduction) - 1]),
            "name": op._replace(
                name=COLLECTIVES[(COLLECTIVES.index(op.name) + 1) % len(COLLECTIVES)]
            )
            if op.name in COLLECTIVES
            else op,
        }
        ops[at] = others[fault]


def own_numbers(op: Op, rank: int, count: int) -> torch.Tensor:
    """Return what a rank passes: other numbers for each rank, operation and element."""
    base = 1 + rank + 10 * op.number
    return (base + torch.arange(op.size * count) * 1000).to(getattr(torch, op.dtype))


def start(op: Op, group: dist.ProcessGroup, rank: int) -> tuple[dist.Work | None, torch.Tensor]:
    """Start an operation; return its work and the tensor that has its result."""
    count = group.size()
    many = op.name in ("reduce_scatter", "all_to_all")
    x = own_numbers(op, rank, count if many else 1)
    reduction = getattr(dist.ReduceOp, op.reduction)
    if op.name == "all_reduce":
        return dist.all_reduce(x, reduction, group, async_op=True), x
    if op.name == "broadcast":
        return dist.broadcast(x, group=group, group_src=op.root, async_op=True), x
    if op.name == "barrier":
        return dist.barrier(group, async_op=True), torch.zeros(0)
    if op.name in ("send", "recv"):
        peer = dist.get_global_rank(group, op.root)
        if peer == dist.get_rank():
            raise ValueError("a rank sends no message to itself.")
        if op.name == "send":
            return dist.isend(x, peer, group), torch.zeros(0)
        out = torch.zeros_like(x)
        return dist.irecv(out, peer, group), out
    if op.name == "all_gather":
        out = x.new_zeros(op.size * count)
        return dist.all_gather_into_tensor(out, x, group, async_op=True), out
    if op.name == "reduce_scatter":
        out = x.new_zeros(op.size)
        return dist.reduce_scatter_tensor(out, x, reduction, group, async_op=True), out
    out = torch.zeros_like(x)
    return dist.all_to_all_single(out, x, group=group, async_op=True), out


def run(sizes: Mapping[str, int], ops: Sequence[Ops], limit: float) -> Results | str:
    """Run the operations of this rank; return their numbers, or the error of the rank."""
    meshkit.init()
    warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 renames two collectives
    results: Results = {}
    with meshkit.build_mesh(dict(sizes), timeout=limit, arrival_timeout=120) as mesh:
        try:
            waiting: list[tuple[int, Op, dist.Work | None, torch.Tensor]] = []
            for turn, op in enumerate(ops[mesh.rank]):
                waiting.append(
                    (turn + op.waits_after, op, *start(op, mesh.group(op.axis), mesh.rank))
                )
                for due in [each for each in waiting if each[0] <= turn]:
                    waiting.remove(due)
                    finish(*due[1:], results)
            for each in waiting:
                finish(*each[1:], results)
        except (RuntimeError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
    return results


def play(sizes: Mapping[str, int], ops: Sequence[Ops]) -> None:
    """Run the operations in a rehearsal, which sees the errors of ranks."""
    outcome = run(sizes, ops, LIMIT)
    if isinstance(outcome, str):
        raise ValueError(outcome)


def finish(op: Op, work: dist.Work | None, out: torch.Tensor, results: Results) -> None:
    """Wait for an operation, and keep its numbers."""
    if work is not None:
        work.wait()
    results[op.number] = out.double().tolist()


def numbers_of(sizes: Mapping[str, int], programs: Sequence[Ops]) -> list[Results]:
    """Return the numbers of ranks that match, as one process computes them.

    The n-th collectives of the ranks of a group belong together, and the n-th messages of a pair.
    """
    layout, results = Layout(**sizes), [Results() for _ in programs]
    for axis in sizes:
        for members in layout.groups(axis).tolist():
            rows = [[op for op in programs[r] if op.axis == axis] for r in members]
            calls = [[op for op in row if op.name in COLLECTIVES] for row in rows]
            for together in zip(*calls, strict=True):
                count = len(members)
                many = together[0].name in ("reduce_scatter", "all_to_all")
                given = [
                    own_numbers(op, rank, count if many else 1).double()
                    for op, rank in zip(together, members, strict=True)
                ]
                for index, (op, rank) in enumerate(zip(together, members, strict=True)):
                    results[rank][op.number] = combine(op, given, index).tolist()
            for index, rank in enumerate(members):
                for other, peer in enumerate(members):
                    sent = [op for op in rows[other] if op.name == "send" and op.root == index]
                    taken = [op for op in rows[index] if op.name == "recv" and op.root == other]
                    for source, target in zip(sent, taken, strict=True):
                        results[rank][target.number] = (
                            own_numbers(source, peer, 1).double().tolist()
                        )
            for index, rank in enumerate(members):
                results[rank].update({op.number: [] for op in rows[index] if op.name == "send"})
    return results


def combine(op: Op, given: Sequence[torch.Tensor], index: int) -> torch.Tensor:
    """Return the result of a collective on one rank of its group."""
    if op.name == "barrier":  # its ranks may have drawn other sizes
        return torch.zeros(0)
    whole = torch.stack([*given])  # (ranks, elements)
    reduced = whole.sum(0) if op.reduction == "SUM" else whole.amax(0)
    part = slice(index * op.size, (index + 1) * op.size)
    return {
        "all_reduce": reduced,
        "reduce_scatter": reduced[part],
        "broadcast": whole[op.root],
        "all_gather": whole.reshape(-1),
        "all_to_all": whole[:, part].reshape(-1),
    }[op.name]


class Judged(NamedTuple):
    """A program, whether its rehearsal matched, and how a run contradicts that; empty if not."""

    program: Program
    matches: bool
    contradiction: str


class Runner:
    """Runs programs on gloo. A pool whose ranks hung or raised is replaced."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.pool: Pool | None = None

    def close(self) -> None:
        """End the ranks."""
        if self.pool is not None:
            self.pool.close()
        self.pool = None

    def run(self, program: Program, limit: float) -> list[Results] | str:
        """Return the numbers of all ranks, or the first error."""
        self.pool = self.pool or Pool(self.num_ranks)
        try:
            args = program.sizes, program.ops, limit
            outcomes = self.pool.run(run, *args, timeout=4 * limit + 120)
        except (AssertionError, OSError, EOFError) as error:  # gloo aborts the process of a rank
            self.close()
            return f"{type(error).__name__}: {error}"
        error = next((each for each in outcomes if isinstance(each, str)), None)
        return outcomes if error is None else error

    def judge(self, program: Program) -> Judged:
        """Rehearse a program and run it."""
        ranks = self.num_ranks
        report = rehearse(play, ranks, (program.sizes, program.ops), ranks="all", timeout=600)
        for limit in (LIMIT, PATIENT):
            outcome = self.run(program, limit)
            if report.ok:
                right = numbers_of(program.sizes, program.ops)
                text = f"matched, and the run ended with {outcome}"
            else:
                right = numbers_of(program.sizes, program.right)
                text = f"did not match, and the run ended as without the fault: {report}"
            is_right = outcome == right
            if is_right == report.ok:
                return Judged(program, report.ok, "")
        return Judged(program, report.ok, text)


def main(words: Sequence[str] | None = None) -> int:
    """Rehearse and run programs from a command line; return 1 if one is contradicted."""
    parser = argparse.ArgumentParser(
        "python -m tests.scenarios.rehearsed_programs", description=__doc__
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seed", type=int, default=0, help="seed of the first program")
    parser.add_argument("--runs", type=int, default=300, help="number of programs")
    parser.add_argument(
        "-n", "--num-ranks", type=int, default=4, choices=[*GRIDS], help="ranks of each"
    )
    options = parser.parse_args(words)
    runner, counts, contradicted = Runner(options.num_ranks), Counter[str](), 0
    try:
        for seed in range(options.seed, options.seed + options.runs):
            program = Program.draw(random.Random(seed), options.num_ranks)
            matches, contradiction = runner.judge(program)[1:]
            fault = program.fault or "no fault"
            counts[f"{fault}, {'matches' if matches else 'no match'}"] += 1
            if contradiction:
                contradicted += 1
                call = f"--seed {seed} --runs 1 -n {options.num_ranks}"
                print(f"seed {seed}: {fault}: {contradiction}")
                print(f"  python -m tests.scenarios.rehearsed_programs {call}")
            done = seed - options.seed + 1
            print(f"{done} programs, {contradicted} contradicted", file=sys.stderr, flush=True)
    finally:
        runner.close()
    print(f"{options.runs} programs, {contradicted} contradicted")
    for name, count in sorted(counts.items()):
        print(f"  {name}: {count}")
    return int(contradicted > 0)


if __name__ == "__main__":
    sys.exit(main())
