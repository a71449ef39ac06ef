"""A benchmark run as rows of numbers, for the table, and as JSON.

Times are in microseconds, bandwidths in decimal GB/s, as in nccl-tests. ``meshkit search --links``
reads ``links``.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .link_speed import link_speeds
from .run import BenchmarkRun, slowdowns


def result_rows(run: BenchmarkRun) -> list[dict[str, Any]]:
    """Return a row for each measurement; without a time its numbers are None. Pure."""
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
    """Return the whole run as dictionaries, lists, numbers and strings. Pure."""
    return {
        "ok": not run.wrong and not run.interrupted,
        **asdict(run),
        "hosts": [run.hosts[rank] for rank in sorted(run.hosts)],
        "measurements": result_rows(run),
        "wrong": run.wrong,
        "interrupted": run.interrupted,
        "links": link_speeds(run),
    }
