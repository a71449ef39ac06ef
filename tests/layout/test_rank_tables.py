"""Rank tables of Megatron, DeepSpeed and OpenRLHF, against the groups of a Layout.

The tables are literal numbers, so that they share no formula with meshkit.
"""

from __future__ import annotations

import pytest

from meshkit import Layout, factor_world

Table = list[list[int]]


def megatron(order: str, **sizes: int) -> Layout:
    """Return a layout for an order of Megatron, which writes the fastest axis first."""
    names = order.split("-")[::-1]
    return Layout(**{name: sizes.get(name, 1) for name in names})


MEGATRON, OPENRLHF = megatron("tp-cp-ep-dp-pp", tp=2, pp=4, dp=2), factor_world(8, dp=4, sp=2, tp=1)
DEEPSPEED = Layout(pipe=2, dp=2, model=2)  # ``data`` is the name of an option here


@pytest.mark.parametrize(
    ("layout", "axis", "table"),
    [
        (MEGATRON, "dp", [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]),
        (MEGATRON, "pp", [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]),
        (MEGATRON, "tp", [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14, 15]]),
        (DEEPSPEED, "pipe", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        (DEEPSPEED, "dp", [[0, 2], [1, 3], [4, 6], [5, 7]]),
        (DEEPSPEED, "model", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        (OPENRLHF, "dp", [[0, 2, 4, 6], [1, 3, 5, 7]]),
        (OPENRLHF, "sp", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        (OPENRLHF, "tp", [[0], [1], [2], [3], [4], [5], [6], [7]]),
    ],
)
def test_megatron_deepspeed_and_openrlhf(layout: Layout, axis: str, table: Table) -> None:
    assert layout.groups(axis).tolist() == table
    for row in table:
        assert [layout.peers(rank, axis).tolist() for rank in row] == [row] * len(row)


# 16 ranks: tp=2 pp=2 cp=2, with ep=4 and undivided experts. Each table was printed by
# RankGenerator of megatron-core 0.16.1, which tests/interop/test_megatron.py calls again.
DENSE: dict[str, dict[str, Table]] = {
    "tp-cp-ep-dp-pp": {
        "cp": [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]],
        "dp": [[0, 4], [1, 5], [2, 6], [3, 7], [8, 12], [9, 13], [10, 14], [11, 15]],
        "pp": [[0, 8], [1, 9], [2, 10], [3, 11], [4, 12], [5, 13], [6, 14], [7, 15]],
        "dp-cp": [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]],
        "tp-pp": [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]],
    },
    "tp-cp-ep-pp-dp": {
        "cp": [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]],
        "dp": [[0, 8], [1, 9], [2, 10], [3, 11], [4, 12], [5, 13], [6, 14], [7, 15]],
        "pp": [[0, 4], [1, 5], [2, 6], [3, 7], [8, 12], [9, 13], [10, 14], [11, 15]],
        "dp-cp": [[0, 2, 8, 10], [1, 3, 9, 11], [4, 6, 12, 14], [5, 7, 13, 15]],
        "tp-pp": [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]],
    },
    "cp-tp-dp-ep-pp": {
        "cp": [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14, 15]],
        "dp": [[0, 4], [1, 5], [2, 6], [3, 7], [8, 12], [9, 13], [10, 14], [11, 15]],
        "pp": [[0, 8], [1, 9], [2, 10], [3, 11], [4, 12], [5, 13], [6, 14], [7, 15]],
        "dp-cp": [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]],
        "tp-pp": [[0, 2, 8, 10], [1, 3, 9, 11], [4, 6, 12, 14], [5, 7, 13, 15]],
    },
}
EXPERTS: dict[str, dict[str, Table]] = {
    "tp-cp-ep-dp-pp": {
        "ep": [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]],
        "dp": [[0, 4], [1, 5], [2, 6], [3, 7], [8, 12], [9, 13], [10, 14], [11, 15]],
        "pp": [[0, 8], [1, 9], [2, 10], [3, 11], [4, 12], [5, 13], [6, 14], [7, 15]],
        "tp-ep-pp": [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]],
    },
    "tp-cp-ep-pp-dp": {
        "ep": [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]],
        "dp": [[0, 8], [1, 9], [2, 10], [3, 11], [4, 12], [5, 13], [6, 14], [7, 15]],
        "pp": [[0, 4], [1, 5], [2, 6], [3, 7], [8, 12], [9, 13], [10, 14], [11, 15]],
        "tp-ep-pp": [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15]],
    },
    "cp-tp-dp-ep-pp": {
        "ep": [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]],
        "dp": [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14, 15]],
        "pp": [[0, 8], [1, 9], [2, 10], [3, 11], [4, 12], [5, 13], [6, 14], [7, 15]],
        "tp-ep-pp": [[0, 2, 4, 6, 8, 10, 12, 14], [1, 3, 5, 7, 9, 11, 13, 15]],
    },
}


@pytest.mark.parametrize("order", DENSE)
def test_megatrons_dense_layers_and_experts_are_two_views(order: str) -> None:
    dense = megatron(order, tp=2, pp=2, cp=2, dp=2)
    experts = megatron(order, pp=2, dp=2, ep=4)
    assert dense.view(**experts.sizes) == experts
    for layout, tables in ((dense, DENSE[order]), (experts, EXPERTS[order])):
        for token, table in tables.items():
            axes = [axis for axis in layout.axes if axis in token.split("-")]
            assert sorted(layout.groups(*axes).tolist()) == table
