"""A report of ``meshkit check`` for tests."""

from __future__ import annotations

from dataclasses import replace

from meshkit.guard.verification import CheckReport, GroupTiming, Verification

TIMING = GroupTiming(("dp",), 2, 2, 0.001, (1, 3), 0.002)
TIMINGS = (TIMING, replace(TIMING, axes=("dp", "sp"), num_groups=1))
REPORT = CheckReport(
    rank=0,
    sizes={"dp": 2, "sp": 2, "tp": 1},
    launcher="slurm",
    device="cuda",
    backend="nccl",
    verification=Verification(TIMINGS, 3, 0.5, "dp=1 sp=1"),
    built=1.25,
    checked=0.5,
)
