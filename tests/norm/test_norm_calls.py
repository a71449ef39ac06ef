"""Gradients that one rank holds, orders or refuses otherwise: the norm of one process, or an error.

No rank waits for another one that has raised, and no norm is wrong without a word.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import meshkit
from meshkit.norm import norm
from tests.pool import Pool
from tests.promises import BUSY

RANKS = 4  # of the pool, dp=2 tp=2
WAIT = 3.0  # seconds in which all ranks have raised; collectives may take minutes
SUM = {"*": "... +dp +tp"}


def parameter_of(gradient: Any, like: Tensor | None = None) -> nn.Parameter:
    """Return a parameter with a gradient, or one like another tensor without any."""
    parameter = nn.Parameter(torch.zeros_like(gradient if like is None else like))
    if gradient is not None:
        parameter.grad = gradient
    return parameter


def three(rank: int) -> dict[str, Tensor]:
    """Return three parameters of one shape, whose gradients are told apart by their norms."""
    return {name: parameter_of(torch.full((2,), 3.0**n)) for n, name in enumerate("abc")}


# ---------------------------------------------------------------- norms of one process


def reorder(mesh: meshkit.Mesh, odd: int) -> None:
    """Give the parameters in another order on one rank: their sums are those of their names."""
    named = three(mesh.rank)
    if mesh.rank == odd:
        named = dict(reversed(named.items()))
    wanted = math.sqrt(2 * sum((RANKS * 3.0**n) ** 2 for n in range(3)))
    assert mesh.grad_norm(named, layout=SUM).item() == pytest.approx(wanted)


def leave_out_gradients(mesh: meshkit.Mesh, odd: int) -> None:
    """Leave out a gradient of a sum on one rank: plain, complex, and a DTensor."""
    is_odd = mesh.rank == odd
    for dtype in (torch.float32, torch.float64, torch.complex64):
        ones = torch.ones(3, 2, dtype=dtype)
        named = {"w": parameter_of(None if is_odd else ones, ones)}
        norm = mesh.grad_norm(named, layout=SUM)
        assert norm.item() == pytest.approx(math.sqrt(6 * (RANKS - 1) ** 2))
    dp, along = mesh.device_mesh("dp"), mesh.coordinate["tp"] == odd % 2
    for layout in ({"w": "a b +tp"}, SUM):  # the DTensor itself says how it is cut along dp
        whole = distribute_tensor(torch.ones(4, 2), dp, [Shard(0)])
        named = {"w": parameter_of(None if along else whole, whole)}
        assert mesh.grad_norm(named, layout=layout).item() == pytest.approx(math.sqrt(8))
        half = whole if mesh.coordinate["dp"] == 0 else None  # one part of it, on all ranks of tp
        named = {"w": parameter_of(half, whole)}
        assert mesh.grad_norm(named, layout=layout).item() == pytest.approx(math.sqrt(4 * 4))


def add_sums_and_cuts(mesh: meshkit.Mesh, odd: int) -> None:
    """Take sums along several axes beside cuts and copies in one call, twice."""
    for _ in range(2):
        named = {name: parameter_of(torch.ones(4)) for name in ("both", "one", "cut", "copy")}
        layout = {"both": "n +dp +tp", "one": "n/tp +dp", "cut": "n/tp"}
        squares = 4 * 16 + 8 * 4 + 8 + 4
        assert mesh.grad_norm(named, layout=layout).item() == pytest.approx(math.sqrt(squares))
        before = {name: p.grad for name, p in named.items()}
        mesh.clip_grad_norm(named, 1.0, layout=layout)
        for gradient in before.values():
            torch.testing.assert_close(gradient, torch.full((4,), 1 / math.sqrt(squares)))


def take_unequal_names(mesh: meshkit.Mesh, odd: int) -> None:
    """Take layouts and names that differ where they may: experts with names of their own."""
    name = f"expert{mesh.coordinate['tp']}"
    layout = {f"{name}.w": "n/tp"}
    norm = mesh.grad_norm({f"{name}.w": parameter_of(torch.ones(2))}, layout=layout)
    assert norm.item() == pytest.approx(2)


def follow_the_fixes(mesh: meshkit.Mesh, odd: int) -> None:
    """Clip gradients in main_grad, of another dtype, and sparse ones, as their errors say."""
    p: Any = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    p.main_grad = torch.tensor([3.0, 4.0])
    with pytest.raises(meshkit.SpecError, match=r"t.grad = p.main_grad, and \{name: t\}"):
        mesh.grad_norm({"w": p})
    t = torch.empty_like(p.main_grad)
    t.grad = p.main_grad
    assert mesh.clip_grad_norm({"w": t}, 1.0).item() == 5.0
    torch.testing.assert_close(p.main_grad, torch.tensor([0.6, 0.8]))
    embedding = nn.Embedding(10, 4, sparse=True)
    embedding(torch.tensor([1, 2, 2])).sum().backward()
    with pytest.raises(meshkit.SpecError, match=r"p.grad = p.grad.to_dense\(\)"):
        mesh.grad_norm(embedding)
    p = embedding.weight
    p.grad = p.grad.to_dense()
    assert mesh.clip_grad_norm(embedding, 1.0).item() == pytest.approx(math.sqrt(4 + 4 * 4))


def refuse_a_partial_gradient_of_some_ranks(mesh: meshkit.Mesh, odd: int) -> None:
    dp = mesh.device_mesh("dp")
    gradient = DTensor.from_local(torch.ones(2), dp, [Partial()])
    named = {"w": parameter_of(None, distribute_tensor(torch.zeros(2), dp, [Replicate()]))}
    if mesh.coordinate["dp"] != odd % 2:
        named["w"].grad = gradient
    with pytest.raises(meshkit.DisagreementError, match=r"w cannot be added up: sum over the Dev"):
        mesh.grad_norm(named)
    named["w"].grad = gradient
    assert mesh.grad_norm(named).item() == pytest.approx(math.sqrt(8))


@pytest.mark.parametrize("odd", [0, 3])
@pytest.mark.parametrize(
    "check",
    [
        reorder,
        leave_out_gradients,
        add_sums_and_cuts,
        take_unequal_names,
        follow_the_fixes,
        refuse_a_partial_gradient_of_some_ranks,
    ],
)
def test_the_norm_is_that_of_one_process(
    pool: Pool, check: Callable[[meshkit.Mesh, int], None], odd: int
) -> None:
    pool.run(on_a_mesh, check, odd)


def on_a_mesh(check: Callable[[meshkit.Mesh, int], Any], *args: Any) -> Any:
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        return check(mesh, *args)


# ---------------------------------------------------------------- calls that are refused


def without_b() -> dict[str, Tensor]:
    return {name: p for name, p in three(0).items() if name != "b"}


def of_main_grad() -> dict[str, Tensor]:
    parameter: Any = nn.Parameter(torch.zeros(2))
    parameter.main_grad = torch.ones(2)
    return {"a": parameter}


def sparse() -> dict[str, Tensor]:
    return {**three(0), "b": parameter_of(torch.ones(2).to_sparse(), torch.zeros(2))}


def expanded() -> dict[str, Tensor]:
    return {**three(0), "b": parameter_of(torch.ones(1).expand(2), torch.zeros(2))}


Options = dict[str, Any]
REFUSED: dict[str, Options] = {  # by the rank itself
    "no names": {"parameters": 3},
    "a generator": {"parameters": lambda: nn.Linear(2, 2).parameters()},
    "a misspelt axis": {"layout": {"a": "n/ttp"}},
    "a side of two dims": {"layout": {"a": "n m"}},
    "no order": {"norm_type": "two"},
    "no limit": {"max_norm": None},
    "a size that no side has": {"sizes": {"h": 3}},
    "main_grad": {"parameters": of_main_grad},
    "sparse": {"parameters": sparse},
    "expanded": {"parameters": expanded},
}
UNEQUAL: dict[str, Options] = {  # all ranks find out
    "another order": {"norm_type": 1.0},
    "the largest": {"norm_type": math.inf},
    "another limit": {"max_norm": 2.0},
    "errors": {"error_if_nonfinite": True},
    "a side": {"layout": {"a": "n =tp", "*": "..."}},
    "another side": {"layout": {"a": "n +tp", "*": "..."}},
}
IN_A_SUM: dict[str, Options] = {  # beside layouts with sums
    "no gradient": {"parameters": without_b},
    "another shape": {"parameters": lambda: {**three(0), "b": parameter_of(torch.ones(3))}},
    "complex": {
        "parameters": lambda: {**three(0), "b": parameter_of(torch.ones(2, dtype=torch.complex64))}
    },
    "sparse": {"parameters": sparse},
    "a misspelt axis": {"layout": {"a": "n +ttp"}},
    "a cut": {"layout": {"a": "n/tp", "*": "... +dp +tp"}},
}


TABLES = {"refused": REFUSED, "unequal": UNEQUAL, "in a sum": IN_A_SUM}


def clip(mesh: meshkit.Mesh, options: Options, layout: Any) -> tuple[str, list[float]]:
    """Return the error of a call, or its norm, and the gradients after it."""
    given = {"parameters": three, "max_norm": 1.0, "layout": layout, **options}
    named = given.pop("parameters")
    named = named(*[mesh.rank] * (named is three)) if callable(named) else named
    began = time.monotonic()
    try:
        text = str(mesh.clip_grad_norm(named, given.pop("max_norm"), **given).item())
    except meshkit.MeshkitError as error:
        text = f"{type(error).__name__}: {error}"
    assert time.monotonic() - began < WAIT + BUSY, text
    held = named.values() if isinstance(named, Mapping) else ()
    grads = [p.grad.to_dense().flatten() for p in held if p.grad is not None]
    return text, torch.cat(grads).abs().tolist() if grads else []


def call_otherwise(
    mesh: meshkit.Mesh, odd: int, table: str, layout: Any, is_later: bool
) -> dict[str, str]:
    """Return the errors of this rank if one rank calls otherwise."""
    texts = {}
    for name, options in TABLES[table].items():
        if is_later:
            clip(mesh, {}, layout)
        text, after = clip(mesh, options if mesh.rank == odd else {}, layout)
        if text[0].isdigit():
            raise AssertionError((name, text))
        assert all(x in (1.0, 3.0, 9.0) for x in after), (name, after)
        texts[name] = text
        norm, _ = clip(mesh, {}, layout)  # the next call is as good as before
        scale = RANKS if layout == SUM else 1
        assert float(norm) == pytest.approx(scale * math.sqrt(2 * (1 + 9 + 81))), name
    return texts


@pytest.mark.parametrize("is_later", [False, True])
@pytest.mark.parametrize(
    ("table", "layout"),
    [("refused", None), ("unequal", {"*": "..."}), ("refused", SUM), ("in a sum", SUM)],
)
@pytest.mark.parametrize("odd", [0, 2])
def test_all_ranks_raise_at_once_if_one_rank_calls_otherwise(
    pool: Pool, odd: int, table: str, layout: Any, is_later: bool
) -> None:
    by_rank = pool.run(on_a_mesh, call_otherwise, odd, table, layout, is_later)
    for name in TABLES[table]:
        texts = [texts[name] for texts in by_rank]
        peers = {text for rank, text in enumerate(texts) if rank != odd}
        assert len(peers) == 1, texts
        peer = peers.pop()
        assert peer.startswith("DisagreementError"), peer
        if texts[odd].startswith("DisagreementError"):
            assert texts[odd].partition("): ")[2] == peer.partition("): ")[2]
        else:
            summary = texts[odd].splitlines()[0].partition("): ")[2]
            assert f"Rank {odd} gave up" in peer
            assert summary in peer


def change_the_limit(mesh: meshkit.Mesh, odd: int) -> None:
    """Clip to another limit in each call; only one rank has another one, by one bit."""
    compared = []
    with pytest.MonkeyPatch.context() as patch:
        real = norm.compare_norm_calls
        patch.setattr(norm, "compare_norm_calls", lambda *x: (compared.append(1), real(*x)))
        for order in (1.0, 2.0, math.inf):
            for limit in LIMITS:
                mesh.clip_grad_norm(three(mesh.rank), limit, order)
            assert len(compared) == 1, "only the first call of an order"
            for limit in LIMITS:
                named, own = three(mesh.rank), limit
                if mesh.rank == odd:
                    own = math.nextafter(limit, 5.0)
                with pytest.raises(meshkit.DisagreementError, match="max_norm"):
                    mesh.clip_grad_norm(named, own, order)
                assert named["b"].grad.tolist() == [3.0, 3.0]
            compared.clear()


LIMITS = (0.0, 5e-324, 1.0, 1e300, math.inf, 0.25)


@pytest.mark.parametrize("odd", [0, 3])
def test_a_limit_may_change_in_each_call_if_all_ranks_have_it(pool: Pool, odd: int) -> None:
    pool.run(on_a_mesh, change_the_limit, odd)


# ---------------------------------------------------------------- scaled losses


def train(mesh: meshkit.Mesh | None, kinds: list[str]) -> tuple[list[float], float]:
    """Train 4 steps with a GradScaler, one of them with an overflow; return weights and scale.

    The weight is cut over tp, and one part of its gradient overflows. The bias is a copy.
    """
    part = slice(None) if mesh is None else slice(2 * mesh.coordinate["tp"], None)
    part = slice(part.start, part.start + 2) if mesh else part
    weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0])[part].clone())
    model = {"weight": weight, "bias": nn.Parameter(torch.ones(1))}
    optimizer = torch.optim.Adam(model.values(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)
    layout = {"weight": "n/tp"}
    for kind in kinds:
        x = torch.tensor([1.0, 2.0, 3.0, float(kind)])[part]
        scaler.scale((weight * x).sum() + 2 * model["bias"].sum()).backward()
        scaler.unscale_(optimizer)
        if mesh is None:
            nn.utils.clip_grad_norm_(model.values(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        elif mesh.clip_grad_norm(model, 1.0, layout=layout).isfinite():
            scaler.step(optimizer)
            scaler.update()
        else:  # on any rank
            scaler.update(scaler.get_scale() * scaler.get_backoff_factor())
        optimizer.zero_grad()
    whole = weight.detach() if mesh is None else mesh.redistribute(weight.detach(), "n/tp -> n")
    return [*whole.tolist(), model["bias"].item()], scaler.get_scale()


@pytest.mark.parametrize("overflow", ["inf", "nan"])
def test_all_ranks_skip_a_step_whose_scaled_gradients_overflow_on_one_rank(
    pool: Pool, overflow: str
) -> None:
    kinds = ["4", "1", overflow, "2", "3"]
    wanted, scale = train(None, kinds)
    for weights, own_scale in pool.run(on_a_mesh, train, kinds):
        assert weights == pytest.approx(wanted, rel=1e-5)
        assert own_scale == scale == 4.0
