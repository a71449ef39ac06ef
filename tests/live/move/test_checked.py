"""mesh.checked, the errors of moves word for word, and a guard's report of a move that hangs."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import meshkit
from tests.live.faults import describe_error, error_of
from tests.live.newer_torch import needs_order


def run_checked(pattern: str, loss_of: Callable[[torch.Tensor, meshkit.Mesh], torch.Tensor]) -> Any:
    """Return the errors of a forward and backward of a pattern inside ``checked``."""
    with meshkit.build_mesh(dp=1, tp=2) as mesh, mesh.checked():
        parts = torch.arange(1.0, 9.0).reshape(2, 2, 2)
        x = parts[mesh.rank].clone().requires_grad_()
        return error_of(lambda: loss_of(mesh.redistribute(x, pattern), mesh).backward())


def same_work(y: torch.Tensor, mesh: meshkit.Mesh) -> torch.Tensor:
    return (y * y).sum()


def own_work(y: torch.Tensor, mesh: meshkit.Mesh) -> torch.Tensor:
    return (y * (mesh.rank + 1)).sum()


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
    with meshkit.build_mesh(dp=1, tp=2) as mesh, mesh.checked():
        x = torch.zeros(2 + mesh.rank, 2)
        y = torch.zeros(2, 2, requires_grad=mesh.rank == 0)
        return [
            error_of(lambda: mesh.redistribute(x, "s/tp d -> s d")),
            error_of(lambda: mesh.redistribute(y, "s/tp d -> s d *tp")),
            error_of(lambda: mesh.begin(x, "s/tp d -> s d").wait()),
        ]


WRONG_GATHER = '"s/tp d -> s d {}" has {} on the right, and '


def test_both_rows_of_the_trap_and_copies_that_differ_are_found() -> None:
    for outcomes in meshkit.spawn(check_marks, 2, timeout=100):
        assert outcomes[:3] == [None, None, None]
        assert [text for _, text in outcomes[3:7]] == [
            WRONG_GATHER.format("*tp", "*tp") + "all gradients are equal.\n"
            "  The ranks of tp do the same work, so *tp counts it once a rank.\n"
            "  Fix: =tp on the right.",
            WRONG_GATHER.format("=tp", "=tp") + "the gradients differ.\n"
            "  The ranks of tp do different work, so only *tp counts all of it.\n"
            "  Fix: *tp on the right.",
            "mesh.redistribute(x, 's d =tp -> s d/tp'): \"s d =tp -> s d/tp\" has =tp on the left, "
            "and the tensors differ.\n"
            "  Over tp, rank 1 of the group differs from rank 0.\n"
            "  Fix: +tp if they are parts of a sum, or a cut such as dim/tp.",
            "mesh.redistribute(x, 's d *tp -> s d/tp'): \"s d *tp -> s d/tp\" has *tp on the left, "
            "and the tensors differ.\n"
            "  Over tp, rank 1 of the group differs from rank 0.\n"
            "  Fix: +tp if they are parts of a sum, or a cut such as dim/tp.",
        ]
        sizes, gradients, begun = (text for _, text in outcomes[7])
        assert begun.split(": ", 1)[1] == sizes.split(": ", 1)[1]
        assert 'ranks call "s/tp d -> s d" with tensors that do not belong together.' in sizes
        assert "Rank 1 of the group over tp and rank 0 differ." in gradients


# ------------------------------------------------------------------ errors


def collect_errors() -> dict[str, Any]:
    """Return the errors of calls that are refused before anything is sent."""
    mesh = meshkit.build_mesh(dp=2, sp=1, tp=2, ranks=range(4), pp=1)
    leaf = torch.ones(4, 4, requires_grad=True)
    half = torch.ones(4, 4, dtype=torch.bfloat16, requires_grad=True)
    plain = torch.ones(4, 4)
    move = mesh.redistribute
    with mesh.view(x=4) as view:
        calls: dict[str, Callable[[], object]] = {
            "max": lambda: move(leaf, "a b +tp -> a b =tp", op="max"),
            "avg": lambda: move(plain.long(), "a b +tp -> a b =tp", op="avg"),
            "half": lambda: move(half, "a/tp b -> a b *tp"),
            "no mark": lambda: move(leaf, "a/tp b -> a b"),
            "begin": lambda: mesh.begin(leaf, "a/tp b -> a b *tp"),
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


MOVE = "mesh.redistribute(x, "
ERRORS = {
    "max": MOVE + "'a b +tp -> a b =tp', op='max'): op='max' has no gradient, and the tensor "
    "requires one.\n"
    "  Fix: x.detach(), for example of the maximum that makes a softmax stable.",
    "avg": MOVE + "'a b +tp -> a b =tp', op='avg'): op='avg' of a tensor of torch.int64.\n"
    '  Fix: op="sum", or x.float(), since an average of torch.int64 is no integer.',
    "half": MOVE + "'a/tp b -> a b *tp'): the backward sums gradients of several ranks in "
    "torch.bfloat16.\n"
    "  Fix: grad_dtype=torch.float32, or grad_dtype=torch.bfloat16, which loses bits.",
    "no mark": MOVE + "'a/tp b -> a b'): tp has no mark on the right side, and the tensor requires "
    "a gradient.\n"
    "  *tp: each rank of tp does its own part of the work; gradients are summed.\n"
    "  =tp: all ranks of tp do the same work; their gradients are equal.\n"
    '  Fix: "a b *tp", or "a b =tp", on the right side; or x.detach().',
    "begin": "mesh.begin(x, 'a/tp b -> a b *tp'): the tensor requires a gradient.\n"
    "  Fix: mesh.redistribute, which has a gradient, or x.detach().",
    "counts": "mesh.exchange(x, 'tp', [1, 2]): counts is [1, 2], and the tensor has 4 rows.\n"
    "  tp has 2 ranks. Each gets a number of rows, in their order.\n"
    "  Fix: 2 numbers of 0 or more, with the sum 4.",
    "shape": MOVE + "'a/tp b c -> a b c *tp'): the tensor has 2 dims, and the left side 3.\n"
    "  The shape is (4, 4).\n"
    "  Fix: one name for each dim of the tensor on the left side, or ... for several.",
    "unknown axis": "mesh.redistribution('a/tq b -> a b'): there is no axis 'tq'.\n"
    "  The axes are pp, dp, sp, tp.\n"
    "  Fix: did you mean tp?",
    "unknown axis of a view": "mesh.redistribution('a/tp -> a/tq', to=to): there is no axis "
    "'tq'.\n"
    "  The axes are x.\n"
    "  Fix: use one of x.",
    "steps": "mesh.shift(x, 'tp', 1.5): steps is 1.5, a float.\n  Fix: pass steps as an int.",
    "ring of two": "mesh.shift(x, 'dp tp'): 'dp tp' names 2 axes instead of one.\n"
    "  Fix: for example 'dp'.",
    "no tensor": MOVE + "'a/tp -> a'): x is a list, not a tensor.\n"
    "  Fix: torch.as_tensor(x), or another tensor.",
    "no pattern": MOVE + "['a']): the pattern is ['a'], not a str.\n"
    '  Fix: for example "b s/sp h d -> b s h/sp d".',
    "no size": MOVE + "'a b -> a/tp b', a=[4]): the size of a is [4].\n  Fix: a=4096, for example.",
    "no mesh": MOVE + "'a b -> a/x b', to='x=4'): to is 'x=4', not a mesh.\n"
    "  Fix: to=mesh.view(...), or another mesh of the same ranks.",
    "integers": MOVE + "'a/tp b -> a b *tp', grad_dtype=grad_dtype): grad_dtype is torch.int32, "
    "no dtype of gradients.\n"
    "  Fix: grad_dtype=torch.float32, or leave it out.",
    "no counts": "mesh.exchange(x, 'tp', None): counts is None, and the tensor has 4 rows.\n"
    "  tp has 2 ranks. Each gets a number of rows, in their order.\n"
    "  Fix: 2 numbers of 0 or more, with the sum 4.",
    "no rows": "mesh.exchange(x, 'tp', [1, 0]): the tensor has no dim of rows.\n"
    "  Fix: x[None], which has one row.",
    "no mark of a view": MOVE + "'a b =dp -> a/x b', to=to): tp has no mark on the left side, and "
    "the tensor requires a gradient.\n"
    "  *tp: each rank of tp does its own part of the work; gradients are summed.\n"
    "  =tp: all ranks of tp do the same work; their gradients are equal.\n"
    '  Fix: "a b =dp *tp", or "a b =dp =tp", on the left side; or x.detach().',
    "no marks of a view": MOVE + "'a b -> a/x b', to=to): dp and tp have no mark on the left side, "
    "and the tensor requires a gradient.\n"
    "  *dp *tp: each rank of dp and tp does its own part of the work; gradients are summed.\n"
    "  =dp =tp: all ranks of dp and tp do the same work; their gradients are equal.\n"
    '  Fix: "a b *dp *tp", or "a b =dp =tp", on the left side; or x.detach().',
    "closed": MOVE + "'a/tp b -> a b *tp'): the mesh is closed.\n"
    "  Fix: build_mesh(dp=2, sp=1, tp=2, pp=1, ranks=range(0, 4)) again.",
}


def test_errors_word_for_word() -> None:
    by_rank = meshkit.spawn(collect_errors, 4, timeout=100)
    assert by_rank[3].pop("outside") == (
        "CoordinateError",
        "mesh.redistribute(x, 'a b +tp -> a b =tp'): rank 3 is not in Layout(dp=1, tp=2).\n"
        "  It has 2 ranks; mesh.inside is False on this rank.\n"
        "  Fix: call this only if mesh.inside is True.",
    )
    assert by_rank[0].pop("outside") is None
    assert {name: error[1] for name, error in by_rank[0].items()} == ERRORS


ERRORS_OF_VIEWS = [
    MOVE + "'a +dp =sp +tp -> a =x =y =z', to=to): the mesh has no group over dp tp.\n"
    "  It has groups over (dp), (sp), (tp), (dp sp); a getter never creates one.\n"
    "  Fix: build_mesh(..., groups=['dp tp']).",
    MOVE + "'a +w -> a/y =x =z', to=to): the mesh has no group over x z.\n"
    "  It has groups over (x), (y), (z); a getter never creates one.\n"
    "  Fix: mesh.view(..., groups=['x z']).",
    MOVE + "'s/tp h *dp -> s/x h +y', to=to): neither the mesh nor its view has the group over "
    "dp.0 tp.\n"
    "  The common axes are dp.0=2 dp.1=2 tp=2.\n"
    "  Fix: to=mesh.view({'dp_0': 2, 'dp_1': 2, 'tp': 2}, groups=['dp_0 tp']), and a right side in "
    "its axes.",
    MOVE + "'s/dp h -> s/x h', to=to): the other mesh has other ranks, or another order of them.\n"
    "  Fix: to=mesh.view(...), which keeps the ranks and their order.",
]


@needs_order
def test_a_missing_group_is_refused_with_the_call_that_creates_it() -> None:
    for error, in_the_backward, plain, of_views in meshkit.spawn(miss_a_group, 8, timeout=100):
        assert "redistribution(x): the mesh has no group over dp tp." in in_the_backward[1]
        assert plain
        assert [text for _, text in of_views] == ERRORS_OF_VIEWS
        assert error == (
            "SpecError",
            "mesh.redistribute(x, 'a +dp +tp -> a =dp =tp'): the mesh has no group over dp tp.\n"
            "  It has groups over (dp), (sp), (tp), (dp sp); a getter never creates one.\n"
            "  Fix: build_mesh(..., groups=['dp tp']).",
        )


# ------------------------------------------------------------------ a move that hangs


def hang_in_a_move(*, begin: bool) -> Any:
    """Return the report if rank 1 does not take part in a move."""
    mesh = meshkit.build_mesh(dp=1, tp=2)
    try:
        with mesh.guard(timeout=1.5):
            mesh.redistribute(torch.ones(2), "s/tp -> s *tp")
            if mesh.rank == 1:
                time.sleep(4)
            if begin:
                mesh.begin(torch.ones(2), "s/tp -> s *tp").wait()
            mesh.redistribute(torch.ones(2), "s/tp -> s *tp")
    except meshkit.CollectiveError as error:
        return describe_error(error)
    return None


@pytest.mark.parametrize("begin", [False, True])
def test_the_report_of_a_hang_names_the_pattern(begin: bool) -> None:
    reports = meshkit.spawn(partial(hang_in_a_move, begin=begin), 2, timeout=60)
    assert reports[0] is not None
    assert 'redistribute("s/tp -> s *tp") over tp failed on rank 0' in reports[0]["text"]
