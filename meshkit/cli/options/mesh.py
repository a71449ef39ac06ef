"""The mesh of commands that run real ranks: its sizes, its device, and who starts the ranks."""

from __future__ import annotations

import math
from argparse import ArgumentParser
from collections.abc import Mapping

from ...core.errors import CALL, Change, SpecError
from ...core.text import count_noun
from ...launch.launchers.detect import detect
from .grid import add_order
from .numbers import read_count, read_seconds


def add_mesh(parser: ArgumentParser) -> None:
    """Add the sizes, ``--order`` and the options of :func:`add_ranks`."""
    help = "an axis and its size, as for build_mesh; one size can be -1"
    parser.add_argument("words", nargs="+", metavar="AXIS=SIZE", help=help)
    add_order(parser)
    add_ranks(parser)


def add_ranks(parser: ArgumentParser) -> None:
    """Add the options ``-n``, ``--device`` and ``--timeout``."""
    help = "start N ranks on this machine; without it, this process is a rank of its launcher"
    parser.add_argument("-n", "--world-size", dest="n", type=read_count, metavar="N", help=help)
    help = "cpu, cuda, ... (default: the accelerator, or the cpu if there are fewer than N)"
    parser.add_argument("--device", help=help)
    help = "how long ranks wait for each other, and a collective may take (default 60)"
    parser.add_argument("--timeout", type=read_seconds, default=60.0, metavar="SECONDS", help=help)


def check_launched(sizes: Mapping[str, int]) -> None:
    """Refuse a mesh of several ranks in a single process without a launcher."""
    needed = math.prod(size for size in sizes.values() if size != -1)
    if needed > 1 and detect().launcher == "single":
        fix = (Change(n=needed), ", which starts them; or run it under a launcher.")
        summary = f"{CALL} needs {count_noun(needed, 'rank')}, and this is a single process."
        raise SpecError(summary, fix=fix, sizes=dict(sizes), world_size=1)
