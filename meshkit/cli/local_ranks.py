"""Options, device, deadline and errors of a command that runs ranks.

The command starts the ranks on this machine, or a launcher has started them.
"""

from __future__ import annotations

import math
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

from ..core.errors import CALL, LaunchError, MeshkitError, SpawnError, SpecError
from ..core.text import count_noun, format_ranks
from ..launch.launchers.detect import detect
from ..launch.output.progress import Progress, show_progress
from .options.grid import SIZES_HELP, add_order
from .options.numbers import read_count, read_seconds

ENDING = 10.0  # seconds beyond the time limit of a command before its ranks are killed

Result = TypeVar("Result")


def add_mesh(parser: ArgumentParser) -> None:
    """Add the sizes, ``--order`` and the options of :func:`add_ranks`."""
    help = f"{SIZES_HELP}; one size can be -1"
    parser.add_argument("words", nargs="+", metavar="AXIS=SIZE", help=help)
    add_order(parser)
    add_ranks(parser)


def add_ranks(parser: ArgumentParser) -> None:
    """Add the options ``-n``, ``--device`` and ``--timeout``."""
    help = "start N ranks on this machine; without it, this process is a rank of its launcher"
    parser.add_argument("-n", "--world-size", dest="n", type=read_count, metavar="N", help=help)
    help = "cpu, cuda, ... (default: the accelerator, or the cpu if accelerators are fewer than N)"
    parser.add_argument("--device", help=help)
    help = "how long a rank waits for others, and how long a collective may take (default 60)"
    parser.add_argument("--timeout", type=read_seconds, default=60.0, metavar="SECONDS", help=help)


def check_launched(sizes: Mapping[str, int]) -> None:
    """Refuse a mesh of several ranks in a single process without a launcher."""
    needed = math.prod(size for size in sizes.values() if size != -1)
    if needed > 1 and detect().launcher == "single":
        fix = f"-n {needed}, which starts them; or run it under a launcher."
        summary = f"{CALL} needs {count_noun(needed, 'rank')}, and this is a single process."
        raise SpecError(summary, fix=fix, sizes=dict(sizes), world_size=1)


def choose_shared_device(device: str | None) -> str | None:
    """Return the device of local ranks: the cpu if there are fewer accelerators than ranks."""
    return "cpu" if device is None and _has_too_few(detect().world_size) else device


def uses_cpu(device: str | None, ranks: int) -> bool:
    """Return whether ranks on this machine compute on the cpu."""
    from ..launch.device.device import accelerator

    if device is not None:
        return device.partition(":")[0] == "cpu"
    return not accelerator() or _has_too_few(ranks)


def _has_too_few(ranks: int) -> bool:
    """Return whether this machine has accelerators, but fewer than ranks."""
    import torch

    from ..launch.device.device import accelerator, visible_devices

    kind = accelerator()
    return bool(kind) and visible_devices(torch.device(str(kind))) < ranks


def rank_0_progress(title: str) -> AbstractContextManager[object]:
    """Return a context that shows progress on rank 0 of a launcher, and nothing elsewhere."""
    if detect().rank:
        return nullcontext()
    progress = Progress(title, sys.stderr)
    progress.state = f"waiting for {count_noun(detect().world_size, 'rank')}"
    return show_progress(progress)


@contextmanager
def torch_errors(task: str) -> Iterator[None]:
    """Raise a LaunchError in place of a RuntimeError of torch."""
    try:
        yield
    except MeshkitError:
        raise
    except RuntimeError as error:
        line = str(error).partition("\n")[0]
        fix = "run meshkit doctor on the machines of the job."
        raise LaunchError(f"{task} failed.", line, fix=fix) from error


def spawn_ranks(
    function: Callable[..., Result],
    n: int,
    args: tuple[Any, ...],
    *,
    device: str | None,
    timeout: float,
    smaller: str = "",
    title: str = "",
) -> list[Result]:
    """Start ``n`` ranks on this machine, run a function on each, and return the results.

    The title begins the lines of progress; without one there are none.
    """
    from ..launch.spawn.spawn import start_ranks
    from ..live.preload import preload_mesh

    preload_mesh()
    try:
        return start_ranks(function, n, args, timeout=timeout, title=title)
    except SpawnError as error:
        raise describe_failure(n, error, device, smaller) from error


def describe_failure(
    n: int, error: SpawnError, device: str | None, smaller: str = ""
) -> SpawnError:
    """Return an error with the summary, evidence and fix of the rank that failed first."""
    cause = error.__cause__
    first = next((rank for rank, other in error.errors.items() if other is cause), 0)
    others = sorted(error.errors.keys() - {first})
    also = f"; also failed: {format_ranks(others)}" if others else ""
    return SpawnError(
        f"rank {first} of {n} failed first{also}.",
        *_evidence(cause),
        fix=_fix(cause, n, device, smaller),
        errors=error.errors,
    )


def _evidence(cause: BaseException | None) -> list[str]:
    """Return the type and the text of an error without its fix, in lines."""
    lines = str(cause).splitlines()
    if isinstance(cause, MeshkitError):
        lines = [cause.headline, *cause.evidence]
    return [f"{type(cause).__name__}: {lines[0] if lines else ''}", *map(str.strip, lines[1:])]


def _fix(cause: BaseException | None, n: int, device: str | None, smaller: str) -> str:
    if isinstance(cause, MeshkitError):
        return cause.fix_text
    options = [smaller] * bool(smaller) + ["--device cpu"] * (not uses_cpu(device, n))
    less = f"; or {' or '.join(options)}, which needs fewer resources" if options else ""
    return f"run meshkit doctor{less}."
