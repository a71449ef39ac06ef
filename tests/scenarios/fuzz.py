"""Break jobs at random moments, and check the promises about failures.

``python -m tests.scenarios.fuzz --seed 7 --runs 20 -n 6`` starts 20 jobs of 6 local processes each.
In every job one rank suffers a fault at a random moment: it is killed or stopped, sleeps, raises,
or exits. Then each other rank must end in the promised time, with an error that names the rank, or
with none if the fault came when all was over. A violation prints the command that repeats it.

The faults come from a process beside the job, so they hit ``init``, ``build_mesh``, collectives and
``close`` alike. Ranks reach each other by ``file://`` or by ``tcp://``.

The job is :func:`use_mesh`, or a function of the caller: :func:`run_fuzz` takes it.
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

from meshkit.core.call import quotes_call
from meshkit.core.errors import SpecError
from meshkit.launch.join import init, shutdown
from meshkit.launch.launchers.completed import free_port
from meshkit.launch.launchers.detect import detect
from meshkit.live.build_mesh import build_mesh
from meshkit.testing.faults import Played, Strike, play

FAULTS = ("kill", "stop", "sleep", "raise", "exit")
STORES = ("file", "tcp")
LIMIT = 4.0  # seconds that ranks wait for each other, and for a collective
SLEEP = 60.0  # seconds of a rank that sleeps
CREATION = 10.0  # seconds that the creation of groups may take at least, see live/README.md
GRACE = 9.0  # the most seconds that a promise adds: a guard whose collector has gone too
BUSY = 6.0  # seconds that other work on the machine may add
KINDS = ("CollectiveError", "RankTimeoutError", "DisagreementError", "LaunchError", "returned")

Job = Callable[[Strike, str | None], object]


class FuzzError(Exception):
    """The error that a fault raises on its rank."""


@dataclass(frozen=True)
class Case:
    """One fault: of which rank, when and how, in a job of some ranks over a kind of store.

    Attributes:
        fault: one of ``"kill"``, ``"stop"``, ``"sleep"``, ``"raise"`` and ``"exit"``.
        store: ``"file"`` or ``"tcp"``.
        num_ranks: the ranks of the job.
        odd: the rank with the fault.
        delay: seconds from the start of that rank to the fault.
    """

    fault: str
    store: str
    num_ranks: int
    odd: int
    delay: float

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


@dataclass(frozen=True)
class Result:
    """The outcome of a case: what was violated, and whether the fault fired.

    Attributes:
        case: the fault.
        seed: the seed of the case.
        fired: whether the fault came before the rank had ended.
        violations: a line for each broken promise.
    """

    case: Case
    seed: int
    fired: bool
    violations: tuple[str, ...]


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
        if strangers and case.odd not in outcome.missing_ranks and not _store_is_lost(case):
            lines.append(f"rank {rank} named ranks {sorted(strangers)}: {outcome.text}")
        if strangers and case.fault in ("kill", "stop") and case.odd in outcome.missing_ranks:
            lines.append(f"rank {rank} named ranks {sorted(strangers)} too: {outcome.text}")
    return lines


def _store_is_lost(case: Case) -> bool:
    """Return whether the fault also ends the store, so that ranks know less."""
    return case.store == "tcp" and case.odd == 0


def run_case(case: Case, seed: int, job: Job = use_mesh, busy: float = BUSY) -> Result:
    """Run one case in processes of its own, and check the promises."""
    limit = case.delay + LIMIT + CREATION + GRACE + busy + 20
    played = play(_run_case, case.num_ranks, (case, job, free_port()), timeout=limit)
    fired = played.fired == case.odd
    return Result(case, seed, fired, tuple(_violations(case, played, busy)) if fired else ())


@quotes_call("run_fuzz")
def run_fuzz(
    seed: int, runs: int, num_ranks: int = 6, *, job: Job = use_mesh, busy: float = BUSY
) -> list[Result]:
    """Break a job at random moments, and return what was violated.

    Args:
        seed: the seed of the first run; run i has ``seed + i``, so that each can be repeated alone.
        runs: how many jobs.
        num_ranks: the processes of each job, 2 or more.
        job: a function at the top level of a module. It gets a
            :class:`~meshkit.testing.faults.Strike` and the store for ``init``, and must wait for
            other ranks only through meshkit, with timeouts of at most 4 s.
        busy: seconds that other work on the machine may add to each promise.

    Returns:
        A :class:`Result` for each run.

    Raises:
        SpecError: if a number is too small.
    """
    if num_ranks < 2 or runs < 1:
        raise SpecError(
            f"{runs} runs of {num_ranks} ranks.", fix="1 run or more, of 2 ranks or more."
        )
    results = []
    for number in range(seed, seed + runs):
        case = Case.draw(random.Random(number), num_ranks)
        results.append(run_case(case, number, job, busy))
    return results


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
    for number in range(options.seed, options.seed + options.runs):
        (result,) = run_fuzz(number, 1, options.num_ranks, busy=options.busy)
        counts[f"{result.case.fault} {result.case.store}"] += result.fired
        failed += bool(result.violations)
        for line in result.violations:
            print(f"seed {number}: {result.case}: {line}")
        if result.violations:
            print(
                f"  python -m tests.scenarios.fuzz --seed {number} --runs 1 -n {options.num_ranks}"
            )
    print(f"{options.runs} runs, {sum(counts.values())} faults fired, {failed} with violations")
    for name, count in sorted(counts.items()):
        print(f"  {name}: {count}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
