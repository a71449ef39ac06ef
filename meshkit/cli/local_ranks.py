"""Real ranks of a command: their options, their device, their deadline, their failures."""

from __future__ import annotations

import math
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from ..core.errors import CALL, Change, Fix, LaunchError, MeshkitError, SpawnError, SpecError
from ..core.text import count_noun, format_ranks
from ..launch.launchers.detect import detect
from .options.grid import add_order
from .options.numbers import read_count, read_seconds

ENDING = 10.0  # seconds beyond --timeout after which ranks that have not ended are killed

Result = TypeVar("Result")


def add_mesh(parser: ArgumentParser) -> None:
    """Add the sizes, ``--order`` and the options of :func:`add_ranks`."""
    help = "an axis and its size, as for build_mesh; one size can be -1"
    parser.add_argument("words", nargs="+", metavar="AXIS=SIZE", help=help)
    add_order(parser)
    add_ranks(parser)


def add_ranks(parser: ArgumentParser) -> None:
    """Add the options ``-n``, ``--device`` and ``--timeout``."""
    help = "start N ranks on this machine; without it, this process is a rank of its launcher"
    parser.add_argument("-n", type=read_count, metavar="N", help=help)
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


def choose_shared_device(device: str | None) -> str | None:
    """Return the device of local ranks: the cpu if there are fewer accelerators than ranks."""
    return "cpu" if device is None and _has_too_few(detect().world_size) else device


def uses_cpu(device: str | None, ranks: int) -> bool:
    """Return whether ranks on this machine compute on its cpu."""
    from ..launch.device.device import accelerator

    if device is not None:
        return device.partition(":")[0] == "cpu"
    return not accelerator() or _has_too_few(ranks)


def _has_too_few(ranks: int) -> bool:
    """Return whether there are accelerators, but not one for each rank."""
    import torch

    from ..launch.device.device import accelerator, visible_devices

    kind = accelerator()
    return bool(kind) and visible_devices(torch.device(str(kind))) < ranks


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
) -> list[Result]:
    """Run a function on ``n`` ranks that are started here, and return their results."""
    from ..launch.spawn.spawn import spawn
    from ..live.preload import preload_mesh

    preload_mesh()
    try:
        return spawn(function, n, args, timeout=timeout)
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


def _fix(cause: BaseException | None, n: int, device: str | None, smaller: str) -> Fix:
    if isinstance(cause, MeshkitError):
        return cause.fix_text
    options = [smaller] * bool(smaller) + ["--device cpu"] * (not uses_cpu(device, n))
    less = f"; or {' or '.join(options)}, which needs less of the machine" if options else ""
    return f"meshkit doctor{less}."
