"""The batch of a job: two of its three sizes, which give the third."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, Namespace

from ...core.call import drop_none
from ...core.data.batch import BatchPlan
from ...core.data.batch_names import COUNTERPARTS, foreign_name_error
from ...core.data.batch_solver import solve_batch
from ...core.errors import BatchError, Change, Fix, join_fixes
from ...core.grid.layout import Layout
from .numbers import read_count

HELP = {
    "global_batch": "samples of one step",
    "micro_batch": "samples of one forward and backward pass of a rank",
    "accumulation_steps": "micro batches of one optimizer step; "
    "give two of --global-batch, --micro-batch, --accumulation-steps",
}


def add_batch(parser: ArgumentParser) -> None:
    """Add the options ``--global-batch``, ``--micro-batch`` and ``--accumulation-steps``."""
    for name, help in HELP.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=read_count, metavar="N", help=help)
    for name in COUNTERPARTS:
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=read_count, help=SUPPRESS)


def read_batch(layout: Layout, args: Namespace) -> BatchPlan | None:
    """Return the batch plan over dp, or None if none of the options was given."""
    given = drop_none(**{name: getattr(args, name) for name in HELP})
    if foreign := drop_none(**{name: getattr(args, name, None) for name in COUNTERPARTS}):
        raise foreign_name_error(foreign, given)
    if not given:
        return None
    if "dp" not in layout.axes:
        sizes = {"dp": 1, **layout.sizes}
        fix = (Change(**sizes, order=" ".join(sizes)), ".")
        raise BatchError("there is no axis dp that divides the samples.", fix=fix)
    try:
        return BatchPlan.of(solve_batch({"dp": layout.sizes["dp"], **given}))
    except BatchError as error:
        error.fix = _batch_fix(error, given) or error.fix
        raise


def _batch_fix(error: BatchError, given: dict[str, object]) -> Fix:
    """Return a fix with the nearest batches that divide; "" if the error lists none."""
    ways: list[Fix] = [Change(global_batch=n) for n in (error.below, error.above) if n]
    if ways and error.micro_batches and len(given) == 2:
        other = next(name for name in ("micro_batch", "accumulation_steps") if name in given)
        nearest = min(error.micro_batches, key=lambda n: abs(n - int(str(given[other]))))
        ways.append(Change(**{other: nearest}))
    return (*join_fixes(ways), ".") if ways else ""
