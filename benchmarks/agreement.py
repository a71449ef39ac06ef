"""What agreement costs: the meetings of ``build_mesh`` beside the whole call, and beside torch.

``python -m benchmarks.agreement -n 8 32 128`` starts gloo ranks on this machine, one job for each
number. They meet in a file, or with ``--store tcp`` at a TCP store that rank 0 hosts (where nothing
answers a reverse look-up, ``RES_OPTIONS="timeout:1 attempts:1"`` shortens torch's own). The mesh is
dp=-1 sp=2 tp=2, with sp=1 where the ranks are no multiple of four. Each time is that of the slowest
rank, from when it leaves a barrier of all ranks:

build_mesh
    The call as a user makes it: both meetings, and the groups made between them.
agreement
    The two meetings of another such call, the one before groups exist and the one after, added up.
    A barrier precedes each, so that waiting for a rank that makes its groups more slowly is not
    counted. Counted are the skew with which ranks leave that barrier, the time in which ranks that
    share a core check in one after another, and that a FileStore which waits looks again only every
    10 ms. Not counted is to put the request in words, as that comes before.
new_group
    The same groups by torch alone: one ``new_group`` for each that is not the whole world.
barrier
    A barrier of the default group, for comparison: what it costs all ranks to wait for each other
    without a word.

Agreement and new_group need not add up to build_mesh: they are calls of their own, and in
build_mesh a rank that comes to a meeting late finds the verdict without a wait. So the share can
pass 100 where there are hardly any groups to make. All repetitions run in one job with one store,
and later ones may be slower: compare the columns of a row, and rows of equal ``--repeats``. Share
and ratio are taken repetition by repetition, then the median and the quartiles.

A warm-up comes first; in its first calls the store operations are counted, see
:mod:`benchmarks.store_calls`. In each meeting the last rank to come calls ``check`` and
``compare_set`` where the others call ``wait`` and ``get``: the methods differ between ranks, their
number does not.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

import meshkit
from meshkit.core.timing import Spread

from .collectives import positive
from .meetings import Times, measure, sizes_of
from .store_calls import ALL, Counts, Range, ranges

RANKS = (8, 32, 128)
STORES = ("file", "tcp")
REPEATS = 5


@dataclass(frozen=True)
class Row:
    """One number of ranks.

    Attributes:
        ranks: how many.
        sizes: of the axes, outermost first.
        build: seconds of build_mesh.
        agreement: seconds of its two meetings.
        share: 100 agreement / build.
        raw: seconds in which torch alone makes the same groups.
        ratio: build / raw.
        barrier: seconds of a barrier.
        calls: call to store method to the least and the most operations of a rank.
    """

    ranks: int
    sizes: dict[str, int]
    build: Spread
    agreement: Spread
    share: Spread
    raw: Spread
    ratio: Spread
    barrier: Spread
    calls: dict[str, dict[str, Range]]


@dataclass(frozen=True)
class Report:
    """A whole run: the machine's cores, the version of torch, the store, and a row a job."""

    cores: int
    torch: str
    store: str
    repeats: int
    rows: tuple[Row, ...]


def row(ranks: int, counts: Sequence[dict[str, Counts]], seconds: Sequence[Times]) -> Row:
    """The row of what the ranks of a job measured.

    Args:
        ranks: how many.
        counts: call to store method to operations, one a rank.
        seconds: (ranks, repeats, TIMED).
    """
    build, first, second, raw, barrier = np.max(seconds, axis=0).T  # of the slowest rank
    met = first + second
    return Row(
        ranks,
        sizes_of(ranks),
        build=Spread.of(build.tolist()),
        agreement=Spread.of(met.tolist()),
        share=Spread.of((100 * met / build).tolist()),
        raw=Spread.of(raw.tolist()),
        ratio=Spread.of((build / raw).tolist()),
        barrier=Spread.of(barrier.tolist()),
        calls={call: ranges([one[call] for one in counts]) for call in counts[0]},
    )


def run(worlds: Sequence[int], store: str, repeats: int) -> Report:
    """Measure each number of ranks in a job of its own."""
    rows = []
    for ranks in worlds:
        found = meshkit.spawn(measure, ranks, (where(store), repeats))
        rows.append(row(ranks, *zip(*found, strict=True)))
    return Report(os.cpu_count() or 1, torch.__version__, store, repeats, tuple(rows))


def where(store: str) -> str | None:
    """The ``init_method`` of a job: a free port of this machine; None is the file of spawn."""
    if store == "file":
        return None
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


# --- the tables ----------------------------------------------------------------------------------

COLUMNS = ("build_mesh s", "agreement s", "share %", "new_group s", "build/new_group", "barrier s")
CALLS = "Store operations of a rank from Python, least-most over ranks where they differ:"


def table(report: Report) -> str:
    """The machine line, the times and the store operations, as text without a final newline."""
    head = f"{'ranks':>5}" + "".join(f"  {name:<23}" for name in COLUMNS)
    times = [head, *map(line, report.rows)]
    lines = [machine(report), "", *times, "", CALLS, "", *call_lines(report.rows)]
    return "\n".join(text.rstrip() for text in lines)


def machine(report: Report) -> str:
    """What it ran on, and how often."""
    return (
        f"{report.cores} cores, torch {report.torch}, gloo on cpu, {report.store} store; "
        f"median (quartiles) of {report.repeats}, slowest rank"
    )


def line(row: Row) -> str:
    """The times of one row."""
    share = f"{row.share.median:.1f} ({row.share.low:.1f}-{row.share.high:.1f})"
    ratio = f"{row.ratio.median:.2f} ({row.ratio.low:.2f}-{row.ratio.high:.2f})"
    build, agreement, raw, barrier = map(_seconds, (row.build, row.agreement, row.raw, row.barrier))
    cells = (build, agreement, share, raw, ratio, barrier)
    return f"{row.ranks:>5}" + "".join(f"  {cell:<23}" for cell in cells)


def call_lines(rows: Sequence[Row]) -> list[str]:
    """The store operations of every row, a column for each method that any call needs."""
    found = {name for row in rows for calls in row.calls.values() for name in calls}
    names = [ALL, *sorted(found - {ALL})]
    head = f"{'ranks':>5}  {'call':<14}" + "".join(f"{name:>12}" for name in names)
    return [head, *(_calls(row, call, names) for row in rows for call in row.calls)]


def _calls(row: Row, call: str, names: Sequence[str]) -> str:
    ranges = (row.calls[call].get(name, (0, 0)) for name in names)
    cells = (f"{least}" if least == most else f"{least}-{most}" for least, most in ranges)
    return f"{row.ranks:>5}  {call:<14}" + "".join(f"{cell:>12}" for cell in cells)


def _seconds(spread: Spread) -> str:
    return f"{spread.median:.4f} ({spread.low:.4f}-{spread.high:.4f})"


# --- options -------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """The options."""
    about = (__doc__ or "").partition("\n")[0]
    options = argparse.ArgumentParser("python -m benchmarks.agreement", description=about)
    options.add_argument("-n", type=even, nargs="+", default=RANKS, help="local ranks of each job")
    options.add_argument("--store", choices=STORES, default="file", help="where the ranks meet")
    options.add_argument("--repeats", type=positive, default=REPEATS, help="repetitions of each")
    options.add_argument("--json", type=Path, metavar="FILE", help="write the report here too")
    return options


def even(text: str) -> int:
    """A number of ranks on which tp=2 fits."""
    ranks = positive(text)
    if ranks % 2:
        raise argparse.ArgumentTypeError(f"{ranks} is odd, but the mesh has tp=2")
    return ranks


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write."""
    options = parser()
    asked = options.parse_args(arguments)
    if meshkit.detect().launcher != "single":
        options.error("it starts its own ranks: run it without a launcher")
    if asked.json and not asked.json.absolute().parent.is_dir():
        options.error(f"--json {asked.json}: no such folder")
    report = run(asked.n, asked.store, asked.repeats)
    print(table(report), flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(asdict(report), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
