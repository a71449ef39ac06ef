"""The whole checkup, and the checks of Python, shared memory and launcher. No rank is started."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from meshkit import LaunchError, detect
from meshkit.cli import doctor as checkup
from meshkit.cli.doctor import Finding, check_launcher
from meshkit.launch.detect import FIELDS
from tests.launch import recorded
from tests.launch.doctor.findings import TWO_NODES, by_name, fake_resolver


def test_the_findings_of_this_process_and_their_order() -> None:
    findings = by_name(checkup.checkup({}))
    assert list(findings)[:4] == ["python", "torch", "devices", "backends"]
    assert list(findings)[4:12] == ["launcher", *FIELDS, "host name"]
    assert list(findings)[-3:] == ["gloo interface", "nccl interface", "shared memory"]
    assert findings["python"].found == ".".join(map(str, sys.version_info[:3]))
    assert findings["torch"].found.startswith(f"{torch.__version__}, built for ")
    assert "gloo" in findings["backends"].found
    assert findings["launcher"] == Finding("launcher", True, "single")


def test_every_failed_check_has_advice_and_no_other_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_resolver(monkeypatch)
    env = {"RANK": "9", "WORLD_SIZE": "8", "NCCL_SOCKET_IFNAME": "=no0"}
    findings = checkup.checkup(env)
    assert {f.name for f in findings if not f.ok} >= {*("launcher", "host name", "nccl interface")}
    for finding in findings:
        assert finding.ok == (not finding.advice)


@pytest.mark.parametrize(("version", "ok"), [((3, 10, 0), True), ((3, 9, 19), False)])
def test_the_oldest_python(version: tuple[int, ...], ok: bool) -> None:
    finding = checkup.check_python(version)
    assert finding.ok is ok
    assert finding.advice == ("" if ok else "use Python 3.10 or newer.")


@pytest.mark.parametrize(("blocks", "ok", "size"), [(2**18, True, "1.00"), (2**14, False, "0.06")])
def test_the_size_of_shared_memory(
    monkeypatch: pytest.MonkeyPatch, blocks: int, ok: bool, size: str
) -> None:
    stats = types.SimpleNamespace(f_blocks=blocks, f_frsize=4096)
    monkeypatch.setattr(checkup.os, "statvfs", lambda _: stats)
    finding = checkup.check_shared_memory()
    advice = "" if ok else "docker run --ipc=host, or --shm-size=8g."
    assert finding == Finding("shared memory", ok, f"{size} GiB in /dev/shm", advice)


def test_missing_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup.sys, "platform", "linux")
    finding = checkup.check_shared_memory("/no/such")
    assert finding == Finding(
        "shared memory", False, "no /no/such", "mount -t tmpfs tmpfs /no/such"
    )
    monkeypatch.setattr(checkup.sys, "platform", "darwin")
    assert checkup.check_shared_memory("/no/such") == Finding("shared memory", True, "no /no/such")


def test_each_field_has_its_source() -> None:
    world, findings = check_launcher({**TWO_NODES, "TORCHELASTIC_RUN_ID": "x"})
    assert world is not None
    assert {f.name: f.found for f in findings} == {
        "launcher": "torchrun",
        "rank": "1 (RANK)",
        "world_size": "4 (WORLD_SIZE)",
        "local_rank": "1 (LOCAL_RANK)",
        "local_world_size": "2 (LOCAL_WORLD_SIZE)",
        "node_rank": "0 (rank // local_world_size)",
        "num_nodes": "2 (world_size // local_world_size)",
        "master_addr": "localhost (MASTER_ADDR)",
        "master_port": "29500 (MASTER_PORT)",
    }
    assert all(f.ok for f in findings)


def test_a_field_that_the_launcher_does_not_set_is_unknown() -> None:
    env = {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    findings = by_name(check_launcher(env)[1])
    assert findings["num_nodes"] == Finding("num_nodes", True, "unknown")
    assert "master_addr" not in findings


def test_contradicting_variables_give_the_text_of_detect() -> None:
    env = {"RANK": "9", "WORLD_SIZE": "8"}
    world, findings = check_launcher(env)
    with pytest.raises(LaunchError) as caught:
        detect(env)
    assert world is None
    assert findings == [
        Finding(
            "launcher",
            False,
            "RANK=9 must be below WORLD_SIZE=8.\nBoth were read for the launcher hand-written.",
            "export RANK and WORLD_SIZE so that they agree.",
        )
    ]
    error = caught.value
    assert findings[0].found.split("\n") == [error.summary, *error.evidence]
    assert findings[0].advice == error.fix_text


def test_a_single_process_in_an_allocation_fails() -> None:
    _, findings = check_launcher({"SLURM_NTASKS": "4"})
    assert findings[0] == Finding(
        "launcher",
        False,
        "single: a single process in an allocation of several tasks (SLURM_NTASKS = 4)",
        "srun python -m meshkit doctor; ignore this if one process is intended.",
    )


def test_ranks_without_an_address_of_rank_0_fail() -> None:
    _, findings = check_launcher({"RANK": "0", "WORLD_SIZE": "8", "MASTER_ADDR": "a"})
    assert findings[-1] == Finding(
        "rendezvous",
        False,
        "the address of rank 0 is unknown: MASTER_ADDR=a, MASTER_PORT=None",
        "export MASTER_ADDR=<host of rank 0> MASTER_PORT=29500",
    )


@pytest.mark.parametrize("there", [True, False])
def test_ranks_of_mpi_need_mpi4py(monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", types.ModuleType("mpi4py") if there else None)
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    values = zip(names, "1412", strict=True)  # four ranks, two of them on this node
    _, findings = check_launcher({f"OMPI_COMM_WORLD_{name}": v for name, v in values})
    text = "the address of rank 0 is unknown: MASTER_ADDR=None, MASTER_PORT=None, "
    text += "and mpi4py is not installed"
    advice = "pip install mpi4py, or export MASTER_ADDR=<host of rank 0> MASTER_PORT=29500"
    missing = Finding("rendezvous", False, text, advice)
    assert findings[-1] == (
        Finding("rendezvous", True, "rank 0 sends its address through mpi4py") if there else missing
    )


def test_an_init_method_needs_no_address() -> None:
    env = {"MESHKIT_SPAWN": "file:///x", **dict.fromkeys(("RANK", "LOCAL_RANK"), "0")}
    env |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "2")
    _, findings = check_launcher(env)
    assert findings[-1] == Finding("init_method", True, "file:///x (MESHKIT_SPAWN)")


def test_ranks_of_mpi_on_one_node_need_nothing() -> None:
    _, findings = check_launcher(recorded.OPEN_MPI_4)
    text = "one node: a file that is named after the launcher"
    assert findings[-1] == Finding("rendezvous", True, text)
