"""``meshkit move``: the steps, groups and bytes of a redistribution, and of its gradient."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from ...core.errors import SpecError
from ...core.redistribute.report import RedistributionPlan, plan_redistribution
from ..command import Command, Result
from ..options.grid import read_axis_sizes, split_sizes


def run(args: Namespace) -> Result:
    """Plan a redistribution. Pure: no torch, no processes."""
    plan = _read_plan(args)
    return Result(plan.as_dict, plan.draw)


def _read_plan(args: Namespace) -> RedistributionPlan:
    mesh, pattern, dims = _split_words(args.words)
    to = None if args.to is None else " ".join(split_sizes([args.to]))
    return plan_redistribution(mesh, pattern, to=to, sizes=read_axis_sizes(dims))


def _split_words(words: Sequence[str]) -> tuple[str, str, list[str]]:
    """Return the sizes of the mesh, the pattern and the sizes of the dims."""
    index = next((i for i, word in enumerate(words) if "->" in word), None)
    if index is None:
        fix = "for example meshkit move dp=4 tp=2 'o/dp i -> o i *dp' o=4096 i=4096."
        raise SpecError("there is no pattern: the tensor before, ->, and after.", fix=fix)
    return " ".join(split_sizes(words[:index])), words[index], split_sizes(words[index + 1 :])


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
        "tp=2 'o/tp i -> o i/tp' o=64 i=64",
    ),
)
