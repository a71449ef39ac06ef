"""Sequence shards: take and gather on real ranks; views, gradients and errors without."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import meshkit
from meshkit import MeshkitError, SequencePlan, SpecError
from meshkit.data.sequence import SequenceShard
from meshkit.layout.sequence import ORDERS
from tests.faults import error_of
from tests.newer_torch import needs_order

quick = settings(deadline=None, max_examples=40, database=None)


def no_group() -> Any:
    raise AssertionError("a group was requested")


def shards(length: int, parts: int, order: Any = "contiguous", pad: bool = False) -> list[Any]:
    """Return the shards of all ranks, in one process."""
    plan = SequencePlan(length, parts, order, pad)
    cpu = torch.device("cpu")
    return [SequenceShard(plan, part, cpu, no_group) for part in range(parts)]


Cut = tuple[dict[str, Any], Any, tuple[str, ...]]  # the mesh, the axes as written, the group


# ---------------------------------------------------------------- on real ranks


CUTS: list[Cut] = [
    ({"dp": 1, "sp": 4}, "sp", ("sp",)),
    ({"sp": 2, "dp": 2, "order": "sp dp"}, ("sp",), ("sp",)),
    ({"dp": 1, "cp": 2, "sp": 2, "groups": ["cp sp"]}, "cp sp", ("cp", "sp")),
    ({"dp": 1, "cp": 2, "sp": 2, "groups": ["sp cp"]}, ["sp", "cp"], ("sp", "cp")),
    ({"dp": 4, "sp": 1}, "sp", ("sp",)),
    ({"dp": 1, "cp": 2, "sp": 2, "groups": ["cp sp"]}, None, ("cp", "sp")),
]


SHAPES = [(0, 1), (1, 2), (2, 3), (-1, 3), (-2, 4), (-3, 3)]  # dim of the sequence, number of dims


def make_sequence(length: int, dim: int, ndim: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return a tensor of distinct entries, equal on every rank, which is not contiguous."""
    shape = [2, 3, 4, 5][:ndim]
    shape[dim] = length
    drawn = torch.randperm(torch.Size(shape).numel(), generator=torch.Generator().manual_seed(1))
    return drawn.reshape(shape[::-1]).permute(*range(ndim - 1, -1, -1)).to(dtype)


def select_positions(whole: Tensor, positions: list[int], dim: int) -> Tensor:
    """Return the tokens at these positions, one by one, with zeros beyond the end."""
    rows = [
        whole.select(dim, at) if at < whole.shape[dim] else torch.zeros_like(whole.select(dim, 0))
        for at in positions
    ]
    return torch.stack(rows, dim if dim >= 0 else whole.ndim + dim)


def cut_and_gather(sizes: dict[str, Any], axes: Any, group: tuple[str, ...]) -> dict[str, Any]:
    """Take and gather tensors of many shapes; return the differences and the positions held."""
    faults, held = [], []
    with meshkit.build_mesh(**sizes) as mesh:
        parts = mesh.size(*group)
        for order, length in itertools.product(("contiguous", "zigzag"), (16, 13, 3, 1)):
            shard = mesh.sequence(length, axes=axes, order=order, pad=True)
            own = shard.positions.tolist()
            held.append(own)
            if (shard.part, shard.plan.parts) != (
                mesh.peers(*group).tolist().index(mesh.rank),
                parts,
            ):
                faults.append(("part", shard.part))
            if shard.is_token.tolist() != [at < length for at in own]:
                faults.append(("is_token", own))
            if shard.num_tokens != int(shard.is_token.sum()):
                faults.append(("num_tokens", shard.num_tokens))
            for dim, ndim in SHAPES:
                whole = make_sequence(length, dim, ndim)
                slice_ = shard.take(whole, dim)
                if not torch.equal(slice_, select_positions(whole, own, dim)):
                    faults.append(("take", order, length, dim, ndim))
                again = shard.gather(slice_, dim)
                if not torch.equal(again, whole):
                    faults.append(("gather", order, length, dim, ndim))
    return {"faults": faults, "held": held}


def cut_on_every_mesh(cuts: list[Cut]) -> list[dict[str, Any]]:
    """Take and gather on all meshes."""
    return [cut_and_gather(*cut) for cut in cuts]


@pytest.fixture(scope="module")
def cut() -> list[list[dict[str, Any]]]:
    """Return the results of each rank, by mesh."""
    by_rank = meshkit.spawn(cut_on_every_mesh, 4, (CUTS,), timeout=120)
    return [list(item) for item in zip(*by_rank, strict=True)]


@needs_order
@pytest.mark.parametrize("number", range(len(CUTS)))
def test_gather_undoes_take_on_every_mesh(cut: list[list[dict[str, Any]]], number: int) -> None:
    (sizes, _, group), results = CUTS[number], cut[number]
    assert [rank["faults"] for rank in results] == [[]] * 4
    layout = meshkit.Layout(**{axis: size for axis, size in sizes.items() if isinstance(size, int)})
    for row in layout.groups(*group):
        for place, length in enumerate((16, 13, 3, 1, 16, 13, 3, 1)):
            together = sorted(at for rank in row for at in results[rank]["held"][place])
            plan = SequencePlan(length, len(row), ORDERS[place // 4], pad=True)  # type: ignore[arg-type]
            assert together == list(range(plan.padded))


DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


def gather_every_dtype() -> list[bool]:
    """Return whether each dtype is kept, and gathered tensors need no gradient."""
    results = []
    with meshkit.build_mesh(dp=1, sp=2) as mesh:
        shard = mesh.sequence(7, order="zigzag", pad=True)
        for dtype in DTYPES:
            whole = make_sequence(7, 1, 2, dtype)
            again = shard.gather(shard.take(whole))
            results += [again.dtype == dtype, torch.equal(again, whole)]
        carrying = shard.take(torch.ones(2, 7, requires_grad=True))
        results += [carrying.requires_grad, not shard.gather(carrying).requires_grad]
        alone = mesh.sequence(7, axes="dp", order="zigzag")
        kept = torch.ones(2, 7, requires_grad=True)
        gathered = alone.gather(kept)
        results += [not gathered.requires_grad, gathered.data_ptr() != kept.data_ptr()]
        none = mesh.sequence(7, axes=())
        results += [
            none.take(kept).data_ptr() == kept.data_ptr(),
            none.positions.tolist() == [*range(7)],
        ]
        results += [torch.equal(none.gather(kept), kept)]
    return results


def test_every_dtype_and_no_gradient() -> None:
    assert meshkit.spawn(gather_every_dtype, 2, timeout=60) == [[True] * 19] * 2


def use_group_not_built() -> list[Any]:
    """Use axes without a group: local methods work, gather names the group to request."""
    with meshkit.build_mesh(dp=1, cp=2, sp=2) as mesh:
        shard = mesh.sequence(8, axes="sp cp")
        own = shard.take(torch.arange(8), dim=0)
        results = error_of(lambda: shard.gather(own, dim=0))
        cp_sp = mesh.sequence(8, axes="cp sp")
        refused = [
            error_of(lambda: mesh.sequence(10, axes=("cp", "sp"), order="zigzag")),
            error_of(lambda: mesh.sequence(9)),
            error_of(lambda: mesh.sequence(9, axes="sp")),
            error_of(lambda: mesh.sequence(8, axes="tq")),
            error_of(lambda: mesh.sequence(8, axes="sp sp")),
            error_of(lambda: mesh.sequence(8, axes=3)),  # type: ignore[arg-type]
            error_of(lambda: mesh.sequence(0, pad=True)),
            error_of(lambda: mesh.sequence(8, order="striped")),  # type: ignore[arg-type]
        ]
    closed = [error_of(lambda: mesh.sequence(8)), error_of(lambda: cp_sp.gather(own, dim=0))]
    return [own.tolist(), results, refused, closed]


def test_the_errors_of_mesh_sequence() -> None:
    results = meshkit.spawn(use_group_not_built, 4, timeout=60)
    for rank, (own, missing_group, refused, closed) in enumerate(results):
        part = rank % 2 * 2 + rank // 2  # cp the fastest
        assert own == [2 * part, 2 * part + 1]
        assert missing_group[0] == "SpecError"
        assert "groups=['sp cp']" in missing_group[1]
        kinds = [error[0] for error in refused]
        assert kinds == [*["SpecError"] * 3, "UnknownAxisError", *["SpecError"] * 4]
        assert "10 is not a multiple of 2 x cp 2 x sp 2 = 8." in refused[0][1]
        assert [error[0] for error in closed] == ["MeshkitError"] * 2


def ask_outside() -> Any:
    """Return the error of a rank outside the mesh."""
    with meshkit.build_mesh(sp=2, ranks=[0, 1]) as mesh:
        return error_of(lambda: mesh.sequence(8))


def test_a_rank_outside_the_mesh_raises() -> None:
    *inside, out = meshkit.spawn(ask_outside, 3, timeout=60)
    assert inside == [None, None]
    assert out[0] == "CoordinateError"
    assert out[1].startswith("mesh.sequence(8): rank 2 is not in Layout(")


# ---------------------------------------------------------------- without ranks


@quick
@given(st.integers(1, 40), st.integers(1, 6), st.sampled_from(ORDERS), st.booleans())
def test_restore_undoes_take(length: int, parts: int, order: Any, in_one: bool) -> None:
    whole = torch.arange(3 * length).reshape(length, 3)
    slices = [shard.take(whole, dim=-2, fill=-1) for shard in shards(length, parts, order, True)]
    given_parts = torch.cat(slices) if in_one else slices
    shard = shards(length, parts, order, True)[0]
    assert torch.equal(shard.restore(given_parts, dim=0), whole)
    assert torch.equal(torch.cat(slices)[shard.plan.inverse()][:length], whole)


def test_one_run_is_a_view_and_two_are_a_copy() -> None:
    whole = torch.arange(32).reshape(2, 16)
    storage = whole.untyped_storage().data_ptr()

    def is_view(tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() == storage

    assert [is_view(shard.take(whole)) for shard in shards(16, 4)] == [True] * 4
    zigzag = [is_view(shard.take(whole)) for shard in shards(16, 4, "zigzag")]
    assert zigzag == [False, False, False, True]  # the last part's chunks touch
    padded = [is_view(shard.take(whole)) for shard in shards(16, 3, pad=True)]
    assert padded == [True, True, False]
    assert is_view(shards(16, 4)[0].restore(whole))
    assert not is_view(shards(16, 4, "zigzag")[0].restore(whole))
    alone = shards(16, 1, "zigzag")[0]
    assert alone.take(whole).shape == whole.shape
    assert is_view(alone.take(whole))


def test_padding_holds_the_fill_value() -> None:
    early, late = shards(5, 2, pad=True)
    assert late.take(torch.arange(5), dim=0, fill=-100).tolist() == [3, 4, -100]
    assert late.take(torch.arange(5.0), dim=0).tolist() == [3.0, 4.0, 0.0]
    assert early.take(torch.arange(5), dim=0, fill=-100).tolist() == [0, 1, 2]
    none = shards(3, 4, "zigzag", pad=True)[-1]
    assert none.take(torch.arange(3), dim=0, fill=7).tolist() == [7, 7]
    assert none.take(torch.arange(3).bool(), dim=0, fill=1).tolist() == [True, True]


@pytest.mark.parametrize("order", ORDERS)
def test_gradients_pass_through_take_and_restore(order: Any) -> None:
    whole = torch.randn(2, 7, 3, dtype=torch.float64, requires_grad=True)
    every = shards(7, 4, order, pad=True)
    slices = [shard.take(whole) for shard in every]
    assert all(item.requires_grad for item in slices)  # also where all of it is padding
    scales = torch.randn(2, 7, 3, dtype=torch.float64)
    (every[0].restore(slices) * scales).sum().backward()
    assert torch.equal(whole.grad, scales)  # type: ignore[arg-type]


TENSOR = torch.zeros(3, 5, 16)


@pytest.mark.parametrize(
    ("do", "fix"),
    [
        (lambda shard: shard.take(TENSOR), "dim=2."),
        (lambda shard: shard.take(TENSOR[..., :9], -1), "a tensor of whole sequences"),
        (lambda shard: shard.take(torch.zeros(16)), "dim=0."),
        (lambda shard: shard.take(torch.zeros(16, 16, 2), "1"), "dim=0, or dim=1."),
        (lambda shard: shard.gather(TENSOR, 2), "the result of shard.take(tensor)."),
        (lambda shard: shard.gather(TENSOR, -4), "the result of shard.take(tensor)."),
        (lambda shard: shard.restore(TENSOR, 1), "dim=2."),
        (lambda shard: shard.restore([TENSOR[..., :4]] * 3, 2), "the slices of all parts"),
        (lambda shard: shard.restore([TENSOR[..., :4]] * 3 + [TENSOR], 2), "the slices of all"),
    ],
)
def test_the_errors_of_a_shard(do: Any, fix: str) -> None:
    with pytest.raises(SpecError) as caught:
        do(shards(16, 4, "zigzag")[0])
    assert caught.value.fix_text.startswith(fix)


def test_a_pickled_shard_works_without_its_group() -> None:
    """For example to a worker of a DataLoader whose collate_fn takes the shard."""
    for shard in shards(8, 2, "zigzag", False):
        copy = pickle.loads(pickle.dumps(shard))
        assert torch.equal(copy.take(torch.arange(8), dim=0), shard.positions)
        with pytest.raises(MeshkitError):
            copy.gather(shard.positions, dim=0)
