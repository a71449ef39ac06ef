"""What commands that start ranks on this machine have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..core.errors import LaunchError, MeshkitError, SpawnError, told
from ..core.runs import runs

ENDING = 10.0  # seconds beyond --timeout after which ranks that do not end are ended


def shared_device(device: str | None) -> str | None:
    """The device for ranks that share a machine: the cpu where it has too few accelerators.

    Args:
        device: what was asked for, which stays; None takes the accelerator, else the cpu.
    """
    import torch

    from ..launch.device import accelerator, visible_devices
    from ..launch.environment import detect

    kind = accelerator()
    if device is None and kind and visible_devices(torch.device(kind)) < detect().world_size:
        return "cpu"
    return device


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
        raise LaunchError(told(f"{what} broke.", line, fix=fix)) from error


def failed(n: int, error: SpawnError) -> SpawnError:
    """The error of ranks started here, in the words of the one that failed first. No traceback.

    Args:
        n: how many were started.
        error: what ``spawn`` raised.

    Returns:
        An error that has the fix of that rank, where it has one.
    """
    cause = error.__cause__
    first = next((rank for rank, other in error.errors.items() if other is cause), 0)
    others = sorted(error.errors.keys() - {first})
    also = f"; failed too: {runs(others)}" if others else ""
    line = f"rank {first} of {n} failed first{also}."
    words = f"{type(cause).__name__}: {cause}".splitlines()
    text = "\n  ".join([line, *(word.strip() for word in words)])
    if not isinstance(cause, MeshkitError):
        fix = "meshkit doctor; or --device cpu, which asks less of the machine."
        text = told(line, *words, fix=fix)
    return SpawnError(text, errors=error.errors)
