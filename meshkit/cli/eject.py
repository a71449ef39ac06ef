"""``eject``: write a mesh as a program of plain torch, without meshkit. It needs no process."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser, Namespace

from ..data.batch import resolve_data_axes
from ..errors import SpecError
from ..layout.axes import Axes
from ..layout.group_plan import GroupPlan
from ..plan.plain_program import averaged_axes, write_program
from . import options
from .main import Command, Result


def run_eject(args: Namespace) -> Result:
    """Write the program into a file, or show it."""
    layout = options.read_layout(args.words, args)
    plan, data = GroupPlan.of(layout, args.groups or ()), options.read_data_axes(layout, args)
    batch = options.read_batch(layout, args, data)
    axes = () if batch is None else resolve_data_axes(data, layout.sizes)
    if batch is not None:
        _check_averaged(plan, axes)
    program = write_program(plan, batch, axes)
    text = program
    if args.output is not None:
        options.write_file("program", args.output, f"{program}\n")
        start = f"torchrun --nproc-per-node {layout.num_ranks} {shlex.quote(args.output)}"
        text = f"{args.output} has {len(program.splitlines())} lines; it runs by: {start}"
    return Result(lambda: {"program": program, "output": args.output}, lambda **_: text)


def _check_averaged(plan: GroupPlan, data: Axes) -> None:
    """Check that the mesh has a group over which the gradients are averaged."""
    averaged = averaged_axes(plan, data)
    if not plan.has(averaged):
        names = " ".join(averaged)
        summary = f"the mesh has no group over {names}, which divide the samples or the tokens."
        fix = f"add --groups {shlex.quote(names)}."
        raise SpecError(summary, "Gradients are averaged over it.", fix=fix)


def _add_eject(parser: ArgumentParser) -> None:
    help = f"{options.SIZES_HELP}; one size can be -1"
    parser.add_argument("words", nargs="+", metavar="AXIS=SIZE", help=help)
    options.add_grid(parser)
    options.add_batch(parser)
    options.add_groups(parser)
    help = "write the program into this file, which is replaced, instead of showing it"
    parser.add_argument("-o", "--output", metavar="FILE", help=help)


EJECT = Command(
    "eject",
    "write a mesh as a program of plain torch",
    _add_eject,
    run_eject,
    (
        "dp=2 sp=2 --global-batch 64 --micro-batch 4",
        "dp=4 tp=2 --order 'tp dp' --json",
    ),
    complete=options.missing_batch_size,
)
