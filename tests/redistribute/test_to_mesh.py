"""Moves between two meshes on real ranks, beside the oracle of the laws: values and gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import strategies as st

import meshkit
from meshkit import Layout
from meshkit.redistribute.mesh_move import TO, join_axes, make_mesh_move
from meshkit.redistribute.move import Move
from meshkit.redistribute.pattern import parse_pattern
from tests.newer_torch import needs_order
from tests.pool import Pool
from tests.redistribute.interpreter import coordinates, deal, join
from tests.redistribute.moves import DIMS, side_texts, sides
from tests.redistribute.oracle import collect, mirrored, whole_tensor

RANKS = 6  # of the pool
MESHES = [  # the axes and ranks of the source, and those of the target
    pytest.param(({"dp": 2, "tp": 2}, (0, 1, 2, 3)), ({"tp": 2}, (4, 5)), id="disjoint"),
    pytest.param(
        ({"dp": 2}, (5, 1)),
        ({"sp": 2, "tp": 2}, (0, 4, 2, 3)),
        id="disjoint-mixed",
        marks=needs_order,
    ),
    pytest.param(({"dp": 3}, (0, 1, 2)), ({"sp": 2, "tp": 2}, (2, 3, 4, 5)), id="overlapping"),
    pytest.param(({"dp": 2, "tp": 3}, range(6)), ({"dp": 3, "tp": 2}, range(6)), id="same-ranks"),
    pytest.param(
        ({"tp": 4}, range(4)),
        ({"dp": 3, "tp": 2}, (5, 4, 3, 2, 1, 0)),
        id="other-order",
        marks=needs_order,
    ),
]
Mesh = tuple[Mapping[str, int], Any]


@dataclass(frozen=True)
class Case:
    """A pattern between two meshes, with the sizes of its dims."""

    pattern: str
    meshes: tuple[Mesh, Mesh]
    sizes: Mapping[str, int]

    @property
    def move(self) -> Move:
        """The move over the axes of both meshes."""
        source, target = (Layout(axes, ranks=[*ranks]) for axes, ranks in self.meshes)
        joined = join_axes(parse_pattern(self.pattern), source.sizes, target.sizes)
        return make_mesh_move(joined, source, target, self.sizes).move


@st.composite
def mesh_cases(draw: st.DrawFn, meshes: tuple[Mesh, Mesh], *, uneven: bool) -> Case:
    """Return moves between two meshes; every axis has a mark, so that a gradient flows."""
    dims = DIMS[: draw(st.integers(1, 3))]
    texts, factors = [], dict.fromkeys(dims, 1)
    for axes, _ in meshes:
        cuts, marks = draw(sides(axes, dims))
        texts.append(draw(side_texts(cuts, marks, in_order=False)))
        for dim in dims:
            factors[dim] = math.lcm(factors[dim], math.prod(axes[axis] for axis in cuts[dim]))
    largest = 9 if uneven else 2
    factor = {dim: 1 if uneven else factors[dim] for dim in dims}
    sizes = {dim: factor[dim] * draw(st.integers(1, largest)) for dim in dims}
    return Case(" -> ".join(texts), meshes, sizes)


def number_of(move: Move, coordinate: Mapping[str, int], prefix: str) -> int:
    """Return the place of a rank of one mesh among the coordinates over the axes of both."""
    own = {f"{prefix}{axis}": index for axis, index in coordinate.items()}
    return [*coordinates(move)].index({axis: own.get(axis, 0) for axis, _ in move.axes})


def all_groups(axes: Mapping[str, int]) -> list[str]:
    """Return the group over all axes, the only one of two axes here."""
    return [" ".join(axes)] if len(axes) > 1 else []


def run_cases(cases: list[Case]) -> list[Any]:
    """Return the result and the gradient of this rank for each case."""
    rank, results = dist.get_rank(), []
    options = [
        {"order": " ".join(axes), "groups": all_groups(axes), "ranks": [*ranks]}
        for axes, ranks in cases[0].meshes
    ]
    source, target = (
        meshkit.build_mesh(dict(axes), **option)  # type: ignore[arg-type]
        for (axes, _), option in zip(cases[0].meshes, options, strict=True)
    )
    with source, target:
        for case in cases:
            move, x = case.move, None
            if source.inside:
                part = deal(move, whole_tensor(move))[number_of(move, source.coordinate, "")]
                x = torch.from_numpy(part.copy()).requires_grad_()
            y = source.redistribute(x, case.pattern, to=target, **case.sizes)
            value = None
            if not (source.inside or target.inside):
                assert y is None
            elif target.inside:
                place = number_of(move, target.coordinate, TO)
                value = y.detach().numpy()
                y.backward(
                    torch.from_numpy(deal(mirrored(move), whole_tensor(move, 8), 1)[place].copy())
                )
            else:
                assert y.shape == (0,), rank
                assert y.requires_grad, rank
                y.sum().backward()
            results.append((value, None if x is None else x.grad.numpy()))
    return results


@pytest.mark.parametrize(("source", "target"), MESHES)
def test_ranks_get_the_parts_of_the_other_mesh_and_the_gradient_of_one_process(
    source: Mesh, target: Mesh, pool: Pool
) -> None:
    meshes = source, target
    cases = collect(st.booleans().flatmap(lambda uneven: mesh_cases(meshes, uneven=uneven)), 24)
    by_rank = pool.run(run_cases, cases, timeout=100)
    layouts = [Layout(axes, ranks=[*ranks]) for axes, ranks in (source, target)]
    for number, case in enumerate(cases):
        move = case.move
        expected = deal(move, whole_tensor(move), 1)
        for rank in layouts[1].grid.flat:
            coordinate = layouts[1].coordinate(int(rank))
            value = by_rank[rank][number][0]
            place = number_of(move, coordinate, TO)
            part = expected[place]
            holders = {
                axis: kind.holder
                for axis, (_, kind) in move.type_of.items()
                if axis.startswith(TO) and kind.symbol == "@"
            }
            if any(coordinate[a.removeprefix(TO)] != k for a, k in holders.items()):
                part = np.zeros_like(part)
            sums = [
                a
                for a, (_, kind) in move.type_of.items()
                if a.startswith(TO) and kind.symbol == "+"
            ]
            if not sums:
                np.testing.assert_allclose(value, part, rtol=1e-12, err_msg=str(case))
        values = parts_of(move, by_rank, number, 0, layouts[1], TO)
        np.testing.assert_allclose(
            join(move, values), whole_tensor(move), rtol=1e-12, err_msg=str(case)
        )
        gradients = parts_of(move, by_rank, number, 1, layouts[0], "")
        joined = join(mirrored(move), gradients, 0)
        np.testing.assert_allclose(joined, whole_tensor(move, 8), rtol=1e-12, err_msg=str(case))
    assert len({case.pattern for case in cases}) > 15


def parts_of(
    move: Move, by_rank: list[Any], number: int, item: int, layout: Layout, prefix: str
) -> list[Any]:
    """Return the tensors of the ranks of one mesh, by the coordinates over the axes of both."""
    parts: list[Any] = [None] * len([*coordinates(move)])
    for place, coordinate in enumerate(coordinates(move)):
        own = {
            a.removeprefix(prefix): i
            for a, i in coordinate.items()
            if a.startswith(TO) == bool(prefix)
        }
        rank = layout.rank(**{**dict.fromkeys(layout.axes, 0), **own})
        parts[place] = by_rank[rank][number][item]
    return parts


def move_to_the_same_ranks() -> tuple[bool, list[float], str]:
    """Return whether a result shares memory with x, the gradient, and the error of a second one."""
    source, target = (
        meshkit.build_mesh({"a": 2, "b": 3}),
        meshkit.build_mesh({"p": 6}, ranks=[0, 3, 1, 4, 2, 5]),
    )
    with source, target:
        x = torch.full((2,), float(source.rank), requires_grad=True)
        y = source.redistribute(x, "n/b/a -> n/p", to=target)
        (first,) = torch.autograd.grad((y**2).sum(), x, create_graph=True)
        try:
            first.sum().backward()
            text = "no error"
        except RuntimeError as error:
            text = str(error)
        return x.data_ptr() == y.data_ptr(), first.tolist(), text


@needs_order
def test_a_result_of_another_mesh_has_memory_of_its_own_and_one_derivative(pool: Pool) -> None:
    for rank, (is_shared, first, text) in enumerate(pool.run(move_to_the_same_ranks)):
        assert not is_shared
        assert first == [2.0 * rank] * 2
        assert "differentiate twice" in text
