"""Training beside torch's own stack: the same losses, on two ranks."""

from __future__ import annotations

import ast
import inspect

import pytest

import meshkit
from benchmarks import torch_gpt, training

SMALL = {"dp": 1, "sp": 2, "tp": 1}


@pytest.mark.parametrize("wrapper", training.WRAPPERS)
def test_both_train_the_same(wrapper: str) -> None:
    found = meshkit.spawn(training.job, 2, (SMALL, wrapper, 2, 1), timeout=120)
    for ours, theirs, times in found:
        assert len(ours) == len(theirs) == 4  # two steps that are not counted, and two that are
        training.check(wrapper, ours, theirs)
        assert ours == found[0][0]
        assert ours[3] < ours[0], "nothing was learnt"
        assert [len(side) for side in times] == [1, 1]


def test_other_losses_are_refused() -> None:
    training.check("DDP", [5.5, 5.0], [5.5001, 5.0])
    with pytest.raises(RuntimeError, match=r"meshkit and DDP report other losses: \[5\.5\] and"):
        training.check("DDP", [5.5], [5.51])


def test_tokens_per_second_of_the_slowest_rank() -> None:
    by_rank = [([1.0, 2.0], [1.0, 4.0]), ([2.0, 1.0], [1.0, 1.0])]
    row = training.row("DDP", by_rank, steps=4)
    tokens = 4 * 32 * 128
    assert (row.ours, row.theirs) == (tokens / 2, tokens * (1 + 1 / 4) / 2)
    assert row.ratio is not None
    assert row.ratio.median == 1.25  # of 1 / 2 and 4 / 2
    assert row.met
    assert training.row("FSDP2", by_rank, steps=4).goal is None


def test_a_job_for_each_way_to_share_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def spawn(job: object, ranks: int, arguments: tuple[object, ...], **options: object) -> object:
        asked.append((ranks, *arguments))
        return [([5.0], [5.0], ([1.0], [1.0]))]

    monkeypatch.setattr(meshkit, "spawn", spawn)
    assert [row.peer for row in training.run(quick=True)] == [*training.WRAPPERS.values()]
    assert asked == [(8, training.SIZES, wrapper, 1, 2) for wrapper in training.WRAPPERS]


def test_torchs_own_stack_is_without_meshkit() -> None:
    tree = ast.parse(inspect.getsource(torch_gpt))
    named = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    named += [a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names]
    assert [name for name in named if name is None or "meshkit" in name or "examples" in name] == []
