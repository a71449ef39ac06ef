"""Break jobs at random moments, and check the promises about failures.

``python -m tests.scenarios.fuzz --seed 7 --runs 20 -n 6`` starts 20 jobs of 6 local processes each.
In every job one rank suffers a fault at a random moment: it is killed or stopped, sleeps, raises,
or exits. Then each other rank must end in the promised time, with an error that names the rank, or
with none if the fault came when all was over. A violation prints the command that repeats it.

The faults hit ``init``, ``build_mesh``, collectives and ``close`` alike. Ranks reach each other by
``file://`` or by ``tcp://``.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from meshkit.launch.detect import detect
from meshkit.launch.init import init
from meshkit.launch.join import shutdown
from meshkit.launch.world import free_port
from meshkit.mesh.build_mesh import build_mesh
from meshkit.testing.faults import Played, Strike, play

FAULTS = ("kill", "stop", "sleep", "raise", "exit")
STORES = ("file", "tcp")
LIMIT = 4.0  # seconds that ranks wait for each other, and for a collective
SLEEP = 60.0  # seconds of a rank that sleeps
CREATION = 10.0  # seconds that the creation of groups may take at least, see promises.md
GRACE = 9.0  # the most seconds that a promise adds: a guard whose collector has gone too
BUSY = 6.0  # seconds that other work on the machine may add
KINDS = ("CollectiveError", "RankTimeoutError", "DisagreementError", "LaunchError", "returned")

Job = Callable[[Strike, str | None], object]


class FuzzError(Exception):
    """The error that a fault raises on its rank."""


@dataclass(frozen=True)
class Case:
    """One fault: of which rank, when and how, in a job of some ranks over a kind of store."""

    fault: str  # of FAULTS
    store: str  # of STORES
    num_ranks: int
    odd: int  # the rank with the fault
    delay: float  # seconds from the start of that rank to the fault

    @classmethod
    def draw(cls, chance: random.Random, num_ranks: int) -> Case:
        """Return a random case."""
        fault, store = chance.choice(FAULTS), chance.choice(STORES)
        return cls(fault, store, num_ranks, chance.randrange(num_ranks), chance.uniform(0, 2.5))

    def __str__(self) -> str:
        return (
            f"{self.fault} rank {self.odd} of {self.num_ranks} after {self.delay:.3f} s, "
            f"store {self.store}"
        )


def use_mesh(strike: Strike, init_method: str | None) -> str:
    """Join, build a mesh, run collectives in a guard, close and leave: the job that is broken."""
    init(init_method=init_method, arrival_timeout=LIMIT, timeout=LIMIT)
    try:
        with build_mesh(dp=-1, timeout=LIMIT, arrival_timeout=LIMIT) as mesh:
            with mesh.guard(timeout=LIMIT):
                for _ in range(100):
                    dist.all_reduce(torch.ones(8), group=mesh.group("dp"))
                    time.sleep(0.01)
            mesh.barrier(timeout=LIMIT)
    finally:
        shutdown()
    return "through"


def _run_case(strike: Strike, case: Case, job: Job, port: int) -> object:
    """Run the job on one rank; on the odd rank the fault comes after its delay."""
    if detect().rank == case.odd:
        _arm(strike, case)
    return job(strike, f"tcp://127.0.0.1:{port}" if case.store == "tcp" else None)


def _arm(strike: Strike, case: Case) -> None:
    """Let the fault come after the delay, from a thread or in the main thread."""
    if case.fault in ("kill", "stop"):
        strike.later(case.delay, {"kill": strike.kill, "stop": strike.stop}[case.fault])
        return

    def interrupt(*_: object) -> None:
        strike.note()
        if case.fault == "sleep":
            time.sleep(SLEEP)
        raise SystemExit(3) if case.fault == "exit" else FuzzError("a fault")

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, max(case.delay, 0.001))


def _violations(case: Case, played: Played, busy: float) -> list[str]:
    """Return a line for each promise that a rank has broken."""
    lines = []
    promised = LIMIT + CREATION + GRACE + busy
    for rank in (rank for rank in range(case.num_ranks) if rank != case.odd):
        outcome = played.outcomes.get(rank)
        if outcome is None:
            lines.append(f"rank {rank} did not end: {played.ends[rank]}")
            continue
        if outcome.kind not in KINDS:
            lines.append(f"rank {rank} raised {outcome.kind}: {outcome.text}")
        if outcome.at - played.at > promised:
            seconds = outcome.at - played.at
            lines.append(f"rank {rank} ended after {seconds:.1f} s, promised {promised:g} s")
        strangers = set(outcome.missing_ranks) - {case.odd}
        knows_less = case.store == "tcp" and case.odd == 0  # the fault also ends the store
        if strangers and case.odd not in outcome.missing_ranks and not knows_less:
            lines.append(f"rank {rank} named ranks {sorted(strangers)}: {outcome.text}")
        if strangers and case.fault in ("kill", "stop") and case.odd in outcome.missing_ranks:
            lines.append(f"rank {rank} named ranks {sorted(strangers)} too: {outcome.text}")
    return lines


def run_case(case: Case, job: Job = use_mesh, busy: float = BUSY) -> list[str] | None:
    """Run one case, and return the broken promises; None if the fault came after the end."""
    limit = case.delay + LIMIT + CREATION + GRACE + busy + 20
    played = play(_run_case, case.num_ranks, (case, job, free_port()), timeout=limit)
    return _violations(case, played, busy) if played.fired == case.odd else None


def main(words: Sequence[str] | None = None) -> int:
    """Run the fuzzer from a command line; return 1 if a promise was broken."""
    parser = argparse.ArgumentParser("python -m tests.scenarios.fuzz", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seed", type=int, default=0, help="seed of the first run")
    parser.add_argument("--runs", type=int, default=10, help="number of jobs")
    parser.add_argument("-n", "--num-ranks", type=int, default=6, help="processes of each job")
    parser.add_argument("--busy", type=float, default=BUSY, help="seconds added to each promise")
    options = parser.parse_args(words)
    counts: Counter[str] = Counter()
    failed = 0
    for seed in range(options.seed, options.seed + options.runs):
        case = Case.draw(random.Random(seed), options.num_ranks)
        violations = run_case(case, busy=options.busy)
        counts[f"{case.fault} {case.store}"] += violations is not None
        failed += bool(violations)
        for line in violations or ():
            print(f"seed {seed}: {case}: {line}")
        if violations:
            print(f"  python -m tests.scenarios.fuzz --seed {seed} --runs 1 -n {case.num_ranks}")
    print(f"{options.runs} runs, {sum(counts.values())} faults fired, {failed} with violations")
    for name, count in sorted(counts.items()):
        print(f"  {name}: {count}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
