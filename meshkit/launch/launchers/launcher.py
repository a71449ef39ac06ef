"""A launcher: the environment variables that it sets on every rank, as one row of the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .endpoint import EndpointSource
from .variables import Env, Names, first_value

# Steps that Slurm itself creates for an allocation: interactive, batch, extern, pending (slurm.h).
SLURM_OWN_STEPS = {str(2**32 - number) for number in range(1, 7)}


class Launcher(NamedTuple):
    """One row of the table. A column may name several variables; the first one set is used."""

    name: str  # as ``World.launcher`` has it
    markers: tuple[Names, ...]  # it matches if all variables of one of these are set
    rank: Names
    world_size: Names
    local_rank: Names
    local_world_size: Names = ()
    node_rank: Names = ()
    num_nodes: Names = ()
    tasks_per_node: Names = ()  # lists of tasks per node, for the local size
    master_addr: Names = ("MASTER_ADDR",)
    master_port: Names = ("MASTER_PORT",)
    endpoint_sources: tuple[EndpointSource, ...] = ()  # used if these are not set
    init_method: Names = ()  # rendezvous URL
    by_node: bool = False  # whether consecutive ranks are known to fill one node after another
    by_mpi: bool = False  # whether ranks can exchange the endpoint through MPI
    unless: Callable[[Env], bool] | None = None  # whether something else set the markers
    job: Names = ()  # together equal on all ranks of a job, different on other jobs


def is_batch_script(env: Env) -> bool:
    """Return whether Slurm started this process for a whole allocation, as sbatch and salloc do.

    Such a process has a SLURM_PROCID of 0 like a task, but belongs to no step of srun.
    """
    step = env.get("SLURM_STEP_ID", env.get("SLURM_STEPID"))
    if step is None:
        return env.get("SLURM_PROCID") == "0" and "SLURM_STEP_NODELIST" not in env
    return step in SLURM_OWN_STEPS


def set_by_srun(rank: Names, world_size: Names, env: Env, *, own: Names) -> bool:
    """Return whether srun set the variables of an MPI launcher, equal to its own, through PMI."""
    if "SLURM_STEP_ID" not in env or any(name in env for name in own):
        return False
    pairs = ((rank, ("SLURM_PROCID",)), (world_size, ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")))
    return all(first_value(pmi, env) == first_value(srun, env) for pmi, srun in pairs)
