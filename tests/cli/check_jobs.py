"""What ranks run in place of ``checked_beside``, and what spoils a rank. No pytest here."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

import meshkit
from meshkit.cli.check import checked
from meshkit.core.report.verification import CheckReport
from meshkit.launch.launchers.detect import detect
from meshkit.live.guard import verify as verify_module


def dies(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def one_dies(request: Mapping[str, Any], device: str | None, timeout: float) -> CheckReport:
    """Rank 1 is killed as it begins to verify."""
    if detect().rank == 1:
        meshkit.Mesh.verify = dies  # type: ignore[method-assign,assignment]
    return checked(request, device, timeout)


def one_differs(request: Mapping[str, Any], device: str | None, timeout: float) -> CheckReport:
    """Rank 2 asks for other sizes."""
    return checked({"dp": 4} if detect().rank == 2 else request, device, timeout)


def one_is_elsewhere(request: Mapping[str, Any], device: str | None, timeout: float) -> CheckReport:
    """Rank 1 meets other ranks than it should."""
    if detect().rank == 1:
        proved = verify_module._has_members
        verify_module._has_members = lambda *given: proved(*given) and False
    return checked(request, device, timeout)


def one_leaves(request: Mapping[str, Any], device: str | None, timeout: float) -> CheckReport:
    """Rank 1 never comes."""
    if detect().rank == 1:
        raise SystemExit(0)
    return checked(request, device, timeout)
