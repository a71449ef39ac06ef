"""``meshkit move``: the steps, groups and bytes of a redistribution, and of its gradient."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from ...core.errors import SpecError
from ...core.grid.axis_names import STANDARD
from ...core.redistribute.report import RedistributionPlan, plan_redistribution
from .. import terminal
from ..command import Command, Result
from ..options.grid import read_axis_sizes, split_sizes


def run(args: Namespace) -> Result:
    """Plan a redistribution. Pure: no torch, no processes."""
    plan = _read_plan(args)
    if args.json:
        return Result(json.dumps(plan.as_dict()))
    ascii = not terminal.get_line_characters()
    return Result(plan.draw(width=terminal.get_width(), ascii=ascii), axes=plan.layout.axes)


def _read_plan(args: Namespace) -> RedistributionPlan:
    mesh, pattern, dims = _split_words(args.words)
    to = None if args.to is None else " ".join(split_sizes([args.to]))
    return plan_redistribution(mesh, pattern, to=to, **read_axis_sizes(dims))


def _split_words(words: Sequence[str]) -> tuple[str, str, list[str]]:
    """Return the sizes of the mesh, the pattern and the sizes of the dims.

    Axes stand before the pattern. ``--tp 2`` may also stand after it.
    """
    index = next((i for i, word in enumerate(words) if "->" in word), None)
    if index is None:
        fix = "for example meshkit move dp=4 tp=2 'o/dp i -> o i *dp' o=4096 i=4096."
        raise SpecError("there is no pattern: the tensor before, ->, and after.", fix=fix)
    after = split_sizes(words[index + 1 :])
    axes = [word for word in after if word.partition("=")[0] in STANDARD]
    mesh = [*split_sizes(words[:index]), *axes]
    return " ".join(mesh), words[index], [word for word in after if word not in axes]


def _add_options(parser: ArgumentParser) -> None:
    help = (
        "the size of each axis, dp=4 tp=2; then the tensor before and after in one word, "
        '"o/dp i -> o i *dp"; then each dim with its global size, o=4096'
    )
    parser.add_argument("words", nargs="+", metavar="WORD", help=help)
    help = "the sizes of another view of the mesh, which the right side of the pattern names"
    parser.add_argument("--to", metavar="AXES", help=help)


MOVE = Command(
    "move",
    "plan how a tensor moves over axes: steps, bytes",
    _add_options,
    run,
    (
        "dp=4 tp=2 'o/dp i -> o i *dp' o=4096 i=4096",
        "--tp 2 'o/tp i -> o i/tp' o=64 i=64",
    ),
)
