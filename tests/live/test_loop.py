"""The loop over micro batches: gradients of one process, synchronised once, on every wrapper."""

from __future__ import annotations

from typing import Any

import pytest

import meshkit
from meshkit.live import create

from . import loop_jobs as jobs


@pytest.fixture(scope="module")
def eight() -> list[Any]:
    """What eight ranks say."""
    return meshkit.spawn(jobs.of_eight, 8, timeout=120)


@pytest.mark.skipif(not create.KEEPS_ORDER, reason="FSDP2 on the cpu: torch 2.13 and newer")
@pytest.mark.parametrize(("ranks", "samples"), [(2, 8), (7, 64), (4, 6)])
def test_gradients_are_those_of_one_process_and_are_synchronised_once(
    ranks: int, samples: int
) -> None:
    """Even; 32 micro batches over 7; and 3 micro batches over 4, one of which only fills."""
    steps = -(-samples // 2 // ranks)
    compiled = ranks == 2  # which takes seconds a rank
    found = meshkit.spawn(jobs.steps_of_every_wrapper, ranks, (samples, compiled), timeout=120)
    assert sum(row["none"][2] for row in found) == samples // 2
    for row in found:
        for name, (gap, sent, _) in row.items():
            assert gap < 1e-14, name
            assert len(sent) == steps
            assert sent[:-1] == [0] * (steps - 1), name
        assert row["ddp"][1][-1] == 1  # one bucket
        assert row["fsdp2"][1][-1] == 2  # a reduce-scatter a layer; the root has nothing of its own
        assert row["none"][1][-1] == 0
        assert not compiled or row["compiled"][1][-1] == 1


@pytest.mark.parametrize("samples", [8, 6])
def test_by_tokens_the_gradient_is_that_of_the_mean_over_all_tokens(
    samples: int, eight: list[Any]
) -> None:
    found = [one[samples] for one in eight]
    total = int(jobs.lengths(samples).sum())
    assert sum(sum(weights) for _, weights, _ in found) == pytest.approx(4 * 2)
    for rank, (gap, weights, refused) in enumerate(found):
        assert gap < 1e-14
        assert all(
            weight * total / 4 == pytest.approx(round(weight * total / 4)) for weight in weights
        )
        bad = (
            "mesh.token_weights(counts): counts are whole numbers of 0 or more, "
            "one a micro batch.\n"
            "  Fix: [int(mask.sum()) for mask in masks]."
        )
        other = "mesh.token_weights(counts): 1 rank refused its own counts.\n  Fix: see their logs."
        mine = bad if rank in (2, 3) else other  # each of them in a group of its own
        none = "mesh.token_weights(counts): no rank has a token.\n"
        assert refused == [bad, bad, mine, mine, none + "  Fix: leave this step out on all ranks."]


def test_a_plan_of_a_mesh_knows_whose_share_it_is(eight: list[Any]) -> None:
    found = [one["plans"] for one in eight]
    for rank, (same, shares, shard, own, grown, resized, told) in enumerate(found):
        dp, sp = rank // 4, rank // 2 % 2
        assert same
        assert shares == (dp, sp * 2 + dp, 0, rank if rank < 4 else None)
        assert shard == rank // 2
        steps = [[16 + 4 * a + 2 * d + i for i in range(2)] for d in (dp, 1) for a in range(4)]
        assert own == (steps[:4], steps[4:])
        assert grown == steps[:4]
        assert resized == "BatchPlan"
        assert told[0] == (
            "mesh.batch(global_batch=8, micro_batch=1, data=3): data is 3.\n"
            "  Fix: data=('dp',), or other axes of dp sp tp."
        )
        assert [text.splitlines()[0].partition(": ")[0] for text in told[1:4]] == [
            "mesh.batch(global_batch=8, micro_batch=1, data='tq')",
            "mesh.batch(global_batch=8, micro_batch=1, data='dp dp') names the axis dp twice.",
            "mesh.batch(global_batch=15, micro_batch=1)",
        ]
        assert told[4:] == [
            "plan.samples(...): this rank is outside the mesh.\n  Fix: ask only where mesh.inside."
        ] * (rank >= 4)
