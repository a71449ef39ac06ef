"""Every message of core, word for word, with its attributes.

``test_every_raise_is_here`` proves that none is missing: it compares the lines that the cases of
``SAID`` went through with all ``raise`` statements in the source.
"""

from __future__ import annotations

import ast
import re
import textwrap
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import meshkit
from meshkit import (
    BatchError,
    BatchPlan,
    BatchSchedule,
    CoordinateError,
    Layout,
    MeshkitError,
    SequencePlan,
    SpecError,
    Topology,
    UnknownAxisError,
    factor_world,
    split_world,
    stream_seed,
)
from meshkit.bench.results.collectives import sweep_sizes
from meshkit.bench.results.targets import parse_targets
from meshkit.core.call import Call, Verbatim
from meshkit.core.cost.machines import MACHINES
from meshkit.core.cost.step_time import TrainingJob
from meshkit.core.cost.transformer import ModelShape
from meshkit.core.data.epoch import Epoch, checked_epoch
from meshkit.core.data.random_streams import varied
from meshkit.core.data.sampler_state import checked_count, resume_epoch, state
from meshkit.core.data.sequence import sequence_plan
from meshkit.core.data.shuffle import shuffled
from meshkit.core.draw.svg import draw_svg
from meshkit.core.grid.axis_names import STANDARD, resolve_axes
from meshkit.core.grid.factor import merge_sizes
from meshkit.core.grid.group_plan import GroupPlan
from meshkit.core.grid.order import view_sizes
from meshkit.core.grid.pattern import joined_axes
from meshkit.core.topology.crossing import link_bytes
from meshkit.core.topology.crossing_policy import check_policies
from meshkit.core.topology.hostfile import parse_hostfile

CORE = Path(meshkit.__file__).parent / "core"
LAYOUT = Layout(dp=4, sp=2, tp=1)
PLAN = BatchPlan.solve(dp=4, global_batch=16, micro_batch=2)
EPOCH = Epoch(100, PLAN, 0, True, 1, "keep", number=2)
LOAD = Call("sampler.load_state_dict", (Verbatim("state"),))
STATE = state(EPOCH, 1)
CONFIG = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}


class Said(NamedTuple):
    """What one mistake says.

    Attributes:
        do: makes the mistake.
        kind: the exception.
        text: what it prints, indented as here.
        facts: its attributes.
    """

    do: Callable[[], object]
    kind: type[MeshkitError]
    text: str
    facts: dict[str, object]


SAID = {
    # ------------------------------------------------------------ axes.py: names
    "a name that is no identifier": Said(
        lambda: Layout(**{"d-p": 2}),
        SpecError,
        """
        Layout(d-p=2): 'd-p' cannot be the name of an axis.
          It is not made of letters, digits and underscores, with a letter first.
          Fix: a short lower-case word, such as dp, sp or tp.
        """,
        {},
    ),
    "a name with an edge underscore": Said(
        lambda: Layout(dp_=2),
        SpecError,
        """
        Layout(dp_=2): 'dp_' cannot be the name of an axis.
          It starts or ends with an underscore, which einops patterns refuse.
          Fix: a short lower-case word, such as dp, sp or tp.
        """,
        {},
    ),
    "a name that is a keyword": Said(
        lambda: factor_world(8, **{"for": 2}),
        SpecError,
        """
        factor_world(8, for=2): 'for' cannot be the name of an axis.
          It is a word of the language, not of the mesh.
          Fix: a short lower-case word, such as dp, sp or tp.
        """,
        {},
    ),
    "a name that is an option": Said(
        lambda: Layout(data=2),
        SpecError,
        """
        Layout(data=2): 'data' cannot be the name of an axis.
          It is the name of an option.
          Fix: another name for an axis; the option data is one of other calls.
        """,
        {},
    ),
    "a name that is no str": Said(
        lambda: factor_world(8, order=["dp", 3], dp=8),  # type: ignore[list-item]
        SpecError,
        """
        factor_world(8, dp=8, order=['dp', 3]): 3 cannot be the name of an axis.
          It is an int, not a str.
          Fix: a short lower-case word, such as dp, sp or tp.
        """,
        {},
    ),
    "no axis": Said(
        lambda: Layout(),
        SpecError,
        """
        Layout() has 0 axes.
          A mesh has 1 to 32.
          Fix: Layout(dp=1).
        """,
        {},
    ),
    "an unknown axis in a coordinate": Said(
        lambda: LAYOUT.rank(node=0, dp=0),
        UnknownAxisError,
        """
        layout.rank(node=0, dp=0): there is no axis 'node'.
          The axes are dp, sp, tp.
          Fix: use one of dp, sp, tp.
        """,
        {"axis": "node", "axes": ("dp", "sp", "tp"), "suggestion": None},
    ),
    # ------------------------------------------------------------ axes.py: questions
    "an unknown axis": Said(
        lambda: LAYOUT.groups("dp", "ttp"),
        UnknownAxisError,
        """
        layout.groups('dp', 'ttp'): there is no axis 'ttp'.
          The axes are dp, sp, tp.
          Fix: did you mean tp?
        """,
        {"axis": "ttp", "axes": ("dp", "sp", "tp"), "suggestion": "tp"},
    ),
    "an unknown axis in a plan": Said(
        lambda: GroupPlan.of(LAYOUT, ["dp pipe"]),
        UnknownAxisError,
        """
        GroupPlan.of(Layout(dp=4, sp=2, tp=1), ['dp pipe']): there is no axis 'pipe'.
          The axes are dp, sp, tp.
          Fix: use one of dp, sp, tp.
        """,
        {"axis": "pipe", "axes": ("dp", "sp", "tp"), "suggestion": None},
    ),
    "an axis twice": Said(
        lambda: LAYOUT.size("dp", "dp"),
        SpecError,
        """
        layout.size('dp', 'dp') names the axis dp twice.
          Fix: name dp once.
        """,
        {},
    ),
    # ------------------------------------------------------------ axes.py: sizes
    "a size of zero": Said(
        lambda: Layout(dp=0, sp=2),
        SpecError,
        """
        Layout(dp=0, sp=2): the size of dp is 0.
          A size is an int of 1 or more, or -1 for the one to be inferred.
          Fix: Layout(dp=1, sp=2).
        """,
        {"sizes": {"dp": 0, "sp": 2}},
    ),
    "a size that is a str": Said(
        lambda: factor_world(8, tp="4"),  # type: ignore[arg-type]
        SpecError,
        """
        factor_world(8, tp='4'): the size of tp is '4', a str.
          A size is an int of 1 or more, or -1 for the one to be inferred.
          Fix: factor_world(8, tp=4).
        """,
        {"sizes": {"tp": "4"}},
    ),
    "two sizes open": Said(
        lambda: factor_world(8, tp=-1),
        SpecError,
        """
        factor_world(8, tp=-1) leaves the sizes of dp and tp open.
          Only one size can be inferred; dp is inferred where it is left out.
          Fix: factor_world(8, tp=1, dp=-1).
        """,
        {"sizes": {"dp": -1, "tp": -1}},
    ),
    # ------------------------------------------------------------ axes.py: order
    "an axis without a place": Said(
        lambda: factor_world(8, shard=2, tp=2),
        SpecError,
        """
        factor_world(8, shard=2, tp=2): the axis shard has no standard place.
          The standard axes nest pp dp ep cp sp tp, from the outside in.
          Fix: say where it goes: factor_world(8, shard=2, tp=2, order='dp shard tp').
        """,
        {"axis": "shard", "axes": STANDARD, "suggestion": None, "sizes": {"shard": 2, "tp": 2}},
    ),
    "an axis that is nearly a standard one": Said(
        lambda: factor_world(8, tpp=2),
        SpecError,
        """
        factor_world(8, tpp=2): the axis tpp has no standard place.
          The standard axes nest pp dp ep cp sp tp, from the outside in.
          Fix: did you mean tp? Or say where it goes: factor_world(8, tpp=2, order='dp tpp').
        """,
        {"axis": "tpp", "axes": STANDARD, "suggestion": "tp", "sizes": {"tpp": 2}},
    ),
    "an order that does not fit": Said(
        lambda: factor_world(8, sp=2, tp=2, order="dp cp tp tp"),
        SpecError,
        """
        factor_world(8, sp=2, tp=2, order='dp cp tp tp'): order and sizes differ.
          cp is in order but has no size.
          sp has a size but is not in order.
          tp stands twice in order.
          Fix: factor_world(8, sp=2, tp=2, order='dp tp sp').
        """,
        {"sizes": {"sp": 2, "tp": 2}},
    ),
    # ------------------------------------------------------------ axes.py: the product
    "the product is not the world": Said(
        lambda: factor_world(6, dp=4, sp=2, tp=1),
        SpecError,
        """
        factor_world(6, dp=4, sp=2, tp=1) needs 8 ranks, the world has 6.
          dp 4 x sp 2 x tp 1 = 8; world_size = 6.
          Fix: start 8 ranks, or factor_world(6, sp=2, tp=1), which gives dp=3.
        """,
        {"sizes": {"dp": 4, "sp": 2, "tp": 1}, "world_size": 6},
    ),
    "the product does not divide the world": Said(
        lambda: factor_world(6, tp=4),
        SpecError,
        """
        factor_world(6, tp=4) needs a multiple of 4 ranks, the world has 6.
          tp 4 = 4; world_size = 6.
          Fix: start 4 or 8 ranks.
        """,
        {"sizes": {"dp": -1, "tp": 4}, "world_size": 6},
    ),
    "the product is one rank": Said(
        lambda: factor_world(6, tp=1, order="tp"),
        SpecError,
        """
        factor_world(6, tp=1, order='tp') needs 1 rank, the world has 6.
          tp 1 = 1; world_size = 6.
          Fix: start 1 rank.
        """,
        {"sizes": {"tp": 1}, "world_size": 6},
    ),
    "a view of another size": Said(
        lambda: Layout(dp=4, sp=2).view(dp=3, sp=2),
        SpecError,
        """
        layout.view(dp=3, sp=2) needs 6 ranks, the layout has 8.
          dp 3 x sp 2 = 6; Layout(dp=4, sp=2) has 8 ranks.
          Fix: layout.view(dp=-1, sp=2), which gives dp=4.
        """,
        {"sizes": {"dp": 3, "sp": 2}, "world_size": 8},
    ),
    "a view out of the standard order": Said(
        lambda: view_sizes({"tp": 2, "node": 2, "dp": 2}, None),
        SpecError,
        """
        mesh.view(tp=2, node=2, dp=2, groups='dp'): tp dp is not the standard order, dp tp.
          A view keeps the order in which its axes are written, from the outside in.
          Fix: mesh.view(dp=2, node=2, tp=2, groups='dp'), or order='tp node dp', if it is meant.
        """,
        {"sizes": {"tp": 2, "node": 2, "dp": 2}},
    ),
    # ------------------------------------------------------------ factor.py: from a config
    "sizes that are no mapping": Said(
        lambda: merge_sizes([4, 2], {}),
        SpecError,
        """
        build_mesh([4, 2]): sizes is a list.
          Fix: build_mesh(dp=4, sp=2, tp=1), or the same as a dict.
        """,
        {},
    ),
    "a size given twice": Said(
        lambda: merge_sizes({"dp": 4}, {"dp": 2}),
        SpecError,
        """
        build_mesh({'dp': 4}, dp=2) gives dp twice.
          Fix: give dp once.
        """,
        {},
    ),
    # ------------------------------------------------------------ split.py
    "parts without a world to fill": Said(
        lambda: split_world(actor=4, critic=-1),
        SpecError,
        """
        split_world(actor=4, critic=-1): there is nothing to infer critic from.
          Fix: split_world(5, actor=4, critic=-1), say.
        """,
        {},
    ),
    "no parts": Said(
        lambda: split_world(8),
        SpecError,
        """
        split_world(8) names no part.
          Fix: split_world(8, actor=-1), say.
        """,
        {},
    ),
    "parts of a world that is none": Said(
        lambda: split_world("8", actor=4),  # type: ignore[arg-type]
        SpecError,
        """
        split_world('8', actor=4): a world of '8' ranks.
          Fix: split_world(4, actor=4), say.
        """,
        {},
    ),
    "parts that are not the world": Said(
        lambda: split_world(8, actor=4, critic=2),
        SpecError,
        """
        split_world(8, actor=4, critic=2): the parts are 6 ranks, the world has 8.
          actor 4 + critic 2 = 6.
          Fix: start 6 ranks, or split_world(8, actor=4, critic=4).
        """,
        {},
    ),
    "parts that leave none for the last": Said(
        lambda: split_world(8, actor=8, critic=-1),
        SpecError,
        """
        split_world(8, actor=8, critic=-1): the parts are 8 ranks, the world has 8.
          actor 8 = 8.
          Fix: start 9 ranks.
        """,
        {},
    ),
    "a view without dp": Said(
        lambda: Layout(dp=4, sp=2, tp=2).view(pp=2, tp=2),
        SpecError,
        """
        layout.view(pp=2, tp=2) needs 4 ranks, the layout has 16.
          pp 2 x tp 2 = 4; Layout(dp=4, sp=2, tp=2) has 16 ranks.
          Fix: layout.view(pp=2, dp=-1, tp=2), which gives dp=4.
        """,
        {"sizes": {"pp": 2, "tp": 2}, "world_size": 16},
    ),
    "a view of one axis too short": Said(
        lambda: Layout(dp=4).view(a=3),
        SpecError,
        """
        layout.view(a=3) needs 3 ranks, the layout has 4.
          a 3 = 3; Layout(dp=4) has 4 ranks.
          Fix: layout.view(a=-1), which gives a=4.
        """,
        {"sizes": {"a": 3}, "world_size": 4},
    ),
    "a view that does not divide": Said(
        lambda: Layout(dp=4, sp=2).view(node=3, local=-1),
        SpecError,
        """
        layout.view(node=3, local=-1) needs a multiple of 3 ranks, the layout has 8.
          node 3 = 3; Layout(dp=4, sp=2) has 8 ranks.
          Fix: sizes whose product is 8.
        """,
        {"sizes": {"node": 3, "local": -1}, "world_size": 8},
    ),
    # ------------------------------------------------------------ factor.py
    "no ranks to factor": Said(
        lambda: factor_world(0, tp=2),
        SpecError,
        """
        factor_world(0, tp=2): a world of 0 ranks.
          Fix: an int of 1 or more.
        """,
        {"sizes": {"tp": 2}},
    ),
    # ------------------------------------------------------------ layout.py
    "an axis left out of a coordinate": Said(
        lambda: LAYOUT.rank(dp=1),
        CoordinateError,
        """
        layout.rank(dp=1) leaves out sp, tp.
          Fix: layout.rank(dp=1, sp=0, tp=0).
        """,
        {"axis": "sp"},
    ),
    "coordinates of what are no ranks": Said(
        lambda: LAYOUT.coordinates(np.array([0.5])),
        CoordinateError,
        """
        layout.coordinates: ranks are float64, not integers.
          Fix: ranks.astype(int).
        """,
        {},
    ),
    "coordinates of a rank outside": Said(
        lambda: LAYOUT.coordinates([[0, 9]]),
        CoordinateError,
        """
        layout.coordinates: rank 9 is not in Layout(dp=4, sp=2, tp=1).
          It has 8 ranks, from 0 to 7.
          Fix: a rank from 0 to 7.
        """,
        {"axis": None, "index": 9, "size": 8},
    ),
    "a rank outside": Said(
        lambda: Layout(dp=4, ranks=range(8, 12)).coordinate(0),
        CoordinateError,
        """
        layout.coordinate: rank 0 is not in Layout(dp=4, ranks=range(8, 12)).
          It has 4 ranks, from 8 to 11.
          Fix: a rank from 8 to 11.
        """,
        {"axis": None, "index": 0, "size": 4},
    ),
    "a layout with an open size": Said(
        lambda: Layout(dp=-1),
        SpecError,
        """
        Layout(dp=-1): there is nothing to infer dp from.
          Fix: factor_world(2, dp=-1, order='dp'), which infers it from a number of ranks.
        """,
        {"sizes": {"dp": -1}},
    ),
    "a layout beyond int64": Said(
        lambda: Layout(dp=2**62, tp=2),
        SpecError,
        """
        Layout(dp=4611686018427387904, tp=2) has more ranks than int64 can number.
          Fix: smaller sizes.
        """,
        {"sizes": {"dp": 2**62, "tp": 2}},
    ),
    # ------------------------------------------------------------ indices.py
    "a rank that is no integer": Said(
        lambda: LAYOUT.coordinate("3"),  # type: ignore[arg-type]
        CoordinateError,
        """
        layout.coordinate: rank is '3', a str.
          Fix: pass rank as an int.
        """,
        {"axis": None, "index": "3"},
    ),
    "an index outside its axis": Said(
        lambda: LAYOUT.rank(dp=1, sp=2, tp=0),
        CoordinateError,
        """
        layout.rank(dp=1, sp=2, tp=0): sp=2 is outside the axis.
          sp has 2 indices, 0 to 1.
          Fix: layout.rank(dp=1, sp=1, tp=0).
        """,
        {"axis": "sp", "index": 2, "size": 2},
    ),
    "an index on an axis of one": Said(
        lambda: LAYOUT.rank(dp=1, sp=0, tp=-1),
        CoordinateError,
        """
        layout.rank(dp=1, sp=0, tp=-1): tp=-1 is outside the axis.
          tp has 1 index, 0 to 0.
          Fix: layout.rank(dp=1, sp=0, tp=0).
        """,
        {"axis": "tp", "index": -1, "size": 1},
    ),
    # ------------------------------------------------------------ pattern.py
    "no pattern of axes": Said(
        lambda: joined_axes("(dp sp", LAYOUT.axes),
        SpecError,
        """
        mesh.device_mesh('(dp sp'): not a pattern of axes.
          A pattern is axis names, some of them joined by a pair of brackets.
          Fix: "dp sp tp", or some of these joined: "(dp sp) tp".
        """,
        {},
    ),
    "an axis in the place of another": Said(
        lambda: LAYOUT.rearrange("sp dp tp -> sp dp tp"),
        SpecError,
        """
        layout.rearrange('sp dp tp -> sp dp tp'): sp stands in the place of dp.
          Fix: rearrange("dp sp tp -> sp dp tp").
        """,
        {},
    ),
    # ------------------------------------------------------------ seats.py
    "more positions than ranks": Said(
        lambda: Layout(dp=4, ranks=[0, 1, 2]),
        SpecError,
        """
        Layout(dp=4, ranks=[0, 1, 2]) has 4 positions and 3 ranks.
          Each position of the grid holds one rank.
          Fix: ranks=range(4), say, or other sizes.
        """,
        {},
    ),
    "a range below zero": Said(
        lambda: Layout(dp=8, ranks=range(-1, 7)),
        SpecError,
        """
        Layout(dp=8, ranks=range(-1, 7)): a rank is negative.
          Fix: distinct ranks of this world, such as ranks=range(4).
        """,
        {},
    ),
    "a rank below zero": Said(
        lambda: Layout(dp=8, ranks=[-1, *range(7)][::-1]),
        SpecError,
        """
        Layout(dp=8, ranks=[6, 5, 4, 3, 2, 1, 0, -1]): a rank is negative.
          Fix: distinct ranks of this world, such as ranks=range(4).
        """,
        {},
    ),
    "a rank that is a float": Said(
        lambda: Layout(dp=8, ranks=[0.0, *range(1, 8)]),  # type: ignore[list-item]
        SpecError,
        """
        Layout(dp=8, ranks=[0.0, 1, 2, 3, 4, 5, 6, 7]): ranks holds something that is not an int.
          Fix: distinct ranks of this world, such as ranks=range(4).
        """,
        {},
    ),
    "a rank twice": Said(
        lambda: Layout(dp=8, ranks=[0, 0, *range(2, 8)]),
        SpecError,
        """
        Layout(dp=8, ranks=[0, 0, 2, 3, 4, 5, 6, 7]): a rank stands twice in ranks.
          Fix: distinct ranks of this world, such as ranks=range(4).
        """,
        {},
    ),
    # ------------------------------------------------------------ batch.py
    "a batch that does not divide": Said(
        lambda: BatchPlan.solve(dp=4, global_batch=100, micro_batch=3),
        BatchError,
        """
        BatchPlan.solve(dp=4, global_batch=100, micro_batch=3): \
100 is not a multiple of dp 4 x micro_batch 3 = 12.
          Nearest global batches: 96 and 108.
          Micro batches that divide 100 over dp 4: 1, 5, 25.
          Fix: global_batch=96, or global_batch=108, or micro_batch one of 1, 5, 25.
        """,
        {"global_batch": 100, "below": 96, "above": 108, "micro_batches": (1, 5, 25)},
    ),
    "a batch with many divisors": Said(
        lambda: BatchPlan.solve(dp=1, global_batch=720, micro_batch=50),
        BatchError,
        """
        BatchPlan.solve(dp=1, global_batch=720, micro_batch=50): \
720 is not a multiple of dp 1 x micro_batch 50 = 50.
          Nearest global batches: 700 and 750.
          Micro batches that divide 720 over dp 1: 24, 30, 36, 40, 45, 48, 60, 72.
          Fix: global_batch=700, or global_batch=750, \
or micro_batch one of 24, 30, 36, 40, 45, 48, 60, 72.
        """,
        {"below": 700, "above": 750},
    ),
    "fewer than two of the three": Said(
        lambda: BatchPlan.solve(dp=4, micro_batch=2),
        BatchError,
        """
        BatchPlan.solve(dp=4, micro_batch=2): \
1 of global_batch, micro_batch, accumulation_steps given.
          Any two of the three give the third.
          Fix: BatchPlan.solve(dp=4, micro_batch=2, accumulation_steps=1).
        """,
        {},
    ),
    "a batch of zero": Said(
        lambda: BatchPlan.solve(dp=4, global_batch=0, micro_batch=2),
        BatchError,
        """
        BatchPlan.solve(dp=4, global_batch=0, micro_batch=2): global_batch is 0.
          Batches and steps are whole numbers of 1 or more.
          Fix: global_batch=8, or more.
        """,
        {},
    ),
    "a step below zero": Said(
        lambda: PLAN.samples(-1, 0),
        CoordinateError,
        """
        plan.samples(-1, 0): there is no step -1.
          Fix: count steps from 0.
        """,
        {"index": -1},
    ),
    "a batch that was to be rounded to nothing": Said(
        lambda: BatchPlan.solve(dp=4, global_batch=8, micro_batch=3, round="down"),
        BatchError,
        """
        BatchPlan.solve(dp=4, global_batch=8, micro_batch=3, round='down'): \
8 is not a multiple of dp 4 x micro_batch 3 = 12.
          Nearest global batches: 12.
          Micro batches that divide 8 over dp 4: 1, 2.
          Fix: global_batch=12, or micro_batch one of 1, 2.
        """,
        {"below": None, "above": 12},
    ),
    "an unknown dp that does not divide": Said(
        lambda: BatchPlan.solve(global_batch=100, micro_batch=3, accumulation_steps=2),
        BatchError,
        """
        BatchPlan.solve(global_batch=100, micro_batch=3, accumulation_steps=2): \
100 is not a multiple of micro_batch 3 x accumulation_steps 2 = 6.
          Nearest global batches: 96 and 102.
          Micro batches that divide 100 over accumulation_steps 2: 1, 2, 5, 10, 25, 50.
          Fix: global_batch=96, or global_batch=102, or micro_batch one of 1, 2, 5, 10, 25, 50.
        """,
        {"below": 96, "above": 102},
    ),
    "too few without dp": Said(
        lambda: BatchPlan.solve(global_batch=100, micro_batch=3),
        BatchError,
        """
        BatchPlan.solve(global_batch=100, micro_batch=3): \
2 of dp, global_batch, micro_batch, accumulation_steps given.
          Any three give the last.
          Fix: BatchPlan.solve(global_batch=102, micro_batch=3, accumulation_steps=1).
        """,
        {},
    ),
    "an uneven batch of broken micro batches": Said(
        lambda: BatchPlan.solve(dp=7, global_batch=32, micro_batch=3, uneven=True),
        BatchError,
        """
        BatchPlan.solve(dp=7, global_batch=32, micro_batch=3, uneven=True): \
32 is not a multiple of micro_batch 3 = 3.
          Nearest global batches: 30 and 33.
          Micro batches that divide 32: 1, 2, 4, 8, 16, 32.
          Fix: global_batch=30, or global_batch=33, or micro_batch one of 1, 2, 4, 8, 16, 32.
        """,
        {"below": 30, "above": 33},
    ),
    "an uneven plan with steps that are not so": Said(
        lambda: BatchPlan.solve(
            dp=7, global_batch=32, micro_batch=1, accumulation_steps=4, uneven=True
        ),
        BatchError,
        """
        BatchPlan.solve(dp=7, global_batch=32, micro_batch=1, accumulation_steps=4, uneven=True): \
accumulation_steps is 4.
          32 micro batches over dp 7 are 5 at the most.
          Fix: accumulation_steps=5, or leave it out.
        """,
        {"global_batch": 32},
    ),
    "a rounding of no name": Said(
        lambda: BatchPlan.solve(dp=4, global_batch=8, micro_batch=3, round="near"),
        BatchError,
        """
        BatchPlan.solve(dp=4, global_batch=8, micro_batch=3, round='near'): round is 'near'.
          Fix: round='down' or round='up'.
        """,
        {},
    ),
    "a first sample below zero": Said(
        lambda: PLAN.samples(0, 0, first=-3),
        CoordinateError,
        """
        plan.samples(0, 0, first=-3): first is -3.
          Fix: count samples from 0.
        """,
        {"index": -3},
    ),
    # --------------------------------------------------------- schedule.py
    "a stage that cannot be run": Said(
        lambda: BatchSchedule(PLAN, ((0, 8), (100, 12))),
        BatchError,
        """
        BatchSchedule(plan, ((0, 8), (100, 12))): the stage from 100 samples on cannot be run.
          12 does not divide into micro batches of 2 over dp 4.
          Fix: a global batch of 8, or a global batch of 16, or uneven=True.
        """,
        {"global_batch": 12, "below": 8, "above": 16},
    ),
    "stages that do not begin at 0": Said(
        lambda: BatchSchedule(PLAN, ((5, 8), (5, 16))),
        BatchError,
        """
        BatchSchedule(plan, ((5, 8), (5, 16))): stages must ascend from 0.
          Stages begin at 5, 5.
          Fix: the first at 0, each later than the one before.
        """,
        {},
    ),
    "a stage that is none": Said(
        lambda: BatchSchedule(PLAN, ((0, 8.0),)),  # type: ignore[arg-type]
        BatchError,
        """
        BatchSchedule(plan, ((0, 8.0),)): (0, 8.0) is no stage.
          Fix: (samples consumed, global batch), such as (0, 256).
        """,
        {},
    ),
    "stages that cannot be read": Said(
        lambda: BatchSchedule.from_text(PLAN, "0:8, 100:16"),
        BatchError,
        """
        BatchSchedule.from_text(plan, '0:8, 100:16'): \
stages are pairs of samples and a global batch.
          Fix: "0:256 200000:512", say.
        """,
        {},
    ),
    "samples without tokens": Said(
        lambda: BatchSchedule.from_text(PLAN, "0:8", tokens_per_sample=0),
        BatchError,
        """
        BatchSchedule.from_text(plan, '0:8', tokens_per_sample=0): tokens_per_sample is 0.
          Fix: the length of a sequence, 1 or more.
        """,
        {},
    ),
    "a ramp of more increments than samples": Said(
        lambda: BatchSchedule.ramp_up(PLAN, start=8, increment=1, samples=5),
        BatchError,
        """
        BatchSchedule.ramp_up(plan, start=8, increment=1, samples=5): \
8 increments do not fit into 5 samples.
          Fix: samples=8, or more.
        """,
        {},
    ),
    "a ramp with a batch that cannot be run": Said(
        lambda: BatchSchedule.ramp_up(PLAN, start=7, increment=3, samples=100, uneven=True),
        BatchError,
        """
        BatchSchedule.ramp_up(plan, start=7, increment=3, samples=100): \
the stage from 0 samples on cannot be run.
          7 does not divide into micro batches of 2 over dp 4.
          Fix: a global batch of 6, or a global batch of 8.
        """,
        {"below": 6, "above": 8},
    ),
    "stages as text that cannot be run": Said(
        lambda: BatchSchedule.from_text(PLAN, "0:8 100:12"),
        BatchError,
        """
        BatchSchedule.from_text(plan, '0:8 100:12'): the stage from 100 samples on cannot be run.
          12 does not divide into micro batches of 2 over dp 4.
          Fix: a global batch of 8, or a global batch of 16, or uneven=True.
        """,
        {"below": 8, "above": 16},
    ),
    "stages that are no text": Said(
        lambda: BatchSchedule.from_text(PLAN, None),  # type: ignore[arg-type]
        BatchError,
        """
        BatchSchedule.from_text(plan, None): stages are pairs of samples and a global batch.
          Fix: "0:256 200000:512", say.
        """,
        {},
    ),
    "a schedule of no plan": Said(
        lambda: BatchSchedule("x", ((0, 8),)),  # type: ignore[arg-type]
        BatchError,
        """
        BatchSchedule(plan, ((0, 8),)): the plan is 'x'.
          Fix: mesh.batch(...) first.
        """,
        {},
    ),
    "uneven that is no bool": Said(
        lambda: BatchPlan.solve(dp=4, global_batch=8, micro_batch=2, uneven="no"),  # type: ignore[arg-type]
        BatchError,
        """
        BatchPlan.solve(dp=4, global_batch=8, micro_batch=2, uneven='no'): uneven is 'no'.
          Fix: uneven=True, or False.
        """,
        {},
    ),
    "a rank outside that asks for a seed": Said(
        lambda: varied(LAYOUT, 9, "dp"),
        CoordinateError,
        """
        mesh.seed(vary='dp'): rank 9 is not in Layout(dp=4, sp=2, tp=1).
          It holds 8 ranks; mesh.inside is False here.
          Fix: ask only where mesh.inside.
        """,
        {"index": 9, "size": 8},
    ),
    "a ramp of too many stages": Said(
        lambda: BatchSchedule.ramp_up(
            BatchPlan.solve(dp=1, global_batch=10**9, micro_batch=1),
            start=1,
            increment=1,
            samples=10**12,
        ),
        BatchError,
        """
        BatchSchedule.ramp_up(plan, start=1, increment=1, samples=1000000000000): \
999999999 increments; a schedule has 65536 stages at most.
          Fix: a larger increment.
        """,
        {},
    ),
    "a huge batch that does not divide": Said(
        lambda: BatchPlan.solve(dp=1, global_batch=10**18, micro_batch=3),
        BatchError,
        """
        BatchPlan.solve(dp=1, global_batch=1000000000000000000, micro_batch=3): \
1000000000000000000 is not a multiple of dp 1 x micro_batch 3 = 3.
          Nearest global batches: 999999999999999999 and 1000000000000000002.
          Micro batches that divide 1000000000000000000 over dp 1: 1, 2, 4, 5, 8, 10, 16, 20.
          Fix: global_batch=999999999999999999, or global_batch=1000000000000000002, \
or micro_batch one of 1, 2, 4, 5, 8, 10, 16, 20.
        """,
        {"below": 10**18 - 1, "above": 10**18 + 2},
    ),
    "a data axis that is not there by default": Said(
        lambda: resolve_axes("data", ("dp",), ("replicate", "shard")),
        UnknownAxisError,
        """
        mesh.batch(): there is no axis dp that divides the samples.
          Fix: data='replicate shard', or those of these axes that do.
        """,
        {"axis": "dp"},
    ),
    "a ramp from nothing": Said(
        lambda: BatchSchedule.ramp_up(PLAN, start=0, increment=8, samples=100),
        BatchError,
        """
        BatchSchedule.ramp_up(plan, start=0, increment=8, samples=100): start is 0.
          Fix: start=1, or more.
        """,
        {},
    ),
    "a ramp that leads elsewhere": Said(
        lambda: BatchSchedule.ramp_up(PLAN, start=8, increment=5, samples=100),
        BatchError,
        """
        BatchSchedule.ramp_up(plan, start=8, increment=5, samples=100): \
the ramp does not lead to the plan.
          From 8 by 5 never meets 16.
          Fix: increment=8, or what divides it.
        """,
        {},
    ),
    "a place in a run that is none": Said(
        lambda: BatchSchedule.constant(PLAN).at(-1),
        CoordinateError,
        """
        schedule.at(-1): no number of samples.
          Fix: schedule.at(0).
        """,
        {"index": -1},
    ),
    "a step of a schedule that is none": Said(
        lambda: BatchSchedule.constant(PLAN).consumed(-1),
        CoordinateError,
        """
        schedule.consumed(-1): there is no such step.
          Fix: count from 0.
        """,
        {"index": -1},
    ),
    "an order that is no order": Said(
        lambda: factor_world(8, order=5, tp=2),  # type: ignore[arg-type]
        SpecError,
        """
        factor_world(8, tp=2, order=5): order is 5, an int.
          Fix: factor_world(8, tp=2, order='dp tp'), say.
        """,
        {},
    ),
    "a pattern without an arrow": Said(
        lambda: LAYOUT.rearrange("dp sp tp"),
        SpecError,
        """
        layout.rearrange('dp sp tp'): a pattern is a str with one ->.
          Fix: rearrange("dp sp tp -> (dp sp tp)"), say.
        """,
        {},
    ),
    "a size in a pattern that is no int": Said(
        lambda: LAYOUT.rearrange("(a b) sp tp -> a b sp tp", a="2"),  # type: ignore[arg-type]
        SpecError,
        """
        layout.rearrange('(a b) sp tp -> a b sp tp', a='2'): a is '2', not an int.
          Fix: rearrange("dp sp tp -> (dp sp tp)"), say.
        """,
        {},
    ),
    "groups that are no groups": Said(
        lambda: GroupPlan.of(LAYOUT, [5]),  # type: ignore[list-item]
        SpecError,
        """
        GroupPlan.of(Layout(dp=4, sp=2, tp=1), [5]): groups is not a list of axes.
          Fix: groups=["dp tp"], say.
        """,
        {},
    ),
    "ranks that are none": Said(
        lambda: Layout(dp=1, ranks=[]),
        SpecError,
        """
        Layout(dp=1, ranks=[]): ranks is empty.
          Fix: distinct ranks of this world, such as ranks=range(4).
        """,
        {},
    ),
    "ranks that are no ranks": Said(
        lambda: Layout(dp=2, ranks=5),  # type: ignore[arg-type]
        SpecError,
        """
        Layout(dp=2, ranks=5): ranks is 5.
          Fix: distinct ranks of this world, such as ranks=range(4).
        """,
        {},
    ),
    "a data index outside": Said(
        lambda: PLAN.samples(0, 4),
        CoordinateError,
        """
        plan.samples(0, 4): there is no data index 4.
          dp is 4, so they run from 0 to 3.
          Fix: a data index from 0 to 3.
        """,
        {"axis": "dp", "index": 4, "size": 4},
    ),
    # --------------------------------------------------------- sequence.py
    "a sequence that does not divide": Said(
        lambda: SequencePlan(10, 4),
        SpecError,
        """
        SequencePlan(10, 4): 10 is not a multiple of parts 4.
          Nearest lengths: 8 and 12.
          Fix: length 8 or 12, or SequencePlan(10, 4, pad=True), which fills up to 12.
        """,
        {"below": 8, "above": 12},
    ),
    "a zigzag sequence that does not divide": Said(
        lambda: SequencePlan(6, 4, "zigzag"),
        SpecError,
        """
        SequencePlan(6, 4, order='zigzag'): 6 is not a multiple of 2 x parts 4 = 8.
          Zigzag cuts the sequence into two chunks a part.
          Nearest length: 8.
          Fix: length 8, or SequencePlan(6, 4, order='zigzag', pad=True), which fills up to 8.
        """,
        {"below": None, "above": 8},
    ),
    "a sequence cut over axes": Said(
        lambda: sequence_plan(10, 4, "contiguous", False, "cp 2 x sp 2"),
        SpecError,
        """
        mesh.sequence(10, axes='cp sp'): 10 is not a multiple of cp 2 x sp 2 = 4.
          Nearest lengths: 8 and 12.
          Fix: length 8 or 12, or mesh.sequence(10, axes='cp sp', pad=True), which fills up to 12.
        """,
        {},
    ),
    "a length of zero": Said(
        lambda: SequencePlan(0, 4, "zigzag"),
        SpecError,
        """
        SequencePlan(0, 4, order='zigzag'): length is 0.
          Lengths and parts are whole numbers of 1 or more.
          Fix: length 8, say.
        """,
        {},
    ),
    "an order of tokens that is none": Said(
        lambda: SequencePlan(8, 4, "striped"),  # type: ignore[arg-type]
        SpecError,
        """
        SequencePlan(8, 4, order='striped'): order is 'striped'.
          The orders of tokens are contiguous and zigzag.
          Fix: order='contiguous', or order='zigzag'.
        """,
        {},
    ),
    "padding that is no bool": Said(
        lambda: SequencePlan(8, 4, pad=1),  # type: ignore[arg-type]
        SpecError,
        """
        SequencePlan(8, 4, pad=1): pad is 1.
          Fix: pad=True, or pad=False.
        """,
        {},
    ),
    "a part outside": Said(
        lambda: SequencePlan(8, 4).positions(4),
        CoordinateError,
        """
        plan.positions(4): there is no part 4.
          There are 4, counted from 0.
          Fix: a part from 0 to 3.
        """,
        {"index": 4, "size": 4},
    ),
    # --------------------------------------------------------- shuffle.py
    "a position outside a shuffled order": Said(
        lambda: shuffled(np.array([0, 8, -1]), 8, 0, 0),
        CoordinateError,
        """
        shuffled([0, 8, -1], length=8): there is no position 8.
          They run from 0 to 7.
          Fix: positions inside the order.
        """,
        {"index": 8, "size": 8},
    ),
    # --------------------------------------------------------- epoch.py
    "a step beyond an epoch": Said(
        lambda: EPOCH.micro_batches(7),
        CoordinateError,
        """
        sampler.micro_batches(7): there is no such step.
          Epoch 2 has 7 steps, 0 to 6.
          Fix: for step in range(sampler.steps).
        """,
        {"index": 7, "size": 7},
    ),
    "no data": Said(
        lambda: checked_epoch(replace(EPOCH, length=0)),
        BatchError,
        """
        mesh.sampler(0, plan): the number of samples is 0.
          Fix: 1 sample or more, 4611686018427387904 at most.
        """,
        {},
    ),
    "a tail that is none": Said(
        lambda: checked_epoch(replace(EPOCH, tail="wrap")),
        BatchError,
        """
        mesh.sampler(100, plan, tail='wrap'): tail is 'wrap'.
          "keep" the rest as a smaller step, "drop" it, or "pad" it with the first samples.
          Fix: mesh.sampler(100, plan, tail='keep').
        """,
        {},
    ),
    "an order that is none": Said(
        lambda: checked_epoch(replace(EPOCH, seed=1.5)),
        BatchError,
        """
        mesh.sampler(100, plan, seed=1.5): there is no such order.
          shuffle=True, seed=1.5, epoch=2, where a bool, an int and an int of 0 or more are needed.
          Fix: mesh.sampler(100, plan, seed=0).
        """,
        {},
    ),
    "no whole step": Said(
        lambda: checked_epoch(replace(EPOCH, length=9, tail="drop")),
        BatchError,
        """
        mesh.sampler(9, plan, tail='drop'): 9 samples give no whole step of 16.
          Fix: mesh.sampler(9, plan, tail='keep'), or a global batch of at most 9.
        """,
        {"global_batch": 16, "below": 9},
    ),
    # --------------------------------------------------------- resume.py
    "a state of other data": Said(
        lambda: resume_epoch(LOAD, replace(EPOCH, length=90, seed=3), STATE),
        BatchError,
        """
        sampler.load_state_dict(state): the state is of another order of samples.
          length is 100 in the state, 90 here.
          seed is 1 in the state, 3 here.
          Fix: a sampler with the length and seed of the state.
        """,
        {},
    ),
    "a state that has consumed more than there is": Said(
        lambda: resume_epoch(LOAD, EPOCH, {**STATE, "consumed": 101}),
        BatchError,
        """
        sampler.load_state_dict(state): this is no state to read on from.
          consumed is 101, of 100 samples.
          Fix: what state_dict() gave.
        """,
        {},
    ),
    "a state that is none": Said(
        lambda: resume_epoch(LOAD, EPOCH, [1]),
        BatchError,
        """
        sampler.load_state_dict(state): this is no state to read on from.
          it is a list.
          Fix: what state_dict() gave.
        """,
        {},
    ),
    "a state with fields missing": Said(
        lambda: resume_epoch(LOAD, EPOCH, {"version": 1, "length": 100, "epoch": 2, "consumed": 0}),
        BatchError,
        """
        sampler.load_state_dict(state): this is no state to read on from.
          it has no shuffle, seed.
          Fix: what state_dict() gave.
        """,
        {},
    ),
    "a state of another version": Said(
        lambda: resume_epoch(LOAD, EPOCH, {**STATE, "version": 2}),
        BatchError,
        """
        sampler.load_state_dict(state): this is no state to read on from.
          its version is 2, not 1.
          Fix: what state_dict() gave.
        """,
        {},
    ),
    "a state that stands nowhere": Said(
        lambda: resume_epoch(LOAD, EPOCH, {**STATE, "epoch": -1}),
        BatchError,
        """
        sampler.load_state_dict(state): this is no state to read on from.
          epoch is -1, consumed is 16.
          Fix: what state_dict() gave.
        """,
        {},
    ),
    "more steps than a pass has": Said(
        lambda: checked_count("steps", 9, 7),
        CoordinateError,
        """
        sampler.state_dict(steps=9): steps is 9.
          Fix: steps as an int, from 0 to 7.
        """,
        {},
    ),
    # --------------------------------------------------------- streams.py
    "a base that is a float": Said(
        lambda: stream_seed(1.0, dp=2),  # type: ignore[arg-type]
        SpecError,
        """
        stream_seed(1.0, dp=2): the base is 1.0, a float.
          A base is any int, the same on all ranks.
          Fix: the int that seeds the job.
        """,
        {},
    ),
    "a stream whose name is no str": Said(
        lambda: stream_seed(1, 3),  # type: ignore[arg-type]
        SpecError,
        """
        stream_seed(1, 3): the name is 3, an int.
          Fix: a str, such as '3'.
        """,
        {},
    ),
    "a stream at a negative index": Said(
        lambda: stream_seed(1, "init", dp=2, tp=-1),
        CoordinateError,
        """
        stream_seed(1, 'init', dp=2, tp=-1): tp is -1.
          An index counts from 0.
          Fix: stream_seed(1, 'init', dp=2, tp=0).
        """,
        {"axis": "tp", "index": -1},
    ),
    "a stream at an index that is a bool": Said(
        lambda: stream_seed(1, "init", dp=True),
        CoordinateError,
        """
        stream_seed(1, 'init', dp=True): dp is True, a bool.
          Fix: pass dp as an int.
        """,
        {"axis": "dp", "index": True},
    ),
    "a stream that is too far out": Said(
        lambda: stream_seed(1, "init", sample=2**40),
        CoordinateError,
        """
        stream_seed(1, 'init', sample=1099511627776): the coordinate is too far out for a seed of its own.
          Its code has 82 bits, and 63 fit.
          Fix: fewer axes, or smaller indices.
        """,  # noqa: E501
        {},
    ),
    "axes to vary that are none": Said(
        lambda: varied(LAYOUT, 0, 3),
        SpecError,
        """
        mesh.seed(vary=3): vary is 3.
          Fix: vary=('dp',), or other axes of dp sp tp.
        """,
        {},
    ),
    "an axis to vary that is not there": Said(
        lambda: varied(LAYOUT, 0, "pp"),
        UnknownAxisError,
        """
        mesh.seed(vary='pp'): there is no axis 'pp'.
          The axes are dp, sp, tp.
          Fix: use one of dp, sp, tp.
        """,
        {"axis": "pp", "axes": ("dp", "sp", "tp"), "suggestion": None},
    ),
    # ------------------------------------------------------------ hostfile.py
    "a file of hosts without a host": Said(
        lambda: parse_hostfile("# nothing\n"),
        SpecError,
        """
        parse_hostfile(text): the file names no host.
          Fix: a line for each rank: its host, and its rack if it is known.
        """,
        {},
    ),
    "a file of hosts with a line too short": Said(
        lambda: parse_hostfile("a r1\n\nb\n"),
        SpecError,
        """
        parse_hostfile(text): line 3 has 1 word, line 1 has 2.
          Fix: a host in each line, then its rack, row and hall.
        """,
        {},
    ),
    "a file of hosts with too many words": Said(
        lambda: parse_hostfile("a b c d e\n"),
        SpecError,
        """
        parse_hostfile(text): line 1 has 5 words.
          Fix: at most 4 words: host, rack, row, hall.
        """,
        {},
    ),
    "a hostfile of MPI": Said(
        lambda: parse_hostfile("# mpirun\na slots=8\n"),
        SpecError,
        """
        parse_hostfile(text): line 2 has 'slots=8', which is no host and no rack.
          An MPI hostfile has a line for each host; this file needs one for each rank.
          Fix: a line with a for each of its ranks.
        """,
        {},
    ),
    "a rack in two rows": Said(
        lambda: parse_hostfile("a r1 x\nb r2 x\nc r1 y\n"),
        SpecError,
        """
        parse_hostfile(text): r1 is in x in line 1, in y in line 3.
          Fix: one row for r1.
        """,
        {},
    ),
    "a host in two racks": Said(
        lambda: parse_hostfile("a r1\nb r1\na r2\n"),
        SpecError,
        """
        parse_hostfile(text): a is in r1 in line 1, in r2 in line 3.
          Fix: one rack for a.
        """,
        {},
    ),
    # ------------------------------------------------------------ policies.py
    "crossing is no mapping": Said(
        lambda: check_policies(Layout(tp=2), "tp"),
        SpecError,
        """
        build_mesh(tp=2): crossing is 'tp', a str.
          Fix: for example build_mesh(tp=2, crossing={'tp': 'error'}).
        """,
        {},
    ),
    "a policy that there is not": Said(
        lambda: check_policies(Layout(dp=2, tp=2), {"tp": "warn", "dp": "no"}),
        SpecError,
        """
        build_mesh(): crossing of dp is 'no'.
          Fix: build_mesh(crossing={'tp': 'warn', 'dp': 'error'}), or 'warn', or 'allow'.
        """,
        {},
    ),
    # ------------------------------------------------------------ topology.py, level.py
    "ranks that do not divide over nodes": Said(
        lambda: Topology.even(15, nodes=2),
        SpecError,
        """
        Topology.even(15, nodes=2): 15 ranks do not divide over 2 nodes.
          Fix: Topology.even(15, nodes=1), or Topology.even(15, nodes=3).
        """,
        {"world_size": 15},
    ),
    "fewer ranks than nodes": Said(
        lambda: Topology.even(8, nodes=16),
        SpecError,
        """
        Topology.even(8, nodes=16): 8 ranks do not divide over 16 nodes.
          Fix: Topology.even(8, nodes=8).
        """,
        {"world_size": 8},
    ),
    "nodes that do not divide over racks": Said(
        lambda: Topology.even(8, nodes=4, racks=3),
        SpecError,
        """
        Topology.even(8, nodes=4, racks=3): 4 nodes do not divide over 3 racks.
          Fix: Topology.even(8, nodes=4).with_level('rack', [...]), a rack for each node.
        """,
        {"world_size": 8},
    ),
    "no number of nodes": Said(
        lambda: Topology.even(8, nodes=2.0),  # type: ignore[arg-type]
        SpecError,
        """
        Topology.even(8, nodes=2.0): nodes is 2.0, a float.
          Fix: an int of 1 or more for nodes.
        """,
        {},
    ),
    "nodes of no sizes": Said(
        lambda: Topology.of_sizes([]),
        SpecError,
        """
        Topology.of_sizes([]) has no node sizes.
          Fix: for example Topology.of_sizes([7, 8]), the number of ranks on each node.
        """,
        {},
    ),
    "an empty node": Said(
        lambda: Topology.of_sizes([8, 0]),
        SpecError,
        """
        Topology.of_sizes([8, 0]): the size of node 1 is 0.
          Fix: an int of 1 or more for the size of node 1.
        """,
        {},
    ),
    "more ranks than int64 on nodes": Said(
        lambda: Topology.of_sizes([2**63 - 2, 1]),
        SpecError,
        """
        Topology.of_sizes([9223372036854775806, 1]) has more ranks than int64 can number.
          Fix: smaller sizes.
        """,
        {},
    ),
    "hosts that are one str": Said(
        lambda: Topology.of_hosts("aabb"),
        SpecError,
        """
        Topology.of_hosts('aabb'): hosts is not a list of hosts.
          Fix: for example Topology.of_hosts(['a', 'a', 'b', 'b']), the host of each rank.
        """,
        {},
    ),
    "a level that is there already": Said(
        lambda: Topology.even(8, nodes=4).with_level("node", [0, 0, 1, 1]),
        SpecError,
        """
        topology.with_level('node', [0, 0, 1, 1]): there is already a level 'node'.
          Fix: another name.
        """,
        {},
    ),
    "a domain for some nodes only": Said(
        lambda: Topology.even(8, nodes=4).with_level("rack", [0, 1]),
        SpecError,
        """
        topology.with_level('rack', [0, 1]) has 2 domains for 4 nodes.
          Fix: one domain for each node.
        """,
        {},
    ),
    "a level that tears a rack apart": Said(
        lambda: Topology.even(8, nodes=4, racks=2).with_level("hall", [0, 1, 1, 1]),
        SpecError,
        """
        topology.with_level('hall', [0, 1, 1, 1]): rack 0 would be in several domains.
          Fix: one domain for all nodes of rack 0; add levels from the inside out.
        """,
        {},
    ),
    "a level that is not there": Said(
        lambda: Topology.even(8, nodes=4).domain_of("rack", [0]),
        SpecError,
        """
        topology: there is no level 'rack'.
          Fix: use one of node.
        """,
        {},
    ),
    "a rank that sits nowhere": Said(
        lambda: Topology.even(8, nodes=4).node_of([0, 8]),
        CoordinateError,
        """
        topology.node_of: rank 8 is not in the topology, which has 8 ranks on 4 nodes of 2.
          Fix: ranks from 0 to 7.
        """,
        {"index": 8},
    ),
    "a node that is not there": Said(
        lambda: Topology.even(8, nodes=4).ranks_of(4),
        CoordinateError,
        """
        topology.ranks_of(4): the node does not exist.
          Fix: a node from 0 to 3.
        """,
        {"index": 4, "size": 4},
    ),
    # ------------------------------------------------------------ crossing.py
    "traffic that is less than none": Said(
        lambda: link_bytes(LAYOUT, Topology.even(8, nodes=2), {"dp": 10, "sp": -1}),
        SpecError,
        """
        link_bytes(traffic={'dp': 10, 'sp': -1}): the traffic of sp is -1.
          Fix: the bytes that a rank sends along it in a step, 0 or more.
        """,
        {},
    ),
    # ------------------------------------------------------------ hybrid.py
    "sizes beside those within": Said(
        lambda: factor_world(8, dp=2, within={"tp": 4}),
        SpecError,
        """
        factor_world(8, dp=2, within={'tp': 4}) gives dp beside within and across.
          Fix: factor_world(8, within={'tp': 4}, across={'dp': 2}); or within, on a node.
        """,
        {"sizes": {"dp": 2}},
    ),
    "sizes within that are no mapping": Said(
        lambda: factor_world(8, within=[2]),  # type: ignore[arg-type]
        SpecError,
        """
        factor_world(8, within=[2]): within is a list.
          Fix: within={'dp': 2}, say: axis to size.
        """,
        {},
    ),
    "no size within": Said(
        lambda: factor_world(8, across={"dp": 4}, within={"tp": 0}),
        SpecError,
        """
        factor_world(8, within={'tp': 0}, across={'dp': 4}): the size of tp within nodes is 0.
          Fix: an int of 1 or more, or -1 for the one to be inferred.
        """,
        {},
    ),
    "two open sizes of a hybrid": Said(
        lambda: factor_world(8, within={"tp": -1}),
        SpecError,
        """
        factor_world(8, within={'tp': -1}) leaves across dp and within tp open.
          Only one size can be inferred; dp is, across nodes, where it is left out.
          Fix: a size for within tp.
        """,
        {},
    ),
    # ------------------------------------------------------------ svg.py
    "a picture of too many ranks": Said(
        lambda: draw_svg(("pp", "dp", "tp"), np.zeros((4, 12_500, 8), dtype=np.int64)),
        SpecError,
        """
        draw_svg(('pp', 'dp', 'tp'), grid): 400000 ranks are too many for a picture.
          At most 16384 ranks are drawn, each as a cell.
          Fix: draw_svg(('pp', 'dp', 'tp'), grid[:1, :2048, :8]), the first 16384; or print(layout), which shows the edges.
        """,  # noqa: E501
        {"sizes": {"pp": 4, "dp": 12_500, "tp": 8}},
    ),
    "nodes of another number of ranks": Said(
        lambda: draw_svg(("dp",), np.arange(4), np.array([0, 0, 1])),
        SpecError,
        """
        draw_svg(('dp',), grid, [0, 0, 1]): nodes has shape (3,), the grid 4 ranks.
          Fix: one node for the rank at each position, as a flat array.
        """,
        {},
    ),
    # ------------------------------------------------------------ model.py, links.py, cost.py
    "a config without a size": Said(
        lambda: ModelShape.of({k: v for k, v in CONFIG.items() if k != "num_hidden_layers"}),
        SpecError,
        """
        ModelShape.of(config): there is no num_hidden_layers or n_layer.
          Fix: the config.json of a decoder, as the Hugging Face Hub has it.
        """,
        {},
    ),
    "a model of latent attention": Said(
        lambda: ModelShape.of({**CONFIG, "kv_lora_rank": 512}),
        SpecError,
        """
        ModelShape.of(config): kv_lora_rank is 512.
          Latent attention is not modelled.
          Fix: leave kv_lora_rank out; plain attention is then counted in its place.
        """,
        {},
    ),
    "a size of a model that is none": Said(
        lambda: ModelShape.of({**CONFIG, "hidden_size": "4096"}),
        SpecError,
        """
        ModelShape.of(config): hidden is '4096'.
          Fix: a whole number from 1 to 100000000 for hidden_size or n_embd.
        """,
        {},
    ),
    "kv heads that do not divide the heads": Said(
        lambda: ModelShape.of({**CONFIG, "num_key_value_heads": 5}),
        SpecError,
        """
        ModelShape.of(config): kv_heads does not divide heads.
          kv_heads is 5, heads is 32.
          Fix: num_key_value_heads and num_attention_heads as the model has them.
        """,
        {},
    ),
    "links without such a figure": Said(
        lambda: MACHINES["h100"].with_measured({"nvlink": 450}),
        SpecError,
        """
        machine.with_measured({'nvlink': 450}): there is no figure 'nvlink'.
          Fix: one of flops, memory, memory_bandwidth, bandwidth_intra_node, bandwidth_inter_node, \
latency_intra_node, latency_inter_node, source.
        """,
        {},
    ),
    "a figure that is none": Said(
        lambda: MACHINES["h100"].with_measured({"bandwidth_inter_node": 0}),
        SpecError,
        """
        machine.with_measured({'bandwidth_inter_node': 0}): bandwidth_inter_node is 0.
          Fix: a number from 1e-30 to 1e+30.
        """,
        {},
    ),
    "a job of no ranks": Said(
        lambda: TrainingJob(0, 1, 8, 64, MACHINES["h100"]),
        SpecError,
        """
        world is 0.
          Fix: a whole number from 1 to 131072.
        """,
        {},
    ),
    "a job that does not divide over its nodes": Said(
        lambda: TrainingJob(64, 7, 8, 64, MACHINES["h100"]),
        SpecError,
        """
        64 ranks do not divide over 7 nodes.
          Fix: nodes=4, or nodes=8.
        """,
        {},
    ),
    # ------------------------------------------------------------ measured collectives
    "no sizes to measure": Said(
        lambda: sweep_sizes(64, 32, 2),
        SpecError,
        """
        sweep_sizes(64, 32, 2): there are no sizes from 64 to 32 bytes by a factor of 2.
          The least is 1 or more, the most 1099511627776 or less, and the factor 2 or more.
          Fix: for example sweep_sizes(1024, 65536, 4).
        """,
        {},
    ),
    "a target without axes": Said(
        lambda: parse_targets(LAYOUT, ["dp", "dp+"]),
        SpecError,
        """
        parse_targets(Layout(dp=4, sp=2, tp=1), ['dp', 'dp+']): 'dp+' is not a target: axes, \
or two sets of axes joined by '+'.
          Fix: axes such as dp, 'dp sp' for groups over both, or dp+sp for both at once.
        """,
        {},
    ),
    "a target in which nothing travels": Said(
        lambda: parse_targets(LAYOUT, ["tp"]),
        SpecError,
        """
        parse_targets(Layout(dp=4, sp=2, tp=1), ['tp']): a group over tp has 1 rank, so no \
data moves in it.
          Fix: an axis with 2 ranks or more.
        """,
        {},
    ),
}


def raised(do: Callable[[], object]) -> MeshkitError:
    with pytest.raises(MeshkitError) as caught:
        do()
    return caught.value


@pytest.mark.parametrize("name", SAID)
def test_word_for_word(name: str) -> None:
    case = SAID[name]
    error = raised(case.do)
    assert str(error) == textwrap.dedent(case.text).strip()
    assert type(error) is case.kind
    assert {fact: getattr(error, fact) for fact in case.facts} == case.facts


def test_33_axes() -> None:
    error = raised(lambda: Layout(**{f"a{i}": 1 for i in range(33)}))
    first, *rest = str(error).splitlines()
    assert first.startswith("Layout(a0=1, a1=1, ")
    assert first.endswith(", a32=1) has 33 axes.")
    assert rest == ["  A mesh has 1 to 32.", "  Fix: leave out axes of size 1."]


def test_what_einops_refuses() -> None:
    """The evidence is einops' own last line, which is not ours to fix in a test."""
    error = raised(lambda: LAYOUT.rearrange("dp sp -> sp dp"))
    said = str(error.__cause__).strip().splitlines()[-1].strip()
    assert str(error).splitlines() == [
        "layout.rearrange('dp sp -> sp dp') on dp=4 sp=2 tp=1: einops refuses.",
        f"  {said}",
        '  Fix: rearrange("dp sp tp -> (dp sp tp)"), say.',
    ]


@pytest.mark.parametrize("name", SAID)
def test_the_shape_of_a_message(name: str) -> None:
    """The call first; then evidence, indented; one Fix, last; every line a sentence."""
    first, *rest = str(raised(SAID[name].do)).splitlines()
    assert re.match(r"[\w.]+(\(|: )", first)
    assert all(line.startswith("  ") and line[2] != " " for line in rest)
    assert [line.startswith("  Fix: ") for line in rest] == [False] * (len(rest) - 1) + [True]
    assert all(line.endswith((".", "?")) for line in (first, *rest))


# ---------------------------------------------------------------- none is missing


def raises_in(path: Path) -> set[tuple[str, int]]:
    tree = ast.parse(path.read_text())
    return {
        (path.name, node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise) and node.exc is not None
    }


def line_of(error: BaseException) -> tuple[str, int]:
    """Where an exception was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    tree = ast.parse(Path(frame.filename).read_text())
    spans = [
        (n.lineno, n.end_lineno or n.lineno) for n in ast.walk(tree) if isinstance(n, ast.Raise)
    ]
    inside = [first for first, last in spans if first <= (frame.lineno or 0) <= last]
    return Path(frame.filename).name, inside[0]


def test_every_raise_is_here() -> None:
    here = [case.do for case in SAID.values()]
    here += [lambda: Layout(**{f"a{i}": 1 for i in range(33)})]
    here += [lambda: LAYOUT.rearrange("dp sp -> sp dp")]
    said = {line_of(raised(do)) for do in here}
    every = {found for path in CORE.glob("*.py") for found in raises_in(path)}
    assert len(every) > 20
    assert sorted(every - said) == []


def test_the_list_of_raises_can_miss_one(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text("def f(x):\n    if x:\n        raise ValueError(x)\n    raise\n")
    assert raises_in(planted) == {("planted.py", 3)}


# ---------------------------------------------------------------- what a Fix says can be typed

NAMES = {
    "Layout": Layout,
    "factor_world": factor_world,
    "BatchPlan": BatchPlan,
    "SequencePlan": SequencePlan,
    "LAYOUT": LAYOUT,
}


def calls_in_fix(text: str) -> list[str]:
    """The calls that a Fix proposes: ``name(...)`` with its brackets closed."""
    fix = text.rpartition("Fix: ")[2]
    found = []
    for hit in re.finditer(
        r"\b(?:factor_world|BatchPlan\.solve|BatchPlan|SequencePlan|Layout|layout\.\w+)\(", fix
    ):
        depth = 0
        for place in range(hit.end() - 1, len(fix)):
            depth += {"(": 1, ")": -1}.get(fix[place], 0)
            if depth == 0:
                found.append(fix[hit.start() : place + 1])
                break
    return found


def test_the_calls_in_a_fix_are_found() -> None:
    text = (
        "f\n  Fix: start 8 ranks, or factor_world(6, order=('dp',)), which; or layout.rank(dp=1)."
    )
    assert calls_in_fix(text) == ["factor_world(6, order=('dp',))", "layout.rank(dp=1)"]


@pytest.mark.parametrize(
    "do",
    [
        lambda: Layout(),
        lambda: Layout(dp=0, sp=2),
        lambda: factor_world(8, tp="4"),  # type: ignore[arg-type]
        lambda: factor_world(8, tp=-1),
        lambda: factor_world(8, tp=-1, sp=-1),
        lambda: factor_world(8, tp=-1, sp=-1, order="sp tp"),
        lambda: factor_world(8, shard=2, tp=2),
        lambda: factor_world(8, dp=2, within={"tp": 4}),
        lambda: factor_world(8, sp=2, tp=2, order="dp cp tp tp"),
        lambda: factor_world(8, order="sp"),
        lambda: factor_world(8, order=""),
        lambda: factor_world(6, dp=4, sp=2, tp=1),
        lambda: factor_world(6, dp=4, sp=2, order="sp dp"),
        lambda: LAYOUT.view(dp=3, sp=2),
        lambda: LAYOUT.view(),
        lambda: LAYOUT.rank(dp=1),
        lambda: LAYOUT.rank(dp=9, sp=0, tp=0),
        lambda: LAYOUT.rank(dp=np.int64(9), sp=0, tp=0),
        lambda: Layout(dp=-1),
        lambda: Layout(tp=2, dp=-1),
        lambda: Layout(tp=-1, dp=2),
        lambda: Layout(replicate=-1, shard=2),
        lambda: BatchPlan.solve(dp=4, micro_batch=2),
        lambda: BatchPlan.solve(dp=4),
        lambda: BatchPlan.solve(dp=4, global_batch=10),
        lambda: SequencePlan(10, 4),
        lambda: SequencePlan(10, 4, "zigzag"),
    ],
)
def test_a_call_that_a_fix_proposes_works(do: Callable[[], object]) -> None:
    error = raised(do)
    for call in calls_in_fix(str(error)):
        typed = re.sub(r"^layout\.", "LAYOUT.", call)
        eval(typed, NAMES)


@pytest.mark.parametrize(
    "asked",
    [
        {"dp": 4, "global_batch": 100, "micro_batch": 3},
        {"dp": 4, "global_batch": 2, "micro_batch": 1},
        {"dp": 4, "global_batch": 100, "accumulation_steps": 3},
        {"dp": 4, "global_batch": 24, "accumulation_steps": 4, "micro_batch": 2},
    ],
)
def test_each_value_that_a_batch_error_proposes_works(asked: dict[str, int]) -> None:
    fix = str(raised(lambda: BatchPlan.solve(**asked))).rpartition("Fix: ")[2]
    changes = [{"global_batch": int(n)} for n in re.findall(r"global_batch=(\d+)", fix)]
    micro = re.search(r"micro_batch one of ([\d, ]+)", fix)
    changes += [{"micro_batch": int(n)} for n in micro[1].split(", ")] if micro else []
    assert changes
    for change in changes:
        BatchPlan.solve(**{**asked, **change})


def test_a_rank_that_is_proposed_is_not_the_one_refused() -> None:
    error = raised(lambda: Layout(dp=4, ranks=range(0, 8, 2)).coordinate(3))
    assert "Fix: a rank from 0 to 6." not in str(error)  # 3 is from 0 to 6


def test_a_pattern_that_is_proposed_is_not_the_one_refused() -> None:
    error = raised(lambda: LAYOUT.rearrange("dp sp tp -> dp sp"))
    assert 'begins "dp sp tp -> "' not in str(error)  # it does


def test_the_call_is_the_one_the_caller_wrote() -> None:
    assert str(raised(lambda: factor_world(2**64))).startswith("factor_world(")


def test_an_index_that_is_no_integer_names_its_axis() -> None:
    error = raised(lambda: LAYOUT.rank(dp="1", sp=0, tp=0))  # type: ignore[arg-type]
    assert str(error).splitlines()[0].endswith("dp is '1', a str.")
    assert (error.axis, error.index) == ("dp", "1")  # type: ignore[attr-defined]


@pytest.mark.parametrize("axis", ["pp", "ep", "cp"])
def test_a_standard_axis_that_is_not_there_is_no_misspelling(axis: str) -> None:
    error = raised(lambda: LAYOUT.groups(axis))
    assert isinstance(error, UnknownAxisError)
    assert error.suggestion is None
    assert str(error).endswith("Fix: use one of dp, sp, tp.")


def test_one_rank_is_not_one_ranks() -> None:
    mistakes: list[Callable[[], object]] = [
        lambda: Layout(dp=1).coordinate(5),
        lambda: Layout(dp=4, ranks=[0]),
        lambda: Layout(dp=1, ranks=[0, 1]),
        lambda: factor_world(6, tp=1, order="tp"),
    ]
    for do in mistakes:
        assert not re.search(r"\b1 (ranks|positions)\b", str(raised(do)))
