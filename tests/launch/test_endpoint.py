"""The endpoint without MASTER_ADDR: node lists, rank files, head nodes, and the port."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshkit
from meshkit.launch.endpoint import Endpoint, HeadNode, NodeList
from tests.launch.recorded import LSF, SRUN, Env, without

LIST = NodeList(("STEP_LIST", "JOB_LIST"), ("JOB", "STEP"))
NUMBERS = st.integers(0, 2**32 - 1)


def port(**job: object) -> int:
    endpoint = LIST.find("slurm", {"JOB_LIST": "n1", **{k: str(v) for k, v in job.items()}})
    assert endpoint is not None
    return endpoint.port


def test_ports_worked_by_hand() -> None:
    assert port(JOB=2, STEP=0) == 12_062
    assert port(JOB=1000, STEP=7) == 12_000 + (31_007 - 20_000)
    assert port(JOB=5) == 12_005
    assert port() == port(JOB="4_3") == port(JOB="") == port(JOB="-1") == port(JOB="9" * 5000)
    assert port() == 29_500


@given(NUMBERS, NUMBERS, st.integers(1, 600))
def test_a_later_job_or_step_has_another_port_of_the_range(job: int, step: int, later: int) -> None:
    ports = [port(JOB=job, STEP=step), port(JOB=job + later, STEP=step)]
    ports += [port(JOB=job, STEP=step + later), port(JOB=job)]
    assert ports[0] not in ports[1:3]
    assert {*ports} <= {*range(12_000, 32_000)}


@pytest.mark.parametrize("nodes", [[0, 0, 1, 1], [0, 1, 0, 1]])
def test_all_ranks_of_a_step_derive_the_same_address(nodes: list[int]) -> None:
    addresses = set()
    for rank, node in enumerate(nodes):
        local_rank = str(nodes[:rank].count(node))
        own = {"SLURM_PROCID": str(rank), "SLURM_NODEID": str(node), "SLURM_LOCALID": local_rank}
        world = meshkit.detect({**SRUN, **own, "SLURMD_NODENAME": f"n{node + 1}"})
        assert world.rank == rank
        addresses.add((world.master_addr, world.master_port))
    assert addresses == {("n1", 12_062)}


def test_the_list_of_the_step_comes_before_that_of_the_job() -> None:
    """A step may run on the second node of the job alone."""
    environ = {**SRUN, "SLURM_STEP_NODELIST": "n[02-03]"}
    expected = ["n02", "n1", "n1", None]
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST", ""):
        world = meshkit.detect(environ)
        assert world.master_addr == expected.pop(0)
        assert world.sources.get("master_addr", "") == name
        environ = without(environ, name)
    arbitrary = meshkit.detect({**SRUN, "SLURM_DISTRIBUTION": "arbitrary"})
    assert arbitrary.master_addr is None  # a host file may put rank 0 on any host


@pytest.mark.parametrize(
    ("lines", "host"),
    [
        ("batch w1 w1 w2 w2", "w1"),  # Summit: the batch host once, a worker once a slot
        ("batch 10.10.10.0 10.10.10.1", "10.10.10.0"),  # one slot each
        ("w1 w1 w2 w2", "w1"),  # no separate launch node
        ("w1 w2 w1 w2", "w1"),  # in cyclic order
        ("w1", "w1"),  # one slot in total
        ("", None),
    ],
)
def test_a_rank_file(lines: str, host: str | None, tmp_path: Path) -> None:
    file = tmp_path / "ranks"
    file.write_text(lines.replace(" ", "\n") + "\n\n")
    world = meshkit.detect({**LSF, "LSB_DJOB_RANKFILE": str(file)})
    assert (world.master_addr, world.master_port) == (host, host and 13_234)
    assert world.sources.get("master_addr") == (host and "LSB_DJOB_RANKFILE")
    assert world.sources.get("master_port") == (host and "LSB_JOBID")


@pytest.mark.parametrize("path", ["missing", ".", "bytes", "", "a\0b"])
def test_an_unreadable_rank_file_gives_no_endpoint(path: str, tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00n1\n")
    environ = {**LSF, "LSB_DJOB_RANKFILE": str(tmp_path / path) if path else ""}
    world = meshkit.detect(environ)
    assert (world.master_addr, world.master_port, world.launcher) == (None, None, "lsf")


@pytest.mark.parametrize(
    ("value", "host"),
    [
        ("10.0.0.6:6000", "10.0.0.6"),
        (" head:1 ", "head"),
        ("head:port", "head:port"),
        ("[fd00::6]:6000", "fd00::6"),
        ("fd00::6", "fd00::6"),
        *(("", None), (" ", None), (":6000", None)),
    ],
)
def test_a_head_node(value: str, host: str | None) -> None:
    environ: Env = {"NODE": value}
    expected = Endpoint(host, 6105, "NODE", "default of azureml") if host else None
    assert HeadNode("NODE", 6105).find("azureml", environ) == expected
    assert HeadNode("OTHER", 6105).find("azureml", environ) is None
