"""detect: every launcher of the table to the last field, its errors, arguments, and no launcher."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshkit
from meshkit.launch import detect as detect_module
from meshkit.launch.command import propose_command
from meshkit.launch.launchers import BY_MPI, LAUNCHERS, job_hosts, job_name, matching_launchers
from meshkit.launch.world import NODE_FIELDS
from tests.launch import recorded
from tests.launch.recorded import ALL, ALONE, EXPECTED, NUMBERS, ROWS, SRUN, TORCHRUN, Env, without
from tests.launchers.checks import clean_environ
from tests.preloaded_python import run_python

FIELDS = (*NUMBERS, "master_addr", "master_port", "init_method")
TABLE = {row.name: row for row in LAUNCHERS}
# The variables that torchrun and spawn set, or replace, in every process that they start.
SET_INSIDE = {*recorded.ACCELERATE, *recorded.SPAWN}


def detect_error(environ: Env, **arguments: Any) -> meshkit.LaunchError:
    """Return the error that detect raises for an environment."""
    with pytest.raises(meshkit.LaunchError) as caught:
        meshkit.detect(environ, **arguments)
    return caught.value


# ---------------------------------------------------------------- the table and its recordings


def test_every_recording_has_an_expectation_and_every_row_a_recording() -> None:
    assert {*EXPECTED, *ALONE} == {*ALL}
    assert [*ROWS] == [*TABLE]
    mpi = {"azureml", "sagemaker", "openmpi", "mvapich2", "mvapich", "pals", "flux", "hydra"}
    assert mpi | {"lsf"} == BY_MPI
    everything: Env = {}
    for name, environ in ROWS.items():
        assert matching_launchers(environ)[0] is TABLE[name]
        everything |= environ
    # in the order of the table; an mpiexec of its own runs inside of Flux, and in a task of jsrun
    everything["JSM_NAMESPACE_SIZE"] = "1"
    assert matching_launchers(everything) == [row for row in LAUNCHERS if row.name != "flux"]


def test_every_recording_names_its_source() -> None:
    entries = json.loads(Path(recorded.__file__).with_name("environments.json").read_text())
    assert len(entries) == len(recorded.ENTRIES) >= 60
    for entry in entries:
        assert entry["kind"] in ("recorded", "documented")
        assert re.match("https://.+|meshkit/launch/spawn.py", entry["source"])


@pytest.mark.parametrize("name", EXPECTED)
def test_every_field_and_its_source(name: str) -> None:
    launcher, expected = EXPECTED[name]
    world = meshkit.detect(ALL[name])
    assert world.launcher == launcher
    assert {field: getattr(world, field) for field in FIELDS} == {
        field: expected.get(field, (None, ""))[0] for field in FIELDS
    }
    assert world.sources == {field: source for field, (_, source) in expected.items()}
    assert (world.device, world.backend) == (None, None)
    assert world.allocation == recorded.ENTRIES[name].get("allocation")
    size = expected["world_size"]
    assert world.size_evidence == f"{size[1]} = {size[0]} ({launcher})"


@pytest.mark.parametrize("name", EXPECTED)
def test_a_launcher_inside_another_one_is_used_alone(name: str) -> None:
    for around in ("SRUN", "SBATCH", "INTERACTIVE", "SALLOC"):
        for inner in (recorded.TORCHRUN, recorded.SPAWN):
            nested = {**ALL[around], **without(ALL[name], *SET_INSIDE), **inner}
            assert meshkit.detect(nested) == meshkit.detect(inner)
        names_step = EXPECTED[name][0] != "slurm" or {
            "SLURM_STEP_NUM_TASKS",
            "SLURM_STEP_TASKS_PER_NODE",
        } <= {*ALL[name]}
        if around != "SRUN" and "IN_SLURM" not in name and names_step:
            assert meshkit.detect({**ALL[around], **ALL[name]}).rank == EXPECTED[name][1]["rank"][0]


@pytest.mark.parametrize("name", ["AZUREML", "SAGEMAKER", "LSF"])
def test_the_variables_of_a_cloud_or_a_queue_are_no_launcher(name: str) -> None:
    environ = {key: v for key, v in ALL[name].items() if not key.startswith(("OMPI_", "JSM_"))}
    assert environ
    world = meshkit.detect(environ)
    assert (world.launcher, world.world_size) == ("single", 1)
    signs = {"AZUREML": "PMIX_RANK = 3", "SAGEMAKER": 'SM_HOSTS = ["algo-1","algo-2"]', "LSF": None}
    assert world.allocation == signs[name]


@pytest.mark.parametrize(("tasks", "task"), [("2", "1"), ("8", "3"), ("4", "0")])
@pytest.mark.parametrize("name", ["MVAPICH2", "PALS", "MPICH", "LSF"])
def test_an_mpi_launcher_inside_a_step_of_srun_is_used(name: str, tasks: str, task: str) -> None:
    """PMI variables that differ in size or rank from those of the step do not come from srun."""
    around = {**SRUN, "SLURM_NTASKS": tasks, "SLURM_PROCID": task}
    assert meshkit.detect({**around, **ALL[name]}) == meshkit.detect(ALL[name])


def test_hydra_in_srun_is_hydra_on_every_rank() -> None:
    """On rank 0 both launchers agree by chance: one rank per node, the hosts in another order."""
    for rank, procid in ((0, 0), (1, 2), (2, 1)):
        environ = {"PMI_RANK": str(rank), "PMI_SIZE": "3", "MPI_LOCALRANKID": "0"}
        environ |= {"SLURM_PROCID": str(procid), "SLURM_NTASKS": "3", "SLURM_STEP_ID": "0"}
        assert meshkit.detect(environ).launcher == "hydra"


def test_a_step_of_srun_without_its_id() -> None:
    """The nodes of the step or the older name of its id distinguish a task from a batch script."""
    first = {**SRUN, "SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "0"}
    for gone in (("SLURM_STEP_ID",), ("SLURM_STEP_ID", "SLURM_STEPID")):
        world = meshkit.detect(without(first, *gone))
        assert (world.launcher, world.rank, world.world_size) == ("slurm", 0, 4)
    assert meshkit.detect(without(recorded.INTERACTIVE, "SLURM_STEP_ID")).launcher == "single"


def test_the_name_and_the_hosts_of_a_job() -> None:
    """The name distinguishes two jobs at one address."""
    slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "SLURM_STEP_NODELIST": "n[1-2],login"}
    assert job_name(slurm, "slurm") == "7.1"
    assert job_name({**slurm, "SLURM_HET_SIZE": "2"}, "slurm") == ""  # parts of one job
    assert job_name({"SLURM_JOB_ID": "7"}, "slurm") == job_name(slurm, "single") == ""
    assert job_hosts(slurm, "slurm") == ["n1", "n2", "login"]
    assert job_hosts(slurm, "torchrun") == job_hosts({"SLURM_STEP_NODELIST": "n["}, "slurm") == []


# ---------------------------------------------------------------- missing and malformed variables


@pytest.mark.parametrize("field", ["rank", "world_size"])
@pytest.mark.parametrize("name", ROWS)
def test_a_missing_variable_is_named(name: str, field: str) -> None:
    names = getattr(TABLE[name], field)
    environ = without(ROWS[name], *names, *TABLE[name].tasks_per_node)
    if name in ("horovod", "flux"):  # half of them is no launcher, but a sign of a larger job
        assert meshkit.detect(environ).allocation
    elif names == ("PALS_RANKID",):  # the row hydra has all that it needs
        assert meshkit.detect(environ).launcher == "hydra"
    else:
        error = detect_error(environ)
        assert error.variables == dict.fromkeys(names)
        assert not re.search(r"=[0-9]", error.fix_text)  # all ranks would get one number


@pytest.mark.parametrize("name", ROWS)
def test_a_missing_local_rank_is_none(name: str) -> None:
    """On one node it is the rank."""
    world = meshkit.detect(without(ROWS[name], *TABLE[name].local_rank))
    one_node = world.local_world_size == 4
    assert world.local_rank == (3 if one_node else None)
    assert world.sources.get("local_rank") == ("one node" if one_node else None)


@pytest.mark.parametrize("half", [{"RANK": "0"}, {"WORLD_SIZE": "2"}, {"LOCAL_RANK": "0"}])
@pytest.mark.parametrize("name", [name for name in ROWS if TABLE[name].rank != ("RANK",)])
def test_a_whole_row_comes_before_half_of_another_one(name: str, half: Env) -> None:
    """A batch script has exported a variable to all ranks."""
    assert meshkit.detect({**half, **ROWS[name]}) == meshkit.detect(ROWS[name])


def malformed(field: str, source: str) -> list[str]:
    """Return invalid values of a variable that is the source of a field."""
    if source.endswith("TASKS_PER_NODE"):
        return ["", "2(x", "two", "2(x999999999999)"]
    if field in NUMBERS:
        zero = ["0"] * (field in ("world_size", "local_world_size", "num_nodes"))
        return ["", " ", "-1", "x", "1.0", "0x1", "\u0663", "²", "9" * 5000, *zero]
    kinds = {"PORT": ["x", "0", "70000"], "ADDR": ["", " "], "NODELIST": ["n[2-1]", "n[1-2", ""]}
    return next((values for end, values in kinds.items() if source.endswith(end)), [])


@pytest.mark.parametrize("name", ROWS)
def test_a_malformed_variable_is_named(name: str) -> None:
    for field, source in meshkit.detect(ROWS[name]).sources.items():
        for value in malformed(field, source) if source in ROWS[name] else []:
            if source == "PALS_RANKID" and not value.strip():  # the row hydra has all it needs
                assert meshkit.detect({**ROWS[name], source: value}).launcher == "hydra"
                continue
            error = detect_error({**ROWS[name], source: value})
            assert error.variables == {source: value}
            assert pickle.loads(pickle.dumps(error)).variables == error.variables


@pytest.mark.parametrize(
    ("index", "count"),
    [("rank", "world_size"), ("local_rank", "local_world_size"), ("node_rank", "num_nodes")],
)
@pytest.mark.parametrize("name", ROWS)
def test_an_index_outside_its_job_or_node_raises(name: str, index: str, count: str) -> None:
    world = meshkit.detect(ROWS[name])
    sources = [world.sources.get(field, "") for field in (index, count)]
    if not {*sources} <= {*ROWS[name]}:  # derived
        return
    for value in (getattr(world, count), 9):
        variables = {sources[0]: str(value), sources[1]: ROWS[name][sources[1]]}
        error = detect_error({**ROWS[name], **variables})
        if name == "slurm" and index == "node_rank":
            variables = {sources[0]: str(value), "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
        assert error.variables == variables
    if count == "local_world_size" and name != "slurm":
        assert detect_error({**ROWS[name], sources[1]: "16"}).variables.keys() == {
            *(sources[1], world.sources["world_size"])
        }


@pytest.mark.parametrize(
    ("ranks", "tasks", "nodes", "local_world_size"),
    [
        ("3", "2(x2)", "2", None),  # a step of three ranks in an allocation of four
        ("2", "2(x2)", "2", 1),  # one rank on each node
        ("2", "8(x4)", "4", None),
        ("5", "2(x2)", "2", None),  # one part of a heterogeneous job
        ("5", "3,2", "2", 2),
    ],
)
def test_a_list_of_tasks_of_another_number_of_ranks_says_nothing(
    ranks: str, tasks: str, nodes: str, local_world_size: int | None
) -> None:
    step = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NODEID": "1"}
    counts = {"SLURM_NTASKS": ranks, "SLURM_TASKS_PER_NODE": tasks}
    counts |= {"SLURM_NNODES": nodes} if nodes <= ranks else {}
    world = meshkit.detect({**step, **counts})
    assert (world.world_size, world.local_rank) == (int(ranks), 0)
    assert world.local_world_size == local_world_size


@pytest.mark.parametrize("name", [n for n, row in TABLE.items() if row.rank != ("RANK",)])
def test_a_hand_written_rank_must_equal_the_one_of_the_launcher(name: str) -> None:
    """Jobs of different sizes are one launcher inside the other; those of one size must agree."""
    rank, size = TABLE[name].rank[0], TABLE[name].world_size[0]
    for own, other in (("1", "3"), ("3", "1")):
        error = detect_error({**ROWS[name], rank: other, "RANK": own, "WORLD_SIZE": "4"})
        assert error.variables == {"RANK": own, rank: other}
        assert error.fix_text.startswith("unset RANK WORLD_SIZE: ")
    for own_size, other_size in (("8", "4"), ("2", "4")):
        environ = {**ROWS[name], "RANK": "1", "WORLD_SIZE": own_size, size: other_size}
        world = meshkit.detect(environ)
        assert (world.rank, world.world_size, world.launcher) == (1, int(own_size), "hand-written")
    assert meshkit.detect({**ROWS[name], "RANK": "3", "WORLD_SIZE": "4"}).launcher == "hand-written"


@pytest.mark.parametrize("name", [name for name in ROWS if "RANK" not in ROWS[name]])
def test_a_single_process_that_a_launcher_has_numbered_among_several(name: str) -> None:
    """Each process would train alone."""
    rank, size = TABLE[name].rank[0], TABLE[name].world_size[0]
    exported = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    for own in ("0", "3"):
        environ = {**ROWS[name], rank: own, size: "4"}
        error = detect_error({**environ, **exported})
        assert error.variables == {"WORLD_SIZE": "1", size: "4"}
        unset, alone = error.fix_text.split("; or ")
        assert unset.startswith("unset RANK WORLD_SIZE LOCAL_RANK: ")
        assert meshkit.detect(environ).rank == int(own)
        assert alone == "init(rank=0, world_size=1), if each is alone."
        assert meshkit.detect({**environ, **exported}, rank=0, world_size=1).world_size == 1
        child = {**environ, **exported}
        meshkit.detect(child, rank=0, world_size=1).export(child)
        assert meshkit.detect(child).world_size == 1
    alone_too = {**ROWS[name], **exported, rank: "0"}
    for row in TABLE.values():  # PMI numbers the ranks of PALS too
        alone_too |= dict.fromkeys({*row.rank} & {*alone_too}, "0")
        alone_too |= dict.fromkeys({*row.world_size} & {*alone_too}, "1")
    assert meshkit.detect(alone_too).world_size == 1


@pytest.mark.parametrize("name", [name for name in ROWS if "RANK" not in ROWS[name]])
@pytest.mark.parametrize(
    "blank", [{"RANK": "", "WORLD_SIZE": ""}, {"RANK": " ", "WORLD_SIZE": "4"}]
)
def test_a_whole_row_comes_before_blanks(blank: Env, name: str) -> None:
    """A container gets RANK= and WORLD_SIZE= if a template leaves them out."""
    assert meshkit.detect({**ROWS[name], **blank}).launcher == name
    assert meshkit.detect({**ROWS[name], **blank}).rank == 3
    fix = detect_error(blank).fix_text
    assert fix.startswith("export RANK=<the rank of this process>, another one on each; or ")


def test_a_step_of_jsrun_for_spectrum_mpi_has_the_address_of_lsf(tmp_path: Path) -> None:
    """The variables of Open MPI are those of jsrun, unless an mpirun runs inside its task."""
    (tmp_path / "ranks").write_text("batch\nh1\nh1\nh2\nh2\n")
    environ = {**ALL["JSRUN_SPECTRUM"], "LSB_DJOB_RANKFILE": str(tmp_path / "ranks")}
    assert meshkit.detect(environ).master_addr == "h1"
    assert meshkit.detect({**environ, "OMPI_COMM_WORLD_SIZE": "24"}).launcher == "openmpi"
    assert meshkit.detect({**environ, "OMPI_COMM_WORLD_RANK": "3"}).launcher == "openmpi"


@pytest.mark.parametrize("size", ["8", "3"])
def test_a_list_of_the_tasks_of_another_step_is_ignored(size: str) -> None:
    world = meshkit.detect({**SRUN, "SLURM_STEP_NUM_TASKS": size, "SLURM_PROCID": "2"})
    assert (world.world_size, world.local_world_size, world.num_nodes) == (int(size), None, 2)


@pytest.mark.parametrize("tasks", ["", "2(x", "two", "2(x0)"])
def test_the_fix_of_a_malformed_list_of_tasks_leads_to_a_world(tasks: str) -> None:
    environ = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NODEID": "0"}
    broken = {**environ, "SLURM_TASKS_PER_NODE": tasks}
    alone = detect_error(broken).fix_text
    expected = "unset SLURM_TASKS_PER_NODE, and export SLURM_NTASKS=<the number of ranks>"
    assert alone == f"{expected}, the same on all."
    assert meshkit.detect({**environ, "SLURM_NTASKS": "4"}).world_size == 4
    sized = detect_error({**broken, "SLURM_NTASKS": "4"})
    assert sized.fix_text == "unset SLURM_TASKS_PER_NODE."


@pytest.mark.parametrize("size", ["SLURM_NTASKS", "SLURM_NPROCS", "SLURM_TASKS_PER_NODE"])
def test_a_batch_script_that_exports_its_own_rank_is_told_to_unset_it(size: str) -> None:
    """TRI-ML/prismatic-vlms issue 39: RANK=$SLURM_PROCID, read once, for all tasks."""
    step = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}
    step[size] = "2(x2)" if size.endswith("NODE") else "04"
    exported = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_ADDR": "n1"}
    error = detect_error({**step, **exported})
    assert error.variables == {"RANK": "0", "SLURM_PROCID": "3"}
    assert error.fix_text.startswith("unset RANK WORLD_SIZE LOCAL_RANK: ")
    assert meshkit.detect({**step, **without(exported, "RANK", "WORLD_SIZE")}).rank == 3


def test_the_evidence_names_the_markers_and_the_next_launcher() -> None:
    halves = {"OMPI_COMM_WORLD_SIZE": "4", "MV2_COMM_WORLD_SIZE": "4"}
    error = detect_error(halves)
    assert "OMPI_COMM_WORLD_SIZE is set." in error.evidence[0]
    assert "mvapich2 would be used" in error.evidence[0]
    assert "unset" not in error.fix_text  # it would train alone, or be another launcher's half
    assert meshkit.detect({**SRUN, **halves}).launcher == "slurm"


HALVES = [name for name in TABLE if name not in {"horovod", "flux"}]  # these match as a whole only


@pytest.mark.parametrize("name", HALVES)
def test_half_a_launcher_is_unset_only_where_the_process_may_be_alone(name: str) -> None:
    """kubernetes-sigs/lws issue 390: WORLD_SIZE of a pod whose RANK is missing."""
    rank, size = TABLE[name].rank[0], TABLE[name].world_size[0]
    markers = {n: "x" for n in TABLE[name].markers[0] if n not in {rank, size}}
    halves = [({rank: "0"}, True), ({rank: "3"}, False), ({rank: "0", "NNODES": "2"}, False)]
    for half, alone in [*halves, *[({size: "2"}, False)] * (name != "pals")]:
        error = detect_error({**markers, **half})
        advice = error.fix_text.partition("unset ")[2]
        assert bool(advice) == alone, error.fix_text
        assert advice.endswith(", if this process is alone.") == alone


def test_a_world_size_without_rank_proposes_a_launcher_that_numbers_ranks() -> None:
    runpod = {
        "MASTER_ADDR": "10.65.0.2",
        "MASTER_PORT": "29400",
        "NODE_RANK": "1",
        "NUM_NODES": "2",
    }
    assert "torchrun" in detect_error({**runpod, "WORLD_SIZE": "16"}).fix_text
    batch = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "WORLD_SIZE": "4"}
    assert "start the ranks with srun" in detect_error(batch).fix_text


def test_pals_without_the_pmi_of_cray_has_no_size() -> None:
    error = detect_error(recorded.PALS_WITHOUT_PMI)
    assert error.variables == dict.fromkeys(TABLE["pals"].world_size)
    world = meshkit.detect(recorded.PALS_WITHOUT_PMI, world_size=4)
    assert (world.rank, world.world_size, world.local_rank, world.node_rank) == (3, 4, 1, 1)
    assert world.local_world_size == 2


# ---------------------------------------------------------------- derived fields and addresses

NODE = {"RANK": "6", "WORLD_SIZE": "8", "LOCAL_RANK": "2"}
ALL_ON_ONE = {"RANK": "3", "WORLD_SIZE": "4"}
OF_FIELD = {"local_rank": "LOCAL_RANK", "local_world_size": "LOCAL_WORLD_SIZE"}
OF_FIELD |= {"node_rank": "NODE_RANK", "num_nodes": "NNODES"}


@pytest.mark.parametrize(
    ("environ", "fields", "source"),
    [
        (ALL_ON_ONE, (None, None, None, None), None),
        ({**ALL_ON_ONE, "LOCAL_WORLD_SIZE": "4"}, (3, 4, 0, 1), "LOCAL_WORLD_SIZE"),
        ({**ALL_ON_ONE, "NNODES": "1"}, (3, 4, 0, 1), "one node"),
        ({**ALL_ON_ONE, "PET_NNODES": "4"}, (0, 1, None, 4), "one rank per node"),
        ({**ALL_ON_ONE, "LOCAL_WORLD_SIZE": "1"}, (0, 1, None, None), "LOCAL_WORLD_SIZE"),
        ({**NODE, "LOCAL_WORLD_SIZE": "4"}, (2, 4, None, None), "LOCAL_WORLD_SIZE"),
        (NODE, (2, None, None, None), None),
        ({**NODE, "NODE_RANK": "1", "NNODES": "2"}, (2, None, 1, 2), None),
        ({**NODE, "NNODES": "1:4", "NPROC_PER_NODE": "gpu"}, (2, None, None, None), None),
        # the option of torchrun counts only if it fits the size of the job
        ({**NODE, "NNODES": "2", "NPROC_PER_NODE": "4"}, (2, 4, None, 2), "NPROC_PER_NODE"),
        ({**NODE, "NNODES": "2", "NPROC_PER_NODE": "8"}, (2, None, None, 2), None),
        ({**NODE, "NPROC_PER_NODE": "8"}, (2, None, None, None), None),
        ({**NODE, "RANK": "0", "LOCAL_RANK": "0"}, (0, None, None, None), None),
        (
            {"RANK": "0", "WORLD_SIZE": "1", "NNODES": "2", "NODE_RANK": "1"},
            (0, 1, 0, 1),
            "one node",
        ),
        (without(TORCHRUN, "LOCAL_RANK", "LOCAL_WORLD_SIZE"), (None, None, 1, 2), None),
    ],
)
def test_fields_of_the_node(environ: Env, fields: tuple[int | None, ...], source: str) -> None:
    """A field is None unless a variable states it, or others leave one value only."""
    world = meshkit.detect(environ)
    assert tuple(getattr(world, field) for field in NUMBERS[2:]) == fields
    assert world.sources.get("local_world_size") == source


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"LOCAL_WORLD_SIZE": "16"}, ["LOCAL_WORLD_SIZE", "WORLD_SIZE"]),
        ({"NNODES": "5"}, ["NNODES", "WORLD_SIZE"]),
        ({"NNODES": "1", "LOCAL_WORLD_SIZE": "2"}, ["LOCAL_WORLD_SIZE", "NNODES"]),
        ({"NNODES": "2", "LOCAL_WORLD_SIZE": "4"}, ["LOCAL_WORLD_SIZE", "NNODES"]),
        ({"NNODES": "3", "LOCAL_WORLD_SIZE": "3"}, ["LOCAL_WORLD_SIZE", "NNODES"]),
        ({"NNODES": "4", "LOCAL_RANK": "1"}, ["LOCAL_RANK", "NNODES"]),
        ({"NNODES": "2", "NODE_RANK": "2"}, ["NODE_RANK", "NNODES"]),
        ({"NODE_RANK": "4"}, ["NODE_RANK", "WORLD_SIZE"]),
        ({"NODE_RANK": "x"}, ["NODE_RANK"]),
        ({"PET_NPROC_PER_NODE": "2.0"}, ["PET_NPROC_PER_NODE"]),
        ({"WORLD_SIZE": str(2**21 + 1)}, ["WORLD_SIZE"]),
    ],
)
def test_contradictions_about_nodes(changed: Env, names: list[str]) -> None:
    environ = {**ALL_ON_ONE, **changed}
    assert detect_error(environ).variables == {name: environ[name] for name in names}


@given(st.lists(st.integers(0, 3), min_size=2, max_size=9), st.data())
def test_no_fact_of_a_job_contradicts_another_one(machines: list[int], data: st.DataObject) -> None:
    """Ranks on any machines: each rank may know any of its numbers."""
    nodes = [[*dict.fromkeys(machines)].index(machine) for machine in machines]
    rank = data.draw(st.integers(0, len(nodes) - 1))
    node = nodes[rank]
    facts = (nodes[:rank].count(node), nodes.count(node), node, max(nodes) + 1)
    known = dict(zip(NODE_FIELDS, facts, strict=True))
    names = data.draw(st.sets(st.sampled_from(NODE_FIELDS)))
    environ = {"RANK": str(rank), "WORLD_SIZE": str(len(nodes))}
    environ |= {OF_FIELD[name]: str(known[name]) for name in names}
    world = meshkit.detect(environ)
    for name in NODE_FIELDS:
        assert getattr(world, name) in ([known[name]] if name in names else [None, known[name]])


@pytest.mark.parametrize(
    ("name", "exported", "address"),
    [
        ("SRUN", {"MASTER_ADDR": " a "}, ("a", 12_062)),
        ("SRUN", {"MASTER_PORT": "7"}, ("n1", 7)),
        ("SRUN", {"MASTER_ADDR": "a", "MASTER_PORT": "7", "SLURM_STEP_NODELIST": "["}, ("a", 7)),
        ("SAGEMAKER_ADDRESS", {"MASTER_ADDR": "a"}, ("a", 7777)),
        ("SAGEMAKER_ADDRESS", {"MASTER_PORT": "1"}, ("algo-1", 1)),
        ("AZUREML_BATCHAI", {"AZ_BATCH_MASTER_NODE": "10.0.0.7:6000"}, ("10.0.0.7", 6105)),
        ("AZUREML", {"MASTER_ADDR": "a", "MASTER_PORT": "1"}, ("a", 1)),
    ],
)
def test_exported_and_newer_variables_come_first(
    name: str, exported: Env, address: tuple[str, int]
) -> None:
    world = meshkit.detect({**ALL[name], **exported})
    assert (world.master_addr, world.master_port) == address
    for field, variable in (("master_addr", "MASTER_ADDR"), ("master_port", "MASTER_PORT")):
        assert (world.sources[field] == variable) == (variable in exported)


# ---------------------------------------------------------------- arguments


@pytest.mark.parametrize("name", ROWS)
def test_arguments_override_every_launcher(name: str) -> None:
    """The node of another rank is ignored; an argument equal to the variable changes nothing."""
    before = meshkit.detect(ROWS[name])
    world = meshkit.detect(ROWS[name], rank=1, world_size=2, local_rank=0, master_port=1234)
    assert (world.rank, world.world_size, world.local_rank) == (1, 2, 0)
    assert (world.launcher, world.local_world_size, world.node_rank) == (name, None, None)
    assert (world.master_addr, world.master_port) == (before.master_addr, 1234)
    sources = [world.sources[field] for field in (*NUMBERS[:3], "master_port")]
    assert sources == ["argument"] * 4
    other = meshkit.detect(ROWS[name], rank=1)
    assert (other.rank, other.world_size, other.local_rank) == (1, 4, None)
    assert "local_rank" not in other.sources
    moved = meshkit.detect(ROWS[name], local_rank=0)
    assert (moved.rank, moved.world_size, moved.local_rank) == (3, 4, 0)
    same = meshkit.detect(ROWS[name], rank=3, world_size=4)
    assert dataclasses.replace(same, sources=before.sources) == before


@pytest.mark.parametrize(
    "arguments",
    [
        {"rank": 1},  # no world size
        {"local_rank": 3},
        {"rank": 2, "world_size": 2},
        *({"rank": 1, "world_size": 2, "master_addr": addr} for addr in (" ", 7)),
        *({"rank": 1, "world_size": 2, "master_port": port} for port in (0, "x", 65536)),
        *({"rank": rank, "world_size": 2} for rank in (-1, 1.5, True, "1")),
        {"rank": 0, "world_size": 0},
        {"rank": 0, "world_size": 2**21 + 1},
    ],
)
def test_invalid_arguments(arguments: dict[str, Any]) -> None:
    detect_error({}, **arguments)


def test_an_error_marks_the_values_that_are_arguments() -> None:
    error = detect_error({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, rank=9)
    assert error.variables == {"argument rank": "9", "OMPI_COMM_WORLD_SIZE": "4"}
    assert detect_error({"WORLD_SIZE": "4", "SECRET": "x" * 100}, rank=4).args
    assert "SECRET" not in str(detect_error({"WORLD_SIZE": "4", "SECRET": "x" * 100}, rank=4))


# ---------------------------------------------------------------- no launcher


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"RANK": 0, "WORLD_SIZE": "2"}, "environ['RANK'] is 0, and variables are texts."),
        ({"RANK": "0", "WORLD_SIZE": 2}, "environ['WORLD_SIZE'] is 2, and variables are texts."),
        ({"SLURM_NTASKS": 4}, "environ['SLURM_NTASKS'] is 4, and variables are texts."),
        (["RANK=0"], "environ is of the type list."),
    ],
)
def test_an_environment_maps_names_to_texts(environ: Any, text: str) -> None:
    assert detect_error(environ).summary == text


def test_variables_that_are_not_read_may_have_any_value() -> None:
    for value in (None, 3):
        assert meshkit.detect({"X": value}).launcher == "single"  # type: ignore[dict-item]
        world = meshkit.detect({"RANK": "1", "WORLD_SIZE": "2", "X": value})  # type: ignore[dict-item]
        assert (world.rank, world.world_size) == (1, 2)
    environ: Any = {"RANK": "0", "WORLD_SIZE": None}
    assert detect_error(environ).fix_text == "leave out WORLD_SIZE."
    assert meshkit.detect({**environ, "WORLD_SIZE": "2"}).world_size == 2


def test_a_list_whose_first_host_is_none_is_not_called_a_host() -> None:
    error = detect_error({**SRUN, "SLURM_STEP_NODELIST": "n(1),n2"})
    assert "'n(1)', the first host of SLURM_STEP_NODELIST='n(1),n2' is not a host" in error.summary


def test_a_size_that_contradicts_a_rank_of_the_launcher_is_passed_with_a_rank() -> None:
    error = detect_error(SRUN, world_size=2)
    assert error.fix_text == (
        "another world_size, or pass rank= and world_size= both, so that they agree."
    )
    assert meshkit.detect(SRUN, world_size=2, rank=1).rank == 1


def test_a_single_process() -> None:
    world = meshkit.detect({}, local_rank=0, master_addr="node1")
    assert tuple(getattr(world, field) for field in NUMBERS) == (0, 1, 0, 1, 0, 1)
    assert (world.launcher, world.master_addr) == ("single", "node1")
    assert world.size_evidence == "there is 1 process and no launcher"
    assert meshkit.detect({}, rank=1, world_size=2).launcher == "hand-written"
    assert meshkit.detect({}, rank=0, world_size=2**21).world_size == 2**21  # the most


@pytest.mark.parametrize("name", ALONE)
def test_a_process_that_no_launcher_has_numbered_is_a_single_process(name: str) -> None:
    world = meshkit.detect(ALL[name])
    assert world.sources == dict.fromkeys(NUMBERS, ALONE[name])
    assert dataclasses.replace(world, sources={}, allocation=None) == dataclasses.replace(
        meshkit.detect({}), sources={}
    )
    assert world.size_evidence == f"there is 1 process and {ALONE[name]}"
    assert world.allocation == recorded.ENTRIES[name].get("allocation")
    assert meshkit.detect(ALL[name], world_size=1, rank=0).allocation is None


@pytest.mark.parametrize("several", ["9" * 5000, "04", "2"])
@pytest.mark.parametrize("alone", ["1", "01", "0", "", "x", "\u0662"])
def test_only_an_allocation_of_several_tasks_is_mentioned(several: str, alone: str) -> None:
    environ = {"SLURM_NTASKS": alone}
    assert meshkit.detect(environ) == meshkit.detect({})
    environ["SLURM_JOB_NUM_NODES"] = several
    assert meshkit.detect(environ).allocation == f"SLURM_JOB_NUM_NODES = {several}"


def test_the_environment_of_this_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(TORCHRUN))
    assert meshkit.detect() == meshkit.detect(TORCHRUN)
    assert dict(os.environ) == TORCHRUN


# ---------------------------------------------------------------- the command to type instead

MESH = "import meshkit\n\nmeshkit.build_mesh(dp=4, sp=2)\n"


@pytest.mark.parametrize(
    ("run", "argv", "variables", "fix"),
    [
        ("path", "train.py --name 'a b'", {}, "torchrun --nproc-per-node 8 train.py --name 'a b'"),
        ("path", "train.py", {"SLURM_NTASKS": "8"}, "srun -n 8 python train.py"),
        ("module", "pack", {}, "torchrun --nproc-per-node 8 -m pack"),
        ("module", "pack.train -x", {}, "torchrun --nproc-per-node 2 -m pack.train -x"),
    ],
)
def test_a_program_without_a_launcher_proposes_its_own_command(
    run: str, argv: str, variables: Env, fix: str, tmp_path: Path
) -> None:
    """runpy runs a script as ``python`` does, and a module as ``python -m``."""
    (tmp_path / "pack").mkdir()
    for name in ("train.py", "pack/__main__.py"):
        (tmp_path / name).write_text(MESH)
    (tmp_path / "pack" / "train.py").write_text(MESH.replace("dp=4", "dp=-1"))
    first, *others = shlex.split(argv)
    options = ", alter_sys=True" if run == "module" else ""
    code = f"import runpy, sys, warnings\nsys.argv = {[first, *others]}\n"
    code += "warnings.simplefilter('ignore')\n"  # of an allocation
    code += f"runpy.run_{run}({first!r}, run_name='__main__'{options})"
    done = run_python(code, environ=clean_environ(**variables), cwd=tmp_path)
    assert done.stderr.splitlines()[-1] == f"  Fix: {fix}"


def test_a_prompt_proposes_spawn_and_a_rank_of_a_launcher_keeps_the_fix(tmp_path: Path) -> None:
    done = run_python(MESH, environ=clean_environ(), cwd=tmp_path)
    assert done.stderr.endswith("  Fix: meshkit.spawn(fn, 8), with build_mesh(dp=4, sp=2) in fn.\n")
    world = meshkit.detect({"RANK": "0", "WORLD_SIZE": "1"})
    error = meshkit.SpecError("too few.", fix="start 8 ranks.", num_ranks=8)
    assert propose_command(error, world).fix_text == "start 8 ranks."


# ------------------------------------------------------------ numbers, however they are written

COLUMNS = ("rank", "world_size", *NODE_FIELDS)
NUMBERED = {name for row in LAUNCHERS for column in COLUMNS for name in getattr(row, column)}
NUMBERED |= {"SLURM_STEP_ID", "SLURM_STEPID"}
PADDED = st.sampled_from(["{}", "0{}", "000{}", " {}", "{} ", " 00{}\n"])


def outcome_of(environ: Env, arguments: dict[str, int]) -> Any:
    """Return the launcher and the fields that detect finds, or the kind of its error."""
    try:
        world = meshkit.detect(environ, **arguments)
    except meshkit.LaunchError as error:
        return type(error)
    fields = {field: getattr(world, field) for field in FIELDS}
    return world.launcher, fields, dict(world.sources) if world.launcher != "single" else {}


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=20)
@given(data=st.data())
def test_a_number_is_the_same_however_it_is_written(name: str, data: st.DataObject) -> None:
    """`RANK=01` is the rank 1 for all that compares it: arguments, other launchers, export."""
    environ = ALL[name]
    written = {
        variable: data.draw(PADDED).format(value)
        if variable in NUMBERED and value.isdigit()
        else value
        for variable, value in environ.items()
    }
    world = meshkit.detect(environ)
    given_names = data.draw(st.sets(st.sampled_from(["rank", "world_size", "local_rank"])))
    drawn = {
        field: getattr(world, field) + data.draw(st.sampled_from([0, 0, 1]))
        for field in sorted(given_names)
        if getattr(world, field) is not None
    }
    assert outcome_of(written, drawn) == outcome_of(environ, drawn)
    target, plain = dict(written), dict(environ)
    assert world.export(target) == world.export(plain)
    assert target.keys() == plain.keys()


@pytest.mark.parametrize(
    ("addr", "meant"),
    [
        ("node 1", None),
        ("[fd00::55]", "export MASTER_ADDR=fd00::55,"),
        ("fd00::55:1:2:3:4:5:6:7", None),
        ("node1:29500", "export MASTER_ADDR=node1 MASTER_PORT=29500,"),
        ("tcp://node1:29500", None),
        ("$(hostname)", None),
        ("node[1-2]", None),
        ("300.1.1.1", None),
    ],
)
def test_a_process_without_launcher_refuses_an_address_that_is_no_host(
    addr: str, meant: str | None
) -> None:
    """torch reads it too; to unset it changes nothing only for a process that is alone."""
    for beside in ({}, {"MASTER_PORT": "29500"}):
        error = detect_error({"MASTER_ADDR": addr, **beside})
        assert (
            error.summary
            == f"MASTER_ADDR={addr!r} is not a host: {error.summary.partition(': ')[2]}"
        )
        assert (meant or f"export MASTER_ADDR={detect_module.HOST},") in error.fix_text
        assert error.fix_text.endswith("or unset MASTER_ADDR, if this process is alone.")
        assert (
            meshkit.detect({"MASTER_ADDR": addr, **beside}, master_addr="n1").launcher == "single"
        )
        fixed = {"MASTER_ADDR": meant.partition("=")[2].split()[0].rstrip(",")} if meant else {}
        assert meshkit.detect({**beside, **fixed}).launcher == "single"
    larger = detect_error({"MASTER_ADDR": addr, "NNODES": "2"})
    assert "unset" not in larger.fix_text


@pytest.mark.parametrize("environ", [{"MASTER_ADDR": ""}, {"MASTER_PORT": "tcp://10.0.0.1:29500"}])
def test_a_process_without_launcher_accepts_what_a_platform_sets(environ: Env) -> None:
    """An empty address is none to torch; Kubernetes sets MASTER_PORT for a service "master"."""
    assert meshkit.detect(environ).allocation is None
