"""The formulas in the program of ``meshkit eject`` beside the layout and the epoch of a mesh."""

from __future__ import annotations

import ast
import sys
import types
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meshkit import BatchPlan, Layout
from meshkit.data.batch import num_data_coordinates
from meshkit.data.epoch import Epoch, SampleOrder
from meshkit.layout.group_plan import GroupPlan
from meshkit.layout.position import group_rank
from meshkit.plan.plain_program import averaged_axes, write_program
from meshkit.testing import axes_of, layouts
from tests.laws.derivations import law


def load(program: str) -> types.ModuleType:
    """Return the program as a module, of which no line has run but its definitions."""
    module = types.ModuleType("plain")
    exec(compile(program, "plain.py", "exec"), vars(module))
    return module


@law
@given(layouts(), st.data())
def test_the_groups_and_coordinates_of_the_program_are_those_of_the_layout(
    layout: Layout, data: st.DataObject
) -> None:
    plan = GroupPlan.of(layout, data.draw(st.lists(axes_of(layout, min_size=1), max_size=3)))
    program = load(write_program(plan, None, ()))
    assert layout.num_ranks == program.WORLD_SIZE
    for rank in range(layout.num_ranks):
        assert program.coordinate(rank) == layout.coordinate(rank)
    for step in plan.steps:
        if step.axes:
            assert program.list_groups(*step.axes) == step.members.tolist()


@law
@given(layouts(max_ranks=16), st.integers(1, 4), st.integers(1, 3), st.data())
def test_the_samples_of_the_program_are_those_of_the_epoch(
    layout: Layout, micro_batch: int, accumulation_steps: int, data: st.DataObject
) -> None:
    axes = data.draw(axes_of(layout))
    plan = GroupPlan.of(layout)
    if not plan.has(averaged := averaged_axes(plan, axes)):
        plan = GroupPlan.of(layout, [averaged])
    sizes = {"micro_batch": micro_batch, "accumulation_steps": accumulation_steps}
    batch = BatchPlan.solve(dp=num_data_coordinates(layout.sizes, axes), **sizes)
    program = load(write_program(plan, batch, axes))
    rank = data.draw(st.integers(0, layout.num_ranks - 1))
    index = program.data_index(rank)
    assert index == group_rank(layout, rank, axes)
    length = data.draw(st.integers(1, 200))
    tail = data.draw(st.sampled_from(["keep", "drop", "pad"]))
    assume(tail != "drop" or length >= batch.global_batch)
    shuffle, seed = data.draw(st.booleans()), data.draw(st.integers(-(2**70), 2**70))
    number = data.draw(st.integers(0, 10**6))
    order = SampleOrder(shuffle, seed, number, tail)
    epoch = Epoch.of(length, replace(batch, data_index=index), order)
    assert program.count_steps(length, tail) == epoch.steps
    for step in range(epoch.steps):
        micros = epoch.micro_batches(step)
        expected = [(micro.samples.tolist(), micro.weight, micro.is_last) for micro in micros]
        read = program.micro_batches(index, length, step, number, shuffle, seed, tail)
        assert [*read] == expected


@law
@given(st.integers(1, 2**62), st.integers(), st.integers(0), st.data())
def test_a_shuffled_position_of_any_length_is_that_of_the_epoch(
    length: int, seed: int, number: int, data: st.DataObject
) -> None:
    batch = BatchPlan(1, 1, 1, 1, data_index=0)
    program = load(write_program(GroupPlan.of(Layout(dp=1)), batch, ("dp",)))
    position = data.draw(st.integers(0, length - 1))
    epoch = Epoch.of(length, batch, SampleOrder(True, seed, number))
    (micro,) = epoch.micro_batches(position)
    assert [program.shuffled(position, length, seed, number)] == micro.samples.tolist()


@pytest.mark.parametrize(
    "sizes",
    [{"dp": 8}, {"pp": 2, "dp": 2, "ep": 2, "cp": 2, "sp": 2, "tp": 2}, {"dp": 1024, "tp": 8}],
    ids=str,
)
def test_the_program_is_short_plain_and_right_at_any_size(sizes: dict[str, int]) -> None:
    layout = Layout(**sizes)
    plan, data = GroupPlan.of(layout, ["dp tp"]), tuple(a for a in sizes if a in ("dp", "ep"))
    dp = num_data_coordinates(sizes, data)
    text = write_program(plan, BatchPlan.solve(dp=dp, micro_batch=2, accumulation_steps=4), data)
    assert len(text.splitlines()) <= 200
    assert max(map(len, text.splitlines())) <= 100
    assert text.isascii()
    nodes = [*ast.walk(ast.parse(text))]
    names = [alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names]
    names += [f"{node.module}" for node in nodes if isinstance(node, ast.ImportFrom)]
    assert {name.partition(".")[0] for name in names} <= {*sys.stdlib_module_names, "torch"}
    program = load(text)
    for step in plan.steps:
        if step.axes:
            assert program.list_groups(*step.axes) == step.members.tolist()
    last = layout.num_ranks - 1
    assert program.coordinate(last) == layout.coordinate(last)
    assert program.data_index(last) == dp - 1
