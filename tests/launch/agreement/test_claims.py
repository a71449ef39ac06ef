"""Claims of ranks in an agreement round."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
import torch.distributed as dist

import meshkit
from meshkit.core.errors import LaunchError, MeshkitError
from meshkit.launch.agreement.claims import Claim, Claimant, conflicting_claim
from meshkit.launch.agreement.consensus import agree
from meshkit.launch.agreement.proposal import Participants, Proposal
from meshkit.launch.store.deadline import Deadline


def conflict(first: Claimant, second: Claimant) -> MeshkitError:
    """Return the error of two claimants."""
    return LaunchError(f"{first} and {second}: {first.value}, {second.value}")


def test_the_first_to_claim_a_key_decides_its_value() -> None:
    store = dist.HashStore()
    assert conflicting_claim(store, 3, (Claim("a", "x", conflict),)) is None
    assert (
        conflicting_claim(store, 1, (Claim("a", "x", conflict), Claim("b", "y", conflict))) is None
    )
    error = conflicting_claim(store, 0, (Claim("a", "x", conflict), Claim("b", "z", conflict)))
    process = f"(host {socket.gethostname()}, pid {os.getpid()})"
    assert str(error) == f"rank 0 {process} and rank 1 {process}: z, y"


def test_a_rank_checks_in_after_its_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a rank that decides at the deadline could miss a conflict."""
    keys: list[str] = []
    for name in ("set", "compare_set"):
        call = getattr(dist.Store, name)

        def record(store: dist.Store, key: str, *args: str, call: Any = call) -> object:
            keys.append(key)
            return call(store, key, *args)

        monkeypatch.setattr(dist.PrefixStore, name, record, raising=False)
    world = meshkit.detect({"RANK": "0", "WORLD_SIZE": "1"})
    proposal = Proposal("init", {}, "", (Claim("a", "x", conflict),))
    agree(proposal, Participants.of(dist.HashStore(), world), Deadline.after(5))
    assert keys == ["request", "claim/a", "check_in/0", "decision"]
