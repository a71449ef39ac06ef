"""The error of a rank that cannot create its groups, on the other ranks."""

from __future__ import annotations

import pytest

import meshkit
from meshkit import MeshkitError
from meshkit.live.setup import open_groups


def refuse_to_create(*_: object) -> None:
    raise MeshkitError("torch created another group.", fix="report it.")


def build_with_one_failure() -> str:
    """Return the error of this rank, if rank 1 creates no groups."""
    world = meshkit.init()
    with pytest.MonkeyPatch.context() as patch:
        if world.rank == 1:
            patch.setattr(open_groups, "create_groups", refuse_to_create)
        with pytest.raises(MeshkitError) as caught:
            meshkit.build_mesh(dp=2, arrival_timeout=20)
    return f"{type(caught.value).__name__}: {caught.value}"


def test_the_other_ranks_quote_the_call_of_the_rank_that_failed() -> None:
    other, failed = meshkit.spawn(build_with_one_failure, 2, timeout=60)
    call = "build_mesh(dp=2, arrival_timeout=20): torch created another group."
    assert failed == f"MeshkitError: {call}\n  Fix: report it."
    assert other.startswith("DisagreementError: ")
    assert f"gave up: MeshkitError: {call}\n" in other
    assert other.endswith("\n  Fix: report it.")
