"""Faults that several test modules inject into a rank, and the errors that follow.

Each fault is put in place by a ``pytest.MonkeyPatch``, which the rank undoes when its context ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

import meshkit
from meshkit.groups import groups as create
from meshkit.launch.world import free_port


def free_address() -> str:
    """Return an address on this machine that no process uses."""
    return f"tcp://127.0.0.1:{free_port()}"


def error_of(call: Callable[[], Any]) -> tuple[str, str] | None:
    """Return the class name and the text of the error that a call raises, or None."""
    try:
        call()
    except meshkit.MeshkitError as error:
        return type(error).__name__, str(error)
    return None


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return the kind, the text and the facts of an error, in values that can be pickled."""
    return {
        "kind": type(error).__name__,
        "text": str(error),
        "missing": list(getattr(error, "missing_ranks", ())),
        "behind": list(getattr(error, "behind", ())),
        "root": list(getattr(error, "root", ())),
        "cause": type(error.__cause__).__name__,
    }


def fail_new_group(
    patch: pytest.MonkeyPatch, number: int, error: BaseException, *, together: bool
) -> list[Any]:
    """Let the call of ``new_group`` of this number (1 for the first) raise an error.

    Args:
        patch: undoes the fault when its context ends.
        number: which call fails.
        error: the error that it raises.
        together: whether all ranks fail, and wait for each other before, so that none of them
            is still connecting.

    Returns:
        The arguments of all calls; the list grows with each call.
    """
    real: Callable[..., Any] = dist.new_group
    calls: list[Any] = []

    def new_group(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) == number:
            if together:
                dist.barrier()
            # a new object: the traceback of a kept one would keep the groups of the caller alive
            raise type(error)(*error.args)
        return real(*args, **options)

    patch.setattr(create.dist, "new_group", new_group, raising=True)
    return calls


def create_every_group(patch: pytest.MonkeyPatch) -> None:
    """Let torch create the groups of other ranks one by one, instead of counting them."""
    patch.setattr(create, "advance_group_counter", lambda groups: groups == 0, raising=True)
