"""The table of launchers: a row each, in the order in which they are recognised.

::

    torchrun       TORCHELASTIC_RUN_ID                    set by torchrun on every worker
    spawn          MESHKIT_SPAWN                          set by meshkit.spawn on every child
    hand-written   RANK or WORLD_SIZE                     set by whoever started the process
    azureml        AZUREML_EXPERIMENT_ID, and Open MPI's  AzureML's MPI jobs
    sagemaker      SM_TRAINING_ENV, and Open MPI's        SageMaker's MPI jobs
    openmpi        OMPI_COMM_WORLD_SIZE                   mpirun of Open MPI
    mvapich2       MV2_COMM_WORLD_SIZE                    mpirun_rsh
    pals           PALS_RANKID                            Cray's mpiexec
    hydra          PMI_SIZE                               mpiexec of MPICH and Intel MPI
    lsf            LSB_JOBID and JSM_NAMESPACE_SIZE       jsrun
    slurm          SLURM_STEP_ID or SLURM_PROCID          srun
    single         nothing                                one process alone

The first that recognises the environment answers for every field. What is inside comes before
what is around it: torchrun's workers and mpirun's children inherit the variables of an allocation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from .endpoint import Head, NodeList, Place, RankFile
from .variables import Env, Names, present

# Steps that Slurm makes for an allocation itself: interactive, batch, extern, pending (slurm.h).
SLURM_OWN_STEPS = {str(2**32 - number) for number in range(1, 7)}


@dataclass(frozen=True)
class Launcher:
    """A row: the variables in which a launcher says who a process is.

    Attributes:
        name: the row's name, as ``World.launcher`` has it.
        known_by: ways to recognise it; in each, all the variables are set.
        rank: the variables that hold a field; the first that is set answers. So for all fields.
        tasks_per_node: a list of tasks by node, where the launcher tells the local size so.
        places: where ranks may meet, where MASTER_ADDR does not say it.
        by_node: whether ranks are known to be dealt node after node.
        by_mpi: whether it starts MPI jobs, whose ranks can tell each other where to meet.
        own: variables that only its own mpiexec sets; srun's PMI sets the others too.
        job: variables that together name the job, the same on all its ranks and on no other's.
    """

    name: str
    known_by: tuple[Names, ...]
    rank: Names
    world_size: Names
    local_rank: Names
    local_world_size: Names = ()
    node_rank: Names = ()
    num_nodes: Names = ()
    tasks_per_node: Names = ()
    master_addr: Names = ("MASTER_ADDR",)
    master_port: Names = ("MASTER_PORT",)
    places: tuple[Place, ...] = ()
    init_method: Names = ()
    by_node: bool = False
    by_mpi: bool = False
    own: Names = ()
    job: Names = ()

    def recognises(self, env: Env) -> bool:
        """Whether this launcher started the process that has this environment."""
        if not any(all(name in env for name in names) for names in self.known_by):
            return False
        if self.name == "slurm":
            return not _is_batch_script(env)
        return not (self.own and _set_by_srun(self, env))


def recognised(env: Env) -> list[Launcher]:
    """The rows that recognise an environment, the one that answers first."""
    return [row for row in LAUNCHERS if row.recognises(env)]


def job_name(env: Env, launcher: str) -> str:
    """What a launcher calls the job to which this process belongs; empty where it does not say.

    The parts of a heterogeneous Slurm job have names of their own, and are one job.

    Args:
        env: the variables there are.
        launcher: the name of its row.
    """
    names = next((row.job for row in LAUNCHERS if row.name == launcher), ())
    if "SLURM_HET_SIZE" in env:
        return ""
    return ".".join(env[name] for name in names) if all(name in env for name in names) else ""


def job_hosts(env: Env, launcher: str) -> list[str]:
    """The hosts on which a launcher started the job; none where it does not say.

    Args:
        env: the variables there are.
        launcher: the name of its row.
    """
    places = next((row.places for row in LAUNCHERS if row.name == launcher), ())
    return next((place.names(env) for place in places if isinstance(place, NodeList)), [])


def contradicting(env: Env, rank: int, world_size: int) -> set[str]:
    """The variables by which another launcher than a hand-written one would say another rank.

    Args:
        env: the variables there are.
        rank: what RANK is going to say.
        world_size: what WORLD_SIZE is going to say.
    """
    place = LAUNCHERS.index(HAND_WRITTEN)
    named = {name for row in LAUNCHERS[:place] for names in row.known_by for name in names}
    beside = (
        row for row in LAUNCHERS[place + 1 :] if _value(row.world_size, env) == str(world_size)
    )
    ranks = {n for row in beside if _value(row.rank, env) != str(rank) for n in row.rank}
    return {name for name in named | ranks if name in env}


def _is_batch_script(env: Env) -> bool:
    """Whether this process is the one that Slurm starts for a whole allocation.

    It has a SLURM_PROCID of 0 like a task, but is in no step of srun's.
    """
    step = env.get("SLURM_STEP_ID", env.get("SLURM_STEPID"))
    if step is None:
        return env.get("SLURM_PROCID") == "0" and "SLURM_STEP_NODELIST" not in env
    return step in SLURM_OWN_STEPS


def _set_by_srun(row: Launcher, env: Env) -> bool:
    """Whether srun set a row's variables, through its PMI: then it says the same in its own."""
    if "SLURM_STEP_ID" not in env or any(name in env for name in row.own):
        return False
    pairs = ((row.rank, SLURM.rank), (row.world_size, SLURM.world_size))
    return all(_value(mine, env) == _value(srun, env) for mine, srun in pairs)


def _value(names: Names, env: Env) -> str | None:
    return env.get(present(names, env) or "")


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
    places=(Head("AZ_BATCH_MASTER_NODE", 6105), Head("AZ_BATCHAI_MPI_MASTER_NODE", 54965)),
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
    own=("PALS_LOCAL_SIZE",),
)
HYDRA = Launcher(
    "hydra",
    (("PMI_SIZE",), ("PMI_RANK",)),
    rank=("PMI_RANK",),
    world_size=("PMI_SIZE",),
    local_rank=("MPI_LOCALRANKID",),
    local_world_size=("MPI_LOCALNRANKS",),
    by_mpi=True,
    own=("MPI_LOCALRANKID",),
)
LSF = Launcher(
    "lsf",
    (("LSB_JOBID", "JSM_NAMESPACE_SIZE"), ("LSB_JOBID", "JSM_NAMESPACE_RANK")),
    rank=("JSM_NAMESPACE_RANK",),
    world_size=("JSM_NAMESPACE_SIZE",),
    local_rank=("JSM_NAMESPACE_LOCAL_RANK",),
    local_world_size=("JSM_NAMESPACE_LOCAL_SIZE",),
    places=(RankFile(("LSB_DJOB_RANKFILE",), ("LSB_JOBID",)),),
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
    places=(
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
