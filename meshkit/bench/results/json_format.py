"""A benchmark run as JSON, with the field names of nccl-tests.

nccl-tests writes them for its option ``-J`` (``src/util.cu`` of github.com/NVIDIA/nccl-tests)::

    a row           size, count, type, redop, root, out_of_place, in_place
    its speed       time, alg_bw, bus_bw, nwrong
    single calls    min_us, p50_us, p99_us, max_us

Times are in microseconds, bandwidths in decimal GB/s.

``iterations`` is the requested number of calls. ``actual_iterations`` is that of each group, fewer
if calls are slow. Axes, modes, groups and fits, which nccl-tests does not have, are extra fields.
``groups`` of ``num_groups`` were measured. ``levels`` has the level of each group of ``ranks``
(:mod:`.link_speed`). ``meshkit search --links`` reads ``links``.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .collectives import ITEM_BYTES, OPERATIONS
from .link_speed import link_speeds, locality
from .measurement import GroupTime, Measurement, RankTime
from .run import BenchmarkRun, slowdowns
from .targets import Target


def run_to_json(run: BenchmarkRun) -> dict[str, Any]:
    """Return the whole run as dictionaries, lists, numbers and strings. Pure."""
    levels = {row.case.target: _levels(run, row.case.target) for row in run.measurements}
    results = [
        {**_result(row, ratio), "levels": levels[row.case.target]}
        for row, ratio in zip(run.measurements, slowdowns(run.measurements), strict=True)
    ]
    speeds = [row.busbw for row in run.measurements if row.busbw is not None]
    return {
        "ok": not run.wrong and not run.interrupted,
        "sizes": dict(run.sizes),
        "launcher": run.launcher,
        "device": run.device,
        "backend": run.backend,
        "torch": run.torch,
        "hosts": [run.hosts[rank] for rank in sorted(run.hosts)],
        "config": {"warmup_iterations": run.warm_up, "iterations": run.iters},
        "planned": run.planned,
        "interrupted": run.interrupted,
        "seconds": run.seconds,
        "results": results,
        "out_of_bounds": {"count": run.wrong, "okay": not run.wrong},
        "average_bus_bandwidth": {"bandwidth": sum(speeds) / len(speeds) if speeds else None},
        "fits": [asdict(fit) for fit in run.fits],
        "links": link_speeds(run),
    }


def _levels(run: BenchmarkRun, target: Target) -> list[str]:
    """Return ``"inside"`` or ``"across"`` nodes for each axis set of a target."""
    return [locality(run.layout, run.hosts, *axes).level for axes in target.groups]


def _result(row: Measurement, ratio: float | None) -> dict[str, Any]:
    operation = OPERATIONS[row.case.op]
    placement = "in_place" if operation.in_place else "out_of_place"
    num_parts = row.sizes[0] if len(row.sizes) == 1 else 1
    return {
        "op": row.case.op,
        "axes": row.case.target.name,
        "mode": row.mode,
        "ranks": list(row.sizes),
        "size": row.case.bytes,
        "count": operation.count(row.case.bytes // ITEM_BYTES, num_parts),
        "type": "float",
        "redop": "sum" if operation.reduces else "none",
        "root": "0" if operation.rooted else "-1",
        "out_of_place": None,
        "in_place": None,
        placement: _speed(row),
        f"{placement}_per_iter": _calls(row),
        "actual_iterations": row.calls or None,
        "groups": row.groups or None,
        "num_groups": row.num_groups or None,
        "ratio": ratio,
        "slowest_group": _group(row.slowest),
        "fastest_group": _group(row.fastest),
        "slowest_rank": _rank(row.rank),
        "lacks": row.unsupported,
    }


def _speed(row: Measurement) -> dict[str, Any] | None:
    if row.timing is None:
        return None
    time = row.timing.median * 1e6
    return {"time": time, "alg_bw": row.algbw, "bus_bw": row.busbw, "nwrong": row.wrong}


def _calls(row: Measurement) -> dict[str, float] | None:
    """Return percentiles over single calls, on the slowest rank of each group."""
    if row.timing is None:
        return None
    timing = row.timing
    names = ("min_us", "p25_us", "p50_us", "p75_us", "p99_us", "max_us")
    spread = timing.spread
    values = (timing.least, spread.low, spread.median, spread.high, timing.p99, timing.most)
    return {name: value * 1e6 for name, value in zip(names, values, strict=True)}


def _group(group: GroupTime | None) -> dict[str, Any] | None:
    if group is None:
        return None
    return {"ranks": list(group.ranks), "where": group.where, "time": group.seconds * 1e6}


def _rank(rank: RankTime | None) -> dict[str, Any] | None:
    if rank is None:
        return None
    return {"rank": rank.rank, "where": rank.where, "time": rank.seconds * 1e6}
