"""A mesh as it is typed for commands that build one of real ranks."""

from __future__ import annotations

import math
from argparse import ArgumentParser
from collections.abc import Mapping

from ...core.errors import CALL, Change, SpecError
from ...core.text import count_noun
from ...launch.launchers.detect import detect
from ..command import seconds
from .grid import add_order, number


def add_mesh(parser: ArgumentParser) -> None:
    """Give a parser the sizes, ``-n``, ``--order``, ``--device`` and ``--timeout``."""
    what = "an axis and its size, as for build_mesh; one size may be -1"
    parser.add_argument("sizes", nargs="+", metavar="AXIS=SIZE", help=what)
    start = "start this many local ranks; without it, this is a rank under its launcher"
    parser.add_argument("-n", type=number, metavar="N", help=start)
    add_order(parser)
    where = "cpu, cuda, ... (default: the accelerator; the cpu with fewer of them than -n)"
    parser.add_argument("--device", help=where)
    wait = "how long ranks wait for each other, and a collective may take (default 60)"
    parser.add_argument("--timeout", type=seconds, default=60.0, metavar="SECONDS", help=wait)


def check_company(sizes: Mapping[str, int]) -> None:
    """Refuse a mesh of several ranks where this is one process and nobody started others.

    Args:
        sizes: axis name to size; one may be -1.

    Raises:
        SpecError: with the command that starts as many as are needed.
    """
    needed = math.prod(size for size in sizes.values() if size != -1)
    if needed > 1 and detect().launcher == "single":
        fix = (Change(n=needed), ", which starts them; or this under a launcher.")
        line = f"{CALL} needs {count_noun(needed, 'rank')}, and here is one process."
        raise SpecError(line, fix=fix, sizes=dict(sizes), world_size=1)
