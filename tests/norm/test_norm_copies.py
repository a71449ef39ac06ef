"""The norm of DTensors whose DeviceMesh lacks an axis of the mesh: copies there, or refused."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import meshkit
from tests.newer_torch import needs_order, needs_slices
from tests.pool import Pool

RANKS = 4


def error_of(work: Callable[[], Any]) -> meshkit.SpecError:
    with pytest.raises(meshkit.SpecError) as caught:
        work()
    return caught.value


class SwiGLU(nn.Module):
    """A feed-forward layer with a fused weight of gate and up."""

    def __init__(self, dim: int = 8, hidden: int = 12, bias: bool = True) -> None:
        super().__init__()
        self.gate_up = nn.Linear(dim, 2 * hidden, bias=bias)
        self.down = nn.Linear(hidden, dim, bias=False)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(self.norm(x)).chunk(2, -1)
        y: Tensor = self.down(nn.functional.silu(gate) * up)
        return y


def single_swiglu() -> tuple[SwiGLU, Tensor, float]:
    """Return a layer of one process with gradients, its input, and the norm of the gradients."""
    torch.manual_seed(1)
    layer, x = SwiGLU().double(), torch.randn(4, 8, dtype=torch.float64)
    layer(x).pow(2).sum().backward()
    norm = nn.utils.get_total_norm([p.grad for p in layer.parameters()])
    return layer, x, norm.item()


def cut_by_hand() -> None:
    """Refuse FSDP2 over a layer that tp cuts without DTensors; take it with the layout."""
    single, x, expected = single_swiglu()
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        part = SwiGLU(8, 6).double()
        with torch.no_grad():
            for name, cut in LAYOUT.items():
                size = {"two": 2} if "two" in cut else {}
                whole = single.get_parameter(name)
                own = mesh.redistribute(
                    whole.detach(), f"{cut.replace('/tp', '')} -> {cut}", **size
                )
                part.get_parameter(name).copy_(own)
        fully_shard(part, mesh=mesh.device_mesh("dp"))
        y = mesh.redistribute(part(x), "b d +tp -> b d =tp")
        y.pow(2).sum().backward()
        before = [p.grad.to_local().clone() for p in part.parameters()]
        error = error_of(lambda: mesh.clip_grad_norm(part, 0.1))
        assert error.summary == "the gradient of gate_up.weight differs over tp."
        assert error.axis == "tp"
        assert "layout={'gate_up.weight': 'a/tp b'}" in error.fix_text
        for old, parameter in zip(before, part.parameters(), strict=True):
            assert old.equal(parameter.grad.to_local())
        layout = {**LAYOUT, "norm.*": "d +tp"}  # its input is copied, and its gradient not summed
        norm = mesh.clip_grad_norm(part, 0.1, layout=layout, sizes={"two": 2})
        assert norm.item() == pytest.approx(expected, rel=1e-12)


LAYOUT = {
    "gate_up.weight": "(two h/tp) d",
    "gate_up.bias": "(two h/tp)",
    "down.weight": "d h/tp",
}


def spread(whole: Tensor, device_mesh: DeviceMesh, *placements: Placement) -> nn.Parameter:
    """Return a parameter whose gradient is a DTensor, which each rank cuts from its own tensor."""
    parts = distribute_tensor(whole, device_mesh, placements, src_data_rank=None)
    parameter = nn.Parameter(torch.zeros_like(parts))
    parameter.grad = parts
    return parameter


def refuse_other_gradients() -> list[tuple[str, str]]:
    """Return the summaries of gradients that count as copies and are none."""
    errors = []
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        dp, tp = mesh.device_mesh("dp"), mesh.device_mesh("tp")
        at, ones = mesh.coordinate, torch.ones(3, 4)
        last = ones.clone()
        last[2, 3] += 0.1 * at["tp"]  # in the part of dp=1
        zero = torch.zeros(3, 4)
        plain = nn.Parameter(ones.clone())
        plain.grad = ones.clone()
        named: list[dict[str, Tensor]] = [
            {"a": plain, "w": spread(ones * (1 + 0.002 * at["tp"]), dp, Shard(0))},
            {"a": spread(ones, dp, Shard(0)), "w": spread(ones + at["dp"], tp, Shard(1))},
            {"w": spread(last, dp, Shard(0))},
            {"w": spread(last, dp, Replicate())},
            {"w": spread(last.bfloat16(), dp, Shard(0))},
            {"w": spread(torch.complex(ones, last), dp, Shard(1))},
            {"w": spread(torch.tensor([1.0 + at["tp"]]), dp, Shard(0))},  # dp=1 has an empty part
            {"w": spread(torch.tensor(1.0 + at["tp"]), dp, Replicate())},
            {"w": spread(ones[: 2 + at["tp"]], dp, Shard(0))},  # uneven parts of tp
            {f"w{at['tp']}": spread(ones, dp, Shard(0))},  # experts of their own
            {"w": spread(ones, dp, Shard(0))} if at["tp"] else {"a": spread(ones, dp, Shard(0))},
            {
                "w": spread(zero if at["tp"] else ones, dp, Shard(0)),
                "a": spread(ones, dp, Shard(0)),
            },
            {
                "w": spread(ones if at["tp"] else zero, dp, Shard(0)),
                "a": spread(ones, dp, Shard(0)),
            },
            {"z": spread(zero, dp, Shard(0)), "w": spread(last, dp, Shard(0))},
            {"v": plain, "w": plain_or_dtensor(last, dp, is_plain=at["tp"] == 0)},
        ]
        for parameters in named:
            error = error_of(lambda p=parameters: mesh.clip_grad_norm(p, 0.1))
            errors.append((error.summary, error.axis))
    return errors


def plain_or_dtensor(whole: Tensor, device_mesh: DeviceMesh, *, is_plain: bool) -> nn.Parameter:
    if not is_plain:
        return spread(whole, device_mesh, Shard(0))
    parameter = nn.Parameter(torch.zeros_like(whole))
    parameter.grad = whole.clone()
    return parameter


def test_dtensors_that_are_no_copies_are_refused_on_all_ranks(pool: Pool) -> None:
    results = pool.run(refuse_other_gradients)
    assert all(result == results[0] for result in results)
    names = ["w"] * 9 + ["w0", "a"] + ["w"] * 4
    for index, (name, (summary, axis)) in enumerate(zip(names, results[0], strict=True)):
        assert axis == ("dp" if index == 1 else "tp")
        assert summary == f"the gradient of {name} differs over {axis}."


def follow(
    mesh: meshkit.Mesh,
    named: dict[str, Tensor],
    expected: float,
    layout: dict[str, str] | None = None,
) -> list[str]:
    """Return the axes of the errors whose fixes lead to the norm of one process."""
    axes: list[str] = []
    for _ in range(3):
        try:
            norm = mesh.grad_norm(named, layout=layout).item()
        except meshkit.SpecError as error:
            axes.append(error.axis)
            (text,) = re.findall(r"layout=(\{.*?\}) if each", error.fix_text)
            layout = eval(text, {"layout": layout})
        else:
            assert norm == pytest.approx(expected, rel=1e-12)
            return axes
    raise AssertionError(axes)


def follow_fixes_of_views() -> list[list[str]]:
    """Follow the fixes for DTensors whose ranks are not all ranks of some axes."""
    parts, (one, two, four) = draw_parts()
    with ExitStack() as stack:
        mesh = stack.enter_context(meshkit.build_mesh(dp=4))
        view = stack.enter_context(mesh.view(dp=2, ep=2))
        lone = stack.enter_context(mesh.view(dp=4, tp=1)).device_mesh("tp")
        middle = stack.enter_context(ranks_of_one_mesh(1, 2))
        rank, ep, over = mesh.rank, view.coordinate["ep"], view.device_mesh("dp")
        expert = spread(parts[ep], over, Shard(0))
        dense = spread(parts[0], mesh.device_mesh("dp"), Shard(0))
        some = {"m": spread(parts[0], middle, Shard(0))} if rank in (1, 2) else {}
        return [
            follow(mesh, {"w": expert}, two),
            follow(mesh, {"v": expert}, two, {"*": "o/ep i"}),  # the mesh has no ep
            follow(view, {"v": expert}, two, {"*": "o/ep i"}),
            follow(mesh, {f"w{ep}": expert}, two, {"w*": "o/ep i"}),
            follow(mesh, {"a": dense, "x": expert}, math.hypot(one, two)),
            follow(mesh, {"c": spread(parts[0], over, Shard(0))}, one),
            follow(mesh, some, one),
            follow(mesh, {"s": spread(parts[rank], lone, Shard(0))}, four),
        ]


def follow_fixes_of_layouts() -> list[list[str]]:
    """Follow the fixes for gradients of which a layout says nothing, or not all."""
    parts, (one, two, four) = draw_parts()
    with meshkit.build_mesh(dp=2, tp=2) as mesh, ranks_of_one_mesh(2, 3) as last:
        rank = mesh.rank
        dp, tp = mesh.coordinate["dp"], mesh.coordinate["tp"]
        over_dp, over_tp = mesh.device_mesh("dp"), mesh.device_mesh("tp")
        some = {"f": spread(parts[0], last, Shard(0))} if dp else {}
        axes = [
            follow(mesh, {"a": with_gradient(parts[rank])}, four, {"a": "o/tp i"}),
            follow(mesh, {"b": with_gradient(parts[rank])}, four, {"*": "... =pp"}),
            follow(mesh, {"c": spread(parts[dp], over_tp, Shard(0))}, two, {"c": "o/tp i"}),
            follow(mesh, {"d": spread(parts[tp], over_dp, Partial())}, two),
            follow(mesh, {"e": with_gradient(parts[dp] / 2)}, two, {"e": "o i +tp"}),
            follow(mesh, some, one),
            follow(mesh, {"g": with_gradient(parts[rank])}, four, {"g": "(two o/dp) i"}),
            follow(mesh, {"h": spread(parts[0], over_dp, Shard(0))}, one, {"*": "o i +dp"}),
        ]
    with meshkit.build_mesh(pp=2, dp=2) as mesh:
        over, dp = mesh.device_mesh("pp"), mesh.coordinate["dp"]
        axes += [
            follow(mesh, {"a": spread(parts[dp], over, Shard(1))}, two),
            follow(mesh, {"b": spread(parts[0], over, Shard(1))}, one),
        ]
    return axes


@contextmanager
def ranks_of_one_mesh(*ranks: int) -> Iterator[DeviceMesh]:
    """Make a DeviceMesh of some ranks, and destroy its group. Collective."""
    device_mesh = DeviceMesh("cpu", ranks)
    try:
        yield device_mesh
    finally:
        if torch.distributed.get_rank() in ranks:
            torch.distributed.destroy_process_group(device_mesh.get_group())


def draw_parts() -> tuple[Tensor, list[float]]:
    """Return four gradients, and the norms of the first, of two and of all of them."""
    torch.manual_seed(0)
    parts = torch.randn(4, 6, 4, dtype=torch.float64)
    return parts, [parts[:count].norm().item() for count in (1, 2, 4)]


def with_gradient(gradient: Tensor) -> nn.Parameter:
    parameter = nn.Parameter(torch.zeros_like(gradient))
    parameter.grad = gradient.clone()
    return parameter


@pytest.mark.parametrize(
    ("check", "axes"),
    [
        (follow_fixes_of_views, ["dp", "dp", "", "dp dp", "dp", "", "dp", "dp"]),
        (
            follow_fixes_of_layouts,
            ["dp", "tp dp", "dp", "tp", "dp", "dp", "tp", "", "dp", ""],
        ),
    ],
)
def test_the_fix_of_a_gradient_that_is_no_copy_gives_the_norm_of_one_process(
    pool: Pool, check: Callable[[], list[list[str]]], axes: list[str]
) -> None:
    assert pool.run(check) == [[text.split() for text in axes]] * RANKS


def take_copies() -> None:
    """Compare the norm of DTensors that are copies, or cannot be compared, with one process."""
    torch.manual_seed(0)
    whole = torch.randn(6, 4, dtype=torch.float64)
    expected = whole.norm().item()
    rank = torch.distributed.get_rank()
    noise = torch.zeros(6, 4, dtype=torch.float64)
    noise[5] = 1e-4 * whole[5]
    small = whole.clone()
    small[3:] *= 1e-9  # the part of dp=1 is next to nothing, and rounding decides its digits
    for sizes in {"dp": 2, "tp": 2}, {"pp": 2, "tp": 2}, {"rows": 2, "tp": 2}:
        first = next(iter(sizes))
        with meshkit.build_mesh(sizes) as mesh:
            stages = math.sqrt(mesh.size("pp"))
            one, both = mesh.device_mesh("tp"), mesh.device_mesh(f"{first} tp")
            cases = [
                ({"w": spread(whole, one, Shard(0))}, expected * stages),
                ({"w": spread(whole + noise * (rank > 1), one, Shard(1))}, None),
                ({"w": spread(whole / 2, one, Partial()), "v": spread(whole, one, Shard(0))}, None),
                ({"w": spread(whole, both, Shard(0), Shard(0))}, expected),
                ({"w": spread(whole, both, Replicate(), Shard(1))}, expected),
                ({"w": spread(whole * 0, one, Shard(0))}, 0.0),
            ]
            for named, norm in cases:
                for _ in range(2):
                    result = mesh.grad_norm(named).item()
                    if norm is not None:
                        assert result == pytest.approx(norm, rel=1e-12)
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        dp, at = mesh.device_mesh("dp"), mesh.coordinate
        own = small + 1e-10 * torch.randn(6, 4, dtype=torch.float64) * at["tp"]
        norm = mesh.grad_norm({"w": spread(own, dp, Shard(0))}).item()
        assert norm == pytest.approx(small.norm().item(), rel=1e-9)


def take_copies_of_other_orders() -> None:
    """Compare the norm of DTensors over meshes whose ranks do not ascend with one process."""
    torch.manual_seed(0)
    whole = torch.randn(6, 4, dtype=torch.float64)
    expected = whole.norm().item()
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        for ranks in [0, 1, 3, 2], [0, 3, 1, 2], [3, 2, 0, 1], [2, 3, 1, 0]:
            with meshkit.build_mesh(ranks=ranks, dp=2, tp=2) as odd:
                named = {"w": spread(whole, odd.device_mesh("tp"), Shard(0))}
                assert mesh.grad_norm(named).item() == pytest.approx(expected, rel=1e-12)


def take_models() -> None:
    """Compare the norm of models under FSDP2, HSDP and TP with one process."""
    single, x, expected = single_swiglu()
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        for pattern in "dp", "tp", "dp tp", "tp dp", "(dp tp)":
            for ignored in False, True:
                model = SwiGLU().double()
                model.load_state_dict(single.state_dict())
                skip = {model.norm.weight} if ignored else None
                fully_shard(model, mesh=mesh.device_mesh(pattern), ignored_params=skip)
                model(x).pow(2).sum().backward()
                norm = mesh.clip_grad_norm(model, 1.0).item()
                assert norm == pytest.approx(expected, rel=1e-12)
        torch.manual_seed(1)
        pair = nn.Sequential(nn.Linear(8, 12), nn.Linear(12, 8), nn.LayerNorm(8)).double()
        pair(x).pow(2).sum().backward()
        expected = nn.utils.get_total_norm([p.grad for p in pair.parameters()]).item()
        pair.zero_grad()
        plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
        parallelize_module(pair, mesh.device_mesh("tp"), plan)
        fully_shard(pair, mesh=mesh.device_mesh("dp"))  # "2" is a copy along tp
        pair(x).pow(2).sum().backward()
        assert mesh.clip_grad_norm(pair, 1.0).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "check",
    [
        cut_by_hand,
        take_copies,
        pytest.param(take_copies_of_other_orders, marks=needs_order),
        pytest.param(take_models, marks=needs_slices),
    ],
)
def test_norms_of_dtensors_on_four_ranks(pool: Pool, check: Callable[[], Any]) -> None:
    pool.run(check)
