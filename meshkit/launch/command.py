"""The command that would start the ranks of this program, and warnings about how it was started.

A platform may number its pods by RANK, and leave the ranks of a pod to torchrun::

                                       pod 0   pod 1    with torchrun in each pod
    RANK                               0       1        0 1   2 3
    WORLD_SIZE                         4       4        4 4   4 4
    PET_NNODES, PET_NPROC_PER_NODE     2, 2    2, 2

A program that starts there without torchrun would wait for the ranks 2 and 3.
"""

from __future__ import annotations

import linecache
import re
import shlex
import sys
import traceback
from pathlib import Path

from ..errors import CALL, LaunchError, RankTimeoutError, SpecError, format_error
from .endpoint import Env, as_number
from .launchers import HAND_WRITTEN
from .signs import starter
from .world import COMPLETED, EXPORTED, World

# Options of torchrun, whose values may be words, such as auto and gpu, or a range of nodes.
TORCHRUN_OPTIONS = ("PET_NPROC_PER_NODE", "NPROC_PER_NODE", "PET_NNODES", "NNODES")
# spawn(job(3), without that of another library, such as pool.spawn
CALL_OF_RESULT = re.compile(
    r"(?<![\w.])((?:meshkit\.(?:\w+\.)*)?(?:spawn|rehearse))\(([\w.]+)\(([^()=]*)\)"
)


def program_arguments() -> str | None:
    """Return this program as it follows ``python``; None for a prompt or ``python -c``."""
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        words = ["-m", str(spec.name).removesuffix(".__main__")]
    elif file is not None and Path(file).exists():
        words = [sys.argv[0] if Path(sys.argv[0]).is_file() else file]
    else:
        return None
    return shlex.join([*words, *sys.argv[1:]])


def propose_function(num_ranks: int) -> str:
    """Return the call of spawn or rehearse on a line that calls the function by mistake, or "".

    ``spawn(job(), 4)`` calls ``job`` in this process, and gives spawn its result.
    """
    for frame, number in traceback.walk_stack(None):
        line = linecache.getline(frame.f_code.co_filename, number, frame.f_globals)
        if match := CALL_OF_RESULT.search(line):
            args = f", args=({match[3].rstrip(', ')},)" if match[3] else ""
            return f"{match[1]}({match[2]}, {num_ranks}{args}), with the function itself."
    return ""


def propose_command(error: SpecError, world: World) -> SpecError:
    """Return the error of a program without launcher with the command that starts enough ranks."""
    num_ranks, program = error.num_ranks, program_arguments()
    if num_ranks is None or world.launcher != "single" or num_ranks <= world.world_size:
        return error
    if fix := propose_function(num_ranks):
        line = "A line calls the function here, before a rank is started."
        return error.but(evidence=(*error.evidence, line), fix=fix)
    if program is None:
        return error.but(fix=f"meshkit.spawn(fn, {num_ranks}), with {CALL} in fn.")
    if command := starter(world.allocation):
        return error.but(fix=f"{command} -n {num_ranks} python {program}")
    return error.but(fix=f"torchrun --nproc-per-node {num_ranks} {program}")


def check_pod(world: World, env: Env) -> None:
    """Check that RANK numbers processes, and not pods.

    The pod 0 is accepted: its numbers are also those of a rank 0 that another launcher has started.
    """
    command = torchrun_of_nodes(world)
    rank, size, per_node, node = (
        world.sources.get(field, "")
        for field in ("rank", "world_size", "local_world_size", "node_rank")
    )
    if command is None or not world.rank == world.node_rank != 0 or rank == "argument":
        return
    raise LaunchError(
        f"{rank}={world.rank} is the number of this node ({node}={world.node_rank}), and each node "
        f"has {world.local_world_size} ranks ({per_node}).",
        f"{size}={world.world_size} ranks would be waited for; one process on each "
        f"node numbers {world.num_nodes} of them.",
        fix=f"{command} on each node; or export LOCAL_RANK on each rank, if another launcher "
        f"numbers them.",
        variables={rank: env.get(rank), node: env.get(node)},
    )


def propose_torchrun(error: RankTimeoutError, world: World) -> RankTimeoutError:
    """Return the error of a pod with torchrun as its fix, if the ranks that it adds are missing."""
    command = torchrun_of_nodes(world)
    added = {*range(world.num_nodes or 1, world.world_size)}
    if not command or not added <= {*error.missing_ranks}:
        return error
    count = f"{world.sources['local_world_size']} is {world.local_world_size}"
    line = f"torchrun has not started this process, and {count}."
    fix = f"{command} on each node; or {error.fix_text}"
    return error.but(evidence=(*error.evidence, line), fix=fix)


def torchrun_of_nodes(world: World) -> str | None:
    """Return the command for each node, if only torchrun would start all ranks of it; else None."""
    names = [world.sources.get(name, "") for name in ("local_world_size", "num_nodes", "node_rank")]
    per_node, nodes, node = names
    is_option = world.launcher == HAND_WRITTEN.name and per_node in TORCHRUN_OPTIONS
    is_numbered = world.sources.get("local_rank") in (*HAND_WRITTEN.local_rank, "argument")
    if not is_option or is_numbered or world.local_world_size == 1:
        return None
    options = f"--nproc-per-node ${per_node}"
    if world.num_nodes != 1:
        node = "RANK" if world.node_rank is None else node
        options = f"--nnodes ${nodes} --node-rank ${node} {options} --master-addr $MASTER_ADDR"
        options += " --master-port $MASTER_PORT"
    return f"torchrun {options} {program_arguments() or 'train.py'}"


def warning_of(world: World, env: Env) -> str | None:
    """Return the warning about variables that contradict a world, on one of its ranks; or None."""
    if world.rank == 0:
        return _warning_of_more(world) if world.allocation else None
    is_second = world.rank == 1 or (world.local_rank, world.node_rank) == (1, 0)
    text, fix = describe_exports(world, env) if is_second else ("", "")
    reason = "Other libraries read these variables, for example to choose a device, and init "
    return format_error(f"{text}.", f"{reason}overwrites none.", fix=f"{fix}.") if text else None


def describe_exports(world: World, env: Env) -> tuple[str, str]:
    """Return how variables of torch contradict a launcher, and the fix; "" if none does. Local."""
    differing = {} if COMPLETED in env else _differing(world, env)
    exported = ", ".join(f"{name} = {env[name]!r}" for name in differing)
    own = ", ".join(
        f"{field} {getattr(world, field)} ({world.sources.get(field, world.launcher)})"
        for field in differing.values()
    )
    text = f"the environment says {exported}, and {world.launcher} says {own}"
    fix = f"unset {' '.join(differing)} in the script that exports the same to all ranks"
    return (text, fix) if differing else ("", "")


def _warning_of_more(world: World) -> str:
    """Return the warning of rank 0 that the job is larger than the ranks that were started."""
    command = starter(world.allocation)
    start = f"{command} python ..." if command else "start it with a launcher, as torchrun"
    fix = f"{start}, or init(rank=0, world_size=1) to run one process."
    if world.world_size > 1:
        name = str(world.allocation).partition(" ")[0]
        fix = "start all ranks, for example with torchrun on each node; "
        fix += f"or unset {name}, if {world.world_size} ranks are meant."
    return format_error(
        f"{world.started}, and the environment says that the job is larger: {world.allocation}.",
        f"The size of the world: {world.size_evidence}.",
        fix=fix,
    )


def _differing(world: World, env: Env) -> dict[str, str]:
    """Return the variables of torch that differ from a world that was not read from them."""
    fields = ((field, name) for field, name in EXPORTED.items() if not field.startswith("master_"))
    own_device = ("LOCAL_RANK", 0)  # of each rank, where a launcher shows it one device alone
    return {
        name: field
        for field, name in fields
        if env.get(name, "").strip()
        and (name, as_number(env[name])) != own_device
        and world.sources.get(field) not in (name, "argument")
        and getattr(world, field) is not None
        and as_number(env[name]) != getattr(world, field)
        and not (world.allocation or "").startswith(f"{name} = ")  # rank 0 warns of it
    }
