"""The benchmark of norms: equal norms on both sides, and a peer that is not installed."""

from __future__ import annotations

import pytest

from benchmarks import norms


def test_a_peer_with_another_norm_is_not_timed() -> None:
    norms.check_norms("peer", 3.0, 1.0)
    norms.check_norms("peer", 0.5, 0.5)
    with pytest.raises(RuntimeError, match=r"clips from 3.0, and peer then finds 1.4"):
        norms.check_norms("peer", 3.0, 1.4)
