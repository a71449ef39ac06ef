"""Cases of errors that core/regroup raises."""

from __future__ import annotations

from typing import cast

from meshkit import Layout
from meshkit.core.regroup import Regrouping, find_sources, regroup
from tests.messages.snapshot import unique

REGROUPED = cast(Regrouping, regroup(Layout(dp=2, tp=2), range(4)))

CASES = unique(
    (
        "a rank that recovers without a step",
        lambda: find_sources(REGROUPED, {0: 4, 1: None, 2: 4, 3: 4}),
    ),
    (
        "steps that are not held for each part of the state",
        lambda: find_sources(REGROUPED, {0: 4, 1: 5, 2: 3, 3: 5}),
    ),
)
