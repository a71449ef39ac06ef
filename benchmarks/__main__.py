"""Measure meshkit beside its peers and write one report.

``python -m benchmarks`` runs every benchmark and writes ``results.json`` and ``results.txt``
into ``benchmarks/results``. After each benchmark it writes the rows so far into
``benchmarks/results/part``, which git ignores. A run with ``--only`` or ``--quick`` writes there
alone. ``python -m benchmarks --docs`` measures nothing: it puts the results into the docs.

``python -m benchmarks redistribute`` measures the moves of tensors alone, and writes its report
into ``benchmarks/results/redistribute``. ``python -m benchmarks recovery`` does so for the seconds
from the loss of a rank to the next step, ``numerics`` for thirty wrong programs, and ``norms`` for
the norm of 1,000 gradients. ``transfer`` moves weights over slow links.
``cost_model`` and ``memory`` write tables: the predicted steps of published runs, and the memory
of small decoders.

``pip install -c constraints.txt -e '.[bench]'`` installs the peers; the table names missing ones.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from .harness import Row
from .report import this_machine, update_page, write

NAMES = "maps groups collectives overhead agreement import training startup placement scale"
BENCHMARKS = {name: name for name in NAMES.split()} | {"import": "imports"}  # name -> module
# not in a complete run
OWN = ("redistribute", "recovery", "numerics", "norms", "transfer")
TABLES = ("cost_model", "memory")  # of the page on the cost model
OWN_REPORTS = {name: name for name in OWN}
RESULTS = Path(__file__).parent / "results"
PART = RESULTS / "part"
PAGE = Path(__file__).parents[1] / "docs" / "evidence" / "benchmarks.md"


def measure(names: Sequence[str], quick: bool) -> str:
    """Run benchmarks, write the rows after each one, and return the text of the report."""
    machine, rows, text = this_machine(), dict[str, list[Row]](), ""
    complete = not quick and {*names} == {*BENCHMARKS}
    modules = BENCHMARKS | OWN_REPORTS
    for name in names:
        began = time.perf_counter()
        rows[name] = importlib.import_module(f"benchmarks.{modules[name]}").run(quick)
        seconds = time.perf_counter() - began
        print(f"{name}: {len(rows[name])} rows in {seconds:.0f} s", file=sys.stderr, flush=True)
        text = write(rows, machine, PART, quick)
    if not quick and len(names) == 1 and names[0] in OWN_REPORTS:
        return write(rows, machine, RESULTS / names[0], quick)
    return write(rows, machine, RESULTS, quick) if complete else text


def parse_names(text: str) -> list[str]:
    """Return the benchmarks of a comma-separated list."""
    names = text.split(",")
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        known = ", ".join(BENCHMARKS)
        raise argparse.ArgumentTypeError(f"unknown benchmark {unknown[0]!r}; known: {known}")
    return names


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser("python -m benchmarks", description=about)
    parser.add_argument("own", nargs="?", choices=[*OWN, *TABLES], help="a report of its own")
    parser.add_argument("--only", type=parse_names, default=[*BENCHMARKS], help="for example maps")
    parser.add_argument("--quick", action="store_true", help="few repetitions, small scales")
    parser.add_argument("--docs", action="store_true", help="put the results into the docs")
    options = parser.parse_args(argv)
    if options.own in TABLES:
        print(importlib.import_module(f"benchmarks.{options.own}").update_page())
        return 0
    if not options.docs:
        names = [options.own] if options.own else options.only
        print(measure(names, options.quick), flush=True)
        return 0
    try:
        update_page(PAGE, RESULTS, [*BENCHMARKS])
    except (OSError, ValueError) as error:
        parser.error(f"--docs: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
