"""Where this rank is: the collectives it has begun, the one it is in, the line of its own code."""

from __future__ import annotations

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
_FOREIGN = (os.path.dirname(torch.__file__), _PACKAGE, sysconfig.get_paths()["stdlib"])
_COLLECTIVES = (  # where the functions are that users call, with the group among their arguments
    os.path.join(_FOREIGN[0], "distributed", "distributed_c10d.py"),
    os.path.join(_PACKAGE, "live", "barrier.py"),
)
_TORCHS = re.compile(
    r"gloo|nccl|communicator|connection (closed|reset)|broken pipe|timed? ?out|collective op",
    re.IGNORECASE,
)


def of_error(error: BaseException) -> Frames:
    """The frames through which an error came."""
    return list(traceback.walk_tb(error.__traceback__))


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
        if file in _COLLECTIVES and not operation:
            operation = f"{name} over {_axes(frame.f_locals.get('group'), groups)}"
        elif not file.startswith(_FOREIGN):
            line = f"{os.path.basename(file)}:{number} ({name})"
    return Place(rank, told, operation, line, error)


def _axes(group: object, groups: Mapping[Axes, dist.ProcessGroup]) -> str:
    """The axes of a group in words."""
    one = dist.group.WORLD if group is None else group
    found = [" ".join(key) for key, mine in groups.items() if mine is one]
    return found[0] if found else str(getattr(one, "group_desc", "") or "a group of its own")
