"""The result of each collective, computed by other means, and unsupported operations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import meshkit
from meshkit.bench import collectives
from meshkit.bench.collectives import COLLECTIVES, checked_call, run_calls, unsupported_reason
from meshkit.bench.results.collectives import OPERATIONS


@pytest.mark.parametrize("members", [[0], [1, 3], [0, 2, 4, 6], [5, 40, 7]])
def test_expected_results_element_by_element(members: list[int]) -> None:
    ranks, part = len(members), 7
    items = ranks * part
    # whole[m, p, i]: item i of the part p of member m
    whole = np.array([[251 * (m % 31) + k % 251 for k in range(items)] for m in members])
    whole = whole.reshape(ranks, ranks, part)
    pieces = np.array([[251 * (m % 31) + k for k in range(part)] for m in members])
    for place in range(ranks):
        wanted = {
            "all_reduce": whole.sum(0).reshape(-1),
            "all_gather": pieces.reshape(-1),
            "reduce_scatter": whole[:, place].sum(0),
            "all_to_all": whole[:, place].reshape(-1),
            "broadcast": whole[0].reshape(-1),
            "send_recv": whole[(place - 1) % ranks].reshape(-1),
        }
        for op, numbers in wanted.items():
            found = COLLECTIVES[op].expected(members, place, items)
            assert found.tolist() == numbers.tolist()
            assert wanted.keys() == COLLECTIVES.keys()
            assert len(found) == OPERATIONS[op].output_items(items, ranks)


def test_content_differs_between_ranks_and_positions() -> None:
    held = torch.stack([collectives.input_pattern(rank, 8, 251) for rank in range(31)])
    assert len(held.unique()) == 31 * 251


def test_a_sum_of_16384_in_float32_is_what_is_expected() -> None:
    members = range(5, 16_384 + 5)
    whole = torch.zeros(40)
    for rank in members:  # one after another: the order in which errors grow the most
        whole += collectives.input_pattern(rank, len(members), 40)
    assert whole.tolist() == collectives.expected_all_reduce(members, 0, 40).tolist()
    five, six = (collectives.input_pattern(rank, len(members), 40) for rank in (5, 6))
    assert not (five == six).any()


CPU = torch.device("cpu")


def every_call() -> tuple[dict[tuple[str, str], int | None], dict[str, int], int]:
    """Wrong elements of each call; of each that does nothing; and how many works two calls make."""
    with meshkit.build_mesh(dp=3, sp=2) as mesh:
        right: dict[tuple[str, str], int | None] = {}
        silent = {}
        for op in COLLECTIVES:
            for axis in ("dp", "sp"):
                group = mesh.peers(axis).tolist(), 24, mesh.group(axis), CPU
                call = checked_call(op, *group)
                if axis == "dp" and not OPERATIONS[op].in_place:
                    silent[op] = call.num_wrong(mesh.rank)
                run_calls([call])
                right[op, axis] = call.num_wrong(mesh.rank) or None
        both = [("send_recv", "dp"), ("all_reduce", "sp")]
        made = [checked_call(op, mesh.peers(a).tolist(), 24, mesh.group(a), CPU) for op, a in both]
        works = [work for call in made for work in call.begin()]
        for work in works:
            if work is not None:
                work.wait()
        mesh.barrier()
        return right, silent, len(works)


def test_every_call_is_right_on_real_groups_and_one_never_made_is_wrong() -> None:
    by_rank = meshkit.spawn(every_call, 6, timeout=60)
    for right, silent, begun in by_rank:
        assert right == dict.fromkeys((op, axes) for op in OPERATIONS for axes in ("dp", "sp"))
        assert silent == {"all_gather": 24, "reduce_scatter": 8, "all_to_all": 24, "send_recv": 24}
        assert begun == 3  # two sends and receives in a ring, and one all_reduce, at once


@pytest.mark.parametrize("kind", [RuntimeError, NotImplementedError])
def test_what_a_backend_lacks_is_its_first_line(kind: type[RuntimeError]) -> None:
    assert (
        unsupported_reason(kind("Backend x does not support this\nmore"))
        == "Backend x does not support this"
    )
