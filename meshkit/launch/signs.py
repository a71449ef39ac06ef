"""The table of signs that a job is larger than this process, though no launcher has numbered it.

``detect`` reads it if no row of :mod:`meshkit.launch.launchers` matches. A process that ignored
such a variable would train alone, beside others that do the same. Numbers of cores, slots and GPUs
are no signs: one process may use them all. If a launcher has numbered its ranks, only what a user
exports for all ranks is a sign: a scheduler may have given the job more than one step uses.

To add a sign, put its variable into the tuple of its kind.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

from .endpoint import Env
from .launchers import HAND_WRITTEN, LAUNCHERS
from .slurm import host_names, task_counts
from .urls import is_own_host

MAX_SHOWN = 100  # characters of a value in a message
# Prefix of a variable to the command that starts ranks there; each takes their number as -n.
STARTERS = {
    "SLURM_": "srun",
    "FLUX_": "flux run",
    "LSB_": "jsrun",
    "JSM_": "jsrun",
    "ALPS_": "aprun",
    **dict.fromkeys(("OMPI_", "PALS_", "PBS_", "COBALT_", "PJM_", "PMI", "MPI_"), "mpiexec"),
}
# Numbers of ranks, processes, nodes or hosts; torchrun's may be a range, such as 1:4.
COUNTS = (
    *("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS_PER_NODE"),
    *("SLURM_HET_SIZE", "FLUX_JOB_SIZE", "FLUX_JOB_NNODES", "PALS_SIZE"),
    *("PJM_MPI_PROC", "PJM_PROC_BY_NODE", "PJM_NODE", "COBALT_JOBSIZE", "COBALT_PARTSIZE"),
    *("PBS_NUM_NODES", "NHOSTS", "_CONDOR_NPROCS", "OMPI_WORLD_SIZE"),
    *("OMPI_WORLD_LOCAL_SIZE", "PMI_UNIVERSE_SIZE", "MP_PROCS"),
    *("HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_SIZE", "BYTEPS_LOCAL_SIZE"),
    *("PET_NNODES", "PET_NPROC_PER_NODE", "PET_N_PROC_PER_NODE", "NNODES", "NUM_NODES", "N_NODES"),
    *("NPROC_PER_NODE", "NUM_MACHINES", "NUM_HOSTS", "RANK_SIZE"),
    *("ROLE_WORLD_SIZE", "DMLC_NUM_WORKER", "PADDLE_TRAINERS_NUM", "PADDLE_TRAINERS"),
    *("LWS_GROUP_SIZE", "SM_INSTANCE_COUNT", "AZUREML_NODE_COUNT"),
    *("MLP_WORKER_NUM", "MA_NUM_HOSTS", "DLWS_NUM_WORKER", "ARNOLD_WORKER_NUM"),
    *("SKYPILOT_NUM_NODES", "DSTACK_NODES_NUM", "LEPTON_JOB_TOTAL_WORKERS", "NGC_ARRAY_SIZE"),
    *("JAX_NUM_PROCESSES", "AWS_BATCH_JOB_NUM_NODES", "MEGASCALE_NUM_SLICES"),
    *("BEAKER_REPLICA_COUNT", "MF_PARALLEL_NUM_NODES", "BACKENDAI_CLUSTER_SIZE"),
    *("NEURON_PJRT_WORLD_SIZE", "SM_HOST_COUNT", "SLURM_NTASKS_PER_GPU", "LOADL_TOTAL_TASKS"),
    *("MPI_NRANKS", "MPIRUN_NPROCS", "MPISIZE", "PJRT_LOCAL_PROCESS_COUNT", "MS_WORKER_NUM"),
    "HOST_NUM",
)
# Numbers of a rank, of a node, or of the workers beside the main one, from 0 on.
INDICES = (
    *("PMI_ID", "PMIX_RANK", "OMPI_COMM_WORLD_NODE_RANK", "ALPS_APP_PE", "HOROVOD_RANK"),
    *("HOROVOD_LOCAL_RANK", "HOROVOD_CROSS_RANK", "_CONDOR_PROCNO", "PET_NODE_RANK"),
    *("NODE_RANK", "MACHINE_RANK", "ROLE_RANK", "PADDLE_TRAINER_ID", "DMLC_WORKER_ID"),
    *("LWS_WORKER_INDEX", "MLP_ROLE_INDEX", "SKYPILOT_NODE_RANK", "DSTACK_NODE_RANK"),
    *("LEPTON_JOB_WORKER_INDEX", "NGC_ARRAY_INDEX", "JAX_PROCESS_ID", "TPU_WORKER_ID"),
    *("AWS_BATCH_JOB_NODE_INDEX", "MPT_LRANK", "MEGASCALE_SLICE_ID", "NEURON_PJRT_PROCESS_INDEX"),
    *("BEAKER_REPLICA_RANK", "MF_PARALLEL_NODE_INDEX", "BACKENDAI_CLUSTER_LOCAL_RANK"),
    *("PBS_NODENUM", "PBS_VNODENUM", "MPI_RANKID", "MPIRUN_RANK", "MP_CHILD", "MPIRANK"),
    *("PLE_RANK_ON_NODE", "PJRT_LOCAL_PROCESS_RANK", "XRT_SHARD_ORDINAL", "CLOUD_TPU_TASK_ID"),
    *("ARNOLD_ID", "MS_NODE_ID", "VC_TASK_INDEX", "VK_TASK_INDEX", "SM_CURRENT_HOST_RANK"),
    "OCI__WORKER_COUNT",
)
INDICES_FROM_1 = ("LSF_PM_TASKID",)  # of blaunch
# Names of counts and indices that a launcher may put behind a prefix of its own.
# MAX_NNODES and MIN_NNODES are bounds.
_ANY = r"(?!(\w+_)?(MAX|MIN)_)"
COUNT_NAMES = re.compile(
    rf"{_ANY}\w+_(WORLD_SIZE|NNODES|NUM_NODES|NTASKS|NRANKS|NUM_RANKS)", re.ASCII
)
INDEX_NAMES = re.compile(rf"{_ANY}(\w+_)?(WORLD|HOST|NODE|MACHINE)_RANK", re.ASCII)
# Lists of hosts or endpoints.
LISTS = (
    *("SM_HOSTS", "LSB_HOSTS", "LSB_MCPU_HOSTS", "AZ_BATCH_HOST_LIST", "AZ_BATCH_NODE_LIST"),
    *("AZ_BATCHAI_WORKER_HOSTS", "MLP_WORKER_ALL_HOSTS", "MLP_WORKER_HOSTS"),
    *("PADDLE_TRAINER_ENDPOINTS", "PADDLE_PSERVERS_IP_PORT_LIST"),
    *("SKYPILOT_NODE_IPS", "DSTACK_NODES_IPS", "TPU_WORKER_HOSTNAMES"),
    *("TPU_PROCESS_ADDRESSES", "BACKENDAI_CLUSTER_HOSTS", "LOADL_PROCESSOR_LIST", "CCP_NODES"),
    *("ARNOLD_WORKER_HOSTS", "NODE_IP_LIST"),
)
NODE_LISTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
TASK_LISTS = ("SLURM_TASKS_PER_NODE",)
CLUSTERS = ("TF_CONFIG", "CLUSTER_SPEC", "SM_TRAINING_ENV", "SM_RESOURCE_CONFIG")  # JSON
HOST_FILES = (
    *("PBS_NODEFILE", "COBALT_NODEFILE", "PE_HOSTFILE", "OAR_NODEFILE", "OAR_FILE_NODES"),
    *("LSB_DJOB_HOSTFILE", "LSB_DJOB_RANKFILE", "PJM_O_NODEINF"),
)
# Addresses of rank 0, which one process does not need; a sign unless a count or a list says 1.
ADDRESSES = (
    *("MASTER_ADDR", "PET_MASTER_ADDR", "PET_RDZV_ENDPOINT", "JAX_COORDINATOR_ADDRESS"),
    *("SM_MASTER_ADDR", "LWS_LEADER_ADDRESS", "TORCHX_RANK0_HOST", "CHIEF_IP", "MS_SCHED_HOST"),
    *("DSTACK_MASTER_NODE_IP", "MF_PARALLEL_MAIN_IP", "BEAKER_LEADER_REPLICA_HOSTNAME"),
)
FIRST_NODE = ("AZ_BATCH_IS_CURRENT_NODE_MASTER",)  # false on the other nodes
# set by schedulers and MPI, which may run a smaller step, or a single rank, on purpose
SCHEDULED = (
    *STARTERS,
    *("LSF_", "PE_HOSTFILE", "NHOSTS", "OAR_", "LOADL_", "CCP_", "_CONDOR", "MP_", "MPT_"),
    *("MPIRUN_", "MPISPAWN_", "MPIRANK", "MPISIZE", "PLE_", "MV2_", "MVP_", "HOROVOD_"),
)
_VOLCANO = re.compile(r"VC_\w+_(NUM|HOSTS)")  # of each task of a job of Volcano
_ROW_COUNTS = [
    name for row in LAUNCHERS for name in (*row.world_size, *row.local_world_size, *row.num_nodes)
]
_ROW_INDICES = [name for row in LAUNCHERS for name in (*row.rank, *row.local_rank, *row.node_rank)]
_ROWS = {*_ROW_COUNTS, *_ROW_INDICES}
# Variables that users export for all ranks, whichever launcher then numbers the ranks.
_EXPORTS = {name for column in HAND_WRITTEN[2:8] for name in column}


def sign_of_others(env: Env) -> str | None:
    """Return the first variable that says that the job is larger, as ``"NNODES = 2"``; or None."""
    counts = (*COUNTS, *_ROW_COUNTS, *_named(COUNT_NAMES, env))
    if name := next((n for n in counts if _count(env.get(n, "")) not in ("", "1")), None):
        return f"{name} = {env[name].strip()}"
    if sign := _volcano(env):
        return sign
    indices = (*INDICES, *_ROW_INDICES, *_named(INDEX_NAMES, env))
    kinds: tuple[tuple[Iterable[str], Callable[[str], int]], ...] = (
        (LISTS, lambda text: len({*_hosts(text)})),
        (TASK_LISTS, lambda text: sum(task_counts(text))),
        (NODE_LISTS, lambda text: len([*islice(host_names(text), 2)])),
        (CLUSTERS, lambda text: _cluster_size(json.loads(text))),
        (HOST_FILES, _hosts_in_file),
        (indices, lambda text: 1 + bool(_number(text))),
        (INDICES_FROM_1, lambda text: 1 + (_number(text) not in ("", "1"))),
        (FIRST_NODE, lambda text: 1 + (text.strip().lower() == "false")),
    )
    for names, size in kinds:
        for name in names:
            if name in env and _several(size, env[name]):
                return f"{name} = {_shown(env[name])}"
    return _lone_address(env, counts)


def sign_of_more(env: Env, ranks: int) -> str | None:
    """Return what a user has exported for more ranks than a launcher has started; or None."""
    if ranks == 1:
        names = [n for n in env if n in _EXPORTS or not (n in _ROWS or n.startswith(SCHEDULED))]
        return sign_of_others({name: env[name] for name in names})
    number = {name: int(_number(env.get(name, ""))[:9] or 1) for name in _EXPORTS}
    asked = {"WORLD_SIZE": number["WORLD_SIZE"]}
    for prefix in ("PET_", ""):
        if (per_node := number[f"{prefix}NPROC_PER_NODE"]) > 1:
            asked[f"{prefix}NPROC_PER_NODE"] = per_node * number[f"{prefix}NNODES"]
    name = next((name for name, size in asked.items() if size > ranks), None)
    return name and f"{name} = {env[name].strip()}"


def starter(allocation: str | None) -> str | None:
    """Return the command that starts ranks where a sign was found; None if it is unknown."""
    text = allocation or ""
    return next((command for prefix, command in STARTERS.items() if text.startswith(prefix)), None)


def _named(pattern: re.Pattern[str], env: Env) -> list[str]:
    """Return the variables whose whole name matches a pattern, sorted."""
    return sorted(name for name in env if pattern.fullmatch(name))


def _count(text: str) -> str:
    """Return the digits of a count, or of the end of a range."""
    return _number(text.rpartition(":")[2])


def _number(text: str) -> str:
    """Return the digits of a number without leading zeros; empty for 0 and for other text."""
    match = re.fullmatch(r"\s*0*([0-9]*)\s*", text)
    return match[1] if match else ""


def _shown(text: str) -> str:
    """Return a value in one line, shortened."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_SHOWN else f"{line[:MAX_SHOWN]}..."


def _several(size: Callable[[str], int], text: str) -> bool:
    """Return whether a value says more than one; a malformed value says nothing."""
    try:
        return size(text) > 1
    except (ValueError, TypeError, RecursionError, OSError):
        return False


def _hosts(text: str) -> list[str]:
    """Return the hosts of a list: JSON, or words between commas, semicolons or blanks."""
    words = [word.strip("[]") for word in re.split(r"[\s,;\"']+", text)]
    return [word for word in words if word and not word.isdecimal()]  # some lists have slots


def _cluster_size(content: object) -> int:
    """Return the number of processes or hosts that JSON lists, or the least that its task implies.

    ``hosts`` is a list. ``cluster`` or ``sparseCluster`` has the processes of each role, as a list
    or as a dict from their numbers; so has the whole if it has lists of texts alone.
    """
    if not isinstance(content, dict):
        return 0
    if isinstance(hosts := content.get("hosts"), list):
        return len(hosts)
    named = [content[name] for name in ("cluster", "sparseCluster") if name in content]
    is_cluster = all(
        isinstance(role, list) and all(isinstance(place, str) for place in role)
        for role in content.values()
    )
    clusters = [cluster for cluster in named if isinstance(cluster, dict)]
    clusters += [content] * (is_cluster and not named)
    roles = [r for cluster in clusters for r in cluster.values() if isinstance(r, list | dict)]
    task = content.get("task")
    index: int = task.get("index", 0) if isinstance(task, dict) else 0
    return max(sum(map(len, roles)), 1 + index)


def _hosts_in_file(path: str) -> int:
    """Return the number of hosts in a file with one line for each slot."""
    file = Path(path.strip())
    lines = file.read_text().splitlines() if file.is_file() else []
    return len({line.split()[0] for line in lines if line.strip()})


def _volcano(env: Env) -> str | None:
    """Return a variable of Volcano if the tasks of its job are more than one together."""
    sizes: dict[str, tuple[int, str]] = {}  # of each task
    for name in sorted(env):
        if match := _VOLCANO.fullmatch(name):
            text = env[name]
            is_number = match[1] == "NUM"
            size = int(_number(text)[:9] or 0) if is_number else len({*_hosts(text)})
            task = name.removesuffix(match[1])
            sizes[task] = max(size, sizes.get(task, (0, ""))[0]), name
    if sum(size for size, _ in sizes.values()) <= 1:
        return None
    _, name = max(sizes.values())
    return f"{name} = {_shown(env[name])}"


def _lone_address(env: Env, counts: Iterable[str]) -> str | None:
    """Return an address of rank 0 on another host, if nothing says that there is one process."""
    of_jobs = (name for name in counts if not re.search("LOCAL|PER_|(PER|BY)_NODE", name))
    if any(_count(env.get(name, "")) == "1" for name in of_jobs):
        return None
    if any(len({*_hosts(env.get(name, ""))}) == 1 for name in LISTS):
        return None
    for name in ADDRESSES:
        text = env.get(name, "").strip()
        if (host := _host_of(text)) and not is_own_host(host):
            return f"{name} = {_shown(text)}"
    return None


def _host_of(text: str) -> str:
    """Return the host of an address that may have a port."""
    host, _, port = text.rpartition(":")
    has_port = port.isdecimal() and (":" not in host or host.endswith("]"))
    return (host if has_port and text.endswith(f":{port}") else text).strip("[]")
