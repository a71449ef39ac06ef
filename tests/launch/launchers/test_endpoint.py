"""The endpoint without MASTER_ADDR: node lists, rank files, head nodes, and the port."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshkit
from meshkit.launch.endpoint import Endpoint, HeadNode, NodeList, RankFile
from tests.launch.launchers.errors import text_of
from tests.launch.launchers.recorded import ALL, LSF, SRUN, Env

LIST = NodeList(("STEP_LIST", "JOB_LIST"), ("JOB", "STEP"))
FILE = RankFile(("FILE",), ("JOB",))
HEAD = HeadNode("NODE", 6105)
PORTS = range(12000, 32000)


def port(**job: str) -> int:
    endpoint = LIST.find("slurm", {"JOB_LIST": "n1", **job})
    assert endpoint is not None
    return endpoint.port


def test_ports_of_neighbouring_jobs_and_steps_differ() -> None:
    ports = [port(JOB=str(4_000_000 + n), STEP=str(s)) for n in range(600) for s in range(31)]
    assert len({*ports}) == len(ports) == 18_600
    assert {*ports} <= {*PORTS}


def test_ports_worked_by_hand() -> None:
    assert port(JOB="2", STEP="0") == 12_062
    assert port(JOB="2", STEP="1") == 12_063
    assert port(JOB="1000", STEP="7") == 12_000 + (31_007 - 20_000)
    assert port(JOB="5") == 12_005
    assert port() == port(JOB="4_3") == port(JOB="") == port(JOB="-1") == 29_500


NUMBERS = st.integers(0, 2**32 - 1)


@given(NUMBERS, NUMBERS)
def test_a_port_is_always_in_its_range(job: int, step: int) -> None:
    assert port(JOB=str(job), STEP=str(step)) in PORTS
    assert port(JOB=str(job)) in PORTS


@given(NUMBERS, NUMBERS, st.integers(1, 600))
def test_a_later_job_has_another_port(job: int, step: int, later: int) -> None:
    assert port(JOB=str(job), STEP=str(step)) != port(JOB=str(job + later), STEP=str(step))
    assert port(JOB=str(job), STEP=str(step)) != port(JOB=str(job), STEP=str(step + later))


def tasks(distribution: str) -> list[Env]:
    """The environments of a step of two nodes with two tasks each."""
    nodes = [0, 0, 1, 1] if distribution == "block" else [0, 1, 0, 1]
    return [
        {
            **SRUN,
            "SLURM_PROCID": str(rank),
            "SLURM_NODEID": str(node),
            "SLURM_LOCALID": str(nodes[:rank].count(node)),
            "SLURMD_NODENAME": f"n{node + 1}",
        }
        for rank, node in enumerate(nodes)
    ]


@pytest.mark.parametrize("distribution", ["block", "cyclic"])
def test_all_ranks_of_a_step_find_the_same_address(distribution: str) -> None:
    worlds = [meshkit.detect(environ) for environ in tasks(distribution)]
    assert [world.rank for world in worlds] == [0, 1, 2, 3]
    assert {(world.master_addr, world.master_port) for world in worlds} == {("n1", 12_062)}
    later = [meshkit.detect({**environ, "SLURM_STEP_ID": "1"}) for environ in tasks(distribution)]
    assert {world.master_port for world in later} == {12_063}


def test_the_first_list_that_is_set_is_used() -> None:
    environ = {"JOB_LIST": "n[1-4]", "STEP_LIST": "n[03-04]", "JOB": "1"}
    assert LIST.find("slurm", environ) == Endpoint("n03", 12_001, "STEP_LIST", "JOB")
    del environ["STEP_LIST"]
    assert LIST.find("slurm", environ) == Endpoint("n1", 12_001, "JOB_LIST", "JOB")
    assert LIST.find("slurm", {"JOB_LIST": "n1"}) == Endpoint("n1", 29_500, "JOB_LIST", "default")
    assert LIST.find("slurm", {"JOB": "1"}) is None


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("SRUN", "SLURM_STEP_NODELIST"),
        ("SRUN_CRAY", "SLURM_STEP_NODELIST"),
    ],
)
def test_the_list_of_the_step_comes_before_that_of_the_job(name: str, source: str) -> None:
    """A step may run on the second node of the job alone."""
    step = {**ALL[name], "SLURM_STEP_NODELIST": "n2"}
    assert meshkit.detect(step).master_addr == "n2"
    environ = {key: value for key, value in step.items() if key != source}
    for name in ("SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        world = meshkit.detect(environ)
        assert (world.master_addr, world.sources["master_addr"]) == ("n1", name)
        del environ[name]
    assert (meshkit.detect(environ).master_addr, meshkit.detect(environ).master_port) == (
        None,
        None,
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("n[2-1]", "not a range: '2-1'"),
        ("n[1-2", "not a node list: 'n[1-2'"),
        ("", "no hosts"),
    ],
)
def test_the_exact_text_for_a_malformed_list(text: str, fault: str) -> None:
    with pytest.raises(meshkit.LaunchError) as caught:
        meshkit.detect({**SRUN, "SLURM_STEP_NODELIST": text})
    assert text_of(caught.value) == (
        f"the launcher slurm was recognised, but SLURM_STEP_NODELIST={text!r} "
        f"is not a list of nodes ({fault}).\n"
        "  Fix: unset SLURM_STEP_NODELIST, or export MASTER_ADDR=<host of rank 0> "
        "MASTER_PORT=29500."
    )
    assert caught.value.variables == {"SLURM_STEP_NODELIST": text}
    exported = {"MASTER_ADDR": "n9", "MASTER_PORT": "29500", "SLURM_STEP_NODELIST": text}
    assert meshkit.detect({**SRUN, **exported}).master_addr == "n9"  # as the fix advises


@pytest.mark.parametrize(
    ("lines", "host"),
    [
        ("batch w1 w1 w2 w2", "w1"),  # Summit: the batch host once, a worker once a slot
        ("batch 10.10.10.0 10.10.10.1", "10.10.10.0"),  # one slot each
        ("w1 w1 w2 w2", "w1"),  # no separate launch node
        ("w1 w1", "w1"),
        ("w1", "w1"),  # one slot in total
    ],
)
def test_a_rank_file(lines: str, host: str, tmp_path: Path) -> None:
    file = tmp_path / "ranks"
    for text in (lines.replace(" ", "\n"), lines.replace(" ", "\n") + "\n\n"):
        file.write_text(text)
        endpoint = FILE.find("lsf", {"FILE": str(file), "JOB": "1234"})
        assert endpoint == Endpoint(host, 13_234, "FILE", "JOB")
        world = meshkit.detect({**LSF, "LSB_DJOB_RANKFILE": str(file)})
        assert (world.master_addr, world.master_port) == (host, 13_234)
        assert world.sources["master_addr"] == "LSB_DJOB_RANKFILE"
        assert world.sources["master_port"] == "LSB_JOBID"


@pytest.mark.parametrize("kind", ["missing", "folder", "empty", "bytes", "no path", "nul"])
def test_an_unreadable_rank_file_gives_no_endpoint(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "ranks"
    if kind == "folder":
        file.mkdir()
    elif kind in ("empty", "bytes"):
        file.write_bytes(b"" if kind == "empty" else b"\xff\xfe\x00n1\n")
    path = {"no path": "", "nul": "a\0b"}.get(kind, str(file))
    assert FILE.find("lsf", {"FILE": path, "JOB": "1"}) is None
    assert FILE.find("lsf", {"JOB": "1"}) is None
    world = meshkit.detect({**LSF, "LSB_DJOB_RANKFILE": path})
    assert (world.master_addr, world.master_port, world.launcher) == (None, None, "lsf")


@pytest.mark.parametrize(
    ("value", "host"),
    [
        ("10.0.0.6:6000", "10.0.0.6"),
        ("10.0.0.6", "10.0.0.6"),
        (" head:1 ", "head"),
        ("head:port", "head:port"),
        ("[fd00::6]:6000", "fd00::6"),
        ("fd00::6", "fd00::6"),
    ],
)
def test_a_head_node(value: str, host: str) -> None:
    assert HEAD.find("azureml", {"NODE": value}) == Endpoint(
        host, 6105, "NODE", "default of azureml"
    )


@pytest.mark.parametrize("environ", [{}, {"NODE": ""}, {"NODE": " "}, {"NODE": ":6000"}])
def test_a_missing_head_node(environ: Env) -> None:
    assert HEAD.find("azureml", environ) is None


def test_a_rank_file_in_cyclic_order_has_no_batch_host(tmp_path: Path) -> None:
    file = tmp_path / "ranks"
    file.write_text("w1\nw2\nw1\nw2\n")
    endpoint = RankFile(("FILE",), ()).find("lsf", {"FILE": str(file)})
    assert endpoint is not None
    assert endpoint.host == "w1"


def test_an_arbitrary_distribution_has_no_known_first_host() -> None:
    step = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}
    step |= {"SLURM_STEP_NODELIST": "n[1-2]", "SLURM_JOB_ID": "7"}
    assert meshkit.detect(step).master_addr == "n1"
    assert meshkit.detect({**step, "SLURM_DISTRIBUTION": "arbitrary"}).master_addr is None
