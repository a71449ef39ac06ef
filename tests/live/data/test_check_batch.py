"""mesh.check_batch on real ranks: the same result on each, and no rank waits on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.live.data.checks import batch_digest

GOOD = ["good", "order", "strided", "bfloat16", "bare"]


ODD = {
    "by rank": "batch['y'] differs at dp=0.",
    "one sample set": "Equal in every leaf: dp=0 (ranks 0-1) and dp=1 (ranks 2-3).",
    "other keys": "batch['y'] differs at dp=1.",
    "other count": "batch[2] differs at dp=0.",
    "other dtype": "batch differs at dp=0.",
    "other shape": "batch differs at dp=0.",
    "other plain": "batch['n'] differs at dp=0.",
    "other empty": "batch['e'] differs at dp=0.",
    "one bit": "batch differs at dp=1.",
    "an object": "batch['m'] is a set, on rank 2 (dp=1 sp=0).",
    "unreadable": "batch['x'] cannot be read (",
}


CASES: dict[str, tuple[Any, ...]] = {
    "dp": ([*GOOD, *ODD],),
    "dp sp": (["bare", "by rank"], ("dp", "sp")),
    "none": (["bare", "one sample set"], ()),
    "one dp": (["bare", "by rank", "objects"], ("dp",), {"dp": 1, "sp": 4}),
}


Reports = dict[str, dict[str, Any]]


def make_batch(name: str, rank: int, dp: int) -> Any:
    """Return the batch of a case; ``dp`` is the data coordinate."""
    tokens = torch.arange(8).view(2, 4) + 100 * dp
    cases: dict[str, Any] = {
        "good": {"x": tokens, "m": [tokens.bool(), (1.5, "a", b"b", None, True)], "e": {}},
        "order": dict([("a", tokens), ("b", 1)][:: 1 if rank % 2 else -1]),
        "strided": {"x": (tokens.T.contiguous().T if rank % 2 else tokens)[:, ::2]},
        "bfloat16": {"x": tokens.bfloat16(), "n": torch.tensor(dp), "0": torch.zeros(0, 3)},
        "by rank": {"x": tokens, "y": tokens + rank},
        "one sample set": {"x": tokens - 100 * dp},
        "other keys": {"x": tokens, **({"y": tokens} if rank == 3 else {})},
        "other count": [tokens] * (2 if rank == 1 else 3),
        "other dtype": tokens.int() if rank == 1 else tokens,
        "other shape": tokens.view(4, 2) if rank == 1 else tokens,
        "other plain": {"x": tokens, "n": 1.0 if rank == 1 else 1},
        "other empty": {"x": tokens, "e": () if rank == 1 else []},
        "one bit": torch.tensor([0.0, dp, -0.0 if rank == 3 else 0.0]),
        "an object": {"x": tokens, "m": {1, 2} if rank == 2 else 1},
        "objects": {1, 2},
        "unreadable": {"x": tokens.to_sparse() if rank == 2 else tokens},
        "bare": tokens,
    }
    return cases[name]


def check_batches(names: list[str], data: tuple[str, ...] = ("dp",), sizes: Any = None) -> Any:
    """Return the error of each batch, and a sum over the mesh afterwards."""
    report: dict[str, Any] = {}
    with meshkit.build_mesh(**(sizes or {"dp": 2, "sp": 2})) as mesh:
        for name in names:
            try:
                mesh.check_batch(make_batch(name, mesh.rank, mesh.coordinate["dp"]), data=data)
                report[name] = None
            except meshkit.MeshkitError as error:
                report[name] = f"{type(error).__name__}: {error}"
        ones = torch.ones(())
        dist.all_reduce(ones, group=mesh.group())
        report["ranks"] = int(ones)
    return report


def check_all_cases(cases: list[tuple[Any, ...]]) -> Any:
    """Check the batches of all cases."""
    return [check_batches(*case) for case in cases]


@pytest.fixture(scope="module")
def reports() -> Reports:
    """Return the errors, equal on all four ranks, by the axes that divide the samples."""
    by_rank = meshkit.spawn(check_all_cases, 4, ([*CASES.values()],), timeout=120)
    assert all(of_rank == by_rank[0] for of_rank in by_rank)
    assert [report.pop("ranks") for report in by_rank[0]] == [4] * len(CASES)  # nothing is broken
    return dict(zip(CASES, by_rank[0], strict=True))


def test_good_and_odd_batches(reports: Reports) -> None:
    errors = reports["dp"]
    assert {name: errors[name] for name in GOOD} == dict.fromkeys(GOOD)
    for name, line in ODD.items():
        assert line in errors[name], name
    lines = errors["other dtype"].splitlines()
    assert lines[0] == (
        "BatchError: mesh.check_batch(batch, data=('dp',)): "
        "ranks that share samples have different batches."
    )
    assert lines[2].startswith("  rank 0 (dp=0 sp=0):  int64 (2, 4) ")
    assert lines[3].startswith("  rank 1 (dp=0 sp=1):  int32 (2, 4) ")
    assert "rank 0 (dp=0 sp=0):  missing" not in errors["other keys"]
    assert "rank 2 (dp=1 sp=0):  missing" in errors["other keys"]


def test_other_axes_divide_the_samples(reports: Reports) -> None:
    errors = reports["dp sp"]
    assert errors["by rank"] is None  # each rank its own
    assert "Equal in every leaf: dp=0 sp=0 (rank 0) and dp=0 sp=1 (rank 1)." in errors["bare"]
    errors = reports["none"]
    assert errors["one sample set"] is None
    assert "batch differs.\n  ranks 0-1 (dp=0 sp=0; dp=0 sp=1):  int64 (2, 4) " in errors["bare"]
    assert errors["bare"].startswith("BatchError: mesh.check_batch(batch, data=()): ")


def test_one_data_coordinate_need_not_differ(reports: Reports) -> None:
    errors = reports["one dp"]
    assert errors["bare"] is None
    assert "batch['y'] differs at dp=0." in errors["by rank"]
    assert "batch is a set, on rank 0 (dp=0 sp=0)." in errors["objects"]  # though all hold the same


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (torch.ones(2, 3), torch.ones(3, 2).T, True),
        (torch.ones(2), torch.ones(2, requires_grad=True), True),
        (torch.tensor(1.0), torch.tensor([1.0]), False),
        (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j]), True),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.tensor([float("nan")]), torch.tensor([float("nan")]), True),
        (torch.tensor([1, 2]).byte(), torch.tensor([1, 2]).char(), False),
        (torch.empty(0, 3), torch.empty(3, 0), False),
        ([1, [2]], (1, (2,)), True),
        ([[], 1], [{}, 1], False),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, False),
        ({1: "x"}, {"1": "x"}, False),
        (True, 1, False),
        (b"x", "x", False),
        (float("nan"), float("nan"), True),
    ],
)
def test_which_values_are_equal(first: Any, second: Any, same: bool) -> None:
    assert not batch_digest(first).fault
    assert (batch_digest(first).digest() == batch_digest(second).digest()) == same


def test_the_path_of_a_leaf() -> None:
    assert [*batch_digest({"a": [1, {"b": None}]}).leaves] == [
        "batch['a'][0]",
        "batch['a'][1]['b']",
    ]
    assert [*batch_digest(7).leaves] == ["batch"]
    assert batch_digest(7).leaves["batch"].startswith("int ")


def test_an_unreadable_leaf_is_a_fault_and_no_error() -> None:
    assert batch_digest([1, {2}]).fault == "batch[1] is a set"
    assert batch_digest(torch.ones(1, device="meta")).fault.startswith("batch cannot be read (")
    endless: list[Any] = []
    endless.append(endless)
    assert "RecursionError" in batch_digest(endless).fault
