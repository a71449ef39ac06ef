"""mesh.redistribute on real gloo ranks, beside the interpreter, DTensor and one process."""

from __future__ import annotations

import contextlib
import itertools
import math
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

import meshkit
from meshkit.launch.torch_groups import KEEPS_ORDER
from meshkit.redistribute import pattern as pattern_module
from meshkit.redistribute.move import Move
from meshkit.redistribute.pattern import parse_pattern
from meshkit.redistribute.plan import plan_move
from meshkit.redistribute.redistribution import FIRST_PRIMES, MAX_KEPT, Cache
from tests.pool import Pool
from tests.redistribute.interpreter import Array, coordinates, deal, join, run_plan
from tests.redistribute.moves import Case, cases
from tests.redistribute.oracle import collect, mirrored, whole_tensor

RANKS = 4  # of the pool

WORLDS = [{"tp": 2}, {"dp": 2, "tp": 2}, {"dp": 2, "sp": 2, "tp": 2}]
SPECIAL = [  # several steps in one plan, which random cases seldom have
    ("s/dp/tp i -> s/tp i/dp", {"s": 8, "i": 4}),
    ("s/dp/tp i =sp -> s/tp i *dp *sp", {"s": 8, "i": 4}),
    ("(q h/tp d) i +dp -> (q h d) i/dp =tp", {"q": 3, "h": 4, "d": 2, "i": 2}),
    ("b s +tp +dp -> b/dp s =tp", {"b": 4, "s": 3}),
    ("b s @dp:1 +tp -> b s/tp *dp", {"b": 2, "s": 4}),
    ("b/dp s/tp -> b s @dp:0 @tp:1", {"b": 5, "s": 3}),
    ("b s/tp +dp -> b/tp s/dp", {"b": 3, "s": 5}),
]


# each cell of the table of transitions
SPECIAL += [
    (f"{left} -> {right}", {"s": 4, "h": 4})
    for left, right in itertools.product(
        ("s/tp h", "s h *tp", "s h =tp", "s h +tp", "s h @tp:1"),
        ("s h/tp", "s h *tp", "s h =tp", "s h +tp", "s h @tp:0"),
    )
]


def list_cases(axes: Mapping[str, int]) -> list[Case]:
    """Return cases over some axes: random ones of even and uneven sizes, and the special ones."""
    random = [
        case
        for uneven in (True, False)
        for case in collect(cases(axes=axes, uneven=uneven), 30)
        if case.move.left != case.move.right or case.move.types
    ]
    special = [Case(text, axes, sizes) for text, sizes in SPECIAL]
    known = [case for case in special if parse_pattern(case.pattern).types.keys() <= axes.keys()]
    return [*random, *known]


def weights(move: Move) -> tuple[Array, list[Array]]:
    """Return the gradient of the global tensor, and the parts of it that each rank's loss has."""
    whole = whole_tensor(move, 8)
    return whole, deal(mirrored(move), whole, 1)


def all_groups(axes: Mapping[str, int]) -> list[str]:
    """Return the groups over each set of axes."""
    sets = (itertools.combinations(axes, count) for count in range(2, len(axes) + 1))
    return [" ".join(group) for groups in sets for group in groups]


def run_cases(axes: dict[str, int], requests: list[Case]) -> list[Any]:
    """Return the result and the gradient of this rank for each case."""
    results: list[Any] = []
    ranks = range(math.prod(axes.values()))
    order, groups = " ".join(axes), all_groups(axes)
    with meshkit.build_mesh(axes, order=order, groups=groups, ranks=ranks) as mesh:
        for case in requests if mesh.inside else []:
            move = case.move
            number = [*coordinates(move)].index({a: mesh.coordinate[a] for a, _ in move.axes})
            local = deal(move, whole_tensor(move))[number]
            # a tensor that is permuted in memory, as activations often are
            x = torch.from_numpy(local.copy()).permute(*range(local.ndim)[::-1])
            x = x.contiguous().permute(*range(local.ndim)[::-1]).requires_grad_()
            y = mesh.redistribute(x, case.pattern, **case.sizes)
            y.backward(torch.from_numpy(weights(move)[1][number].copy()))
            results.append((y.detach().numpy(), None if x.grad is None else x.grad.numpy()))
    return results


@pytest.mark.parametrize("axes", WORLDS, ids=str)
def test_ranks_give_what_the_interpreter_gives_and_the_gradient_of_one_process(
    axes: dict[str, int], pool: Pool
) -> None:
    requests = list_cases(axes)
    layout = meshkit.Layout(**axes)
    if layout.num_ranks > 4:
        by_rank = meshkit.spawn(run_cases, layout.num_ranks, (axes, requests), timeout=300)
    else:
        by_rank = pool.run(run_cases, axes, requests, timeout=100)[: layout.num_ranks]
    for number, case in enumerate(requests):
        move = case.move
        expected = run_plan(plan_move(move), deal(move, whole_tensor(move)))
        ranks = [*coordinates(move)]
        gradients: list[Any] = [None] * len(ranks)
        for rank, results in enumerate(by_rank):
            place = ranks.index({a: layout.coordinate(rank)[a] for a, _ in move.axes})
            value, gradient = results[number]
            np.testing.assert_allclose(value, expected[place], rtol=1e-12, err_msg=str(case))
            gradients[place] = gradient
        joined = join(mirrored(move), gradients, 0)
        np.testing.assert_allclose(joined, weights(move)[0], rtol=1e-12, err_msg=str(case))
    assert len(requests) > 40


# ------------------------------------------------------------------ other facts, on four ranks


def check_dtypes(mesh: meshkit.Mesh) -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64):
        whole = torch.arange(32).reshape(4, 8).to(dtype)
        tp = mesh.coordinate["tp"]
        rows, columns = whole[2 * tp : 2 * tp + 2], whole[:, 4 * tp : 4 * tp + 4]
        assert torch.equal(mesh.redistribute(rows, "s/tp h -> s h/tp"), columns)
        assert torch.equal(mesh.redistribute(rows, "s/tp h -> s h"), whole)
        summed = mesh.redistribute(whole, "s h +tp -> s h =tp")
        assert torch.equal(summed, whole + whole)
        assert summed.dtype == dtype
        assert torch.equal(mesh.redistribute(whole, "s h +tp -> s/tp h"), rows + rows)
    flags = torch.tensor([True, False, False, True]).reshape(2, 2) ^ bool(mesh.coordinate["tp"])
    both = torch.tensor([[True, False], [False, True], [False, True], [True, False]])
    assert torch.equal(mesh.redistribute(flags, "s/tp h -> s h"), both)
    assert torch.equal(mesh.redistribute(both, "s h -> s/tp h"), flags)
    half = mesh.coordinate["tp"]
    assert torch.equal(mesh.redistribute(flags, "s/tp h -> s h/tp"), both[:, half : half + 1])


def check_reductions(mesh: meshkit.Mesh) -> None:
    x = torch.tensor([1.0, -2.0], dtype=torch.float64) * (mesh.rank + 1)
    assert mesh.redistribute(x, "a +dp +tp -> a =dp =tp").tolist() == [10, -20]
    assert mesh.redistribute(x, "a +dp +tp -> a =dp =tp", op="avg").tolist() == [2.5, -5]
    assert mesh.redistribute(x, "a +dp +tp -> a =dp =tp", op="max").tolist() == [4, -2]
    assert mesh.redistribute(x, "a +dp +tp -> a =dp =tp", op="min").tolist() == [1, -8]
    both = mesh.redistribute(x, "a +tp -> a/tp", op="max")
    assert both.tolist() == [[2, -2], [4, -6]][mesh.coordinate["dp"]][slice(*_half(mesh))]
    odd = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64) * (mesh.coordinate["tp"] or -1)
    part = mesh.redistribute(odd, "a +tp -> a/tp", op="max", a=3)
    assert part.tolist() == [[1, 2], [3]][mesh.coordinate["tp"]]
    leaf = x.clone().requires_grad_()
    mesh.redistribute(leaf, "a +dp -> a =dp", op="avg").sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [0.5, 0.5]


def _half(mesh: meshkit.Mesh) -> tuple[int, int]:
    return (0, 1) if mesh.coordinate["tp"] == 0 else (1, 2)


def list_moves(mesh: meshkit.Mesh) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return moves of a tensor of two rows that change no value."""
    return {
        "gather": lambda x: mesh.redistribute(x, "s/tp d -> s d *tp"),
        "all_to_all": lambda x: mesh.redistribute(x, "s/tp d -> s d/tp"),
        "shift": lambda x: mesh.shift(x, "tp", 1),
        "exchange": lambda x: mesh.exchange(x, "tp", [1, 1])[0],
    }


def check_other_dtypes(mesh: meshkit.Mesh) -> None:
    """Dtypes that gloo does not take, and lazy conjugates, move as others do; no sum is wrong."""
    x = torch.arange(4.0).reshape(2, 2) + 4 * mesh.rank
    small = (torch.float8_e4m3fn, torch.float8_e5m2)
    for dtype in (torch.int16, torch.uint16, torch.uint32, torch.uint64, *small):
        for name, move in list_moves(mesh).items():
            moved = move(x.to(dtype))
            assert moved.dtype == dtype, name
            assert torch.equal(moved.float(), move(x.to(dtype).float())), (name, dtype)
        with pytest.raises(meshkit.SpecError, match="cannot reduce tensors of"):
            mesh.redistribute(x.to(dtype), "s d +tp -> s d =tp")
    lazy = torch.complex(x, x + 1).conj()
    assert lazy.is_conj()
    for name, move in list_moves(mesh).items():
        assert torch.equal(move(lazy), move(lazy.resolve_conj())), name
        assert torch.equal(move(lazy.imag), move(lazy.imag.resolve_neg())), name


def check_kinds_of_tensors(mesh: meshkit.Mesh) -> None:
    """Sparse, nested and quantized tensors are refused; a meta tensor gives the shape."""
    x = torch.ones(2, 2)
    quantized = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    for name, move in list_moves(mesh).items():
        for other in (x.to_sparse(), quantized, torch.nested.nested_tensor([x[0], x[1]])):
            with pytest.raises(meshkit.SpecError, match="x is a"):
                move(other)
        if name == "exchange":
            with pytest.raises(meshkit.SpecError, match="meta"):
                move(x.to("meta"))
        else:
            assert move(x.to("meta")).shape == move(x).shape


def check_grad_dtype(mesh: meshkit.Mesh) -> None:
    """Sum 256 and three times 1 in float32: bfloat16 has no 257, so it would lose some of them."""
    grads = []
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.ones(2, 3, dtype=torch.bfloat16, requires_grad=True)
        y = mesh.redistribute(x, "s/dp/tp d -> s d *dp *tp", grad_dtype=dtype)
        (y * (256 if mesh.rank == 0 else 1)).sum().backward()
        assert x.grad is not None
        assert x.grad.dtype == torch.bfloat16
        grads.append(x.grad)
    assert grads[0].tolist() == [[260.0] * 3] * 2  # 259, rounded once
    lost = mesh.redistribute((grads[1] != 260).any().long(), "+dp +tp -> =dp =tp")
    assert lost.item() > 0  # the same in bfloat16, on some rank


def check_bits(mesh: meshkit.Mesh) -> None:
    generator = torch.Generator().manual_seed(mesh.rank)
    x = torch.randn(1000, generator=generator)
    y = mesh.redistribute(x, "... +dp +tp -> ... =dp =tp")
    copies = [torch.empty_like(y) for _ in range(4)]
    dist.all_gather(copies, y)
    assert all(torch.equal(copy, y) for copy in copies)


def check_ring(mesh: meshkit.Mesh) -> None:
    tp, rank = mesh.coordinate["tp"], mesh.rank
    handle = mesh.begin(torch.full((1, 2), float(tp)), "s/tp d -> d s")
    assert handle.wait().tolist() == [[0, 1], [0, 1]]
    assert handle.wait() is handle.wait()
    plain = mesh.begin(torch.arange(4.0), "s -> s/tp").wait()
    assert plain.tolist() == [2.0 * tp, 2.0 * tp + 1]
    x = torch.full((2, 3), float(rank), dtype=torch.float64, requires_grad=True)
    with mesh.view(x=4) as ring:
        for steps in (1, -1, 2, 3, 4):
            x.grad = None
            y = ring.shift(x, "x", steps)
            assert y.tolist() == [[float((rank - steps) % 4)] * 3] * 2
            (y * (rank + 1)).sum().backward()
            assert x.grad is not None
            assert x.grad[0, 0].item() == (rank + steps) % 4 + 1
    rows = torch.arange(3.0, dtype=torch.float64).reshape(3, 1) + 10 * tp
    rows.requires_grad_()
    counts = [1, 2] if tp == 0 else [3, 0]
    received, sizes = mesh.exchange(rows, "tp", counts)
    assert sizes == ([1, 3] if tp == 0 else [2, 0])
    assert received.flatten().tolist() == ([0, 10, 11, 12] if tp == 0 else [1, 2])
    back, again = mesh.exchange(received, "tp", sizes)
    assert again == counts
    assert torch.equal(back, rows)
    (back * back).sum().backward()
    assert torch.equal(rows.grad, 2 * rows.detach())  # type: ignore[arg-type]


def check_view(mesh: meshkit.Mesh) -> None:
    with mesh.view(x=4) as flat:
        whole = torch.arange(16.0, dtype=torch.float64).reshape(8, 2)
        dp, rank = mesh.coordinate["dp"], mesh.rank
        part = whole[4 * dp : 4 * dp + 4].clone().requires_grad_()
        y = mesh.redistribute(part, "o/dp i =tp -> o/x i", to=flat)
        assert torch.equal(y.detach(), whole[2 * rank : 2 * rank + 2])
        (y * y).sum().backward()
        assert torch.equal(part.grad, 2 * part.detach())  # type: ignore[arg-type]
        again = flat.redistribute(y.detach(), "o/x i -> i/tp o *dp", to=mesh)
        tp = mesh.coordinate["tp"]
        assert torch.equal(again, whole.T[tp : tp + 1])


def check_zigzag(mesh: meshkit.Mesh) -> None:
    plan = meshkit.SequencePlan(16, 4, "zigzag")
    tokens = torch.arange(32).reshape(2, 16)
    cut = mesh.redistribute(tokens, "b s -> b s/dp/tp", s=plan)
    assert torch.equal(cut, tokens[:, torch.from_numpy(plan.positions(mesh.rank))])
    assert torch.equal(mesh.redistribute(cut, "b s/dp/tp -> b s", s=plan), tokens)
    for order in ("contiguous", "zigzag"):
        padded = meshkit.SequencePlan(13, 4, order, pad=True)
        x = torch.arange(1.0, 27.0).reshape(2, 13).requires_grad_()
        part = mesh.redistribute(x, "b s =dp =tp -> b s/dp/tp", s=padded)
        positions = torch.from_numpy(padded.positions(mesh.rank))
        assert torch.equal(part, F.pad(x, (0, 3))[:, positions])
        back = mesh.redistribute(part, "b s/dp/tp -> b s =dp =tp", s=padded)
        assert torch.equal(back, x)
        (back * back).sum().backward()
        assert torch.equal(x.grad, 2 * x.detach())  # type: ignore[arg-type]


def check_absent_axes(mesh: meshkit.Mesh) -> None:
    """Check that an absent standard axis has size 1."""
    x = torch.arange(6.0, dtype=torch.float64).reshape(2, 3).requires_grad_()
    y = mesh.redistribute(x, "b s/sp @pp:0 =cp -> (s b/pp) *sp *cp")
    assert torch.equal(y, x.T.flatten())
    (y * y).sum().backward()
    assert torch.equal(x.grad, 2 * x.detach())  # type: ignore[arg-type]
    assert torch.equal(mesh.shift(x, "cp"), x)
    assert mesh.exchange(x, "ep", [2])[1] == [2]
    plan = meshkit.SequencePlan(6, 1, "zigzag")
    assert mesh.redistribute(torch.arange(6), "s -> s/cp", s=plan).tolist() == [*range(6)]
    with mesh.view(x=4) as flat, mesh.checked():
        assert mesh.redistribute(torch.ones(4), "s/sp =dp =tp -> s/x *cp", to=flat).tolist() == [1]


def check_dtensor(mesh: meshkit.Mesh) -> None:
    from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

    device_mesh = mesh.device_mesh()
    kinds: dict[str, Placement] = {"*": Replicate(), "s": Shard(0), "h": Shard(1), "+": Partial()}
    generator = torch.Generator().manual_seed(mesh.rank)
    for left in itertools.product(kinds, repeat=2):
        for right in itertools.product("*sh", repeat=2):
            sides = []
            for places in (left, right):
                words = {"s": "s", "h": "h", "": ""}
                for axis, place in zip(("dp", "tp"), places, strict=True):
                    words[place if place in "sh" else ""] += (
                        f"/{axis}" if place in "sh" else f" {place}{axis}"
                    )
                sides.append(f"{words['s']} {words['h']}{words['']}")
            shape = [8 // 2 ** left.count("s"), 4 // 2 ** left.count("h")]
            local = torch.randn(shape, dtype=torch.float64, generator=generator)
            for axis, place in zip(("dp", "tp"), left, strict=True):
                if place == "*":  # equal on all ranks of the axis
                    local = mesh.redistribute(local, f"... @{axis}:0 -> ... *{axis}")
            theirs = DTensor.from_local(local, device_mesh, [kinds[place] for place in left])
            expected = theirs.redistribute(placements=[kinds[place] for place in right]).to_local()
            ours = mesh.redistribute(local, " -> ".join(sides))
            torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12, msg=str(sides))


def check_sizes_by_mapping(mesh: meshkit.Mesh) -> None:
    """Give the sizes of dims that are called like options of the call."""
    x, sizes = torch.arange(6.0), {"op": 3, "to": 2}
    y = mesh.redistribute(x, "(op to) =tp -> op/tp to", sizes=sizes)
    assert torch.equal(mesh.redistribution("op/tp to -> (op to) =tp", sizes=sizes)(y), x)
    assert torch.equal(mesh.begin(y, "op/tp to -> (op to) =tp", op="sum", sizes=sizes).wait(), x)


def on_mesh(check: Callable[[meshkit.Mesh], None]) -> None:
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        check(mesh)


CHECKS = [
    *(check_other_dtypes, check_kinds_of_tensors),
    *(check_dtypes, check_reductions, check_grad_dtype, check_bits, check_ring),
    *(check_view, check_zigzag, check_absent_axes, check_dtensor),
    check_sizes_by_mapping,
]


@pytest.mark.parametrize("check", CHECKS)
def test_four_ranks(check: Callable[[meshkit.Mesh], None], pool: Pool) -> None:
    pool.run(on_mesh, check)


# ------------------------------------------------------------------ tangents and second gradients

LINEAR = [
    ("s +tp -> s =tp", "sum"),
    ("s +tp -> s =tp", "avg"),
    ("s +tp -> s/tp", "sum"),
    ("s/tp -> s *tp", "sum"),
    ("s *tp -> s/tp", "sum"),
    ("s =tp -> s +tp", "sum"),
    ("s =dp -> s *dp", "sum"),
]


def move_tangents() -> list[str]:
    """Return the movements whose tangent is wrong, and those without a tangent that do not raise.

    The tangent of a linear movement is the movement of the tangent.
    """
    wrong = []
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        x = torch.arange(4.0) + mesh.coordinate["tp"]
        tangent = torch.ones(4) * (mesh.coordinate["tp"] + 1)
        moves: dict[str, Any] = {
            f"{pattern} {op}": lambda x, p=pattern, op=op: mesh.redistribute(x, p, op=op)
            for pattern, op in LINEAR
        }
        for name, move in moves.items():
            expected = move(tangent)
            results = [use(move, x, tangent) for use in (with_dual, with_jvp)]
            wrong += [name for result in results if not torch.equal(result, expected)]
        refused: dict[str, Any] = {
            "max": lambda x: mesh.redistribute(x, "s +tp -> s =tp", op="max"),
            "begin": lambda x: mesh.begin(x, "s +tp -> s =tp").wait(),
            "shift": lambda x: mesh.shift(x, "tp", 1),
            "exchange": lambda x: mesh.exchange(x, "tp", [2, 2])[0],
        }
        if KEEPS_ORDER:  # the compiler of torch 2.11 fails over an error that the function raises
            compiled = torch.compile(lambda x: mesh.shift(x, "tp", 1), backend="aot_eager")
            refused["compiled shift"] = compiled
        for name, move in refused.items():
            for use in (with_dual, with_jvp):
                with contextlib.suppress(meshkit.SpecError, RuntimeError):
                    wrong.append(f"{name}: {use(move, x, tangent)}")
    return wrong


def with_dual(move: Any, x: Tensor, tangent: Tensor) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(move(forward_ad.make_dual(x, tangent))).tangent


def with_jvp(move: Any, x: Tensor, tangent: Tensor) -> Any:
    return torch.func.jvp(move, (x,), (tangent,))[1]


def test_a_tangent_moves_as_its_tensor_does_or_is_refused(pool: Pool) -> None:
    assert pool.run(move_tangents) == [[]] * 4


def move_unequal(kind: str, with_guard: bool) -> Any:
    """Make another call on rank 2, inside a guard as the second one over its group."""
    odd = meshkit.init().rank == 2
    x = torch.ones(4 if odd and kind == "shape" else 2, 2)
    x = x.double() if odd and kind == "dtype" else x
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        axis = "b/tp -> a b" if odd and kind == "pattern" else "b -> a b"
        moves: dict[str, Callable[[], object]] = {
            "shift": lambda: mesh.shift(x[:, :1] if odd else x, "tp", 1),
            "exchange": lambda: mesh.exchange(x[:, :1] if odd else x, "tp", [1, 1]),
            "begin": lambda: mesh.begin(x[:1] if odd else x, "a b +tp -> a b =tp").wait(),
            "pattern": lambda: mesh.redistribute(
                x, f"a {axis} *tp" if odd else "a/tp b -> a b *tp"
            ),
        }
        move = moves.get(kind, lambda: mesh.redistribute(x, "a/tp b -> a b *tp"))
        with mesh.guard(timeout=20) if with_guard else contextlib.nullcontext():
            if with_guard:
                mesh.redistribute(torch.ones(2, 2), "a/tp b -> a b *tp")
            try:
                move()
            except meshkit.DisagreementError as error:
                return sorted(error.requests), error.evidence
        return None


@pytest.mark.parametrize(
    ("kind", "with_guard"),
    [
        ("shape", True),
        ("dtype", True),
        ("pattern", False),
        ("shift", False),
        ("exchange", False),
        ("begin", True),
    ],
)
def test_unequal_calls_are_named_before_gloo_ends_the_process(
    pool: Pool, kind: str, with_guard: bool
) -> None:
    first, second, *others = pool.run(move_unequal, kind, with_guard)
    assert first is second is None
    assert others[0] == others[1]
    ranks, (line, other) = others[0]
    assert ranks == [2, 3]
    assert line.startswith("rank 2: ")
    assert other.startswith("rank 3: ")


def second_gradients() -> list[str]:
    """Return the movements whose second derivative is wrong, in three modes of torch."""
    wrong = []
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        x = torch.arange(4.0) + 1
        v = torch.arange(4.0) - 2 + mesh.coordinate["tp"]
        counts = [1, 3] if mesh.coordinate["tp"] else [2, 2]
        moves: dict[str, Any] = {
            "gather": lambda x: mesh.redistribute(x, "s/tp -> s *tp"),
            "sum": lambda x: mesh.redistribute(x, "s +tp -> s *tp"),
            "shift": lambda x: mesh.shift(x, "tp", 1),
            "exchange": lambda x: mesh.exchange(x, "tp", counts)[0],
        }
        for name, move in moves.items():
            # the sum over the ranks of move(x) ** 3: its Hessian is the transpose of the movement
            # times 6 move(x), times the movement of the tangent
            leaf = x.clone().requires_grad_()
            y = move(leaf)
            (expected,) = torch.autograd.grad(y, leaf, (6 * y * move(v)).detach())
            leaf = x.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(move(leaf).pow(3).sum(), leaf, create_graph=True)
            results = [torch.autograd.grad(gradient, leaf, v)[0]]
            if name in ("gather", "sum"):
                gradient_of = torch.func.grad(lambda x: move(x).pow(3).sum())  # noqa: B023
                results.append(torch.func.jvp(gradient_of, (x,), (v,))[1])
                with forward_ad.dual_level():
                    leaf = forward_ad.make_dual(x.clone().requires_grad_(), v)
                    (dual,) = torch.autograd.grad(move(leaf).pow(3).sum(), leaf)
                    results.append(forward_ad.unpack_dual(dual).tangent)
            wrong += [name for result in results if not torch.equal(result, expected)]
    return wrong


def test_second_gradients_are_those_of_the_whole_movement(pool: Pool) -> None:
    assert pool.run(second_gradients) == [[]] * 4


# ------------------------------------------------------------------ torch.compile


COMPILED = """
import torch, torch.distributed as dist, meshkit
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
mesh = meshkit.build_mesh(dp=2, sp=2)
gather = mesh.redistribution("b s/sp e -> b s e *sp")

def step(x):
    y = mesh.redistribute(x, "b s/sp h d -> b s h/sp d")
    z = gather(mesh.redistribute(y * y, "b s h/sp d -> b s/sp (h d)"))
    return mesh.shift(mesh.redistribute(z, "b s e +dp -> b s e =dp"), "sp", 1)

backend = CompileCounterWithBackend("aot_eager")
compiled = torch.compile(step, fullgraph=True, backend=backend, dynamic=True)
for length in (8, 16):
    x = torch.randn(2, length, 4, 2, requires_grad=True)
    y = compiled(x)
    y.sum().backward()
    print(*y.shape, *x.grad.shape)
print(backend.frame_count)
exchange = mesh.redistribution("s/sp d -> s d/sp", s=5, d=3)
uneven = torch.compile(exchange.__call__, fullgraph=True, backend="aot_eager")
x = torch.randn(2, 3, requires_grad=True)
uneven(x).sum().backward()
print(*uneven(x).shape, *x.grad.shape)
"""


@pytest.mark.slow
def test_torch_compile_traces_forward_and_backward_in_one_graph_for_two_lengths() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["2 16 8 2 8 4 2", "2 32 8 2 16 4 2", "1", "5 1 2 3"]


def compare_compiled() -> list[str]:
    """Return the patterns whose compiled results or gradients differ, for two lengths each."""
    wrong = []
    with meshkit.build_mesh(dp=1, tp=2) as mesh, mesh.view(x=2) as flat:
        plan = meshkit.SequencePlan(8, 2, "zigzag")
        moves: dict[str, Any] = {
            "s h @tp:1 -> s h *tp": {},
            "s h +tp -> s h @tp:1": {},
            "s h @tp:0 -> s/tp h": {},
            "s h =tp -> s/x h": {"to": flat},
            "s h =tp -> s h/tp": {"h": plan},
        }
        for pattern, options in moves.items():
            torch._dynamo.reset()
            compiled = torch.compile(mesh.redistribute, fullgraph=True, backend="aot_eager")
            for length in (4, 6):
                whole = torch.arange(length * 8, dtype=torch.float64).reshape(length, 8)
                x = (whole * (mesh.rank + 1 if "=" not in pattern else 1)).requires_grad_()
                results = []
                for move in (mesh.redistribute, compiled):
                    y = move(x, pattern, **options)
                    weights = torch.arange(y.numel(), dtype=torch.float64).reshape(y.shape)
                    results.append((y, *torch.autograd.grad((y * weights).sum(), x)))
                if not all(map(torch.equal, *results)):
                    wrong.append(pattern)
    return wrong


@pytest.mark.slow
def test_compiled_moves_equal_plain_ones_on_real_ranks() -> None:
    assert meshkit.spawn(compare_compiled, 2, timeout=300) == [[], []]


def run_traced_programs() -> list[str]:
    """Return the moves whose programs for any sizes differ from those for the given ones."""
    wrong = []
    with meshkit.build_mesh(dp=1, tp=2, ranks=[0, 1]) as mesh:
        for prime in FIRST_PRIMES if mesh.inside else ():
            plan = meshkit.SequencePlan(2 * prime, 2, "zigzag", pad=True)
            moves: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
                ("v/tp d -> v d/tp", {"v": 2 * prime}, (prime, 2)),
                ("v/tp d -> (v d) =tp", {"v": 2 * prime}, (prime, 1)),
                ("(v/tp d) e -> v d/tp e", {"v": 2 * prime}, (2 * prime, 1)),
                ("(v d) e/tp -> v/tp (d e)", {"v": 2 * prime}, (2 * prime, 1)),
                ("a v +tp -> v/tp a", {"v": 4 * prime}, (1, 4 * prime)),
                ("s a =tp -> s/tp a", {"s": plan}, (2 * prime, 1)),
                ("a v/tp -> a v =tp", {"v": 0}, (3, 0)),
            ]
            for pattern, sizes, shape in moves:
                x = torch.arange(math.prod(shape)).reshape(shape) + mesh.rank
                kept = mesh.redistribution(pattern, **sizes)
                name = kept._publish(len(shape)) or kept._publish_shape(*shape)
                pair = getattr(kept._traced, name)
                if not torch.equal(pair.run_forward(x, pair.sizes(x)), kept(x)):
                    wrong.append(f"{pattern} with {sizes}")
    return wrong


def test_a_given_size_is_never_taken_for_an_unknown_one(pool: Pool) -> None:
    assert pool.run(run_traced_programs) == [[]] * RANKS


def without_communication() -> list[str]:
    """Return the nodes of the gradient over an axis of size 1, and of 2; check both gradients."""
    with meshkit.build_mesh(dp=4, tp=1) as mesh:
        x = torch.randn(8, 6, dtype=torch.float64, requires_grad=True)
        alone = mesh.redistribute(x, "... =tp -> ... *tp")
        moved = mesh.redistribute(x, "... =dp -> ... *dp")
        with mesh.checked():
            looked_at = mesh.redistribute(x, "... =tp -> ... *tp")
        (3 * alone + moved).sum().backward()
        assert torch.equal(alone, x)
        assert alone is not x
        assert torch.equal(x.grad, torch.full_like(x, 3 + 4))
        return [type(y.grad_fn).__name__ for y in (alone, moved, looked_at)]


def test_a_movement_over_an_axis_of_size_1_costs_a_view(pool: Pool) -> None:
    for nodes in pool.run(without_communication):
        assert nodes == ["ViewBackward0", "RedistributeBackward", "RedistributeBackward"]


def test_a_cache_drops_the_least_recently_used_value_also_for_traced_code() -> None:
    cache: Cache[str] = Cache()
    for number in range(2500):
        cache.add(number, str(number))
        name = cache.publish(number)
        assert getattr(cache, name) == str(number)
        assert cache.get(0) == "0"  # it is used all the time
    kept = [number for number in range(2500) if cache.get(number) is not None]
    assert kept == [0, *range(2500 - MAX_KEPT + 1, 2500)]
    assert sum(name.startswith("traced_") for name in vars(cache)) == MAX_KEPT


def move_many_lengths() -> list[int]:
    """Return how many entries the caches hold after 1,050 lengths, by keyword and by shape."""
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        by_shape = mesh.redistribution("s/tp -> s/tp")
        assert mesh.redistribution("s/tp -> s/tp") is by_shape
        for length in range(2, 2102, 2):
            mesh.redistribute(torch.zeros(length // 2), "s/tp -> s/tp", s=length)
            by_shape(torch.zeros(length // 2))
        held = [len(mesh._moves.known._values), len(by_shape._pairs._values)]
    return [*held, plan_move.cache_info().currsize, pattern_module.parse_text.cache_info().currsize]


def test_caches_hold_at_most_a_thousand_entries(pool: Pool) -> None:
    for held in pool.run(move_many_lengths):
        assert max(held) <= MAX_KEPT == 1000
        assert held[:2] == [MAX_KEPT, MAX_KEPT]
