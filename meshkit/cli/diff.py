"""``meshkit diff``: what another grid changes for each rank: groups, samples, weights."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from ..core.axes import STANDARD
from ..core.batch import BatchPlan
from ..core.call import given
from ..core.difference import Difference, difference_text
from ..core.errors import SpecError, told
from ..core.layout import Layout
from . import Answer, Command, terminal
from .grid import BATCH, add_batch, batch_of, layout_of, number, sizes_of
from .typed import Typed


def run(asked: Namespace) -> Answer:
    """Compare the two grids that were asked for. Pure: no torch, no processes.

    Args:
        asked: ``before`` and ``after``, sizes in one word each; ``world``, for a grid in which a
            size is -1; the options of a batch.

    Raises:
        SpecError: as :func:`meshkit.cli.plan.run`, for either of the grids.
        BatchError: for a batch that does not divide over dp of the first.
    """
    before, after = (_layout(asked, which) for which in ("before", "after"))
    found = Difference.of(before, after, _batch(asked, before))
    if asked.json:
        return Answer(json.dumps(found.as_dict()))
    return Answer(difference_text(found, width=terminal.width(), ascii=not terminal.lines()))


def _layout(asked: Namespace, which: str) -> Layout:
    """One of the grids: in the standard order, or as written where an axis has no place in it."""
    words = getattr(asked, which).split()
    if not words:
        fix = 'meshkit diff "dp=4 sp=2" "dp=2 sp=2 tp=2", say.'
        raise SpecError(told("one of the two grids has no sizes.", fix=fix))
    sizes = sizes_of(words, "meshkit diff")
    order = None if set(sizes) <= {*STANDARD} else " ".join(sizes)
    both = (sizes, f'"{asked.after}"') if which == "before" else (f'"{asked.before}"', sizes)
    call = Typed("meshkit diff", both, given(world=asked.world), quoted=True)
    return layout_of(call, sizes, order, asked.world if -1 in sizes.values() else None)


def _batch(asked: Namespace, before: Layout) -> BatchPlan | None:
    more = given(**{name: getattr(asked, name) for name in BATCH})
    call = Typed("meshkit diff", (f'"{asked.before}" "{asked.after}"',), more)
    return batch_of(call, before, asked)


def _add(parser: ArgumentParser) -> None:
    for name, text in (("before", '"dp=4 sp=2"'), ("after", '"dp=2 sp=2 tp=2"')):
        parser.add_argument(name, metavar=name.upper(), help=f"sizes in one word: {text}")
    world = "how many ranks there are, for a grid in which a size is -1"
    parser.add_argument("--world", type=number, metavar="N", help=world)
    add_batch(parser)


DIFF = Command("diff", "what another grid changes: groups, samples, weights", _add, run)
