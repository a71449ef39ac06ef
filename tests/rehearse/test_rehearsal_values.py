"""Rehearsed programs whose ranks read what others have passed: sizes, flags and objects."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from meshkit.testing import rehearse


def gather_objects(rank: int, size: int) -> None:
    """Gather and scatter objects of unequal sizes."""
    everything: list[object] = [None] * size
    dist.all_gather_object(everything, "x" * (rank % 5))
    if size == 8:
        assert everything == ["x" * (other % 5) for other in range(8)]
    parts: list[object] | None = [None] * size if rank == 0 else None
    dist.gather_object("y" * (rank % 3), parts, dst=0)
    assert parts is None or parts[1] == "y"
    dist.barrier()


def stop_by_last(rank: int, size: int) -> None:
    """Stop all ranks once the last one asks for it."""
    for step in range(6):
        flag = torch.tensor([int(rank == size - 1 and step == 2)], dtype=torch.int32)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        if flag.item():
            break
        dist.all_reduce(torch.ones(4))
    assert step == 2


def stop_by_first(rank: int, _: int) -> None:
    """Stop all ranks by a float of rank 0."""
    for step in range(6):
        flag = torch.tensor([float(rank == 0 and step == 3)])
        dist.broadcast(flag, src=0)
        if flag > 0:
            break
        dist.all_reduce(torch.ones(4))
    assert step == 3


def stop_by_root(rank: int, size: int) -> None:
    """Stop all ranks by an int of the last rank, which is played after others."""
    for step in range(6):
        flag = torch.tensor(int(rank == size - 1 and step == 3))
        dist.broadcast(flag, src=size - 1)
        if flag:
            break
        dist.all_reduce(torch.ones(4))
    assert step == 3


def pad_to_longest(rank: int, size: int) -> None:
    """Gather parts of different sizes, padded to the longest one."""
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    dist.all_gather(sizes, torch.tensor([10 + rank % 7]))
    longest = max(int(size) for size in sizes)
    dist.all_gather([torch.zeros(longest) for _ in range(size)], torch.zeros(longest))
    total = torch.tensor(rank)
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    dist.all_reduce(torch.zeros(int(total) % 100))


def join(rank: int, _: int) -> None:
    """Train with more batches on rank 0."""
    model = DistributedDataParallel(nn.Linear(8, 8))
    with model.join():
        for _ in range(3 + (rank == 0)):
            model(torch.randn(2, 8)).sum().backward()


def group_by_host(rank: int, size: int) -> None:
    """Create a group for each node by the names of hosts."""
    hosts: list[str] = [""] * size
    dist.all_gather_object(hosts, socket.gethostname())
    socket.gethostbyname(socket.gethostname())
    for host in dict.fromkeys(hosts):
        members = [other for other in range(size) if hosts[other] == host]
        group = dist.new_group(members)
        if rank in members:
            dist.all_reduce(torch.ones(2), group=group)


def receive_value(rank: int, _: int) -> None:
    """Follow the values of a scatter of floats, which are made up."""
    part = torch.zeros(100)
    dist.scatter(part, [torch.full((100,), 1.0 + n) for n in range(8)] if rank == 0 else None)
    if part[0].item() > 0:
        dist.barrier()


def skip(rank: int, _: int) -> None:
    """Read a value of an all_reduce, which all ranks share, and skip a barrier on one rank."""
    loss = torch.ones(1)
    dist.all_reduce(loss)
    if loss.item() > 0 and rank != 7:
        dist.barrier()


Program = Callable[[int, int], None]


def run(program: Program) -> None:
    """Run a program of plain torch."""
    dist.init_process_group("gloo")
    program(dist.get_rank(), dist.get_world_size())


CORRECT = gather_objects, pad_to_longest, stop_by_last, stop_by_first, stop_by_root, join


@pytest.mark.parametrize(
    ("program", "size", "ranks"),
    [
        (pad_to_longest, 32, "corners"),  # whose ranks do most different things
        *((each, 32, [0, 1, 31]) for each in CORRECT if each is not pad_to_longest),
        *((each, 8, "all") for each in CORRECT[:3]),
        *(pytest.param(each, 256, "corners", marks=pytest.mark.nightly) for each in CORRECT),
    ],
)
def test_a_correct_program_that_reads_values_matches(
    program: Program, size: int, ranks: str | list[int]
) -> None:
    report = rehearse(run, size, (program,), ranks=ranks)
    report.raise_if_mismatched()


def test_host_names_differ_between_nodes() -> None:
    report = rehearse(run, 8, (group_by_host,), ranks="all", nodes=4)
    report.raise_if_mismatched()
    groups = {group.members for group in report.traces[5].groups}
    assert groups == {tuple(range(8)), (4, 5)}


def check_host(name: str) -> None:
    assert socket.gethostname() == name


def test_ranks_of_one_node_have_the_name_of_this_host() -> None:
    report = rehearse(check_host, 2, (socket.gethostname(),), ranks="all")
    assert report.raised == {}


def test_values_of_ranks_that_were_not_played_are_not_proved() -> None:
    report = rehearse(run, 64, (group_by_host,), nodes=8)
    assert "ranks that were not played pass the values of played ones, read at" in str(report)
    assert "test_rehearsal_values.py:" in report.not_proved


def test_a_mismatch_after_a_made_up_value_says_so() -> None:
    report = rehearse(run, 8, (receive_value,), ranks="all")
    (mismatch,) = report.mismatches
    assert mismatch.read.startswith("test_rehearsal_values.py:")
    assert f"It follows a value that was made up, read at {mismatch.read}." in mismatch.text


def test_a_mismatch_after_a_known_value_is_a_proof() -> None:
    report = rehearse(run, 8, (skip,), ranks="all")
    (mismatch,) = report.mismatches
    assert mismatch.ranks == (7,)
    assert mismatch.read == ""
