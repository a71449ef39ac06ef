"""A run of measurements as a program reads it, with the field names of nccl-tests.

From ``src/util.cu`` of github.com/NVIDIA/nccl-tests, which writes them for its option ``-J``:
``size, count, type, redop, root, out_of_place, in_place, time, alg_bw, bus_bw, nwrong`` and, for
single calls, ``min_us, p50_us, p99_us, max_us``. Times are in microseconds, bandwidths in decimal
GB/s. ``iterations`` are the calls asked for, ``actual_iterations`` those of each group, fewer
where they are slow. What nccl-tests does not know, axes, modes, groups, fits, stands beside them;
``groups`` of ``num_groups`` were measured. With a CUDA graph ``actual_iterations`` are its replays,
``calls_per_replay`` the calls in each (else null), and ``_per_iter``, its percentiles too, is over
replays, each with the mean of its calls: single calls are not seen. ``levels`` are those of
``core.reach``, as many as ``ranks``; ``links`` is what ``meshkit search --links`` reads.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .bandwidth import ITEM
from .measured import Measured, ratios
from .measured_links import measured_links
from .measurement import GroupTime, Measurement, RankTime
from .operations import OPERATIONS
from .reach import reach
from .targets import Target


def as_fields(report: Measured) -> dict[str, Any]:
    """The whole run as dictionaries, lists, numbers and strings. Pure."""
    levels = {one.case.target: _levels(report, one.case.target) for one in report.found}
    pairs = zip(report.found, ratios(report.found), strict=True)
    results = [{**_result(one, ratio), "levels": levels[one.case.target]} for one, ratio in pairs]
    speeds = [one.busbw for one in report.found if one.busbw is not None]
    return {
        "ok": not report.wrong and not report.interrupted,
        "sizes": dict(report.sizes),
        "launcher": report.launcher,
        "device": report.device,
        "backend": report.backend,
        "torch": report.torch,
        "hosts": [report.hosts[rank] for rank in sorted(report.hosts)],
        "config": _config(report),
        "planned": report.planned,
        "interrupted": report.interrupted,
        "seconds": report.seconds,
        "results": results,
        "out_of_bounds": {"count": report.wrong, "okay": not report.wrong},
        "average_bus_bandwidth": {"bandwidth": sum(speeds) / len(speeds) if speeds else None},
        "fits": [asdict(fit) for fit in report.fits],
        "links": measured_links(report),
    }


def _config(report: Measured) -> dict[str, Any]:
    calls = {"warmup_iterations": report.warm_up, "iterations": report.iters}
    return {**calls, "graph": report.graph}


def _levels(report: Measured, target: Target) -> list[str]:
    """Whether groups are inside a node or across nodes, for each of those measured at once."""
    return [reach(report.layout, report.hosts, *axes).level for axes in target.groups]


def _result(one: Measurement, ratio: float | None) -> dict[str, Any]:
    operation = OPERATIONS[one.case.op]
    place = "in_place" if operation.in_place else "out_of_place"
    parts = one.sizes[0] if len(one.sizes) == 1 else 1
    return {
        "op": one.case.op,
        "axes": one.case.target.name,
        "mode": one.mode,
        "ranks": list(one.sizes),
        "size": one.case.bytes,
        "count": operation.counted(one.case.bytes // ITEM, parts),
        "type": "float",
        "redop": "sum" if operation.reduces else "none",
        "root": "0" if operation.rooted else "-1",
        "out_of_place": None,
        "in_place": None,
        place: _speed(one),
        f"{place}_per_iter": _calls(one),
        "actual_iterations": one.calls or None,
        "calls_per_replay": one.per_replay,
        "groups": one.groups or None,
        "num_groups": one.num_groups or None,
        "ratio": ratio,
        "slowest_group": _group(one.slowest),
        "fastest_group": _group(one.fastest),
        "slowest_rank": _rank(one.rank),
        "lacks": one.lacks,
    }


def _speed(one: Measurement) -> dict[str, Any] | None:
    if one.timing is None:
        return None
    time = one.timing.median * 1e6
    return {"time": time, "alg_bw": one.algbw, "bus_bw": one.busbw, "nwrong": one.wrong}


def _calls(one: Measurement) -> dict[str, float] | None:
    """Single calls, or replays of a graph, on the slowest rank of each group."""
    if one.timing is None:
        return None
    t = one.timing
    names = ("min_us", "p25_us", "p50_us", "p75_us", "p99_us", "max_us")
    values = (t.least, t.spread.low, t.median, t.spread.high, t.p99, t.most)
    return {name: value * 1e6 for name, value in zip(names, values, strict=True)}


def _group(one: GroupTime | None) -> dict[str, Any] | None:
    if one is None:
        return None
    return {"ranks": list(one.ranks), "where": one.where, "time": one.seconds * 1e6}


def _rank(one: RankTime | None) -> dict[str, Any] | None:
    if one is None:
        return None
    return {"rank": one.rank, "where": one.where, "time": one.seconds * 1e6}
