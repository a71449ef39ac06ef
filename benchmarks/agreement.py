"""What agreement asks of the store: how often a rank calls it in each of meshkit's calls.

``python -m benchmarks.agreement -n 8 32 128`` starts gloo ranks on this machine, one job for each
number. They meet in a file, or with ``--store tcp`` at a TCP store that rank 0 hosts (where nothing
answers a reverse look-up, ``RES_OPTIONS="timeout:1 attempts:1"`` shortens torch's own). The mesh is
that of :mod:`benchmarks.jobs`. What is counted, and what is not, says
:mod:`benchmarks.store_calls`. How long agreement takes is in :mod:`benchmarks.startup`.

In each meeting the last rank to come calls ``check`` and ``compare_set`` where the others call
``wait`` and ``get``: the methods differ between ranks, their number does not. Rank 0 of a mesh with
a tp axis looks at the hosts of all: one operation a rank with a file store, one in all with a TCP
store.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median

import meshkit

from .jobs import STORES, even, sizes_of, where
from .rows import ITSELF, Goal, Row, compared
from .store_calls import ALL, Counts, Range, counted, ranges

RANKS = (8, 32, 128)
FLAT = Goal("ratio", "<=", 1.25)  # whoever finds that others came before looks at three keys more
Calls = Mapping[str, Mapping[str, Range]]  # call to store method to the range over ranks


def run(quick: bool) -> list[Row]:
    """The operations of the middle rank, call by call, beside the same on 8 ranks."""
    by_ranks = {ranks: counts(ranks, "file") for ranks in (RANKS[:1] if quick else RANKS)}
    return [
        compared(f"store operations of a rank, {call}", ranks, ITSELF, "calls", figures, FLAT)
        for call in by_ranks[RANKS[0]][0]
        for ranks, found in by_ranks.items()
        for figures in [(middle(found, call), middle(by_ranks[RANKS[0]], call))]
    ]


def middle(found: Sequence[Mapping[str, Counts]], call: str) -> list[float]:
    """The operations of the middle rank in a call."""
    return [float(median(sum(one[call].values()) for one in found))]


def counts(ranks: int, store: str) -> list[dict[str, Counts]]:
    """Call to store method to operations, one a rank of a job of its own."""
    return meshkit.spawn(first_calls, ranks, (where(store),), timeout=300)


def first_calls(init_method: str | None) -> dict[str, Counts]:
    """Make each call once; how often this rank asked the store for what. Collective."""
    join = partial(meshkit.init, device="cpu")
    with counted() as init:
        world = join(init_method=init_method) if init_method else join()
    with counted() as build:
        mesh = meshkit.build_mesh(sizes_of(world.world_size))
    with mesh:
        with counted() as agreed:
            mesh.agree("the learning rate", 3e-4)
        with counted() as barrier:
            mesh.barrier()
    found = {"init": init, "build_mesh": build, "mesh.agree": agreed, "mesh.barrier": barrier}
    return {call: dict(counter) for call, counter in found.items()}


# --- by itself -----------------------------------------------------------------------------------

ABOUT = "Store operations of a rank from Python, least-most over ranks where they differ:"


def called(counts: Sequence[Mapping[str, Counts]]) -> Calls:
    """Of what the ranks of a job counted, the least and the most."""
    return {call: ranges([one[call] for one in counts]) for call in counts[0]}


def told(found: Mapping[int, Calls]) -> str:
    """The operations of each number of ranks, a column for each method that any call needs."""
    used = {name for calls in found.values() for one in calls.values() for name in one}
    names = [ALL, *sorted(used - {ALL})]
    head = f"{'ranks':>5}  {'call':<14}" + "".join(f"{name:>12}" for name in names)
    lines = [_line(ranks, *one, names) for ranks, calls in found.items() for one in calls.items()]
    return "\n".join([ABOUT, "", head, *lines])


def _line(ranks: int, call: str, found: Mapping[str, Range], names: Sequence[str]) -> str:
    pairs = (found.get(name, (0, 0)) for name in names)
    cells = (f"{least}" if least == most else f"{least}-{most}" for least, most in pairs)
    return f"{ranks:>5}  {call:<14}" + "".join(f"{cell:>12}" for cell in cells)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    about = (__doc__ or "").partition("\n")[0]
    options = argparse.ArgumentParser("python -m benchmarks.agreement", description=about)
    options.add_argument("-n", type=even, nargs="+", default=RANKS, help="local ranks of each job")
    options.add_argument("--store", choices=STORES, default="file", help="where the ranks meet")
    asked = options.parse_args(arguments)
    if meshkit.detect().launcher != "single":
        options.error("it starts its own ranks: run it without a launcher")
    print(told({ranks: called(counts(ranks, asked.store)) for ranks in asked.n}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
