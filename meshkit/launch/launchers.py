"""The table of launchers: the variables that each sets on every rank, in the order of matching.

::

    row            started by                        recognised by
    accelerate     accelerate launch                 torchrun's and ACCELERATE_MIXED_PRECISION
    torchrun       torchrun                          TORCHELASTIC_RUN_ID
    spawn          meshkit.spawn                     MESHKIT_SPAWN
    deepspeed      deepspeed                         CROSS_RANK, CROSS_SIZE and LOCAL_SIZE
    hand-written   the user's own launcher, a pod    RANK or WORLD_SIZE
    horovod        horovodrun with gloo              HOROVOD_RANK and HOROVOD_SIZE
    azureml        an MPI job of AzureML             AZUREML_EXPERIMENT_ID and Open MPI's variables
    sagemaker      an MPI job of SageMaker           SM_TRAINING_ENV and Open MPI's variables
    openmpi        mpirun of Open MPI                OMPI_COMM_WORLD_SIZE
    mvapich2       mpirun_rsh                        MV2_COMM_WORLD_SIZE
    mvapich        mpirun_rsh of MVAPICH 3           MVP_COMM_WORLD_SIZE
    pals           mpiexec of Cray PALS              PALS_RANKID
    flux           flux run                          FLUX_TASK_RANK and FLUX_JOB_SIZE
    hydra          mpiexec of MPICH and Intel MPI    PMI_SIZE
    lsf            jsrun                             JSM_NAMESPACE_SIZE
    slurm          srun                              SLURM_STEP_ID or SLURM_PROCID
    single         no launcher                       none of the variables above

The first row that matches the environment provides every field of the World; a row with a rank and
a size comes before one with half of them, which a script may have exported. Inner launchers come
before outer ones: torchrun's workers and mpirun's children inherit the variables of an allocation.

To add a launcher, write a row and put it into ``LAUNCHERS``. :class:`Launcher` describes the
columns. Add an environment of one of its ranks to
``tests/launch/environments.json``: the tests then check the new row like the others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from .endpoint import (
    EndpointSource,
    Env,
    HeadNode,
    Names,
    NodeList,
    RankFile,
    as_number,
    first_value,
)

# Steps that Slurm itself creates for an allocation: interactive, batch, extern, pending (slurm.h).
SLURM_OWN_STEPS = range(2**32 - 6, 2**32)


class Launcher(NamedTuple):
    """One row of the table. A column may name several variables; the first one set is used."""

    name: str  # as ``World.launcher`` has it
    markers: tuple[Names, ...]  # it matches if all variables of one of these are set
    rank: Names
    world_size: Names
    local_rank: Names = ()
    local_world_size: Names = ()
    node_rank: Names = ()
    num_nodes: Names = ()
    tasks_per_node: Names = ()  # lists of tasks per node, for sizes that are not set
    master_addr: Names = ("MASTER_ADDR",)
    master_port: Names = ("MASTER_PORT",)
    endpoint_sources: tuple[EndpointSource, ...] = ()  # used if these are not set
    init_method: Names = ()  # rendezvous URL
    by_mpi: bool = False  # whether ranks can exchange the endpoint through MPI
    unless: Callable[[Env], bool] | None = None  # whether something else set the markers
    job: Names = ()  # together equal on all ranks of a job, different on other jobs


def is_batch_script(env: Env) -> bool:
    """Return whether Slurm started this process for a whole allocation, as sbatch and salloc do.

    Such a process has a SLURM_PROCID of 0 like a task, but belongs to no step of srun.
    """
    step = env.get("SLURM_STEP_ID", env.get("SLURM_STEPID"))
    if step is None:
        return as_number(env.get("SLURM_PROCID")) == 0 and "SLURM_STEP_NODELIST" not in env
    return as_number(step) in SLURM_OWN_STEPS


def set_by_srun(rank: Names, world_size: Names, env: Env, *, own: Names) -> bool:
    """Return whether srun set the variables of an MPI launcher, equal to its own, through PMI."""
    if "SLURM_STEP_ID" not in env or any(name in env for name in own):
        return False
    pairs = ((rank, ("SLURM_PROCID",)), (world_size, ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")))
    values = ([as_number(first_value(names, env)) for names in pair] for pair in pairs)
    return all(pmi == srun for pmi, srun in values)


def set_by_jsrun(env: Env) -> bool:
    """Return whether jsrun set the variables of Open MPI, equal to its own, for Spectrum MPI."""
    pairs = ((f"OMPI_COMM_WORLD_{name}", f"JSM_NAMESPACE_{name}") for name in ("RANK", "SIZE"))
    return all(
        jsm in env and as_number(env.get(ompi, env[jsm])) == as_number(env[jsm])
        for ompi, jsm in pairs
    )


def set_by_hydra(env: Env) -> bool:
    """Return whether an mpiexec of its own started this process inside a task of Flux."""
    pairs = (("PMI_RANK", "FLUX_TASK_RANK"), ("PMI_SIZE", "FLUX_JOB_SIZE"))
    values = ((env.get(pmi), env.get(flux)) for pmi, flux in pairs)
    differs = any(pmi is not None and as_number(pmi) != as_number(flux) for pmi, flux in values)
    return differs or "MPI_LOCALRANKID" in env


HAND_WRITTEN = Launcher(
    "hand-written",
    markers=(("RANK",), ("WORLD_SIZE",)),
    rank=("RANK",),
    world_size=("WORLD_SIZE",),
    local_rank=("LOCAL_RANK",),
    local_world_size=("LOCAL_WORLD_SIZE", "PET_NPROC_PER_NODE", "NPROC_PER_NODE"),
    node_rank=("NODE_RANK", "PET_NODE_RANK"),
    num_nodes=("NNODES", "PET_NNODES"),
)
TORCHRUN = HAND_WRITTEN._replace(
    name="torchrun",
    markers=(("TORCHELASTIC_RUN_ID",),),
    local_world_size=("LOCAL_WORLD_SIZE",),
    node_rank=("GROUP_RANK",),
    num_nodes=("GROUP_WORLD_SIZE",),
    job=("TORCHELASTIC_RUN_ID",),
)
ACCELERATE = TORCHRUN._replace(
    name="accelerate", markers=(("TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION"),)
)
BY_TORCHRUN = {TORCHRUN.name, ACCELERATE.name}  # accelerate starts several ranks by torchrun
SPAWN = HAND_WRITTEN._replace(
    name="spawn",
    markers=(("MESHKIT_SPAWN",),),
    local_world_size=("LOCAL_WORLD_SIZE",),
    node_rank=(),
    num_nodes=(),
    master_addr=(),
    master_port=(),
    init_method=("MESHKIT_SPAWN",),
)
DEEPSPEED = HAND_WRITTEN._replace(
    name="deepspeed",
    markers=(("CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE"),),
    local_world_size=("LOCAL_SIZE",),
    node_rank=("CROSS_RANK",),
    num_nodes=("CROSS_SIZE",),
)
# Rows whose single process is not always meant: it may know of itself alone in a larger job.
BY_ENVIRONMENT = (HAND_WRITTEN, TORCHRUN, ACCELERATE, DEEPSPEED)
# HOROVOD_CROSS_SIZE counts the nodes that have this local rank, which need not be all.
HOROVOD = Launcher(
    "horovod",
    markers=(("HOROVOD_RANK", "HOROVOD_SIZE"),),
    rank=("HOROVOD_RANK",),
    world_size=("HOROVOD_SIZE",),
    local_rank=("HOROVOD_LOCAL_RANK",),
    local_world_size=("HOROVOD_LOCAL_SIZE",),
)
OPEN_MPI = Launcher(
    "openmpi",
    markers=(("OMPI_COMM_WORLD_SIZE",), ("OMPI_COMM_WORLD_RANK",)),
    unless=set_by_jsrun,
    rank=("OMPI_COMM_WORLD_RANK",),
    world_size=("OMPI_COMM_WORLD_SIZE",),
    local_rank=("OMPI_COMM_WORLD_LOCAL_RANK",),
    local_world_size=("OMPI_COMM_WORLD_LOCAL_SIZE",),
    by_mpi=True,
    job=("PMIX_NAMESPACE",),
)
AZUREML = OPEN_MPI._replace(
    name="azureml",
    markers=tuple(("AZUREML_EXPERIMENT_ID", *names) for names in OPEN_MPI.markers),
    endpoint_sources=(
        HeadNode("AZ_BATCH_MASTER_NODE", 6105),
        HeadNode("AZ_BATCHAI_MPI_MASTER_NODE", 54965),
    ),
    job=(),
)
SAGEMAKER = OPEN_MPI._replace(
    name="sagemaker",
    markers=tuple(("SM_TRAINING_ENV", *names) for names in OPEN_MPI.markers),
    master_addr=("MASTER_ADDR", "SM_MASTER_ADDR"),
    master_port=("MASTER_PORT", "SM_MASTER_PORT"),
    job=(),
)


def _mvapich(name: str, prefix: str) -> Launcher:
    """Return MVAPICH as one of its versions names its variables."""
    rank, size = f"{prefix}_COMM_WORLD_RANK", f"{prefix}_COMM_WORLD_SIZE"
    return Launcher(
        name,
        markers=((size,), (rank,)),
        rank=(rank,),
        world_size=(size,),
        local_rank=(f"{prefix}_COMM_WORLD_LOCAL_RANK",),
        local_world_size=(f"{prefix}_COMM_WORLD_LOCAL_SIZE",),
        by_mpi=True,
    )


MVAPICH2, MVAPICH = _mvapich("mvapich2", "MV2"), _mvapich("mvapich", "MVP")
PALS = Launcher(
    "pals",
    markers=(("PALS_RANKID",),),
    unless=partial(set_by_srun, ("PALS_RANKID",), ("PMI_SIZE",), own=("PALS_LOCAL_SIZE",)),
    rank=("PALS_RANKID",),
    world_size=("PALS_SIZE", "PMI_SIZE"),
    local_rank=("PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"),
    local_world_size=("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"),
    node_rank=("PALS_NODEID",),
    by_mpi=True,
)
FLUX = Launcher(
    "flux",
    markers=(("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),),
    unless=set_by_hydra,
    rank=("FLUX_TASK_RANK",),
    world_size=("FLUX_JOB_SIZE",),
    local_rank=("FLUX_TASK_LOCAL_ID",),
    num_nodes=("FLUX_JOB_NNODES",),
    by_mpi=True,
    job=("FLUX_JOB_ID",),
)
# Others set the variables of PMI too, and leave out those of hydra for the node.
HYDRA = Launcher(
    "hydra",
    markers=(("PMI_SIZE",), ("PMI_RANK",)),
    unless=partial(set_by_srun, ("PMI_RANK",), ("PMI_SIZE",), own=("MPI_LOCALRANKID",)),
    rank=("PMI_RANK",),
    world_size=("PMI_SIZE",),
    local_rank=("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "LOCAL_RANK"),
    local_world_size=("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "LOCAL_WORLD_SIZE"),
    node_rank=("NODE_RANK",),
    by_mpi=True,
)
LSF = Launcher(
    "lsf",
    markers=(("JSM_NAMESPACE_SIZE",), ("JSM_NAMESPACE_RANK",)),
    rank=("JSM_NAMESPACE_RANK",),
    world_size=("JSM_NAMESPACE_SIZE",),
    local_rank=("JSM_NAMESPACE_LOCAL_RANK",),
    local_world_size=("JSM_NAMESPACE_LOCAL_SIZE",),
    endpoint_sources=(RankFile(("LSB_DJOB_RANKFILE",), ("LSB_JOBID",)),),
    by_mpi=True,
)
SLURM = Launcher(
    "slurm",
    markers=(("SLURM_STEP_ID",), ("SLURM_PROCID",)),
    unless=is_batch_script,
    rank=("SLURM_PROCID",),
    world_size=("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
    local_rank=("SLURM_LOCALID",),
    local_world_size=("LOCAL_WORLD_SIZE",),  # Spur lists no tasks of a step
    node_rank=("SLURM_NODEID",),
    num_nodes=("SLURM_STEP_NUM_NODES", "SLURM_NNODES"),
    tasks_per_node=("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"),
    endpoint_sources=(
        NodeList(
            ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"),
            ("SLURM_JOB_ID", "SLURM_STEP_ID"),
        ),
    ),
    job=("SLURM_JOB_ID", "SLURM_STEP_ID"),
)

LAUNCHERS = (
    *(ACCELERATE, TORCHRUN, SPAWN, DEEPSPEED, HAND_WRITTEN, HOROVOD),
    *(AZUREML, SAGEMAKER, OPEN_MPI, MVAPICH2, MVAPICH, PALS, FLUX, HYDRA, LSF, SLURM),
)
BY_MPI = {row.name for row in LAUNCHERS if row.by_mpi}


def matching_launchers(env: Env) -> list[Launcher]:
    """Return the rows that match an environment, whole ones first; the first one is used."""
    rows = [
        row
        for row in LAUNCHERS
        if any(all(name in env for name in names) for names in row.markers)
        and not (row.unless is not None and row.unless(env))
    ]
    return sorted(rows, key=lambda row: not is_whole(row, env))


def is_whole(row: Launcher, env: Env) -> bool:
    """Return whether an environment has the rank and the size of a launcher, neither blank."""
    sizes = row.world_size + row.tasks_per_node
    return all((first_value(names, env) or "").strip() for names in (row.rank, sizes))


def job_name(env: Env, launcher: str) -> str:
    """Return the launcher's name of the job of this process; empty if it sets none."""
    names = next((row.job for row in LAUNCHERS if row.name == launcher), ())
    if "SLURM_HET_SIZE" in env:  # the parts of the job have different names
        return ""
    return ".".join(env[name] for name in names) if all(name in env for name in names) else ""


def job_hosts(env: Env, launcher: str) -> list[str]:
    """Return the hosts on which a launcher started the job; empty if it does not list them."""
    sources = next((row.endpoint_sources for row in LAUNCHERS if row.name == launcher), ())
    return next((source.host_names(env) for source in sources if isinstance(source, NodeList)), [])


def contradicting_variables(env: Env, rank: int, world_size: int) -> set[str]:
    """Return the variables of launchers that contradict RANK and WORLD_SIZE, once exported."""
    index = LAUNCHERS.index(HAND_WRITTEN)
    preceding = {name for row in LAUNCHERS[:index] for names in row.markers for name in names}
    stated = {row: [as_number(first_value(names, env)) for names in row[2:4]] for row in LAUNCHERS}
    others = (
        row
        for row, (own, size) in stated.items()
        if (size == world_size and own != rank) or (world_size == 1 and size not in (None, 1))
    )
    return (preceding | {name for row in others for name in row.rank}) & {*env}
