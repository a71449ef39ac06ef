"""Search of the layouts of a world that fit a model, ranked by predicted step time.

The columns of one array are all factorizations of the world over pp, dp, cp, sp, tp, and ep if the
model has experts. Rules exclude those that do not divide. The other layouts are
evaluated in every configuration (micro batch, interleaving, sharding, recomputation) that fits
into memory. Each layout counts in its fastest configuration. Layouts with the same axes longer
than 1 are of one kind, and the fastest of each kind is reported.
"""

from __future__ import annotations

import itertools
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ..call import divisors
from ..errors import SpecError
from ..layout.layout import Layout
from ..layout.topology import Topology
from ..synonyms import STANDARD_OF
from ..text import GB, Floats, Ints, count_noun, format_sizes, wrap_lines
from .layout_cost import CostTable, LayoutCost, axes_by_standard, layout_cost, measured_locality
from .memory import RECOMPUTE, SHARDS, ModelShape, ParallelConfig, bytes_per_rank, stage_layers
from .step_time import AXES, TrainingJob, group_locality, step_terms

MICRO_BATCHES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Excluded:
    """Layouts that are excluded for one reason: the reason, their number and an example."""

    reason: str
    count: int
    example: dict[str, int]


@dataclass(frozen=True)
class SearchResult:
    """The best layout of each kind, the number of layouts that fit, and the excluded by reason."""

    best: tuple[LayoutCost, ...]
    fits: int
    excluded: tuple[Excluded, ...]


def search(model: ModelShape, job: TrainingJob, top: int = 10) -> SearchResult:
    """Return the fastest layout of each kind, ranked by predicted step time."""
    layouts, excluded = _divisible_layouts(model, job)
    index, config = _configurations(model, job, layouts)
    memory_gb = _memory_gb(model, job, config)
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


def fastest_cost(
    model: ModelShape,
    job: TrainingJob,
    layout: Layout,
    topology: Topology,
    *,
    micro_batch: int | None = None,
    shard: str | None = None,
    recompute: str | None = None,
) -> LayoutCost:
    """Return the figures of one layout in its fastest configuration that fits.

    If none fits, it is the one that needs least memory. The micro batch, ``shard``, one of
    ``SHARDS``, and ``recompute``, one of ``RECOMPUTE``, are chosen if they are None.

    Raises:
        SpecError: if a size of the model does not divide by that of an axis. Tokens are the last to
            be checked; their error has the nearest numbers that divide.
    """
    names = axes_by_standard(layout)
    column = np.array([[layout.size(names[axis])] for axis in AXES])
    of_tokens = _rules_of_tokens(job, ParallelConfig(*column))
    for reason, divides in _rules(model, job, ParallelConfig(*column)).items():
        if not divides.all():
            line = "The cost model divides heads, layers, experts and tokens evenly."
            _, _, _, (cp,), (sp,), (tp,) = column.tolist()
            part = tp * sp * (2 * cp if cp > 1 else 1)
            below, above = job.seq // part * part, -(-job.seq // part) * part
            numbers = {"below": below, "above": above} if reason in of_tokens else {}
            raise SpecError(f"{reason}.", line, **numbers)
    _, config = _configurations(
        model,
        job,
        column,
        MICRO_BATCHES if micro_batch is None else (micro_batch,),
        SHARDS if shard is None else (shard,),
        RECOMPUTE[:2] if recompute is None else (recompute,),
    )
    locality = measured_locality(layout, topology)
    memory_gb = _memory_gb(model, job, config)
    step = sum(step_terms(model, job, config, locality).values(), np.zeros(len(memory_gb)))
    excess = np.maximum(memory_gb - job.machine.memory, 0)
    best = np.lexsort((memory_gb, step.astype(np.float32), excess))[0]
    chosen = ParallelConfig(*(int(values[best]) for values in config))
    return layout_cost(model, job, chosen, layout.sizes, locality)


def nearest_layouts(model: ModelShape, job: TrainingJob, layout: Layout) -> Iterator[Layout]:
    """Yield the layouts with the same ranks and axes in which all sizes divide, nearest first."""
    standard = [STANDARD_OF[axis] for axis in layout.axes]
    if len({*standard}) < len(standard):
        return  # no single size would be changed
    ways, _ = _divisible_layouts(model, job)
    ways = ways[:, (ways[~np.isin(AXES, standard)] == 1).all(axis=0)]
    ways = ways[[AXES.index(axis) for axis in standard]]  # (axes of the layout, ways)
    distance = np.abs(np.log(ways / np.array(layout.shape)[:, None])).sum(axis=0)
    for way in ways[:, np.argsort(distance, kind="stable")].T.tolist():
        yield Layout(dict(zip(layout.axes, way, strict=True)))


def _memory_gb(model: ModelShape, job: TrainingJob, config: ParallelConfig) -> Floats:
    parts = bytes_per_rank(model, config, job.global_batch, job.seq, job.dtype)
    return np.asarray(sum(parts.values()) / np.float64(GB))


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
    tp_sp = config.tp * config.sp
    widths = {f"{model.heads} heads": model.heads, f"ffn {model.ffn}": model.ffn}
    if model.experts:
        widths[f"expert ffn {model.expert_ffn}"] = model.expert_ffn
    fit_kv = {  # more ranks than kv heads copy them
        f"{axes} and {kv} kv heads do not divide each other": (kv % n == 0) | (n % kv == 0)
        for axes, n in (("tp", config.tp), ("tp x sp", tp_sp))
    }
    return {
        f"pp divides neither {model.layers} layers nor {model.layers + 2}": pp > 0,
        **{f"tp does not divide {text}": width % config.tp == 0 for text, width in widths.items()},
        f"tp x sp does not divide {model.heads} heads": model.heads % tp_sp == 0,
        **fit_kv,
        f"ep does not divide {model.experts} experts": model.experts % config.ep == 0,
        f"dp x ep does not divide {batch} samples": batch % (config.dp * config.ep) == 0,
        **_rules_of_tokens(job, config),
    }


def _rules_of_tokens(job: TrainingJob, config: ParallelConfig) -> dict[str, NDArray[np.bool_]]:
    tp_sp, has_cp = config.tp * config.sp, config.cp > 1
    slices = 2 * config.cp  # zigzag gives each rank along cp two slices of the sequence
    return {
        f"tp x sp does not divide {job.seq} tokens": has_cp | (job.seq % tp_sp == 0),
        f"tp x sp x 2 cp does not divide {job.seq} tokens": ~has_cp
        | (job.seq % (tp_sp * slices) == 0),
    }


def _configurations(
    model: ModelShape,
    job: TrainingJob,
    layouts: Ints,
    micro_batches: Sequence[int] = MICRO_BATCHES,
    shards: Sequence[str] = SHARDS,
    recompute: Sequence[str] = RECOMPUTE[:2],
) -> tuple[Ints, ParallelConfig]:
    """Return every configuration of each layout: the index of the layout, and the configuration."""
    layers = stage_layers(model, layouts[0])
    virtual = sorted({1, *(v for length in np.unique(layers) for v in divisors(int(length)))})
    indices = [*map(SHARDS.index, shards)], [*map(RECOMPUTE.index, recompute)]
    ways = np.array([*itertools.product(virtual, micro_batches, *indices)]).T
    v, micro, shard, _ = ways
    pp, dp, ep, cp, sp, _ = layouts[:, :, None]  # compared with each way: (layouts, ways)
    num_micros, remainder = np.divmod(job.global_batch, dp * ep * micro)
    is_valid = (remainder == 0) & (layers[:, None] % v == 0)
    is_valid &= (v == 1) | ((pp > 1) & (num_micros % pp == 0))
    is_valid &= (shard == min(indices[0])) | (dp * ep * cp * sp > 1)
    index, way = np.nonzero(is_valid)
    return index, ParallelConfig(*layouts[:, index], *ways[:, way])


def _rank_layouts(
    model: ModelShape,
    job: TrainingJob,
    index: Ints,
    config: ParallelConfig,
    memory_gb: Floats,
    top: int,
) -> tuple[LayoutCost, ...]:
    """Return the fastest layout of each kind in its fastest configuration; the fastest first."""
    step = sum(step_terms(model, job, config).values(), np.zeros(len(index)))
    # steps that agree to seven digits count as equal; less memory wins
    order = np.lexsort((memory_gb, step.astype(np.float32)))
    kinds = np.array([size > 1 for size in config[:6]])[:, order].T  # (configurations, 6)
    _, first = np.unique(kinds, axis=0, return_index=True)
    best = []
    for i in order[np.sort(first)[:top]].tolist():
        one = ParallelConfig(*(int(column[i]) for column in config))
        locality = partial(group_locality, job, one)
        best.append(layout_cost(model, job, one, _sizes(one[:6]), locality))
    return tuple(best)


def _sizes(column: Iterable[int]) -> dict[str, int]:
    sizes = {axis: int(size) for axis, size in zip(AXES, column, strict=True)}
    return {axis: size for axis, size in sizes.items() if size > 1 or axis == "dp"}


HOW_TO = {  # the page with a program that trains on a mesh with this axis
    "pp": "pipeline",
    "ep": "moe",
    "cp": "ddp-sp",
    "sp": "ddp-sp",
    "tp": "fsdp",
    "dp": "fsdp",
}


def format_search(
    result: SearchResult, table: CostTable, options: str, *, width: int = 80, ascii: bool = False
) -> str:
    """Return the result of a search, whose best layouts are in the table, as text.

    ``options`` are those of ``meshkit plan`` for the same job.
    """
    if result.best:
        sizes = result.best[0].sizes
        names = dict.fromkeys(page for axis, page in HOW_TO.items() if axis in sizes)
        pages = [f"docs/how-to/{name}.md" for name in names]
        lines = [table.draw(width=width, ascii=ascii, traffic=False)]
        lines += wrap_lines("Each row is the fastest of all layouts with its axes.", width)
        lines += ["", "Next, its nodes, groups and traffic, and programs that train with its axes:"]
        lines += [f"  meshkit plan {shlex.quote(format_sizes(sizes))} {options}"]
        lines += textwrap.wrap(" ".join(pages), width, initial_indent="  ", subsequent_indent="  ")
    else:
        lines = table.describe_job(width)
    total = result.fits + sum(reason.count for reason in result.excluded)
    lines += ["", f"{result.fits} of {count_noun(total, 'layout')} fit."]
    excluded = (f"{e.count:7} out: {e.reason}: {format_sizes(e.example)}" for e in result.excluded)
    indent = " " * 13
    for text in excluded:
        lines += textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)
    return "\n".join(lines)
