"""Cases of errors that launch raises in one process, before a job is joined."""

from __future__ import annotations

import meshkit
from tests.launch.launchers import recorded
from tests.messages.snapshot import unique

TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3"}
SRUN = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "n[1-2]",
}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}
INSIDE_MVAPICH2 = {
    **recorded.SRUN,
    **recorded.MVAPICH2,
    **{k: v for k, v in recorded.OPEN_MPI_5.items() if k != "OMPI_COMM_WORLD_RANK"},
}


def train(rank: int) -> None:
    """Expect a rank, as torch.multiprocessing.spawn passes it."""


CASES = unique(
    ("a launcher variable that is not set", lambda: meshkit.detect({"WORLD_SIZE": "8"})),
    (
        "a launcher variable that is empty",
        lambda: meshkit.detect({**TORCHRUN, "RANK": ""}),
    ),
    (
        "a launcher variable that is not a number",
        lambda: meshkit.detect({**TORCHRUN, "RANK": "two"}),
    ),
    ("a port that is too large", lambda: meshkit.detect({**TORCHRUN, "MASTER_PORT": "70000"})),
    ("an empty address", lambda: meshkit.detect({**TORCHRUN, "MASTER_ADDR": " "})),
    (
        "a launcher rank outside its world",
        lambda: meshkit.detect({"RANK": "9", "WORLD_SIZE": "8"}),
    ),
    (
        "a local rank outside its node",
        lambda: meshkit.detect({**TORCHRUN, "LOCAL_RANK": "4", "LOCAL_WORLD_SIZE": "4"}),
    ),
    (
        "more local ranks than ranks",
        lambda: meshkit.detect({**TORCHRUN, "LOCAL_WORLD_SIZE": "16"}),
    ),
    ("a rank argument without a world size", lambda: meshkit.detect({}, rank=1)),
    ("a local rank argument without a rank", lambda: meshkit.detect({}, local_rank=3)),
    ("a rank argument outside the world", lambda: meshkit.detect(OPEN_MPI, rank=9)),
    (
        "a world size argument that is too large",
        lambda: meshkit.detect({}, rank=0, world_size=10**26),
    ),
    ("a launcher inside another without a rank", lambda: meshkit.detect(INSIDE_MVAPICH2)),
    ("Cray PALS without a size", lambda: meshkit.detect(recorded.PALS_WITHOUT_PMI)),
    (
        "RANK that contradicts the launcher",
        lambda: meshkit.detect({**OPEN_MPI, "RANK": "1", "WORLD_SIZE": "4"}),
    ),
    (
        "a malformed list of nodes",
        lambda: meshkit.detect({**SRUN, "SLURM_STEP_NODELIST": "n[2-1]"}),
    ),
    (
        "a malformed list of tasks",
        lambda: meshkit.detect({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "2(x"}),
    ),
    ("a node outside the list of tasks", lambda: meshkit.detect({**SRUN, "SLURM_NODEID": "2"})),
    (
        "a Slurm topology without hosts",
        lambda: meshkit.slurm_topology("SwitchName=s0 Nodes=n1", []),
    ),
    ("a timeout of 0", lambda: meshkit.init(timeout=0)),
    ("an arrival timeout that is a str", lambda: meshkit.init(arrival_timeout="5")),
    ("a seed that is a float", lambda: meshkit.init(seed=1.5)),
    ("init with the backend by position", lambda: meshkit.init("nccl")),  # type: ignore[misc]
    ("init with an address by position", lambda: meshkit.init("env://")),  # type: ignore[misc]
    ("init with several arguments by position", lambda: meshkit.init("nccl", 4)),  # type: ignore[misc]
    ("init with a misspelt option", lambda: meshkit.init(tiemout=60)),  # type: ignore[call-arg]
    ("init with an option of torch", lambda: meshkit.init(device_id=0)),  # type: ignore[call-arg]
    ("init with a store", lambda: meshkit.init(store="s", rank=0)),  # type: ignore[call-arg]
    ("init with an axis", lambda: meshkit.init(seed=1, dp_size=4)),  # type: ignore[call-arg]
    ("init with an option of build_mesh", lambda: meshkit.init(order="dp tp")),  # type: ignore[call-arg]
    ("init with an option of a batch", lambda: meshkit.init(global_batch=8)),  # type: ignore[call-arg]
    ("init with an unknown option", lambda: meshkit.init(xyz=1)),  # type: ignore[call-arg]
    ("spawn of 0 ranks", lambda: meshkit.spawn(print, 0)),
    (
        "an address that is empty as an argument",
        lambda: meshkit.detect({}, rank=0, world_size=2, master_addr=""),
    ),
    (
        "a port argument of 0",
        lambda: meshkit.detect({}, rank=0, world_size=2, master_port=0),
    ),
    ("spawn as torch.multiprocessing has it", lambda: meshkit.spawn(train, nprocs=4, join=True)),  # type: ignore[call-arg]
    ("spawn of a function that expects a rank", lambda: meshkit.spawn(train, 4)),
    ("spawn with arguments that do not fit", lambda: meshkit.spawn(train, 4, (1, 2, 3))),
)
