"""The plan of a benchmark, its results, their table and their fits. Pure: without torch.

Conventions are those of nccl-tests, ``doc/PERFORMANCE.md`` of github.com/NVIDIA/nccl-tests. S is
the size of the total array in bytes, t the time, n the number of ranks. GB are decimal::

    algbw = S / t                       bandwidth that the caller sees
    busbw = algbw * factor              bandwidth of a link, comparable between numbers of ranks
    factor: all_reduce 2(n-1)/n; all_gather, reduce_scatter, all_to_all (n-1)/n
            broadcast, send_recv 1

A target is the groups of one axis (``dp``) or several (``dp sp``), the group of all ranks
(``world``), or two at once (``dp+sp``): in training the gradients of dp are reduced while tp, sp,
cp and ep still communicate. Those four wait for each other, and do not overlap.

Measuring alone takes one pass a group, while all others wait. If there are many groups, a sample
is measured, spread evenly over the nodes::

    group      0  1  2  3 | 4  5  6  7 | 8  9 10 11 | 12 13 14 15
    4 of 16    x            .  x         .  .  x                x
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, groupby, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from ..core.axes import check_axes_exist, parse_axes
from ..core.call import quotes_call
from ..core.errors import SpecError
from ..core.group_plan import Axes
from ..core.layout import Layout
from ..core.text import Ints, Seconds, count_noun, format_sizes, format_table, wrap_lines
from ..core.topology import number_labels

ITEM_BYTES = 4  # of a float32
MAX_BYTES = 2**40  # of the largest array
MIN_CALLS = 2  # that are timed in each pass, however slow they are
ALONE, CONCURRENT, OVERLAP = "alone", "concurrent", "overlap"
DEFAULT_ALONE = 16  # groups of a target that are measured alone at most, by default
WORLD = "world"  # all axes, unless an axis has this name
SEQUENTIAL = frozenset({"ep", "cp", "sp", "tp"})  # one after the other inside a layer


@dataclass(frozen=True)
class Operation:
    """Properties of one collective."""

    ring_passes: int = 0  # of the array round a ring, (n - 1) / n of its bytes each; 0: no ring
    in_place: bool = False  # whether the output starts as the source, and no other source is read
    source_is_part: bool = False  # whether the source is one part, rather than the whole array
    output_is_part: bool = False  # whether the output is one part


OPERATIONS = {
    "all_reduce": Operation(ring_passes=2, in_place=True),
    "all_gather": Operation(ring_passes=1, source_is_part=True),
    "reduce_scatter": Operation(ring_passes=1, output_is_part=True),
    "all_to_all": Operation(ring_passes=1),
    "broadcast": Operation(in_place=True),
    "send_recv": Operation(),
}
RING = ("all_reduce", "all_gather", "reduce_scatter")  # that send to neighbors alone


@dataclass(frozen=True)
class Target:
    """Groups that a collective runs over."""

    groups: tuple[Axes, ...]  # axes of each; two entries if collectives run on both at once

    @property
    def name(self) -> str:
        """The target as typed: ``dp``, ``dp sp`` or ``dp+sp``."""
        return "+".join(" ".join(axes) for axes in self.groups)

    @property
    def span(self) -> Axes:
        """All axes; ranks that differ in no others depend on each other."""
        return tuple(axis for axes in self.groups for axis in axes)


@dataclass(frozen=True)
class Case:
    """An operation, its groups and the size of its array."""

    op: str  # one of ``OPERATIONS``
    target: Target
    bytes: int  # size of the total array; of each of the two if two axes run at once

    def __str__(self) -> str:
        return f"{self.op} over {self.target.name}, {self.bytes} bytes"


@dataclass(frozen=True)
class Measurement:
    """A case measured in one mode. Without a time, the backend lacks the operation."""

    case: Case
    mode: str  # ``"alone"``, ``"concurrent"`` or ``"overlap"``
    sizes: tuple[int, ...]  # ranks in a group, or in each of two groups if two axes run at once
    wrong: int = 0  # wrong elements in the results of all ranks
    calls: int = 0  # timed calls of each group; 0 if the operation is unsupported
    median: float | None = None  # seconds of a call, on the slowest rank of its group
    p99: float | None = None  # not exceeded by 99 of 100 calls; the slowest of fewer calls
    unsupported: str | None = None  # message of a backend that lacks the operation
    groups: int = 0  # number of measured groups; ``"alone"`` measures a sample of many
    num_groups: int = 0  # of the target

    @property
    def algbw(self) -> float | None:
        """Decimal GB/s of the median call; None without a time, and for two axes at once."""
        if self.median is None or len(self.sizes) > 1:
            return None
        return self.case.bytes / self.median / 1e9

    @property
    def busbw(self) -> float | None:
        """Decimal GB/s of a link, by the factor of nccl-tests; None as for ``algbw``."""
        algbw = self.algbw
        return None if algbw is None else algbw * busbw_factor(self.case.op, self.sizes[0])


@dataclass(frozen=True)
class BenchmarkRun:
    """The results of one run."""

    sizes: Mapping[str, int]  # axis name to size, the outermost first
    launcher: str
    device: str  # device type of the tensors
    backend: str
    torch: str
    hosts: Mapping[int, str]  # rank to its host name, in the order of the grid
    warm_up: int  # requested calls before the timed ones
    iters: int  # requested timed calls; each measurement has the actual number
    measurements: tuple[Measurement, ...]  # in measured order
    planned: int  # measurements of a complete run
    seconds: float

    @property
    def wrong(self) -> int:
        """Wrong elements in all results; a case counts once, however often it is measured."""
        return sum({row.case: row.wrong for row in self.measurements}.values())

    @property
    def interrupted(self) -> bool:
        """Whether a planned measurement is missing."""
        return len(self.measurements) < self.planned


def busbw_factor(operation: str, num_ranks: int) -> float:
    """Return the factor from algbw to busbw."""
    ring_passes = OPERATIONS[operation].ring_passes
    return ring_passes * (num_ranks - 1) / num_ranks if ring_passes else float(num_ranks > 1)


@quotes_call("sweep_sizes")
def sweep_sizes(least: int, most: int, factor: int) -> tuple[int, ...]:
    """Return the sizes from ``least`` in steps of a factor, up to ``most`` or just below."""
    if not 1 <= least <= most <= MAX_BYTES or factor < 2:
        summary = f"there are no sizes from {least} to {most} bytes by a factor of {factor}."
        rule = f"The least is 1 or more, the most {MAX_BYTES} or less, and the factor 2 or more."
        raise SpecError(summary, rule, fix="for example sweep_sizes(1024, 65536, 4).")
    series = []
    while least <= most:
        series.append(least)
        least *= factor
    return tuple(series)


def default_targets(layout: Layout) -> tuple[Target, ...]:
    """Return each axis of several ranks, each two, the world, and each two that overlap."""
    axes = tuple(axis for axis in layout.axes if layout.size(axis) > 1)
    two = list(combinations(axes, 2))
    sets = dict.fromkeys([*((axis,) for axis in axes), *two, *([axes] if axes else [])])
    overlapping = [Target(((a,), (b,))) for a, b in two if not {a, b} <= SEQUENTIAL]
    return (*(Target((axes,)) for axes in sets), *overlapping)


def parse_targets(layout: Layout, names: Sequence[str]) -> tuple[Target, ...]:
    """Return targets from their names, each once: sp+dp is dp+sp, world is all axes."""
    targets: dict[tuple[Axes, ...], Target] = {}
    for name in names:
        text = name
        if name.strip() == WORLD and WORLD not in layout.axes:
            text = " ".join([a for a in layout.axes if layout.size(a) > 1] or layout.axes)
        target = Target(tuple(parse_axes(part) for part in text.split("+")))
        check_axes_exist(target.span, layout.axes)
        if not all(target.groups) or len(target.groups) > 2:
            summary = f"{name!r} is not a target: axes, or two sets of axes joined by '+'."
            fix = "axes such as dp, 'dp sp' for groups over both, or dp+sp for both at once."
            raise SpecError(summary, fix=fix)
        for axes in target.groups:
            if layout.size(*axes) == 1:
                summary = f"a group over {' '.join(axes)} has 1 rank, so no data moves in it."
                raise SpecError(summary, fix="an axis with 2 ranks or more.")
        targets.setdefault(tuple(sorted(target.groups)), target)
    return tuple(targets.values())


def plan_cases(
    layout: Layout, operations: Sequence[str], targets: Sequence[Target], sizes: Sequence[int]
) -> list[Case]:
    """Return all cases, with sizes rounded down so that every group divides them."""
    step = ITEM_BYTES * layout.num_ranks
    divisible = dict.fromkeys(max(size // step, 1) * step for size in sizes)
    return [Case(op, target, size) for op in operations for target in targets for size in divisible]


def modes(layout: Layout, target: Target) -> tuple[str, ...]:
    """Return the modes in which a target is measured; a single group is always alone."""
    if len(target.groups) > 1:
        return (OVERLAP,)
    return (ALONE,) if layout.size(*target.span) == layout.num_ranks else (ALONE, CONCURRENT)


def total_passes(layout: Layout, cases: Sequence[Case], max_alone: int | None) -> int:
    """Return the passes of a run, each with all groups at once or one group alone."""
    passes = 0
    for case in cases:
        num_groups = layout.num_ranks // layout.size(*case.target.span)
        alone = num_groups if max_alone is None else min(num_groups, max_alone)
        passes += sum(alone if mode == ALONE else 1 for mode in modes(layout, case.target))
    return passes


def num_barriers(layout: Layout, cases: Sequence[Case], max_alone: int | None) -> int:
    """Return how often ranks wait for each other, each time one timeout at most.

    ::

        per run     4: to join, to build the mesh, to compare requests, to learn the hosts
        per case    3: the barrier, the checked call, the exchange of its result
        per pass    the barrier and MIN_CALLS calls; more are made only if all of them fit
                    into a quarter of the timeout
        per mode    1: the exchange of its times
    """
    exchanges = sum(len(modes(layout, case.target)) for case in cases)
    return 4 + 3 * len(cases) + (1 + MIN_CALLS) * total_passes(layout, cases, max_alone) + exchanges


def sample_groups(groups: Ints, hosts: Mapping[int, str], max_alone: int | None) -> list[int]:
    """Return the indices of the groups to measure alone, ascending, equal on all ranks.

    The groups are sorted by their nodes, with the first group first and the last one last. The
    sample is taken from there at equal distances.
    """
    last, size = len(groups) - 1, len(groups) if max_alone is None else max_alone
    if size > last:
        return [*range(len(groups))]
    nodes, _ = number_labels("node", (hosts[int(rank)] for rank in groups.flat))
    order = np.lexsort(nodes.reshape(groups.shape).T[::-1]).tolist()
    order = [0, *(group for group in order if 0 < group < last), last]
    return sorted(order[i * last // max(size - 1, 1)] for i in range(size))


def summarize(
    layout: Layout, case: Case, mode: str, seconds: Seconds, wrong: int = 0
) -> Measurement:
    """Return the measurement of a case from the time of each call on each rank.

    ``seconds`` is (num_ranks, calls), nan if the group of the rank was skipped. A call takes as
    long as on the slowest rank of its group; median and p99 are those of all groups and calls.
    """
    groups = layout.groups(*case.target.span)  # (num_groups, group_size)
    position = {int(rank): index for index, rank in enumerate(layout.grid.flat)}
    positions = np.array([[position[int(rank)] for rank in group] for group in groups])
    slowest = seconds[positions].max(axis=1)  # (num_groups, calls)
    was_measured = ~np.isnan(slowest).any(axis=1)
    times = np.sort(slowest[was_measured], axis=None)
    return Measurement(
        case,
        mode,
        tuple(layout.size(*axes) for axes in case.target.groups),
        wrong,
        seconds.shape[1],
        float(np.median(times)),
        float(times[-(-99 * len(times) // 100) - 1]),
        groups=int(was_measured.sum()),
        num_groups=len(groups),
    )


def slowdowns(measurements: Sequence[Measurement]) -> list[float | None]:
    """Return the slowdown under contention: concurrent median over the isolated one.

    ``concurrent`` is compared with ``alone``. ``overlap`` is compared with the slower of its two
    axes, each with all its groups at once: 1 means no cost, and 2 means one after the other if both
    take equally long. None if there is nothing to compare with.
    """
    medians = {
        (row.case.op, row.case.target.groups, row.case.bytes, row.mode): row.median
        for row in measurements
        if row.median is not None
    }

    def slowdown(row: Measurement) -> float | None:
        if row.median is None or row.mode == ALONE:
            return None
        bases = []
        for axes in row.case.target.groups:
            key = row.case.op, (axes,), row.case.bytes
            alone = medians.get((*key, ALONE))
            bases.append(medians.get((*key, CONCURRENT), alone) if row.mode == OVERLAP else alone)
        known = [seconds for seconds in bases if seconds is not None]
        return row.median / max(known) if len(known) == len(bases) else None

    return [slowdown(row) for row in measurements]


FORMATS = {  # column of the table to the format of its numbers
    **dict.fromkeys(("mode", "bytes"), ""),
    **{"us": ".1f", "p99": ".1f", "algbw": ".4f", "busbw": ".4f", "ratio": ".2f"},
    **dict.fromkeys(("wrong", "calls"), ""),
}
LEGEND = (
    "us: the median call, on the slowest rank of its group. GB/s decimal, as nccl-tests: "
    "algbw = bytes / us, busbw = algbw * factor(op, n). ratio: all groups at once over one alone; "
    "for two axes at once, over the slower of the two. calls: timed calls of each group; "
    "fewer if they are slow."
)


def results_table(run: BenchmarkRun, width: int = 80, *, ascii: bool = False) -> str:
    """Return the whole run as text, one table for each operation and target."""
    ranks = count_noun(math.prod(run.sizes.values()), "rank")
    hosts = count_noun(len(set(run.hosts.values())), "host")
    software = f"launcher {run.launcher}; {run.backend} on {run.device}, torch {run.torch}"
    calls = f"up to {run.iters} calls a row after {run.warm_up} to warm up, float32"
    title = f"{format_sizes(run.sizes)}: {ranks} on {hosts}, {software}; {calls}"
    lines = wrap_lines(title, width)
    for (op, axes), group in groupby(result_rows(run), itemgetter("op", "axes")):
        rows = list(group)
        sizes, first = " and ".join(map(str, rows[0]["ranks"])), rows[0]
        heading = f"{op} over {axes}, n = {sizes}"
        if first["groups"] < first["num_groups"]:
            num_groups = count_noun(first["num_groups"], "group")
            heading += f"; {first['mode']}: {first['groups']} of {num_groups}"
        lines += ["", *wrap_lines(heading, width)]
        cells = [
            ["-" if row[name] is None else format(row[name], FORMATS[name]) for name in FORMATS]
            for row in rows
            if row["us"] is not None
        ]
        if cells:
            lines += format_table([*FORMATS], cells, width=width, ascii=ascii).split("\n")
        for row in rows:
            if row["unsupported"] is not None:
                case = f"{row['mode']}, {row['bytes']} bytes"
                lines += wrap_lines(f"{case}: not measured: {row['unsupported']}", width)
    done = f"{len(run.measurements)} of " * run.interrupted + count_noun(run.planned, "row")
    verdict = "Interrupted" if run.interrupted else "FAILED" if run.wrong else "OK"
    wrong = count_noun(run.wrong, "wrong element")
    last = f"{verdict}: {done} in {run.seconds:.1f} s; {wrong}."
    return "\n".join([*lines, "", *wrap_lines(LEGEND, width), *wrap_lines(last, width)])


def result_rows(run: BenchmarkRun) -> list[dict[str, Any]]:
    """Return a row for each measurement; without a time its numbers are None."""
    return [
        {
            "op": row.case.op,
            "axes": row.case.target.name,
            "ranks": list(row.sizes),
            "mode": row.mode,
            "bytes": row.case.bytes,
            "us": None if row.median is None else row.median * 1e6,
            "p99": None if row.p99 is None else row.p99 * 1e6,
            "algbw": row.algbw,
            "busbw": row.busbw,
            "ratio": ratio,
            "wrong": row.wrong,
            "calls": row.calls,
            "groups": row.groups,
            "num_groups": row.num_groups,
            "unsupported": row.unsupported,
        }
        for row, ratio in zip(run.measurements, slowdowns(run.measurements), strict=True)
    ]


def run_to_json(run: BenchmarkRun) -> dict[str, Any]:
    """Return the whole run as dictionaries, lists, numbers and strings."""
    return {
        "ok": not run.wrong and not run.interrupted,
        **asdict(run),
        "hosts": [run.hosts[rank] for rank in sorted(run.hosts)],
        "measurements": result_rows(run),
        "wrong": run.wrong,
        "interrupted": run.interrupted,
        "links": link_speeds(run),
    }


class Fit(NamedTuple):
    """The line t = alpha + beta * S of one operation over the groups of one target."""

    op: str
    target: str
    mode: str  # how the groups were measured
    ranks: int  # ranks in a group
    alpha: float  # seconds before the first byte
    beta: float  # seconds per byte


def fit_line(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Return alpha and beta of t = alpha + beta * S; neither is below zero.

    The alpha-beta model (R. W. Hockney, Parallel Computing 20(3), 1994). The line has the least
    squares of *relative* residuals, since times of 1 KiB and 64 MiB count equally.
    """
    weight = 1 / np.asarray(seconds, dtype=np.float64)
    columns = np.stack([weight, weight * np.asarray(sizes, dtype=np.float64)])  # (2, num_sizes)
    scale = np.linalg.norm(columns, axis=1)
    terms, *_ = np.linalg.lstsq((columns / scale[:, None]).T, np.ones(len(weight)), rcond=None)
    if (terms >= 0).all():
        return float(terms[0] / scale[0]), float(terms[1] / scale[1])
    # one term is below zero: keep the single term with the smaller sum of squares
    alpha, beta = (float(c.sum() / (c @ c)) for c in columns)
    constant, slope = (
        float(((c * term - 1) ** 2).sum()) for c, term in zip(columns, (alpha, beta), strict=True)
    )
    return (alpha, 0.0) if constant <= slope else (0.0, beta)


def fit_measurements(measurements: Sequence[Measurement]) -> Iterator[Fit]:
    """Yield a line for each operation, target and mode with two sizes or more."""
    series: dict[tuple[str, str, str, int], dict[int, float]] = {}
    for row in measurements:
        if row.median is not None and len(row.sizes) == 1:
            key = row.case.op, row.case.target.name, row.mode, row.sizes[0]
            series.setdefault(key, {})[row.case.bytes] = row.median
    for key, times in series.items():
        if len(times) > 1:
            yield Fit(*key, *fit_line([*times], [*times.values()]))


def ranks_per_link(layout: Layout, hosts: Mapping[int, str], *axes: str) -> float | None:
    """Return how many ranks of a group share one link between nodes; None inside a node.

    ::

        ring            0 - 1 - 2 - 3 | 4 - 5 - 6 - 7 -     two of eight messages leave their node
        ranks_per_link  8 / 2 = 4
    """
    most = 0
    for group in layout.groups(*axes).tolist():
        names = [hosts[rank] for rank in group]
        most = max(most, sum(here != after for here, after in pairwise([*names, names[0]])))
    return layout.size(*axes) / most if most else None


def link_speeds(run: BenchmarkRun) -> dict[str, float | str]:
    """Return latency and bandwidth of the links, and their ``source``; {} if none was measured.

    They come from rings with all groups of an axis at once, as in training. A ring moves, for an
    array of S bytes on n ranks, ``factor * S`` bytes from each rank in sequential steps::

        alpha = steps * latency                        steps = ring_passes * (n - 1)
        beta  = factor / bandwidth                     inside a node
        beta  = factor / ranks_per_link / bandwidth    across nodes

    This inverts the formulas of the cost model, and the names are those of ``meshkit search
    --links``. Each figure is the median over the lines of one level. Across nodes only groups with
    the fewest ranks on a node count: in the others, the links inside may be the bottleneck.
    """
    rings = [fit for fit in fit_measurements(run.measurements) if fit.op in RING]
    concurrent = {(fit.op, fit.target) for fit in rings if fit.mode == CONCURRENT}
    layout = Layout(ranks=[*run.hosts], **run.sizes)
    inside: list[tuple[Fit, float]] = []
    across: list[tuple[Fit, float]] = []
    for fit in rings:
        if fit.mode == CONCURRENT or (fit.op, fit.target) not in concurrent:
            shared = ranks_per_link(layout, run.hosts, *fit.target.split())
            (inside if shared is None else across).append((fit, shared or 1.0))
    fewest = min((shared for _, shared in across), default=0.0)
    levels = {"intra_node": inside, "inter_node": [f for f in across if f[1] == fewest]}
    speeds: dict[str, float | str] = {}
    for level, fits in levels.items():
        bandwidths = [
            busbw_factor(fit.op, fit.ranks) / fit.beta / shared / 1e9
            for fit, shared in fits
            if fit.beta
        ]
        steps = [(fit, OPERATIONS[fit.op].ring_passes * (fit.ranks - 1)) for fit, _ in fits]
        latencies = [fit.alpha / num_steps for fit, num_steps in steps if fit.alpha]
        figures = {f"bandwidth_{level}": bandwidths, f"latency_{level}": latencies}
        speeds |= {name: float(np.median(values)) for name, values in figures.items() if values}
    if speeds:
        software = f"{run.backend} on {run.device}, torch {run.torch}"
        title = f"meshkit bench {format_sizes(run.sizes)}, {software}"
        speeds["source"] = f"{title}: {', '.join(speeds)}"
    return speeds
