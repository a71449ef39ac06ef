"""meshkit beside its peers: every benchmark, one table, JSON and plots.

``python -m benchmarks`` runs them all, prints the table, and writes ``results.json``,
``results.txt``, ``results.md`` and the plots into ``benchmarks/results``. What a run has so far is
written after each benchmark, into ``benchmarks/results/part``, which git ignores; and there all of
a run stays that is not whole: of some (``--only maps,import``), small (``--quick``), or ended with
Ctrl-C. ``--out`` is another folder for either. ``python -m benchmarks --readme`` puts what is in
``benchmarks/results`` into the README, and measures nothing.
The peers come with ``pip install -c constraints.txt -e '.[bench]'``; one that is not installed is
named in the table. A benchmark is a module here with ``run(quick) -> list[Row]``, which stands in
``BENCHMARKS``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from .machine import Machine
from .phases import phase_table
from .plots import PLOTS, draw
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
PART = RESULTS / "part"  # of a run that is not whole
INTERRUPTED = 130  # as a shell says of a program that Ctrl-C has ended
README = Path(__file__).parents[1] / "README.md"


def run(names: Sequence[str], quick: bool) -> Iterator[tuple[str, list[Row]]]:
    """Each benchmark with its rows, and a line on standard error as it ends."""
    for name in names:
        began = time.perf_counter()
        module = importlib.import_module(f".{BENCHMARKS[name]}", __package__)
        rows = module.run(quick)
        took = time.perf_counter() - began
        print(f"{name}: {len(rows)} rows in {took:.0f} s", file=sys.stderr, flush=True)
        yield name, rows


def measure(names: Sequence[str], quick: bool, folder: Path, final: Path) -> int:
    """Run, write after each benchmark, print; the status of the process.

    Args:
        names: of the benchmarks.
        quick: few repetitions, small scales.
        folder: where to write what there is so far.
        final: where to write all, once they are over.
    """
    machine, found, status = Machine.here(), dict[str, list[Row]](), 0
    try:
        for name, rows in run(names, quick):
            found[name] = rows
            written(found, machine, folder, quick)
    except KeyboardInterrupt:
        final, status = folder, INTERRUPTED
        print(f"Interrupted: {', '.join(found) or 'none'} in {folder}", file=sys.stderr)
    if found:
        print(f"{written(found, machine, final, quick)}\n\n{draw(found, final)}", flush=True)
    return status


def written(found: Mapping[str, list[Row]], machine: Machine, folder: Path, quick: bool) -> str:
    """All tables, as text; they and the JSON are written into the folder, without older plots."""
    for name in PLOTS:
        (folder / f"{name}.png").unlink(missing_ok=True)
    rows = {name: [asdict(row) | {"met": row.met} for row in rows] for name, rows in found.items()}
    report = {"quick": quick, "machine": asdict(machine), "rows": rows}
    every = [row for rows in found.values() for row in rows]
    tables = [rows_table(every), phase_table(every)]
    text = "\n\n".join([f"{machine}\nmedian (quartiles)", *filter(None, tables)])
    (folder / "results.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / "results.txt").write_text(text + "\n")
    (folder / "results.md").write_text(results(report))
    return text


def made(folder: Path) -> Path:
    """A folder that can be written into.

    Raises:
        OSError: where it cannot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=folder).close()
    return folder


def parser() -> argparse.ArgumentParser:
    """The options."""
    about = (__doc__ or "").partition("\n")[0]
    options = argparse.ArgumentParser("python -m benchmarks", description=about)
    options.add_argument("--only", type=names, default=[*BENCHMARKS], help="some: maps,import")
    options.add_argument("--quick", action="store_true", help="few repetitions, small scales")
    options.add_argument("--out", type=Path, help="write into this folder")
    options.add_argument("--readme", action="store_true", help="results into README.md; no run")
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
        if asked.out is not None:
            options.error(f"--readme shows {RESULTS}, to which its links lead: without --out")
        try:
            print(write(RESULTS, README, [*BENCHMARKS]))
        except ValueError as error:
            options.error(f"--readme: {error}")
        return 0
    whole = not asked.quick and {*asked.only} == {*BENCHMARKS}
    try:
        folder = made(asked.out or PART)
    except OSError as error:
        options.error(f"argument --out: {asked.out or PART}: {error.strerror}")
    final = RESULTS if whole and asked.out is None else folder
    return measure(asked.only, asked.quick, folder, final)


if __name__ == "__main__":
    sys.exit(main())
