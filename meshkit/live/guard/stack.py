"""The status of a rank: its collective counts, its current collective, its line of user code.

The status is read from the frames of a thread, by the thread itself or by a guard's watching
thread.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist

from ...core.group_plan import Axes
from ...core.hang import RankStatus
from ...launch.torch_internals import collective_count
from .current import CurrentCollective

# outermost first, each with its line number; None between two lines of its code
Frames = Iterable[tuple[FrameType, int | None]]

_PACKAGE = str(Path(__file__).resolve().parents[2])
_TORCH, _STDLIB = os.path.dirname(torch.__file__), sysconfig.get_paths()["stdlib"]
_LOADER = os.path.join(_TORCH, "utils", "data") + os.sep  # waiting for data is no collective
_COLLECTIVES = dist.distributed_c10d.__name__  # torch's public functions, with a group argument
# gloo's messages begin with its path, or with the operation that failed on a pair of ranks.
_BACKEND_ERROR = re.compile(
    r"gloo|nccl|communicator|pair closure|wait timeout|collective op", re.IGNORECASE
)


def frames_of_error(error: BaseException) -> Frames:
    """Return the frames that an error came through, outermost first."""
    outer = list(traceback.walk_stack(sys._getframe(1)))[::-1]
    return [*outer, *traceback.walk_tb(error.__traceback__)]


def frames_of_thread(ident: int) -> Frames:
    """Return the current frames of a thread; empty if the thread has ended."""
    frame = sys._current_frames().get(ident)
    return list(traceback.walk_stack(frame))[::-1] if frame is not None else []


def is_collective_error(error: BaseException) -> bool:
    """Return whether an error is torch's own, about a collective that failed or timed out."""
    if isinstance(error, dist.DistError):
        return True
    return type(error) is RuntimeError and bool(_BACKEND_ERROR.search(str(error)))


def rank_status(
    rank: int,
    groups: Mapping[Axes, dist.ProcessGroup],
    frames: Frames,
    current: CurrentCollective | None = None,
    error: str = "",
) -> RankStatus:
    """Return the status of this rank. Local."""
    all_counts = {" ".join(key): collective_count(group) for key, group in groups.items() if key}
    counts = {axes: count for axes, count in all_counts.items() if count is not None}
    announced = "" if current is None else f"{current.name} over {_axes_of(current.group, groups)}"
    operation, line = announced, ""
    for frame, number in frames:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if not _is_library(file):
            line = f"{os.path.basename(file)}{f':{number}' if number else ''} ({name})"
            waits = ".wait(" in linecache.getline(file, number or 0)
            operation = operation if " over " in operation else "wait" * waits
        elif " over " in operation:
            continue
        elif frame.f_globals.get("__name__") == _COLLECTIVES:
            operation = f"{name} over {_axes_of(frame.f_locals.get('group'), groups)}"
        elif file.startswith(_TORCH + os.sep) and not operation and not file.startswith(_LOADER):
            operation = f"torch's {name}"
    return RankStatus(rank, counts, operation, line, error)


def is_other_mesh(status: RankStatus) -> bool:
    """Return whether the collective runs on a group that another mesh created."""
    return " over meshkit " in status.operation


def _is_library(file: str) -> bool:
    """Return whether a file belongs to torch, meshkit or Python itself.

    Files in site-packages, for example those of torchtitan, count as user code.
    """
    of_python = file.startswith(_STDLIB + os.sep) and "site-packages" not in file
    return of_python or file.startswith((_TORCH + os.sep, _PACKAGE + os.sep))


def _axes_of(group: object, groups: Mapping[Axes, dist.ProcessGroup]) -> str:
    """Return the axes of a group, or else the description that torch has of it."""
    group = dist.group.WORLD if group is None else group
    axes = [" ".join(key) for key, known in groups.items() if known is group]
    return axes[0] if axes else str(getattr(group, "group_desc", "") or "a group of its own")
