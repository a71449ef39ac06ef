"""The table of launchers: one row each, in the order in which they are matched.

::

    torchrun       TORCHELASTIC_RUN_ID                    set by torchrun on every worker
    spawn          MESHKIT_SPAWN                          set by meshkit.spawn on every child
    hand-written   RANK or WORLD_SIZE                     set by the user's own launcher
    azureml        AZUREML_EXPERIMENT_ID, and Open MPI's  AzureML's MPI jobs
    sagemaker      SM_TRAINING_ENV, and Open MPI's        SageMaker's MPI jobs
    openmpi        OMPI_COMM_WORLD_SIZE                   mpirun of Open MPI
    mvapich2       MV2_COMM_WORLD_SIZE                    mpirun_rsh
    pals           PALS_RANKID                            Cray's mpiexec
    hydra          PMI_SIZE                               mpiexec of MPICH and Intel MPI
    lsf            LSB_JOBID and JSM_NAMESPACE_SIZE       jsrun
    slurm          SLURM_STEP_ID or SLURM_PROCID          srun
    single         nothing                                a single process

The first row that matches the environment provides every field. Inner launchers come before
outer ones: torchrun's workers and mpirun's children inherit the variables of an allocation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from .endpoint import EndpointSource, HeadNode, NodeList, RankFile
from .variables import Env, Names, first_set

# Steps that Slurm itself creates for an allocation: interactive, batch, extern, pending (slurm.h).
SLURM_OWN_STEPS = {str(2**32 - number) for number in range(1, 7)}


@dataclass(frozen=True)
class Launcher:
    """One row: the variables that a launcher sets on every rank.

    Attributes:
        name: the row's name, as ``World.launcher`` has it.
        markers: sets of variables; the launcher matches if all variables of one set are present.
        rank: the variables that may hold the rank; the first one set is used. Other fields alike.
        tasks_per_node: a variable with a list of tasks per node, the source of the local size.
        endpoint_sources: ways to derive the rendezvous endpoint if MASTER_ADDR is not set.
        by_node: whether consecutive ranks are known to fill one node after another.
        by_mpi: whether it starts MPI jobs, whose ranks can exchange the endpoint through MPI.
        exclusive_markers: variables that only its own mpiexec sets; srun's PMI sets the others too.
        job: variables that together identify the job: equal on its ranks, different on other jobs.
    """

    name: str
    markers: tuple[Names, ...]
    rank: Names
    world_size: Names
    local_rank: Names
    local_world_size: Names = ()
    node_rank: Names = ()
    num_nodes: Names = ()
    tasks_per_node: Names = ()
    master_addr: Names = ("MASTER_ADDR",)
    master_port: Names = ("MASTER_PORT",)
    endpoint_sources: tuple[EndpointSource, ...] = ()
    init_method: Names = ()
    by_node: bool = False
    by_mpi: bool = False
    exclusive_markers: Names = ()
    job: Names = ()

    def matches(self, env: Env) -> bool:
        """Return whether this launcher started the process that has this environment."""
        if not any(all(name in env for name in names) for names in self.markers):
            return False
        if self.name == "slurm":
            return not _is_batch_script(env)
        return not (self.exclusive_markers and _set_by_srun(self, env))


def matching_launchers(env: Env) -> list[Launcher]:
    """Return the rows that match an environment; the first one provides the fields."""
    return [row for row in LAUNCHERS if row.matches(env)]


def job_name(env: Env, launcher: str) -> str:
    """Return the launcher's name of the job of this process; empty if it sets none.

    Empty for a heterogeneous Slurm job as well: it is one job whose parts have different names.

    Args:
        env: the environment.
        launcher: the name of its row.
    """
    names = next((row.job for row in LAUNCHERS if row.name == launcher), ())
    if "SLURM_HET_SIZE" in env:
        return ""
    return ".".join(env[name] for name in names) if all(name in env for name in names) else ""


def job_hosts(env: Env, launcher: str) -> list[str]:
    """Return the hosts on which a launcher started the job; empty if it does not list them.

    Args:
        env: the environment.
        launcher: the name of its row.
    """
    sources = next((row.endpoint_sources for row in LAUNCHERS if row.name == launcher), ())
    return next((source.names(env) for source in sources if isinstance(source, NodeList)), [])


def contradicting(env: Env, rank: int, world_size: int) -> set[str]:
    """Return the variables that contradict RANK and WORLD_SIZE once these are exported.

    These mark a launcher that precedes the hand-written row, or hold another rank of a job of
    the same size.

    Args:
        env: the environment.
        rank: the value that RANK will have.
        world_size: the value that WORLD_SIZE will have.
    """
    index = LAUNCHERS.index(HAND_WRITTEN)
    preceding = {name for row in LAUNCHERS[:index] for names in row.markers for name in names}
    same_size = (
        row for row in LAUNCHERS[index + 1 :] if _value(row.world_size, env) == str(world_size)
    )
    ranks = {n for row in same_size if _value(row.rank, env) != str(rank) for n in row.rank}
    return {name for name in preceding | ranks if name in env}


def _is_batch_script(env: Env) -> bool:
    """Return whether Slurm started this process for a whole allocation.

    It has a SLURM_PROCID of 0 like a task, but belongs to no step of srun.
    """
    step = env.get("SLURM_STEP_ID", env.get("SLURM_STEPID"))
    if step is None:
        return env.get("SLURM_PROCID") == "0" and "SLURM_STEP_NODELIST" not in env
    return step in SLURM_OWN_STEPS


def _set_by_srun(row: Launcher, env: Env) -> bool:
    """Return whether srun set a row's variables through its PMI, equal to its own variables."""
    if "SLURM_STEP_ID" not in env or any(name in env for name in row.exclusive_markers):
        return False
    pairs = ((row.rank, SLURM.rank), (row.world_size, SLURM.world_size))
    return all(_value(pmi, env) == _value(srun, env) for pmi, srun in pairs)


def _value(names: Names, env: Env) -> str | None:
    return env.get(first_set(names, env) or "")


class _Who(TypedDict):
    rank: Names
    world_size: Names
    local_rank: Names
    local_world_size: Names


_COMMON: _Who = {
    "rank": ("RANK",),
    "world_size": ("WORLD_SIZE",),
    "local_rank": ("LOCAL_RANK",),
    "local_world_size": ("LOCAL_WORLD_SIZE",),
}
_OPEN_MPI: _Who = {
    "rank": ("OMPI_COMM_WORLD_RANK",),
    "world_size": ("OMPI_COMM_WORLD_SIZE",),
    "local_rank": ("OMPI_COMM_WORLD_LOCAL_RANK",),
    "local_world_size": ("OMPI_COMM_WORLD_LOCAL_SIZE",),
}
_BY_OPEN_MPI = (_OPEN_MPI["world_size"], _OPEN_MPI["rank"])

TORCHRUN = Launcher(
    "torchrun",
    (("TORCHELASTIC_RUN_ID",),),
    **_COMMON,
    node_rank=("GROUP_RANK",),
    num_nodes=("GROUP_WORLD_SIZE",),
    by_node=True,
    job=("TORCHELASTIC_RUN_ID",),
)
SPAWN = Launcher(
    "spawn",
    (("MESHKIT_SPAWN",),),
    **_COMMON,
    master_addr=(),
    master_port=(),
    init_method=("MESHKIT_SPAWN",),
    by_node=True,
)
HAND_WRITTEN = Launcher("hand-written", (("RANK",), ("WORLD_SIZE",)), **_COMMON, by_node=True)
AZUREML = Launcher(
    "azureml",
    tuple(("AZUREML_EXPERIMENT_ID", *names) for names in _BY_OPEN_MPI),
    **_OPEN_MPI,
    endpoint_sources=(
        HeadNode("AZ_BATCH_MASTER_NODE", 6105),
        HeadNode("AZ_BATCHAI_MPI_MASTER_NODE", 54965),
    ),
    by_mpi=True,
)
SAGEMAKER = Launcher(
    "sagemaker",
    tuple(("SM_TRAINING_ENV", *names) for names in _BY_OPEN_MPI),
    **_OPEN_MPI,
    master_addr=("MASTER_ADDR", "SM_MASTER_ADDR"),
    master_port=("MASTER_PORT", "SM_MASTER_PORT"),
    by_mpi=True,
)
OPEN_MPI = Launcher("openmpi", _BY_OPEN_MPI, **_OPEN_MPI, by_mpi=True, job=("PMIX_NAMESPACE",))
MVAPICH2 = Launcher(
    "mvapich2",
    (("MV2_COMM_WORLD_SIZE",), ("MV2_COMM_WORLD_RANK",)),
    rank=("MV2_COMM_WORLD_RANK",),
    world_size=("MV2_COMM_WORLD_SIZE",),
    local_rank=("MV2_COMM_WORLD_LOCAL_RANK",),
    local_world_size=("MV2_COMM_WORLD_LOCAL_SIZE",),
    by_mpi=True,
)
PALS = Launcher(
    "pals",
    (("PALS_RANKID",),),
    rank=("PALS_RANKID",),
    world_size=("PMI_SIZE",),
    local_rank=("PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"),
    local_world_size=("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"),
    node_rank=("PALS_NODEID",),
    by_mpi=True,
    exclusive_markers=("PALS_LOCAL_SIZE",),
)
HYDRA = Launcher(
    "hydra",
    (("PMI_SIZE",), ("PMI_RANK",)),
    rank=("PMI_RANK",),
    world_size=("PMI_SIZE",),
    local_rank=("MPI_LOCALRANKID",),
    local_world_size=("MPI_LOCALNRANKS",),
    by_mpi=True,
    exclusive_markers=("MPI_LOCALRANKID",),
)
LSF = Launcher(
    "lsf",
    (("LSB_JOBID", "JSM_NAMESPACE_SIZE"), ("LSB_JOBID", "JSM_NAMESPACE_RANK")),
    rank=("JSM_NAMESPACE_RANK",),
    world_size=("JSM_NAMESPACE_SIZE",),
    local_rank=("JSM_NAMESPACE_LOCAL_RANK",),
    local_world_size=("JSM_NAMESPACE_LOCAL_SIZE",),
    endpoint_sources=(RankFile(("LSB_DJOB_RANKFILE",), ("LSB_JOBID",)),),
    by_mpi=True,
)
SLURM = Launcher(
    "slurm",
    (("SLURM_STEP_ID",), ("SLURM_PROCID",)),
    rank=("SLURM_PROCID",),
    world_size=("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
    local_rank=("SLURM_LOCALID",),
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
    TORCHRUN,
    SPAWN,
    HAND_WRITTEN,
    AZUREML,
    SAGEMAKER,
    OPEN_MPI,
    MVAPICH2,
    PALS,
    HYDRA,
    LSF,
    SLURM,
)
