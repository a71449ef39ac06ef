"""``meshkit search``: the layouts that fit a model and a world, ranked by predicted step time."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path

from ...core.call import format_value
from ...core.cost.machines import MACHINES, MAX_FIGURE, MIN_FIGURE, Machine
from ...core.cost.search import search
from ...core.cost.search_report import DISCLAIMER, format_search
from ...core.cost.step_time import TrainingJob, check_job
from ...core.cost.transformer import ModelShape
from ...core.errors import SpecError
from ...core.validate import is_number
from .. import terminal
from ..command import Command, Result
from ..options.files import object_of
from ..options.grid import number

USUAL, TOP = "h100", 10  # links and how many layouts, where nothing is said of them


def run(asked: Namespace) -> Result:
    """Rank the layouts that fit. Local, without torch; a second at most for 16,384 ranks.

    Args:
        asked: ``world``, ``nodes``, ``model``, ``global_batch``, ``seq``, ``links``, ``memory`` (or
            None), ``top`` and ``json``.

    Returns:
        The best, the terms that decide and what was excluded; not ok where none fits.

    Raises:
        SpecError: where a file cannot be read, or what was asked for cannot be.
    """
    model = ModelShape.of(_read("model", asked.model))
    name = asked.links or USUAL
    measured = {} if name in MACHINES else _measured(name)
    measured |= {"memory": asked.memory} if asked.memory else {}
    machine = MACHINES.get(name, MACHINES[USUAL]).with_measured(measured)
    job = _job(asked, machine)
    found = search(model, job, asked.top or TOP)
    if asked.json:
        said = {"model": asdict(model), "parameters": model.parameters, "job": asdict(job)}
        text = json.dumps({"ok": bool(found.best), **said, **asdict(found), "note": DISCLAIMER})
        return Result(text, bool(found.best))
    title = f"{Path(asked.model).name}: {model.parameters / 1e9:.2f} billion weights"
    assumed = () if name in MACHINES else machine.unmeasured(USUAL, measured)
    text = format_search(found, job, title, terminal.width(), assumed)
    return Result(text, bool(found.best))


def _measured(path: str) -> dict[str, object]:
    """The figures of a file, which stand in the place of the usual ones; {} where none is named.

    Args:
        path: of figures, or of what ``meshkit bench --json`` printed.

    Raises:
        SpecError: where there are none, or they are those of a run that is not to be trusted.
    """
    said = _read("links", path)
    found = _benched(path, said) if {"fits", "results"} & said.keys() else {**said}
    for name, value in found.items():
        _check_figure(path, name, value)
    return found


def _benched(path: str, said: Mapping[str, object]) -> dict[str, object]:
    """The figures of a run.

    Raises:
        SpecError: where it was cut short, elements were wrong, or no line was measured.
    """
    example = "meshkit bench dp=2 -n 2 --sizes 1K:1M --json, say"
    bounds = said.get("out_of_bounds")
    if said.get("interrupted") or said.get("ok") is not True:
        why = "the run was interrupted." if said.get("interrupted") else "the run is not ok."
        wrong = bounds.get("count") if isinstance(bounds, dict) else None
        told_wrong = [f"Wrong elements: {format_value(wrong)}."] if wrong else []
        fix = f"a run to its end without a wrong element: {example}."
        raise SpecError(f"--links {path}: {why}", *told_wrong, fix=fix)
    found = said.get("links")
    if not isinstance(found, dict) or not found:
        line = f"--links {path}: no line of all_reduce, all_gather or reduce_scatter was measured."
        raise SpecError(line, fix=f"{example}, which measures two sizes or more.")
    source = f"{found.get('source')}; the others: {MACHINES[USUAL].source}"
    return {**found, "source": source}


def _check_figure(path: str, name: str, value: object) -> None:
    """Refuse what is no figure of links, in the words of the command.

    Raises:
        SpecError: with the figures that there are, or the numbers that it can be.
    """
    names = [field.name for field in fields(Machine)]
    if name not in names:
        line, fix = f"there is no figure {name!r}.", f"one of {', '.join(names)}"
        fix += "; or what meshkit bench --json printed."
        raise SpecError(f"--links {path}: {line}", fix=fix)
    if name == "source" and isinstance(value, str):
        return
    if (
        name == "source"
        or not is_number(value)
        or not MIN_FIGURE <= float(str(value)) <= MAX_FIGURE
    ):
        fix = "a text." if name == "source" else f"a number from {MIN_FIGURE:g} to {MAX_FIGURE:g}."
        raise SpecError(f"--links {path}: {name} is {format_value(value)}.", fix=fix)


def _job(asked: Namespace, machine: Machine) -> TrainingJob:
    """What was asked for. Raises as :class:`TrainingJob`, in the words of the command."""
    numbers = asked.world, asked.nodes, asked.global_batch, asked.seq
    check_job(*numbers)
    return TrainingJob(*numbers, machine)


def _read(option: str, path: str) -> Mapping[str, object]:
    """A JSON object in a file.

    Raises:
        SpecError: where there is none.
    """
    try:
        return object_of(path)
    except ValueError as error:
        models, links = "the config.json of a model.", f"{', '.join(MACHINES)}, or a JSON file."
        fix = models if option == "model" else links
        line = f"--{option} {path} cannot be read."
        raise SpecError(line, str(error), fix=fix) from error


def _gigabytes(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if 0 < found < 1e6:
        return found
    raise ArgumentTypeError(f"{text!r} is not a number of GB above zero")


def _add(parser: ArgumentParser) -> None:
    numbers = {
        "world": "ranks",
        "nodes": "equal nodes that they lie on, in blocks",
        "global-batch": "samples in one optimizer step",
        "seq": "tokens of a sample",
    }
    for name, text in numbers.items():
        parser.add_argument(f"--{name}", type=number, required=True, metavar="N", help=text)
    text = "the config.json of the model, as the Hugging Face Hub has it"
    parser.add_argument("--model", required=True, metavar="FILE", help=text)
    text = (
        f"{', '.join(MACHINES)}, or a JSON file of measured figures, such as meshkit bench --json "
    )
    text += f"prints (default {USUAL})"
    parser.add_argument("--links", metavar="NAME", help=text)
    text = "1e9 bytes of one device that a job may fill (default: the device's)"
    parser.add_argument("--memory", type=_gigabytes, metavar="GB", help=text)
    parser.add_argument("--top", type=number, metavar="N", help=f"how many to show (default {TOP})")


SEARCH = Command("search", "rank the layouts that fit a model", _add, run)
