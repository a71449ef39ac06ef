"""Laws of moves between two meshes: values, bytes, and messages that both ranks agree about."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout
from meshkit.redistribute.mesh_move import MeshMove, boxes_of, join_axes, make_mesh_move
from meshkit.redistribute.move import Cut, Interval, Region, num_elements, overlap
from meshkit.redistribute.parts import find_parts
from meshkit.redistribute.pattern import parse_pattern
from tests.redistribute.moves import DIMS, axis_sizes, sides

law = settings(deadline=None, max_examples=100, database=None)
many = settings(deadline=None, max_examples=3000, database=None)
Array = np.ndarray[Any, Any]


@st.composite
def mesh_moves(draw: st.DrawFn, *, regular: bool = False) -> MeshMove:
    """Return moves between meshes of equal, disjoint or overlapping ranks.

    A regular one has disjoint ranks, even parts, and no tensor on one rank alone.
    """
    layouts, texts, factors = [], [], dict.fromkeys(DIMS, 1)
    dims = DIMS[: draw(st.integers(1, 3))]
    first = 0
    for _ in range(2):
        axes = draw(axis_sizes(max_ranks=12))
        count = math.prod(axes.values())
        ranks = draw(st.permutations(range(first, first + count)))
        layouts.append(Layout(axes, ranks=ranks))
        first = first + count if regular else draw(st.integers(0, first + count))
        cuts, marks = draw(sides(axes, dims, "*=" if regular else "+*=@"))
        texts.append(" ".join("/".join([dim, *cuts[dim]]) for dim in dims) + marks)
        for dim in dims:
            factors[dim] = math.lcm(factors[dim], math.prod(axes[axis] for axis in cuts[dim]))
    sizes = {dim: factors[dim] if regular else draw(st.integers(1, 9)) for dim in dims}
    joined = join_axes(parse_pattern(" -> ".join(texts)), layouts[0].sizes, layouts[1].sizes)
    dtensors = draw(st.booleans()), draw(st.booleans())
    return make_mesh_move(joined, *layouts, sizes, are_dtensors=dtensors)


def at(region: Region) -> tuple[slice, ...]:
    """Return the index of a region in the global tensor."""
    return tuple(slice(interval.start, interval.start + interval.size) for interval in region)


def check_move(move: MeshMove, chunks: int) -> None:
    """Play all ranks: each gets its part, and receives what it lacks, and no more."""
    whole = np.arange(1, math.prod(move.move.sizes) + 1).reshape(move.move.sizes)
    parts = {int(rank): np.zeros_like(whole) for rank in move.target.ranks.flat}
    received = dict.fromkeys(parts, 0)
    for rank, part in parts.items():
        kept = move.keeps(rank)
        if kept is not None:
            part[at(kept)] = whole[at(kept)]
    for chunk in range(chunks):
        deliver(move, chunk, chunks, whole, parts, received)
    before = {rank: part.copy() for rank, part in parts.items()}
    for chunk in range(chunks):
        for rank, part in parts.items():
            for member, box in gathered(move, rank, chunk, chunks):
                assert (before[member][at(box)] == whole[at(box)]).all()
                part[at(box)] = whole[at(box)]
                received[rank] += num_elements(box) * (member != rank)
    for rank, part in parts.items():
        region = move.target.region(move.target.place(rank).cell)  # type: ignore[union-attr]
        np.testing.assert_array_equal(part[at(region)], whole[at(region)])
        assert received[rank] == move.received(rank) == lacks(move, rank)
    assert received[move.busiest()] == max(received.values())


def deliver(
    move: MeshMove,
    chunk: int,
    chunks: int,
    whole: Array,
    parts: dict[int, Array],
    received: dict[int, int],
) -> None:
    """Deliver the messages of a chunk. Both ranks know the same boxes, and none is sent twice."""
    sent = {
        (sender, message.peer): message.boxes
        for sender in map(int, move.source.layout.grid.flat)
        for message in move.sends(sender, chunk, chunks)
    }
    for rank, part in parts.items():
        for message in move.receives(rank, chunk, chunks):
            assert sent.pop((message.peer, rank)) == message.boxes
            held = move.source.region(move.source.place(message.peer).cell)  # type: ignore[union-attr]
            for box in message.boxes:
                assert overlap(box, held) == box
                assert not part[at(box)].any()
                part[at(box)] = whole[at(box)]
                received[rank] += num_elements(box)
    assert not sent


def gathered(move: MeshMove, rank: int, chunk: int, chunks: int) -> list[tuple[int, Region]]:
    """Return the boxes that a rank gathers, each with the rank that has it before."""
    gather = move.gather(rank, chunk, chunks)
    if gather is None:
        return []
    members = [int(r) for r in move.target.ranks[move.target.place(rank).cell]]  # type: ignore[union-attr]
    own = {member: move.gather(member, chunk, chunks).own for member in members}  # type: ignore[union-attr]
    assert len(gather.runs) in (1, len(members))
    if len(gather.runs) > 1:
        assert gather.runs == tuple(own.values())
    whole = [number for box in gather.runs[0] for number in numbers(move, box)]
    each = [number for boxes in own.values() for box in boxes for number in numbers(move, box)]
    assert len(gather.runs) > 1 or whole == each  # in the order in which blocks arrive
    return [(member, box) for member, boxes in own.items() for box in boxes]


def numbers(move: MeshMove, box: Region) -> list[int]:
    """Return the elements of a box, by their place in the global tensor."""
    sizes = move.move.sizes
    return [int(n) for n in np.arange(math.prod(sizes)).reshape(sizes)[at(box)].flat]


def lacks(move: MeshMove, rank: int) -> int:
    """Return the elements that a rank wants and does not hold, by arrays of flags."""
    flags = [np.zeros(move.move.sizes, bool) for _ in range(2)]
    for end, flag in zip((move.source, move.target), flags, strict=True):
        place = end.place(rank)
        if place is not None:
            flag[at(end.region(place.cell))] = True
    return int((flags[1] & ~flags[0]).sum())


@given(st.integers(0, 40), st.lists(st.integers(1, 6), min_size=1, max_size=3), st.data())
@law
def test_a_dtensor_is_cut_as_torch_cuts_it(
    size: int, counts: list[int], data: st.DataObject
) -> None:
    axes = tuple(f"a{number}" for number in range(len(counts)))
    cut = Cut((size,), (axes,), tuple(zip(axes, counts, strict=True)), is_dtensor=True)
    index = [data.draw(st.integers(0, count - 1)) for count in counts]
    part = torch.arange(size)
    for count, at in zip(counts, index, strict=True):
        parts = part.chunk(count)
        part = parts[at] if at < len(parts) else part[:0]
    (region,) = cut.region(dict(zip(axes, index, strict=True)))
    assert [*range(region.start, region.start + region.size)] == part.tolist()
    if part.numel():
        found = find_parts(Interval(0, size), counts, region, is_dtensor=True)
        assert (tuple(index), region) in [*found]


@given(mesh_moves(), st.integers(1, 3))
@law
def test_each_rank_gets_its_part_and_receives_what_it_lacks(move: MeshMove, chunks: int) -> None:
    check_move(move, chunks)


@pytest.mark.nightly
@given(mesh_moves(), st.integers(1, 3))
@many
def test_thousands_of_moves(move: MeshMove, chunks: int) -> None:
    check_move(move, chunks)


@given(mesh_moves(regular=True))
@law
def test_each_element_leaves_the_source_once_and_all_ranks_send_equally_much(
    move: MeshMove,
) -> None:
    ranks = [int(rank) for rank in move.source.layout.grid.flat]
    sent = [move.sent(rank) for rank in ranks]
    whole = math.prod(move.move.sizes)
    assert sum(sent) == whole
    assert max(sent) <= -(-whole // len(ranks))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=3), st.data())
@law
def test_boxes_have_a_range_of_elements_in_their_order(
    pairs: list[tuple[int, int]], data: st.DataObject
) -> None:
    region = tuple(Interval(*pair) for pair in pairs)
    size = num_elements(region)
    start = data.draw(st.integers(0, size))
    end = data.draw(st.integers(start, size))
    numbers = np.full([interval.start + interval.size for interval in region], -1)
    numbers[at(region)] = np.arange(size).reshape([interval.size for interval in region])
    boxes = boxes_of(region, start, end)
    found = [number for box in boxes for number in numbers[at(box)].flat]
    assert found == [*range(start, end)]
    assert len(boxes) <= max(1, 2 * len(region) - 1)


def messages_of(source: Mapping[str, int], target: Mapping[str, int], rank: int) -> int:
    """Return the number of messages that one rank sends and receives."""
    layouts = Layout(source), Layout(target)
    joined = join_axes(parse_pattern("o/dp i/tp -> o/tp i"), source, target)
    move = make_mesh_move(joined, *layouts, {"o": 2**14, "i": 2**13})
    return len(move.sends(rank)) + len(move.receives(rank))


def test_a_rank_has_few_messages_whatever_the_size_of_the_world() -> None:
    small = messages_of({"dp": 8, "tp": 8}, {"dp": 2, "tp": 8}, 3)
    large = messages_of({"dp": 1024, "tp": 8}, {"dp": 256, "tp": 8}, 3)
    assert large <= 4 * small


@pytest.mark.parametrize(("copies", "gathers"), [(1, False), (2, True)])
def test_only_ranks_that_want_the_same_part_gather(copies: int, gathers: bool) -> None:
    source, target = Layout(dp=2), Layout(dp=2, tp=copies, ranks=range(2, 2 + 2 * copies))
    joined = join_axes(parse_pattern("a b -> a/dp b"), source.sizes, target.sizes)
    move = make_mesh_move(joined, source, target, {"a": 4, "b": 3})
    assert [move.gather(rank) for rank in (0, 1)] == [None, None]  # outside of the target
    assert all((move.gather(rank) is not None) == gathers for rank in target.ranks)
