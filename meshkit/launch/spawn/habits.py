"""Recognise calls of ``spawn`` that are written for ``torch.multiprocessing.spawn``."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from contextlib import suppress

from ...core.call import changes, format_value
from ...core.errors import LaunchError, SpecError
from ...core.text import count_noun
from ..launchers.detect import detect
from ..launchers.program import program_arguments
from ..launchers.world import World
from ..log import report_uncaught_error


def check_no_launcher(fn: Callable[..., object]) -> None:
    """Check that this process is not already one rank of several."""
    report_uncaught_error()
    world: World | None = None
    with suppress(LaunchError):  # malformed variables are no launcher of several ranks
        world = detect(os.environ)
    if world is None or world.world_size == 1:
        return
    program = program_arguments()
    alone = f"; or start one process, with python {program}" if program else ""
    raise LaunchError(
        f"{world.launcher} has started this process as rank {world.rank} of {world.world_size}.",
        "spawn would start another job in each of these ranks.",
        fix=f"call {format_value(fn, 'fn')} without spawn: meshkit.build_mesh() in it uses the "
        f"{world.world_size} ranks of {world.launcher}{alone}.",
    )


def check_arguments_fit(fn: Callable[..., object], args: Sequence[object]) -> None:
    """Check that ``fn(*args)`` is a valid call. A function may expect a rank before ``args``."""
    if not callable(fn):
        called = "spawn calls it on each rank, so pass the function itself, without brackets."
        raise SpecError(f"fn is {fn!r}, no function.", called, fix="spawn(fn, world_size).")
    if isinstance(args, str) or not isinstance(args, Sequence):
        raise SpecError(f"args is {args!r}, no tuple.", fix=f"{changes(args=(args,))}.")
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # a builtin without a signature
        return
    if _binds(signature, args):
        return
    name = format_value(fn, "fn")
    first = next(iter(signature.parameters), "")
    if not _binds(signature, (0, *args)):
        no_rank = "spawn passes no rank: meshkit.detect() has the rank and the world_size."
        raise SpecError(
            f"{name} does not take the {count_noun(len(args), 'argument')} of args.",
            f"Its parameters are {', '.join(signature.parameters) or 'none'}.",
            *([no_rank] if "rank" in first else []),
            fix=f"spawn({name}, world_size, args) with a tuple of arguments that fits them.",
        )
    raise SpecError(
        f"{name} takes one argument more than args has: {first}.",
        "torch.multiprocessing.spawn passes the rank first; meshkit.spawn passes args alone.",
        fix=f"remove {first} from the parameters of {name}; meshkit.detect().rank is the rank.",
    )


def _binds(signature: inspect.Signature, args: Sequence[object]) -> bool:
    try:
        signature.bind(*args)
    except TypeError:
        return False
    return True
