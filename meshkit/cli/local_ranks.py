"""What commands that start ranks on this machine have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..core.errors import LaunchError, MeshkitError, SpawnError, format_error
from ..core.text import format_ranks

ENDING = 10.0  # seconds beyond --timeout after which ranks that do not end are ended


def shared_device(device: str | None) -> str | None:
    """The device for ranks that share a machine: the cpu where it has too few accelerators.

    Args:
        device: what was asked for, which stays; None takes the accelerator, else the cpu.
    """
    from ..launch.launchers.detect import detect

    return "cpu" if device is None and _too_few(detect().world_size) else device


def on_cpu(device: str | None, ranks: int) -> bool:
    """Whether so many ranks that share this machine compute on its cpu.

    Args:
        device: what was asked for; None takes the accelerator, where there are enough.
        ranks: how many.
    """
    from ..launch.device.device import accelerator

    if device is not None:
        return device.partition(":")[0] == "cpu"
    return not accelerator() or _too_few(ranks)


def _too_few(ranks: int) -> bool:
    """Whether there are accelerators, but not one for each rank."""
    import torch

    from ..launch.device.device import accelerator, visible_devices

    kind = accelerator()
    return bool(kind) and visible_devices(torch.device(str(kind))) < ranks


@contextmanager
def in_words(what: str) -> Iterator[None]:
    """Say in words what torch raises, which is always a RuntimeError.

    Raises:
        LaunchError: in its place.
    """
    try:
        yield
    except MeshkitError:
        raise
    except RuntimeError as error:
        line = str(error).partition("\n")[0]
        fix = "meshkit doctor, on the machines of the job."
        raise LaunchError(f"{what} broke.", line, fix=fix) from error


def failed(n: int, error: SpawnError, device: str | None, less: str = "") -> SpawnError:
    """The error of ranks started here, in the words of the one that failed first. No traceback.

    Args:
        n: how many were started.
        error: what ``spawn`` raised.
        device: what was asked for.
        less: what asks less of the machine, where something does.

    Returns:
        An error that has the fix of that rank, where it has one.
    """
    cause = error.__cause__
    first = next((rank for rank, other in error.errors.items() if other is cause), 0)
    others = sorted(error.errors.keys() - {first})
    also = f"; failed too: {format_ranks(others)}" if others else ""
    line = f"rank {first} of {n} failed first{also}."
    words = f"{type(cause).__name__}: {cause}".splitlines()
    text = "\n  ".join([line, *(word.strip() for word in words)])
    if not isinstance(cause, MeshkitError):
        host = [] if on_cpu(device, n) else ["--device cpu"]
        ways = " or ".join([less] * bool(less) + host)
        fix = f"meshkit doctor{ways and f'; or {ways}, which asks less of the machine'}."
        text = format_error(line, *words, fix=fix)
    return SpawnError(text, errors=error.errors)
