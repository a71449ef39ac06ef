"""Search of the layouts of a world that fit a model, ranked by predicted step time.

The columns of one array are all factorizations of the world over pp, dp, cp, sp, tp, and ep if the
model has experts. Rules exclude those that do not divide. The other layouts are
evaluated in every configuration (micro batch, interleaving, sharding, recomputation) that fits into
memory. Each layout is reported in the fastest configuration.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..call import Call, divisors
from ..text import Floats, Ints, count_noun, format_sizes, format_table, wrap_lines
from .memory import SHARDS, ModelShape, ParallelConfig, bytes_per_rank, stage_layers
from .step_time import AXES, TrainingJob, group_locality, step_terms

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
    """Layouts that are excluded for one reason: the reason, their number and an example."""

    reason: str
    count: int
    example: dict[str, int]


@dataclass(frozen=True)
class SearchResult:
    """The best layouts that fit, the number of layouts that fit, and the excluded by reason."""

    best: tuple[RankedLayout, ...]
    fits: int
    excluded: tuple[Excluded, ...]


def search(model: ModelShape, job: TrainingJob, top: int = 10) -> SearchResult:
    """Return the layouts of a world, ranked by predicted step time."""
    layouts, excluded = _divisible_layouts(model, job)
    index, config = _configurations(model, job, layouts)
    kinds = bytes_per_rank(model, config, job.global_batch, job.seq)
    memory_gb = sum(kinds.values()) / np.float64(1e9)
    fits = memory_gb <= job.machine.memory
    too_large = np.setdiff1d(index, index[fits])
    if len(too_large):
        least = np.full(layouts.shape[1], np.inf)
        np.minimum.at(least, index, memory_gb)
        smallest = too_large[np.argmin(least[too_large])]  # the example is the one that needs least
        needs = f"the smallest needs {least[smallest]:.4g} GB"
        reason = f"no configuration fits into {job.machine.memory:g} GB; {needs}"
        excluded.append(Excluded(reason, len(too_large), _sizes(layouts[:, smallest])))
    fitting = ParallelConfig(*(column[fits] for column in config))
    best = _rank_layouts(model, job, index[fits], fitting, memory_gb[fits], top)
    return SearchResult(best, layouts.shape[1] - len(too_large), tuple(excluded))


def world_factorizations(world_size: int, *, experts: bool) -> Ints:
    """Return all factorizations of a world over the axes: int64 (6, ways)."""
    every = np.array(divisors(world_size))
    # (axes so far, then the quotient still to divide; number of ways); the quotient becomes tp
    rows = np.array([[world_size]])
    for axis in AXES[:-1]:
        sizes = every if experts or axis != "ep" else every[:1]
        way, index = np.nonzero(rows[-1][:, None] % sizes == 0)
        rows = np.vstack([rows[:-1, way], sizes[index], rows[-1, way] // sizes[index]])
    return rows


def _divisible_layouts(model: ModelShape, job: TrainingJob) -> tuple[Ints, list[Excluded]]:
    """Return the layouts in which all sizes divide, and the others by reason."""
    layouts = world_factorizations(job.world_size, experts=model.experts > 0)
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
    pp, kv, batch = stage_layers(model, config.pp), model.kv_heads, job.global_batch
    tp_sp, has_cp = config.tp * config.sp, config.cp > 1
    slices = 2 * config.cp  # zigzag gives each rank along cp two slices of the sequence
    widths = {f"ffn {model.ffn}": model.ffn}
    if model.experts:
        widths[f"expert ffn {model.expert_ffn}"] = model.expert_ffn
    return {
        f"pp divides neither {model.layers} layers nor {model.layers + 2}": pp > 0,
        f"tp does not divide {kv} kv heads": kv % config.tp == 0,
        **{f"tp does not divide {text}": width % config.tp == 0 for text, width in widths.items()},
        f"tp x sp does not divide {kv} kv heads": kv % tp_sp == 0,
        f"ep does not divide {model.experts} experts": model.experts % config.ep == 0,
        f"tp x sp does not divide {job.seq} tokens": has_cp | (job.seq % tp_sp == 0),
        f"tp x sp x 2 cp does not divide {job.seq} tokens": ~has_cp
        | (job.seq % (tp_sp * slices) == 0),
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


def _rank_layouts(
    model: ModelShape,
    job: TrainingJob,
    index: Ints,
    config: ParallelConfig,
    memory_gb: Floats,
    top: int,
) -> tuple[RankedLayout, ...]:
    """Return each layout in its fastest configuration; the fastest first."""
    terms = step_terms(model, job, config)
    step = sum(terms.values(), np.zeros(len(index)))
    # steps that agree to seven digits count as equal; less memory wins
    order = np.lexsort((memory_gb, step.astype(np.float32)))
    _, first = np.unique(index[order], return_index=True)
    best = []
    for i in order[np.sort(first)[:top]].tolist():
        one = ParallelConfig(*(int(column[i]) for column in config))
        own_terms = {name: float(term[i]) for name, term in terms.items()}
        groups = {axis: group_locality(job, one, axis) for axis in AXES}
        layout = RankedLayout(
            sizes=_sizes(one[:6]),
            crossing=tuple(axis for axis, g in groups.items() if g.ranks_per_node < g.size),
            micro_batch=one.micro_batch,
            accumulation_steps=one.num_micro_batches(job.global_batch),
            virtual=one.virtual,
            shard=SHARDS[one.shard],
            recompute=bool(one.recompute),
            step=sum(own_terms.values()),
            terms=own_terms,
            memory_gb=float(memory_gb[i]),
        )
        best.append(layout)
    return tuple(best)


def _sizes(column: Iterable[int]) -> dict[str, int]:
    sizes = {axis: int(size) for axis, size in zip(AXES, column, strict=True)}
    return {axis: size for axis, size in sizes.items() if size > 1 or axis == "dp"}


HEADER = ("", "step s", "GB", "layout", "sharding", "micro batches", "across nodes")
DISCLAIMER = "This ranks layouts by a model of compute and links; it promises no seconds."
MAX_TERMS, MIN_SHARE = 6, 0.005  # terms of a layout that are shown


def format_search(
    result: SearchResult,
    job: TrainingJob,
    title: str,
    width: int = 80,
    *,
    ascii: bool = False,
) -> str:
    """Return the result of a search as text."""
    machine = job.machine
    head = [
        f"{title}; {count_noun(job.world_size, 'rank')} on {count_noun(job.nodes, 'node')}.",
        f"A step: {job.global_batch} samples of {job.seq} tokens.",
        f"A rank: {machine.memory:g} GB, {machine.flops / 1e12:.0f} TFLOP/s attained, "
        f"{machine.bandwidth_intra_node:g} GB/s in a node, "
        f"{machine.bandwidth_inter_node:g} GB/s out of it.",
    ]
    lines = [line for text in head for line in wrap_lines(text, width)]
    if result.best:
        lines += ["", *_tables(result.best, width, ascii=ascii)]
    total = result.fits + sum(reason.count for reason in result.excluded)
    lines += ["", f"{result.fits} of {count_noun(total, 'layout')} fit."]
    excluded = (f"{e.count:7} out: {e.reason}: {format_sizes(e.example)}" for e in result.excluded)
    indent = " " * 13
    for text in excluded:
        lines += textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)
    if result.best:
        best = result.best[0]
        batch = {"global_batch": job.global_batch, "micro_batch": best.micro_batch}
        lines += [
            "",
            f"# meshkit plan {format_sizes(best.sizes)} --nodes {job.nodes}",
            f"mesh = {Call('meshkit.build_mesh', kwargs=best.sizes)}",
            f"plan = {Call('mesh.batch', kwargs=batch)}",
            "",
            *wrap_lines(DISCLAIMER, width),
        ]
    return "\n".join(lines)


def _tables(best: Sequence[RankedLayout], width: int, *, ascii: bool) -> list[str]:
    """Return the layouts, and then the shares of their step time, as the lines of two tables."""
    rows = []
    for number, layout in enumerate(best, 1):
        virtual = f" virtual={layout.virtual}" if layout.virtual > 1 else ""
        recompute = " recompute" if layout.recompute else ""
        sharding = f"{layout.shard}{virtual}{recompute}"
        batches = f"{layout.accumulation_steps} x {layout.micro_batch}"
        crossing = " ".join(layout.crossing) or "none"
        row = [f"{layout.step:.4g}", f"{layout.memory_gb:.1f}", format_sizes(layout.sizes)]
        rows.append([str(number), *row, sharding, batches, crossing])
    lines = format_table(HEADER, rows, width=width, ascii=ascii).split("\n")
    shares = [{n: v / layout.step for n, v in layout.terms.items()} for layout in best]
    largest = {name: max(share[name] for share in shares) for name in shares[0]}
    names = sorted((n for n in largest if largest[n] >= MIN_SHARE), key=largest.__getitem__)
    names = names[::-1][:MAX_TERMS]
    cells = [
        [str(i), *(f"{100 * share[n]:.0f}" for n in names)] for i, share in enumerate(shares, 1)
    ]
    terms = format_table(["", *names], cells, width=width, ascii=ascii).split("\n")
    return [*lines, "", "percent of the step", *terms]
