"""Search of the layouts of a world that fit a model, ranked by predicted step time.

The columns of one array are all factorizations of the world over pp, dp, cp, sp, tp, and ep if the
model has experts. Rules exclude those that do not divide. The others are evaluated in every
configuration (micro batch, interleaving, sharding, recomputation) that fits into memory, and each
layout is reported in its fastest one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..arrays import Floats, Ints
from ..validate import divisors
from .memory import SHARDS, ParallelConfig, bytes_per_rank, stage_layers
from .step_time import AXES, TrainingJob, group_locality, step_terms
from .transformer import ModelShape

MICRO_BATCHES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class RankedLayout:
    """A layout that fits, in its fastest configuration."""

    sizes: dict[str, int]  # axis to size, without axes of size 1 other than dp
    crossing: tuple[str, ...]  # axes whose groups cross nodes
    micro_batch: int  # samples in one forward and backward of one rank
    accumulation_steps: int  # micro batches in one step
    virtual: int  # interleaved parts of a pipeline stage
    shard: str  # one of ``memory.SHARDS``
    recompute: bool  # whether backward computes the layers again
    step: float  # predicted seconds of one optimizer step, the sum of ``terms``
    terms: dict[str, float]  # seconds of each term of the step, see ``step_time.step_terms``
    memory_gb: float  # GB (1e9 bytes) of the rank that needs most


@dataclass(frozen=True)
class Excluded:
    """Layouts that do not fit: the first reason that holds, their number, and one of them."""

    reason: str
    count: int
    example: dict[str, int]


@dataclass(frozen=True)
class SearchResult:
    """The best layouts that fit, the number of all that fit, and the others by reason."""

    best: tuple[RankedLayout, ...]
    fits: int
    excluded: tuple[Excluded, ...]


def search(model: ModelShape, job: TrainingJob, top: int = 10) -> SearchResult:
    """Return the layouts of a world, ranked by predicted step time. Pure.

    Cost: less than a second at 16,384 ranks.
    """
    layouts, excluded = _divisible_layouts(model, job)
    index, config = _configurations(model, job, layouts)
    kinds = bytes_per_rank(model, config, job.global_batch, job.seq)
    memory_gb = sum(kinds.values()) / np.float64(1e9)
    fits = memory_gb <= job.machine.memory
    too_large = np.setdiff1d(index, index[fits])
    if len(too_large):
        excluded.append(_exclude_too_large(job, layouts, too_large, index, memory_gb))
    fitting = ParallelConfig(*(column[fits] for column in config))
    best = _rank_layouts(model, job, index[fits], fitting, memory_gb[fits], top)
    return SearchResult(
        tuple(_ranked_layout(job, fitting, i, terms, gb) for i, terms, gb in best),
        layouts.shape[1] - len(too_large),
        tuple(excluded),
    )


def world_factorizations(world: int, *, experts: bool) -> Ints:
    """Return all factorizations of a world over the axes: int64 (6, ways)."""
    every = np.array(divisors(world))
    rows = np.array([[world]])  # (axes so far and the remaining factor, ways); the last one is tp
    for axis in AXES[:-1]:
        sizes = every if experts or axis != "ep" else every[:1]
        way, index = np.nonzero(rows[-1][:, None] % sizes == 0)
        rows = np.vstack([rows[:-1, way], sizes[index], rows[-1, way] // sizes[index]])
    return rows


def _divisible_layouts(model: ModelShape, job: TrainingJob) -> tuple[Ints, list[Excluded]]:
    """Return the layouts in which all sizes divide, and the others by reason."""
    layouts = world_factorizations(job.world, experts=model.experts > 0)
    excluded, remains = [], np.ones(layouts.shape[1], dtype=bool)
    for reason, divides in _rules(model, job, ParallelConfig(*layouts)).items():
        fails = np.flatnonzero(remains & ~divides)
        if len(fails):
            excluded.append(Excluded(reason, len(fails), _sizes(layouts[:, fails[0]])))
        remains &= divides
    return layouts[:, remains], excluded


def _rules(
    model: ModelShape, job: TrainingJob, config: ParallelConfig
) -> dict[str, NDArray[np.bool_]]:
    """Return the rules of division: the reason to exclude a layout, and whether it passes."""
    widths = np.gcd(model.ffn, model.expert_ffn) if model.experts else model.ffn
    slices = np.where(config.cp > 1, 2 * config.cp, 1)  # zigzag gives each rank of a ring two
    cuts = config.tp * config.sp * slices
    pp, kv, batch = stage_layers(model, config.pp), model.kv_heads, job.global_batch
    return {
        f"pp divides neither {model.layers} layers nor {model.layers + 2}": pp > 0,
        f"tp does not divide {kv} kv heads and ffn {widths}": np.gcd(kv, widths) % config.tp == 0,
        f"tp x sp does not divide {kv} kv heads": kv % (config.tp * config.sp) == 0,
        f"ep does not divide {model.experts} experts": model.experts % config.ep == 0,
        f"tp x sp x 2 cp does not divide {job.seq} tokens": job.seq % cuts == 0,
        f"dp x ep does not divide {batch} samples": batch % (config.dp * config.ep) == 0,
    }


def _configurations(
    model: ModelShape, job: TrainingJob, layouts: Ints
) -> tuple[Ints, ParallelConfig]:
    """Return every configuration of each layout: the index of the layout, and the configuration."""
    layers = stage_layers(model, layouts[0])
    virtual = sorted({1, *(v for length in np.unique(layers) for v in divisors(int(length)))})
    ways = np.array([*itertools.product(virtual, MICRO_BATCHES, range(len(SHARDS)), (0, 1))]).T
    v, micro, shard, _ = ways
    pp, dp, ep, cp, sp, _ = layouts[:, :, None]  # compared with each way: (layouts, ways)
    num_micros, remainder = np.divmod(job.global_batch, dp * ep * micro)
    is_valid = (remainder == 0) & (layers[:, None] % v == 0)
    is_valid &= (v == 1) | ((pp > 1) & (num_micros % pp == 0))
    is_valid &= (shard == 0) | (dp * ep * cp * sp > 1)
    index, way = np.nonzero(is_valid)
    return index, ParallelConfig(*layouts[:, index], *ways[:, way])


def _exclude_too_large(
    job: TrainingJob, layouts: Ints, too_large: Ints, index: Ints, memory_gb: Floats
) -> Excluded:
    """Return the layouts that fit in no configuration; the example is the one that needs least."""
    least = np.full(layouts.shape[1], np.inf)
    np.minimum.at(least, index, memory_gb)
    smallest = too_large[np.argmin(least[too_large])]
    needs = f"the smallest needs {least[smallest]:.4g}"
    reason = f"no configuration fits into {job.machine.memory:g} GB; {needs}"
    return Excluded(reason, len(too_large), _sizes(layouts[:, smallest]))


def _rank_layouts(
    model: ModelShape,
    job: TrainingJob,
    index: Ints,
    config: ParallelConfig,
    memory_gb: Floats,
    top: int,
) -> list[tuple[int, dict[str, float], float]]:
    """Return the fastest configuration of each layout, its terms and its GB; the fastest first."""
    terms = step_terms(model, job, config)
    step = sum(terms.values(), np.zeros(len(index)))
    order = np.lexsort((memory_gb, step.astype(np.float32)))  # equal to seven digits is equal
    _, first = np.unique(index[order], return_index=True)
    return [
        (i, {name: float(term[i]) for name, term in terms.items()}, float(memory_gb[i]))
        for i in order[np.sort(first)[:top]].tolist()
    ]


def _ranked_layout(
    job: TrainingJob, configs: ParallelConfig, index: int, terms: dict[str, float], gb: float
) -> RankedLayout:
    config = ParallelConfig(*(int(column[index]) for column in configs))
    groups = {axis: group_locality(job, config, axis) for axis in AXES}
    return RankedLayout(
        sizes=_sizes(config[:6]),
        crossing=tuple(axis for axis, g in groups.items() if g.ranks_per_node < g.size),
        micro_batch=config.micro_batch,
        accumulation_steps=config.num_micro_batches(job.global_batch),
        virtual=config.virtual,
        shard=SHARDS[config.shard],
        recompute=bool(config.recompute),
        step=sum(terms.values()),
        terms=terms,
        memory_gb=gb,
    )


def _sizes(column: Iterable[int]) -> dict[str, int]:
    sizes = {axis: int(size) for axis, size in zip(AXES, column, strict=True)}
    return {axis: size for axis, size in sizes.items() if size > 1 or axis == "dp"}
