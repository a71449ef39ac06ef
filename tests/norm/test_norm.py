"""mesh.grad_norm and mesh.clip_grad_norm: equal to one process on random meshes and models."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from contextlib import ExitStack
from itertools import combinations, permutations, product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import meshkit
from meshkit.layout.axes import has_pipeline
from tests.newer_torch import needs_slices
from tests.pool import Pool

RANKS = 8
MESHES: list[dict[str, int]] = [
    {"dp": 2, "ep": 2, "tp": 2},
    {"pp": 2, "dp": 2, "tp": 2},
    {"dp": 2, "cp": 2, "sp": 2},
    {"pp": 4, "sp": 2},
    {"replicate": 2, "shard": 4},
    {"dp": 3, "tp": 2},
    {"tp": 8},
    {"pp": 2, "dp": 1, "ep": 3},
    {"dp": 2, "ep": 2, "cp": 1, "tp": 2},
    {"stage": 2, "fsdp": 2, "tensor": 2},
]
ORDERS = [2.0, 1.0, math.inf, 3.0, 0.5, 2]


class Model:
    """A model with known gradients: this rank's parameters, and the whole gradients."""

    def __init__(self, mesh: meshkit.Mesh, seed: int, view: meshkit.Mesh | None) -> None:
        self.mesh, self.view, self.draw = mesh, view, random.Random(seed)
        self.parameters: dict[str, Tensor] = {}
        self.layout: dict[str, str] = {}
        self.whole: list[Tensor] = []
        self.generator = torch.Generator().manual_seed(seed)
        stages = [axis for axis in mesh.layout.axes if has_pipeline([axis])]
        self.stage = stages[0] if stages else ""
        self.axes = [axis for axis in mesh.layout.axes if axis != self.stage]
        kinds = [self.copy, self.cut, self.sum, self.dtensor, self.tied, self.without]
        for number in range(12):
            self.add(f"layers.{number}.weight", self.draw.choice(kinds))

    def add(self, name: str, kind: Any) -> None:
        """Add a parameter of a random stage. Every rank draws the same numbers."""
        shape = [24 * self.draw.randint(1, 2) for _ in range(self.draw.randint(1, 2))]
        whole = torch.randn(shape, dtype=torch.float64, generator=self.generator)
        stage = self.draw.randrange(self.mesh.size(self.stage)) if self.stage else 0
        seed, is_tied = self.draw.random(), kind == self.tied
        if kind != self.without:
            self.whole.append(whole)
        if is_tied or self.mesh.coordinate.get(self.stage, 0) == stage:
            parameter = kind(name, whole, random.Random(seed))
            self.parameters[name] = parameter

    def plain(self, gradient: Tensor) -> nn.Parameter:
        parameter = nn.Parameter(torch.zeros_like(gradient))
        parameter.grad = gradient.clone()
        return parameter

    def without(self, name: str, whole: Tensor, draw: random.Random) -> nn.Parameter:
        return nn.Parameter(torch.zeros_like(whole))

    def copy(self, name: str, whole: Tensor, draw: random.Random) -> nn.Parameter:
        return self.plain(whole)

    def tied(self, name: str, whole: Tensor, draw: random.Random) -> nn.Parameter:
        if self.stage:
            self.layout[name] = f"... ={self.stage} *tp"
        return self.plain(whole)

    def cut(self, name: str, whole: Tensor, draw: random.Random) -> nn.Parameter:
        """Cut random dims along random axes."""
        dims = {f"d{n}": f"d{n}" for n in range(whole.ndim)}
        for axis in draw.sample(self.axes, draw.randint(1, len(self.axes))):
            dims[draw.choice([*dims])] += f"/{axis}"
        self.layout[name] = " ".join(dims.values())
        size, at = self.mesh.layout.sizes, self.mesh.coordinate
        for number, dim in enumerate(dims.values()):
            for axis in dim.split("/")[1:]:
                whole = whole.tensor_split(size[axis], number)[at[axis]]
        return self.plain(whole)

    def sum(self, name: str, whole: Tensor, draw: random.Random) -> nn.Parameter:
        """Give each rank along some axes a part of a sum."""
        for axis in draw.sample(self.axes, draw.randint(1, min(2, len(self.axes)))):
            self.layout[name] = f"{self.layout.get(name, '...')} +{axis}"
            whole = whole * weight(self.mesh.coordinate[axis], self.mesh.size(axis))
        return self.plain(whole)

    def dtensor(self, name: str, whole: Tensor, draw: random.Random) -> nn.Parameter:
        """Divide over a random part of the mesh, some axes joined."""
        is_viewed = self.view is not None and draw.random() < 0.5
        mesh, axes = (self.view, ["v0", "v1"]) if is_viewed else (self.mesh, self.axes)
        assert mesh is not None
        axes = [axis for axis in axes if draw.random() < 0.7] or axes[:1]
        join = len(axes) > 1 and draw.random() < 0.5
        pattern = " ".join(["(" + " ".join(axes[:2]) + ")", *axes[2:]] if join else axes)
        device_mesh = mesh.device_mesh(pattern)
        kinds = [Shard(0), Shard(whole.ndim - 1), Replicate(), Partial()]
        placements: list[Placement] = [draw.choice(kinds) for _ in range(device_mesh.ndim)]
        local = whole
        for dim, kind in enumerate(placements):
            index, size = device_mesh.get_local_rank(dim), device_mesh.size(dim)
            if isinstance(kind, Shard):
                local = local.chunk(size, kind.dim)[index]
            elif isinstance(kind, Partial):
                local = local * weight(index, size)
        gradient = DTensor.from_local(
            local.clone(), device_mesh, placements, shape=whole.shape, stride=whole.stride()
        )
        parameter = nn.Parameter(torch.zeros_like(gradient))
        parameter.grad = gradient
        return parameter


def weight(index: int, size: int) -> float:
    """Return the weight of a part of a sum; all of them add up to 1."""
    return 2.0 * (index + 1) / (size * (size + 1))


def local(gradient: Tensor) -> Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def compare_with_one_process(seed: int) -> str | None:
    """Compare the norm of a random model with that of one process; return its bits."""
    draw = random.Random(seed)
    sizes, order = MESHES[seed % len(MESHES)], ORDERS[seed % len(ORDERS)]
    ranks = list(range(math.prod(sizes.values())))
    pairs = [*combinations([axis for axis in sizes if not has_pipeline([axis])], 2)]
    with ExitStack() as stack:
        mesh = stack.enter_context(meshkit.build_mesh(sizes, ranks=ranks, groups=pairs or None))
        has_view = len(ranks) == RANKS and not has_pipeline(sizes)
        view = stack.enter_context(mesh.view(v0=2, v1=4)) if has_view else None
        if not mesh.inside:
            with pytest.raises(meshkit.CoordinateError):
                mesh.grad_norm({})
            return None
        model = Model(mesh, seed, view)
        norm = mesh.grad_norm(model.parameters, order, layout=model.layout)
        whole = torch.cat([g.flatten() for g in model.whole])
        expected = float(torch.linalg.vector_norm(whole, order))
        assert abs(norm.item() - expected) <= 1e-12 * expected
        before = [local(p.grad).clone() for p in model.parameters.values() if p.grad is not None]
        most = expected * draw.choice([0.25, 2.0])
        clipped = mesh.clip_grad_norm(model.parameters, most, order, layout=model.layout)
        assert clipped.equal(norm)
        factor = min(1.0, most / (expected + 1e-6))
        after = [local(p.grad) for p in model.parameters.values() if p.grad is not None]
        for old, new in zip(before, after, strict=True):
            torch.testing.assert_close(new, old * factor, rtol=1e-12, atol=0)
        return norm.item().hex()


@needs_slices
@pytest.mark.parametrize(
    "seed", [pytest.param(s, marks=[pytest.mark.nightly] * (s >= 10)) for s in range(20)]
)
def test_the_norm_is_that_of_one_process(pool: Pool, seed: int) -> None:
    bits = pool.run(compare_with_one_process, seed)
    inside = math.prod(MESHES[seed % len(MESHES)].values())
    assert bits[0] is not None
    assert bits == [bits[0]] * inside + [None] * (RANKS - inside)


class Block(nn.Module):
    """Two linear layers that tp can divide."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x + self.down(self.up(x).relu()))
        return y


def clip_fsdp_and_tp() -> None:
    """Compare the norm under FSDP2 and TP with that of one process."""
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    torch.manual_seed(1)
    single = Block().double()
    x = torch.randn(4, 8, dtype=torch.float64)
    single(x).pow(2).sum().backward()
    expected = nn.utils.get_total_norm([p.grad for p in single.parameters()])
    with meshkit.build_mesh(dp=2, sp=2, tp=2) as mesh:
        torch.manual_seed(1)
        model = Block().double()
        parallelize_module(model, mesh.device_mesh("tp"), plan)
        fully_shard(model, mesh=mesh.device_mesh("(dp sp)"), reshard_after_forward=False)
        (model(x).pow(2).sum()).backward()
        norm = mesh.clip_grad_norm(model, 1.0)
        torch.testing.assert_close(norm, expected, rtol=1e-12, atol=0)
        again = mesh.grad_norm(model)
        torch.testing.assert_close(again.item(), norm.item() / (norm.item() + 1e-6))
        kinds = {type(k).__name__ for p in model.parameters() for k in p.grad.placements}
        assert "_StridedShard" in kinds  # cut along one dim by tp, and again by FSDP2
        mesh.agree("norm", norm.item().hex())


def parameters_of(**gradients: Tensor | None) -> dict[str, Tensor]:
    """Return named parameters with these gradients; None stands for shape (2, 4) without one."""
    named = {}
    for name, gradient in gradients.items():
        shape = (2, 4) if gradient is None else gradient.shape
        named[name] = nn.Parameter(torch.zeros(shape))
        named[name].grad = gradient
    return named


def error_of(work: Any) -> meshkit.MeshkitError:
    with pytest.raises(meshkit.MeshkitError) as caught:
        work()
    return caught.value


SPEC = meshkit.SpecError
WRONG: list[tuple[Any, type[meshkit.MeshkitError], str]] = [
    ("o/tp i", SPEC, "layout is 'o/tp i', not a mapping."),
    ({"w": 3}, SPEC, "layout has 3 for 'w', not two str."),
    ({"w": ["o", "i"]}, SPEC, "layout has ['o', 'i'] for 'w', not two str."),
    ({"w": "o/tp i -> o i"}, SPEC, "layout['w'] is 'o/tp i -> o i', which"),
    ({"*.w": "o/tp i"}, SPEC, "layout['*.w'] matches no parameter."),
    ({"w": "o%tp i"}, SPEC, "layout['w'] is 'o%tp i': the pattern cannot be"),
    ({"w": "o i @tp:0"}, SPEC, "layout['w'] has @tp:0; a norm takes"),
    ({"w": "o/tp"}, SPEC, "w has 2 dims, and layout['w'] = 'o/tp' has 1."),
    ({"w": "a b c ..."}, SPEC, "w has 2 dims, and layout['w'] = 'a b c ...'"),
    ({"w": "1 i/tp"}, SPEC, "dim 0 of w has 2 elements on this rank, and"),
    ({"w": "o/tp i/tp"}, SPEC, "layout['w'] is 'o/tp i/tp': the axis tp occurs"),
    ({"w": "o/ttp i"}, meshkit.UnknownAxisError, "layout['w'] is 'o/ttp i': there is no"),
]


def refuse_wrong_layouts() -> None:
    with meshkit.build_mesh(dp=4, tp=2) as mesh:
        for layout, kind, text in WRONG:
            named = parameters_of(w=torch.ones(2, 4))
            error = error_of(lambda n=named, x=layout: mesh.clip_grad_norm(n, 1.0, layout=x))
            assert named["w"].grad.eq(1).all()
            assert type(error) is kind
            assert error.summary.startswith(text), error.summary


def refuse_arguments() -> None:
    with meshkit.build_mesh(dp=4, tp=2) as mesh:
        model = nn.Linear(2, 2)
        for parameters in (model.parameters(), [torch.ones(2)], torch.ones(2), 3, "w", None):
            assert "without names" in error_of(lambda p=parameters: mesh.grad_norm(p)).summary
        assert "are a generator" in error_of(lambda: mesh.grad_norm(model.parameters())).summary
        for order in (0, -1, math.nan, "two", None, True):
            assert "norm_type is" in error_of(lambda o=order: mesh.grad_norm(model, o)).summary
        for most in (-1.0, math.nan, None, "1"):
            assert "max_norm is" in error_of(lambda m=most: mesh.clip_grad_norm(model, m)).summary
        assert mesh.grad_norm(model).item() == 0.0
        assert mesh.grad_norm([], "inf").item() == 0.0


def take_axes_that_a_mesh_lacks_as_size_1() -> None:
    with meshkit.build_mesh(dp=4, tp=2) as mesh:
        layout = {"w": "o/ep/rows i/tp =cp"}
        norm = mesh.grad_norm(parameters_of(w=torch.ones(2, 4)), layout=layout).item()
        assert norm == 4.0  # 2 parts of 8 ones


def take_any_name_of_a_tied_parameter() -> None:
    with meshkit.build_mesh(dp=4, tp=2) as mesh:
        for side, norm in (("v d =pp", 4.0), ("v/tp d", math.sqrt(32))):
            for names in permutations(("embedding", "head")):
                model = nn.ModuleDict({name: nn.Linear(4, 4, bias=False) for name in names})
                for layer in model.values():
                    layer.weight = model["head"].weight
                model["head"].weight.grad = torch.ones(4, 4)
                pairs = [*model.named_parameters(remove_duplicate=False)]
                for parameters in (model, dict(pairs), pairs):
                    for globs in (*names,), names[:1], names[1:], ("head.*", "*"):
                        layout = {g if "*" in g else f"{g}.weight": side for g in globs}
                        found = mesh.grad_norm(parameters, layout=layout).item()
                        assert found == pytest.approx(norm)
                layout = {"head.weight": side, "*": "a b/dp"}  # the first glob counts
                assert mesh.clip_grad_norm(model, 1.0, layout=layout).item() == pytest.approx(norm)
                assert mesh.grad_norm(model, layout=layout).item() == pytest.approx(1)


def ask_for_a_layout_along_an_axis_of_unknown_role() -> None:
    with meshkit.build_mesh({"rows": 4, "tp": 2}) as mesh:
        named = parameters_of(w=torch.ones(2, 4), v=torch.ones(3))
        error = error_of(lambda: mesh.grad_norm(named, layout={"v": "n =rows"}))
        assert error.summary == "nothing says whether ranks along rows hold copies of w."
        for side, square in ("... =rows", 11), ("o/rows i", 35):
            norm = mesh.grad_norm(named, layout={"v": "n =rows", "w": side}).item()
            assert norm**2 == pytest.approx(square)


def refuse_differing() -> list[tuple[str, str, str]]:
    """Return the errors of gradients that are no copies."""
    errors = []
    with meshkit.build_mesh(dp=2, ep=2, tp=2) as mesh:
        at = mesh.coordinate

        def note(named: dict[str, Tensor], layout: dict[str, str] | None = None) -> None:
            before = [p.grad if p.grad is None else p.grad.clone() for p in named.values()]
            error = error_of(lambda: mesh.clip_grad_norm(named, 0.1, layout=layout))
            errors.append((error.summary, getattr(error, "axis", ""), error.fix_text))
            for old, new in zip(before, named.values(), strict=True):
                assert old is new.grad or old.equal(new.grad)

        ones = torch.ones(2, 4)
        note(parameters_of(a=ones.clone(), w=ones * (1 + 0.002 * at["ep"])))
        note(parameters_of(a=ones.clone(), w=ones * (1 + at["tp"]), v=ones * (1 + at["dp"])))
        note(parameters_of(w=ones.clone(), s=torch.tensor(1.0 + at["tp"])), {"w": "o/ep i"})
        note(parameters_of(a=ones.clone(), **{f"expert{at['ep']}": ones.clone()}))
        note(parameters_of(w=ones[: 1 + at["tp"]].clone()))
        note(parameters_of(w=ones.clone() if at["dp"] else None, a=ones.clone()))
        once = parameters_of(z=ones * (1 + at["tp"]))
        note(once)  # a refused call is refused again
        note(once)
        note(parameters_of(w=ones * (1 + at["tp"]), v=ones * (1 + at["tp"])))  # the first of two
    return errors


def test_a_gradient_that_differs_over_an_axis_is_refused_with_its_name(pool: Pool) -> None:
    results = pool.run(refuse_differing)
    assert all(result == results[0] for result in results)
    expected = [("w", "ep"), ("w", "tp"), ("s", "tp"), ("expert0", "ep"), ("w", "tp"), ("w", "dp")]
    expected += [("z", "tp"), ("z", "tp"), ("w", "tp")]
    for (name, axis), (summary, where, fix) in zip(expected, results[0], strict=True):
        assert summary == f"the gradient of {name} differs over {axis}."
        assert where == axis
        assert f"+{axis}" in fix
        assert f"/{axis}" in fix or name == "s"


def look_at_copies_once() -> None:
    """Compare the norms of calls around the look, after which one collective is left."""
    with meshkit.build_mesh(dp=2, ep=2, tp=2) as mesh:
        at, ones, norms = mesh.coordinate, torch.ones(2, 4), []

        def norm(scale: float, extra: float = 1.0) -> float:
            return mesh.grad_norm(parameters_of(w=ones * scale, v=ones * extra)).item()

        norms.append(norm(1.0 + at["ep"], 0.0))  # v is all zero: nobody looks
        norms.append(norm(1.0 + at["ep"], float(at["tp"])))  # on one rank of tp
        norms.append(norm(1.0 + 0.0009 * at["ep"]))  # looked at: rounding
        group, before = mesh.group(), dist.group.WORLD
        assert group is before
        count = group._get_sequence_number_for_group()
        norms.append(norm(1.0 + at["ep"]))  # not looked at again
        assert group._get_sequence_number_for_group() == count + 1
    assert norms == pytest.approx([math.sqrt(8), math.sqrt(8), 4, 4])


def raise_for_a_norm_that_is_not_finite() -> None:
    with meshkit.build_mesh(dp=4, tp=2) as mesh:
        layout, is_odd = {"v": "n/tp"}, mesh.coordinate["tp"] == 1
        for order, value in product((2.0, math.inf), (math.nan, math.inf)):
            bad = torch.tensor([1.0, value if is_odd else 1.0])
            named = parameters_of(w=torch.ones(2), v=bad)
            arguments = named, 1.0, order
            error = error_of(
                lambda a=arguments: mesh.clip_grad_norm(*a, layout=layout, error_if_nonfinite=True)
            )
            assert isinstance(error, RuntimeError)
            assert named["w"].grad.equal(torch.ones(2))
            assert f"the norm of the gradients is {value}." in str(error)
            assert ("v is not finite on this rank." in str(error)) == is_odd
            norm = mesh.clip_grad_norm(*arguments, layout=layout)
            assert repr(norm.item()) == repr(value)
            after = named["w"].grad
            assert after.isnan().all() if math.isnan(value) else after.eq(0).all()


def add_any_dtype_up_in_float64() -> None:
    with meshkit.build_mesh(dp=4, tp=2) as mesh:
        torch.manual_seed(0)
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64):
            gradient = (torch.randn(100, 30) * 1000).to(dtype)
            named = {
                "w": nn.Parameter(torch.zeros_like(gradient)),
                "e": nn.Parameter(torch.zeros(0)),
            }
            named["w"].grad, named["e"].grad = gradient.clone(), torch.zeros(0)
            expected = (
                gradient.abs().double().norm() if dtype.is_complex else gradient.double().norm()
            )
            norm = mesh.clip_grad_norm(named, 1.0)
            assert norm.item() == pytest.approx(expected.item(), rel=1e-7)
            assert named["w"].grad.dtype == dtype
            after = named["w"].grad.abs().double().norm().item()
            assert abs(after - 1) < 1e-2, (dtype, after)


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(clip_fsdp_and_tp, marks=needs_slices),
        refuse_wrong_layouts,
        refuse_arguments,
        take_axes_that_a_mesh_lacks_as_size_1,
        take_any_name_of_a_tied_parameter,
        ask_for_a_layout_along_an_axis_of_unknown_role,
        look_at_copies_once,
        raise_for_a_norm_that_is_not_finite,
        add_any_dtype_up_in_float64,
    ],
)
def test_norms_on_eight_ranks(pool: Pool, check: Callable[[], None]) -> None:
    pool.run(check)
