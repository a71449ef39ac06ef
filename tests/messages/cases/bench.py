"""Cases of errors that bench/results raises."""

from __future__ import annotations

from meshkit import (
    Layout,
)
from meshkit.bench.results.collectives import sweep_sizes
from meshkit.bench.results.targets import parse_targets
from tests.messages.snapshot import unique

LAYOUT = Layout(dp=4, sp=2, tp=1)

CASES = unique(
    ("a sweep without sizes", lambda: sweep_sizes(64, 32, 2)),
    ("a target without axes", lambda: parse_targets(LAYOUT, ["dp", "dp+"])),
    ("a target over groups of one rank", lambda: parse_targets(LAYOUT, ["tp"])),
)
