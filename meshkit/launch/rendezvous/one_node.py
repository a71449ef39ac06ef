"""Find a store for the ranks that mpirun starts on one node: a file named after mpirun's process.

No rank has to import MPI for that. The launcher is the nearest ancestor of a rank whose environment
lacks the variable of the rank. All ranks have the same one, wrappers between them or not. No other
job has it: its process id and its start time name the file.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

from ..store.rank_lease import process_stat
from ..world import World

SOURCE = "one node: a file named after the launcher's process"
MAX_ANCESTORS = 64


def store_of_one_node(world: World) -> World | None:
    """Return the world with a file as its store; None if ranks may be elsewhere. Local.

    Also None without Linux's /proc, if the launcher is not among the ancestors, or if the rank is
    an argument.
    """
    variable, launcher = world.sources["rank"], None
    if world.local_world_size == world.world_size and variable in os.environ:
        launcher = _launcher_process(variable)
    folder = None if launcher is None else _private_folder()
    if folder is None:
        return None
    sources = {**world.sources, "init_method": SOURCE}
    return replace(world, init_method=f"file://{folder}/{launcher}", sources=sources)


def _launcher_process(variable: str) -> str | None:
    """Return the id and the start time of the nearest ancestor without a variable."""
    stat = process_stat(os.getpid())
    try:
        for _ in range(MAX_ANCESTORS):
            pid = int(stat[1])  # the parent
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            stat = process_stat(pid)
            if not any(line.startswith(f"{variable}=".encode()) for line in variables):
                return f"{pid}-{stat[19]}"
    except (OSError, IndexError):  # no /proc, another user's process, or it has ended
        return None
    return None


def _private_folder() -> Path | None:
    """Return a folder for temporary files that only this user can write; None if it is foreign."""
    folder = Path(tempfile.gettempdir(), f"meshkit-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    is_own = folder.is_dir() and not folder.is_symlink() and status.st_uid == os.getuid()
    return folder if is_own and not status.st_mode & 0o022 else None
