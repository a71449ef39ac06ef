"""The table of operations: what goes in, what comes out, what nccl-tests counts."""

from __future__ import annotations

import pytest

from meshkit.core.operations import OPERATIONS


@pytest.mark.parametrize(
    ("op", "passes", "source", "output", "counted"),
    [
        ("all_reduce", 2, 24, 24, 24),
        ("all_gather", 1, 8, 24, 8),
        ("reduce_scatter", 1, 24, 8, 8),
        ("all_to_all", 1, 24, 24, 8),
        ("broadcast", 0, 24, 24, 24),
        ("send_recv", 0, 24, 24, 24),
    ],
)
def test_24_items_on_3_ranks(op: str, passes: int, source: int, output: int, counted: int) -> None:
    known = OPERATIONS[op]
    assert known.passes == passes
    assert (known.source_items(24, 3), known.output_items(24, 3)) == (source, output)
    assert known.counted(24, 3) == counted


def test_what_is_read_in_place_has_a_source_as_large_as_its_output() -> None:
    assert [op for op, known in OPERATIONS.items() if known.in_place] == ["all_reduce", "broadcast"]
    assert [op for op, known in OPERATIONS.items() if known.reduces] == [
        "all_reduce",
        "reduce_scatter",
    ]
    assert [op for op, known in OPERATIONS.items() if known.rooted] == ["broadcast"]
    for known in OPERATIONS.values():
        assert not known.in_place or known.source_items(12, 3) == known.output_items(12, 3)
