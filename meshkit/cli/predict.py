"""``meshkit predict``: how long a collective takes, by what ``meshkit bench`` has measured."""

from __future__ import annotations

import json
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from ..core.errors import SpecError, told
from ..core.fit import BEYOND, Fit
from ..core.measured_read import read_fits
from ..core.prediction import Prediction, prediction_table
from . import Answer, Command, terminal
from .bench_asked import as_size, read_operations, read_size
from .file import object_of
from .typed import Typed, typed


def run(asked: Namespace) -> Answer:
    """Read the lines of a saved run at some sizes. Local, without torch.

    Args:
        asked: ``results``, a file with what ``meshkit bench --json`` printed; ``at``, sizes in
            bytes; ``ops``, ``axes`` and ``json``.

    Raises:
        SpecError: for a file without lines; for a size outside those that were measured.
    """
    words = [shlex.quote(asked.results), *map(as_size, asked.at)]
    call = typed(asked, None, *words)
    fits = _chosen(call, read_fits(call, _read(call, asked.results)), asked)
    for fit in fits:
        for size in asked.at:
            _check_covers(call, words, fit, size)
    found = [Prediction(fit, size) for fit in fits for size in asked.at]
    if asked.json:
        told_all = [one.as_dict() for one in found]
        return Answer(json.dumps({"ok": True, "predictions": told_all}))
    return Answer(prediction_table(found, width=terminal.width(), ascii=not terminal.lines()))


def _read(call: Typed, path: str) -> dict[str, object]:
    """The JSON object in a file.

    Raises:
        SpecError: where there is none.
    """
    try:
        return object_of(path)
    except ValueError as error:
        fix = "a file with what meshkit bench --json printed."
        raise SpecError(told(f"{call}: the file cannot be read.", str(error), fix=fix)) from error


def _chosen(call: Typed, fits: Sequence[Fit], asked: Namespace) -> list[Fit]:
    """The lines of the operations and targets that are asked for: all, where none are.

    Raises:
        SpecError: where there is none of them.
    """
    found = [fit for fit in fits if asked.ops is None or fit.op in asked.ops]
    found = [fit for fit in found if asked.axes is None or fit.target in asked.axes]
    if not found:
        operations, targets = (dict.fromkeys(names) for names in zip(*map(_of, fits), strict=True))
        there = f"There are {', '.join(operations)}; over {', '.join(targets)}."
        fix = f"{call.but(ops=None, axes=None)}, which tells all of them."
        raise SpecError(told(f"{call}: no such line was measured.", there, fix=fix))
    return found


def _of(fit: Fit) -> tuple[str, str]:
    return fit.op, fit.target


def _check_covers(call: Typed, words: Sequence[str], fit: Fit, size: int) -> None:
    """Refuse a size outside those that a line was drawn through.

    Raises:
        SpecError: with the nearest that it knows, and the command that measures this one too.
    """
    if fit.covers(size):
        return
    near = min(fit.sizes, key=lambda known: abs(known - size))
    sizes = [as_size(near) if word == as_size(size) else word for word in words[1:]]
    nearest = Typed(call.name, (words[0], *dict.fromkeys(sizes)), call.kwargs)
    wider = fit.wider(size)
    more = f"; or first {wider} --json > wider.json" if wider else ""
    raise SpecError(told(f"{call}: {fit.range}", BEYOND, fix=f"{nearest}{more}."))


def _split(text: str) -> tuple[str, ...]:
    """What stands between commas."""
    return tuple(text.split(","))


def _add(parser: ArgumentParser) -> None:
    text = "a file with what meshkit bench --json printed"
    parser.add_argument("results", metavar="FILE", help=text)
    text = "bytes of the total array: 3M, 100K"
    parser.add_argument("at", nargs="+", type=read_size, metavar="SIZE", help=text)
    text = "of these operations alone, with commas between"
    parser.add_argument("--ops", type=read_operations, help=text)
    text = "over these groups alone, as meshkit bench names them; commas between"
    parser.add_argument("--axes", type=_split, metavar="TARGETS", help=text)


PREDICT = Command("predict", "how long a collective takes, by what bench measured", _add, run)
