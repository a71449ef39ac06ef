"""Ranks of large jobs, played one by one on groups that record."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import meshkit
from meshkit.errors import CollectiveError, SpecError
from meshkit.testing import rehearse

OPERATIONS = 4  # of the program


def program(
    sizes: dict[str, int], fault: str = "", odd: Sequence[int] = (), verifies: bool = True
) -> None:
    """Run a few collectives over every axis, with a fault on some ranks."""
    device = meshkit.init(seed=0, backend="nccl", device="cpu").device
    with meshkit.build_mesh(sizes) as mesh, mesh.guard(timeout=30):
        is_odd = mesh.rank in odd
        for number in range(OPERATIONS):
            for axis in sizes:
                size = 8 if is_odd and fault == "size" else 4
                if is_odd and fault == "skip" and number == 2:
                    continue
                dist.all_reduce(torch.ones(size, device=device), group=mesh.group(axis))
        if is_odd and fault == "raise":
            raise ValueError("an uneven vocabulary")
        mesh.barrier()
        mesh.check_parameters(nn.Linear(2, 2))
        mesh.agree("step", 7)
        if verifies:
            mesh.verify()


@pytest.mark.slow  # the faults below are those of a smaller job
def test_a_job_of_8192_ranks_matches() -> None:
    args = {"dp": 1024, "tp": 8}, "", (), False
    report = rehearse(program, 8192, args, nodes=1024)
    report.raise_if_mismatched()
    assert (report.mismatches, report.warnings, report.raised) == ((), (), {})
    assert {0, 8191} <= {*report.ranks}
    assert len(report.ranks) == 9 + 16
    assert report.bytes_by_axis["tp"] == OPERATIONS * 4 * 4
    names = [op.name for op in report.collectives(8191)]
    assert names.count("all_reduce") == OPERATIONS * 2
    assert not report.traffic["tp"].crosses_nodes
    assert report.traffic["dp"].crosses_nodes


@pytest.mark.parametrize("fault", ["skip", "size", "raise"])
def test_a_fault_on_the_last_rank_is_named(fault: str) -> None:
    sizes, ranks = {"pp": 4, "dp": 8, "sp": 4, "tp": 4}, [0, 383, 495, 507, 510, 511]
    report = rehearse(program, 512, (sizes, fault, [511]), nodes=64, ranks=ranks)
    facts = json.loads(json.dumps(report.as_dict()))
    assert not report.ok
    assert not facts["ok"]
    if fault == "raise":
        assert str(report.raised[511]) == "an uneven vocabulary"
        assert "rank 511 (pp=3 dp=7 sp=3 tp=3) raised at test_rehearsal.py:" in str(report)
        return
    assert facts["mismatches"][0]["members"]
    assert all(511 in mismatch.ranks for mismatch in report.mismatches)
    text = next(m.text for m in report.mismatches if m.group.axes == ("tp",))
    assert "rank 511 (pp=3 dp=7 sp=3 tp=3)" in text
    assert "test_rehearsal.py:" in text
    with pytest.raises(CollectiveError, match="4 mismatches in a job of 512 ranks"):
        report.raise_if_mismatched()


def plain_torch(folder: str) -> None:
    """Train with DDP and FSDP2 on a DeviceMesh of torch, after torch's own init."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "shard"))
    model = DistributedDataParallel(nn.Linear(4, 4), process_group=mesh.get_group("dp"))
    model(torch.randn(2, 4)).sum().backward()
    sharded = fully_shard(nn.Linear(4, 4), mesh=mesh)
    optimizer = torch.optim.AdamW(sharded.parameters(), foreach=False)
    sharded(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    objects: list[object] = [{"rank": dist.get_rank()}]
    dist.broadcast_object_list(objects, src=0)
    assert objects == [{"rank": 0}]
    work = dist.all_reduce(total := torch.ones(2), async_op=True)
    assert work is not None
    work.wait()
    assert total.tolist() == [8, 8]
    for name in ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MY_OWN"):
        assert name in os.environ
    Path(folder, str(dist.get_rank())).write_text(f"{Path.cwd()} {os.environ['LOCAL_RANK']}")
    dist.destroy_process_group()


def test_a_program_of_plain_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_OWN", "1")
    monkeypatch.chdir(tmp_path)
    report = rehearse(plain_torch, 8, (str(tmp_path),), nodes=2, ranks="all")
    report.raise_if_mismatched()
    assert report.names.layouts[0].sizes == {"dp": 4, "shard": 2}
    assert (tmp_path / "7").read_text() == f"{tmp_path} 3"
    assert report.traces[0].memory["parameters"] == 40


def meta(odd: int) -> None:
    """Compute on tensors without values."""
    with meshkit.build_mesh(dp=-1, tp=8) as mesh:
        model = nn.Linear(100_000, 100_000).to(mesh.device)
        y = model(torch.ones(1, 100_000))
        mesh.redistribute(y, "... +tp -> ... =tp")
        assert y.is_meta
        if mesh.rank == odd:
            y.sum().item()


def test_meta_tensors_of_any_size() -> None:
    report = rehearse(meta, 64, (63,), ranks=[0, 63], device="meta")
    assert [*report.raised] == [63]
    assert "test_rehearsal.py" in report.lines[63]
    assert report.bytes_by_axis["tp"] == 400_000


ROWS, COLUMNS = 10_000, 100  # of the inputs: activations need far more than weights


def weigh(sharded: bool) -> None:
    """Run two layers forward and backward, without an optimizer."""
    with meshkit.build_mesh(dp=4) as mesh:
        layers = [nn.Linear(COLUMNS, COLUMNS, bias=False) for _ in range(2)]
        model = nn.Sequential(*layers)
        for layer in layers if sharded else ():
            fully_shard(layer, mesh=mesh.device_mesh("dp"))
        for _ in range(2):
            model(torch.ones(ROWS, COLUMNS)).sum().backward()


@pytest.mark.parametrize("sharded", [False, True])
def test_meta_tensors_have_a_peak_of_memory(sharded: bool) -> None:
    report = rehearse(weigh, 4, (sharded,), ranks=[3], device="meta")
    report.raise_if_mismatched()
    # forward holds the input and two outputs, backward the input, an output and its gradient
    activations, weights = 3 * ROWS * COLUMNS * 4, 2 * COLUMNS**2 * 4
    assert activations < report.traces[3].memory["peak"] < activations + 4 * weights
    assert "12." in str(report).partition("memory")[2]
    assert "at the peak on rank 3" in str(report)


def hangs(folder: str) -> None:
    """Wait for something that never comes."""
    meshkit.init()
    Path(folder, str(os.getpid())).touch()
    threading.Event().wait()


def test_a_rank_that_hangs_is_named_and_no_rank_is_left(tmp_path: Path) -> None:
    report = rehearse(hangs, 4, (str(tmp_path),), ranks=[0, 1], timeout=6)
    assert sorted(report.raised) == [0, 1]
    assert "was killed" in str(report.raised[0])
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert pids
    end = time.monotonic() + 5  # a busy machine takes a moment to end a killed process
    while any(map(is_running, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(is_running, pids))


def is_running(pid: int) -> bool:
    """Return whether a process has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # it has been reaped
        return False


@pytest.mark.parametrize(
    "options",
    [
        {"world_size": 0},
        {"nodes": 3},
        {"ranks": "some"},
        {"ranks": [8]},
        {"ranks": "all", "world_size": 512},
        {"device": "cuda"},
        {"links": "x"},
        {"timeout": -1},
    ],
    ids=str,
)
def test_invalid_arguments(options: dict[str, object]) -> None:
    with pytest.raises(SpecError, match="rehearse"):
        rehearse(hangs, **{"world_size": 8, "args": ("",), **options})  # type: ignore[arg-type]
