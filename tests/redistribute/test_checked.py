"""mesh.checked, the errors of moves word for word, and a guard's report of a move that hangs."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from torch import nn

import meshkit
from tests.faults import describe_error, error_of
from tests.newer_torch import needs_order
from tests.pool import Pool
from tests.promises import BUSY

RANKS = 8  # of the pool


def run_checked(pattern: str, loss_of: Callable[[torch.Tensor, meshkit.Mesh], torch.Tensor]) -> Any:
    """Return the errors of a forward and backward of a pattern inside ``checked``."""
    with meshkit.build_mesh(dp=4, tp=2) as mesh, mesh.checked():
        parts = torch.arange(1.0, 9.0).reshape(2, 2, 2)
        x = parts[mesh.coordinate["tp"]].clone().requires_grad_()
        return error_of(lambda: loss_of(mesh.redistribute(x, pattern), mesh).backward())


def same_work(y: torch.Tensor, mesh: meshkit.Mesh) -> torch.Tensor:
    return (y * y).sum()


def own_work(y: torch.Tensor, mesh: meshkit.Mesh) -> torch.Tensor:
    return (y * (mesh.coordinate["tp"] + 1)).sum()


def no_work(y: torch.Tensor, mesh: meshkit.Mesh) -> torch.Tensor:
    return (y * 0).sum()


def check_marks() -> list[Any]:
    gathered = "s/tp d -> s d"
    return [
        run_checked(f"{gathered} =tp", same_work),
        run_checked(f"{gathered} *tp", own_work),
        run_checked(f"{gathered} *tp", no_work),
        run_checked(f"{gathered} *tp", same_work),
        run_checked(f"{gathered} =tp", own_work),
        run_checked("s d =tp -> s d/tp", own_work),
        run_checked("s d *tp -> s d/tp", own_work),
        check_different_sizes(),
    ]


def check_different_sizes() -> Any:
    with meshkit.build_mesh(dp=4, tp=2) as mesh, mesh.checked():
        x = torch.zeros(2 + mesh.coordinate["tp"], 2)
        y = torch.zeros(2, 2, requires_grad=mesh.coordinate["tp"] == 0)
        return [
            error_of(lambda: mesh.redistribute(x, "s/tp d -> s d")),
            error_of(lambda: mesh.redistribute(y, "s/tp d -> s d *tp")),
            error_of(lambda: mesh.begin(x, "s/tp d -> s d").wait()),
        ]


def test_both_rows_of_the_trap_and_copies_that_differ_are_found(
    pool: Pool, snapshot: SnapshotAssertion
) -> None:
    by_rank = pool.run(check_marks)
    assert by_rank[0][:3] == [None, None, None]
    assert by_rank[0] == snapshot
    # the errors of all ranks are equal, but for the sizes of the rank in the last ones
    assert all(outcomes[:7] == by_rank[0][:7] for outcomes in by_rank)


def train_on_gathered(
    mark: str, axis: str, scale: int, *, is_checked: bool, is_whole: bool = True
) -> tuple[bool, Any]:
    """Return whether DDP gets the gradients of one process, for a loss of the global batch."""
    torch.manual_seed(0)
    single, samples = nn.Linear(3, 2).double(), torch.randn(2 * RANKS, 3, dtype=torch.float64)
    model = copy.deepcopy(single)

    def loss_of(features: torch.Tensor, rows: slice = slice(None)) -> torch.Tensor:
        return (features[rows] @ features.T).logsumexp(1).mean()

    loss_of(single(samples)).backward()
    with meshkit.build_mesh({axis: RANKS}) as mesh:
        wrapped = nn.parallel.DistributedDataParallel(model, process_group=mesh.group(axis))
        features = wrapped(mesh.redistribute(samples, f"b f -> b/{axis} f"))
        with mesh.checked() if is_checked else nullcontext():
            features = mesh.redistribute(features, f"b/{axis} f -> b f {mark}{axis}")
            own = slice(2 * mesh.rank, 2 * mesh.rank + 2)
            loss = loss_of(features, slice(None) if is_whole else own) * scale
            error = error_of(loss.backward)
    pairs = zip(model.parameters(), single.parameters(), strict=True)
    is_equal = error is None and all(
        p.grad is not None and p.grad.allclose(q.grad) for p, q in pairs
    )
    return is_equal, error


def check_losses_of_the_global_batch() -> list[Any]:
    return [
        train_on_gathered("=", axis, RANKS, is_checked=True)[0]
        and train_on_gathered("*", axis, 1, is_checked=False)[0]
        and not train_on_gathered("=", axis, 1, is_checked=True)[0]
        and train_on_gathered("*", axis, 1, is_checked=True, is_whole=False)[0]
        and train_on_gathered("*", axis, 1, is_checked=True)[1]
        for axis in ("dp", "fsdp", "tp")
    ]


def test_the_fix_of_a_loss_over_the_global_batch_holds_under_ddp(
    pool: Pool, snapshot: SnapshotAssertion
) -> None:
    results = pool.run(check_losses_of_the_global_batch)
    assert all(result == results[0] for result in results)
    for axis, (kind, text) in zip(("dp", "fsdp", "tp"), results[0], strict=True):
        assert kind == "SpecError"
        assert (f"mesh.size('{axis}')" in text) == (axis != "tp")  # tp averages no gradients
    assert results[0][0][1] == snapshot


# ------------------------------------------------------------------ an error of some ranks


def find_an_odd_rank(kind: str) -> tuple[str, float, list[float]]:
    """Return the error of this rank if rank 3 alone is wrong, its seconds, and a later result."""
    with meshkit.build_mesh(dp=4, tp=2) as mesh, mesh.checked():
        x: Any = torch.ones(1, 2, requires_grad=True)
        wrong: Any = {"values": x + 1, "text": "x", "sizes": torch.ones(1, 3)}.get(kind, x)
        began = time.monotonic()
        try:
            y = mesh.redistribute(wrong if mesh.rank == 3 else x, "s/dp d =tp -> s d *dp =tp")
            scale = 2 if mesh.rank == 3 else 1  # of the gradients, which are equal over tp else
            (y.sum() * scale * (mesh.coordinate["dp"] + 1)).backward()
            text = "no error"
        except meshkit.MeshkitError as error:
            text = f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - began
        later = mesh.redistribute(torch.ones(1, 2), "s/dp d =tp -> s d =dp =tp")
        return text, seconds, later.flatten().tolist()


@pytest.mark.parametrize("kind", ["values", "gradients", "text", "sizes"])
def test_all_ranks_of_the_checked_axes_raise_if_some_do(pool: Pool, kind: str) -> None:
    for rank, (text, seconds, later) in enumerate(pool.run(find_an_odd_rank, kind)):
        assert seconds < 5 + BUSY, (rank, text)
        finds_it = rank == 3 if kind == "text" else rank in (2, 3) or kind == "sizes"
        assert text.startswith("SpecError") == finds_it or kind == "sizes", (rank, text)
        if not finds_it:
            assert text.startswith("DisagreementError"), (rank, text)
            assert "has raised SpecError: " in text
        assert later == [1.0] * 8


# ------------------------------------------------------------------ errors


def refuse_dtypes(mesh: meshkit.Mesh) -> dict[str, Callable[[], object]]:
    """Return calls with a dtype or a layout that no backend takes as it is."""
    summed, plain = "a b +tp -> a b =tp", torch.ones(4, 4)
    move = mesh.redistribute
    return {
        "avg of bool": lambda: move(plain.bool(), summed, op="avg"),
        "max of complex": lambda: move(plain.to(torch.complex64), summed, op="max"),
        "sum of complex32": lambda: move(plain.to(torch.complex32), summed),
        "sum of uint32": lambda: move(plain.to(torch.uint32), summed),
        "sum of uint64": lambda: move(plain.to(torch.uint64), summed),
        "sum of float8": lambda: move(plain.to(torch.float8_e5m2), summed),
        "csr": lambda: move(plain.to_sparse_csr(), summed),
        "mkldnn": lambda: move(plain.to_mkldnn(), summed),
        "name that is none": lambda: mesh.agree(None, 1),  # type: ignore[arg-type]
        "name that steers a terminal": lambda: mesh.agree("rate\x1b[31m", 1),
    }


def collect_errors() -> dict[str, Any]:
    """Return the errors of calls that are refused before anything is sent."""
    mesh = meshkit.build_mesh(dp=4, sp=1, tp=2, ranks=range(8), pp=1)
    leaf = torch.ones(8, 4, requires_grad=True)
    half = torch.ones(4, 4, dtype=torch.bfloat16, requires_grad=True)
    plain = torch.ones(4, 4)
    move = mesh.redistribute
    with mesh.view(x=8) as view:
        calls: dict[str, Callable[[], object]] = {
            "max": lambda: move(leaf, "a b +tp -> a b =tp", op="max"),
            "avg": lambda: move(plain.long(), "a b +tp -> a b =tp", op="avg"),
            **refuse_dtypes(mesh),
            "half": lambda: move(half, "a/tp b -> a b *tp"),
            "no mark": lambda: move(leaf, "a/tp b -> a b"),
            "begin": lambda: mesh.begin(leaf, "a/tp b -> a b *tp"),
            "fractions": lambda: mesh.exchange(plain, "tp", [2.0, 2.0]),  # type: ignore[list-item]
            "counts": lambda: mesh.exchange(plain, "tp", [1, 2]),
            "shape": lambda: move(plain, "a/tp b c -> a b c *tp"),
            "unknown axis": lambda: mesh.redistribution("a/tq b -> a b"),
            "unknown axis of a view": lambda: mesh.redistribution("a/tp -> a/tq", to=view),
            "steps": lambda: mesh.shift(plain, "tp", 1.5),  # type: ignore[arg-type]
            "ring of two": lambda: mesh.shift(plain, "dp tp"),
            "no tensor": lambda: move([1.0], "a/tp -> a"),  # type: ignore[arg-type]
            "no pattern": lambda: move(plain, ["a"]),  # type: ignore[arg-type]
            "no size": lambda: move(plain, "a b -> a/tp b", a=[4]),  # type: ignore[arg-type]
            "no mesh": lambda: move(plain, "a b -> a/x b", to="x=4"),  # type: ignore[arg-type]
            "integers": lambda: move(leaf, "a/tp b -> a b *tp", grad_dtype=torch.int32),
            "no counts": lambda: mesh.exchange(plain, "tp", None),  # type: ignore[arg-type]
            "no rows": lambda: mesh.exchange(torch.tensor(1.0), "tp", [1, 0]),
            "no mark of a view": lambda: move(leaf, "a b =dp -> a/x b", to=view),
            "no marks of a view": lambda: move(leaf, "a b -> a/x b", to=view),
        }
        errors = {name: error_of(call) for name, call in calls.items()}
    mesh.close()
    errors["closed"] = error_of(lambda: move(plain, "a/tp b -> a b *tp"))
    with meshkit.build_mesh(dp=1, tp=2, ranks=[0, 1]) as small:
        errors["outside"] = error_of(lambda: small.redistribute(plain, "a b +tp -> a b =tp"))
    return errors


def miss_a_group() -> Any:
    """Return the error of a move over a group that was not built."""
    with meshkit.build_mesh(dp=2, sp=2, tp=2) as mesh:
        x = torch.ones(4)
        scale = mesh.redistribution("a =dp =tp -> a *dp *tp")
        return (
            error_of(lambda: mesh.redistribute(x, "a +dp +tp -> a =dp =tp")),
            error_of(lambda: scale(x.clone().requires_grad_())),
            torch.equal(scale(x), x),
            miss_a_group_of_a_view(mesh, x) + miss_a_group_of_no_view(),
        )


def miss_a_group_of_no_view() -> list[Any]:
    """Return the error of a move over parts of two axes, and of the move that it names."""
    with meshkit.build_mesh(dp=4, tp=2) as mesh, mesh.view(x=2, y=4) as view:
        x = torch.ones(2, 2)
        error = error_of(lambda: mesh.redistribute(x, "s/tp h *dp -> s/x h +y", to=view))
        with mesh.view({"dp_0": 2, "dp_1": 2, "tp": 2}, groups=["dp_0 tp"]) as fixed:
            mesh.redistribute(x, "s/tp h *dp -> s/dp_0 h +dp_1 +tp", to=fixed)
        with meshkit.build_mesh({"x": 8}, ranks=range(8)[::-1]) as other:
            return [error, error_of(lambda: mesh.redistribute(x, "s/dp h -> s/x h", to=other))]


def miss_a_group_of_a_view(mesh: meshkit.Mesh, x: torch.Tensor) -> list[Any]:
    """Return the errors of moves to views over groups that the mesh or the view may have."""
    with mesh.view(w=8) as flat, flat.view(x=2, y=2, z=2) as view:
        return [
            error_of(lambda: mesh.redistribute(x, "a +dp =sp +tp -> a =x =y =z", to=view)),
            error_of(lambda: flat.redistribute(x, "a +w -> a/y =x =z", to=view)),
        ]


def test_errors_word_for_word(pool: Pool, snapshot: SnapshotAssertion) -> None:
    by_rank = pool.run(collect_errors)
    assert by_rank[3] == snapshot
    assert by_rank[0] == {**by_rank[3], "outside": None}


@needs_order
def test_a_missing_group_is_refused_with_the_call_that_creates_it(
    pool: Pool, snapshot: SnapshotAssertion
) -> None:
    by_rank = pool.run(miss_a_group)
    assert by_rank[0] == snapshot
    assert by_rank == by_rank[:1] * 8


# ------------------------------------------------------------------ a move that hangs


def hang_in_a_move() -> Any:
    """Return the report if rank 1 does not take part in a move."""
    mesh = meshkit.build_mesh(dp=1, tp=2)
    try:
        with mesh.guard(timeout=1.5):
            mesh.redistribute(torch.ones(2), "s/tp -> s *tp")
            if mesh.rank == 1:
                time.sleep(4)
            mesh.begin(torch.ones(2), "s/tp -> s *tp").wait()
    except meshkit.CollectiveError as error:
        return describe_error(error)
    return None


def test_the_report_of_a_hang_names_the_pattern() -> None:
    reports = meshkit.spawn(hang_in_a_move, 2, timeout=60)
    assert reports[0] is not None
    assert 'redistribute("s/tp -> s *tp") over tp failed on rank 0' in reports[0]["text"]
