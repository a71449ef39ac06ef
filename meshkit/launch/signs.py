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
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from .endpoint import Env
from .launchers import HAND_WRITTEN, LAUNCHERS
from .slurm import host_names, task_counts

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
    "NEURON_PJRT_WORLD_SIZE",
)
# Numbers of a rank or of a node, from 0 on.
INDICES = (
    *("PMI_ID", "PMIX_RANK", "OMPI_COMM_WORLD_NODE_RANK", "ALPS_APP_PE", "HOROVOD_RANK"),
    *("HOROVOD_LOCAL_RANK", "HOROVOD_CROSS_RANK", "_CONDOR_PROCNO", "PET_NODE_RANK"),
    *("NODE_RANK", "MACHINE_RANK", "ROLE_RANK", "PADDLE_TRAINER_ID", "DMLC_WORKER_ID"),
    *("LWS_WORKER_INDEX", "MLP_ROLE_INDEX", "SKYPILOT_NODE_RANK", "DSTACK_NODE_RANK"),
    *("LEPTON_JOB_WORKER_INDEX", "NGC_ARRAY_INDEX", "JAX_PROCESS_ID", "TPU_WORKER_ID"),
    *("AWS_BATCH_JOB_NODE_INDEX", "MPT_LRANK", "MEGASCALE_SLICE_ID", "NEURON_PJRT_PROCESS_INDEX"),
    *("BEAKER_REPLICA_RANK", "MF_PARALLEL_NODE_INDEX", "BACKENDAI_CLUSTER_LOCAL_RANK"),
)
# Lists of hosts or endpoints.
LISTS = (
    *("SM_HOSTS", "LSB_HOSTS", "LSB_MCPU_HOSTS", "AZ_BATCH_HOST_LIST", "AZ_BATCH_NODE_LIST"),
    *("AZ_BATCHAI_WORKER_HOSTS", "MLP_WORKER_ALL_HOSTS", "MLP_WORKER_HOSTS"),
    *("PADDLE_TRAINER_ENDPOINTS", "PADDLE_PSERVERS_IP_PORT_LIST"),
    *("SKYPILOT_NODE_IPS", "DSTACK_NODES_IPS", "TPU_WORKER_HOSTNAMES"),
    *("TPU_PROCESS_ADDRESSES", "BACKENDAI_CLUSTER_HOSTS"),
)
NODE_LISTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
TASK_LISTS = ("SLURM_TASKS_PER_NODE",)
CLUSTERS = ("TF_CONFIG", "CLUSTER_SPEC", "SM_TRAINING_ENV", "SM_RESOURCE_CONFIG")  # JSON
HOST_FILES = (
    *("PBS_NODEFILE", "COBALT_NODEFILE", "PE_HOSTFILE", "OAR_NODEFILE", "OAR_FILE_NODES"),
    *("LSB_DJOB_HOSTFILE", "LSB_DJOB_RANKFILE", "PJM_O_NODEINF"),
)
# Addresses of rank 0, which one process does not need; a sign unless a count says 1.
ADDRESSES = ("MASTER_ADDR", "PET_MASTER_ADDR", "PET_RDZV_ENDPOINT", "JAX_COORDINATOR_ADDRESS")
_VOLCANO = re.compile(r"VC_\w+_(NUM|HOSTS)")  # of each task of a job of Volcano
_ROW_COUNTS = [
    name for row in LAUNCHERS for name in (*row.world_size, *row.local_world_size, *row.num_nodes)
]
_ROW_INDICES = [name for row in LAUNCHERS for name in (*row.rank, *row.local_rank, *row.node_rank)]
# Variables that users export for all ranks, whichever launcher then numbers the ranks.
_EXPORTS = {name for column in HAND_WRITTEN[2:8] for name in column}


def sign_of_others(env: Env) -> str | None:
    """Return the first variable that says that the job is larger, as ``"NNODES = 2"``; or None."""
    if name := next(_counts_above_one(env), None):
        return f"{name} = {env[name].strip()}"
    kinds: tuple[tuple[Iterable[str], Callable[[str], int]], ...] = (
        (LISTS, lambda text: len({*_hosts(text)})),
        (TASK_LISTS, lambda text: sum(task_counts(text))),
        (NODE_LISTS, _number_of_nodes),
        (CLUSTERS, lambda text: len(_cluster(json.loads(text)))),
        (HOST_FILES, _hosts_in_file),
        ((*INDICES, *_ROW_INDICES), lambda text: 1 + bool(_number(text))),
    )
    for names, size in kinds:
        for name in names:
            if name in env and _several(size, env[name]):
                return f"{name} = {_shown(env[name])}"
    return _volcano(env) or _lone_address(env)


def sign_of_more(env: Env, ranks: int) -> str | None:
    """Return what a user has exported for more ranks than a launcher has started; or None."""
    if ranks == 1:
        return sign_of_others({name: env[name] for name in _EXPORTS if name in env})
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


def _counts_above_one(env: Env) -> Iterator[str]:
    """Yield the counts that are above 1."""
    for name in (*COUNTS, *_ROW_COUNTS):
        number = _number(env.get(name, "").rpartition(":")[2])
        if number not in ("", "1"):
            yield name


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
    words = re.split(r"[\s,;\[\]\"']+", text)
    return [word for word in words if word and not word.isdecimal()]  # some lists have slots


def _number_of_nodes(text: str) -> int:
    """Return 2 for a node list of several hosts."""
    hosts = host_names(text)
    return sum(next(hosts, None) is not None for _ in range(2))


def _cluster(content: object) -> list[object]:
    """Return the processes or hosts that JSON lists under ``cluster`` or ``hosts``."""
    if not isinstance(content, dict):
        return []
    hosts = content.get("hosts")
    roles = content.get("cluster")
    lists = [hosts, *(roles.values() if isinstance(roles, dict) else ())]
    return [host for entry in lists if isinstance(entry, list) for host in entry]


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


def _lone_address(env: Env) -> str | None:
    """Return an address of rank 0 on another host, if no count says that there is one process."""
    of_jobs = (n for n in (*COUNTS, *_ROW_COUNTS) if not re.search("LOCAL|(PER|BY)_NODE", n))
    if any(_number(env.get(name, "")) == "1" for name in of_jobs):
        return None
    for name in ADDRESSES:
        host = env.get(name, "").strip()
        if host and not re.match(r"localhost\b|127\.|\[?::1\b|0\.0\.0\.0", host):
            return f"{name} = {_shown(host)}"
    return None
