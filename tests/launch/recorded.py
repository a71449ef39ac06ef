"""Environments of real launchers, without unrelated variables, and the fields that they yield.

They are those of rank 3 on two nodes with two ranks each, if the comment names no other rank.
*Recorded* environments come from a run, with hosts and jobs renamed. *Documented* ones have their
names from the source in the comment, and invented values.
"""

from __future__ import annotations

from typing import Any

Env = dict[str, str]
Fields = dict[str, tuple[Any, str]]  # field to value and source; a missing field is None


def _env(text: str) -> Env:
    """Return blank-separated ``NAME=value`` words as a dict."""
    return {name: value for name, _, value in (word.partition("=") for word in text.split())}


def without(environ: Env, *names: str) -> Env:
    """Return an environment without some of its variables."""
    return {name: value for name, value in environ.items() if name not in names}


def _ranks(prefix: str) -> Env:
    """Return the four variables that Open MPI, MVAPICH2 and jsrun have under different prefixes."""
    values = {"RANK": "3", "SIZE": "4", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}
    return {f"{prefix}_{name}": value for name, value in values.items()}


# recorded: torchrun of torch 2.13
TORCHRUN = _env("""
    RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 GROUP_WORLD_SIZE=2
    ROLE_NAME=default ROLE_RANK=3 ROLE_WORLD_SIZE=4 MASTER_ADDR=node1 MASTER_PORT=29511
    OMP_NUM_THREADS=1 TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0
    TORCHELASTIC_MAX_RESTARTS=0 TORCHELASTIC_USE_AGENT_STORE=True
    TORCH_NCCL_ASYNC_ERROR_HANDLING=1
""")
# recorded: accelerate launch --multi_gpu of Accelerate 1.15, which starts torchrun
ACCELERATE = TORCHRUN | _env("""
    ACCELERATE_MIXED_PRECISION=no ACCELERATE_DYNAMO_BACKEND=NO ACCELERATE_DYNAMO_MODE=default
""")
# recorded: the launcher of DeepSpeed 0.19.8
DEEPSPEED = _env("""
    RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_SIZE=2 CROSS_RANK=1 CROSS_SIZE=2 MASTER_ADDR=node1
    MASTER_PORT=29500
""")
# meshkit.spawn, see meshkit/launch/spawn.py: one node, so the local rank is the rank
SPAWN = _env("""
    MESHKIT_SPAWN=file:///tmp/meshkit-0/store RANK=3 WORLD_SIZE=4 LOCAL_RANK=3
    LOCAL_WORLD_SIZE=4 OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo MASTER_ADDR=127.0.0.1
    MASTER_PORT=40123
""")
# documented: the variables that torch.distributed's init_method "env://" reads
HAND_WRITTEN = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
# documented: a pod of Kubeflow's PyTorchJob, one process in each pod
# (kubeflow/training-operator, pkg/controller.v1/pytorch/envvar.go and master.go, values invented)
PYTORCHJOB = _env("""
    RANK=3 WORLD_SIZE=4 MASTER_ADDR=mnist-master-0 MASTER_PORT=23456 PYTHONUNBUFFERED=0
    HOSTNAME=mnist-worker-2 KUBERNETES_SERVICE_HOST=10.0.0.1
""")
# documented: the same pods with torchrun in them, whose variables replace those of the pod
PYTORCHJOB_TORCHRUN = PYTORCHJOB | TORCHRUN
# documented: the second pod of a Kubernetes JobSet that starts torchrun
# (kubernetes-sigs/jobset, site/static/examples/pytorch/cnn-mnist/mnist.yaml, values invented)
JOBSET = TORCHRUN | _env("""
    JOB_COMPLETION_INDEX=1 MASTER_ADDR=pytorch-workers-0-0.pytorch MASTER_PORT=3389
    KUBERNETES_SERVICE_HOST=10.0.0.1 PYTHONUNBUFFERED=0
""")
# the same, from a script that also sets the variables of the node
HAND_WRITTEN_NODES = {**HAND_WRITTEN, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}

# recorded: Open MPI 5.0.11. NODE_RANK is the rank on this node over all jobs, not the node's index
# (docs.open-mpi.org, v5.0, "Environment variables set by mpirun")
OPEN_MPI_5 = _ranks("OMPI_COMM_WORLD") | _env("""
    OMPI_COMM_WORLD_NODE_RANK=1 OMPI_WORLD_SIZE=4 OMPI_WORLD_LOCAL_SIZE=2 PMIX_RANK=3
    PMIX_NAMESPACE=prterun-node1-28238@1 PRTE_LAUNCHED=1
""")
# recorded: Open MPI 4.1.4, rank 1 of 2 on one node
OPEN_MPI_4 = _env("""
    OMPI_APP_CTX_NUM_PROCS=2 OMPI_COMMAND=env OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2
    OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_NODE_RANK=1
    OMPI_FIRST_RANKS=0 OMPI_MCA_ess_base_vpid=1 OMPI_MCA_orte_ess_num_procs=2
    OMPI_MCA_orte_num_nodes=1 OMPI_UNIVERSE_SIZE=2 PMIX_HOSTNAME=node1 PMIX_NAMESPACE=177274881
    PMIX_RANK=1 PMIX_VERSION=4.2.2rc2
""")
# documented: names from MVAPICH2's mpirun_rsh, values invented
MVAPICH2 = {**_ranks("MV2_COMM_WORLD"), "PMI_ID": "3"}
# documented: names from a dump of the environment on Aurora, values invented. PALS sets no size
PALS_WITHOUT_PMI = _env("""
    PALS_RANKID=3 PALS_LOCAL_RANKID=1 PALS_LOCAL_SIZE=2 PALS_NODEID=1 PALS_DEPTH=1 PALS_PMI=pmix
    PALS_APID=1b2e
""")
# documented: the same with the variables that Cray's PMI adds
_CRAY_PMI = {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "2"}
PALS = {**PALS_WITHOUT_PMI, "PALS_PMI": "cray", **_CRAY_PMI}
_HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
# recorded: mpiexec of MPICH 5.0.2
MPICH = {**_HYDRA, "PMI_FD": "9", "PMI_HOSTNAME": "node2"}
# recorded: mpiexec of Intel MPI 2021.19
INTEL_MPI = _HYDRA | _env("""
    PMI_FD=12 HYDRA_BSTRAP_LAUNCHER=ssh HYDRA_LAUNCH_TYPE=2 I_MPI_PIN_INFO=1
""")
# documented: names from IBM's jsrun (JSM_NAMESPACE_*) and LSF (LSB_*), values invented
LSF = {**_ranks("JSM_NAMESPACE"), "LSB_JOBID": "1234"}

# documented: the run id of an AzureML job, and DeepSpeed's reading of the variables: the port 6000
# is Azure Batch's own
_AZUREML = {**OPEN_MPI_5, "AZUREML_EXPERIMENT_ID": "e6abe464-c6fd-45de-9303-539b34e66b69"}
AZUREML = {**_AZUREML, "AZ_BATCH_MASTER_NODE": "10.0.0.6:6000"}
# documented: the same with the older variable only
AZUREML_BATCHAI = {**_AZUREML, "AZ_BATCHAI_MPI_MASTER_NODE": "10.0.0.6"}
# documented: names from SageMaker's training toolkit, values invented
_SM = {
    "SM_TRAINING_ENV": '{"is_master":false,"master_hostname":"algo-1","hosts":["algo-1","algo-2"]}',
    "SM_HOSTS": '["algo-1","algo-2"]',
    "SM_CURRENT_HOST": "algo-2",
}
SAGEMAKER = {**OPEN_MPI_5, **_SM}
# documented: newer containers of SageMaker set the endpoint
SAGEMAKER_ADDRESS = {**SAGEMAKER, "SM_MASTER_ADDR": "algo-1", "SM_MASTER_PORT": "7777"}
# documented: SageMaker's torch_distributed starts torchrun, and no MPI
SAGEMAKER_TORCHRUN = {**TORCHRUN, **_SM}

# recorded: Slurm 22.05, the variables of an allocation of two nodes in each of its processes
_ALLOCATION = _env("""
    SLURM_CLUSTER_NAME=two SLURM_JOBID=2 SLURM_JOB_CPUS_PER_NODE=2(x2) SLURM_JOB_ID=2
    SLURM_JOB_NODELIST=n[1-2] SLURM_JOB_NUM_NODES=2 SLURM_NNODES=2 SLURM_NODELIST=n[1-2]
    SLURM_TASKS_PER_NODE=2(x2)
""")
_JOB = _ALLOCATION | {"SLURM_NPROCS": "4", "SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "2"}
# recorded: Slurm 22.05, srun
SRUN = _JOB | _env("""
    SLURMD_NODENAME=n2 SLURM_GTIDS=2,3 SLURM_LAUNCH_NODE_IPADDR=127.0.0.1 SLURM_LOCALID=1
    SLURM_NODEID=1 SLURM_PROCID=3 SLURM_STEPID=0 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n[1-2]
    SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=2(x2)
""")
# recorded: Slurm 22.05, the last rank of a step of three tasks in that allocation
SRUN_OF_THREE = SRUN | _env("""
    SLURM_GTIDS=2 SLURM_LOCALID=0 SLURM_NPROCS=3 SLURM_NTASKS=3 SLURM_PROCID=2 SLURM_STEP_ID=1
    SLURM_STEPID=1 SLURM_STEP_NUM_TASKS=3 SLURM_STEP_TASKS_PER_NODE=2,1
""")
# recorded: Slurm 22.05, srun --mpi=pmi2
SRUN_PMI2 = {**SRUN, "PMI_FD": "9", "PMI_JOBID": "2.0", "PMI_RANK": "3", "PMI_SIZE": "4"}
# names from Slurm's mpi_cray_shasta.c, values invented; no PALS_LOCAL_SIZE
SRUN_CRAY = {
    **SRUN,
    **_CRAY_PMI,
    "PALS_RANKID": "3",
    "PALS_NODEID": "1",
    "PALS_LOCAL_RANKID": "1",
    "PALS_APID": "2.0",
}
# documented: a rank of Open MPI on a second node of an allocation inherits the variables of srun
# for the daemon of mpirun there, the same on every rank
_DAEMON = _ALLOCATION | _env("""
    SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NPROCS=1 SLURM_NTASKS=1 SLURM_STEP_ID=0
    SLURM_STEP_NODELIST=n2 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=1
    SLURM_STEP_TASKS_PER_NODE=1
""")
MPIRUN_IN_SLURM = {**_DAEMON, **OPEN_MPI_5}
# names from MPICH and Slurm as above, values invented: a step with one proxy of hydra per node
_PROXIES = SRUN | _env("""
    SLURM_NTASKS=2 SLURM_NPROCS=2 SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_STEP_NUM_TASKS=2
    SLURM_STEP_TASKS_PER_NODE=1(x2)
""")
HYDRA_IN_SLURM = {**_PROXIES, **MPICH}

# recorded: Slurm 22.05, a batch script of that allocation
SBATCH = _JOB | _env("""
    SLURM_GTIDS=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_PROCID=0
""")
# documented: a batch script on four nodes, from a public log
SBATCH_OF_64 = _env("""
    SLURM_JOB_ID=77 SLURM_NNODES=4 SLURM_NTASKS=64 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0
    SLURM_TASKS_PER_NODE=34,26,2(x2) SLURM_NODELIST=c[3005,3011,3019,3105]
""")
# recorded: Slurm 22.05, the shell of salloc without -n: no rank and no number of tasks
SALLOC = _ALLOCATION
# documented: the interactive step in which a newer salloc starts its shell; the step's id is
# SLURM_INTERACTIVE_STEP of slurm.h
INTERACTIVE = _ALLOCATION | _env("""
    SLURM_TASKS_PER_NODE=8 SLURM_STEP_ID=4294967290 SLURM_STEPID=4294967290 SLURM_PROCID=0
    SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_STEP_NODELIST=n1 SLURM_STEP_NUM_NODES=1
    SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1
""")

# Every environment above that describes a process.
ALL: dict[str, Env] = {
    name: environ
    for name, environ in list(globals().items())
    if name.isupper() and not name.startswith("_") and name != "PALS_WITHOUT_PMI"
}

# A row of the table of launchers to its recording, without an outer launcher.
ROWS = {
    "accelerate": ACCELERATE,
    "torchrun": TORCHRUN,
    "spawn": SPAWN,
    "deepspeed": DEEPSPEED,
    "hand-written": HAND_WRITTEN_NODES,
    "azureml": AZUREML,
    "sagemaker": SAGEMAKER_ADDRESS,
    "openmpi": OPEN_MPI_5,
    "mvapich2": MVAPICH2,
    "pals": PALS,
    "hydra": MPICH,
    "lsf": LSF,
    "slurm": SRUN,
}


def _fields(values: str, sources: str, endpoint: Fields | None = None) -> Fields:
    """Return the numbers of a world, of which a launcher may leave out the last ones."""
    rows = zip(NUMBERS, values.split(), sources.split(", "), strict=False)
    numbers = {name: (int(n), source) for name, n, source in rows}
    return numbers | (endpoint or {})


def _prefixed(prefix: str) -> str:
    """Return the variables of the rank and the size that have one prefix."""
    return ", ".join(f"{prefix}_{end}" for end in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))


def _address(addr: str, port: int, addr_source: str, port_source: str) -> Fields:
    return {"master_addr": (addr, addr_source), "master_port": (port, port_source)}


def _exported(addr: str, port: int) -> Fields:
    return _address(addr, port, "MASTER_ADDR", "MASTER_PORT")


def _step(values: str, port: int) -> tuple[str, Fields]:
    """Return a task on the second of srun's two nodes."""
    endpoint = _address("n1", port, "SLURM_STEP_NODELIST", "SLURM_JOB_ID")
    return "slurm", _fields(values, _IN_STEP, endpoint)


NUMBERS = ("rank", "world_size", "local_rank", "local_world_size", "node_rank", "num_nodes")
_NODE1 = _exported("node1", 29500)
_RANK = "RANK, WORLD_SIZE, LOCAL_RANK, "
_DERIVED = "rank // local_world_size, world_size // local_world_size"
_ONE_NODE = f"RANK, WORLD_SIZE, one node assumed, one node assumed, {_DERIVED}"
_GROUPS = _fields("3 4 1 2 1 2", f"{_RANK}LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE")
_TORCHRUN = "torchrun", _GROUPS | _exported("node1", 29511)
_OMPI = _prefixed("OMPI_COMM_WORLD")
_OF_FOUR = _fields("3 4 1 2", _OMPI)
_HYDRA_FIELDS = _fields("3 4 1 2", "PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS")
_BY_PALS = "PALS_RANKID, PMI_SIZE, PALS_LOCAL_RANKID, PALS_LOCAL_SIZE, PALS_NODEID"
_AZURE_PORT = "default of azureml"
_IN_STEP = (
    "SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_STEP_TASKS_PER_NODE, SLURM_NODEID, "
    "SLURM_STEP_NUM_NODES"
)
_WHOLE_STEP = _step("3 4 1 2 1 2", 12062)  # job 2, step 0: 12000 + 31 * 2 + 0

# Environment to its launcher and the fields that it yields.
EXPECTED: dict[str, tuple[str, Fields]] = {
    "ACCELERATE": ("accelerate", _TORCHRUN[1]),
    "TORCHRUN": _TORCHRUN,
    "DEEPSPEED": (
        "deepspeed",
        _fields("3 4 1 2 1 2", f"{_RANK}LOCAL_SIZE, CROSS_RANK, CROSS_SIZE", _NODE1),
    ),
    "SPAWN": (
        "spawn",
        _fields("3 4 3 4 0 1", f"{_RANK}LOCAL_WORLD_SIZE, {_DERIVED}")
        | {"init_method": ("file:///tmp/meshkit-0/store", "MESHKIT_SPAWN")},
    ),
    "HAND_WRITTEN": ("hand-written", _fields("3 4 3 4 0 1", _ONE_NODE, _NODE1)),
    "PYTORCHJOB": (
        "hand-written",
        _fields("3 4 3 4 0 1", _ONE_NODE, _exported("mnist-master-0", 23456)),
    ),
    "PYTORCHJOB_TORCHRUN": _TORCHRUN,
    "JOBSET": ("torchrun", _GROUPS | _exported("pytorch-workers-0-0.pytorch", 3389)),
    "HAND_WRITTEN_NODES": (
        "hand-written",
        _fields("3 4 1 2 1 2", f"{_RANK}LOCAL_WORLD_SIZE, {_DERIVED}", _NODE1),
    ),
    "OPEN_MPI_5": ("openmpi", _OF_FOUR),
    "OPEN_MPI_4": ("openmpi", _fields("1 2 1 2 0 1", f"{_OMPI}, {_DERIVED}")),
    "MVAPICH2": ("mvapich2", _fields("3 4 1 2", _prefixed("MV2_COMM_WORLD"))),
    "PALS": ("pals", _fields("3 4 1 2 1", _BY_PALS)),
    "MPICH": ("hydra", _HYDRA_FIELDS),
    "INTEL_MPI": ("hydra", _HYDRA_FIELDS),
    "LSF": ("lsf", _fields("3 4 1 2", _prefixed("JSM_NAMESPACE"))),
    "AZUREML": (
        "azureml",
        _OF_FOUR | _address("10.0.0.6", 6105, "AZ_BATCH_MASTER_NODE", _AZURE_PORT),
    ),
    "AZUREML_BATCHAI": (
        "azureml",
        _OF_FOUR | _address("10.0.0.6", 54965, "AZ_BATCHAI_MPI_MASTER_NODE", _AZURE_PORT),
    ),
    "SAGEMAKER": ("sagemaker", _OF_FOUR),
    "SAGEMAKER_ADDRESS": (
        "sagemaker",
        _OF_FOUR | _address("algo-1", 7777, "SM_MASTER_ADDR", "SM_MASTER_PORT"),
    ),
    # An inner launcher comes before an outer one.
    "SAGEMAKER_TORCHRUN": _TORCHRUN,
    "MPIRUN_IN_SLURM": ("openmpi", _OF_FOUR),
    "HYDRA_IN_SLURM": ("hydra", _HYDRA_FIELDS),
    # srun may set PMI variables too; its own row is used, since it has the nodes.
    "SRUN": _WHOLE_STEP,
    "SRUN_OF_THREE": _step("2 3 0 1 1 2", 12063),
    "SRUN_PMI2": _WHOLE_STEP,
    "SRUN_CRAY": _WHOLE_STEP,
}
# A process that no srun started, to the source of its fields.
ALONE = {
    "SBATCH": "no srun (SLURM_NTASKS = 4)",
    "SBATCH_OF_64": "no srun (SLURM_NTASKS = 64)",
    "SALLOC": "no srun (SLURM_JOB_NUM_NODES = 2)",
    "INTERACTIVE": "no srun (SLURM_JOB_NUM_NODES = 2)",
}
