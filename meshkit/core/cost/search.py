"""Search: every layout of a world that fits a model, ranked by what a step would take.

All factorizations over pp, dp, cp, sp, tp, and ep where the model has experts, are columns of one
array. Those that do not divide are struck out rule by rule; the others are run in every way (micro
batch, interleaving, sharding, recomputation) that fits the memory, and told in their fastest.
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
from .step_time import AXES, TrainingJob, group_locality, predicted
from .transformer import ModelShape

MICRO_BATCHES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class RankedLayout:
    """A layout that fits, run in its fastest way.

    Attributes:
        sizes: axis to size; axes of size 1 are left out, but for dp.
        crossing: the axes whose groups cross nodes.
        micro_batch: samples in one forward and backward of one rank.
        accumulation_steps: micro batches of one step.
        virtual: interleaved parts of a pipeline stage.
        shard: one of ``memory.SHARDS``.
        recompute: whether the layers are computed again in backward.
        step: predicted s of one optimizer step; the sum of ``terms``.
        terms: what it is made of, in s, as ``cost.predicted`` names them.
        held: GB (1e9 bytes) that the fullest rank holds.
    """

    sizes: dict[str, int]
    crossing: tuple[str, ...]
    micro_batch: int
    accumulation_steps: int
    virtual: int
    shard: str
    recompute: bool
    step: float
    terms: dict[str, float]
    held: float


@dataclass(frozen=True)
class Excluded:
    """Layouts that do not fit: the first reason that holds, how many, and one of them."""

    reason: str
    count: int
    example: dict[str, int]


@dataclass(frozen=True)
class SearchResult:
    """The best of the layouts that fit, how many do, and the others by reason."""

    best: tuple[RankedLayout, ...]
    fits: int
    excluded: tuple[Excluded, ...]


def search(model: ModelShape, job: TrainingJob, top: int = 10) -> SearchResult:
    """Every layout of a world, ranked by predicted step time. Pure; under a second at 16,384 ranks.

    Args:
        model: the sizes of the model.
        job: the world, its nodes, the global batch, the length of a sample, the links.
        top: how many of the best to tell of.

    Returns:
        The best, each in its fastest way, equal ones by what they hold; and the excluded.

    Example:
        >>> from meshkit.core.cost.machines import LINKS
        >>> llama = ModelShape(4096, layers=32, heads=32, vocab=128256, ffn=14336, kv_heads=8)
        >>> found = search(llama, TrainingJob(64, 8, 1024, 8192, LINKS["h100"]))
        >>> found.best[0].sizes, found.best[0].shard
        ({'dp': 64}, 'fsdp')
    """
    layouts, excluded = _divided(model, job)
    which, c = _ways(model, job, layouts)
    held = sum(bytes_per_rank(model, c, job.global_batch, job.seq).values()) / np.float64(1e9)
    roomy = held <= job.links.memory
    lost = np.setdiff1d(which, which[roomy])
    if len(lost):
        least = np.full(layouts.shape[1], np.inf)
        np.minimum.at(least, which, held)
        nearest = lost[np.argmin(least[lost])]
        room = f"{job.links.memory:g} GB do not hold it, however run"
        reason = f"{room}; one needs {least[nearest]:.4g}"
        excluded.append(Excluded(reason, len(lost), _sizes(layouts[:, nearest])))
    fast = ParallelConfig(*(column[roomy] for column in c))
    best = _best(model, job, which[roomy], fast, held[roomy], top)
    return SearchResult(best, layouts.shape[1] - len(lost), tuple(excluded))


def factorizations(world: int, *, experts: bool) -> Ints:
    """All ways to write a world as a product over the axes: int64 (6, ways); ep only if asked for.

    Example:
        >>> factorizations(2, experts=False).T.tolist()  # pp dp ep cp sp tp
        [[1, 1, 1, 1, 1, 2], [1, 1, 1, 1, 2, 1], [1, 1, 1, 2, 1, 1], [1, 2, 1, 1, 1, 1],
         [2, 1, 1, 1, 1, 1]]
    """
    every = np.array(divisors(world))
    rows = np.array([[world]])  # (axes so far and what is left, ways); what is left last is tp
    for axis in AXES[:-1]:
        sizes = every if experts or axis != "ep" else every[:1]
        way, which = np.nonzero(rows[-1][:, None] % sizes == 0)
        rows = np.vstack([rows[:-1, way], sizes[which], rows[-1, way] // sizes[which]])
    return rows


def _divided(model: ModelShape, job: TrainingJob) -> tuple[Ints, list[Excluded]]:
    """The layouts over which everything divides, and the others."""
    layouts = factorizations(job.world, experts=model.experts > 0)
    c, excluded = ParallelConfig(*layouts), []
    left = np.ones(layouts.shape[1], dtype=bool)
    for reason, fits in _rules(model, job, c).items():
        lost = np.flatnonzero(left & ~fits)
        if len(lost):
            excluded.append(Excluded(reason, len(lost), _sizes(layouts[:, lost[0]])))
        left &= fits
    return layouts[:, left], excluded


def _rules(model: ModelShape, job: TrainingJob, c: ParallelConfig) -> dict[str, NDArray[np.bool_]]:
    """What must divide what: the words of the contrary, and where it does."""
    parts = np.gcd(model.ffn, model.expert_ffn) if model.experts else model.ffn
    cuts = c.tp * c.sp * np.where(c.cp > 1, 2 * c.cp, 1)  # a ring takes two pieces each, zigzag
    pp, kv, batch = stage_layers(model, c.pp), model.kv_heads, job.global_batch
    return {
        f"pp divides neither {model.layers} layers nor {model.layers + 2}": pp > 0,
        f"tp does not divide {kv} kv heads and ffn {parts}": np.gcd(kv, parts) % c.tp == 0,
        f"tp x sp does not divide {kv} kv heads": kv % (c.tp * c.sp) == 0,
        f"ep does not divide {model.experts} experts": model.experts % c.ep == 0,
        f"tp x sp x 2 cp does not divide {job.seq} tokens": job.seq % cuts == 0,
        f"dp x ep does not divide {batch} samples": batch % (c.dp * c.ep) == 0,
    }


def _ways(model: ModelShape, job: TrainingJob, layouts: Ints) -> tuple[Ints, ParallelConfig]:
    """Every way to run each layout: which layout it is, and the way."""
    layers = stage_layers(model, layouts[0])
    virtual = sorted({1, *(v for length in np.unique(layers) for v in divisors(int(length)))})
    ways = np.array([*itertools.product(virtual, MICRO_BATCHES, range(len(SHARDS)), (0, 1))]).T
    v, micro, shard, _ = ways
    pp, dp, ep, cp, sp, _ = layouts[:, :, None]  # against each way: (layouts, ways)
    micros, rest = np.divmod(job.global_batch, dp * ep * micro)
    fits = (rest == 0) & (layers[:, None] % v == 0)
    fits &= (v == 1) | ((pp > 1) & (micros % pp == 0))
    fits &= (shard == 0) | (dp * ep * cp * sp > 1)
    which, how = np.nonzero(fits)
    return which, ParallelConfig(*layouts[:, which], *ways[:, how])


def _best(
    model: ModelShape, job: TrainingJob, which: Ints, c: ParallelConfig, held: Floats, top: int
) -> tuple[RankedLayout, ...]:
    """The fastest way of each layout, the fastest layouts first."""
    terms = predicted(model, job, c)
    step = sum(terms.values(), np.zeros(len(which)))
    order = np.lexsort((held, step.astype(np.float32)))  # equal to seven digits is equal
    _, first = np.unique(which[order], return_index=True)
    best = []
    for place in order[np.sort(first)[:top]]:
        one = ParallelConfig(*(int(column[place]) for column in c))
        crossing = (axis for axis in AXES if np.less(*reversed(group_locality(job, one, axis))))
        ranked = RankedLayout(
            sizes=_sizes(one[:6]),
            crossing=tuple(crossing),
            micro_batch=one.micro_batch,
            accumulation_steps=job.global_batch // (one.dp * one.ep * one.micro_batch),
            virtual=one.virtual,
            shard=SHARDS[one.shard],
            recompute=bool(one.recompute),
            step=float(step[place]),
            terms={name: float(value[place]) for name, value in terms.items()},
            held=float(held[place]),
        )
        best.append(ranked)
    return tuple(best)


def _sizes(column: Iterable[int]) -> dict[str, int]:
    found = {axis: int(size) for axis, size in zip(AXES, column, strict=True)}
    return {axis: size for axis, size in found.items() if size > 1 or axis == "dp"}
