"""What ranks run in place of ``measured_beside``. No pytest here."""

from __future__ import annotations

from meshkit.bench.results.run import BenchmarkRun
from meshkit.bench.run import Request
from meshkit.cli.bench import measured_beside
from meshkit.core.layout import Layout
from meshkit.launch.launchers.detect import detect
from tests.bench.bench_jobs import spoil


def one_is_wrong(request: Request, layout: Layout) -> tuple[int, BenchmarkRun] | None:
    """Rank 1 gets two elements of each broadcast wrong."""
    if detect().rank == 1:
        spoil("broadcast", 2)
    return measured_beside(request, layout)


def one_leaves(request: Request, layout: Layout) -> tuple[int, BenchmarkRun] | None:
    """Rank 1 never comes."""
    return None if detect().rank == 1 else measured_beside(request, layout)
