"""What a start costs: from process start to the first all-reduce on every axis, beside torch.

``python -m benchmarks.startup -n 8 32 128`` starts gloo ranks on this machine, a job a side and
repetition, and prints a ledger for each: see :mod:`benchmarks.ledger`. The mesh is that of
:mod:`benchmarks.jobs`, dp=-1 tp=4, of which both make the same groups. Torch does
``init_process_group``, ``init_device_mesh`` and the same all-reduces. Meshkit does more: ranks
check in, compare what they ask for, and meet again when all is made. (Beside sp or cp it makes one
set of groups more, over which gradients are averaged.)

Processes come from a forkserver that has imported torch, and wait until all are there: how long a
process takes to come into being is in the ledger, not in the ratio. ``--lazy`` sets torch's
``TORCH_GLOO_LAZY_INIT=1`` for meshkit: gloo then connects a pair at its first use. It is not the
default, as a rank that has died is then noticed only after five timeouts by whoever has not talked
to it before, and as the store must outlive every first use.

In the runner eager and lazy starts stand beside the same jobs of torch, ``REPEATS`` times.

At a TCP store torch looks up the names of addresses. Where no name server answers, that takes 5 s
or 10 s a time; ``--store tcp`` starts a job once more with ``RES_OPTIONS=attempts:0``, in which
names come from /etc/hosts alone, and the ledger names the phase and the rank that stalled.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import meshkit

from .clock import told_in_turns
from .imports import importing
from .jobs import STORES, even, positive, sizes_of, where
from .ledger import Ledger, joining, ledger_table, processor, share, stall, stalled, whole
from .phases import over
from .rows import Goal, Row, alone, compared
from .starting import start

REPEATS = {8: 3, 32: 3, 64: 2, 128: 3, 256: 1}  # a job of 256 takes half a minute on two cores
RANKS = (*REPEATS,)
SIDES = ("meshkit", "torch")
PEER = "init_device_mesh"
OURS, THEIRS = "torch, meshkit.live.build", "torch.distributed.device_mesh"  # imported by a rank
LAZY = {"TORCH_GLOO_LAZY_INIT": "1"}
NAMELESS = {"RES_OPTIONS": "attempts:0"}
BUILDING = ("agreement", "groups", "all made")
LIMIT = 300  # seconds for one job
Jobs = Sequence[Sequence[Ledger]]  # repetition by repetition, rank by rank


@dataclass(frozen=True)
class Setting:
    """How ranks start: how many, where they meet, and whether gloo connects at first use."""

    ranks: int
    store: str = "file"
    lazy: bool = False

    def __str__(self) -> str:
        return f"{self.store} store{', lazy' if self.lazy else ''}"


AT = Setting(128)  # where there are goals
HALF, TENTH, NO_STALL = Goal("ratio", "<=", 0.5), Goal("ours", "<=", 10), Goal("ours", "<=", 1)


def run(quick: bool) -> list[Row]:
    """The rows of every number of ranks with a file store, and of some with a TCP store."""
    repeats = {8: 1} if quick else REPEATS
    rows = [import_row(repeats[8])]
    for n, often in repeats.items():
        rows += rows_of((Setting(n), Setting(n, lazy=True)), often)
    for n in [*repeats][:2]:
        tcp = Setting(n, "tcp")
        ours, theirs = jobs_of((tcp,), repeats[n])
        rows += [*setting_rows(tcp, ours, theirs), stall_row(tcp, ours, theirs)]
    return rows


def import_row(repeats: int) -> Row:
    """What a rank that is started by hand imports before all else, each time in a fresh process."""
    sides = told_in_turns(lambda: importing(OURS), lambda: importing(THEIRS), repeats)
    return compared("start-up, import in a fresh process", 1, PEER, "s", sides)


def stall_row(setting: Setting, ours: Jobs, theirs: Jobs) -> Row:
    """The longest that a rank of any job waited for a name that nobody answered.

    Each side is compared to one start of its own without names.
    """
    seconds = []
    for side, jobs in zip(SIDES, (ours, theirs), strict=True):
        answered = joining(job(side, setting, NAMELESS))
        found = [stalled(ledgers, answered) for ledgers in jobs]
        seconds.append(max((one.slowest for one in found if one), default=0.0))
    what = f"start-up, {setting}, longest wait for a name"
    return Row(what, setting.ranks, PEER, "s", seconds[0], seconds[1], goal=NO_STALL)


def rows_of(settings: Sequence[Setting], repeats: int) -> list[Row]:
    """All sides in turns, so many times; each setting beside the same jobs of torch."""
    *ours, theirs = jobs_of(settings, repeats)
    pairs = zip(settings, ours, strict=True)
    return [row for setting, mine in pairs for row in setting_rows(setting, mine, theirs)]


def jobs_of(settings: Sequence[Setting], repeats: int) -> list[Jobs]:
    """The jobs of each setting, then torch's, run in turns."""
    return [*zip(*(turn(settings, repeat) for repeat in range(repeats)), strict=True)]


def setting_rows(setting: Setting, ours: Jobs, theirs: Jobs) -> list[Row]:
    """The rows of one setting, of jobs that were run in turns."""
    what, n, peer = f"start-up, {setting}", setting.ranks, PEER
    half, tenth = (HALF, TENTH) if setting == AT else (None, None)
    met = [share(job, "agreement", BUILDING) for job in ours]
    start = compared(what, n, peer, "s", (each(joining, ours), each(joining, theirs)), half)
    rows = [
        replace(start, phases=over(ours), their_phases=over(theirs)),
        compared(f"{what}, whole", n, peer, "s", (each(whole, ours), each(whole, theirs))),
        alone(f"{what}, agreement in build_mesh", n, "%", met, tenth),
    ]
    for name in ("descriptors", "threads", "kib"):
        figures = [[float(max(getattr(o, name) for o in job)) for job in s] for s in (ours, theirs)]
        rows.append(compared(f"{what}, {name} a rank", n, peer, name, (figures[0], figures[1])))
    used = [each(processor, jobs) for jobs in (ours, theirs)]
    return [*rows, compared(f"{what}, processor", n, peer, "s", (used[0], used[1]))]


def each(figure: Callable[[Sequence[Ledger]], float], jobs: Jobs) -> list[float]:
    """A figure of every job."""
    return [figure(job) for job in jobs]


def turn(settings: Sequence[Setting], repeat: int = 0) -> list[list[Ledger]]:
    """The ledgers of a job of meshkit's in each setting, then of torch's; who begins changes.

    The settings differ in what only meshkit is given.
    """
    sides = [("meshkit", setting, LAZY if setting.lazy else {}) for setting in settings]
    sides.append(("torch", settings[0], {}))
    order = range(len(sides))[:: 1 if repeat % 2 == 0 else -1]
    found = {place: job(*sides[place]) for place in order}
    return [found[place] for place in sorted(found)]


def job(side: str, setting: Setting, variables: Mapping[str, str]) -> list[Ledger]:
    """Start the ranks of one side in a job of their own; the ledger of each.

    Raises:
        RuntimeError: where an all-reduce of ones over an axis was not the size of that axis.
    """
    with tempfile.TemporaryDirectory(prefix="startup-") as folder:
        os.mkfifo(Path(folder) / "gate")
        url = where(setting.store) or f"file://{folder}/store"
        given = (side, time.monotonic(), folder, url, variables)
        found = meshkit.spawn(start, setting.ranks, given, timeout=LIMIT)
    sizes = sizes_of(setting.ranks)
    for one in found:
        if one.sums != sizes:
            raise RuntimeError(f"{side}: ones over {sizes} sum up to {one.sums} on rank {one.rank}")
    return found


# --- by itself -----------------------------------------------------------------------------------


def told(setting: Setting) -> str:
    """The ledgers of both sides in one setting, as text."""
    ours, theirs = turn((setting,))
    ratio = joining(ours) / joining(theirs)
    lines = [f"{setting.ranks} ranks, {setting}: {ratio:.2f} of the time of torch"]
    for side, ledgers in zip(SIDES, (ours, theirs), strict=True):
        lines += [f" {side}: {joining(ledgers):.3f} s", ledger_table(ledgers)]
        if setting.store == "tcp":
            quiet = joining(job(side, setting, NAMELESS))
            lines += [f"  stall: {stall(ledgers, quiet)}"]
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """The options."""
    about = (__doc__ or "").partition("\n")[0]
    options = argparse.ArgumentParser("python -m benchmarks.startup", description=about)
    options.add_argument("-n", type=even, nargs="+", default=RANKS, help="local ranks of each job")
    options.add_argument("--store", choices=STORES, default="file", help="where the ranks meet")
    options.add_argument("--lazy", action="store_true", help="meshkit's pairs connect at first use")
    options.add_argument("--repeats", type=positive, default=1, help="how often")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    asked = parser().parse_args(arguments)
    for ranks in asked.n:
        for _ in range(asked.repeats):
            print(told(Setting(ranks, asked.store, asked.lazy)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
