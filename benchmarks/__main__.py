"""meshkit beside its peers: every benchmark, one table, JSON and plots.

``python -m benchmarks`` runs them all (``--only maps,import`` some, ``--quick`` small ones), prints
the table, and writes ``results.json``, ``results.txt``, ``results.md`` and the plots into
``benchmarks/results``. ``python -m benchmarks --readme`` then puts what is in ``results.json`` into
the README, and measures nothing.
The peers come with ``pip install -c constraints.txt -e '.[bench]'``; one that is not installed is
named in the table. A benchmark is a module here with ``run(quick) -> list[Row]``, which stands in
``BENCHMARKS``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from .machine import Machine
from .phases import phase_table
from .plots import draw
from .readme import results, write
from .rows import Row, rows_table

BENCHMARKS = {  # name to module, in the order of the table
    "maps": "maps",
    "groups": "groups",
    "collectives": "collectives",
    "overhead": "overhead",
    "agreement": "agreement",
    "import": "imports",
    "training": "training",
    "startup": "startup",
    "placement": "placement",
    "scale": "scale",
}
RESULTS = Path(__file__).parent / "results"
README = Path(__file__).parents[1] / "README.md"


def run(names: Sequence[str], quick: bool) -> dict[str, list[Row]]:
    """The rows of each benchmark, with a line on standard error as each ends."""
    found: dict[str, list[Row]] = {}
    for name in names:
        began = time.perf_counter()
        module = importlib.import_module(f".{BENCHMARKS[name]}", __package__)
        found[name] = module.run(quick)
        took = time.perf_counter() - began
        print(f"{name}: {len(found[name])} rows in {took:.0f} s", file=sys.stderr, flush=True)
    return found


def written(found: dict[str, list[Row]], machine: Machine, folder: Path, quick: bool) -> str:
    """All tables, as text; they, the JSON and the plots are written into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = {name: [asdict(row) | {"met": row.met} for row in rows] for name, rows in found.items()}
    report = {"quick": quick, "machine": asdict(machine), "rows": rows}
    every = [row for rows in found.values() for row in rows]
    tables = [rows_table(every), phase_table(every)]
    text = "\n\n".join([f"{machine}\nmedian (quartiles)", *filter(None, tables)])
    (folder / "results.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / "results.txt").write_text(text + "\n")
    (folder / "results.md").write_text(results(report))
    return f"{text}\n\n{draw(found, folder)}"


def parser() -> argparse.ArgumentParser:
    """The options."""
    about = (__doc__ or "").partition("\n")[0]
    options = argparse.ArgumentParser("python -m benchmarks", description=about)
    options.add_argument("--only", type=names, default=[*BENCHMARKS], help="some: maps,import")
    options.add_argument("--quick", action="store_true", help="few repetitions, small scales")
    options.add_argument("--out", type=Path, default=RESULTS, help="the folder to write into")
    options.add_argument("--readme", action="store_true", help="put --out into README.md; no run")
    return options


def names(text: str) -> list[str]:
    """The benchmarks of a list with commas."""
    asked = text.split(",")
    unknown = [name for name in asked if name not in BENCHMARKS]
    if unknown:
        said = f"no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}"
        raise argparse.ArgumentTypeError(said)
    return asked


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, write, print; or put what was written into the README."""
    options = parser()
    asked = options.parse_args(arguments)
    if asked.readme:
        try:
            print(write(asked.out, README, [*BENCHMARKS]))
        except ValueError as error:
            options.error(f"--readme: {error}")
        return 0
    found = run(asked.only, asked.quick)
    print(written(found, Machine.here(), asked.out, asked.quick), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
