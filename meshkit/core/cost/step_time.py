"""What an optimizer step would take: an alpha-beta model with contention. It ranks; no promise.

A collective that sends so many bytes from a rank takes ``steps x wait + max over links of bytes /
bandwidth`` (alpha-beta; Thakur, Rabenseifner and Gropp, 2005). Ranks lie on nodes in blocks and
axes nest ``pp dp ep cp sp tp``; of a group of g ranks, k share a node. A ring leaves the node once
in k hops, so 1/k of its bytes cross; an all-to-all sends (g - k) / (g - 1) of them across.

Of a micro batch of t tokens on a rank (arXiv 2104.04473, 2205.05198, 2309.14509, 2310.01889)::

    compute  2 (weights met + seq x heads x head_dim) t operations forward, twice that backward
    weights  12 bytes each from and to memory: read twice, their gradients added to in fp32
    tp       4 all-gathers or reduce-scatters of t x hidden a layer and pass
    sp       4 all-to-alls a layer and pass: q, k, v, output
    cp       a ring of k and v: once forward, twice backward
    ep       2 all-to-alls of top_k x t x hidden a layer and pass
    pp       v sends of t x hidden each way
    bubble   (pp - 1) / v micro batches, once a step
    dp       8 bytes a weight with ddp, 6 with zero1, once a step; with fsdp 8, every micro batch

A pass is the forward, the backward, and the forward again where it is recomputed. What stands
above the bubble is on the critical path. dp overlaps with one micro batch, under fsdp with all;
what is left shows. And no step is shorter than what a link has to carry: t >= max over links of all
bytes that cross it / its bandwidth; ``links`` is what that adds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..arrays import Floats, Ints
from ..call import public
from ..errors import SpecError
from ..topology.level import check_divides
from ..validate import parse_integer
from .machines import Machine
from .memory import ParallelConfig, stage_layers, stage_weights
from .transformer import ModelShape

AXES = ParallelConfig._fields[:6]
LIMITS = {"world": 2**17, "nodes": 2**17, "global_batch": 2**40, "seq": 2**40}


@dataclass(frozen=True)
class TrainingJob:
    """What is to be run, and on what.

    Attributes:
        world: ranks.
        nodes: equal nodes that they lie on, in blocks.
        global_batch: samples in one optimizer step.
        seq: tokens of a sample.
        links: devices and wires.
    """

    world: int
    nodes: int
    global_batch: int
    seq: int
    links: Machine

    @public("Job")
    def __post_init__(self) -> None:
        numbers = check_job(*(getattr(self, name) for name in LIMITS))
        for name, number in numbers.items():
            object.__setattr__(self, name, number)


def check_job(world: object, nodes: object, global_batch: object, seq: object) -> dict[str, int]:
    """The numbers of a job as plain ints.

    Args:
        world: as in :class:`TrainingJob`, and so are the others.
        nodes: how many, all equal.
        global_batch: samples of a step.
        seq: tokens of a sample.

    Raises:
        SpecError: for what is no whole number, or too large; where nodes would differ.
    """
    asked = dict(zip(LIMITS, (world, nodes, global_batch, seq), strict=True))
    numbers = {name: _limited(name, value) for name, value in asked.items()}
    ranks, count = numbers["world"], numbers["nodes"]
    check_divides(ranks, count)
    return numbers


def _limited(name: str, value: object) -> int:
    number = parse_integer(value)
    if number is None or not 1 <= number <= LIMITS[name]:
        fix = f"a whole number from 1 to {LIMITS[name]}."
        raise SpecError(f"{name} is {value!r}.", fix=fix)
    return number


class Traffic(NamedTuple):
    """What one rank sends: bytes in its node, bytes out of it, and s of waiting."""

    inside: Floats
    across: Floats
    wait: Floats


def group_locality(job: TrainingJob, c: ParallelConfig, *axes: str) -> tuple[Ints, Ints]:
    """How many ranks a group over some axes has, and how many of them share a node.

    Of groups that straddle nodes unevenly, none counts as sharing: the slowest group decides.

    Args:
        job: says how many ranks a node has.
        c: says how the axes nest.
        axes: of the group, in any order.

    Returns:
        Both numbers, arrays as long as ``c``.
    """
    size, close, stride, node = np.int64(1), np.int64(1), np.int64(1), job.world // job.nodes
    for axis in reversed(AXES):
        extent = getattr(c, axis)
        if axis in axes:
            whole, spans = node % (stride * extent) == 0, stride * extent % node == 0
            part = np.where(spans & (node % stride == 0), node // stride, 1)
            size, close = size * extent, close * np.where(whole, extent, part)
        stride = stride * extent
    return size, close


def traffic_of(
    job: TrainingJob, among: tuple[Ints, Ints], amount: Floats, steps: Floats, *, ring: bool = True
) -> Traffic:
    """What each rank of a group sends, by the links that it takes.

    Args:
        job: says what a step waits for.
        among: the size of the group, and how many of it share a node.
        amount: bytes that a rank sends in all.
        steps: messages that wait for each other.
        ring: whether they go to the next rank, or to each of the others.
    """
    size, close = among
    share = 1 / close if ring else (size - close) / np.maximum(size - 1, 1)
    leaves = close < size
    wait = np.where(leaves, job.links.wait_across, job.links.wait_inside)
    across = np.where(leaves, share, 0) * amount
    return Traffic(amount - across, across, steps * wait)


def seconds(links: Machine, traffic: Traffic) -> Floats:
    """How long it takes where nothing else is sent."""
    busiest = np.maximum(traffic.inside / links.inside, traffic.across / links.across)
    return np.asarray(busiest / 1e9 + traffic.wait)


def predicted(model: ModelShape, job: TrainingJob, c: ParallelConfig) -> dict[str, Floats]:
    """The terms of one optimizer step, in s; their sum is the step. Pure, O(choices).

    Args:
        model: the sizes of the model.
        job: what is to be run.
        c: ways to run it that fit.

    Returns:
        compute, weights, tp, sp, cp, ep, pp, bubble, dp and links, an array each, as long as ``c``.
    """
    micros = job.global_batch // (c.dp * c.ep * c.micro_batch)
    path, grads = _on_path(model, job, c), _gradients(model, job, c, micros)
    read = 12 * sum(stage_weights(model, c)) / job.links.reads / 1e9
    one = {"compute": _compute(model, job, c), "weights": read}
    one |= {axis: seconds(job.links, traffic) for axis, traffic in path.items()}
    busy = sum(one.values())
    beside = busy * np.where(np.asarray(c.shard) == 2, micros, 1)
    dp = np.maximum(seconds(job.links, grads) - beside, 0)
    inside, across = (
        micros * sum(traffic[i] for traffic in path.values()) + grads[i] for i in (0, 1)
    )
    carried = np.maximum(inside / job.links.inside, across / job.links.across) / 1e9
    terms = {name: micros * value for name, value in one.items()}
    terms |= {"bubble": (c.pp - 1) / c.virtual * busy, "dp": dp}
    return {**terms, "links": np.maximum(carried - micros * busy - dp, 0)}


def _compute(model: ModelShape, job: TrainingJob, c: ParallelConfig) -> Floats:
    """Seconds that the slowest stage computes for one micro batch."""
    tokens = c.micro_batch * job.seq / (c.cp * c.sp * c.tp)
    layer = model.met / model.layers + job.seq * model.heads * model.head_dim  # causal: half of it
    longest = stage_layers(model, c.pp)
    last = longest - (model.layers % c.pp != 0)
    passes = 3 + np.asarray(c.recompute)
    most = np.maximum(last * layer * passes + 3 * model.embedding, longest * layer * passes)
    return np.asarray(2 * tokens * most / job.links.flops)


def _on_path(model: ModelShape, job: TrainingJob, c: ParallelConfig) -> dict[str, Traffic]:
    """What a rank sends for one micro batch while its layers wait."""
    layers, passes = stage_layers(model, c.pp), 2 + np.asarray(c.recompute)
    tokens = c.micro_batch * job.seq / (c.cp * c.sp)
    kv = 2 * tokens * 2 * model.kv_heads * model.head_dim / c.tp  # bytes; bf16
    q = 2 * tokens * 2 * model.heads * model.head_dim / c.tp  # and the output
    stream = 2 * tokens * model.hidden
    total = {  # bytes of the whole group's tensor, and how many times it goes around
        "tp": (stream, 4 * passes * layers),
        "sp": ((q + kv) / 4, 4 * passes * layers),
        "cp": (kv * c.cp, (passes + 1) * layers),
        "ep": (stream * model.top_k / c.tp, 2 * passes * layers * model.sparse),
    }
    path = {}
    for axis, (amount, times) in total.items():
        size = getattr(c, axis)
        amount = amount * times * (size - 1) / size
        ring = axis in ("tp", "cp")
        path[axis] = traffic_of(
            job, group_locality(job, c, axis), amount, times * (size - 1), ring=ring
        )
    hops = 2 * c.virtual * (c.pp > 1)
    return {**path, "pp": traffic_of(job, group_locality(job, c, "pp"), hops * stream / c.tp, hops)}


def _gradients(model: ModelShape, job: TrainingJob, c: ParallelConfig, micros: Ints) -> Traffic:
    """What a rank sends in a step to keep the weights of its copies equal."""
    fsdp = np.asarray(c.shard) == 2
    rounds = np.where(fsdp, micros, 1)
    each = np.where(np.asarray(c.shard) == 1, 6, 8) * rounds
    calls = np.where(fsdp, 3, 2) * rounds * stage_layers(model, c.pp)
    total = []
    for weights, axes in zip(
        stage_weights(model, c), (("dp", "ep", "cp", "sp"), ("dp", "cp", "sp")), strict=True
    ):
        among = group_locality(job, c, *axes)
        amount = each * weights * (among[0] - 1) / among[0]
        total.append(traffic_of(job, among, amount, calls * (among[0] - 1.0) * (weights > 0)))
    return Traffic(*(shared + routed for shared, routed in zip(*total, strict=True)))
