"""Where this rank is: the collectives it has begun, the one it is in, the line of its own code."""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Mapping
from types import FrameType

import torch
import torch.distributed as dist

from ..core.hang import Place
from ..core.plan import Axes
from ..launch.inside import begun

Frames = Iterable[tuple[FrameType, int]]  # from the outermost in, each with its line

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_TORCH, _STDLIB = os.path.dirname(torch.__file__), sysconfig.get_paths()["stdlib"]
_LOADER = os.path.join(_TORCH, "utils", "data") + os.sep  # waiting for data is no collective
_COLLECTIVES = (  # where the functions are that users call, with the group among their arguments
    os.path.join(_TORCH, "distributed", "distributed_c10d.py"),
    os.path.join(_PACKAGE, "live", "barrier.py"),
    os.path.join(_PACKAGE, "live", "waiting.py"),
)
# gloo's messages begin with its path, or with what it did to a pair of ranks.
_TORCHS = re.compile(r"gloo|nccl|communicator|pair closure|wait timeout|collective op", re.I)


def of_error(error: BaseException) -> Frames:
    """The frames through which an error came, those of whoever catches it first."""
    outer = list(traceback.walk_stack(sys._getframe(1)))[::-1]
    return [*outer, *traceback.walk_tb(error.__traceback__)]


def of_thread(ident: int) -> Frames:
    """The frames in which a thread is now; none where it has ended."""
    frame = sys._current_frames().get(ident)
    return list(traceback.walk_stack(frame))[::-1] if frame is not None else []


def is_collectives(error: BaseException) -> bool:
    """Whether an error is torch's own about a collective that failed or timed out."""
    if isinstance(error, dist.DistError):
        return True
    return type(error) is RuntimeError and bool(_TORCHS.search(str(error)))


def place(
    rank: int, groups: Mapping[Axes, dist.ProcessGroup], frames: Frames, error: str = ""
) -> Place:
    """Where a rank is, by its groups and the frames of its thread. Local.

    Args:
        rank: this process.
        groups: the key of a plan to this rank's group.
        frames: from the outermost in.
        error: with what it left, in a line.
    """
    counts = {" ".join(key): begun(group) for key, group in groups.items() if key}
    told = {axes: count for axes, count in counts.items() if count is not None}
    operation, line = "", ""
    for frame, number in frames:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if not _is_foreign(file):
            line = f"{os.path.basename(file)}:{number} ({name})"
            waits = ".wait(" in linecache.getline(file, number)
            operation = operation if " over " in operation else "wait" * waits
        elif file in _COLLECTIVES and " over " not in operation:
            operation = f"{name} over {_axes(frame.f_locals.get('group'), groups)}"
        elif file.startswith(_TORCH + os.sep) and not operation and not file.startswith(_LOADER):
            operation = f"torch's {name}"
    return Place(rank, told, operation, line, error)


def is_of_another_mesh(place: Place) -> bool:
    """Whether the collective is one over a group that another mesh has made."""
    return " over meshkit " in place.operation


def _is_foreign(file: str) -> bool:
    """Whether a file is torch's, ours or Python's own: torchtitan and what pip installs are not."""
    inside = [part + os.sep for part in (_TORCH, _PACKAGE)]
    pythons = file.startswith(_STDLIB + os.sep) and "site-packages" not in file
    return pythons or file.startswith(tuple(inside))


def _axes(group: object, groups: Mapping[Axes, dist.ProcessGroup]) -> str:
    """The axes of a group in words."""
    one = dist.group.WORLD if group is None else group
    found = [" ".join(key) for key, mine in groups.items() if mine is one]
    return found[0] if found else str(getattr(one, "group_desc", "") or "a group of its own")
