"""Predict the time of one optimizer step by an alpha-beta model with contention, to rank layouts.

The figures of a device are from data sheets, which give upper bounds, or measured.

A collective takes ``steps x latency + max over links of bytes / bandwidth`` (alpha-beta; Thakur,
Rabenseifner and Gropp, 2005). The bytes are those that each rank sends over the link. Nodes hold
consecutive ranks, and axes nest ``pp dp ep cp sp tp``. In a group of g ranks, k share a node. A
ring leaves the node once in k hops, so 1/k of its bytes cross nodes. In an all-to-all
(g - k) / (g - 1) of them do. If k differs, the least counts: the links of that node are busiest.
The same holds for racks, whose links are those of nodes unless a figure is given.

For a micro batch of t tokens on a rank (arXiv 2104.04473, 2205.05198, 2309.14509, 2310.01889)::

    compute  2 (active weights + seq x heads x head_dim) t operations forward, twice that backward
    weights  12 bytes of memory traffic a weight: 2 reads of 2, and 4 + 4 to add its fp32 gradient
             (bytes as in bf16, here and below)
    tp       4 all-gathers or reduce-scatters of t x hidden a layer and pass, and 2 forward and
             backward together for the embedding and for the head; with fsdp also an all-reduce of
             the gradient of each norm: hidden elements, which cost latency alone
    sp       4 all-to-alls a layer and pass: q, k, v, output
    cp       a ring of k and v: once forward, twice backward
    ep       2 all-to-alls of top_k x t x hidden a layer and pass
    pp       v sends of t x hidden each way
    bubble   (pp - 1) / v micro batches, once a step
    dp       8 bytes a weight with ddp, 6 with zero1, once a step; with fsdp 8, every micro batch

The passes are forward, backward, and forward again with recomputation. The rows above the bubble
are on the critical path. Communication over dp hides behind one micro batch, and with fsdp behind
all of them. The row dp is the time that does not hide. A step takes at least as long as the busiest
link needs for all its bytes, and ``links`` is the time that this bound adds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import NamedTuple

import numpy as np

from ..call import check_divides, is_number, parse_integer, quotes_call
from ..errors import SpecError
from ..text import GB, Floats, Ints
from .memory import (
    PRECISIONS,
    RECOMPUTE,
    SHARDS,
    ModelShape,
    ParallelConfig,
    stage_layers,
    stage_weights,
)

MIN_FIGURE, MAX_FIGURE = 1e-30, 1e30  # so that each prediction stays in the range of a float


@dataclass(frozen=True)
class Machine:
    """The figures of one device. Each rank has one; the ranks of a node share its network links."""

    peak: float  # operations per second of dense bf16 matrix products, of the data sheet
    flops: float  # attained operations per second of bf16 matrix products
    memory: float  # GB (1e9 bytes) of one device that a job may use
    memory_bandwidth: float  # GB/s of its memory
    bandwidth_intra_node: float  # GB/s in one direction, from a device to the others of its node
    bandwidth_inter_node: float  # GB/s in one direction out of a node, for each of its devices
    latency_intra_node: float = 3.4e-6  # seconds of one step of a collective inside a node
    latency_inter_node: float = 14e-6  # seconds of one step between nodes
    bandwidth_inter_rack: float | None = None  # GB/s out of a rack, a device; None: as out of nodes
    source: str = ""

    def __post_init__(self) -> None:
        for field in fields(self)[:-1]:
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            if not is_number(value) or not MIN_FIGURE <= value <= MAX_FIGURE:
                fix = f"a number from {MIN_FIGURE:g} to {MAX_FIGURE:g}."
                raise SpecError(f"{field.name} is {value!r}.", fix=fix)

    @quotes_call("machine.with_measured")
    def with_measured(self, measured: Mapping[str, object]) -> Machine:
        """Return the same machine with some figures, by name, replaced by measured ones.

        Raises:
            SpecError: if a name is unknown, or a value is not a number from 1e-30 to 1e30.
        """
        figures = asdict(self)
        for name in measured:
            if name not in figures:
                fix = f"one of {', '.join(figures)}."
                raise SpecError(f"there is no figure {name!r}.", fix=fix)
        return Machine(**{**figures, **measured})


# The share of the dense bf16 peak that a trainer attains between its collectives. Fitted to Llama 3
# 405B: 430, 400 and 380 TFLOP/s of an H100 over a whole step (arXiv 2407.21783, table 4; 8192 and
# 16,384 ranks, and 131,072 tokens). With it this model predicts 422, 397 and 402.
ATTAINED = 0.55
# An A100 attains more. With this share, half of the 19 runs of benchmarks/results/cost_model.md
# are shorter than predicted and half are longer. Their median error is 8 %; with 0.55 it is 14 %.
ATTAINED_A100 = 0.63

_LATENCY = "latency: NCCL, src/graph/tuning.cc, hwLat, Ring Simple"

MACHINES = {
    "a100": Machine(
        312e12, ATTAINED_A100 * 312e12, 80, 2039, 300, 25,
        source=f"A100 80GB SXM data sheet; DGX A100: one 200 Gb/s HDR port a GPU; {_LATENCY}",
    ),
    "h100": Machine(
        989e12, ATTAINED * 989e12, 80, 3350, 450, 50,
        source=f"H100 SXM data sheet; DGX H100: one 400 Gb/s NDR port a GPU; {_LATENCY}",
    ),
    "h200": Machine(
        989e12, ATTAINED * 989e12, 141, 4800, 450, 50,
        source=f"H200 SXM data sheet; DGX H200: one 400 Gb/s NDR port a GPU; {_LATENCY}",
    ),
    "b200": Machine(
        2250e12, ATTAINED * 2250e12, 180, 8000, 900, 50,
        source=f"DGX B200 data sheet: NVLink 1.8 TB/s both ways, one 400 Gb/s port a GPU; "
        f"{_LATENCY}",
    ),
}  # fmt: skip


AXES = ParallelConfig._fields[:6]
LIMITS = {"world_size": 2**17, "nodes": 2**17, "global_batch": 2**40, "seq": 2**40}
FSDP, FULL = SHARDS.index("fsdp"), RECOMPUTE.index("full")


@dataclass(frozen=True)
class TrainingJob:
    """The ranks, the batch and the machine of a training job."""

    world_size: int  # ranks
    nodes: int  # number of equal nodes, each with consecutive ranks
    global_batch: int  # samples in one optimizer step
    seq: int  # tokens of a sample
    machine: Machine  # devices and links
    racks: int = 1  # number of equal racks, each with consecutive nodes
    dtype: str = "bf16"  # of weights and activations, one of ``memory.PRECISIONS``

    def __post_init__(self) -> None:
        for name, most in LIMITS.items():
            number = parse_integer(getattr(self, name))
            if number is None or not 1 <= number <= most:
                fix = f"a whole number from 1 to {most}."
                raise SpecError(f"{name} is {getattr(self, name)!r}.", fix=fix)
            vars(self)[name] = number
        check_divides(self.world_size, self.nodes)
        check_divides(self.nodes, self.racks)

    @property
    def tokens(self) -> int:
        """Tokens of one optimizer step."""
        return self.global_batch * self.seq


class GroupLocality(NamedTuple):
    """The size of a group, and how many of its ranks share a node and a rack: ints or arrays."""

    size: Ints
    ranks_per_node: Ints  # in the node that has the fewest of them
    ranks_per_rack: Ints


Locality = Callable[..., GroupLocality]  # from axes to the group over them


class Traffic(NamedTuple):
    """The bytes that one rank sends over each link, and the seconds of latency."""

    intra_node: Floats
    inter_node: Floats
    inter_rack: Floats  # a part of ``inter_node``
    latency: Floats


def group_locality(job: TrainingJob, config: ParallelConfig, *axes: str) -> GroupLocality:
    """Return the locality of a group over some axes, if ranks nest in the standard order."""
    size = stride = np.int64(1)
    shared = {job.world_size // domains: np.int64(1) for domains in (job.nodes, job.racks)}
    for axis in reversed(AXES):
        extent = getattr(config, axis)
        if axis in axes:
            size = size * extent
            for ranks in shared:  # of a node, and of a rack
                is_inside, spans = ranks % (stride * extent) == 0, stride * extent % ranks == 0
                part = np.where(spans & (ranks % stride == 0), ranks // stride, 1)
                shared[ranks] = shared[ranks] * np.where(is_inside, extent, part)
        stride = stride * extent
    node, rack = (shared[job.world_size // domains] for domains in (job.nodes, job.racks))
    return GroupLocality(np.asarray(size), np.asarray(node), np.asarray(rack))


def traffic_of(
    job: TrainingJob, group: GroupLocality, amount: Floats, steps: Floats, *, ring: bool = True
) -> Traffic:
    """Return the traffic of each rank of a group."""

    def leaving(shared: Ints) -> Floats:
        share = 1 / shared if ring else (group.size - shared) / np.maximum(group.size - 1, 1)
        return np.asarray(np.where(shared < group.size, share, 0) * amount)

    machine, inter_node = job.machine, leaving(group.ranks_per_node)
    crosses = group.ranks_per_node < group.size
    latency = np.where(crosses, machine.latency_inter_node, machine.latency_intra_node)
    return Traffic(amount - inter_node, inter_node, leaving(group.ranks_per_rack), steps * latency)


def transfer_time(machine: Machine, traffic: Traffic) -> Floats:
    """Return the seconds that the traffic takes on otherwise idle links: those of the busiest."""
    intra_node, inter_node, inter_rack, latency = traffic
    rack = inter_rack / (machine.bandwidth_inter_rack or machine.bandwidth_inter_node)
    node = np.maximum(inter_node / machine.bandwidth_inter_node, rack)
    busiest = np.maximum(intra_node / machine.bandwidth_intra_node, node) / GB
    return np.asarray(busiest + latency)


def step_terms(
    model: ModelShape, job: TrainingJob, config: ParallelConfig, locality: Locality | None = None
) -> dict[str, Floats]:
    """Return the terms of one optimizer step in seconds; their sum is the step.

    ``locality`` gives the groups; without it, nodes hold consecutive ranks, and axes nest in the
    standard order.
    """
    locality = locality or partial(group_locality, job, config)
    machine, num_micros = job.machine, config.num_micro_batches(job.global_batch)
    path = _critical_traffic(model, job, config, locality)
    gradients = _gradient_traffic(model, job, config, locality)
    moved = 2 * PRECISIONS[job.dtype].element + 8  # bytes of memory traffic of a weight
    memory_time = moved * sum(stage_weights(model, config)) / machine.memory_bandwidth / GB
    micro = {"compute": _compute_time(model, job, config), "weights": memory_time}
    micro |= {axis: transfer_time(machine, traffic) for axis, traffic in path.items()}
    busy = sum(micro.values())  # seconds of one micro batch
    overlapped = busy * np.where(np.asarray(config.shard) == FSDP, num_micros, 1)
    dp = np.maximum(transfer_time(machine, gradients) - overlapped, 0)
    sent = [
        num_micros * sum(traffic[link] for traffic in path.values()) + gradients[link]
        for link in range(3)
    ]
    least = transfer_time(machine, Traffic._make([*sent, np.float64(0)]))
    terms = {name: num_micros * value for name, value in micro.items()}
    terms |= {"bubble": (config.pp - 1) / config.virtual * busy, "dp": dp}
    return {**terms, "links": np.maximum(least - num_micros * busy - dp, 0)}


def step_traffic(
    model: ModelShape, job: TrainingJob, config: ParallelConfig, locality: Locality
) -> dict[str, Traffic]:
    """Return the traffic of one rank in one optimizer step, by the axis that causes it."""
    num_micros = config.num_micro_batches(job.global_batch)
    path = _critical_traffic(model, job, config, locality)
    traffic = {axis: Traffic(*(num_micros * part for part in t)) for axis, t in path.items()}
    return {**traffic, "dp": _gradient_traffic(model, job, config, locality)}


def model_flops(model: ModelShape, job: TrainingJob) -> float:
    """Return the operations of one optimizer step that a model needs, without recomputation.

    Each weight that processes a token, the head's included, costs 6 operations. Causal attention
    costs 6 x seq x heads x head_dim a layer. MFU divides by these (arXiv 2204.02311, appendix B).
    """
    scores = job.seq * model.heads * model.head_dim * model.layers
    return 6 * (model.active_parameters + model.embedding + scores) * job.tokens


def _compute_time(model: ModelShape, job: TrainingJob, config: ParallelConfig) -> Floats:
    """Return the seconds that the slowest stage computes for one micro batch."""
    tokens = config.micro_batch * job.seq / (config.cp * config.sp * config.tp)
    scores = job.seq * model.heads * model.head_dim  # causal: half of the matrix
    layer = model.active_parameters / model.layers + scores + model.copied_kv(config.tp)
    longest = stage_layers(model, config.pp)
    last = longest - (model.layers % config.pp != 0)
    passes = 3 + (np.asarray(config.recompute) == FULL)
    slowest = np.maximum(last * layer * passes + 3 * model.embedding, longest * layer * passes)
    return np.asarray(2 * tokens * slowest / (job.machine.flops * PRECISIONS[job.dtype].speed))


def _critical_traffic(
    model: ModelShape, job: TrainingJob, config: ParallelConfig, locality: Locality
) -> dict[str, Traffic]:
    """Return the traffic of one micro batch that layers wait for, by axis."""
    layers, passes = stage_layers(model, config.pp), 2 + (np.asarray(config.recompute) == FULL)
    element, is_whole = PRECISIONS[job.dtype].element, np.equal(config.pp, 1)
    tokens = config.micro_batch * job.seq / (config.cp * config.sp)
    kv_heads = np.maximum(model.kv_heads, config.tp * config.sp)  # with copies
    kv = element * tokens * 2 * kv_heads * model.head_dim / config.tp  # bytes
    q = element * tokens * 2 * model.heads * model.head_dim / config.tp  # and the output
    stream = element * tokens * model.hidden
    # DTensor sums the gradient of each norm over tp. Megatron (ddp, zero1) sums all once a step,
    # which takes less than a millisecond and is left out.
    norms = (layers * (2 + 2 * model.qk_norm) + is_whole) * (1 + model.plain)
    norms = norms * (np.asarray(config.shard) == FSDP)
    collectives = {  # bytes of the whole group's tensor, and the number of collectives
        "tp": (stream, 4 * passes * layers + 2 + 2 * is_whole),
        "sp": ((q + kv) / 4, 4 * passes * layers),
        "cp": (kv * config.cp, (passes + 1) * layers),
        "ep": (stream * model.top_k / config.tp, 2 * passes * layers * model.sparse),
    }
    path = {}
    for axis, (size, count) in collectives.items():
        ranks, group = getattr(config, axis), locality(axis)
        amount, ring = size * count * (ranks - 1) / ranks, axis in ("tp", "cp")
        steps = count * (ranks - 1)
        if axis == "tp":  # an all-reduce is a reduce-scatter and an all-gather
            amount = amount + 2 * norms * element * model.hidden * (ranks - 1) / ranks
            steps = steps + 2 * norms * (ranks - 1)
        path[axis] = traffic_of(job, group, amount, steps, ring=ring)
    hops = 2 * config.virtual * (config.pp > 1)
    return {**path, "pp": traffic_of(job, locality("pp"), hops * stream / config.tp, hops)}


def _gradient_traffic(
    model: ModelShape, job: TrainingJob, config: ParallelConfig, locality: Locality
) -> Traffic:
    """Return the traffic of the row dp in one step: gradients and weights."""
    is_fsdp = np.asarray(config.shard) == FSDP
    rounds = np.where(is_fsdp, config.num_micro_batches(job.global_batch), 1)
    element = PRECISIONS[job.dtype].element  # gradients are fp32; ddp reduces them by two passes
    sent = np.choose(config.shard, (8, 4 + element, 4 + 2 * element))  # bytes a weight, by shard
    weight_bytes = sent * rounds
    calls = np.where(is_fsdp, 3, 2) * rounds * stage_layers(model, config.pp)
    total = []
    axis_sets = ("dp", "ep", "cp", "sp"), ("dp", "cp", "sp")
    for weights, axes in zip(stage_weights(model, config), axis_sets, strict=True):
        group = locality(*axes)
        amount = weight_bytes * weights * (group.size - 1) / group.size
        total.append(traffic_of(job, group, amount, calls * (group.size - 1.0) * (weights > 0)))
    return Traffic(*(shared + routed for shared, routed in zip(*total, strict=True)))
