"""The speeds of links and devices: a known machine, or a JSON file of measured figures."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import fields

from ...core.call import format_value
from ...core.cost.machines import MACHINES, MAX_FIGURE, MIN_FIGURE, Machine
from ...core.errors import SpecError
from ...core.validate import is_number
from .files import read_json_object

DEFAULT_MACHINE = "h100"
EXAMPLE = "meshkit bench dp=2 -n 2 --sizes 1K:1M --json"


def read_machine(args: Namespace) -> tuple[Machine, tuple[str, ...]]:
    """Return the machine, and one line of text for each figure that is assumed.

    A figure is assumed if the file of figures lacks it.
    """
    name = args.links or DEFAULT_MACHINE
    measured = {} if name in MACHINES else _read_figures(name)
    measured |= {"memory": args.memory} if args.memory else {}
    machine = MACHINES.get(name, MACHINES[DEFAULT_MACHINE]).with_measured(measured)
    return machine, () if name in MACHINES else machine.unmeasured(DEFAULT_MACHINE, measured)


def read_option_file(option: str, path: str, fix: str) -> dict[str, object]:
    """Return the JSON object in the file of an option."""
    try:
        return read_json_object(path)
    except ValueError as error:
        summary = f"the file of --{option} cannot be read."
        raise SpecError(summary, str(error), fix=fix) from error


def _read_figures(path: str) -> dict[str, object]:
    """Return the figures of a file, which may be the output of ``meshkit bench --json``."""
    content = read_option_file("links", path, f"{', '.join(MACHINES)}, or a JSON file.")
    is_bench = bool({"fits", "results"} & content.keys())
    figures = _figures_of_run(content) if is_bench else content
    for name, value in figures.items():
        _check_figure(name, value)
    return figures


def _figures_of_run(run: Mapping[str, object]) -> dict[str, object]:
    """Return the figures of a benchmark run."""
    bounds = run.get("out_of_bounds")
    if run.get("interrupted") or run.get("ok") is not True:
        end = "was interrupted" if run.get("interrupted") else "failed"
        wrong = bounds.get("count") if isinstance(bounds, dict) else None
        evidence = [f"Wrong elements: {format_value(wrong)}."] if wrong else []
        fix = f"a complete run without a wrong element, for example {EXAMPLE}"
        raise SpecError(f"the run in the file of --links {end}.", *evidence, fix=fix)
    links = run.get("links")
    if not isinstance(links, dict) or not links:
        names = "all_reduce, all_gather or reduce_scatter"
        fix = f"a run with at least two sizes, for example {EXAMPLE}"
        raise SpecError(f"the file of --links has no fit (latency, bandwidth) of {names}.", fix=fix)
    source = f"{links.get('source')}; the others: {MACHINES[DEFAULT_MACHINE].source}"
    return {**links, "source": source}


def _check_figure(name: str, value: object) -> None:
    """Refuse an unknown figure, or one outside its range."""
    names = [field.name for field in fields(Machine)]
    if name not in names:
        fix = f"one of {', '.join(names)}; or the output of meshkit bench --json."
        raise SpecError(f"{name!r} in the file of --links is not a figure.", fix=fix)
    if name == "source" and isinstance(value, str):
        return
    if (
        name == "source"
        or not is_number(value)
        or not MIN_FIGURE <= float(str(value)) <= MAX_FIGURE
    ):
        fix = "a text." if name == "source" else f"a number from {MIN_FIGURE:g} to {MAX_FIGURE:g}."
        raise SpecError(f"{name} in the file of --links is {format_value(value)}.", fix=fix)
