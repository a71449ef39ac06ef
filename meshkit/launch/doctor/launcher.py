"""Checks of the launcher: the rank that it gives this process, and the way to rank 0."""

from __future__ import annotations

from ...core.errors import LaunchError
from ..launchers.detect import FIELDS, allocation_without_srun, detect
from ..launchers.table import LAUNCHERS
from ..launchers.variables import Env
from ..launchers.world import World
from .finding import Finding

ENDPOINT_FIELDS = ("master_addr", "master_port", "init_method")


def check_launcher(env: Env) -> tuple[World | None, list[Finding]]:
    """Return the world of this process and one finding per field, or the launcher's error.

    Example:
        >>> _, findings = check_launcher({"RANK": "3", "WORLD_SIZE": "4"})
        >>> findings[1]
        Finding(name='rank', ok=True, found='3 (RANK)', advice='')
    """
    try:
        world = detect(env)
    except LaunchError as error:
        return None, [Finding.from_error("launcher", error)]
    tasks = allocation_without_srun(world)
    text, advice = world.launcher, ""
    if tasks:
        text += f": a single process in an allocation of several tasks ({tasks})"
        advice = "srun python -m meshkit doctor; ignore this if one process is intended."
    names = [*FIELDS, *(name for name in ENDPOINT_FIELDS if getattr(world, name) is not None)]
    fields = [Finding(name, True, _with_source(world, name)) for name in names]
    return world, [Finding("launcher", not tasks, text, advice), *fields, *check_rendezvous(world)]


def check_rendezvous(world: World) -> list[Finding]:
    """Check how ranks find rank 0 if the launcher of several ranks sets no address."""
    if world.world_size == 1 or world.init_method or (world.master_addr and world.master_port):
        return []
    by_mpi = any(row.by_mpi for row in LAUNCHERS if row.name == world.launcher)
    if by_mpi and world.local_world_size == world.world_size:
        return [Finding("rendezvous", True, "one node: a file that is named after the launcher")]
    text = f"the address of rank 0 is unknown: MASTER_ADDR={world.master_addr}, "
    text += f"MASTER_PORT={world.master_port}"
    advice = "export MASTER_ADDR=<host of rank 0> MASTER_PORT=29500"
    if by_mpi:
        try:
            import mpi4py  # noqa: F401  (does not start MPI, unlike mpi4py.MPI)
        except ImportError:
            text += ", and mpi4py is not installed"
            advice = f"pip install mpi4py, or {advice}"
        else:
            return [Finding("rendezvous", True, "rank 0 sends its address through mpi4py")]
    return [Finding("rendezvous", False, text, advice)]


def _with_source(world: World, name: str) -> str:
    value = getattr(world, name)
    return "unknown" if value is None else f"{value} ({world.sources[name]})"
