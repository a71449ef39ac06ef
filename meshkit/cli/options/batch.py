"""The batch of a job: two of its three sizes, which give the third."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from ...core.call import drop_none, either
from ...core.data.batch import BatchPlan
from ...core.data.batch_solver import solve_batch
from ...core.data.data_axes import (
    data_choices,
    describe_data,
    num_data_coordinates,
    resolve_data_axes,
)
from ...core.errors import BatchError, SpecError
from ...core.grid.axis_names import resolve_axes
from ...core.grid.group_plan import Axes
from ...core.grid.layout import Layout
from ...core.grid.roles import unknown_axes
from .numbers import read_count

HELP = {
    "global_batch": "samples of one step",
    "micro_batch": "samples of one forward and backward pass of a rank",
    "accumulation_steps": "micro batches of one optimizer step; "
    "give two of --global-batch, --micro-batch, --accumulation-steps",
}


def add_batch(parser: ArgumentParser) -> None:
    """Add ``--global-batch``, ``--micro-batch``, ``--accumulation-steps`` and ``--data``."""
    for name, help in HELP.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=read_count, metavar="N", help=help)
    help = 'the axes that divide the samples (default: by their names, for example "dp ep")'
    parser.add_argument("--data", dest="data_axes", metavar="AXES", help=help)


def read_data_axes(args: Namespace, *layouts: Layout) -> tuple[Axes | None, ...]:
    """Return the axes of ``--data`` that each grid has; None for each grid without the option."""
    if args.data_axes is None:
        return (None,) * len(layouts)
    every = tuple(dict.fromkeys(axis for layout in layouts for axis in layout.axes))
    names = resolve_axes("data", args.data_axes, every)
    return tuple(tuple(axis for axis in names if axis in grid.axes) for grid in layouts)


def read_batch(layout: Layout, args: Namespace, data: Axes | None) -> BatchPlan | None:
    """Return the batch plan, or None if none of the options was given.

    The data axes are those of ``--data``; if they are None, the roles of the axes give them.
    """
    given = drop_none(**{name: getattr(args, name) for name in HELP})
    if not given:
        return None
    axes = _data_axes(layout, data)
    try:
        dp = num_data_coordinates(layout.sizes, axes)
        return BatchPlan.of(solve_batch({"dp": dp, **given}))
    except BatchError as error:
        error.evidence += describe_data(layout.sizes, axes)
        error.fix = _batch_fix(error, given) or error.fix
        raise


def _data_axes(layout: Layout, data: Axes | None) -> Axes:
    """Return the data axes; the error for an unknown role proposes ``--data``."""
    try:
        return resolve_data_axes(data, layout.sizes)
    except SpecError as error:
        if data is None and unknown_axes(layout.sizes):
            error.fix = either(*(f"--data '{' '.join(a)}'" for a in data_choices(layout.sizes)))
        raise


def _batch_fix(error: BatchError, given: dict[str, object]) -> str:
    """Return a fix with the nearest batches that divide; "" if the error lists none."""
    ways = [f"--global-batch {n}" for n in (error.below, error.above) if n]
    if ways and error.micro_batches and len(given) == 2:
        other = next(name for name in ("micro_batch", "accumulation_steps") if name in given)
        nearest = min(error.micro_batches, key=lambda n: abs(n - int(str(given[other]))))
        ways.append(f"--{other.replace('_', '-')} {nearest}")
    if len(given) == 1:
        return "two of --global-batch, --micro-batch and --accumulation-steps."
    return either(*ways) if ways else ""
