"""Rehearsed programs that create groups on some ranks only, or pass tensors no backend takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.testing import rehearse


def create_own(rank: int) -> None:
    """Create only the group of this pair of ranks: gloo hangs."""
    first = rank // 2 * 2
    group = dist.new_group([first, first + 1])
    dist.all_reduce(torch.ones(1), group=group)


def create_as_member(rank: int) -> None:
    """Create a group on its members only: gloo ends, and a backend that splits the world waits."""
    if rank in (0, 1):
        dist.all_reduce(torch.ones(1), group=dist.new_group([0, 1]))


def create_all(rank: int) -> None:
    """Create each pair on all ranks, and then a group of this rank alone."""
    groups = [dist.new_group([first, first + 1]) for first in range(0, dist.get_world_size(), 2)]
    dist.all_reduce(torch.ones(1), group=groups[rank // 2])
    dist.new_group([rank], use_local_synchronization=True)
    dist.new_group([rank])  # groups of one rank connect nowhere
    dist.all_reduce(torch.ones(1))


def raise_later(rank: int) -> None:
    """Send 12 numbers to a rank that awaits 8 and raises later."""
    if rank == 0:
        dist.send(torch.ones(12), 1)
    if rank == 1:
        dist.recv(torch.zeros(8), 0)
        raise ValueError("later")
    dist.all_reduce(torch.ones(1))


def scatter_other_dtype(rank: int) -> None:
    """Pass an input of another dtype than the output."""
    dtype = torch.bfloat16 if rank == 3 else torch.float32
    dist.reduce_scatter_tensor(torch.empty(1), torch.ones(4, dtype=dtype))


def gather_other_dtype(rank: int) -> None:
    """Pass an input of another dtype than the output."""
    dtype = torch.bfloat16 if rank == 3 else torch.float32
    dist.all_gather_into_tensor(torch.empty(4), torch.ones(1, dtype=dtype))


def pass_global_rank(rank: int) -> None:
    """Pass a root that is no member of the group of rank 2 and 3."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    dist.broadcast(torch.ones(1), src=0, group=groups[rank // 2])


def run(program: Callable[[int], None]) -> None:
    """Run a program of plain torch."""
    dist.init_process_group("gloo")
    program(dist.get_rank())
    dist.destroy_process_group()


def test_groups_of_one_number_are_a_mismatch() -> None:
    report = rehearse(run, 4, (create_own,), ranks="all")
    (mismatch,) = report.mismatches
    assert mismatch.ranks == (0, 2)
    assert mismatch.operation.line.startswith("test_rehearsal_groups.py:")
    assert "[0, 1] on rank 0" in mismatch.text
    assert "[2, 3] on rank 2" in mismatch.text


def test_a_group_that_its_members_alone_create_is_a_warning() -> None:
    report = rehearse(run, 4, (create_as_member,), ranks="all")
    report.raise_if_mismatched()
    (warning,) = (line for line in report.warnings if "new_group" in line)
    assert "NCCL with device_id" in warning
    assert "test_rehearsal_groups.py:" in warning


def test_groups_that_all_ranks_create_match() -> None:
    report = rehearse(run, 4, (create_all,), ranks="all")
    report.raise_if_mismatched()
    assert report.warnings == ()


def test_a_message_before_an_error_is_compared() -> None:
    report = rehearse(run, 4, (raise_later,), ranks="all")
    assert [*report.raised] == [1]
    (mismatch,) = report.mismatches
    assert mismatch.ranks == (1, 0)
    assert "[12]" in mismatch.text
    assert "[8]" in mismatch.text


@pytest.mark.parametrize("program", [scatter_other_dtype, gather_other_dtype])
def test_an_output_of_another_dtype_raises_at_its_line(program: Callable[[int], None]) -> None:
    report = rehearse(run, 4, (program,), ranks="all")
    assert [*report.raised] == [3]
    assert report.lines[3].startswith("test_rehearsal_groups.py:")
    assert "bf16" in str(report.raised[3])


def test_one_cause_on_many_ranks_is_one_line() -> None:
    report = rehearse(run, 4, (pass_global_rank,), ranks="all")
    assert [*report.raised] == [2, 3]
    assert "rank 2 (stride2=1 stride1=0) and 1 more raised at" in str(report)
    assert " at 0x" not in str(report)


def test_the_report_says_how_many_ranks_were_not_played() -> None:
    report = rehearse(run, 64, (create_all,))
    assert f"{64 - len(report.ranks)} of 64 ranks were not played." in str(report)
    assert report.as_dict()["not_proved"] == report.not_proved


def build_on_gloo() -> None:
    """Build a mesh whose groups connect while they are created."""
    meshkit.build_mesh(dp=2, tp=2, backend="gloo")


def test_groups_that_connect_at_once_are_played() -> None:
    report = rehearse(build_on_gloo, 4)
    report.raise_if_mismatched()
    assert not report.raised
