"""Every launcher of the table: matched, read to the last field, and its errors."""

from __future__ import annotations

import pytest

import meshkit
from meshkit.launch.launchers import LAUNCHERS, job_hosts, job_name, matching_launchers
from tests.launch.launchers import recorded
from tests.launch.launchers.errors import detect_error, text_of
from tests.launch.launchers.recorded import ALL, ALONE, EXPECTED, ROWS, Env, without

FIELDS = ("rank", "world_size", "local_rank", "local_world_size", "node_rank", "num_nodes")
FIELDS = (*FIELDS, "master_addr", "master_port", "init_method")
# The variables that torchrun and spawn set, or replace, in every process that they start.
SET_INSIDE = {*recorded.ACCELERATE, *recorded.SPAWN}

# The variables of the rank, of the world size and of the local rank, by row.
RANK_SIZE_LOCAL = {
    **dict.fromkeys(
        ("accelerate", "torchrun", "spawn", "deepspeed", "hand-written"),
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ),
    **dict.fromkeys(
        ("azureml", "sagemaker", "openmpi"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ),
    "mvapich2": ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"),
    "pals": ("PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID PMI_LOCAL_RANK"),
    "hydra": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    "lsf": ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK"),
    "slurm": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS SLURM_NTASKS", "SLURM_LOCALID"),
}
IDENTITY = [
    (row, column, RANK_SIZE_LOCAL[row][column].split()) for row in ROWS for column in range(3)
]
BLOCK_DISTRIBUTED = (
    "accelerate",
    "torchrun",
    "spawn",
    "deepspeed",
    "hand-written",
)  # a rank implies its local rank


def test_every_row_has_a_marker_and_a_name_of_its_own() -> None:
    assert all(row.markers for row in LAUNCHERS)
    assert len({row.name for row in LAUNCHERS}) == len(LAUNCHERS)


def test_every_recording_has_an_expectation_and_every_row_a_recording() -> None:
    assert {*EXPECTED, *ALONE} == {*ALL}
    assert {*ROWS} == {row.name for row in LAUNCHERS}
    for row in LAUNCHERS:
        assert matching_launchers(ROWS[row.name])[0] is row
    assert {launcher for launcher, _ in EXPECTED.values()} == {*ROWS}


@pytest.mark.parametrize("name", EXPECTED)
def test_every_field_and_its_source(name: str) -> None:
    launcher, expected = EXPECTED[name]
    world = meshkit.detect(ALL[name])
    assert world.launcher == launcher
    assert {field: getattr(world, field) for field in FIELDS} == {
        field: expected.get(field, (None, ""))[0] for field in FIELDS
    }
    assert world.sources == {field: source for field, (_, source) in expected.items()}
    assert (world.device, world.backend, world.allocation) == (None, None, None)
    size = expected["world_size"]
    assert world.size_evidence == f"{size[1]} = {size[0]} ({launcher})"


@pytest.mark.parametrize("name", ALONE)
def test_an_allocation_without_srun_is_a_single_process(name: str) -> None:
    world = meshkit.detect(ALL[name])
    source = ALONE[name]
    assert world.sources == dict.fromkeys(FIELDS[:6], source)
    assert world == meshkit.World(
        0, 1, 0, 1, 0, 1, None, None, "single", sources=dict.fromkeys(FIELDS[:6], source)
    )
    assert world.size_evidence == f"there is 1 process and {source}"
    assert f"no srun ({world.allocation})" == source


def test_an_allocation_of_one_node_is_not_mentioned() -> None:
    world = meshkit.detect({**recorded.SALLOC, "SLURM_JOB_NUM_NODES": "1"})
    assert world == meshkit.detect({})
    assert world.size_evidence == "there is 1 process and no launcher"


@pytest.mark.parametrize("name", ["AZUREML", "SAGEMAKER", "LSF"])
def test_the_variables_of_a_cloud_or_a_queue_are_no_launcher(name: str) -> None:
    mpi = ("OMPI_", "JSM_")
    environ = {key: value for key, value in ALL[name].items() if not key.startswith(mpi)}
    assert environ
    assert meshkit.detect(environ) == meshkit.detect({})


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("around", ["SRUN", "SBATCH", "INTERACTIVE", "SALLOC"])
def test_torchrun_and_spawn_inside_another_launcher_are_used_alone(name: str, around: str) -> None:
    for inner in (recorded.TORCHRUN, recorded.SPAWN):
        nested = {**ALL[around], **without(ALL[name], *SET_INSIDE), **inner}
        assert meshkit.detect(nested) == meshkit.detect(inner)


@pytest.mark.parametrize("around", ["SBATCH", "SALLOC", "INTERACTIVE"])
@pytest.mark.parametrize("name", ["OPEN_MPI_5", "MVAPICH2", "PALS", "MPICH", "INTEL_MPI", "SRUN"])
def test_a_launcher_inside_an_allocation_is_used(name: str, around: str) -> None:
    assert meshkit.detect({**ALL[around], **ALL[name]}) == meshkit.detect(ALL[name])


def test_the_order_of_matching_rows() -> None:
    environ: Env = {}
    for row in ROWS.values():
        environ |= row
    names = [row.name for row in matching_launchers(environ)]
    assert names == [
        *("accelerate", "torchrun", "spawn", "deepspeed", "hand-written", "azureml", "sagemaker"),
        *("openmpi", "mvapich2", "pals", "hydra", "lsf", "slurm"),
    ]


@pytest.mark.parametrize(("row", "column", "names"), IDENTITY)
def test_a_missing_variable_is_named(row: str, column: int, names: list[str]) -> None:
    """Without PALS_RANKID, its marker, the row pals does not match and hydra does."""
    environ = without(ROWS[row], *names)
    if column == 2 and row in BLOCK_DISTRIBUTED:
        world = meshkit.detect(environ)
        assert world.local_rank == 3 % int(world.local_world_size or 0)
        assert world.sources["local_rank"] == "rank % local_world_size"
        return
    error = detect_error(environ)
    named = ["MPI_LOCALRANKID"] if names == ["PALS_RANKID"] else names
    assert error.variables == dict.fromkeys(named)
    launcher = "hydra" if names == ["PALS_RANKID"] else row
    first = f"the launcher {launcher} was recognised, but {' or '.join(named)} is not set."
    assert error.summary == first


@pytest.mark.parametrize("value", ["", " ", "-1", "x", "1.0", "0x1", "\u0663"])
@pytest.mark.parametrize(("row", "column", "names"), IDENTITY)
def test_a_variable_that_is_not_a_number_is_named(
    row: str, column: int, names: list[str], value: str
) -> None:
    error = detect_error({**ROWS[row], names[0]: value})
    assert error.variables == {names[0]: value}
    first = f"the launcher {row} was recognised, but {names[0]}={value!r} is not "
    assert error.summary == first + ("1 or more." if column == 1 else "0 or more.")


@pytest.mark.parametrize("row", ROWS)
def test_a_world_size_of_zero_raises(row: str) -> None:
    size = RANK_SIZE_LOCAL[row][1].split()[0]
    assert detect_error({**ROWS[row], size: "0"}).variables == {size: "0"}


@pytest.mark.parametrize("column", [0, 2])
@pytest.mark.parametrize("number", ["4", "9"])
@pytest.mark.parametrize("row", ROWS)
def test_a_rank_outside_its_job_or_node_raises(row: str, number: str, column: int) -> None:
    index = RANK_SIZE_LOCAL[row][column].split()[0]
    field = "world_size" if column == 0 else "local_world_size"
    count = meshkit.detect(ROWS[row]).sources[field]
    error = detect_error({**ROWS[row], index: number})
    assert error.variables == {index: number, count: ROWS[row][count]}
    assert text_of(error) == (
        f"{index}={number} must be below {count}={ROWS[row][count]}.\n"
        f"  Both were read for the launcher {row}.\n"
        f"  Fix: export {index} and {count} so that they agree."
    )


OTHERS = [row for row in ROWS if row not in BLOCK_DISTRIBUTED]


@pytest.mark.parametrize("row", OTHERS)
def test_a_hand_written_rank_must_equal_the_one_of_the_launcher(row: str) -> None:
    """Jobs of different sizes are one launcher inside the other; those of one size must agree."""
    rank, size = (names.split()[0] for names in RANK_SIZE_LOCAL[row][:2])
    error = detect_error({**ROWS[row], "RANK": "1", "WORLD_SIZE": "4"})
    assert error.variables == {"RANK": "1", rank: "3"}
    assert text_of(error) == (
        f"RANK=1 is not {rank}=3.\n"
        f"  Both were read for the launcher hand-written and {row}.\n"
        f"  Fix: export RANK and {rank} so that they agree."
    )
    above = detect_error({**ROWS[row], rank: "1", "RANK": "3", "WORLD_SIZE": "4"})
    assert above.variables == {"RANK": "3", rank: "1"}
    for own_size, other_size in (("8", "4"), ("2", "4")):
        world = meshkit.detect({**ROWS[row], "RANK": "1", "WORLD_SIZE": own_size, size: other_size})
        assert (world.rank, world.world_size, world.launcher) == (1, int(own_size), "hand-written")
    assert meshkit.detect({**ROWS[row], "RANK": "3", "WORLD_SIZE": "4"}).launcher == "hand-written"


@pytest.mark.parametrize("row", ROWS)
def test_arguments_override_every_launcher(row: str) -> None:
    world = meshkit.detect(ROWS[row], rank=1, world_size=2, local_rank=0)
    assert (world.rank, world.world_size, world.local_rank) == (1, 2, 0)
    assert (world.launcher, world.local_world_size, world.node_rank) == (row, None, None)
    assert {world.sources[field] for field in FIELDS[:3]} == {"argument"}
    before = meshkit.detect(ROWS[row])
    assert (world.master_addr, world.master_port) == (before.master_addr, before.master_port)
    smaller = meshkit.detect(ROWS[row], rank=1)
    assert (smaller.rank, smaller.world_size, smaller.local_rank) == (1, 4, 1)
    assert smaller.sources["local_rank"] == "one node assumed"
    moved = meshkit.detect(ROWS[row], local_rank=0)
    assert (moved.rank, moved.world_size, moved.local_rank) == (3, 4, 0)
    assert moved.sources["rank"] == before.sources["rank"]


def test_the_exact_text_of_an_error_inside_another_launcher() -> None:
    inner = without(recorded.OPEN_MPI_5, "OMPI_COMM_WORLD_RANK")
    environ = {**recorded.SRUN, **recorded.MVAPICH2, **inner}
    assert text_of(detect_error(environ)) == (
        "the launcher openmpi was recognised, but OMPI_COMM_WORLD_RANK is not set.\n"
        "  It sets OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE on every rank; "
        "OMPI_COMM_WORLD_SIZE is set. Without that, mvapich2 would be used.\n"
        "  Fix: export OMPI_COMM_WORLD_RANK=0, or the right number."
    )


def test_pals_without_the_pmi_of_cray_has_no_size() -> None:
    assert text_of(detect_error(recorded.PALS_WITHOUT_PMI)) == (
        "the launcher pals was recognised, but PMI_SIZE is not set.\n"
        "  It sets PALS_RANKID and PMI_SIZE on every rank; PALS_RANKID is set.\n"
        "  Fix: export PMI_SIZE=1, or the right number."
    )
    world = meshkit.detect(recorded.PALS_WITHOUT_PMI, world_size=4)
    assert (world.rank, world.world_size, world.local_rank, world.node_rank) == (3, 4, 1, 1)


def test_the_name_and_the_hosts_of_a_job() -> None:
    """The name distinguishes two jobs at one address."""
    slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "SLURM_STEP_NODELIST": "n[1-2],login"}
    assert job_name(slurm, "slurm") == "7.1"
    assert job_name({**slurm, "SLURM_HET_SIZE": "2"}, "slurm") == ""  # parts of one job
    assert job_name({"SLURM_JOB_ID": "7"}, "slurm") == ""
    assert job_name({"TORCHELASTIC_RUN_ID": "abc"}, "torchrun") == "abc"
    assert job_name(slurm, "hand-written") == job_name(slurm, "single") == ""
    assert job_hosts(slurm, "slurm") == ["n1", "n2", "login"]
    assert job_hosts(slurm, "torchrun") == job_hosts({}, "slurm") == []
    assert job_hosts({"SLURM_STEP_NODELIST": "n["}, "slurm") == []
