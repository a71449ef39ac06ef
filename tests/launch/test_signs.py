"""The table of signs: each variable that says "more than one" is named, and no other one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import meshkit
from meshkit.cli.doctor import check_launcher
from meshkit.launch import command, signs
from meshkit.launch.launchers import LAUNCHERS, matching_launchers
from tests.launch import recorded
from tests.launch.recorded import Env
from tests.launchers.checks import clean_environ
from tests.preloaded_python import run_python

# recorded: torchrun --nproc-per-node 1 of torch 2.13
TORCHRUN_OF_ONE = {
    **recorded.TORCHRUN,
    **{"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
    **{"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "ROLE_RANK": "0", "ROLE_WORLD_SIZE": "1"},
}
WORKERS = json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"index": 0}})
POOLS = json.dumps({"cluster": {"workerpool0": ["a:1"], "workerpool1": ["b:1"]}})
# From public reports and manuals, to the variable that says so.
LARGER: list[tuple[Env, str]] = [
    ({"SM_HOSTS": '["algo-1","algo-2"]', "SM_CURRENT_HOST": "algo-1"}, "SM_HOSTS"),
    ({"SM_RESOURCE_CONFIG": '{"hosts": ["algo-1", "algo-2"]}'}, "SM_RESOURCE_CONFIG"),
    (
        {"NNODES": "2", "NODE_RANK": "1", "NPROC_PER_NODE": "4", "MASTER_ADDR": "node0"},
        "NNODES",
    ),
    ({"NNODES": "1", "NPROC_PER_NODE": "4"}, "NPROC_PER_NODE"),
    ({"PET_NNODES": "1:4", "PET_NPROC_PER_NODE": "gpu"}, "PET_NNODES"),
    ({"HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "0"}, "HOROVOD_SIZE"),
    ({"PJM_MPI_PROC": "4"}, "PJM_MPI_PROC"),
    ({"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}, "MASTER_ADDR"),
    ({"MASTER_ADDR": "node0", "NPROC_PER_NODE": "1"}, "MASTER_ADDR"),
    ({"TF_CONFIG": WORKERS}, "TF_CONFIG"),
    ({"CLUSTER_SPEC": POOLS}, "CLUSTER_SPEC"),
    ({"PADDLE_TRAINERS_NUM": "2", "PADDLE_TRAINER_ID": "0"}, "PADDLE_TRAINERS_NUM"),
    ({"LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "vllm-0.vllm"}, "LWS_GROUP_SIZE"),
    ({"VC_WORKER_NUM": "2", "VC_WORKER_HOSTS": "w-0.job,w-1.job"}, "VC_WORKER_NUM"),
    ({"VC_MASTER_NUM": "1", "VC_WORKER_NUM": "1"}, "VC_WORKER_NUM"),
    ({"VC_TRAINER_HOSTS": "t-0.job,t-1.job"}, "VC_TRAINER_HOSTS"),
    ({"ALPS_APP_PE": "3"}, "ALPS_APP_PE"),
    ({"COBALT_JOBSIZE": "8"}, "COBALT_JOBSIZE"),
    ({"LSB_MCPU_HOSTS": "h1 4 h2 4"}, "LSB_MCPU_HOSTS"),
    ({"AZ_BATCH_HOST_LIST": "10.0.0.4,10.0.0.5"}, "AZ_BATCH_HOST_LIST"),
    ({"AZUREML_NODE_COUNT": "2"}, "AZUREML_NODE_COUNT"),
    ({"MLP_WORKER_NUM": "2", "MLP_ROLE_INDEX": "0"}, "MLP_WORKER_NUM"),
    ({"SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5"}, "SKYPILOT_NODE_IPS"),
    ({"SLURM_TASKS_PER_NODE": "2(x2)"}, "SLURM_TASKS_PER_NODE"),
    ({"SLURM_JOB_NODELIST": "n[1-2]"}, "SLURM_JOB_NODELIST"),
    ({"LOCAL_RANK": "1"}, "LOCAL_RANK"),
    ({"MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "0"}, "MEGASCALE_NUM_SLICES"),
    ({"MEGASCALE_SLICE_ID": "1"}, "MEGASCALE_SLICE_ID"),
    ({"NEURON_PJRT_PROCESS_INDEX": "1"}, "NEURON_PJRT_PROCESS_INDEX"),
    ({"JAX_COORDINATOR_ADDRESS": "10.0.0.1:1234"}, "JAX_COORDINATOR_ADDRESS"),
    ({"GROUP_WORLD_SIZE": "2"}, "GROUP_WORLD_SIZE"),
    ({"AWS_BATCH_JOB_NUM_NODES": "2", "AWS_BATCH_JOB_NODE_INDEX": "0"}, "AWS_BATCH_JOB_NUM_NODES"),
    ({"PET_N_PROC_PER_NODE": "4"}, "PET_N_PROC_PER_NODE"),
    ({"MPT_LRANK": "3"}, "MPT_LRANK"),
    ({"BEAKER_REPLICA_RANK": "1"}, "BEAKER_REPLICA_RANK"),
    ({"MF_PARALLEL_NODE_INDEX": "1"}, "MF_PARALLEL_NODE_INDEX"),
    ({"BACKENDAI_CLUSTER_LOCAL_RANK": "1"}, "BACKENDAI_CLUSTER_LOCAL_RANK"),
    ({"BACKENDAI_CLUSTER_HOSTS": "sub1,main1"}, "BACKENDAI_CLUSTER_HOSTS"),
    ({"TPU_PROCESS_ADDRESSES": "a:8476,b:8476"}, "TPU_PROCESS_ADDRESSES"),
    ({"SM_HOST_COUNT": "2", "SM_CURRENT_HOST_RANK": "0"}, "SM_HOST_COUNT"),
    ({"SM_CURRENT_HOST_RANK": "1"}, "SM_CURRENT_HOST_RANK"),
    ({"SM_MASTER_ADDR": "algo-1"}, "SM_MASTER_ADDR"),
    ({"PBS_NODENUM": "1", "PBS_TASKNUM": "536870913"}, "PBS_NODENUM"),  # pbsdsh
    ({"PBS_VNODENUM": "2"}, "PBS_VNODENUM"),
    ({"LSF_PM_TASKID": "2", "LSB_MCPU_HOSTS": "h1 4"}, "LSF_PM_TASKID"),  # blaunch
    ({"MPI_RANKID": "1"}, "MPI_RANKID"),  # Platform MPI
    ({"MPIRUN_NPROCS": "4", "MPIRUN_RANK": "0"}, "MPIRUN_NPROCS"),
    ({"MP_CHILD": "2"}, "MP_CHILD"),  # POE
    ({"LOADL_PROCESSOR_LIST": "h1 h1 h2"}, "LOADL_PROCESSOR_LIST"),
    ({"CCP_NODES": "2 n1 4 n2 4"}, "CCP_NODES"),  # HPC Pack
    ({"CLUSTER_SPEC": '{"worker":["a:1","b:1"]}'}, "CLUSTER_SPEC"),  # TonY
    ({"TF_CONFIG": '{"cluster":{"worker":{"0":"a:1","1":"b:1"}}}'}, "TF_CONFIG"),
    ({"TF_CONFIG": '{"sparseCluster":{"worker":{"1":"b:1"},"ps":["c:1"]}}'}, "TF_CONFIG"),
    ({"TF_CONFIG": '{"cluster":{},"task":{"type":"worker","index":1}}'}, "TF_CONFIG"),
    ({"HOST_NUM": "2", "INDEX": "1", "CHIEF_IP": "10.0.0.1"}, "HOST_NUM"),
    ({"NODE_IP_LIST": "10.0.0.1:8,10.0.0.2:8"}, "NODE_IP_LIST"),
    ({"ARNOLD_ID": "1"}, "ARNOLD_ID"),
    ({"MS_WORKER_NUM": "8", "MS_NODE_ID": "0"}, "MS_WORKER_NUM"),  # msrun
    ({"VC_TASK_INDEX": "1"}, "VC_TASK_INDEX"),
    ({"TORCHX_RANK0_HOST": "h1"}, "TORCHX_RANK0_HOST"),
    ({"OCI__WORKER_COUNT": "1", "OCI__MODE": "MAIN"}, "OCI__WORKER_COUNT"),
    ({"AZ_BATCH_IS_CURRENT_NODE_MASTER": "false"}, "AZ_BATCH_IS_CURRENT_NODE_MASTER"),
    ({"XRT_SHARD_WORLD_SIZE": "8"}, "XRT_SHARD_WORLD_SIZE"),
    ({"QCG_PM_NTASKS": "4"}, "QCG_PM_NTASKS"),
    ({"NEW_PLATFORM_NODE_RANK": "1"}, "NEW_PLATFORM_NODE_RANK"),
    ({"WORLD_RANK": "3"}, "WORLD_RANK"),
    ({"MASTER_ADDR": "localhost-2"}, "MASTER_ADDR"),
    ({"MASTER_ADDR": "127.example.com"}, "MASTER_ADDR"),
    ({"PET_RDZV_ENDPOINT": "[fd00::1]:29400"}, "PET_RDZV_ENDPOINT"),
]
ALONE: list[Env] = [
    {"SM_HOSTS": '["algo-1"]', "SM_NUM_GPUS": "8"},
    {"NNODES": "1", "NODE_RANK": "0", "NPROC_PER_NODE": "1", "MASTER_ADDR": "node0"},
    {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "auto", "PET_MASTER_ADDR": "node0"},
    {"MASTER_ADDR": "127.0.0.1"},
    {"BEAKER_REPLICA_COUNT": "1", "BEAKER_REPLICA_RANK": "0", "BACKENDAI_CLUSTER_SIZE": "1"},
    {"TPU_PROCESS_ADDRESSES": "local", "TPU_WORKER_ID": "0"},  # of Kaggle
    {"JAX_COORDINATOR_ADDRESS": "10.0.0.1:1234", "JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"},
    {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"},
    {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'},
    {"VC_WORKER_NUM": "1", "VC_WORKER_HOSTS": "w-0.job"},
    {"LSB_MCPU_HOSTS": "h1 8", "LSB_DJOB_NUMPROC": "8", "NSLOTS": "8", "PBS_NP": "8"},
    {"SLURM_NTASKS": "1", "SLURM_JOB_NODELIST": "n1", "SLURM_CPUS_PER_TASK": "8"},
    {"SM_HOSTS": "[", "TF_CONFIG": "[" * 5000, "SLURM_JOB_NODELIST": "n[", "NNODES": "two"},
    {"N": "4", "NUM_PROCESSES": "8", "NODE_COUNT": "3", "NODE_LIST": "a,b", "RANK_ID": "1"},
    {"PBS_NODEFILE": "/nowhere", "CLUSTER_SPEC": "[]", "SLURM_TASKS_PER_NODE": "2(x"},
    {"PADDLE_TRAINER_ENDPOINTS": "[fd00::1]:6170", "TPU_PROCESS_ADDRESSES": "[fd00::1]:8476"},
    *(
        {"MASTER_ADDR": host}
        for host in ("ip6-localhost", "::ffff:127.0.0.1", "::", "LOCALHOST", "localhost6", "::1")
    ),
    {"MASTER_ADDR": "localhost.localdomain", "PET_RDZV_ENDPOINT": "[::1]:29400"},
    {"PET_RDZV_ENDPOINT": ":29400", "TORCHX_RANK0_HOST": "localhost"},
    {"PET_NNODES": "1:1", "PET_RDZV_ENDPOINT": "etcd:2379"},
    {"SM_HOSTS": '["algo-1"]', "SM_MASTER_ADDR": "algo-1", "SM_CURRENT_HOST_RANK": "0"},
    {"TF_CONFIG": '{"task":{"type":"worker","index":0},"environment":"cloud"}'},
    {"CLUSTER_SPEC": '{"worker":["a:1"]}', "SM_TRAINING_ENV": '{"a": {"b": 1, "c": 2}}'},
    {"LSF_PM_TASKID": "1", "PBS_NODENUM": "0", "OCI__WORKER_COUNT": "0"},
    {"AZ_BATCH_IS_CURRENT_NODE_MASTER": "true", "VC_TASK_INDEX": "0"},
    {"SGE_TASK_ID": "3", "SLURM_ARRAY_TASK_ID": "3", "JOB_COMPLETION_INDEX": "2"},  # of arrays
    {"MAX_NNODES": "8", "MAX_WORLD_SIZE": "1024", "MIN_NNODES": "2", "PET_MAX_NNODES": "8"},
    {"JOB_MIN_NUM_NODES": "2", "MAX_NODE_RANK": "7"},
    {"TF_CONFIG": '{"layers": [64, 64], "sizes": ["a", "b"]}'},
    {"TF_CONFIG": '{"worker": ["a:1", "b:1"], "lr": 0.1}'},
    {"CI_NODE_TOTAL": "4", "CI_NODE_INDEX": "2", "MAKE_NPROCS": "8", "CMAKE_NUM_JOBS": "8"},
]


@pytest.mark.parametrize(("environ", "name"), LARGER)
def test_a_sign_of_a_larger_job_is_named(environ: Env, name: str) -> None:
    world = meshkit.detect(environ)
    assert (world.launcher, world.world_size) == ("single", 1)
    assert world.allocation == f"{name} = {' '.join(environ[name].split())}"
    assert world.allocation in world.sources["world_size"]
    assert meshkit.detect(environ, rank=0, world_size=1).allocation is None


@pytest.mark.parametrize("environ", ALONE)
def test_one_of_one_is_no_sign(environ: Env) -> None:
    assert meshkit.detect(environ) == meshkit.detect({})


@pytest.mark.parametrize(
    "table", ["COUNTS", "INDICES", "LISTS", "NODE_LISTS", "TASK_LISTS", "CLUSTERS", "HOST_FILES"]
)
def test_a_table_holds_names_of_variables(table: str) -> None:
    """A string that is unpacked would leave its letters."""
    names = getattr(signs, table)
    assert all(re.fullmatch(r"[A-Z_][A-Z0-9_]{4,}", name) for name in names)
    assert len({*names}) == len(names)


@pytest.mark.parametrize("starter", [{}, TORCHRUN_OF_ONE])
def test_a_launcher_of_one_process_in_a_larger_job_is_named(starter: Env) -> None:
    """A pod, or a torchrun in each task of srun, that knows of itself alone."""
    one = {"RANK": "0", "WORLD_SIZE": "1", **starter}
    assert meshkit.detect(one).allocation is None
    for sign in ({"NNODES": "2"}, {"SLURM_NTASKS": "4"}, {"SM_HOSTS": '["a", "b"]'}):
        ((name, value),) = sign.items()
        assert meshkit.detect({**one, **sign}).allocation == f"{name} = {value}"
        assert meshkit.detect({**one, **sign}, rank=0, world_size=1).allocation is None
        assert meshkit.detect({"RANK": "0", "WORLD_SIZE": "2", **sign}).allocation is None
    if starter:
        assert meshkit.detect({**one, **recorded.SRUN}).allocation == "SLURM_NTASKS = 4"
    spawned = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MESHKIT_SPAWN": "file:///tmp/x",
        "LOCAL_RANK": "0",
        "NNODES": "2",
    }
    assert meshkit.detect(spawned).allocation is None  # spawn(fn, 1) is what its caller wants


# What a user exports for more ranks than a launcher has started; the launcher numbers its own.
EXPORTS: list[tuple[Env, int, str]] = [
    ({"WORLD_SIZE": "8", "NODE_RANK": "0"}, 1, "WORLD_SIZE"),
    ({"NODE_RANK": "2", "MASTER_ADDR": "n1"}, 1, "NODE_RANK"),
    ({"NNODES": "2", "NPROC_PER_NODE": "8"}, 1, "NNODES"),
    ({"WORLD_SIZE": "16", "MASTER_ADDR": "n1"}, 2, "WORLD_SIZE"),
    ({"NNODES": "2", "NPROC_PER_NODE": "8"}, 2, "NPROC_PER_NODE"),
    ({"NPROC_PER_NODE": "8"}, 2, "NPROC_PER_NODE"),
]
OWN = [name for name, row in recorded.ROWS.items() if "RANK" not in row]


@pytest.mark.parametrize(("exports", "ranks", "name"), EXPORTS)
@pytest.mark.parametrize("launcher", OWN)
def test_a_launcher_that_started_fewer_ranks_than_the_user_exported(
    launcher: str, exports: Env, ranks: int, name: str
) -> None:
    """Lightning issue 15874: mpirun -np 1 on each node, so that all nodes train alone."""
    row = next(row for row in LAUNCHERS if row.name == launcher)
    environ = {name: value for name, value in recorded.ROWS[launcher].items() if name in row.job}
    for names, value in ((row.rank, 0), (row.world_size, ranks)):
        environ[names[0]] = str(value)
    environ |= {name: "x" for names in row.markers[:1] for name in names if name not in environ}
    assert meshkit.detect(environ).allocation is None
    world = meshkit.detect({**environ, **exports})
    assert (world.launcher, world.world_size) == (launcher, ranks)
    assert world.allocation == f"{name} = {exports[name]}"
    enough = {**environ, **exports, row.world_size[0]: "16"}
    assert meshkit.detect(enough).allocation is None


@pytest.mark.parametrize("launcher", OWN)
def test_a_single_rank_of_mpi_on_a_platform_of_several_hosts(launcher: str) -> None:
    """A scheduler may run one rank of a large job on purpose; a platform starts each host."""
    row = next(row for row in LAUNCHERS if row.name == launcher)
    environ = {row.rank[0]: "0", row.world_size[0]: "1"}
    environ |= {name: "x" for names in row.markers[:1] for name in names if name not in environ}
    for sign in ({"SM_HOSTS": '["a", "b"]'}, {"LWS_GROUP_SIZE": "2"}, {"TF_CONFIG": WORKERS}):
        ((name, value),) = sign.items()
        assert meshkit.detect({**environ, **sign}).allocation == f"{name} = {value}"
    for step in ({"PBS_NUM_NODES": "2"}, {"LSB_MCPU_HOSTS": "a 1 b 1"}, {"NHOSTS": "2"}):
        assert meshkit.detect({**environ, **step}).allocation is None


@pytest.mark.parametrize(
    ("exported", "named"),
    [
        ({"LOCAL_RANK": "3"}, ["LOCAL_RANK"]),
        ({"LOCAL_RANK": "0"}, []),  # of a rank that sees one device
        ({"RANK": "", "WORLD_SIZE": " "}, []),
        ({"RANK": "0", "LOCAL_RANK": "3"}, ["RANK", "LOCAL_RANK"]),
        ({"RANK": "0"}, ["RANK"]),
        ({"WORLD_SIZE": "2"}, ["WORLD_SIZE"]),
        ({"WORLD_SIZE": "8"}, []),  # rank 0 warns of it
        ({"RANK": "1", "LOCAL_RANK": "01", "LOCAL_WORLD_SIZE": "2"}, []),
        ({"MASTER_ADDR": "other"}, []),
    ],
)
def test_a_rank_that_contradicts_what_a_script_exported(exported: Env, named: list[str]) -> None:
    """Other libraries read LOCAL_RANK, and all ranks of a node would take one device."""
    step = {**recorded.SRUN, "SLURM_PROCID": "1", "SLURM_NODEID": "0", **exported}
    text = command.warning_of(meshkit.detect(step), step)
    assert (text is not None) == bool(named)
    if text is not None:
        assert text.splitlines()[-1].startswith(f"  Fix: unset {' '.join(named)} in the script")
    findings = {finding.name: finding for finding in check_launcher(step)[1]}
    assert ("exports" in findings) == bool(named)
    own = {"MESHKIT_COMPLETED": json.dumps([["1", "4"], {}])}
    assert command.warning_of(meshkit.detect(step), {**step, **own}) is None
    other = {**step, "SLURM_PROCID": "3", "SLURM_NODEID": "1"}
    assert command.warning_of(meshkit.detect(other), other) is None  # one rank warns


def test_pods_that_are_numbered_as_ranks_though_each_is_for_several() -> None:
    pod = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "pod-0", "MASTER_PORT": "23456"}
    options = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "4"}
    assert meshkit.detect({**pod, **options}).allocation == "PET_NPROC_PER_NODE = 4"
    assert meshkit.detect({**pod, "NPROC_PER_NODE": "8"}).allocation == "NPROC_PER_NODE = 8"
    for value in ("1", "auto", "gpu"):
        assert meshkit.detect({**pod, **options, "PET_NPROC_PER_NODE": value}).allocation is None


def test_init_names_the_ranks_that_the_launcher_did_not_start() -> None:
    environ = clean_environ(
        OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="1", WORLD_SIZE="4", NODE_RANK="2"
    )
    done = run_python("import meshkit\nmeshkit.init()", environ=environ)
    assert "RuntimeWarning: " in done.stderr
    assert "WORLD_SIZE = 4" in done.stderr


@pytest.mark.parametrize("name", [*signs.COUNTS, *signs._ROW_COUNTS])
def test_every_count_above_one_is_a_sign_or_selects_a_launcher(name: str) -> None:
    for value in ("2", "16"):
        if not matching_launchers({name: value}):
            assert meshkit.detect({name: value}).allocation == f"{name} = {value}"
    if not matching_launchers({name: "1"}):
        assert meshkit.detect({name: "1"}).allocation is None


@pytest.mark.parametrize("name", signs.HOST_FILES)
@pytest.mark.parametrize(("lines", "several"), [("n1\nn1\n", False), ("n1 2\nn2 2\n", True)])
def test_a_file_of_hosts(name: str, lines: str, several: bool, tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(lines)
    expected = f"{name} = {file}"[: len(name) + 3 + signs.MAX_SHOWN] if several else None
    allocation = meshkit.detect({name: str(file)}).allocation
    assert (allocation or "").removesuffix("...") == (expected or "")


def test_init_and_doctor_name_the_sign() -> None:
    environ = clean_environ(NNODES="2", NODE_RANK="0", MASTER_ADDR="node0")
    done = run_python("import meshkit\nmeshkit.init()", environ=environ)
    assert "RuntimeWarning: " in done.stderr
    assert "NNODES = 2" in done.stderr
    code = "from meshkit.cli.doctor import check_launcher\n"
    code += "import os\nprint(check_launcher(os.environ)[1][0])"
    found = run_python(code, environ=environ).stdout
    assert "ok=False" in found
    assert "NNODES = 2" in found
