"""A benchmark run as text, one table for each operation and target.

::

    all_reduce over dp, n = 4
    mode        bytes     us    p99   algbw   busbw  ratio  wrong  calls
    ----------  -----  -----  -----  ------  ------  -----  -----  -----
    alone        1024  300.0  400.0  0.0034  0.0051      -      0     20
    concurrent   1024  330.0  600.0  0.0031  0.0047   1.10      0     20
"""

from __future__ import annotations

import math
from itertools import groupby
from operator import itemgetter

from ...core.draw.table import format_table, wrap_lines
from ...core.text import count_noun, format_sizes
from .json_format import result_rows
from .run import BenchmarkRun

FORMATS = {  # column to the format of its numbers
    **dict.fromkeys(("mode", "bytes", "wrong", "calls"), ""),
    **{"us": ".1f", "p99": ".1f", "algbw": ".4f", "busbw": ".4f", "ratio": ".2f"},
}
HEADER = ("mode", "bytes", "us", "p99", "algbw", "busbw", "ratio", "wrong", "calls")
LEGEND = (
    "us: the median call, on the slowest rank of its group. GB/s decimal, as nccl-tests: "
    "algbw = bytes / us, busbw = algbw * factor(op, n). ratio: all groups at once over one alone; "
    "for two axes at once, over the slower of the two. calls: timed calls of each group; "
    "fewer if they are slow."
)


def results_table(run: BenchmarkRun, width: int = 80, *, ascii: bool = False) -> str:
    """Return the whole run as text. Pure."""
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
            ["-" if row[name] is None else format(row[name], FORMATS[name]) for name in HEADER]
            for row in rows
            if row["us"] is not None
        ]
        if cells:
            lines += format_table(HEADER, cells, width=width, ascii=ascii).split("\n")
        for row in rows:
            if row["unsupported"] is not None:
                case = f"{row['mode']}, {row['bytes']} bytes"
                lines += wrap_lines(f"{case}: not measured: {row['unsupported']}", width)
    done = f"{len(run.measurements)} of " * run.interrupted + count_noun(run.planned, "row")
    verdict = "Interrupted" if run.interrupted else "FAILED" if run.wrong else "OK"
    wrong = count_noun(run.wrong, "wrong element")
    last = f"{verdict}: {done} in {run.seconds:.1f} s; {wrong}."
    return "\n".join([*lines, "", *wrap_lines(LEGEND, width), *wrap_lines(last, width)])
