"""Redistribute: equal results on real ranks, the moves that are counted, and the rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import meshkit
from benchmarks.moves import plans, times
from benchmarks.moves.by_hand import BY_HAND


def check_on_ranks(items: int) -> list[str]:
    """Check all moves, then one whose peer is wrong; return the names and the error."""
    meshes: dict[str, meshkit.Mesh] = {}
    pairs = [times.pair_by_hand(meshes, text, items) for text in BY_HAND]
    # the backward of a function by hand is beside ours too
    pairs += [replace(pair, gradient=torch.randn_like(pair.run(0)[0])) for pair in pairs[:3]]
    pairs += [times.pair_by_dtensor(meshes, name, items) for name in times.USES]
    for pair in pairs:
        times.check(pair)
    wrong = replace(pairs[0], calls=(pairs[0].calls[0], lambda x: pairs[0].calls[1](x) + 1))
    with pytest.raises(RuntimeError, match="give different results") as error:
        times.check(wrong)
    for mesh in meshes.values():
        mesh.close()
    return [*(pair.name for pair in pairs), str(error.value)]


@pytest.mark.slow
def test_both_sides_of_every_move_give_equal_results_and_gradients_on_eight_ranks() -> None:
    results = meshkit.spawn(check_on_ranks, times.RANKS, (2048,), timeout=300)
    assert all(names == results[0] for names in results)
    assert len(results[0]) == 4 + 3 + 17 + 1


def test_rows_have_the_geometric_mean_of_the_moves() -> None:
    pair = times.Pair("move", (torch.clone, torch.clone), torch.zeros(1), None)
    seconds = torch.tensor([[[2.0], [1.0]], [[8.0], [1.0]]], dtype=torch.float64)
    rows = times.make_rows([pair, pair], "peer", seconds, times.NEAR)
    assert [row.what for row in rows] == ["16 MiB, move"] * 2 + ["16 MiB, 2 moves, geometric mean"]
    assert rows[2].ours == pytest.approx(4)
    assert [row.met for row in rows] == [None, None, False]


@pytest.fixture
def fake_ranks() -> object:
    dist.init_process_group("fake", rank=1, world_size=8)
    yield
    dist.destroy_process_group()


def test_elements_of_the_steps_of_dtensor(fake_ranks: object) -> None:
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("a", "b", "c"))
    n = plans.SIDE**2
    counted = {
        (("o", "", ""), ("i", "", "")): (n // 4, n // 4, n // 4),
        # the inner axis is gathered first, then the outer one, and the inner one is cut again
        (("o", "o", ""), ("", "o", "")): (n // 2, n // 2, n // 4 + n // 2),
        (("", "", ""), ("o", "", "")): (0, 0, 0),
        (("o", "", ""), ("", "", "")): (n // 2, n // 2, n // 2),
    }
    for pair, elements in counted.items():
        assert plans.count_elements(*pair, mesh) == elements
