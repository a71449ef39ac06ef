"""``meshkit predict``: how long a collective takes, by what ``meshkit bench`` has measured."""

from __future__ import annotations

import json
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence

from ..core.errors import SpecError, told
from ..core.fit import BEYOND, Fit, wider
from ..core.measured_read import read_fits
from ..core.prediction import Prediction, prediction_table
from ..core.targets import WORLD
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
    said = _read(call, asked.results)
    fits = _chosen(call, read_fits(call, said), asked)
    _check_covers(call, fits, asked.at, here=not _several(said.get("hosts")))
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
        SpecError: for an operation or a target of which there is none.
    """
    mesh = fits[0].mesh
    axes = None if asked.axes is None else {name: _axes(name, mesh) for name in asked.axes}
    found = [fit for fit in fits if asked.ops is None or fit.op in asked.ops]
    found = [fit for fit in found if axes is None or _axes(fit.target, mesh) in axes.values()]
    ops = [op for op in asked.ops or () if op in {fit.op for fit in found}]
    there = {_axes(fit.target, mesh) for fit in found}
    targets = [name for name, one in (axes or {}).items() if one in there]
    lost = [name for name in (*(asked.ops or ()), *(axes or ())) if name not in (*ops, *targets)]
    if lost:
        line = f"{call}: no line of {' or '.join(map(repr, lost))} was measured."
        fix = f"{call.but(ops=','.join(ops) or None, axes=','.join(targets) or None)}."
        raise SpecError(told(line, _what(fits), fix=fix))
    return found


def _axes(name: str, mesh: Mapping[str, int]) -> frozenset[str]:
    """The axes of a target, in whatever order they are typed; ``world`` is all of them.

    Example:
        >>> _axes("sp dp", {"dp": 2, "sp": 2}) == _axes("world", {"dp": 2, "sp": 2, "tp": 1})
        True
    """
    if name.strip() == WORLD and WORLD not in mesh:
        return frozenset(axis for axis, size in mesh.items() if size > 1)
    return frozenset(name.split())


def _what(fits: Sequence[Fit]) -> str:
    """Which lines there are, in a sentence: each operation with its targets."""
    found: dict[str, dict[str, None]] = {}
    for fit in fits:
        found.setdefault(fit.op, {})[fit.target] = None
    over = [f"{op} over {', '.join(targets)}" for op, targets in found.items()]
    return f"There are {'; '.join(over)}."


def _several(hosts: object) -> bool:
    """Whether ranks were on several machines: only a launcher starts them there."""
    return isinstance(hosts, list) and len({str(host) for host in hosts}) > 1


def _check_covers(call: Typed, fits: Sequence[Fit], sizes: Sequence[int], *, here: bool) -> None:
    """Refuse sizes outside those that lines were drawn through.

    Args:
        call: the command.
        fits: the lines.
        sizes: all that are asked for.
        here: whether the ranks of the run shared a machine.

    Raises:
        SpecError: with the nearest that all lines know, and the command that measures these too.
    """
    outside = next((fit for fit in fits for size in sizes if not fit.covers(size)), None)
    if outside is None:
        return
    command = wider(fits, sizes, here=here)
    ways = [_nearest(call, fits, sizes)]
    if command:
        where = "" if here else ", without -n under the launcher of that run"
        ways.append(f"first {command} --json > wider.json{where}")
    fix = "; or ".join(way for way in ways if way) or "sizes between those of each line."
    raise SpecError(told(f"{call}: {outside.range}", BEYOND, fix=f"{fix.removesuffix('.')}."))


def _nearest(call: Typed, fits: Sequence[Fit], sizes: Sequence[int]) -> str:
    """The command with the nearest sizes that all lines cover; "" where none is in all of them."""
    least, most = max(fit.sizes[0] for fit in fits), min(fit.sizes[-1] for fit in fits)
    if least > most:
        return ""
    near = dict.fromkeys(as_size(min(max(size, least), most)) for size in sizes)
    return str(Typed(call.name, (call.args[0], *near), call.kwargs))


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
